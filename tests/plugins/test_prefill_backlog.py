"""Who waits on which server: whatever happens to requests in whatever order, counts are right and leave nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_fakes import cycle_with
from plugin_fakes import NOW_S, decide, endpoints, make

from epp.endings import EndCause
from epp.inference.request import Api, Usage
from epp.ledger import Ledger, Outcome
from epp.plugins._prefill_backlog import PrefillBacklog, attention_pairs
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.data import (
    DEFAULT_PROMPT,
    IN_FLIGHT_LOAD,
    UNCACHED_TOKENS,
    InFlightLoad,
    TokenizedPrompt,
    UncachedTokens,
)

SERVERS = endpoints(3)
IDS = tuple(server.id for server in SERVERS)
TARGETS = st.sampled_from([None, "1e-320", "0.001", "1", "200", "86400000", "0", "nan", "1e300", "soon"])


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 2), st.sampled_from([1, 300, 10**6]))))
def test_pairs_are_those_of_who_waits(happenings: list[tuple[int, int | None, int]]) -> None:
    """A request is sent to a server, again maybe, or its wait is over (`None`), also without it having been sent."""
    backlog, waiting = PrefillBacklog(), {}
    for request, server, tokens in happenings:
        if server is None:
            backlog.remove(str(request))
            waiting.pop(request, None)
        else:
            backlog.add(str(request), IDS[server], float(tokens), float(attention_pairs(np.float64(tokens), tokens)))
            waiting[request] = server, tokens
        there = [[tokens for at, tokens in waiting.values() if at == row] for row in range(3)]
        assert backlog.pairs_per_token(IDS).tolist() == [
            sum(n * n / 2 for n in at) / sum(at) if at else 0 for at in there
        ]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["sent", "first token", "gone"]), st.sampled_from([1, 300])))
)
def test_what_a_request_waited_for_is_what_was_computed_until_its_first_token(happenings) -> None:
    """At one server, in whatever order it computes them."""
    backlog, waiting, computed = PrefillBacklog(), {}, 0
    for request, what, tokens in happenings:
        if what == "sent":
            waiting.pop(request, None)
            waiting[request] = tokens, computed, sum(own for own, _, _ in waiting.values())
            backlog.add(str(request), IDS[0], tokens, tokens * 2)
        elif what == "gone":
            waiting.pop(request, None)
            backlog.remove(str(request))
        else:
            more = backlog.first_token(str(request))
            own, computed_before, was_waiting = waiting.pop(request, (0, computed, 0))
            expected = computed - computed_before - was_waiting
            assert more == (expected, expected * 2)
            computed += own


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["arrives", "arrives", "disaggregated", "first token", "ends", "cancelled", "pool"]),
        st.integers(0, 20),
        st.sampled_from([0, 1, 5_000, 10**6, 10**7]),
        st.tuples(TARGETS, TARGETS),
        st.sampled_from([1e-3, 50.0, 1e7]),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(HAPPENINGS, st.sampled_from([0, 3.3, 20]))
def test_scores_are_numbers_and_nothing_is_left_of_requests_however_they_come_and_go(happenings, exponent) -> None:
    """Servers leave and come back while requests wait on them; first tokens come twice, or never."""
    ledger = Ledger()
    scorer, version, open_requests = make("latency-cost-scorer", {"stakeExponent": exponent}, ledger=ledger), 1, {}
    pool = _pool(SERVERS, version)

    def end(cycle, decision, cause, took_ms) -> None:
        ledger.release(cycle.request.id)
        first_s, usage = NOW_S + took_ms / 1e3, Usage(1000, 100)
        served = decision.endpoints[0].id
        scorer.end(cycle, decision, Outcome(cause, 200, True, served, NOW_S, NOW_S, first_s, first_s + took_ms, usage))

    for number, (what, which, tokens, targets, took_ms) in enumerate(happenings):
        if what == "pool":
            version += 1
            pool = _pool([server for row, server in enumerate(SERVERS) if which >> row & 1] or SERVERS[:1], version)
        elif what in ("arrives", "disaggregated"):
            cycle = _arrival(str(number), tokens, targets, ledger, pool.snapshot, cached=which % 2 == 0)
            scores = scorer.score(cycle, pool)
            assert np.isfinite(scores).all()
            assert scores.min() >= 0
            assert scores.max() == 1
            row = which % len(pool)
            decision = decide(pool, row, prefill_row=row if what == "disaggregated" else None)
            ledger.reserve(str(number), decision.endpoints[0].id, prefill_tokens=tokens, context_tokens=tokens)
            scorer.pre_request(cycle, decision)
            open_requests[number] = cycle, decision
        elif open_requests:
            request = sorted(open_requests)[which % len(open_requests)]
            if what == "first token":
                ledger.first_token(str(request))
                scorer.first_token(*open_requests[request], NOW_S)
            else:
                cause = EndCause.NATURAL if what == "ends" else EndCause.CLIENT_GONE
                end(*open_requests.pop(request), cause, took_ms)
    for cycle, decision in open_requests.values():
        end(cycle, decision, EndCause.CLIENT_GONE, 1.0)
    assert not scorer._backlog._by_request
    assert not scorer._backlog._by_endpoint
    assert not scorer._progress.requests


def _pool(servers, version: int) -> Candidates:
    return Candidates.all_of(Snapshot.build(tuple(servers), {}, version=version, endpoints_version=version))


def _arrival(request_id, tokens, targets, ledger, snapshot, *, cached):
    names = ("x-slo-ttft-ms", "x-slo-tpot-ms")
    headers = {name: target for name, target in zip(names, targets, strict=True) if target is not None}
    cycle = cycle_with(None, api=Api.COMPLETIONS, streaming=True, headers=headers)
    cycle.request = cycle.request._replace(id=request_id)
    prompt = TokenizedPrompt((), b"")
    prompt.tokens = tokens  # ten million of them need no bytes here
    cycle.publish(DEFAULT_PROMPT, prompt)
    cycle.publish(IN_FLIGHT_LOAD.by(None), InFlightLoad(*ledger.load(snapshot)))
    uncached = [0.0 if cached and row == 0 else float(tokens) for row in range(len(snapshot))]
    cycle.publish(UNCACHED_TOKENS.by(None), UncachedTokens(np.array(uncached), 0.0))
    return cycle
