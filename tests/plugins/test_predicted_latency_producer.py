"""One question per request, one answer learned: from what it was decided on, and only if it ended well."""

import json
from dataclasses import replace

import numpy as np
import pytest
from latency_fakes import NONE, ToyPredictor
from plugin_fakes import NOW_S, a_cycle, decide, endpoints, make, pool, signals
from pydantic import ValidationError

from epp.endings import EndCause
from epp.inference.request import Api, Usage
from epp.latency.types import Target
from epp.ledger import Ledger, Outcome
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.data import (
    IN_FLIGHT_LOAD,
    LATENCY_PREDICTION,
    PREFIX_MATCH,
    SLOW_START,
    TOKENIZED_PROMPT,
    PrefixMatch,
    TokenizedPrompt,
)

TPOT_SLO = "x-slo-tpot-ms"
TTFT_SLO = "x-slo-ttft-ms"
SERVER_ERROR = {"status": 500}


class World:
    """One producer, its predictor and a pool."""

    def __init__(self, parameters=None, *, size=2, timer=None, predictor=..., labels=(), **predictions):
        self.ledger = Ledger()
        self.predictor = ToyPredictor(**predictions) if predictor is ... else predictor
        self.plugin = make(
            "predicted-latency-producer", parameters, ledger=self.ledger, predictor=self.predictor, timer=timer
        )
        self.pool = pool(size=size, labels=labels)

    def produce(self, headers=None, *, candidates=None, received_s=None, tokens=1000, matched=None, **request):
        request = {"api": Api.CHAT, "streaming": True} | request
        cycle = a_cycle(headers=headers, **request)
        cycle.received_s = received_s
        if tokens is not None:
            cycle.publish(TOKENIZED_PROMPT.by(None), TokenizedPrompt((b"x" * 4 * tokens,), b""))
        if matched is not None:
            cycle.publish(PREFIX_MATCH.by(None), PrefixMatch(np.array(matched, dtype=float), 15, 64))
        self.plugin.produce(cycle, candidates or self.pool)
        return cycle

    def judged(self, headers=None, **kwargs):
        return self.produce(headers, **kwargs).get(LATENCY_PREDICTION.by(None))

    def send(self, headers=None, *, row=0, **kwargs):
        """A request up to its dispatch."""
        cycle = self.produce(headers, **kwargs)
        self.decision = decide(kwargs.get("candidates") or self.pool, row)
        self.plugin.pre_request(cycle, self.decision)
        return cycle

    def begin(self, cycle, *, status=200, served=None):
        """Its answer, up to the first token; `served`: the address that Envoy names."""
        self.plugin.response_headers(cycle, self.decision, status, {}, served)
        self.plugin.first_token(cycle, self.decision, NOW_S + 0.2)
        return cycle

    def end(self, cycle, *, decision=None, served=0, ttft_s=0.2, duration_s=1.2, usage=11, **outcome):
        """Its end. By default a stream of 11 tokens, the first after 200 ms, the others in a second: 100 ms each."""
        fields = {"cause": EndCause.NATURAL, "status": 200, "streamed": True, "received_s": NOW_S - 1} | outcome
        self.plugin.end(
            cycle,
            decision or self.decision,
            Outcome(
                served_endpoint_id=f"ns/pod-{served}",
                dispatched_s=NOW_S,
                first_token_s=None if ttft_s is None else NOW_S + ttft_s,
                ended_s=NOW_S + duration_s,
                usage=Usage(100, usage, None),
                **fields,
            ),
        )
        return cycle


def seen(cycle, family):
    return [(o.value, dict(o.labels)) for o in cycle.observations if o.family == family]


def reasons(cycle, family):
    return [labels["reason"] for _, labels in seen(cycle, family)]


# --- what is asked --------------------------------------------------------------------------------------------------


