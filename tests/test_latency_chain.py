"""The predicted-latency chain as it is configured for llm-d, on the real pipeline and the real predictor."""

from collections import Counter

import pytest
from envoy_messages import DESTINATION, DROPPED_REASON, request_body, request_headers, response_body, response_headers
from envoy_messages import set_headers as headers_set_by
from picker_in_memory import ADDRESSES, Talk, World

from epp.director import DirectorOptions
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.types import Sample, Target
from epp.observe.records import Selection
from epp.pool.snapshot import EndpointSignals
from epp.pool.static import parse_endpoints
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG as CHAIN

SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
BUSY = EndpointSignals(waiting_requests=3.0, running_requests=8.0, kv_cache_usage_ratio=0.6)
PLUGIN = "predicted-latency-producer"


class Watched(Predictor):
    """The predictor, remembering what it was taught."""

    def __init__(self, ready_samples: int = 5) -> None:
        super().__init__(PredictorOptions(ready_samples=ready_samples))
        self.taught: list[Sample] = []

    def observe(self, sample: Sample) -> None:
        self.taught.append(sample)
        super().observe(sample)


class Chain(World):
    def __init__(self, **kwargs) -> None:
        self.predictor = Watched()
        super().__init__(CHAIN, predictor=self.predictor, **kwargs)
        self._sent = 0

    def ask(self, *, headers=None, stream=True) -> Talk:
        """A chat whose prompt has no part in common with any other's."""
        self._sent += 1
        body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": f"{self._sent} " * 300}]}
        return self.post(body, path="/v1/chat/completions", headers=headers)

    def answer(self, talk: Talk, *, ttft_s=0.2, tokens=11, step_s=0.02, status=200) -> None:
        talk.send(response_headers(status, SSE, served=destination(talk)))
        self.clock.advance(ttft_s)
        talk.send(response_body(ROLE + TEXT))
        self.clock.advance(step_s * (tokens - 1))
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":300,"completion_tokens":%d}}\n\n' % tokens
        talk.send(response_body(TEXT + usage + b"data: [DONE]\n\n", end=True))

    def warm(self, requests=60, **answer) -> "Chain":
        for _ in range(requests):
            self.answer(self.ask(), **answer)
        return self

    def note(self) -> str:
        return self.ring.render(self.clock.now_s, Selection(most=1))[0]["notes"].get(PLUGIN, "")


def destination(talk: Talk) -> str:
    (first,) = [h[DESTINATION] for r in talk.replies if DESTINATION in (h := headers_set_by(r))]
    return first


def refused(talk: Talk) -> tuple[int, str, str] | None:
    last = talk.replies[-1]
    if last.WhichOneof("response") != "immediate_response":
        return None
    headers = headers_set_by(last)
    return last.immediate_response.status.code, headers[DROPPED_REASON], headers["retry-after"]


def test_until_it_has_learned_the_heuristic_decides_and_then_predictions_do() -> None:
    chain = Chain()
    chain.ask()
    assert chain.note() == "no prediction: not ready"
    chain.warm(10)
    chain.ask()
    assert "version 0" in chain.note()
    assert chain.note().startswith("ttft ")


def test_a_role_and_a_keep_alive_are_not_learned_as_the_first_token() -> None:
    chain = Chain()
    talk = chain.ask().send(response_headers(200, SSE))
    for delay_s, chunk in ((0.005, ROLE), (0.005, b": ping\n\n"), (0.39, TEXT)):
        chain.clock.advance(delay_s)
        talk.send(response_body(chunk))
    talk.send(response_body(b"data: [DONE]\n\n", end=True))
    (sample,) = chain.predictor.taught
    assert sample.actual_ms == {Target.TTFT: pytest.approx(400)}
    assert chain.count("llm_d_epp_request_ttft_seconds_sum") == pytest.approx(0.4)


def test_a_stream_that_says_nothing_has_no_first_token() -> None:
    chain = Chain()
    talk = chain.ask().send(response_headers(200, SSE))
    chain.clock.advance(0.1)
    talk.send(response_body(ROLE), response_body(b"data: [DONE]\n\n", end=True))
    assert chain.predictor.taught == []
    assert chain.count("llm_d_epp_request_ttft_seconds_count") == 0
    chain.assert_nothing_is_left()


@pytest.mark.parametrize("headers", [JSON, SSE | {"content-encoding": "gzip"}])
def test_of_an_answer_that_cannot_be_read_as_events_the_first_byte_counts(headers) -> None:
    chain = Chain()
    talk = chain.ask().send(response_headers(200, headers))
    chain.clock.advance(0.3)
    talk.send(response_body(ROLE))
    chain.clock.advance(0.3)
    talk.send(response_body(b"", end=True))
    assert chain.count("llm_d_epp_request_ttft_seconds_sum") == pytest.approx(0.3)


def test_tokens_are_counted_without_the_servers_word() -> None:
    chain = Chain()
    talk = chain.ask().send(response_headers(200, SSE))
    chain.clock.advance(0.1)
    talk.send(response_body(ROLE + TEXT))
    for _ in range(10):
        chain.clock.advance(0.02)
        talk.send(response_body(TEXT))
    talk.send(response_body(b"data: [DONE]\n\n", end=True))
    assert chain.predictor.taught[0].actual_ms[Target.TPOT] == pytest.approx(20)


