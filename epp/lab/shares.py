"""What share of the requests a new or a recovered server gets, over time, and what would be fair.

Fair is what each can do: among equal servers equal parts, among unequal ones parts as their knees, each alone.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from epp.lab.comparison import Row
from epp.lab.experiment import Joins, LabServer
from epp.lab.fault_spec import parse_faults
from epp.lab.knee import knee_rps
from epp.lab.pools import parse_pool
from epp.lab.result import TIMELINE_PARTS, Result
from epp.lab.runs import workload_of
from epp.lab.spec import RunSpec
from epp.lab.text_report import Cells, share_format, shown
from epp.lab.yardsticks import mean_of_known
from epp.sim.config import EngineConfig

_WINDOWS = ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16))
"""Parts of the time line, counted from when the server is there again."""


def share_cells(rows_by_scene: Mapping[str, Sequence[Row]]) -> Cells | None:
    """A line for each scene and policy. All runs are as long, and have a fault each or none. `None`: none has any."""
    body, part_s = [], 0.0
    for scene, rows in rows_by_scene.items():
        for row in rows:
            part_s = row.results[0].spec.duration_s / TIMELINE_PARTS
            for name in row.results[0].befallen:
                over_time = [_shares(result, name) for result in row.results]
                means = [mean_of_known(values) for values in zip(*over_time, strict=True)]
                fair = fair_share(row.results[0].spec, name)
                how = share_format(len(row.shares))
                body.append([scene, row.policy, name, *(shown(value, how) for value in (fair, *means))])
    if not body:
        return None
    after = [f"{low * part_s:.3g}-{high * part_s:.3g} s" for low, high in _WINDOWS]
    return ["share of a server", "policy", "server", "fair", "before", "meanwhile", *after], body


def _shares(result: Result, name: str) -> list[float | None]:
    """Before the fault, while it lasts, and in each of the windows after it."""
    spec = result.spec
    changes = parse_faults(spec.faults, parse_pool(spec.pool))
    part_s = spec.duration_s / TIMELINE_PARTS
    begins, back = (round(of(change.at_s for change in changes) / part_s) for of in (min, max))
    measured_from = round(spec.warmup_ratio * TIMELINE_PARTS)
    spans = [(measured_from, begins), (begins, back), *((back + low, back + high) for low, high in _WINDOWS)]
    found = [_share(result, name, *span) for span in spans]
    return [None, None, *found[2:]] if any(isinstance(change, Joins) for change in changes) else found


def _share(result: Result, name: str, low: int, high: int) -> float | None:
    requests = sum(part["requests"] or 0.0 for part in result.timeline[low:high])
    return sum(result.befallen[name][low:high]) / requests if requests else None


def fair_share(spec: RunSpec, name: str) -> float | None:
    """Of this server, when all are there. `None`: the workload is too short for a knee."""
    servers = {server.name: server for server in parse_pool(spec.pool)}
    for change in parse_faults(spec.faults, tuple(servers.values())):
        if isinstance(change, Joins):
            servers[change.server.name] = change.server
    engines = {server.engine for server in servers.values()}
    speeds = {engine: 1.0 if len(engines) == 1 else _alone_rps(spec.workload, engine) for engine in engines}
    if not all(speeds.values()):
        return None
    return speeds[servers[name].engine] / sum(speeds[server.engine] for server in servers.values())


@lru_cache(maxsize=16)
def _alone_rps(workload: str, engine: EngineConfig) -> float:
    return knee_rps(workload_of(workload), (LabServer("alone", engine),))