def test_one_call_for_all_candidates_with_what_is_known_of_each():
    world = World(size=3)
    world.pool = pool(
        signals(waiting_requests=2.0, running_requests=3.0, kv_cache_usage_ratio=0.5),
        signals(waiting_requests=9.0, scraped_at_s=NOW_S - 60),
        signals(),
    )
    world.ledger.reserve("a", "ns/pod-1", prefill_tokens=70)
    world.ledger.reserve("b", "ns/pod-2", prefill_tokens=50, output_tokens=7, context_tokens=90)
    world.ledger.first_token("b")
    world.produce(matched=[10, 0, 0], max_output_tokens=64)
    (situation,) = world.predictor.situations
    assert list(situation.endpoint_ids) == ["ns/pod-0", "ns/pod-1", "ns/pod-2"]
    assert (situation.prompt_tokens, situation.max_output_tokens) == (1000, 64)
    assert situation.uncached_tokens.tolist() == [360, 1000, 1000]
    np.testing.assert_array_equal(situation.waiting_requests, [2, NONE, NONE])
    np.testing.assert_array_equal(situation.running_requests, [3, NONE, NONE])
    np.testing.assert_array_equal(situation.kv_cache_usage_ratio, [0.5, NONE, NONE])
    assert situation.in_flight_requests.tolist() == [0, 1, 1]
    assert situation.prefill_tokens_in_flight.tolist() == [0, 70, 0]
    assert situation.decode_tokens_in_flight.tolist() == [0, 0, 90]


def test_more_than_a_hundred_candidates_are_predicted():
    judged = World(size=300, ttft=[float(i + 1) for i in range(300)]).judged()
    assert judged.ttft_ms.tolist() == [i + 1 for i in range(300)]


def test_what_is_published_is_in_the_order_of_the_snapshot():
    world = World(size=4, ttft=[1.0, 2.0, 3.0, 4.0])
    judged = world.judged(candidates=Candidates(world.pool.snapshot, np.array([1, 3])))
    np.testing.assert_array_equal(judged.ttft_ms, [NONE, 2, NONE, 4])
    assert judged.known.tolist() == judged.ok.tolist() == [False, True, False, True]


def test_an_opaque_request_has_no_length_and_is_predicted_all_the_same():
    world = World()
    assert world.judged(tokens=None, api=Api.OPAQUE) is not None
    assert np.isnan(world.predictor.situations[0].prompt_tokens)
    assert np.isnan(world.predictor.situations[0].uncached_tokens).all()
    assert np.isnan(world.predictor.situations[0].max_output_tokens)


def test_a_request_that_does_no_inference_asks_nothing():
    world = World()
    assert world.produce(generates=False, tokens=None).data == {}
    assert world.predictor.situations == []


def test_a_held_request_with_an_older_snapshot_is_read_in_its_own_order():
    world = World(size=3, ttft=[10.0, 20.0, 30.0])
    world.produce()
    older = endpoints(3)[::-1]
    judged = world.judged(candidates=Candidates.all_of(Snapshot.build(older, endpoints_version=0)))
    assert judged.ttft_ms.tolist() == [30, 20, 10]
    assert world.predictor.forgotten == []


# --- targets --------------------------------------------------------------------------------------------------------


def test_headroom_is_target_less_prediction():
    judged = World(ttft=[400.0, 600.0], tpot=[60.0, 40.0]).judged({TTFT_SLO: "500", TPOT_SLO: "50"})
    assert judged.ttft_headroom_ms.tolist() == [100, -100]
    assert judged.tpot_headroom_ms.tolist() == [-10, 10]
    assert judged.ok.tolist() == [False, False]
    assert judged.ttft_constrained
    assert judged.tpot_constrained


def test_a_missing_target_is_no_constraint():
    judged = World(ttft=[400.0, 600.0], tpot=[60.0, 40.0]).judged({TTFT_SLO: "500"})
    assert judged.ok.tolist() == [True, False]
    assert np.isnan(judged.tpot_headroom_ms).all()
    assert not judged.tpot_constrained
    free = World().judged()
    assert free.ok.all()
    assert not free.constrained


def test_a_target_that_is_just_reached_is_missed():
    assert not World(ttft=500.0).judged({TTFT_SLO: "500"}).ok.any()


def test_time_spent_here_is_part_of_the_ttft_target():
    """300 ms in a queue leave 200 of 500; what is learned later counts from dispatch all the same."""
    judged = World(ttft=250.0).judged({TTFT_SLO: "500"}, received_s=NOW_S - 0.3)
    assert judged.ttft_headroom_ms.tolist() == pytest.approx([-50, -50])
    assert judged.ttft_ms.tolist() == [250, 250]


