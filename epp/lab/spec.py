"""What a run is asked to be: plain values, so that it can be written down, sent to another process and repeated."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from epp.lab.experiment import Change, Dies, Fails, Joins, LabServer, Leaves, Recovers, Restarts, Slows
from epp.lab.workloads.workload import Targets
from epp.problem import Problem
from epp.sim.timing import STEP_NOISE_SIGMA
from epp.units import parse_duration_s

DEFAULT_METRICS_INTERVAL_MS = (50.0, 100.0)
_FAULT = re.compile(r"(kill|restart|fail|add|slow([0-9.]+)x)@([^+]+)(?:\+(.+))?")
_OUTAGE_S = 15.0
_LEAST_METRICS_INTERVAL_MS = 1.0  # a step of an engine takes several; a run would do nothing else
_MOST_TIMES = 1_000.0  # slower: a run ends with its last request, which would take hours


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: same spec, same result to the last digit.

    Attributes:
        workload: a name of `WORKLOADS` or `HELD_OUT`, or the path of a trace file.
        pool: as `epp.lab.pools.parse_pool` reads it.
        policy: a name of `POLICIES`, `oracle`, or the path of an EndpointPickerConfig.
        rate_rps: mean arrival rate.
        duration_s: requests arrive for so long; the run goes on until the last has ended.
        warmup_ratio: of the duration, at its beginning: not measured. The predictor learns, caches fill.
        targets: `None`: requests carry none, and those of the workload are measured against.
        metrics_interval_ms: bounds of how often a metrics page is read; `None`: never.
        faults: as `parse_fault` reads them.
        quantile: of the predictor's bounds whose coverage is measured.
        noise_sigma: of the lognormal factor on the duration of each step of an engine; 0: none.
    """

    workload: str
    pool: str
    policy: str
    rate_rps: float
    duration_s: float
    seed: int = 1
    warmup_ratio: float = 0.25
    targets: Targets | None = None
    send_targets: bool = True
    streaming_ratio: float = 1.0
    metrics_interval_ms: tuple[float, float] | None = DEFAULT_METRICS_INTERVAL_MS
    faults: tuple[str, ...] = ()
    quantile: float = 0.9
    noise_sigma: float = STEP_NOISE_SIGMA


def parse_fault(text: str, servers: Sequence[LabServer]) -> tuple[Change, ...]:
    """The changes that a fault stands for. It befalls the first server of the pool. Raises `Problem`.

    * `kill@20s+15s`: it dies after 20 s, and 15 s later is back with an empty cache;
    * `restart@20s+15s`: it is taken out of the pool, and 15 s later is back with an empty cache;
    * `slow2x@20s+15s`: it takes twice as long; without `+…` to the end;
    * `fail@20s+15s`: it answers 500 after 2 ms;
    * `add@20s`: another server like it joins.
    """
    found = _FAULT.fullmatch(text.strip())
    if found is None:
        raise Problem(
            f"fault {text!r} is none of kill@T, restart@T, slow2x@T, fail@T, add@T; write for example kill@20s+15s"
        )
    kind, factor, at, lasting = found.groups()
    try:
        at_s = parse_duration_s(at)
        lasts_s = _OUTAGE_S if lasting is None else parse_duration_s(lasting)
    except ValueError as error:
        raise Problem(f"fault {text!r}: a time {error}") from None
    if min(at_s, lasts_s) < 0:
        raise Problem(f"fault {text!r}: a time is below 0")
    if kind == "add" and lasting is not None:
        raise Problem(f"fault {text!r}: a server that joins stays; write add@{at}")
    times = _times(factor) if factor else 1.0
    if not 0.0 < times <= _MOST_TIMES:
        raise Problem(f"fault {text!r}: {factor!r} is not a number above 0, to {_MOST_TIMES:,.0f}; write slow2x@20s")
    name = servers[0].name
    until_s = at_s + lasts_s
    if kind == "kill":
        return Dies(at_s, name), Restarts(until_s, name)
    if kind == "restart":
        return Leaves(at_s, name), Restarts(until_s, name)
    if kind == "fail":
        return Fails(at_s, name), Recovers(until_s, name)
    if kind == "add":
        return (Joins(at_s, LabServer("added", servers[0].engine)),)
    slows = Slows(at_s, name, times)
    return (slows,) if lasting is None else (slows, Slows(until_s, name, 1.0))


def servers_befallen(faults: Sequence[str], servers: Sequence[LabServer]) -> list[str]:
    """The names of the servers that these befall, or that join by them."""
    changes = [change for fault in faults for change in parse_fault(fault, servers)]
    return list(dict.fromkeys(c.server.name if isinstance(c, Joins) else c.server for c in changes))


def _times(text: str) -> float:
    """0 for what is no number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def parse_metrics_interval(text: str) -> tuple[float, float] | None:
    """`never`, or a duration such as 500ms. Raises ValueError."""
    if text == "never":
        return None
    interval_ms = parse_duration_s(text) * 1e3
    if interval_ms < _LEAST_METRICS_INTERVAL_MS:
        raise ValueError(f"must be {_LEAST_METRICS_INTERVAL_MS:g}ms or more, or never")
    return interval_ms, interval_ms
