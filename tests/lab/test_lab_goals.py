"""The goals that the tables hold `ours` to, on figures made up so that each is met, tied or missed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from epp.lab import oracle
from epp.lab.comparison import Row
from epp.lab.goals import judged_goodputs, judged_rows
from epp.lab.policies.catalogue import POLICIES
from epp.lab.result import Result
from epp.lab.runs import policy_of
from epp.lab.spec import RunSpec
from epp.lab.sweep import Goodput
from epp.lab.table import goodput_table, summary
from epp.lab.workloads.workload import Targets

SPEC = RunSpec("azure-conv", "h100x4", "ours", rate_rps=20.0, duration_s=6.0)
MIXED = "h100x2+a100x2"


def row(policy: str, load: float, by_seed: Sequence[Mapping[str, float | None]], workload: str = "azure-conv") -> Row:
    results = tuple(
        Result(replace(SPEC, policy=policy), Targets(200.0, 25.0), 60.0, figures, {}, {}, [], {}, {})
        for figures in by_seed
    )
    return Row(workload, "h100x4", load, policy, results, by_seed[0], {})


def seeds(attained: Sequence[float], p50_ms: Sequence[float | None], p99_ms: Sequence[float]) -> list[dict]:
    return [
        {"attainment": a, "ttft_p50_ms": p50, "ttft_p99_ms": p99, "tpot_p99_ms": 20.0, "hit_ratio": 0.0}
        for a, p50, p99 in zip(attained, p50_ms, p99_ms, strict=True)
    ]


def goodput(
    policy: str,
    loads: tuple[float, float],
    pool: str = "h100x4",
    workload: str = "azure-conv",
    off: Sequence[float] = (0.0, 0.0),
) -> Goodput:
    """`off`: of each seed from these loads."""
    by_ratio = dict(zip((0.9, 0.99), loads, strict=True))
    by_seed = {r: tuple(load + by for by in off) for r, load in by_ratio.items()}
    return Goodput(workload, pool, policy, 60.0, 45.0, by_ratio, by_seed, {}, ())


ROWS = [
    row("ours", 0.5, seeds((1.0, 1.0), (50.0, 54.0), (190.0, 191.0))),
    row("lmetric", 0.5, seeds((0.9, 0.9), (51.0, 51.0), (150.0, 150.0))),
    row("random", 0.5, seeds((0.8, 0.8), (90.0, None), (400.0, 400.0))),
    row("oracle", 0.5, seeds((1.0, 1.0), (10.0, 10.0), (20.0, 20.0))),
    row("ours", 0.8, seeds((0.7, 0.7), (90.0, 90.0), (900.0, 900.0))),
    row("lmetric", 0.8, seeds((0.9, 0.9), (60.0, 60.0), (300.0, 300.0))),
]

ELSEWHERE = [
    row("ours", 0.8, seeds((0.9, 0.9), (50.0, 50.0), (90.0, 90.0)), "rag"),
    row("lmetric", 0.8, seeds((0.8, 0.8), (50.0, 50.0), (90.0, 90.0)), "rag"),
]


def test_a_table_asks_for_attainment_at_every_load_and_for_soon_first_tokens_at_an_easy_one() -> None:
    assert [(one.kind, one.at, one.met, one.words) for one in judged_rows(ROWS)] == [
        ("attained: best or tied", "0.5", True, "best, lmetric is 10.0% behind"),
        ("TTFT p50 at 0.5: lowest or tied", "0.5", True, "tied with lmetric (-1.0 ±2.8 ms)"),
        ("TTFT p99 at 0.5: lowest or tied", "0.5", False, "behind lmetric by 40.5 ms"),
        ("attained: best or tied", "0.8", False, "behind lmetric by 20.0%"),
    ]


def test_the_tally_counts_all_by_kind() -> None:
    *_, lines, tally = summary([*ROWS, *ELSEWHERE], markdown=True).split("\n\n")
    assert (
        "| azure-conv on h100x4 | 0.5 | TTFT p99 at 0.5: lowest or tied | missed | behind lmetric by 40.5 ms |" in lines
    )
    assert tally.splitlines()[2:] == [
        "| attained: best or tied | 2 | 1 |",
        "| TTFT p50 at 0.5: lowest or tied | 1 | 0 |",
        "| TTFT p99 at 0.5: lowest or tied | 0 | 1 |",
        "| all | 3 | 2 |",
    ]
    assert "goals" not in summary([row for row in ROWS if row.policy != "ours"], markdown=True)


@pytest.mark.parametrize(
    ("ours", "met", "words"),
    [
        (0.76, True, "95%, 0.760 of 0.800"),
        (0.75, False, "94%, 0.750 of 0.800"),
        (0.0, False, "0%, 0.000 of 0.800"),
    ],
)
def test_goodput_is_held_to_the_oracle_s(ours: float, met: bool, words: str) -> None:
    at_90, at_99 = judged_goodputs([goodput("ours", (ours, 0.0)), goodput("oracle", (0.8, 0.0))])
    assert (at_90.kind, at_90.at, at_90.met, at_90.words) == (
        "goodput: at least 95% of the oracle's",
        "90%",
        met,
        words,
    )
    assert (at_99.met, at_99.words) == (True, "0.000 of 0.000")  # 0 of 0 is all there is


def test_on_mixed_hardware_goodput_is_held_to_who_does_not_know_it() -> None:
    policies = {"predicted-latency": 0.79, "llm-d-predicted": 0.78, "lmetric": 0.6, "random": 0.3, "oracle": 0.9}
    others = [goodput(policy, (load, load), MIXED) for policy, load in policies.items()]
    found = [
        one
        for one in judged_goodputs([goodput("ours", (0.78, 0.77), MIXED), *others])
        if one.kind == "mixed hardware: 1.3 times the goodput of who does not know it"
    ]
    assert [(one.at, one.met, one.words) for one in found] == [
        ("90%", True, "1.30 times, 0.780 to 0.600 of lmetric"),
        ("99%", False, "1.28 times, 0.770 to 0.600 of lmetric"),
    ]
    alike = judged_goodputs([goodput("ours", (0.7, 0.7)), goodput("lmetric", (0.6, 0.6))])
    assert {one.kind for one in alike} == {"goodput: best or tied"}


def test_who_keeps_the_highest_load_that_is_tried_may_carry_more_and_all_say_so() -> None:
    found = [goodput("ours", (1.5, 1.4)), goodput("lmetric", (1.4, 1.2)), goodput("oracle", (1.5, 1.5))]
    _, at_90, _, at_99, *_ = goodput_table(found, markdown=True).split("\n\n")
    assert [line.split(" | ")[1:] for line in at_90.splitlines()[2:]] == [
        ["≥ 1.500 |"],
        ["1.400 |"],
        ["≥ 1.500 |"],
        ["60 |"],
    ]
    assert "| ours | 1.400 |" in at_99
    assert "≥: also at 1.5, the highest load that is tried" in goodput_table(found, markdown=False)
    assert "≥" not in goodput_table([goodput("ours", (1.4, 1.4))], markdown=False)
    assert found[0].plain()["at_least_by_ratio"] == {0.9: True, 0.99: False}
    assert [one.words for one in judged_goodputs(found)] == [
        "best, lmetric is 0.100 behind; ours may carry more than the 1.5 that is tried",
        "100%, 1.500 of 1.500; both may carry more than the 1.5 that is tried",
        "best, lmetric is 0.200 behind",
        "93%, 1.400 of 1.500; the other may carry more than the 1.5 that is tried",
    ]


def test_a_sweep_tallies_all_of_them() -> None:
    on_mixed = [goodput(p, (load, 0.0), MIXED) for p, load in (("ours", 0.8), ("lmetric", 0.7), ("oracle", 0.81))]
    elsewhere = [replace(g, workload="rag", pool="h100x4") for g in on_mixed]
    tables = goodput_table([*on_mixed, *elsewhere], markdown=True).split("\n\n")
    assert tables[4].startswith("Each policy's own knee")
    assert "| ours | 0.75 | 0.75 | 0.75 |" in tables[5].splitlines()
    assert tables[-1].splitlines()[2:] == [
        "| goodput: best or tied | 4 | 0 |",
        "| goodput: at least 95% of the oracle's | 4 | 0 |",
        "| mixed hardware: 1.3 times the goodput of who does not know it | 1 | 1 |",
        "| all | 9 | 1 |",
    ]


def test_of_one_seed_nothing_is_missed_and_nothing_counted() -> None:
    swept = [
        goodput(policy, (load, 0.8), workload=workload, off=(0.0,))
        for workload in ("azure-conv", "rag")
        for policy, load in (("ours", 0.7), ("lmetric", 0.8))
    ]
    *_, lines, note = goodput_table(swept, markdown=True).split("\n\n")
    assert "| azure-conv on h100x4 | 90% | goodput: best or tied | one seed | behind lmetric by 0.100 |" in lines
    assert "missed" not in lines
    assert note.startswith("one seed: differences of some per cent mean nothing")


@pytest.mark.parametrize(
    ("ours", "mine", "says"),
    [
        (1.384, 1.216, "ours carries 1.384/1.216 = 14 % more than mine.yaml at 90%"),
        (0.9, 1.0, "ours carries 0.900/1.000 = 10 % less than mine.yaml at 90%"),
        (0.9, 0.0, "ours carries 0.900 at 90%, mine.yaml nothing"),
        (0.0, 0.9, "mine.yaml carries 0.900 at 90%, ours nothing"),
        (0.0, 0.0, "ours and mine.yaml carry nothing at 90%: not even the lowest load that is tried"),
        (1.5, 1.2, "ours carries 1.500/1.200 = at least 25 % more than mine.yaml at 90%"),
        (1.2, 1.5, "ours carries 1.200/1.500 = at least 20 % less than mine.yaml at 90%"),
        (1.5, 1.5, "ours and mine.yaml carry 1.5 at 90%, the highest load that is tried, or more"),
    ],
)
def test_of_a_single_workload_it_is_said_how_much_more_is_carried_than_by_ones_own(ours, mine, says: str) -> None:
    swept = [goodput(p, (load, 0.3)) for p, load in (("ours", ours), ("mine.yaml", mine), ("lmetric", 1.4))]
    table = goodput_table(swept, markdown=True)
    assert table.split("\n\n")[-1].splitlines() == [says, "ours and mine.yaml carry the same at 99%: 0.300"]
    assert "goal" not in table
    assert "mean" not in table


def test_without_a_configuration_of_ones_own_it_is_the_best_other_and_chance_is_called_so() -> None:
    swept = [
        goodput("ours", (0.8, 0.2), off=(-0.3, 0.3)),
        goodput("lmetric", (0.7, 0.1)),
        goodput("random", (0.6, 0.1)),
    ]
    at_90, at_99 = goodput_table(swept, markdown=False).split("\n\n")[-1].splitlines()
    assert at_90 == "ours carries 0.800/0.700 = 14 % more than lmetric at 90%, which is within the spread of the seeds"
    assert at_99.startswith("ours carries 0.200/0.100 = 100 % more than lmetric at 99%")
    alone = [goodput("ours", (0.8, 0.2), off=(0.0,)), goodput("lmetric", (0.7, 0.1), off=(0.0,))]
    assert goodput_table(alone, markdown=False).splitlines()[-1].startswith("one seed: differences of some per cent")


def test_a_table_of_a_single_workload_says_how_ours_compares_without_goals() -> None:
    last = summary(ROWS, markdown=True).split("\n\n")[-1].splitlines()
    assert last[0] == "ours on azure-conv on h100x4 at 0.5, attained: best, lmetric is 10.0% behind"
    assert last[-1] == "ours on azure-conv on h100x4 at 0.8, attained: behind lmetric by 20.0%"


def test_who_knows_the_hardware_learns_the_speed_of_each_server(tmp_path) -> None:
    knowing = {name for name, policy in POLICIES.items() if policy.knows_hardware}
    assert knowing == {"ours", "predicted-latency", "llm-d-predicted", "llm-d-predicted-streaming"}
    assert all(oracle.policy_of(rule).knows_hardware for rule in oracle.Rule)
    mine = tmp_path / "mine.yaml"
    mine.write_text(POLICIES["random"].config_text)
    assert policy_of(str(mine)).knows_hardware is None
    assert not any("knows" in one.kind for one in judged_goodputs([goodput("ours", (0.7, 0.7), MIXED)]))
    with_mine = judged_goodputs([goodput("ours", (0.7, 0.7), MIXED), goodput(str(mine), (0.7, 0.7), MIXED)])
    assert {one.kind for one in with_mine} == {"goodput: best or tied"}