def test_nonsense_in_headers_is_no_target_and_counted():
    cycle = World().produce({TTFT_SLO: "NaN", TPOT_SLO: "200ms"})
    assert not cycle.get(LATENCY_PREDICTION.by(None)).constrained
    assert [labels["header"] for _, labels in seen(cycle, "slo_header_invalid")] == [TTFT_SLO, TPOT_SLO]


def test_the_strictest_neighbour_tightens_the_tpot_target():
    world = World(tpot=35.0)
    world.send({TPOT_SLO: "30"}, row=1)
    world.send({TPOT_SLO: "90"}, row=1)
    world.send({}, row=1)
    judged = world.judged({TPOT_SLO: "50"})
    assert judged.tpot_headroom_ms.tolist() == [15, -5]
    assert world.judged({TPOT_SLO: "20"}).tpot_headroom_ms.tolist() == [-15, -15]


def test_the_buffer_factor_multiplies_tpot_targets_only():
    world = World({"sloBufferFactor": 0.5}, ttft=400.0, tpot=20.0)
    world.send({TPOT_SLO: "30"}, row=1)
    judged = world.judged({TTFT_SLO: "500", TPOT_SLO: "50"})
    assert judged.ttft_headroom_ms.tolist() == [100, 100]
    assert judged.tpot_headroom_ms.tolist() == [5, -5]


@pytest.mark.parametrize("cause", list(EndCause))
def test_a_neighbour_counts_until_it_ends_however_it_ends(cause):
    world = World(tpot=35.0)
    cycle = world.send({TPOT_SLO: "30"}, row=1)
    world.end(cycle, cause=cause)
    world.end(cycle, cause=cause)
    assert world.judged({TPOT_SLO: "50"}).tpot_headroom_ms.tolist() == [15, 15]
    assert world.plugin.dump_state()["lowest_tpot_target_ms"] == {}


def test_a_server_that_only_prefills_has_no_tpot():
    labels = [{"role": "prefill"}, {"role": "decode"}]
    world = World({"endpointRoleLabel": "role"}, labels=labels, tpot=[NONE, 60.0])
    judged = world.judged({TPOT_SLO: "50"})
    assert judged.known.tolist() == [True, True]
    assert judged.ok.tolist() == [True, False]
    assert world.predictor.situations[0].is_prefill.tolist() == [True, False]


def test_the_bound_is_compared_when_asked_for():
    world = World({"quantile": 0.9}, ttft=400.0)
    world.predictor.bound_factor = 1.5
    assert world.judged({TTFT_SLO: "500"}).ttft_headroom_ms.tolist() == [-100, -100]
    assert world.predictor.quantiles == [0.9]


def test_one_row_without_a_prediction_spoils_no_other():
    judged = World(ttft=[NONE, 100.0]).judged({TTFT_SLO: "500"})
    assert judged.known.tolist() == judged.ok.tolist() == [False, True]


def test_a_row_without_the_prediction_of_a_target_is_not_known():
    judged = World(tpot=[NONE, 10.0]).judged({TPOT_SLO: "50"})
    assert judged.known.tolist() == judged.ok.tolist() == [False, True]


# --- answers that do not stream -------------------------------------------------------------------------------------


def test_of_an_answer_that_does_not_stream_the_end_is_the_first_that_is_seen():
    judged = World(ttft=100.0, e2e=[900.0, 2000.0]).judged({TTFT_SLO: "1000", TPOT_SLO: "1"}, streaming=False)
    assert judged.ttft_ms.tolist() == [900, 2000]
    assert judged.ok.tolist() == [True, False]
    assert np.isnan(judged.tpot_ms).all()


@pytest.mark.parametrize("world", [{"e2e": [900.0, NONE]}, {"ready": {Target.TTFT, Target.TPOT}}])
def test_without_a_prediction_of_every_end_the_first_token_stands_for_all(world):
    assert World(ttft=100.0, **world).judged(streaming=False).ttft_ms.tolist() == [100, 100]


def test_streaming_mode_takes_every_answer_for_a_stream():
    judged = World({"streamingMode": True}, ttft=100.0).judged({TPOT_SLO: "50"}, streaming=False)
    assert judged.ttft_ms.tolist() == [100, 100]
    assert judged.tpot_constrained


