"""What physics dictates, in short runs: who must win, and who must lose.

All policies of a scene meet the same pool, schedules and seeds. Claims are about means over the seeds, of differences
in pairs: short runs differ by many points from seed to seed, and by few between policies. Nobody keeps more targets
than the oracle, but for an allowance of three standard errors of the mean difference, and nobody fewer than
always-busiest.

The oracle is greedy, and so is no bound. It must be best where what it knows is what counts. Up to some two thirds of
the knee nearly all can be kept, by whoever knows what is left to do on each server: all scenes but two. At the knee and
above it, where prefixes are shared, some must be given up, and it knows who is lost already: agents, and too many
tenants. It need not be best near the knee of unequal servers, where `headroom` keeps some points more, as it reckons
with those who follow: they are tried at half of it. Nor where everybody keeps the same, as agents at half of the knee.

Always-busiest sends nearly all to one server. It must be last where that is more than one can do, so that its queue
grows without end: a test holds that every scene's rate is above what its fastest server does alone. (Of an H100 and an
A100 at half of their knee one H100 can do all of it, and sending everything there is the best of choices.)
"""

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import pytest

from epp.lab.comparison import Row, rows_of
from epp.lab.experiment import LabServer
from epp.lab.knee import knee_rps
from epp.lab.oracle import NAME as ORACLE
from epp.lab.policies.catalogue import POLICIES, WORST
from epp.lab.pools import parse_pool
from epp.lab.runs import run_spec
from epp.lab.spec import RunSpec
from epp.lab.workloads.catalogue import WORKLOADS

SEEDS = (1, 2, 3)
ALLOWED_ERRORS = 3.0


class Scene(NamedTuple):
    """A workload, at a rate that its pool can do or not, and who is tried on it besides oracle and worst."""

    workload: str
    rate_rps: float
    duration_s: float
    policies: tuple[str, ...]
    pool: str = "h100x3"


OF_ALL_KINDS = ("ours", "predicted-latency", "llm-d-predicted", "lmetric", "cache-aware", "sticky", "round-robin")
SCENES = {
    "conversations": Scene("azure-conv", 36.0, 5.0, ("ours", "lmetric", "least-requests", "random")),
    "tenants": Scene("b2b-saas", 3.2, 40.0, ("ours", "lmetric", "cache-aware")),
    "too-many-tenants": Scene("b2b-saas", 6.0, 40.0, OF_ALL_KINDS),
    "long-chats": Scene("mooncake-conversation", 1.75, 55.0, ("ours", "lmetric", "predicted-latency")),
    "agents": Scene("code-gen", 1.5, 60.0, ("ours", "lmetric", "llm-d-default")),
    "bursts": Scene("azure-code", 25.0, 6.0, ("ours", "least-load", "modeldock")),
    "all-lengths": Scene("production-shaped", 58.0, 3.0, ("ours", "power-of-two", "llm-d-predicted-streaming")),
    "unequal": Scene("azure-conv", 22.0, 7.0, ("ours", "lmetric"), pool="h100+a100x3"),
}

Found = dict[str, Row]


@lru_cache(maxsize=len(SCENES))
def run(name: str) -> Found:
    scene = SCENES[name]
    specs = [
        RunSpec(scene.workload, scene.pool, policy, scene.rate_rps, scene.duration_s, seed)
        for seed in SEEDS
        for policy in (ORACLE, *scene.policies, WORST)
    ]
    return {row.policy: row for row in rows_of(run_spec(spec) for spec in specs)}


def fastest(pool: str) -> LabServer:
    return min(parse_pool(pool), key=lambda server: server.engine.hardware.prefill_token_us)


def allowance(row: Row) -> float:
    """What the oracle may keep less, on average, without saying anything: `ALLOWED_ERRORS` standard errors of the mean
    difference, by its spread over so few seeds."""
    return ALLOWED_ERRORS * (row.spreads["regret_attainment"] or 0.0) / sqrt(len(row.results))


def test_all_workloads_and_policies_are_there() -> None:
    assert {scene.workload for scene in SCENES.values()} == set(WORKLOADS)
    assert {name for scene in SCENES.values() for name in scene.policies} == {*POLICIES} - {WORST}
    assert all("ours" in scene.policies for scene in SCENES.values())


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_no_server_alone_could_do_it_all(scene: Scene) -> None:
    alone_rps = knee_rps(WORKLOADS[scene.workload], [fastest(scene.pool)])
    assert scene.rate_rps > 1.2 * alone_rps


@pytest.mark.parametrize("scene", SCENES)
def test_nobody_keeps_more_targets_than_the_oracle(scene: str) -> None:
    for row in run(scene).values():
        assert row.figures["regret_attainment"] >= -allowance(row), row.policy
        assert all(result.plugin_failures == {} for result in row.results)


@pytest.mark.parametrize("scene", SCENES)
def test_always_busiest_is_last(scene: str) -> None:
    found = dict(run(scene))
    worst = found.pop(WORST).figures
    for row in found.values():
        assert row.figures["attainment"] > worst["attainment"] + 0.05, row.policy
        assert row.figures["imbalance"] < worst["imbalance"]
        for figure in ("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "e2e_mean_ms"):
            assert row.figures[figure] < worst[figure], (row.policy, figure)


def test_where_more_comes_than_can_be_kept_the_oracle_keeps_far_more_than_anybody() -> None:
    found = dict(run("too-many-tenants"))
    best = found.pop(ORACLE).figures["attainment"]
    for row in found.values():
        assert row.figures["regret_attainment"] > allowance(row), row.policy  # by more than chance
        assert best > 1.1 * row.figures["attainment"], row.policy
        if row.policy != "ours":  # who gives somebody up, too
            assert best > 1.5 * row.figures["attainment"], row.policy


def test_who_looks_at_load_beats_chance() -> None:
    found = run("conversations")
    aware, blind = found["lmetric"].figures, found["random"].figures
    assert aware["attainment"] > blind["attainment"]
    assert aware["ttft_mean_ms"] < blind["ttft_mean_ms"]
    assert aware["ttft_p99_ms"] < blind["ttft_p99_ms"]


def test_who_looks_at_caches_has_more_hits_and_sooner_first_tokens() -> None:
    found = run("too-many-tenants")
    aware, blind = found["cache-aware"].figures, found["round-robin"].figures
    assert aware["hit_ratio"] > 1.8 * blind["hit_ratio"]
    assert aware["ttft_mean_ms"] < 0.85 * blind["ttft_mean_ms"]
    assert aware["attainment"] > blind["attainment"]
