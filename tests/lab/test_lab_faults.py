"""What `headroom` keeps while something is wrong."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from epp.lab.comparison import rows_of
from epp.lab.experiment import Experiment
from epp.lab.faults import SCENES, faults_table, largest_share, recovery_s, spec_in
from epp.lab.policies.catalogue import POLICIES
from epp.lab.pools import parse_pool
from epp.lab.runs import run_spec
from epp.lab.spec import RunSpec, parse_fault
from epp.lab.workloads.catalogue import WORKLOADS
from epp.lab.workloads.workload import Clients, schedule
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
    head, _, _, line = (text.split(" | ") for text in faults_table(found, markdown=True).splitlines())
    cells = dict(zip(head, line, strict=True))
    assert cells["recovered after s"] == f"{recovered_s:.1f}"
    assert cells["p99"] == f"{result.figures['ttft_p99_ms']:.0f}"
    assert cells["failed"] == f"{result.figures['failed']:.0f}"


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


def shares_of_ours(server: str, fault: str, spans: Sequence[tuple[float, float]]) -> list[float]:
    """Of the requests that came within each span, in seconds, those that this server got."""
    servers, policy, workload = parse_pool("h100x3"), POLICIES["ours"], WORKLOADS["azure-conv"]
    requests = schedule(workload, Clients(workload.targets), 24.0, seed=1, duration_s=max(to_s for _, to_s in spans))
    served = run(Experiment(policy.config_text, servers, requests, changes=parse_fault(fault, servers))).served
    return [share(between(served, *span), server) or 0.0 for span in spans]


def test_a_server_that_joins_is_tried_first_and_has_its_fourth_soon() -> None:
    before, tried, later = shares_of_ours("added", "add@5s", [(0.0, 5.0), (5.0, 9.0), (15.0, 25.0)])
    assert before == 0.0 < tried < 0.15 < later < 0.4, (before, tried, later)


def test_a_server_that_fails_gets_next_to_nothing_and_has_its_third_again_soon() -> None:
    before, failing, later = shares_of_ours("h100-0", "fail@5s+5s", [(0.0, 5.0), (5.0, 10.0), (22.0, 30.0)])
    assert failing < 0.1 < 0.2 < min(before, later)


def test_what_a_scene_does_not_change_is_as_the_run_has_it() -> None:
    seldom = replace(SPEC, metrics_interval_ms=(2e3, 2e3))
    assert spec_in(BY_NAME["nothing"], seldom) == seldom
    assert spec_in(BY_NAME["metrics never"], seldom) == replace(SPEC, metrics_interval_ms=None)


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
