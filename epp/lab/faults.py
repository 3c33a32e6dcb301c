"""Policies while something is wrong: a server dies, slows, restarts or joins, or metrics pages are read too seldom.

Each scene is a run of the same schedule. A fault comes at two fifths of it, and what does not last to the end lasts a
fifth. Recovery is read off the time line, beside that of the run with nothing wrong: not off what was before the fault,
for what breaks off by it came before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from epp.lab.comparison import Row, rows_of
from epp.lab.fault_spec import time_text
from epp.lab.parallel import ProgressBar, map_in_order
from epp.lab.result import Result
from epp.lab.runs import run_spec
from epp.lab.shares import share_cells
from epp.lab.spec import RunSpec
from epp.lab.text_report import grid, share_format, shown, title

FAULT_AT_RATIO, FAULT_LASTS_RATIO = 0.4, 0.2
_BACK_RATIO = 0.05  # so much below what it is with nothing wrong counts as recovered
_WINDOW_PARTS = 3  # of the time line, taken together
_FIGURES = (
    ("attainment", ".1%"),
    ("ttft_p50_ms", ".0f"),
    ("ttft_p99_ms", ".0f"),
    ("tpot_p99_ms", ".1f"),
    ("failed", ".0f"),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """
    Attributes:
        fault: as `epp.lab.fault_spec` reads it, with `{at}` and `{lasts}` for its times; empty: none.
        changes: what else of the run is different.
    """

    name: str
    fault: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


SCENES = (
    Scene("nothing"),
    Scene("dies", "kill@{at}+{lasts}"),
    Scene("slows 2x", "slow2x@{at}+{lasts}"),
    Scene("restarts empty", "restart@{at}+{lasts}"),
    Scene("joins", "add@{at}"),
    Scene("metrics every 50 ms", changes={"metrics_interval_ms": (50.0, 50.0)}),
    Scene("metrics every 500 ms", changes={"metrics_interval_ms": (500.0, 500.0)}),
    Scene("metrics every 5 s", changes={"metrics_interval_ms": (5e3, 5e3)}),
    Scene("metrics never", changes={"metrics_interval_ms": None}),
)


def spec_in(scene: Scene, spec: RunSpec) -> RunSpec:
    """That run in this scene."""
    at_s, lasts_s = FAULT_AT_RATIO * spec.duration_s, FAULT_LASTS_RATIO * spec.duration_s
    faults = (scene.fault.format(at=time_text(at_s), lasts=time_text(lasts_s)),) if scene.fault else ()
    return replace(spec, faults=faults, **scene.changes)


def run_scenes(specs: Sequence[RunSpec], jobs: int) -> list[tuple[Scene, list[Row]]]:
    """All of them in each scene. Raises `Problem`."""
    tasks = [spec_in(scene, spec) for scene in SCENES for spec in specs]
    with ProgressBar(len(tasks), "runs") as progress:
        results = map_in_order(run_spec, tasks, jobs, progress)
    return [(s, rows_of(results[i * len(specs) : (i + 1) * len(specs)])) for i, s in enumerate(SCENES)]


def recovery_s(result: Result, calm: Result) -> float | None:
    """From the fault until attainment is what it is at that time in the run with nothing wrong; 0 if it never was less
    while the fault lasted, `None` if it is to the end."""
    step_s = result.spec.duration_s / len(result.timeline)
    begins, ends = (
        round(ratio * len(result.timeline)) for ratio in (FAULT_AT_RATIO, FAULT_AT_RATIO + FAULT_LASTS_RATIO)
    )
    less = {
        part: kept < usual - _BACK_RATIO
        for part in range(begins, len(result.timeline) - _WINDOW_PARTS + 1)
        if (kept := _kept(result, part)) is not None and (usual := _kept(calm, part)) is not None
    }
    went = next((part for part in less if less[part] and part < ends), None)
    if went is None:
        return 0.0
    back = next((part for part in less if part > went and not less[part]), None)
    return None if back is None else (back - begins) * step_s


def _kept(result: Result, part: int) -> float | None:
    """Attainment over a window of the time line that begins with this part."""
    window = [p for p in result.timeline[part : part + _WINDOW_PARTS] if p["attainment"] is not None]
    requests = sum(p["requests"] or 0.0 for p in window)
    return sum((p["attainment"] or 0.0) * (p["requests"] or 0.0) for p in window) / requests if requests else None


def faults_table(found: Sequence[tuple[Scene, Sequence[Row]]], markdown: bool) -> str:
    """One row for each scene and policy. The first scene is that with nothing wrong. Then what share the server got
    that a fault befell."""
    head = [
        "scene",
        "policy",
        "attained",
        "recovered after s",
        "TTFT p50",
        "p99",
        "TPOT p99",
        "failed",
        "largest share",
    ]
    body = []
    calm = {row.policy: row.results for row in found[0][1]}
    for scene, rows in found:
        for row in rows:
            pairs = zip(row.results, calm[row.policy], strict=True) if scene.fault else ()
            times = [recovery_s(result, usual) for result, usual in pairs]
            known = [time_s for time_s in times if time_s is not None]
            back = "–" if not times else f"{fmean(known):.1f}" if len(known) == len(times) else "not in the run"
            share = fmean(largest_share(result) for result in row.results)
            cells = [shown(row.figures[figure], of) for figure, of in _FIGURES]
            how = share_format(len(row.shares))
            body.append([scene.name, row.policy, cells[0], back, *cells[1:], f"{share:{how}}"])
    shares = share_cells({scene.name: rows for scene, rows in found})
    calm_row = found[0][1][0]
    duration_s = calm_row.results[0].spec.duration_s
    when = f"faults begin at {FAULT_AT_RATIO * duration_s:.3g} s and last {FAULT_LASTS_RATIO * duration_s:.3g} s"
    tables = [
        f"{title(calm_row)}; {when}; times in ms",
        grid(head, body, markdown),
        *([] if shares is None else [grid(*shares, markdown)]),
    ]
    return "\n\n".join(tables)


def largest_share(result: Result) -> float:
    """Of the requests, at the server that had most."""
    return max(figures["share"] or 0.0 for figures in result.servers.values())
