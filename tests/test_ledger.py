"""The ledger counts what is in flight, exactly, however streams begin and end."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.ledger import InFlight, Ledger
from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot


def snapshot(*names: str, endpoints_version: int = 1) -> Snapshot:
    endpoints = tuple(Endpoint("ns", name, "10.0.0.1", 8000 + i) for i, name in enumerate(names))
    return Snapshot.build(endpoints, endpoints_version=endpoints_version)


def test_a_stream_counts_from_reserve_to_release():
    ledger = Ledger()
    ledger.reserve("s1", "ns/a", prefill_tokens=100, output_tokens=20)
    assert ledger.in_flight("ns/a") == InFlight(1, 120)
    ledger.first_token("s1")
    assert ledger.in_flight("ns/a") == InFlight(1, 20)
    assert ledger.release("s1") is True
    assert ledger.in_flight("ns/a") == ledger.totals() == InFlight(0, 0)
    assert ledger.open_streams() == 0


def test_it_tells_which_endpoints_of_the_pool_work_for_us():
    ledger, pool = Ledger(), snapshot("a", "b")
    ledger.reserve("s1", "ns/b", prefill_tokens=0)
    ledger.reserve("s2", "ns/gone", prefill_tokens=5)
    assert set(ledger.endpoints_in_flight(pool)) == {"ns/b"}
    ledger.release("s1")
    assert not ledger.endpoints_in_flight(pool)


def test_release_counts_once_and_unknown_keys_change_nothing():
    ledger = Ledger()
    ledger.reserve("s1", "ns/a", prefill_tokens=5)
    ledger.reserve("s2", "ns/a", prefill_tokens=7)
    assert ledger.release("s1")
    assert not ledger.release("s1")
    assert not ledger.release("never")
    ledger.first_token("never")
    ledger.move("never", "ns/a", "ns/b")
    ledger.move("s2", "ns/not-held", "ns/b")
    assert ledger.in_flight("ns/a") == InFlight(1, 7)
    assert ledger.in_flight("ns/b") == InFlight(0, 0)


def test_first_token_twice_frees_prefill_tokens_once():
    ledger = Ledger()
    ledger.reserve("s1", "ns/a", prefill_tokens=5, output_tokens=1)
    ledger.first_token("s1")
    ledger.first_token("s1")
    assert ledger.in_flight("ns/a") == InFlight(1, 1)


def test_a_prefill_and_a_decode_server_are_both_counted_and_both_released():
    ledger = Ledger()
    for i in range(1000):
        ledger.reserve(f"s{i}", "ns/decode", prefill_tokens=0, output_tokens=10)
        ledger.reserve(f"s{i}", "ns/prefill", prefill_tokens=50)
    assert ledger.totals() == InFlight(2000, 60_000)
    for i in range(1000):
        ledger.release(f"s{i}")
    assert ledger.in_flight("ns/decode") == ledger.in_flight("ns/prefill") == InFlight(0, 0)


def test_one_server_that_prefills_and_decodes_serves_one_request():
    ledger = Ledger()
    ledger.reserve("s1", "ns/a", prefill_tokens=50, output_tokens=10)
    ledger.reserve("s1", "ns/a", prefill_tokens=50)
    assert ledger.in_flight("ns/a") == InFlight(1, 60)


def test_move_follows_the_request_to_the_server_that_answered():
    ledger = Ledger()
    ledger.reserve("s1", "ns/a", prefill_tokens=50, output_tokens=10)
    ledger.move("s1", "ns/a", "ns/b")
    assert ledger.in_flight("ns/a") == InFlight(0, 0)
    assert ledger.in_flight("ns/b") == InFlight(1, 60)
    ledger.release("s1")
    assert ledger.totals() == InFlight(0, 0)


def test_an_endpoint_that_flaps_keeps_its_counts():
    ledger = Ledger()
    ledger.reserve("s1", "ns/b", prefill_tokens=9)
    assert ledger.load(snapshot("a", "b", endpoints_version=1)).requests.tolist() == [0, 1]
    assert ledger.load(snapshot("a", endpoints_version=2)).requests.tolist() == [0]
    ledger.first_token("s1")
    assert ledger.load(snapshot("b", "a", endpoints_version=3)).requests.tolist() == [1, 0]
    ledger.release("s1")
    assert ledger.load(snapshot("b", "a", endpoints_version=3)).requests.tolist() == [0, 0]


def test_a_load_once_read_does_not_change():
    ledger = Ledger()
    pool = snapshot("a")
    before = ledger.load(pool)
    ledger.reserve("s1", "ns/a", prefill_tokens=9)
    assert before.requests.tolist() == before.tokens.tolist() == [0]
    assert ledger.load(pool).tokens.tolist() == [9]


def test_a_stream_decodes_its_context_from_the_first_token_on():
    ledger, pool = Ledger(), snapshot("a", "b")
    ledger.reserve("s1", "ns/a", prefill_tokens=100, context_tokens=900)
    ledger.reserve("s2", "ns/b", prefill_tokens=30, output_tokens=5, context_tokens=35)
    assert ledger.load(pool).prefill_tokens.tolist() == [100, 30]
    assert ledger.load(pool).decode_tokens.tolist() == [0, 0]
    ledger.first_token("s1")
    assert ledger.load(pool).prefill_tokens.tolist() == [0, 30]
    assert ledger.load(pool).decode_tokens.tolist() == [900, 0]
    ledger.release("s1")
    assert ledger.load(pool).decode_tokens.tolist() == [0, 0]


def test_short_lived_endpoint_names_leave_nothing_behind():
    ledger = Ledger()
    for i in range(10_000):
        ledger.reserve("s", f"ns/{i}", prefill_tokens=1)
        ledger.release("s")
    assert ledger.totals() == InFlight(0, 0)
    assert not ledger._by_endpoint
    assert not ledger._streams


class NaiveLedger:
    """Adds everything up anew on every question."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], list[int]] = {}

    def reserve(self, key: str, endpoint: str, *held: int) -> None:
        """`held`: prefill, output and context tokens, and whether it is past its first token."""
        old = self.held.get((key, endpoint), [0, 0, 0, 0])
        self.held[key, endpoint] = [max(pair) for pair in zip(old, held, strict=True)]

    def first_token(self, key: str) -> None:
        for (k, _), tokens in self.held.items():
            if k == key:
                tokens[0], tokens[3] = 0, 1

    def move(self, key: str, source: str, target: str) -> None:
        if source != target and (key, source) in self.held:
            self.reserve(key, target, *self.held.pop((key, source)))

    def release(self, key: str) -> bool:
        mine = [k for k in self.held if k[0] == key]
        for k in mine:
            del self.held[k]
        return bool(mine)

    def count(self) -> tuple[Counter[str], Counter[str], Counter[str], Counter[str]]:
        requests, tokens, prefill, decode = counts = (Counter[str](), Counter[str](), Counter[str](), Counter[str]())
        for (_, endpoint), held in self.held.items():
            requests[endpoint] += 1
            tokens[endpoint] += held[0] + held[1]
            prefill[endpoint] += held[0]
            decode[endpoint] += held[2] * held[3]
        return counts


