"""From a run's spec to its result: names become policies, workloads and pools."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from epp.config.errors import ConfigError
from epp.lab import oracle
from epp.lab.experiment import Experiment, LabRequest, ServicesOf, only_what_a_picker_has
from epp.lab.fault_spec import parse_faults, require_within
from epp.lab.knee import knee_rps, why_none
from epp.lab.policies.catalogue import POLICIES
from epp.lab.policies.policy import Policy
from epp.lab.pools import parse_pool
from epp.lab.race import fewest_lost
from epp.lab.result import Result, measured_of, result_of
from epp.lab.spec import RunSpec
from epp.lab.workloads.catalogue import HELD_OUT, WORKLOADS, by_name
from epp.lab.workloads.traces import SUFFIXES, read_trace, suffix_of
from epp.lab.workloads.workload import Clients, Targets, Workload, schedule
from epp.lab.world import run
from epp.lab.yardsticks import lost
from epp.problem import Problem

MOST_REQUESTS = 5_000_000
"""Of a run: all are held in memory, before and after, at about a kilobyte each."""


CONFIG_SUFFIXES = (".yaml", ".yml", ".json")


class NothingToMeasure(Problem):
    """No request arrives, or none after the first part of the run, which is not measured."""


def policy_of(name: str) -> Policy:
    """A policy by its name, or the configuration in a file. Raises `Problem`."""
    if name == oracle.NAME:
        return oracle.policy_of()
    if (policy := POLICIES.get(name)) is not None:
        return policy
    path = Path(name)
    if path.suffix not in CONFIG_SUFFIXES:
        raise Problem(f"no policy is called {name!r}; there are {', '.join((*POLICIES, oracle.NAME))}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Problem(f"{path}: no configuration: {error}") from error
    return Policy(path.stem, f"the configuration in {path}", text, knows_hardware=None)


def workload_of(name: str) -> Workload:
    """A workload by its name, or the trace in a file. Raises `Problem`."""
    if (workload := by_name(name)) is not None:
        return workload
    path = Path(name)
    if suffix_of(path) not in SUFFIXES:
        known = ", ".join((*WORKLOADS, *HELD_OUT))
        raise Problem(f"no workload is called {name!r}; there are {known}, and traces by path: {', '.join(SUFFIXES)}")
    return _trace(path)


@lru_cache(maxsize=4)
def _trace(path: Path) -> Workload:
    return read_trace(path)


def knee_of(workload: str, pool: str) -> float:
    """See `epp.lab.knee`. Raises `Problem`."""
    servers = parse_pool(pool)
    knee = knee_rps(workload_of(workload), servers)
    if knee <= 0.0:
        raise Problem(f"{workload}: no knee on {pool}: {why_none(workload_of(workload), servers)}")
    return knee


def run_spec(spec: RunSpec, knee: float | None = None) -> Result:
    """Run it; the oracle, by that of its rules which keeps most targets. `knee` is noted. Raises `Problem`."""
    targets = spec.targets or workload_of(spec.workload).targets
    try:
        if spec.policy == oracle.NAME:
            labs = fewest_lost(
                [_experiment(spec, targets, oracle.policy_of(rule), oracle.with_foresight) for rule in oracle.Rule],
                lambda served: lost(measured_of(spec, served), *targets),
                spec.duration_s,
            )
        else:
            labs = [run(_experiment(spec, targets, policy_of(spec.policy), only_what_a_picker_has))]
    except ConfigError as error:
        raise Problem(str(error)) from error  # which processes can hand over
    results = [result_of(spec, targets, knee, lab) for lab in labs]
    result = max(results, key=lambda r: (r.figures["attainment"] or 0.0, -(r.figures["ttft_mean_ms"] or 0.0)))
    if not result.figures["requests"]:
        measured_from_s = spec.warmup_ratio * spec.duration_s
        raise NothingToMeasure(
            f"{spec.workload}: nothing to measure arrives from {measured_from_s:g} s to {spec.duration_s:g} s"
        )
    return result


def _experiment(spec: RunSpec, targets: Targets, policy: Policy, services_of: ServicesOf) -> Experiment:
    workload = workload_of(spec.workload)
    servers = [
        replace(server, engine=replace(server.engine, noise_sigma=spec.noise_sigma)) for server in parse_pool(spec.pool)
    ]
    if spec.rate_rps * spec.duration_s > MOST_REQUESTS:
        raise Problem(
            f"{spec.workload}: {spec.rate_rps:g} rps for {spec.duration_s:g} s are more than {MOST_REQUESTS:,} "
            "requests; let the load (1.0 is all that the pool can do) or the rate be lower, or runs be shorter"
        )
    most = workload.most_requests
    if most is not None and most < round(spec.rate_rps * spec.duration_s):
        raise Problem(
            f"{spec.workload}: its {most:,} requests last {most / spec.rate_rps:.3g} s at {spec.rate_rps:.3g} rps; "
            f"leave --duration out, or say one that is shorter than {spec.duration_s:g} s"
        )
    require_within(spec.faults, spec.duration_s)
    clients = Clients(targets if spec.send_targets else None, spec.streaming_ratio)
    experiment = Experiment(
        config_text=policy.config_text,
        servers=servers,
        schedule=_schedule(spec.workload, clients, spec.rate_rps, spec.seed, spec.duration_s),
        changes=parse_faults(spec.faults, servers),
        seed=spec.seed,
        plugins=policy.plugins,
        services_of=services_of,
        quantiles=(spec.quantile,),
        metrics_interval_ms=spec.metrics_interval_ms,
        config_name=spec.policy,
    )
    if not experiment.schedule:
        raise NothingToMeasure(
            f"{spec.workload}: nothing arrives within {spec.duration_s:g} s at {spec.rate_rps:g} rps"
        )
    return experiment


@lru_cache(maxsize=1)
def _schedule(workload: str, clients: Clients, rate_rps: float, seed: int, duration_s: float) -> Sequence[LabRequest]:
    """The last one is kept: other policies run it next."""
    return schedule(workload_of(workload), clients, rate_rps, seed, duration_s=duration_s)