def test_a_target_that_cannot_be_predicted_yet_is_no_constraint():
    judged = World(ready={Target.TTFT}, tpot=99.0).judged({TPOT_SLO: "50"})
    assert judged.ok.all()
    assert np.isnan(judged.tpot_ms).all()


# --- like llm-d -----------------------------------------------------------------------------------------------------


def test_like_llm_d_a_missing_target_is_one_of_nothing():
    judged = World({"compatibility": "llm-d", "streamingMode": True}, ttft=400.0, tpot=20.0).judged({TTFT_SLO: "500"})
    assert judged.ttft_headroom_ms.tolist() == [100, 100]
    assert judged.tpot_headroom_ms.tolist() == [-20, -20]
    assert not judged.ok.any()


def test_like_llm_d_a_neighbour_without_a_target_hides_the_others():
    world = World({"compatibility": "llm-d", "streamingMode": True}, tpot=35.0)
    world.send({TPOT_SLO: "30"}, row=1)
    assert world.judged({TPOT_SLO: "50"}).tpot_headroom_ms.tolist() == [15, -5]
    world.send({}, row=1)
    assert world.judged({TPOT_SLO: "50"}).tpot_headroom_ms.tolist() == [15, 15]


# --- doing without --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "request_", "reason"),
    [
        ({"predictor": None}, {}, "no_predictor"),
        ({"ready": {Target.TPOT}}, {}, "not_ready"),
        ({"parameters": {"predictInProduce": False}}, {}, "switched_off"),
        ({}, {"headers": {"x-prediction-based-scheduling": "false"}}, "opted_out"),
        ({"parameters": {"defaultOptIn": False}}, {}, "opted_out"),
        ({}, {"api": Api.EMBEDDINGS}, "not_generating"),
        ({"ttft": NONE}, {}, "nothing_known"),
    ],
)
def test_without_a_prediction_the_reason_is_noted_and_counted(world, request_, reason):
    cycle = World(**world).produce(**request_)
    assert cycle.get(LATENCY_PREDICTION.by(None)) is None
    assert cycle.notes == {"predicted-latency-producer": f"no prediction: {reason.replace('_', ' ')}"}
    assert reasons(cycle, "prediction_fallback") == [reason]


def test_opting_in_beats_the_default():
    world = World({"defaultOptIn": False})
    assert world.judged({"x-prediction-based-scheduling": "true"}) is not None


def test_a_predictor_that_fails_costs_the_prediction_and_nothing_else():
    world = World()
    world.predictor.error = ValueError("of the predictor")
    cycle = a_cycle(api=Api.CHAT)
    with pytest.raises(ValueError, match="of the predictor"):
        world.plugin.produce(cycle, world.pool)
    assert reasons(cycle, "prediction_fallback") == ["failed"]
    world.plugin.pre_request(cycle, decide(world.pool, 0))
    world.end(cycle, decision=decide(world.pool, 0))
    assert world.predictor.samples == []
    assert reasons(cycle, "prediction_samples_dropped") == ["no_features"]


def test_a_request_that_opts_out_is_learned_from():
    world = World()
    world.end(world.send({"x-prediction-based-scheduling": "false"}))
    assert len(world.predictor.samples) == 1


def test_what_is_learned_before_it_is_ready_makes_it_ready():
    world = World(ready=frozenset())
    world.end(world.send())
    assert len(world.predictor.samples) == 1


def test_after_a_slow_prediction_some_requests_go_without():
    took_s = [0.02, 0.02, 0.02, 0.001, 0.001]
    clock = iter(t for i, took in enumerate(took_s) for t in (i, i + took))
    world = World({"budgetMs": 10}, timer=lambda: next(clock))
    without = ["over_budget" in reasons(world.produce(), "prediction_fallback") for _ in range(3 + 7 + 2)]
    assert without == [False, True, False, True, True, False, True, True, True, True, False, False]


def test_a_request_that_goes_without_for_want_of_time_is_learned_from():
    clock = iter([0.0, 1.0])
    world = World({"budgetMs": 10}, timer=lambda: next(clock))
    world.produce()
    cycle = world.end(world.send(row=1), served=1)
    (sample,) = world.predictor.samples
    assert (sample.endpoint_id, sample.promise.targets) == ("ns/pod-1", {})
    assert sample.promise.features.tolist() == [1, 0]
    assert sample.actual_ms == {Target.TTFT: pytest.approx(200), Target.TPOT: pytest.approx(100)}
    assert seen(cycle, "prediction_samples_dropped") == seen(cycle, "request_served_ttft_seconds") == []


