"""Wait times company times pace, in milliseconds; targets count as far as they are at stake; speeds are learned."""

import numpy as np
import pytest
from latency_fakes import cycle_with
from plugin_fakes import NOW_S, decide, endpoints, make, pool, signals

from epp.endings import EndCause
from epp.inference.request import Api, Usage
from epp.ledger import Ledger, Outcome
from epp.scheduling.candidates import Candidates
from epp.scheduling.data import (
    DEFAULT_PROMPT,
    IN_FLIGHT_LOAD,
    UNCACHED_TOKENS,
    InFlightLoad,
    TokenizedPrompt,
    UncachedTokens,
)

TARGETS = {"x-slo-ttft-ms": "200", "x-slo-tpot-ms": "25"}


def a_request(*, tokens=1000, uncached=None, requests=(0, 0), prefill=(0, 0), decode=(0, 0), **kwargs):
    """A request of `tokens`, and two servers with this in flight."""
    cycle = cycle_with(None, api=Api.COMPLETIONS, streaming=True, **kwargs)
    cycle.publish(DEFAULT_PROMPT, TokenizedPrompt((b"x" * 4 * tokens,), b""))
    columns = [np.array(column, dtype=float) for column in (requests, prefill, prefill, decode)]
    cycle.publish(IN_FLIGHT_LOAD.by(None), InFlightLoad(*columns))
    here = np.full(len(requests), float(tokens)) if uncached is None else np.array(uncached, dtype=float)
    cycle.publish(UNCACHED_TOKENS.by(None), UncachedTokens(here, 0.0))
    return cycle


def later(cycle, seconds=60.0):
    """The same request when what was sent at once before is no longer what a server is busy with."""
    cycle.now_s += seconds
    return cycle


def held(cycle, milliseconds):
    """The same request, which came so long before its decision."""
    cycle.received_s = cycle.now_s - milliseconds / 1e3
    return cycle


def scored(cycle, scorer=None, candidates=None):
    return (scorer or make("latency-cost-scorer")).score(cycle, candidates or pool(size=2)).tolist()


def answered(scorer, cycle, decision, first_s, tpot_ms, *, status=200, served=None):
    """It ends with its hundredth token."""
    ended_s = first_s + 99 * tpot_ms / 1e3
    served = served or decision.endpoints[0].id
    sent_s, usage = cycle.now_s, Usage(1000, 100)
    scorer.end(
        cycle, decision, Outcome(EndCause.NATURAL, status, True, served, sent_s, sent_s, first_s, ended_s, usage)
    )


def serve(scorer, row, *, ttft_ms, tpot_ms, status=200, served=None, **request):
    """One request through the scorer, sent to `row` and answered."""
    candidates, cycle = pool(size=2), a_request(**request)
    scorer.score(cycle, candidates)
    decision = decide(candidates, row)
    scorer.pre_request(cycle, decision)
    first_s = NOW_S + ttft_ms / 1e3
    scorer.first_token(cycle, decision, first_s)
    answered(scorer, cycle, decision, first_s, tpot_ms, status=status, served=served)


# --- the price ------------------------------------------------------------------------------------------------------


def test_equal_servers_score_the_same():
    assert scored(a_request(requests=(3, 3), prefill=(500, 500))) == [1, 1]


@pytest.mark.parametrize(
    "worse", [{"requests": (5, 9)}, {"prefill": (0, 4000)}, {"uncached": (100, 1000)}, {"decode": (0, 200_000)}]
)
def test_company_a_queue_a_cold_cache_and_slow_steps_cost(worse):
    best, other = scored(a_request(**worse))
    assert best == 1 > other


def test_a_cached_prefix_is_worth_a_wait_but_not_any():
    warm_and_busy = {"tokens": 8000, "uncached": (200, 8000), "requests": (4, 2)}
    assert scored(a_request(**warm_and_busy, prefill=(500, 0)))[0] == 1
    assert scored(a_request(**warm_and_busy, prefill=(20_000, 0)))[1] == 1


def test_one_long_prompt_is_a_longer_queue_than_many_short_ones():
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    for row, lengths in ((0, [60_000]), (1, [3_000] * 20)):
        for number, tokens in enumerate(lengths):
            cycle = a_request(tokens=tokens)
            cycle.request = cycle.request._replace(id=f"{row}-{number}")
            scorer.score(cycle, candidates)
            scorer.pre_request(cycle, decide(candidates, row))
    score = scored(a_request(requests=(1, 1), prefill=(60_000, 60_000)), scorer)
    assert score[1] == 1 > 2 * score[0]


def test_idle_servers_that_differ_by_chance_share_the_requests():
    """Of three alike one was measured a hair slower; it is as good as they while all are idle."""
    scorer = make("latency-cost-scorer")
    for _ in range(60):
        serve(scorer, 0, ttft_ms=46.5, tpot_ms=8)
        serve(scorer, 1, ttft_ms=47.0, tpot_ms=8.05)
    for headers in ({}, TARGETS):
        assert scored(later(a_request(headers=headers)), scorer) == [1, 1]
        assert scored(later(a_request(headers=headers, requests=(1, 0))), scorer)[0] < 1
        warm = scored(later(a_request(headers=headers, uncached=(100, 1000))), scorer)
        assert warm[0] == 1 > warm[1], "a cached prefix is no chance"


