"""In flight is the ledger's word; what a request adds is its prompt less what the server has cached."""

import numpy as np
import pytest
from plugin_fakes import a_cycle, busy_ledger, make, pool
from pydantic import ValidationError

from epp.scheduling.data import IN_FLIGHT_LOAD, PREFIX_MATCH, TOKENIZED_PROMPT, UNCACHED_TOKENS, PrefixMatch


def produce(prompt=None, *, matched=None, parameters=None, ledger=None, size=2, **request):
    cycle = a_cycle(*([] if prompt is None else [prompt]), **request)
    candidates = pool(size=size)
    make("token-producer").produce(cycle, candidates)
    if matched is not None:
        cycle.publish(PREFIX_MATCH.by(None), PrefixMatch(np.array(matched, dtype=float), 200, 64))
    make("inflight-load-producer", parameters, ledger=ledger).produce(cycle, candidates)
    return cycle.get(IN_FLIGHT_LOAD.by(None)), cycle.get(UNCACHED_TOKENS.by(None))


def test_in_flight_is_what_the_ledger_holds():
    load, _ = produce(ledger=busy_ledger(2, 3, tokens_each=10))
    assert (load.requests.tolist(), load.tokens.tolist()) == ([2, 3], [20, 30])


def test_the_cached_prefix_is_not_work():
    _, uncached = produce(b"x" * 40_000, matched=[0, 148])
    assert uncached.prefill_tokens.tolist() == [10_000, 528]
    assert uncached.expected_output_tokens == 0


def test_without_a_match_the_whole_prompt_is_work_and_a_match_is_never_negative_work():
    assert produce(b"x" * 400)[1].prefill_tokens.tolist() == [100, 100]
    assert produce(b"x" * 400, matched=[2, 0])[1].prefill_tokens.tolist() == [0, 100]


def test_a_prompt_longer_than_what_is_matched_counts_whole():
    _, uncached = produce(b"x" * (4 * 64 * 300), matched=[200, 0])
    assert uncached.prefill_tokens.tolist() == [64 * 100, 64 * 300]


def test_nothing_is_said_of_a_prompt_that_cannot_be_read():
    load, uncached = produce()
    assert load is not None
    assert uncached is None


@pytest.mark.parametrize(
    ("parameters", "cap", "expected"),
    [
        ({}, 7, 0),
        ({"addEstimatedOutputTokens": True}, None, 150),
        ({"addEstimatedOutputTokens": True}, 7, 7),
        ({"addEstimatedOutputTokens": True, "maxEstimatedOutputTokens": 90}, None, 90),
        ({"addEstimatedOutputTokens": True, "maxEstimatedOutputTokens": 0}, 50, 0),
        ({"addEstimatedOutputTokens": True, "outputRatio": 0.25}, 9999, 25),
        ({"addEstimatedOutputTokens": True, "outputRatio": 0}, None, 0),
    ],
)
def test_expected_output(parameters, cap, expected):
    _, uncached = produce(b"x" * 400, parameters=parameters, max_output_tokens=cap)
    assert uncached.expected_output_tokens == expected


def test_what_it_reads_is_declared():
    plugin = make("inflight-load-producer", {"prefixMatchInfoProducerName": "cpu-prefix"}, name="mine")
    assert plugin.consumes == (TOKENIZED_PROMPT.by(None), PREFIX_MATCH.by("cpu-prefix"))
    assert plugin.produces == (IN_FLIGHT_LOAD.by("mine"), UNCACHED_TOKENS.by("mine"))


@pytest.mark.parametrize("bad", [{"outputRatio": -1}, {"maxEstimatedOutputTokens": -1}, {"outputTokens": True}])
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        make("inflight-load-producer", bad)
