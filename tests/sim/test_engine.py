"""The engine's invariants (numbered in epp/sim/engine.py), on random traffic, and its particular behaviours."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.sim.config import EngineConfig
from epp.sim.engine import Engine
from epp.sim.kvcache import KvCache
from epp.sim.timing import HARDWARE
from epp.sim.types import Admission, EngineMetrics, SimRequest, TokenEvent

SMALL = EngineConfig(max_sequences=3, max_batched_tokens=24, max_waiting=4, kv_blocks=8, block_tokens=4, max_adapters=1)
QUIET = EngineConfig(noise_sigma=0.0, overhead_ms=(0.0, 0.0))


def drain(engine: Engine) -> Iterator[TokenEvent]:
    while (next_s := engine.next_event_s()) is not None:
        yield from engine.advance(next_s)


def hashes(prefix: str, blocks: int) -> tuple[int, ...]:
    return tuple(hash((prefix, i)) for i in range(blocks))


submits = st.tuples(
    st.just("submit"),
    st.integers(1, 30),  # prompt tokens
    st.integers(1, 6),  # output tokens
    st.sampled_from("ab"),  # prompt prefix
    st.sampled_from([None, None, "lora-1", "lora-2"]),
)
aborts = st.tuples(st.just("abort"), st.integers(0, 30))
waits = st.tuples(st.just("wait"), st.floats(0, 0.05))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(submits, submits, aborts, waits), max_size=60), st.integers(0, 2**32))
def test_invariants_hold_on_any_sequence_of_submits_and_aborts(operations: list[tuple], seed: int) -> None:
    engine = Engine(SMALL, random.Random(seed))
    now_s, last_event_s = 0.0, 0.0
    wanted: dict[str, SimRequest] = {}
    submitted_s: dict[str, float] = {}
    produced: dict[str, int] = {}
    ended: set[str] = set()

    def observe(events: list[TokenEvent], until_s: float) -> None:
        nonlocal last_event_s
        for event in events:
            assert event.request_id not in ended  # 2: nothing after the end
            assert event.index == produced[event.request_id]  # 3
            produced[event.request_id] += 1
            request = wanted[event.request_id]
            assert event.last == (produced[event.request_id] == request.output_tokens)  # 3
            assert event.cached_tokens < request.prompt_tokens
            assert max(last_event_s, submitted_s[event.request_id]) <= event.time_s <= until_s  # 4
            last_event_s = event.time_s
            if event.last:
                ended.add(event.request_id)
        metrics = engine.metrics()
        live = wanted.keys() - ended
        assert metrics.running <= SMALL.max_sequences  # 5
        assert metrics.running + metrics.waiting <= len(live) <= SMALL.max_sequences + SMALL.max_waiting  # 2, 5
        assert len(metrics.running_adapters) <= SMALL.max_adapters
        kv = engine.scheduler.kv
        held = {block for sequence in engine.scheduler.running for block in sequence.blocks}
        assert len(held) == kv.used_blocks == kv.total_blocks - kv.free_blocks  # 1

    for number, operation in enumerate(operations):
        if operation[0] == "submit":
            _, prompt_tokens, output_tokens, prefix, adapter = operation
            blocks = hashes(prefix, prompt_tokens // SMALL.block_tokens)
            request = SimRequest(str(number), prompt_tokens, output_tokens, blocks, adapter)
            admission = engine.submit(request, now_s)
            room = len(wanted) - len(ended) < SMALL.max_sequences + SMALL.max_waiting
            fits = prompt_tokens + output_tokens <= SMALL.kv_blocks * SMALL.block_tokens
            assert (admission is Admission.ACCEPTED) == (room and fits)
            if admission is Admission.ACCEPTED:
                wanted[request.id], submitted_s[request.id], produced[request.id] = request, now_s, 0
        elif operation[0] == "abort":
            request_id = str(operation[1])
            assert engine.abort(request_id) == (request_id in wanted and request_id not in ended)
            ended.add(request_id)
            ended &= wanted.keys()
        else:
            now_s += operation[1]
            observe(engine.advance(now_s), now_s)

    for _ in range(10_000):  # bounded: an engine that never drains is a lost request
        next_s = engine.next_event_s()
        if next_s is None:
            break
        observe(engine.advance(next_s), next_s)
    assert ended == wanted.keys()  # 2
    metrics = engine.metrics()
    assert (metrics.running, metrics.waiting, metrics.kv_usage_ratio) == (0, 0, 0.0)  # 1
    assert metrics.finished_total + metrics.aborted_total == len(wanted)
    assert metrics.generation_tokens_total == sum(produced.values())


def test_same_seed_same_events() -> None:
    def run() -> list[TokenEvent]:
        engine = Engine(SMALL, random.Random(7))
        for i in range(7):
            engine.submit(SimRequest(str(i), 9, 3, hashes("a", 2)), i / 100)
        return list(drain(engine))

    assert run() == run()


@pytest.mark.parametrize("kv_blocks", [2000, 120], ids=["room enough", "preemptions"])
def test_an_engine_that_tells_less_does_the_same(kv_blocks: int) -> None:
    def run(every_token: bool) -> tuple[list[TokenEvent], EngineMetrics]:
        rng = random.Random(3)
        config = EngineConfig(kv_blocks=kv_blocks, max_batched_tokens=256, max_sequences=16)
        engine = Engine(config, random.Random(1), every_token=every_token)
        now_s, events = 0.0, []
        for i in range(120):
            now_s += rng.expovariate(40.0)
            events += engine.advance(now_s)
            prompt = rng.randint(1, 600)
            engine.submit(
                SimRequest(str(i), prompt, rng.randint(1, 90), hashes(rng.choice("abc"), prompt // 16)), now_s
            )
        return [e for e in events + engine.advance(3600.0) if e.last or e.index == 0], engine.metrics()

    (every, metrics), (less, less_metrics) = run(True), run(False)
    assert every == less
    assert metrics == less_metrics
    assert (metrics.preemptions_total > 0) == (kv_blocks == 120)


def test_attention_makes_long_contexts_slower() -> None:
    hardware = replace(HARDWARE["8b-h100"], attention_pair_ns=2.0, context_token_ns=40.0)
    engine = Engine(replace(QUIET, hardware=hardware, max_batched_tokens=4000, kv_blocks=1000), random.Random(0))
    engine.submit(SimRequest("r", 10_000, 2), 0.0)
    first, second = drain(engine)
    steps = 3 * 7.2 + 10_000 * 0.0185 + 3 * 0.034  # 4,000, 4,000 and 2,000 tokens
    assert first.time_s == pytest.approx((steps + 2e-6 * 10_000**2 / 2) / 1e3)
    assert second.time_s - first.time_s == pytest.approx((7.2 + 0.034 + 40e-6 * 10_000) / 1e3)


def test_time_to_first_token_is_the_step_law() -> None:
    engine = Engine(QUIET, random.Random(0))
    engine.submit(SimRequest("r", prompt_tokens=1000, output_tokens=2), now_s=5.0)
    first, second = drain(engine)
    assert first.time_s - 5.0 == pytest.approx((7.2 + 1000 * 0.0185 + 0.034) / 1000)
    assert second.time_s - first.time_s == pytest.approx((7.2 + 0.034) / 1000)


def test_api_overhead_comes_on_top_of_the_first_token() -> None:
    engine = Engine(replace(QUIET, overhead_ms=(16.0, 20.0)), random.Random(0))
    engine.submit(SimRequest("r", prompt_tokens=1, output_tokens=1), now_s=0.0)
    (event,) = drain(engine)
    assert 0.016 <= event.time_s - (7.2 + 0.0185 + 0.034) / 1000 <= 0.020


def test_slow_factor_stretches_steps() -> None:
    engine = Engine(QUIET, random.Random(0))
    engine.slow_factor = 3.0
    engine.submit(SimRequest("r", 1, 1), 0.0)
    (event,) = drain(engine)
    assert event.time_s == pytest.approx(3 * HARDWARE["8b-h100"].step_ms(1, 1) / 1000)


def test_a_long_prompt_is_computed_in_chunks_and_does_not_stop_decoding() -> None:
    engine = Engine(replace(QUIET, max_batched_tokens=2048), random.Random(0))
    engine.submit(SimRequest("short", 10, 50), 0.0)
    engine.submit(SimRequest("long", 10_000, 1), 0.001)
    events = list(drain(engine))
    long_s = next(e.time_s for e in events if e.request_id == "long")
    meanwhile = [e for e in events if e.request_id == "short" and e.time_s < long_s]
    assert len(meanwhile) == 5  # 10,000 tokens are five chunks of at most 2,047 beside one decode token


def test_a_shared_prefix_is_computed_once() -> None:
    engine = Engine(QUIET, random.Random(0))
    engine.submit(SimRequest("cold", 164, 1, hashes("shared", 10)), 0.0)
    assert [e.cached_tokens for e in drain(engine)] == [0]
    engine.submit(SimRequest("warm", 164, 1, hashes("shared", 10)), 1.0)
    (warm,) = drain(engine)
    assert warm.cached_tokens == 160
    assert warm.time_s - 1.0 == pytest.approx((7.2 + 4 * 0.0185 + 0.034) / 1000)
    metrics = engine.metrics()
    assert (metrics.prefix_queries_total, metrics.prefix_hits_total) == (328, 160)


def test_a_fully_cached_prompt_still_computes_its_last_block() -> None:
    engine = Engine(QUIET, random.Random(0))
    for i in range(2):
        engine.submit(SimRequest(str(i), 160, 1, hashes("shared", 10)), float(i))
        (event,) = drain(engine)
    assert event.cached_tokens == 144


def test_the_least_recently_used_prefix_is_evicted() -> None:
    engine = Engine(replace(QUIET, kv_blocks=25), random.Random(0))

    def cached(prefix: str, at_s: float) -> int:
        engine.submit(SimRequest(prefix, 161, 1, hashes(prefix, 10)), at_s)
        return next(drain(engine)).cached_tokens

    assert cached("a", 0.0) == cached("b", 1.0) == 0  # 22 of 25 blocks
    assert cached("a", 2.0) == 160  # a is now the fresher one
    assert cached("c", 3.0) == 0  # takes the blocks of b
    assert cached("a", 4.0) == 160


def test_the_tail_of_a_prefix_is_forgotten_before_its_head() -> None:
    kv = KvCache(4)
    blocks = kv.hold((), 4)
    kv.publish(blocks, hashes("a", 4))
    assert kv.match(hashes("a", 4)) == blocks
    kv.release(blocks)
    kv.release(kv.hold((), 2))
    assert kv.match(hashes("a", 4)) == blocks[:2]


def test_without_prefix_caching_nothing_is_shared() -> None:
    engine = Engine(replace(QUIET, prefix_caching=False), random.Random(0))
    for i in range(2):
        engine.submit(SimRequest(str(i), 160, 1, hashes("shared", 10)), float(i))
        (event,) = drain(engine)
        assert event.cached_tokens == 0


def test_preemption_recomputes_and_loses_nothing() -> None:
    engine = Engine(replace(QUIET, kv_blocks=10, prefix_caching=False), random.Random(0))
    for i in range(3):  # each grows to 6 blocks; 3 together do not fit
        engine.submit(SimRequest(str(i), 40, 56), 0.0)
    events = list(drain(engine))
    assert engine.metrics().preemptions_total > 0
    assert len(events) == 3 * 56
    assert [e.request_id for e in events if e.last] == ["0", "1", "2"]  # the youngest yields


def test_abort_frees_slot_and_blocks_at_once() -> None:
    engine = Engine(replace(QUIET, max_sequences=1), random.Random(0))
    engine.submit(SimRequest("long", 100, 100_000), 0.0)
    engine.submit(SimRequest("next", 100, 1), 0.0)
    engine.advance(1.0)
    assert (engine.metrics().running, engine.metrics().waiting) == (1, 1)
    assert engine.abort("long")
    assert (engine.metrics().running, engine.metrics().kv_usage_ratio) == (0, 0.0)
    assert [e.request_id for e in drain(engine)] == ["next"]
    assert not engine.abort("long")


def test_an_id_may_come_back_while_its_aborted_step_still_runs() -> None:
    engine = Engine(QUIET, random.Random(0))
    engine.submit(SimRequest("r", 5000, 5), 0.0)
    engine.advance(0.001)
    engine.abort("r")
    engine.submit(SimRequest("r", 10, 2), 0.002)
    assert [(e.index, e.last) for e in drain(engine)] == [(0, False), (1, True)]
    with pytest.raises(ValueError, match="already in the engine"):
        [engine.submit(SimRequest("r", 1, 1), 9.0) for _ in range(2)]


def test_a_full_queue_refuses() -> None:
    engine = Engine(replace(QUIET, max_sequences=2, max_waiting=3), random.Random(0))
    answers = [engine.submit(SimRequest(str(i), 10, 10), 0.0) for i in range(6)]
    assert answers == [Admission.ACCEPTED] * 5 + [Admission.QUEUE_FULL]
    assert engine.metrics().rejected_total == 1


def test_an_adapter_without_a_place_waits_and_others_pass_it() -> None:
    engine = Engine(replace(QUIET, max_adapters=1), random.Random(0))
    engine.submit(SimRequest("a", 10, 20, adapter="lora-a"), 0.0)
    engine.submit(SimRequest("b", 10, 1, adapter="lora-b"), 0.0)
    engine.submit(SimRequest("base", 10, 1), 0.0)
    engine.advance(0.03)
    metrics = engine.metrics()
    assert (metrics.running_adapters, metrics.waiting_adapters) == (("lora-a",), ("lora-b",))
    last = [e.request_id for e in drain(engine) if e.last]
    assert last == ["a", "b"]
    assert engine.metrics().finished_total == 3