def test_others_who_send_there_count_when_they_are_many():
    busy = pool(signals(waiting_requests=40, running_requests=60), signals(waiting_requests=0, running_requests=1))
    assert scored(a_request(), candidates=busy)[0] < 0.1
    stale = pool(signals(waiting_requests=0, running_requests=6), signals(waiting_requests=0, running_requests=1))
    assert scored(a_request(), candidates=stale) == [1, 1]


def test_a_request_of_which_nothing_is_known_is_scored_by_load():
    cycle = cycle_with(None)
    cycle.publish(IN_FLIGHT_LOAD.by(None), InFlightLoad(*np.array([[2.0, 1], [0, 0], [0, 0], [0, 0]])))
    assert scored(cycle)[1] == 1
    assert scored(cycle_with(None)) == [1, 1]


def test_new_and_failing_servers_wait_for_their_turn():
    assert scored(a_request(requests=(9, 0), held_back=[False, True])) == [1, 0]
    assert scored(a_request(requests=(0, 9), held_back=[False, True], turn=1)) == [0, 1]


def explained(cycle, **kwargs):
    """What the scorer laid down, and its scores."""
    scores = scored(cycle, **kwargs)
    return cycle.explanations["", "latency-cost-scorer"], np.array(scores)


def test_the_factors_of_the_cost_are_told():
    (rows, told), scores = explained(a_request(requests=(5, 9), uncached=(100, 1000), prefill=(0, 4000)))
    assert rows.tolist() == [0, 1]
    assert told["cost"] == pytest.approx(told["wait_ms"] * (told["requests"] + 1) * told["tpot_ms"])
    assert scores == pytest.approx(told["cost"].min() / told["cost"])
    assert told["requests"].tolist() == [5, 9]
    assert told["uncached_tokens"].tolist() == [100, 1000]
    assert (told["prefill_ms"] < told["wait_ms"]).all()
    assert "at_stake" not in told


def test_the_targets_at_stake_are_told_by_whose_they_are():
    (_, told), scores = explained(a_request(requests=(20, 2), prefill=(0, 9000), headers=TARGETS))
    parts = [told[f"at_stake_{whose}"] for whose in ("own", "others", "followers", "meanwhile")]
    slack = told["at_stake_own_slack"] + told["at_stake_others_slack"]
    assert told["at_stake"] == pytest.approx(sum(parts) + slack, abs=1e-8)
    assert scores == pytest.approx(told["cost"].min() / told["cost"])
    assert told["queue_ms"][0] < 200 - told["prefill_ms"][0]
    assert told["queue_ms"][1] > 150
    assert told["at_stake_own"][1] > told["at_stake_own"][0]
    assert told["hopeful_requests"] == pytest.approx([20, 2], rel=0.05)
    assert (told["ttft_target_ms"], told["tpot_target_ms"]) == (200, 25)
    assert 0 < told["overload_ratio"] <= 1


def test_nothing_is_told_of_servers_that_are_held_back():
    (rows, told), _ = explained(a_request(requests=(9, 0), held_back=[False, True]))
    assert rows.tolist() == [0]
    assert told["requests"].tolist() == [9]


# --- targets --------------------------------------------------------------------------------------------------------


def test_what_is_lost_anyway_joins_those_who_are_late_already():
    """At the first server it would slow down those who still keep their target; at the second all are late."""
    load = {"tokens": 40_000, "requests": (110, 90), "prefill": (20_000, 60_000), "decode": (100_000, 400_000)}
    assert scored(a_request(**load))[0] == 1
    assert scored(a_request(**load, headers=TARGETS))[1] == 1


def test_those_who_are_lost_already_are_not_held_up():
    """Both servers have as many requests and as long a queue; at the second ten of ours wait, late since they came."""
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    load = {"tokens": 30_000, "requests": (12, 12), "prefill": (60_000, 60_000)}
    targets = {"x-slo-ttft-ms": "500"}
    for number in range(10):
        cycle = a_request(tokens=6_000, prefill=(60_000, 60_000), headers=targets)
        cycle.request = cycle.request._replace(id=f"waiting-{number}")
        scorer.score(cycle, candidates)
        scorer.pre_request(cycle, decide(candidates, 1))
    assert scored(a_request(**load), scorer)[0] == 1
    all_hopeful, all_lost = scored(a_request(**load, headers=targets), scorer)
    assert all_lost == 1 > 5 * all_hopeful


