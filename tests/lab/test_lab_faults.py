"""What `headroom` keeps while something is wrong."""

from dataclasses import replace

import pytest

from epp.lab.comparison import rows_of
from epp.lab.faults import SCENES, faults_table, largest_share, recovery_s, spec_in
from epp.lab.runs import run_spec
from epp.lab.spec import RunSpec

SPEC = RunSpec("azure-conv", "h100x3", "ours", rate_rps=24.0, duration_s=20.0)
BY_NAME = {scene.name: scene for scene in SCENES}


def test_headroom_recovers_from_a_server_that_dies() -> None:
    scene = BY_NAME["dies"]
    result = run_spec(spec_in(scene, SPEC))
    recovered_s = recovery_s(result)
    assert result.figures["failed"]
    assert recovered_s is not None
    assert recovered_s < 10.0
    assert "dies" in faults_table([(scene, rows_of([result]))], markdown=True)


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