def test_what_a_prediction_takes_is_counted():
    clock = iter([1.0, 1.25])
    cycle = World(timer=lambda: next(clock)).produce()
    assert seen(cycle, "request_ttft_prediction_duration_seconds") == [(0.25, {})]
    assert seen(cycle, "request_tpot_prediction_duration_seconds") == [(0.25, {})]


# --- what is learned ------------------------------------------------------------------------------------------------


def test_a_stream_teaches_ttft_from_dispatch_and_tpot_by_token():
    world = World()
    world.end(world.send())
    (sample,) = world.predictor.samples
    assert sample.endpoint_id == "ns/pod-0"
    assert sample.actual_ms == {Target.TTFT: pytest.approx(200), Target.TPOT: pytest.approx(100)}
    assert sample.at_s == NOW_S + 1.2


def test_the_features_of_the_decision_are_those_of_the_sample():
    """What is in flight changes between decision and end; the sample does not."""
    world = World()
    world.ledger.reserve("before", "ns/pod-1", prefill_tokens=40)
    cycle = world.send(row=1)
    world.ledger.reserve("after", "ns/pod-1", prefill_tokens=5000)
    world.end(cycle, served=1)
    assert world.predictor.samples[0].promise.features.tolist() == [1, 40]


def test_a_request_served_by_a_fallback_teaches_of_the_server_that_served_it():
    world = World(ttft=[100.0, 300.0])
    cycle = world.produce()
    decision = replace(decide(world.pool, 0), endpoints=world.pool.snapshot.endpoints[:2])
    world.plugin.pre_request(cycle, decision)
    world.end(cycle, decision=decision, served=1)
    (sample,) = world.predictor.samples
    assert sample.endpoint_id == "ns/pod-1"
    assert sample.promise.features[0] == 1
    assert seen(cycle, "request_predicted_ttft_seconds") == [(pytest.approx(0.3), {})]


@pytest.mark.parametrize("served", [1, 99])
def test_a_server_that_was_not_chosen_teaches_nothing(served):
    world = World()
    cycle = world.end(world.send(row=0), served=served)
    assert reasons(cycle, "prediction_samples_dropped") == ["served_elsewhere"]
    assert world.predictor.samples == []


def test_what_is_kept_of_a_request_does_not_grow_with_the_pool():
    cycle = World(size=300).send()
    (kept,) = cycle.state.values()
    assert kept.prediction is None
    assert list(kept.promises) == [0]


def test_an_answer_that_does_not_stream_teaches_its_end_and_no_ttft():
    world = World()
    for asked_to_stream in (True, False):
        world.end(world.send(streaming=asked_to_stream), streamed=False, ttft_s=1.1)
    assert [s.actual_ms for s in world.predictor.samples] == [{Target.E2E: pytest.approx(1200)}] * 2


def test_of_a_mix_of_streams_and_others_ttft_stays_ttft():
    world = World()
    for i in range(20):
        world.end(world.send(streaming=i % 2 == 0), streamed=i % 2 == 0, duration_s=2.0, ttft_s=0.05)
    learned = [s.actual_ms[Target.TTFT] for s in world.predictor.samples if Target.TTFT in s.actual_ms]
    assert learned == pytest.approx([50] * 10)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ({"status": 500, "duration_s": 0.002, "ttft_s": 0.001}, "status"),
        ({"status": 429}, "status"),
        ({"status": 302}, "status"),
        ({"status": None}, "status"),
        ({"cause": EndCause.CLIENT_GONE}, "client_gone"),
        ({"cause": EndCause.UPSTREAM_ERROR}, "upstream_error"),
        ({"cause": EndCause.EVICTED}, "evicted"),
        ({"cause": EndCause.LOST}, "lost"),
        ({"ttft_s": None, "usage": 0}, "no_token"),
        ({"duration_s": 0.0, "streamed": False}, "no_time"),
        ({"duration_s": 1.0, "ttft_s": 0.0}, "no_time"),
    ],
)
def test_what_teaches_nothing(outcome, reason):
    world = World()
    cycle = world.end(world.send({TTFT_SLO: "1"}), **outcome)
    assert world.predictor.samples == []
    assert reasons(cycle, "prediction_samples_dropped") == [reason]
    assert seen(cycle, "request_slo_violation") == []


