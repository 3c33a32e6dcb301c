"""What `headroom` keeps while something is wrong."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from epp.lab.comparison import Row, rows_of
from epp.lab.experiment import Experiment
from epp.lab.fault_spec import parse_faults
from epp.lab.faults import SCENES, Scene, faults_table, largest_share, recovery_s, spec_in
from epp.lab.policies.catalogue import POLICIES
from epp.lab.pools import parse_pool
from epp.lab.result import Result
from epp.lab.runs import run_spec
from epp.lab.shares import fair_share, share_cells
from epp.lab.spec import RunSpec
from epp.lab.workloads.catalogue import WORKLOADS
from epp.lab.workloads.workload import Clients, Targets, schedule
from epp.lab.world import run
from epp.lab.yardsticks import between, share

SPEC = RunSpec("azure-conv", "h100x3", "ours", rate_rps=24.0, duration_s=20.0)
BY_NAME = {scene.name: scene for scene in SCENES}


def test_headroom_recovers_from_a_server_that_dies() -> None:
    scene = BY_NAME["dies"]
    calm, result = run_spec(SPEC), run_spec(spec_in(scene, SPEC))
    recovered_s = recovery_s(result, calm)
    assert result.figures["failed"]
    assert recovered_s is not None
    assert recovered_s < 10.0
    found = [(BY_NAME["nothing"], rows_of([calm])), (scene, rows_of([result]))]
    title, table, shares = faults_table(found, markdown=True).split("\n\n")
    assert "20 s; targets: TTFT 200 ms, TPOT 25 ms; faults begin at 8 s and last 4 s" in title
    head, _, _, line = (text.split(" | ") for text in table.splitlines())
    cells = dict(zip(head, line, strict=True))
    assert cells["recovered after s"] == f"{recovered_s:.1f}"
    assert cells["p99"] == f"{result.figures['ttft_p99_ms']:.0f}"
    assert cells["failed"] == f"{result.figures['failed']:.0f}"
    (line,) = shares.splitlines()[2:]
    assert line.startswith("| dies | ours | h100-0 | 33% | ")


@pytest.mark.parametrize(
    ("kept", "recovered_s"),
    [
        ([0.9] * 40, 0.0),
        ([0.9] * 13 + [0.0] * 3 + [0.9] * 24, 0.0),  # what breaks off came before the fault
        ([0.9] * 16 + [0.0] * 4 + [0.9] * 20, 2.0),
        ([0.9] * 18 + [0.1] * 4 + [0.9] * 18, 3.0),  # it fell later
        ([0.9] * 16 + [0.2] * 24, None),
        ([0.9] * 30 + [0.2] * 10, 0.0),  # long after the fault
    ],
    ids=["never", "before", "at once", "later", "to the end", "something else"],
)
def test_recovery_is_read_off_the_time_line(kept: list[float], recovered_s: float | None) -> None:
    calm = run_spec(replace(SPEC, duration_s=1.0))
    calm, faulty = (
        replace(
            calm, spec=SPEC, timeline=[{"at_s": i / 2, "attainment": a, "requests": 12.0} for i, a in enumerate(line)]
        )
        for line in ([0.9] * 40, kept)
    )
    assert recovery_s(faulty, calm) == recovered_s


def row_with(fault: str, name: str, befallen: list[int], pool: str = "h100x3") -> Row:
    """40 parts of half a second, with ten requests each."""
    spec = replace(SPEC, pool=pool, faults=(fault,))
    timeline = [{"at_s": i / 2, "attainment": 1.0, "requests": 10.0} for i in range(40)]
    result = Result(spec, Targets(200.0, 25.0), 60.0, {}, {}, {}, timeline, {name: befallen}, {})
    return Row(spec.workload, pool, 0.6, "ours", (result,), {}, {})


def test_the_share_of_a_recovered_and_of_a_new_server_is_told_over_time() -> None:
    recovered = row_with("kill@8s+4s", "h100-0", [9] * 10 + [3] * 6 + [0] * 8 + [1, 2, 3, 3] + [4] * 12)
    joined = row_with("add@8s", "added", [0] * 16 + [1, 2, 3, 3] + [4] * 20)
    assert share_cells({"nothing": [], "dies": [recovered], "joins": [joined]}) == (
        [
            *("share of a server", "policy", "server", "fair", "before", "meanwhile"),
            *("0-0.5 s", "0.5-1 s", "1-2 s", "2-4 s", "4-8 s"),
        ],
        [
            ["dies", "ours", "h100-0", "33%", "30%", "0%", "10%", "20%", "30%", "40%", "40%"],
            ["joins", "ours", "added", "25%", "–", "–", "10%", "20%", "30%", "40%", "40%"],
        ],
    )
    assert share_cells({"nothing": []}) is None


def test_a_run_notes_what_the_befallen_server_was_given_in_each_part() -> None:
    result = run_spec(spec_in(BY_NAME["joins"], replace(SPEC, duration_s=4.0)))
    assert list(result.befallen) == ["added"]
    given = result.befallen["added"]
    assert len(given) == len(result.timeline)
    assert sum(given[:16]) == 0 < sum(given)
    assert all(mine <= (part["requests"] or 0.0) for mine, part in zip(given, result.timeline, strict=True))


def test_a_fair_share_of_unequal_servers_is_by_what_each_can_do() -> None:
    h100, a100 = (
        fair_share(replace(SPEC, pool=pool, faults=("kill@8s",)), f"{pool[:4]}-0")
        for pool in ("h100+a100", "a100+h100")
    )
    assert h100 is not None
    assert h100 > 0.6
    assert h100 + (a100 or 0.0) == pytest.approx(1.0)


def shares_of_ours(server: str, fault: str, spans: Sequence[tuple[float, float]]) -> list[float]:
    """Of the requests that came within each span, in seconds, those that this server got."""
    servers, policy, workload = parse_pool("h100x3"), POLICIES["ours"], WORKLOADS["azure-conv"]
    requests = schedule(workload, Clients(workload.targets), 24.0, seed=1, duration_s=max(to_s for _, to_s in spans))
    served = run(Experiment(policy.config_text, servers, requests, changes=parse_faults([fault], servers))).served
    return [share(between(served, *span), server) or 0.0 for span in spans]


def test_a_server_that_joins_is_tried_first_and_has_its_fourth_soon() -> None:
    before, tried, later = shares_of_ours("added", "add@5s", [(0.0, 5.0), (5.0, 9.0), (15.0, 25.0)])
    assert before == 0.0 < tried < 0.15 < later < 0.4, (before, tried, later)


def test_a_server_that_fails_gets_next_to_nothing_and_has_its_third_again_soon() -> None:
    before, failing, later = shares_of_ours("h100-0", "fail@5s+5s", [(0.0, 5.0), (5.0, 10.0), (22.0, 30.0)])
    assert failing < 0.1 < 0.2 < min(before, later)


def test_a_server_that_died_has_its_third_again_at_once() -> None:
    before, dead, back = shares_of_ours("h100-0", "kill@5s+7s", [(0.0, 5.0), (5.0, 12.0), (12.0, 16.0)])
    assert dead < 0.05 < 0.2 < min(before, back), (before, dead, back)


def test_what_a_scene_does_not_change_is_as_the_run_has_it() -> None:
    seldom = replace(SPEC, metrics_interval_ms=(2e3, 2e3))
    assert spec_in(BY_NAME["nothing"], seldom) == seldom
    assert spec_in(BY_NAME["metrics never"], seldom) == replace(SPEC, metrics_interval_ms=None)


@pytest.mark.parametrize("duration_s", [1e-9, 1e-4, 20.0, 100.0 / 3.0, 3000 * 3600.0, 1e12])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_faults_of_runs_of_any_length_are_read(scene: Scene, duration_s: float) -> None:
    changes = parse_faults(spec_in(scene, replace(SPEC, duration_s=duration_s)).faults, parse_pool(SPEC.pool))
    assert len(changes) == (0 if not scene.fault else 1 if scene.name == "joins" else 2)
    if changes:
        assert changes[0].at_s == pytest.approx(0.4 * duration_s, rel=1e-6, abs=1e-9)
        assert changes[-1].at_s - changes[0].at_s in (0.0, pytest.approx(0.2 * duration_s, rel=1e-6, abs=1e-9))


def test_metrics_are_read_as_often_as_the_scene_s_name_says() -> None:
    stale = {name: spec_in(BY_NAME[name], SPEC).metrics_interval_ms for name in BY_NAME if name.startswith("metrics")}
    assert stale == {
        "metrics every 50 ms": (50.0, 50.0),
        "metrics every 500 ms": (500.0, 500.0),
        "metrics every 5 s": (5e3, 5e3),
        "metrics never": None,
    }


@pytest.mark.parametrize("name", ["metrics every 5 s", "metrics never"])
def test_stale_metrics_do_not_send_everything_to_one_server(name: str) -> None:
    result = run_spec(spec_in(BY_NAME[name], SPEC))
    assert largest_share(result) < 0.5
    assert (result.figures["attainment"] or 0.0) > 0.95
