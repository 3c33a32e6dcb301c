"""Of an answer in one piece nobody sees the first token; what it keeps a server from doing still ends."""

import pytest
from latency_fakes import ToyPredictor
from plugin_fakes import NOW_S, a_cycle, decide, make, pool

from epp.inference.request import Api
from epp.ledger import Ledger
from epp.scheduling.data import TOKENIZED_PROMPT, TokenizedPrompt


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def plugin(ledger):
    return make("predicted-latency-producer", ledger=ledger, predictor=ToyPredictor(ttft=100.0))


def send(plugin, ledger, *, streaming):
    cycle, candidates = a_cycle(api=Api.CHAT, streaming=streaming), pool(size=2)
    cycle.publish(TOKENIZED_PROMPT.by(None), TokenizedPrompt((b"x" * 4000,), b""))
    plugin.produce(cycle, candidates)
    ledger.reserve(cycle.request.id, "ns/pod-0", prefill_tokens=1000, context_tokens=1000)
    plugin.pre_request(cycle, decide(candidates, 0))
    return cycle


def load_after(plugin, ledger, seconds):
    """Prefill and decode tokens that the next request finds there."""
    cycle, candidates = a_cycle(), pool(size=2)
    cycle.now_s = NOW_S + seconds
    plugin.process_request(cycle)
    load = ledger.load(candidates.snapshot)
    return load.prefill_tokens[0], load.decode_tokens[0]


def test_the_prompt_of_an_answer_in_one_piece_counts_as_prefilled_when_that_was_predicted(plugin, ledger):
    send(plugin, ledger, streaming=False)
    assert load_after(plugin, ledger, 0.09) == (1000, 0)
    assert load_after(plugin, ledger, 0.11) == (0, 1000)


def test_the_first_token_of_a_stream_is_waited_for(plugin, ledger):
    send(plugin, ledger, streaming=True)
    assert load_after(plugin, ledger, 60.0) == (1000, 0)


def test_a_prediction_for_a_request_that_has_ended_changes_nothing(plugin, ledger):
    cycle = send(plugin, ledger, streaming=False)
    ledger.release(cycle.request.id)
    assert load_after(plugin, ledger, 0.11) == (0, 0)
    assert ledger.open_streams() == 0