def test_what_is_not_generated_teaches_nothing():
    world = World()
    cycle = world.end(world.send(api=Api.EMBEDDINGS), streamed=False)
    assert reasons(cycle, "prediction_samples_dropped") == ["api"]


@pytest.mark.parametrize("tokens", [0, 1])
def test_an_answer_of_one_token_or_none_has_no_tpot(tokens):
    world = World()
    world.end(world.send(), usage=tokens)
    assert list(world.predictor.samples[0].actual_ms) == [Target.TTFT]


def test_two_tokens_have_one_step():
    world = World()
    world.end(world.send(), usage=2)
    assert world.predictor.samples[0].actual_ms[Target.TPOT] == pytest.approx(1000)


@pytest.mark.parametrize(("events", "tpot_ms"), [(11, 100), (7, None), (0, None)])
def test_without_a_count_events_are_counted_if_there_are_enough(events, tpot_ms):
    world = World()
    world.end(world.send(), usage=None, token_events=events)
    assert world.predictor.samples[0].actual_ms.get(Target.TPOT) == (None if tpot_ms is None else pytest.approx(100))


def test_coalesced_events_do_not_hide_tokens():
    world = World()
    world.end(world.send(), usage=101, token_events=11)
    assert world.predictor.samples[0].actual_ms[Target.TPOT] == pytest.approx(10)


def test_several_answers_at_once_have_no_tpot():
    world = World()
    cycle = a_cycle(b"one", b"two", api=Api.COMPLETIONS, streaming=True)
    decision = decide(world.pool, 0)
    world.plugin.produce(cycle, world.pool)
    world.plugin.pre_request(cycle, decision)
    world.end(cycle, decision=decision)
    assert list(world.predictor.samples[0].actual_ms) == [Target.TTFT]


def test_when_one_server_prefills_and_another_decodes_each_learns_its_own():
    world = World()
    cycle = world.produce()
    decision = decide(world.pool, 0, prefill_row=1)
    world.plugin.pre_request(cycle, decision)
    world.end(cycle, decision=decision)
    assert {s.endpoint_id: list(s.actual_ms) for s in world.predictor.samples} == {
        "ns/pod-1": [Target.TTFT],
        "ns/pod-0": [Target.TPOT],
    }


# --- what is told ---------------------------------------------------------------------------------------------------


def test_prediction_and_truth_are_told_as_a_pair_once():
    world = World(ttft=150.0, tpot=90.0)
    cycle = world.end(world.send())
    world.end(cycle)
    for target, said, came in (("ttft", 0.15, 0.2), ("tpot", 0.09, 0.1)):
        assert seen(cycle, f"request_predicted_{target}_seconds") == [(pytest.approx(said), {})]
        assert seen(cycle, f"request_served_{target}_seconds") == [(pytest.approx(came), {})]


def test_without_a_prediction_there_is_no_pair():
    cycle = World(ready=frozenset()).produce()
    world = World(ready=frozenset())
    cycle = world.end(world.send())
    assert not [o for o in cycle.observations if o.family.startswith(("request_predicted", "request_served"))]


@pytest.mark.parametrize(
    ("headers", "violated"),
    [
        ({}, []),
        ({TTFT_SLO: "1201", TPOT_SLO: "101"}, []),
        ({TTFT_SLO: "1199", TPOT_SLO: "101"}, ["ttft"]),
        ({TTFT_SLO: "1199", TPOT_SLO: "99"}, ["ttft", "tpot"]),
    ],
)
def test_missed_targets_are_counted_as_the_client_sees_them(headers, violated):
    """Received a second before dispatch: a first token 200 ms after it took 1,200 ms."""
    world = World()
    cycle = world.end(world.send(headers))
    assert [labels["type"] for _, labels in seen(cycle, "request_slo_violation")] == violated
    assert len(seen(cycle, "request_slo_checked")) == len(headers)


def test_of_an_answer_that_does_not_stream_the_end_is_held_against_the_target():
    world = World()
    cycle = world.end(world.send({TTFT_SLO: "2000"}, streaming=False), streamed=False)
    assert seen(cycle, "request_slo_violation") == [(1, {"type": "e2e"})]