def test_the_time_of_an_upload_is_the_clients_but_not_the_servers() -> None:
    chain = Chain().warm()
    head = {":method": "POST", ":path": "/v1/chat/completions", "x-slo-ttft-ms": "900"}
    talk = chain.open().send(request_headers(head))
    chain.clock.advance(1.0)
    talk.send(request_body(b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'))
    chain.answer(talk, ttft_s=0.2)
    assert chain.predictor.taught[-1].actual_ms[Target.TTFT] == pytest.approx(200)
    assert chain.count("llm_d_epp_request_ttft_seconds_sum") == pytest.approx(60 * 0.2 + 1.2)


def test_a_client_that_leaves_teaches_nothing() -> None:
    chain = Chain()
    talk = chain.ask().send(response_headers(200, SSE), response_body(TEXT))
    talk.close(cancelled=True)
    assert chain.predictor.taught == []
    chain.assert_nothing_is_left()


def test_a_server_that_answers_500_at_once_does_not_attract_traffic() -> None:
    chain = Chain().warm(30)
    broken, sent = ADDRESSES[1], Counter()
    for _ in range(150):
        talk = chain.ask()
        sent[destination(talk)] += 1
        if destination(talk) == broken:
            chain.answer(talk, ttft_s=0.001, tokens=1, status=500)
        else:
            chain.answer(talk)
        chain.clock.advance(0.01)
    assert sent[broken] < 0.1 * 150
    assert all(sent[address] > 0.3 * 150 for address in ADDRESSES if address != broken)


def test_a_sheddable_request_that_nobody_can_serve_in_time_is_429() -> None:
    chain = Chain(director=DirectorOptions(objectives={"batch": -1})).warm(ttft_s=0.5)
    running = [chain.ask() for _ in range(12)]
    for address in ADDRESSES:
        chain.report(address, BUSY)
    batch = {"x-llm-d-inference-objective": "batch"}
    assert refused(chain.ask(headers=batch | {"x-slo-ttft-ms": "1"})) == (429, "rejected-saturated", "1")
    assert refused(chain.ask(headers=batch | {"x-slo-ttft-ms": "60000"})) is None
    assert refused(chain.ask(headers=batch)) is None
    assert refused(chain.ask(headers={"x-slo-ttft-ms": "1"})) is None
    assert refused(chain.ask(headers=batch | {"x-slo-ttft-ms": "1", "x-prediction-based-scheduling": "false"})) is None
    for talk in running:
        talk.close(cancelled=True)


def test_who_opts_out_is_served_by_the_heuristic() -> None:
    chain = Chain().warm(10)
    talk = chain.ask(headers={"x-prediction-based-scheduling": "false"})
    assert destination(talk) in ADDRESSES
    assert chain.note() == "no prediction: opted out"


def test_targets_do_not_reach_the_model_server() -> None:
    talk = Chain().ask(headers={"x-slo-ttft-ms": "100", "x-llm-d-slo-tpot-ms": "9"})
    removed = {name for r in talk.replies for name in r.request_headers.response.header_mutation.remove_headers}
    assert {"x-slo-ttft-ms", "x-llm-d-slo-tpot-ms"} <= removed


def test_the_slower_server_gets_less() -> None:
    chain, sent = Chain(), Counter()
    for _ in range(200):
        talk = chain.ask()
        sent[destination(talk)] += 1
        chain.answer(talk, ttft_s=0.9 if destination(talk) == ADDRESSES[2] else 0.3)
    assert sent[ADDRESSES[2]] < 0.6 * min(sent[ADDRESSES[0]], sent[ADDRESSES[1]])


def test_answers_that_do_not_stream_are_ranked_by_their_end() -> None:
    chain, sent = Chain(), Counter()
    for i in range(200):
        talk = chain.ask(stream=False, headers={"x-slo-ttft-ms": "5000"})
        if i >= 100:
            sent[destination(talk)] += 1
        talk.send(response_headers(200, JSON, served=destination(talk)))
        chain.clock.advance(3.0 if destination(talk) == ADDRESSES[0] else 1.0)
        talk.send(response_body(b'{"usage":{"prompt_tokens":300,"completion_tokens":50}}', end=True))
    assert {target for sample in chain.predictor.taught for target in sample.actual_ms} == {Target.E2E}
    assert sent[ADDRESSES[0]] < 0.6 * min(sent[ADDRESSES[1]], sent[ADDRESSES[2]])
    assert chain.note().startswith("ttft ")


def test_a_server_that_joins_gets_its_share_after_a_slow_start() -> None:
    chain = Chain().warm(60)
    joined = "10.0.0.4:8000"
    chain.store.replace(parse_endpoints(",".join((*ADDRESSES, joined))))
    sent: list[str] = []
    for _ in range(500):
        talk = chain.ask()
        sent.append(destination(talk))
        chain.answer(talk)
    assert 1 <= sent[:100].count(joined) <= 12
    assert 0.12 < sent[-200:].count(joined) / 200 < 0.4
