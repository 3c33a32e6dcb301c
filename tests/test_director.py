"""One request through the director, on the real pipeline: what it becomes, where it goes, what its end leaves."""

import gc
import random
from collections.abc import Callable
from uuid import UUID

import orjson
import pytest
from envoy_messages import response_body, response_headers
from picker_in_memory import ADDRESSES, IDLE, THREE_ADDRESSES, World
from predicting_picker import predicting_world

from epp.config.builtins import BUILT_INS
from epp.director import Arrival, Assignment, DirectorOptions, Refusal
from epp.endings import EndCause
from epp.inference.request import Usage
from epp.pool.snapshot import EndpointSignals
from epp.scheduling.decision import Denial

JSON = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
PROMPT = "a story that is told again and again " * 100
OPAQUE_POST = {":method": "POST", ":path": "/v1/audio/transcriptions", "content-type": "multipart/form-data"}


def arrival(body: dict | bytes | None = None, headers: dict | None = None, **fields: object) -> Arrival:
    data = orjson.dumps(body) if isinstance(body, dict) else body
    defaults = {"body_complete": True, "has_body": data is not None, "subset": None, "received_s": 1000.0}
    return Arrival(headers={**JSON, **(headers or {})}, body=data, **{**defaults, **fields})


def completion(prompt: str = PROMPT, **fields: object) -> dict:
    return {"model": "m", "prompt": prompt, **fields}


def routed(world: World, given: Arrival) -> Assignment:
    answer = world.director.decide(given)
    assert isinstance(answer, Assignment)
    return answer


def refused(world: World, given: Arrival) -> Denial:
    answer = world.director.decide(given)
    assert isinstance(answer, Refusal)
    return answer.denial


def end(world: World, assignment: Assignment, cause: EndCause = EndCause.NATURAL) -> None:
    world.director.end(assignment, cause, Usage())


# --- what is refused, and how -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        (arrival(b"{not json"), 400, "rejected-bad-request"),
        (arrival(b""), 400, "rejected-bad-request"),
        (arrival(completion(), subset=()), 503, "rejected-no-endpoints"),
        (arrival(completion(), {"prefer": "if-available"}), 412, "rejected-not-cached"),
    ],
)
def test_a_refusal_says_why_and_reserves_nothing(given: Arrival, status: int, reason: str) -> None:
    world = World()
    denial = refused(world, given)
    assert (denial.status, denial.reason) == (status, reason)
    world.assert_nothing_is_left()
    assert world.ends() == {"rejected": 1}
    assert set(world.prefix_blocks().values()) <= {0}


def test_an_empty_pool_is_503_with_a_hint_to_come_back() -> None:
    world = World()
    world.store.replace(())
    denial = refused(world, arrival(completion()))
    assert (denial.status, denial.retry_after_s) == (503, 1)


def test_no_word_of_a_prompt_is_in_a_refusal_or_a_record() -> None:
    world = World()
    denial = refused(world, arrival(b'{"prompt": "xyzzy", '))
    end(world, routed(world, arrival(completion("xyzzy " * 500))))
    assert "xyzzy" not in denial.message + repr(world.ring.render(world.clock.now_s))


@pytest.mark.parametrize("headers", [{":path": "/unknown"}, OPAQUE_POST])
def test_what_no_parser_knows_is_routed_as_it_is(headers: dict) -> None:
    world = World()
    assignment = routed(world, arrival(b"\x00\xff", headers))
    assert assignment.body is None
    assert assignment.request.model is None
    end(world, assignment)
    world.assert_nothing_is_left()


# --- where it goes ------------------------------------------------------------------------------------------------


def test_the_shorter_queue_is_chosen() -> None:
    world = World()
    for waiting, address in enumerate(ADDRESSES):
        world.report(address, EndpointSignals(float(2 - waiting), 1.0, 0.1))
    assert routed(world, arrival(completion())).decision.destination == ADDRESSES[2]


def test_a_server_that_has_the_prefix_is_chosen_again() -> None:
    world = World()
    first = routed(world, arrival(completion())).decision.destination
    assert {routed(world, arrival(completion())).decision.destination for _ in range(10)} == {first}