def test_the_decision_record_says_what_was_promised():
    cycle = World(ttft=[100.0, 123.4]).send(row=1)
    assert str(cycle.notes["predicted-latency-producer"]) == "ttft 123.4 ms, tpot 10.0 ms by model, version 3"


def test_the_state_is_plain():
    world = World()
    world.send({TPOT_SLO: "30"})
    state = json.loads(json.dumps(world.plugin.dump_state(), allow_nan=False))
    assert state["lowest_tpot_target_ms"] == {"ns/pod-0": 30.0}
    assert state["predictor"] == {"at_s": NOW_S}


# --- new and failing servers ----------------------------------------------------------------------------------------


def grown(world, size, version=2):
    world.pool = Candidates.all_of(Snapshot.build(endpoints(size), endpoints_version=version))


def turns_of(world, row, count=1000):
    rng = None
    turns = 0
    for _ in range(count):
        cycle = a_cycle(api=Api.CHAT, streaming=True)
        cycle.rng = rng = rng or cycle.rng
        world.plugin.produce(cycle, world.pool)
        slow_start = cycle.get(SLOW_START.by(None))
        turns += slow_start is not None and slow_start.turn == row
    return turns / count


def test_servers_that_are_there_from_the_start_are_not_new():
    assert World().produce().get(SLOW_START.by(None)) is None


def test_a_server_that_joins_is_tried_and_after_good_answers_is_one_of_them():
    world = World({"slowStartSamples": 4}, size=3)
    world.produce()
    grown(world, 4)
    assert world.produce().get(SLOW_START.by(None)).held_back.tolist() == [False] * 3 + [True]
    assert 0.01 < turns_of(world, 3) < 0.06
    for _ in range(4):
        world.end(world.begin(world.send(row=3)), served=3)
    assert world.produce().get(SLOW_START.by(None)) is None


def failed_once(**kwargs):
    world = World({"failureThreshold": 1, "slowStartSamples": 1}, **kwargs)
    world.end(world.send(), duration_s=0.0, **SERVER_ERROR)
    assert world.produce().get(SLOW_START.by(None)).held_back.tolist() == [True, False]
    return world


def test_the_first_token_shows_that_a_failing_server_lives():
    world = failed_once()
    world.begin(world.send())
    assert world.produce().get(SLOW_START.by(None)) is None


def test_the_first_token_of_an_error_or_of_another_server_shows_nothing():
    world = failed_once()
    world.begin(world.send(), status=500)
    world.begin(world.send(), served=world.pool.snapshot.endpoints[1].address)
    assert world.produce().get(SLOW_START.by(None)).held_back.tolist() == [True, False]


def test_a_good_answer_of_which_no_token_was_seen_shows_it_too():
    world = failed_once()
    world.end(world.send(), ttft_s=None, streamed=False)
    assert world.produce().get(SLOW_START.by(None)) is None


def test_a_server_that_answers_errors_at_once_attracts_nothing():
    world = World({"failureThreshold": 3}, size=3)
    for _ in range(3):
        world.end(world.send(row=1), served=1, duration_s=0.002, ttft_s=0.001, **SERVER_ERROR)
    assert world.produce().get(SLOW_START.by(None)).held_back.tolist() == [False, True, False]
    assert turns_of(world, 1) == 0
    assert world.predictor.samples == []


def held_back(world):
    slow_start = world.produce().get(SLOW_START.by(None))
    return [] if slow_start is None else slow_start.held_back.nonzero()[0].tolist()


@pytest.mark.parametrize("status", [200, 404])
def test_who_refuses_connections_is_failing_though_the_proxy_has_others_answer(status):
    """A proxy tries again elsewhere, so clients see nothing of it, and the one that was chosen is idle."""
    world = World({"failureThreshold": 2}, size=3)
    other = world.pool.snapshot.endpoints[2].address
    for _ in range(2):
        assert held_back(world) == []
        cycle = world.begin(world.send(row=1), status=status, served=other)
        world.end(cycle, served=2, status=status)
    assert held_back(world) == [1]


def test_of_a_long_answer_that_is_known_at_its_first_token():
    world = World({"failureThreshold": 1}, size=3)
    world.begin(world.send(row=1), served=world.pool.snapshot.endpoints[2].address)
    assert held_back(world) == [1]


