"""What physics dictates, in short runs: who must win, and who must lose."""

from functools import lru_cache
from typing import NamedTuple

import pytest

from epp.lab.comparison import Row, rows_of
from epp.lab.oracle import NAME as ORACLE
from epp.lab.policies.catalogue import WORST
from epp.lab.runs import run_spec
from epp.lab.spec import RunSpec
from epp.lab.workloads.catalogue import WORKLOADS

POOL = "h100x3"
SEEDS = (1, 2)
TOLERANCE = 0.01  # of all requests: the oracle is greedy, and steps are noisy


class Scene(NamedTuple):
    """A workload, at a rate near what the pool can do or beyond, and who is tried on it besides oracle and worst."""

    workload: str
    rate_rps: float
    duration_s: float
    policies: tuple[str, ...]
    pool: str = POOL
    seeds: tuple[int, ...] = SEEDS


SCENES = {
    "conversations": Scene("azure-conv", 41.3, 6.0, ("ours", "lmetric", "least-requests", "random")),
    "tenants": Scene("b2b-saas", 4.2, 60.0, ("ours", "lmetric", "cache-aware", "round-robin")),
    "too-many-tenants": Scene("b2b-saas", 6.0, 45.0, ("lmetric", "cache-aware")),
    "long-chats": Scene("mooncake-conversation", 3.5, 40.0, ("ours", "lmetric", "cache-aware")),
    "agents": Scene("code-gen", 1.5, 60.0, ("ours", "lmetric", "cache-aware")),
    "bursts": Scene("azure-code", 45.0, 5.0, ("ours", "least-load", "modeldock"), seeds=(1,)),
    "all-lengths": Scene("production-shaped", 80.0, 4.0, ("ours", "sticky", "power-of-two"), seeds=(1,)),
    "mixed": Scene("azure-conv", 26.0, 8.0, ("ours", "llm-d-default", "predicted-latency"), "h100+a100", seeds=(1,)),
}
RUNS = [(name, seed) for name, scene in SCENES.items() for seed in scene.seeds]

Found = dict[str, Row]


@lru_cache(maxsize=len(RUNS))
def run(name: str, seed: int) -> Found:
    scene = SCENES[name]
    specs = [
        RunSpec(scene.workload, scene.pool, policy, scene.rate_rps, scene.duration_s, seed)
        for policy in (ORACLE, *scene.policies, WORST)
    ]
    return {row.policy: row for row in rows_of(run_spec(spec) for spec in specs)}


def test_all_workloads_are_there() -> None:
    assert {scene.workload for scene in SCENES.values()} == set(WORKLOADS)


@pytest.mark.parametrize(("scene", "seed"), RUNS)
def test_nobody_keeps_more_targets_than_the_oracle_and_the_busiest_fewest(scene: str, seed: int) -> None:
    found = dict(run(scene, seed))
    best = found[ORACLE].figures["attainment"]
    assert all(row.figures["attainment"] <= best + TOLERANCE for row in found.values())
    assert all(row.figures["regret_attainment"] >= -TOLERANCE for row in found.values())
    worst = found.pop(WORST).figures
    for row in found.values():
        assert row.figures["attainment"] > worst["attainment"]
        assert row.figures["imbalance"] < worst["imbalance"]
        for figure in ("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "e2e_mean_ms"):
            assert row.figures[figure] < worst[figure]
    assert all(result.plugin_failures == {} for row in found.values() for result in row.results)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_more_comes_than_can_be_kept_the_oracle_keeps_far_more_than_anybody(seed: int) -> None:
    found = run("too-many-tenants", seed)
    others = [row.figures["attainment"] for name, row in found.items() if name != ORACLE]
    assert found[ORACLE].figures["attainment"] > 1.5 * max(others)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_looks_at_load_beats_chance(seed: int) -> None:
    found = run("conversations", seed)
    aware, blind = found["lmetric"].figures, found["random"].figures
    assert aware["attainment"] > blind["attainment"]
    assert aware["ttft_mean_ms"] < blind["ttft_mean_ms"]
    assert aware["ttft_p99_ms"] < blind["ttft_p99_ms"]


@pytest.mark.parametrize("seed", SEEDS)
def test_who_looks_at_caches_beats_round_robin_where_nothing_else_helps(seed: int) -> None:
    found = run("tenants", seed)
    aware, blind = found["cache-aware"].figures, found["round-robin"].figures
    assert aware["hit_ratio"] > 1.8 * blind["hit_ratio"]
    assert aware["ttft_mean_ms"] < 0.85 * blind["ttft_mean_ms"]
    assert aware["attainment"] > blind["attainment"]