def test_a_frozen_page_that_looked_idle_is_not_the_favourite() -> None:
    """Two servers report a queue; the third said it was idle, and then nothing for longer than is believed."""
    world = World()
    world.clock.advance(10)
    for address in ADDRESSES[1:]:
        world.report(address, EndpointSignals(1.0, 1.0, 0.1))
    choices = [routed(world, arrival(completion(f"{i}"))).decision.destination for i in range(60)]
    assert 5 <= choices.count(ADDRESSES[0]) <= 35


def test_a_pool_of_which_nothing_is_known_is_served() -> None:
    world = World()
    world.clock.advance(3600)
    chosen = {routed(world, arrival(completion(f"{i}"))).decision.destination for i in range(60)}
    assert chosen == set(ADDRESSES)


def test_priorities_come_from_objectives_by_name() -> None:
    world = World(director=DirectorOptions(objectives={"batch": -1}))

    def priority(headers: dict) -> int:
        return routed(world, arrival(completion(), headers)).request.priority

    assert priority({"x-llm-d-inference-objective": "batch"}) == -1
    assert priority({"x-gateway-inference-objective": "batch"}) == -1
    assert priority({"x-llm-d-inference-objective": "other", "x-gateway-inference-objective": "batch"}) == 0
    assert priority({}) == 0


def test_the_same_seed_and_the_same_events_give_the_same_decisions() -> None:
    """A decision can be replayed: it depends on the pool, on what went before, the clock and the seed alone."""

    def destinations(seed: int) -> list[tuple[str, dict]]:
        world, events, told = World(seed=seed), random.Random(3), []
        running: list[Assignment] = []
        for _ in range(60):
            match events.randrange(4):
                case 0:
                    address = events.choice(ADDRESSES)
                    world.report(address, EndpointSignals(float(events.randrange(4)), 1.0, events.random()))
                case 1 if running:
                    end(world, running.pop(events.randrange(len(running))))
                case _:
                    assignment = routed(world, arrival(completion(f"{events.randrange(5)} " * 300)))
                    told.append((assignment.decision.destination, dict(assignment.cycle.set_headers)))
                    running.append(assignment)
            world.clock.advance(0.1)
        return told

    assert destinations(5) == destinations(5)
    assert destinations(5) != destinations(6)


def test_a_decision_can_be_read_afterwards() -> None:
    world = World()
    assignment = routed(world, arrival(completion()))
    (record,) = world.ring.render(world.clock.now_s)
    assert record["endpoints"][0]["address"] == assignment.decision.destination
    best = record["profiles"]["default"]["best"]
    assert {entry["endpoint"] for entry in best} == {world.id_of(address) for address in ADDRESSES}
    assert set(best[0]["scores"]) == {"queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer"}


def test_why_a_server_costs_least_can_be_read_afterwards_and_is_not_kept_with_the_request() -> None:
    world = World(BUILT_INS["headroom"].text)
    assignment = routed(world, arrival(completion(), {"x-slo-ttft-ms": "200"}))
    assert assignment.cycle.explanations is None
    told = world.ring.render(world.clock.now_s)[0]["profiles"]["default"]
    assert told["explained"]["latency-cost-scorer"]["ttft_target_ms"] == 200
    for server in told["best"]:
        explained = server["explained"]["latency-cost-scorer"]
        assert explained["tpot_ms"] > 0
        assert explained["uncached_tokens"] == pytest.approx(len(PROMPT) / 4, rel=0.05)


# --- what it becomes ----------------------------------------------------------------------------------------------


def test_a_request_id_is_given_to_those_who_have_none() -> None:
    world = World()
    assert routed(world, arrival(completion())).cycle.set_headers["x-request-id"]
    with_one = routed(world, arrival(completion(), {"x-request-id": "theirs"}))
    assert "x-request-id" not in with_one.cycle.set_headers


def test_a_model_is_rewritten_only_where_all_of_the_body_is_there() -> None:
    world = World()
    rewrite = {"x-llm-d-model-name-rewrite": "m2"}
    whole = routed(world, arrival(b'{"model": "m", "prompt": "x"}', rewrite))
    assert b"".join(whole.body or ()) == b'{"model": "m2", "prompt": "x"}'
    cut = routed(world, arrival(b'{"model": "m", "prom', rewrite, body_complete=False))
    assert cut.body is None
    assert cut.cycle.notes["model-rewrite"]
    assert routed(world, arrival(completion(), {"x-llm-d-model-name-rewrite": "m"})).body is None


# --- what its end leaves ------------------------------------------------------------------------------------------