def test_of_several_fallbacks_those_before_the_one_that_answers_have_failed():
    world = World({"failureThreshold": 1}, size=4)
    cycle = world.send()
    servers = world.pool.snapshot.endpoints
    world.decision = replace(decide(world.pool, 3), endpoints=(servers[3], servers[1], servers[2]))
    world.end(world.begin(cycle, served=world.pool.snapshot.endpoints[1].address), served=1)
    assert held_back(world) == [3]


def test_a_server_that_answers_nothing_that_can_be_read_is_failing():
    world, nothing = World({"failureThreshold": 2}, size=3), {"ttft_s": None, "usage": None, "seen_bytes": 5000}
    for _ in range(2):
        world.end(world.send(row=1, max_output_tokens=20), served=1, **nothing)
    assert held_back(world) == [1]


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        ({"max_output_tokens": 0}, {"usage": 0, "seen_bytes": 100}),
        ({}, {"usage": 1, "seen_bytes": 100}),  # an end of the text, at once
        ({}, {"usage": None, "seen_bytes": 0}),  # the body passes by elsewhere
        ({}, {"usage": None, "seen_bytes": 100, "streamed": False}),
        ({}, {"usage": None, "seen_bytes": 100, "cause": EndCause.CLIENT_GONE}),
    ],
)
def test_an_answer_without_a_token_need_not_be_a_failure(asked, outcome):
    world = World({"failureThreshold": 1}, size=3)
    world.end(world.send(row=1, **asked), served=1, ttft_s=None, **outcome)
    assert held_back(world) == []


@pytest.mark.parametrize("outcome", [{"cause": EndCause.CLIENT_GONE}, {"status": 400}, {"status": 429}])
def test_what_the_client_did_is_not_the_servers_fault(outcome):
    world = World({"failureThreshold": 1})
    world.end(world.send(), **outcome)
    assert world.produce().get(SLOW_START.by(None)) is None


def test_new_and_failing_servers_are_held_back_without_predictions_too():
    world = World({"failureThreshold": 1}, predictor=None)
    world.end(world.send(), **SERVER_ERROR)
    assert world.produce().get(SLOW_START.by(None)).held_back.tolist() == [True, False]


def test_a_turn_that_was_taken_is_counted():
    world = World({"failureThreshold": 1})
    world.end(world.send(), duration_s=0.0, **SERVER_ERROR)
    later = a_cycle(api=Api.CHAT, now_s=NOW_S + 5)
    world.plugin.produce(later, world.pool)
    world.plugin.pre_request(later, decide(world.pool, 0))
    assert seen(later, "slow_start_requests") == [(1, {})]


def test_who_left_is_forgotten():
    world = World(size=3)
    world.produce()
    grown(world, 2)
    world.produce()
    assert world.predictor.forgotten == ["ns/pod-2"]


def test_an_endpoint_of_which_samples_were_kept_is_less_new():
    world = World({"slowStartSamples": 4}, size=3)
    world.predictor.learned = {"ns/pod-3": 9}
    world.produce()
    grown(world, 4)
    assert world.produce().get(SLOW_START.by(None)) is None


# --- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", ["5m", "1h30m", 300_000_000_000])
def test_the_ttl_is_accepted_in_both_spellings(ttl):
    make("predicted-latency-producer", {"contextTTL": ttl})


@pytest.mark.parametrize(
    "bad",
    [
        {"contextTTL": "soon"},
        {"sloBufferFactor": 0},
        {"sloBufferFactor": -1},
        {"quantile": 1},
        {"quantile": 0},
        {"budgetMs": 0},
        {"slowStartSamples": -1},
        {"streamingMode": "yes"},
    ],
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        make("predicted-latency-producer", bad)


def test_what_it_reads_and_makes_is_declared():
    named = {"prefixMatchInfoProducerName": "p", "inFlightLoadProducerName": "l"}
    plugin = make("predicted-latency-producer", named, name="mine")
    assert plugin.consumes == (TOKENIZED_PROMPT.by(None), PREFIX_MATCH.by("p"), IN_FLIGHT_LOAD.by("l"))
    assert plugin.produces == (LATENCY_PREDICTION.by("mine"), SLOW_START.by("mine"))