@pytest.mark.parametrize(("held_ms", "ttft_ms"), [(0, 900), (150, 100)])
def test_those_whose_first_token_came_too_late_are_not_held_up(held_ms, ttft_ms):
    """Alike at the decision; of those at the first server the first token came in time, of the others after it, by
    itself or as they had been held before they were sent."""
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    for row, waited_ms, took_ms in ((0, 0, 100), (1, held_ms, ttft_ms)):
        for number in range(10):
            cycle = held(a_request(headers=TARGETS), waited_ms)
            cycle.request = cycle.request._replace(id=f"{row}-{number}")
            scorer.score(cycle, candidates)
            scorer.pre_request(cycle, decide(candidates, row))
            scorer.first_token(cycle, decide(candidates, row), NOW_S + took_ms / 1e3)
    load = {"requests": (10, 10), "decode": (20_000, 20_000), "prefill": (20_000, 20_000)}  # at overload
    assert scored(a_request(**load), scorer) == [1, 1]
    in_time, late = scored(a_request(**load, headers=TARGETS), scorer)
    assert late == 1 > 5 * in_time


def test_who_was_held_goes_where_the_first_token_still_is_in_time():
    """The first server has few requests and the longer queue."""
    targets = {"x-slo-ttft-ms": "1000", "x-slo-tpot-ms": "40"}
    load = {"requests": (20, 60), "prefill": (8_000, 0), "headers": targets}
    (_, at_once), (few, many) = explained(a_request(**load))
    assert few == 1 > 2 * many
    (_, told), (few, many) = explained(held(a_request(**load), 700))
    assert many == 1 > 2 * few
    assert told["queue_ms"] == pytest.approx(at_once["queue_ms"] + 700)


def test_a_short_answer_slows_nobody_past_a_target():
    """As the client says how long it may be."""
    load = {"tokens": 10, "requests": (110, 110), "decode": (110_000, 110_000), "headers": {"x-slo-tpot-ms": "25"}}
    (_, any_length), _ = explained(a_request(**load))
    (_, short), _ = explained(a_request(**load, max_output_tokens=5))
    assert (short["at_stake_others"] < 0.2 * any_length["at_stake_others"]).all()
    (_, long), _ = explained(a_request(**load, max_output_tokens=100_000))  # it need not be as long as it may
    assert long["at_stake_others"] == pytest.approx(any_length["at_stake_others"])


@pytest.mark.parametrize("others_decode", [0, 500_000])
def test_of_two_servers_that_are_too_slow_the_slower_is_as_good(others_decode):
    """A pool of thirty, fast or, at overload, too slow: a TPOT counts as its target at most."""
    load = dict.fromkeys(("requests", "prefill"), (0,) * 30)
    load["decode"] = (2_000_000, 4_000_000, *[others_decode] * 28)
    free = scored(a_request(**load), candidates=pool(size=30))
    assert free[0] > 1.8 * free[1]
    slow, slower, *_ = scored(a_request(**load, headers={"x-slo-tpot-ms": "25"}), candidates=pool(size=30))
    assert slow == pytest.approx(slower, rel=0.01)


def test_targets_are_read_once_at_the_decision():
    scorer, candidates, cycle = make("latency-cost-scorer"), pool(size=2), a_request(headers=TARGETS)
    scorer.score(cycle, candidates)
    decision = decide(candidates, 0)
    scorer.pre_request(cycle, decision)
    cycle.request = cycle.request._replace(headers={})
    scorer.first_token(cycle, decision, NOW_S + 0.9)
    assert scorer._progress.in_flight(candidates.rows, True, NOW_S + 1).hope.tolist() == [0]


def test_who_can_be_saved_elsewhere_does_not_join_those_who_are_late():
    """A burst: one server is late already, the other has many requests and is not. Few tokens can still be in time."""
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    target = {"x-slo-ttft-ms": "3000"}
    for number in range(30):
        cycle = later(a_request(tokens=6_000, headers=target), number / 2)
        cycle.request = cycle.request._replace(id=f"waiting-{number}")
        scorer.score(cycle, candidates)
        scorer.pre_request(cycle, decide(candidates, 1))
    burst = {"requests": (30, 30), "prefill": (60_000, 180_000)}
    assert scored(later(a_request(tokens=3_000, **burst, headers=target), 15), scorer)[0] == 1
    assert scored(later(a_request(tokens=100_000, **burst, headers=target), 15), scorer)[1] == 1


def test_of_servers_that_are_all_late_the_sooner_is_still_better():
    late = {"tokens": 40_000, "requests": (10, 10), "prefill": (200_000, 100_000), "headers": {"x-slo-ttft-ms": "200"}}
    best, other = scored(a_request(**late))[1], scored(a_request(**late))[0]
    assert best == 1 > other > 0.5


@pytest.mark.parametrize("target", ["1e-320", "1e-200"])
def test_a_target_that_is_all_but_nothing_gives_scores_all_the_same(target):
    headers = {"x-slo-ttft-ms": target, "x-slo-tpot-ms": target}
    assert scored(a_request(requests=(10, 2), headers=headers))[1] == 1


def test_a_target_that_is_at_stake_outweighs_the_price():
    """The second server is cheaper by its few requests, but the first token would come too late there."""
    load = {"tokens": 500, "requests": (60, 12), "prefill": (2_000, 12_000), "decode": (40_000, 8_000)}
    assert scored(a_request(**load))[1] == 1
    assert scored(a_request(**load, headers={"x-slo-ttft-ms": "150"}))[0] == 1