def test_prefill_tokens_are_held_until_the_first_token_and_the_request_until_its_end() -> None:
    world = World()
    talk = world.post(completion(stream=True))
    assert world.ledger.totals().requests == 1
    held_tokens = world.ledger.totals().tokens
    assert held_tokens > 0
    talk.send(response_headers(200, {"content-type": "text/event-stream"}), response_body(b""))
    assert world.ledger.totals().tokens == held_tokens
    talk.send(response_body(b'data: {"choices":[{"index":0,"text":"Once"}]}\n\n'))
    assert tuple(world.ledger.totals())[:2] == (1, 0)
    talk.close()
    world.assert_nothing_is_left()


@pytest.mark.parametrize("status", [400, 503])
def test_an_error_has_no_first_token(status: int) -> None:
    """Its prompt was not computed, so nothing may be learned from when its body came."""
    world = World()
    talk = world.post(completion())
    held_tokens = world.ledger.totals().tokens
    talk.send(response_headers(status, {"content-type": "application/json"}), response_body(b'{"error": {}}'))
    assert world.ledger.totals().tokens == held_tokens
    talk.close()
    world.assert_nothing_is_left()


def test_only_the_first_end_counts() -> None:
    world = World()
    assignment = routed(world, arrival(completion()))
    for cause in (EndCause.CLIENT_GONE, EndCause.NATURAL, EndCause.LOST):
        end(world, assignment, cause)
    world.assert_nothing_is_left()
    assert world.ends() == {"client_gone": 1}


def test_a_fallback_that_answers_takes_over_what_was_reserved() -> None:
    world = World(THREE_ADDRESSES)
    assignment = routed(world, arrival(completion()))
    before = world.ledger.totals()
    first, second, third = (endpoint.address for endpoint in assignment.decision.endpoints)
    for served in (second, third, third, "10.9.9.9:1"):
        world.director.response_started(assignment, 200, {}, served)
    assert world.held()[ADDRESSES.index(third)] == 1
    assert world.ledger.totals() == before
    assert assignment.served_endpoint_id == world.id_of(third)
    end(world, assignment)
    world.assert_nothing_is_left()
    assert first != third


def test_an_endpoint_that_leaves_and_comes_back_keeps_its_count() -> None:
    world = World()
    assignment = routed(world, arrival(completion()))
    held = world.held()
    world.store.replace(())
    world.reset_pool()
    assert world.held() == held
    world.store.replace(())
    end(world, assignment)
    world.reset_pool()
    world.assert_nothing_is_left()


def test_a_request_that_does_no_inference_leaves_no_trace() -> None:
    world = World(THREE_ADDRESSES)
    chat = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    for given in (
        arrival(None, {":method": "GET", ":path": "/v1/models"}),
        arrival(chat, {":path": "/v1/messages/count_tokens"}),
    ):
        assignment = routed(world, given)
        assert world.ledger.open_streams() == 0
        world.director.response_started(assignment, 200, {}, ADDRESSES[2])
        end(world, assignment)
        assert set(world.prefix_blocks().values()) <= {0}
    world.assert_nothing_is_left()


def test_a_server_that_is_idle_again_is_used_again() -> None:
    world = World()
    world.report(ADDRESSES[0], EndpointSignals(50.0, 50.0, 0.99))
    busy = [routed(world, arrival(completion(f"{i}"))).decision.destination for i in range(20)]
    assert ADDRESSES[0] not in busy
    world.report(ADDRESSES[0], IDLE)
    assert ADDRESSES[0] in [routed(world, arrival(completion(f"{i}"))).decision.destination for i in range(40)]


# --- what it costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [World, predicting_world])
def test_a_request_leaves_nothing_for_the_garbage_collector(world: Callable[[], World]) -> None:
    """Reference cycles would be found by collections, which stop everything for as long as they look."""
    picker = world()
    gc.collect()
    gc.disable()
    try:
        for i in range(50):
            end(picker, routed(picker, arrival(completion(f"{PROMPT}{i}", stream=True))))
            refused(picker, arrival(b"{not json"))
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_request_without_an_id_gets_a_uuid() -> None:
    world = World()
    ids = {routed(world, arrival(completion())).cycle.set_headers["x-request-id"] for _ in range(100)}
    assert len(ids) == 100
    assert all(str(UUID(text)) == text and UUID(text).version == 4 for text in ids)