KEYS = st.sampled_from(["s1", "s2", "s3"])
ENDPOINTS = st.sampled_from(["ns/a", "ns/b", "ns/c"])
TOKENS = st.integers(0, 50)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), KEYS, ENDPOINTS, TOKENS, TOKENS, TOKENS),
        st.tuples(st.just("first_token"), KEYS),
        st.tuples(st.just("move"), KEYS, ENDPOINTS, ENDPOINTS),
        st.tuples(st.just("release"), KEYS),
        st.tuples(st.just("load"), st.permutations(["a", "b", "c"])),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_any_order_of_calls_gives_the_counts_of_a_naive_model(steps):
    ledger, naive = Ledger(), NaiveLedger()
    versions = 0
    pool = snapshot("a", "b", "c", endpoints_version=0)
    for verb, *args in steps:
        match verb:
            case "reserve":
                key, endpoint, prefill, output, context = args
                ledger.reserve(key, endpoint, prefill_tokens=prefill, output_tokens=output, context_tokens=context)
                naive.reserve(key, endpoint, prefill, output, context, 0)
            case "first_token":
                ledger.first_token(*args)
                naive.first_token(*args)
            case "move":
                ledger.move(*args)
                naive.move(*args)
            case "release":
                assert ledger.release(*args) == naive.release(*args)
            case "load":
                versions += 1
                pool = snapshot(*args[0], endpoints_version=versions)
        requests, tokens, prefill, decode = naive.count()
        load = ledger.load(pool)
        for column, expected in zip(load, (requests, tokens, prefill, decode), strict=True):
            assert column.tolist() == [expected[e.id] for e in pool.endpoints]
        assert ledger.totals() == InFlight(requests.total(), tokens.total())
        assert ledger.open_streams() == len({key for key, _ in naive.held})
        assert (load.tokens >= 0).all()


@pytest.mark.parametrize("tokens", [-1, -1_000_000])
def test_negative_estimates_count_as_none(tokens):
    ledger = Ledger()
    ledger.reserve("s1", "ns/a", prefill_tokens=tokens, output_tokens=tokens)
    assert ledger.in_flight("ns/a") == InFlight(1, 0)