def test_neighbours_that_would_be_slowed_past_their_target_are_spared():
    """The first server is just within 25 ms per token, with 80 requests; the second has room, and a longer queue."""
    load = {"requests": (80, 40), "prefill": (900, 9_000), "decode": (160_000, 80_000)}
    assert scored(a_request(**load))[0] == 1
    assert scored(a_request(**load, headers={"x-slo-tpot-ms": "25"}))[1] == 1


def test_what_is_lost_anyway_goes_where_it_spoils_least():
    """Both are too slow; on the second nobody keeps the target any more, so nobody there loses it."""
    load = {"requests": (60, 70), "decode": (330_000, 900_000)}
    free, targeted = scored(a_request(**load)), scored(a_request(**load, headers={"x-slo-tpot-ms": "25"}))
    assert targeted[1] / targeted[0] > free[1] / free[0]


def test_targets_count_for_nothing_when_told_so():
    scorer = make("latency-cost-scorer", {"stakeExponent": 0})
    load = {"requests": (60, 70), "decode": (330_000, 900_000)}
    assert scored(a_request(**load, headers=TARGETS), scorer) == scored(a_request(**load), scorer)


def test_of_two_late_servers_the_one_that_is_less_late_is_better_while_the_pool_has_room():
    """A pool of thirty, idle or not, but for two: with queues of 2 s and of 4 s, where 1 s is allowed."""
    targets = {"x-slo-ttft-ms": "1000", "x-slo-tpot-ms": "20"}  # steps are too slow on both
    ratios = []
    for others_tokens in (0, 50_000):
        load = dict.fromkeys(("requests", "decode"), (0,) * 30)
        load["prefill"] = (100_000, 200_000, *[others_tokens] * 28)
        less, more, *_ = scored(a_request(**load, headers=targets), candidates=pool(size=30))
        ratios.append(less / more)
    with_room, at_overload = ratios
    assert with_room > 1.5
    assert at_overload == pytest.approx(1, abs=0.1)


def test_arrivals_at_other_workers_count_as_their_requests_in_flight_do():
    """A prompt that is late anywhere: alone it goes where its followers are in time; beside workers with a hundred
    times as much in flight, where fewer of those who come meanwhile would be."""
    headers = {"x-slo-ttft-ms": "1000"}
    late = {"tokens": 60_000, "prefill": (0, 100_000), "headers": headers}
    scores = []
    for in_flight in (4, 400):
        scorer = make("latency-cost-scorer")
        for number in range(4):
            cycle = a_request(tokens=10, headers=headers)
            cycle.request = cycle.request._replace(id=f"ours-{number}")
            scorer.score(cycle, pool(size=2))
            scorer.pre_request(cycle, decide(pool(size=2), number % 2))
        scores.append(scored(a_request(**late, requests=(in_flight / 2, in_flight / 2)), scorer))
    (alone, _), (_, among_many) = scores
    assert alone == 1 == among_many


def test_prompts_that_other_workers_send_take_the_steps_of_a_server_as_ours_do():
    """Twenty requests of ours are in flight; ten workers have ten times as many, and as many times our prompts."""
    shares = []
    for in_flight in (20, 200):
        scorer, candidates, load = make("latency-cost-scorer"), pool(size=2), (in_flight / 2, in_flight / 2)
        for number in range(21):
            cycle = a_request(tokens=3_000 if number == 20 else 1, requests=load)
            cycle.request = cycle.request._replace(id=str(number))
            scorer.score(cycle, candidates)
            scorer.pre_request(cycle, decide(candidates, 0 if number == 20 else number % 2))
        (_, told), _ = explained(a_request(requests=load), scorer=scorer)
        shares.append(1 - told["tpot_ms"][1] / told["tpot_ms"][0])
    alone, among_ten = shares
    assert alone > 0.01
    assert among_ten == pytest.approx(10 * alone, rel=0.2)


def test_who_is_lost_is_followed_only_where_prefixes_are_asked_for_again():
    """A prompt that is late anywhere, and a server where all are late."""
    late = {"tokens": 100_000, "prefill": (0, 100_000), "headers": {"x-slo-ttft-ms": "1000"}}
    room_by_late = []
    for uncached in (100, 100_000):
        scorer = make("latency-cost-scorer")
        for _ in range(4):
            serve(scorer, 0, ttft_ms=1, tpot_ms=1, served="elsewhere", tokens=100_000, uncached=(uncached, 100_000))
        room, there = scored(a_request(**late), scorer)
        room_by_late.append(room / there)
    followed, nobody_follows = room_by_late
    assert followed > 1.2 * nobody_follows


