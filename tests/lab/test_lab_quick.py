"""What physics dictates, in short runs: who must win, and who must lose."""

import pytest

from epp.lab.comparison import Row, rows_of
from epp.lab.oracle import NAME as ORACLE
from epp.lab.policies.catalogue import WORST
from epp.lab.runs import knee_of, run_spec
from epp.lab.spec import RunSpec

POOL = "h100x3"
LOAD = 0.8
SEED = 2


def rows(workload: str, duration_s: float, policies: tuple[str, ...]) -> dict[str, Row]:
    knee = knee_of(workload, POOL)
    specs = [RunSpec(workload, POOL, policy, LOAD * knee, duration_s, SEED) for policy in policies]
    return {row.policy: row for row in rows_of(run_spec(spec, knee) for spec in specs)}


@pytest.fixture(scope="module")
def conversations() -> dict[str, Row]:
    return rows("azure-conv", 12.0, (ORACLE, "lmetric", "least-requests", "random", WORST))


@pytest.fixture(scope="module")
def tenants() -> dict[str, Row]:
    return rows("b2b-saas", 60.0, (ORACLE, "cache-aware", "round-robin", WORST))


@pytest.mark.parametrize("workload", ["conversations", "tenants"])
def test_nobody_keeps_more_targets_than_the_oracle(workload: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(workload)
    best = found[ORACLE].figures["attainment"]
    assert all(row.figures["attainment"] <= best + 0.005 for row in found.values())
    assert all(row.figures["regret_attainment"] >= -0.005 for row in found.values())


@pytest.mark.parametrize("workload", ["conversations", "tenants"])
def test_every_measure_ranks_the_busiest_last(workload: str, request: pytest.FixtureRequest) -> None:
    found = dict(request.getfixturevalue(workload))
    worst = found.pop(WORST).figures
    for row in found.values():
        assert row.figures["attainment"] > worst["attainment"]
        assert row.figures["imbalance"] < worst["imbalance"]
        for figure in ("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "e2e_mean_ms"):
            assert row.figures[figure] < worst[figure]


def test_who_looks_at_load_beats_chance(conversations: dict[str, Row]) -> None:
    aware, blind = conversations["least-requests"].figures, conversations["random"].figures
    assert aware["attainment"] > blind["attainment"]
    assert aware["ttft_mean_ms"] < blind["ttft_mean_ms"]
    assert aware["ttft_p99_ms"] < blind["ttft_p99_ms"]


def test_who_looks_at_caches_beats_round_robin_where_nothing_else_helps(tenants: dict[str, Row]) -> None:
    aware, blind = tenants["cache-aware"].figures, tenants["round-robin"].figures
    assert aware["hit_ratio"] > 1.8 * blind["hit_ratio"]
    assert aware["ttft_mean_ms"] < 0.85 * blind["ttft_mean_ms"]
    assert aware["attainment"] > blind["attainment"]


@pytest.mark.parametrize("workload", ["conversations", "tenants"])
def test_no_plugin_raises(workload: str, request: pytest.FixtureRequest) -> None:
    for row in request.getfixturevalue(workload).values():
        assert all(result.plugin_failures == {} for result in row.results)