def test_a_request_that_several_profiles_ask_about_has_come_once():
    """Asked once or twice about each, the scorer expects as many followers, and so says the same of the next one."""
    late = {"tokens": 100_000, "prefill": (0, 100_000), "headers": {"x-slo-ttft-ms": "1000"}}
    scores = []
    for profiles in (1, 2):
        scorer, candidates = make("latency-cost-scorer"), pool(size=2)
        for _ in range(40):
            cycle = a_request(tokens=10)
            for _ in range(profiles):
                scorer.score(cycle, candidates)
            scorer.pre_request(cycle, decide(candidates, 0))
        scores.append(scored(a_request(**late), scorer))
    assert scores[0] == scores[1]


@pytest.mark.parametrize("exponent", [0, 20])
@pytest.mark.parametrize("size", [1, 3])
def test_scores_are_numbers_and_the_best_is_1_whatever_is_asked(exponent, size):
    scorer, candidates = make("latency-cost-scorer", {"stakeExponent": exponent}), pool(size=size)
    load = {"requests": range(0, 900, 900 // size), "prefill": range(0, 3 * 10**8, 10**8), "decode": [10**7] * size}
    load = {name: tuple(column)[:size] for name, column in load.items()}
    for target in ("0", "-1", "nan", "inf", "1e308", "5e-324", "", "é", "0.000001", "1", "86400000"):
        for names in (["x-slo-ttft-ms"], ["x-slo-tpot-ms"], ["x-slo-ttft-ms", "x-slo-tpot-ms"]):
            for tokens in (0, 1_000_000):
                cycle = a_request(
                    tokens=tokens, uncached=(tokens,) * size, **load, headers=dict.fromkeys(names, target)
                )
                scores = scorer.score(cycle, candidates)
                assert np.isfinite(scores).all()
                assert scores.max() == 1
                assert scores.min() >= 0
                scorer.pre_request(cycle, decide(candidates, 0))


# --- learning -------------------------------------------------------------------------------------------------------


def test_what_one_of_several_profiles_sent_is_learned_from_whichever_ran_last():
    """The primary profile has one server, the other profile the other."""
    everybody = pool(size=2)
    first, second = (Candidates(everybody.snapshot, np.array([row])) for row in (0, 1))
    for profiles in (first, second), (second, first):
        scorer, cycle = make("latency-cost-scorer"), a_request(headers=TARGETS)
        for candidates in profiles:
            scorer.score(cycle, candidates)
        scorer.pre_request(cycle, decide(everybody, 0, prefill_row=1))
        assert scorer._progress.requests == 1


def test_the_slower_server_is_found_out():
    scorer = make("latency-cost-scorer")
    for tokens in (200, 1000, 4000) * 20:
        serve(scorer, 0, tokens=tokens, ttft_ms=28 + 0.0185 * tokens, tpot_ms=8)
        serve(scorer, 1, tokens=tokens, ttft_ms=34 + 0.059 * tokens, tpot_ms=13)
    alike, slow = scored(later(a_request(tokens=4000)), scorer)
    assert alike == 1
    assert slow == pytest.approx((8 + 74) * 8 / ((13 + 236) * 13), rel=0.35)


def answered_among(scorer, requests_later, tpot_ms, at_s):
    """An answer that is alone at the first server when it begins, and for its other 99 tokens beside so many."""
    candidates, cycle = pool(size=2), later(a_request(), at_s)
    scorer.score(cycle, candidates)
    decision, first_s = decide(candidates, 0), cycle.now_s + 0.05
    scorer.pre_request(cycle, decision)
    scorer.first_token(cycle, decision, first_s)
    scorer.score(later(a_request(requests=(requests_later, 0)), at_s + 0.05 + 99 * tpot_ms / 1e3), candidates)
    answered(scorer, cycle, decision, first_s, tpot_ms)


def test_a_pace_is_learned_from_what_was_there_while_an_answer_was_made():
    """80 requests make a token take 16 ms, as is expected of them; so nothing is learned of an empty server."""
    among_many, alone = make("latency-cost-scorer"), make("latency-cost-scorer")
    for number in range(60):
        answered_among(among_many, 80, 16.0, number * 10)
        answered_among(alone, 1, 16.0, number * 10)
    base, _, _, _ = among_many.dump_state()["tpot"]["pool"]
    slow_base, _, _, _ = alone.dump_state()["tpot"]["pool"]
    assert base < 9
    assert slow_base > 12


def test_a_prompt_that_waits_for_one_that_overtook_it_says_nothing_of_an_idle_server():
    """Both are sent at once, the short one first, but the server computes the long one before it, for 4 seconds."""
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    for number in range(40):
        sent = []
        for tokens in (200, 40_000):
            cycle = later(a_request(tokens=tokens), number * 60.0)
            cycle.request = cycle.request._replace(id=str(tokens))
            scorer.score(cycle, candidates)
            decision = decide(candidates, number % 2)
            scorer.pre_request(cycle, decision)
            sent.append((cycle, decision))
        for ttft_s, (cycle, decision) in zip((4.0, 4.02), reversed(sent), strict=True):
            scorer.first_token(cycle, decision, cycle.now_s + ttft_s)
            answered(scorer, cycle, decision, cycle.now_s + ttft_s, 8)
        serve(scorer, number % 2, tokens=200, ttft_ms=45, tpot_ms=8)
    law = scorer.dump_state()["ttft"]
    assert law["pool"][0] < 100
    assert law["spread"] < 0.2


@pytest.mark.parametrize("overtaking", [[60_000], [500] * 40], ids=["one long", "many short"])
def test_a_wait_is_learned_from_the_tokens_and_pairs_that_were_computed_before(overtaking):
    """One that was sent first, and is computed last: behind a prompt that is attention most of all, or none."""
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    for number in range(40):
        sent, took_ms = [], 28.0
        decision = decide(candidates, number % 2)
        for which, tokens in enumerate((200, *overtaking)):
            cycle = later(a_request(tokens=tokens), number * 60.0)
            cycle.request = cycle.request._replace(id=str(which))
            scorer.score(cycle, candidates)
            scorer.pre_request(cycle, decision)
            sent.append((cycle, tokens))
        first, *others = sent
        for cycle, tokens in (*others, first):
            took_ms += 0.0185 * tokens + 1.2e-6 * tokens**2 / 2
            scorer.first_token(cycle, decision, cycle.now_s + took_ms / 1e3)
            if cycle is first[0]:
                answered(scorer, cycle, decision, cycle.now_s + took_ms / 1e3, 8)
        for cycle, _ in others:
            gone = Outcome(EndCause.CLIENT_GONE, 200, True, "", NOW_S, NOW_S, None, cycle.now_s + 20, Usage())
            scorer.end(cycle, decision, gone)
    law = scorer.dump_state()["ttft"]
    assert law["pool"] == pytest.approx([28, 0.0185, 1.2e-6], rel=0.1)
    assert law["spread"] < 0.1


def test_a_first_token_that_another_server_prefilled_says_nothing_of_the_one_that_decodes():
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    (_, before), _ = explained(a_request(headers=TARGETS), scorer=scorer)
    for number in range(30):
        cycle = later(a_request(), number * 60.0)
        scorer.score(cycle, candidates)
        decision = decide(candidates, 0, prefill_row=1)
        scorer.pre_request(cycle, decision)
        scorer.first_token(cycle, decision, cycle.now_s + 5.0)
        answered(scorer, cycle, decision, cycle.now_s + 5.0, 7.3)
    (_, after), _ = explained(later(a_request(headers=TARGETS), 3600.0), scorer=scorer)
    for what in ("queue_ms", "prefill_ms"):
        assert after[what] == pytest.approx(before[what])


def test_a_prompt_holds_others_up_for_no_more_than_twice_as_long_as_it_takes():
    """Whatever answers beside prompts seem to say: here each ms of prefill has cost 5."""
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    decision, prompt_ms = decide(candidates, 0), 0.0185 * 20_000 + 1.2e-6 * 20_000**2 / 2

    def a_prompt(at_s):
        cycle = later(a_request(tokens=20_000), at_s)
        cycle.request = cycle.request._replace(id="prompt")
        scorer.score(cycle, candidates)
        scorer.pre_request(cycle, decision)
        return cycle

    for number in range(60):
        at_s, beside_a_prompt = number * 60.0, number % 2
        tpot_ms = 7.3 + 5 * beside_a_prompt * prompt_ms / 99
        cycle = later(a_request(), at_s)
        scorer.score(cycle, candidates)
        scorer.pre_request(cycle, decision)
        scorer.first_token(cycle, decision, cycle.now_s + 0.05)
        if beside_a_prompt:
            prompt = a_prompt(at_s + 0.1)
            scorer.first_token(prompt, decision, prompt.now_s + prompt_ms / 1e3)
        answered(scorer, cycle, decision, cycle.now_s + 0.05, tpot_ms)
        if beside_a_prompt:
            gone = Outcome(EndCause.CLIENT_GONE, 200, True, "", NOW_S, NOW_S, None, prompt.now_s + 20, Usage())
            scorer.end(prompt, decision, gone)
    assert scorer.dump_state()["tpot"]["pool"][3] > 3
    next_one = {"requests": (1, 0), "uncached": (1, 1)}
    (_, before), _ = explained(later(a_request(**next_one), 10_000.0), scorer=scorer)
    a_prompt(10_000.0)
    (_, after), _ = explained(later(a_request(**next_one), 10_000.0), scorer=scorer)
    assert 1 - before["tpot_ms"][0] / after["tpot_ms"][0] == pytest.approx(2 * prompt_ms / 4_000, rel=0.1)


@pytest.mark.parametrize("how", ["refused", "moved"])
def test_a_prompt_that_its_server_does_not_compute_says_nothing_of_those_who_wait_beside_it(how):
    """It would take seconds, and is answered with 400 at once, or by another server."""
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    for number in range(60):
        sent = {}
        for tokens in (1_000, 100_000):
            cycle = later(a_request(tokens=tokens), number * 60.0)
            cycle.request = cycle.request._replace(id=str(tokens))
            scorer.score(cycle, candidates)
            sent[tokens] = cycle, decide(candidates, number % 2)
            scorer.pre_request(*sent[tokens])
        long, short = sent[100_000], sent[1_000]
        at_s = long[0].now_s
        if how == "refused":
            bad = Outcome(
                EndCause.NATURAL, 400, False, long[1].endpoints[0].id, at_s, at_s, None, at_s + 0.002, Usage()
            )
            scorer.end(*long, bad)
        else:
            scorer.response_headers(*long, 200, {}, endpoints(2)[1 - number % 2].address)
            assert scorer._progress.requests == 1
            scorer.first_token(*long, at_s + 0.04)
        scorer.first_token(*short, at_s + 0.048)
        answered(scorer, *short, at_s + 0.048, 8)
    constant, per_token, _ = scorer.dump_state()["ttft"]["pool"]
    assert constant == pytest.approx(28, abs=4)
    assert per_token == pytest.approx(0.0185, abs=0.004)
    assert scorer.dump_state()["ttft"]["spread"] < 0.1


def in_one_piece(scorer, ledger, *, tokens, request_id, at_s=0.0):
    """A request whose answer comes whole, sent to the first of two servers."""
    candidates, cycle = pool(size=2), later(a_request(tokens=tokens), at_s)
    cycle.request = cycle.request._replace(id=request_id, streaming=False)
    scorer.score(cycle, candidates)
    decision = decide(candidates, 0)
    ledger.reserve(request_id, decision.endpoints[0].id, prefill_tokens=tokens, context_tokens=tokens)
    scorer.pre_request(cycle, decision)
    return cycle, decision


def test_the_prompt_of_an_answer_in_one_piece_is_computed_when_that_was_expected():
    """Without another plugin that says so; by then nobody waits for it, and its first token was in time."""
    ledger, candidates = Ledger(), pool(size=2)
    scorer = make("latency-cost-scorer", ledger=ledger)
    in_one_piece(scorer, ledger, tokens=10_000, request_id="whole")
    for at_s, waiting in ((0.25, 10_000), (0.35, 0)):
        scorer.process_request(later(a_request(), at_s))
        assert ledger.load(candidates.snapshot).prefill_tokens[0] == waiting
        assert (scorer._backlog.pairs_per_token((endpoints(2)[0].id,))[0] > 0) == (waiting > 0)
        assert scorer._progress.in_flight(candidates.rows, True, NOW_S + at_s).waits[0] == (waiting > 0)


def test_an_answer_in_one_piece_hides_no_queue_from_what_is_learned():
    """While it is made, a prompt of 20,000 tokens waits, and another behind it."""
    ledger, candidates = Ledger(), pool(size=2)
    scorer = make("latency-cost-scorer", ledger=ledger)
    for number in range(60):
        at_s = number * 60.0
        whole, decision = in_one_piece(scorer, ledger, tokens=10_000, request_id="whole", at_s=at_s)
        sent = []
        for tokens, before in ((20_000, 0), (1_000, 20_000)):
            cycle = later(a_request(tokens=tokens, prefill=(before, 0)), at_s + 5.0)
            cycle.request = cycle.request._replace(id=str(tokens))
            scorer.process_request(cycle)
            scorer.score(cycle, candidates)
            scorer.pre_request(cycle, decision)
            sent.append(cycle)
        for cycle, ttft_ms in zip(sent, (28 + 370 + 240, 28 + 370 + 240 + 19), strict=True):
            scorer.first_token(cycle, decision, cycle.now_s + ttft_ms / 1e3)
            answered(scorer, cycle, decision, cycle.now_s + ttft_ms / 1e3, 8)
        scorer.end(
            whole,
            decision,
            Outcome(EndCause.NATURAL, 200, False, decision.endpoints[0].id, at_s, at_s, at_s + 9, at_s + 9, Usage()),
        )
        ledger.release("whole")
    law = scorer.dump_state()["ttft"]
    assert law["spread"] < 0.1
    assert law["pool"] == pytest.approx([28, 0.0185, 1.2e-6], rel=0.1)


def burst(scorer, more, more_later, at_s):
    """An answer at the first server, which has so many requests more than the other when it comes, and later."""
    candidates, cycle = pool(size=2), later(a_request(requests=(more, 0)), at_s)
    scorer.score(cycle, candidates)
    decision, first_s = decide(candidates, 0), cycle.now_s + 0.05
    scorer.pre_request(cycle, decision)
    scorer.first_token(cycle, decision, first_s)
    for step in range(20):
        scorer.score(later(a_request(requests=(more_later + 1, 0)), at_s + 0.05 + step / 20), candidates)
    answered(scorer, cycle, decision, first_s, 10.0)


@pytest.mark.parametrize("ahead_by", [{"requests": (90, 0)}, {"decode": (400_000, 0)}], ids=["requests", "context"])
def test_a_burst_that_passes_is_less_of_a_reason_to_leave_a_cache_than_load_that_lasts(ahead_by):
    ratios, slower_ms = [], []
    for more_later in (0, 40):
        scorer = make("latency-cost-scorer")
        for number in range(30):
            burst(scorer, 40, more_later, number * 10.0)
        ratios.append(scorer.dump_state()["lasting_load_ratio"])
        ahead = a_request(tokens=20_000, uncached=(100, 20_000), **ahead_by, headers=TARGETS)
        (_, told), _ = explained(later(ahead, 1_000.0), scorer=scorer)
        ahead_ms, other_ms = told["tpot_ms"]
        slower_ms.append(ahead_ms - other_ms)
    assert ratios[0] < 0.3
    assert ratios[1] > 0.9
    assert slower_ms[0] < slower_ms[1] / 2


def test_of_a_small_burst_that_comes_down_to_the_mean_nothing_lasts():
    """The answer itself, which is there all the while, is none of it."""
    scorer = make("latency-cost-scorer")
    for number in range(100):
        burst(scorer, 8, 4, number * 10.0)
    assert scorer.dump_state()["lasting_load_ratio"] < 0.1


def test_whose_turn_it_is_does_not_hide_what_others_have_cached():
    """What is asked for again is what any server has, also while new ones have their turn."""
    scorer, candidates = make("latency-cost-scorer"), pool(size=2)
    for _ in range(50):
        cycle = a_request(tokens=20_000, uncached=(100, 20_000), held_back=[False, True], turn=1)
        scorer.score(cycle, candidates)
        scorer.pre_request(cycle, decide(candidates, 1))
    assert scorer.dump_state()["reused_prompt_ratio"] > 0.9


def test_one_long_prompt_on_one_server_is_no_overload_of_the_pool():
    scorer, everybody, empty = make("latency-cost-scorer"), pool(size=4), (0, 0, 0, 0)
    cycle = a_request(tokens=200_000, requests=empty, prefill=empty, decode=empty)
    scorer.score(cycle, everybody)
    scorer.pre_request(cycle, decide(everybody, 0))
    headers = {"x-slo-tpot-ms": "15"}
    next_one = a_request(requests=empty, prefill=empty, decode=empty, headers=headers)
    (_, told), _ = explained(next_one, scorer=scorer, candidates=everybody)
    assert told["tpot_ms"][0] > 60
    assert told["overload_ratio"] == 0


def test_a_prompt_that_another_server_computes_does_not_slow_the_one_that_decodes():
    everybody = pool(size=2)
    for prefill_row, slowed in ((None, True), (1, False)):
        scorer, cycle = make("latency-cost-scorer"), a_request(tokens=20_000)
        scorer.score(cycle, everybody)
        scorer.pre_request(cycle, decide(everybody, 0, prefill_row=prefill_row))
        decoding, other = scored(a_request(), scorer)
        assert other == 1
        assert (decoding < 0.99) is slowed


@pytest.mark.parametrize("bad", [{"status": 500}, {"served": "ns/pod-0"}])
def test_errors_and_answers_of_others_teach_nothing(bad):
    scorer = make("latency-cost-scorer")
    for _ in range(30):
        serve(scorer, 1, ttft_ms=1, tpot_ms=1, **bad)
    assert scored(later(a_request(), 600), scorer) == [1, 1]


def test_nothing_is_left_of_requests_that_have_ended_or_of_servers_that_have_left():
    scorer = make("latency-cost-scorer")
    serve(scorer, 0, ttft_ms=50, tpot_ms=8)
    serve(scorer, 1, ttft_ms=50, tpot_ms=8)
    assert scorer._backlog._by_request == {} == scorer._backlog._by_endpoint
    scorer.score(cycle_with(None), pool(size=1, version=2))
    assert list(scorer.dump_state()["ttft"]["endpoints"]) == [endpoints(1)[0].id]


@pytest.mark.parametrize("happens", [[], ["first token"], ["decided", "first token"], ["end", "first token", "end"]])
def test_nothing_is_left_of_a_request_however_it_went(happens):
    """Decided once or twice, for one server or the other; its first token never comes, or when it has ended."""
    scorer, candidates, cycle = make("latency-cost-scorer"), pool(size=2), a_request(headers=TARGETS)
    for row, what in enumerate(["decided", *happens, "end"]):
        decision = decide(candidates, row % 2)
        if what == "decided":
            scorer.score(cycle, candidates)
            scorer.pre_request(cycle, decision)
            assert scorer._progress.requests == 1
        elif what == "first token":
            scorer.first_token(cycle, decision, NOW_S + 9)
        else:
            gone = Outcome(EndCause.CLIENT_GONE, None, True, "", NOW_S, NOW_S, None, NOW_S + 10, Usage())
            scorer.end(cycle, decision, gone)
    assert scorer._backlog._by_request == {} == scorer._backlog._by_endpoint
    assert scorer._progress.requests == 0


@pytest.mark.parametrize("exponent", [-1.0, 1e300, float("inf"), float("nan")])
def test_an_exponent_with_which_prices_would_be_no_numbers_is_refused(exponent):
    with pytest.raises(ValueError, match="stakeExponent"):
        make("latency-cost-scorer", {"stakeExponent": exponent})
