"""How well latency is predicted, and what that does for routing: experiments in virtual time.

The real picker, pool and predictor against simulated 8B engines (see `epp.lab.world`), on conversation traffic with
three answers in ten that do not stream. All of it takes some five minutes of one core; the numbers do not depend on it.

    python -m benchmarks.prediction --json prediction.json
    python -m benchmarks.prediction --only accuracy --trace AzureLLMInferenceTrace_conv.csv
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from epp.lab.experiment import (
    Experiment,
    Fails,
    Joins,
    LabRequest,
    LabResult,
    LabServer,
    Recovers,
    Served,
    Slows,
    alike,
)
from epp.lab.workloads.single import Single
from epp.lab.workloads.traces import read_trace
from epp.lab.workloads.workload import Clients, Targets, schedule
from epp.lab.world import run
from epp.lab.yardsticks import actual_ms, attainment, between, coverage, mean, percentile, relative_errors, share
from epp.latency.types import Target
from epp.sim.config import EngineConfig
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG
from epp.sim.engine import Engine
from epp.sim.timing import HARDWARE
from epp.sim.types import SimRequest
from epp.sim.workload import Lengths

# The Azure conversation trace, fitted; clients set as a limit what they will get.
WORKLOAD = Single(
    "azure-conv",
    "",
    Targets(200.0, 25.0),
    300.0,
    Lengths(6.63, 0.985, 16_000),
    Lengths(5.02, 0.86, 1_500),
    1.09,
    tells_length=True,
)
STREAMING_RATIO = 0.7
SERVERS = 4
QUANTILES = (0.5, 0.9, 0.95)
DRAIN_S = 20.0  # at the end of a schedule load falls: not what is to be measured
TTFT_TARGET_MS, TPOT_TARGET_MS = 200.0, 25.0
# The same chain, deciding as it does before it has learned anything: by free cache, short queue and cached prefix.
COMPOSITE_CONFIG = PREDICTED_LATENCY_CONFIG.replace(
    "- type: predicted-latency-producer",
    "- type: predicted-latency-producer\n    parameters: {predictInProduce: false}",
)
Row = tuple[str, str]
Figures = dict[str, Any]


def knee_rps() -> float:
    """The highest rate, to 0.5 rps, at which one engine keeps up: the last third of 1,200 requests sees a mean TTFT
    below 0.5 s."""

    def keeps_up(rate_rps: float) -> bool:
        rng = random.Random(1)
        engine = Engine(EngineConfig(max_waiting=10_000), rng)
        arrived_s: list[float] = []
        ttft_s = [0.0] * 1200
        now_s = 0.0
        for number in range(len(ttft_s) + 1):
            now_s += rng.expovariate(rate_rps) if number < len(ttft_s) else 3600.0
            for event in engine.advance(now_s):
                if event.index == 0:
                    ttft_s[int(event.request_id)] = event.time_s - arrived_s[int(event.request_id)]
            if number < len(ttft_s):
                arrived_s.append(now_s)
                lengths = WORKLOAD.prompt.draw(rng), WORKLOAD.output.draw(rng)
                engine.submit(SimRequest(str(number), *lengths), now_s)
        return fmean(ttft_s[-len(ttft_s) // 3 :]) < 0.5

    low, high = 12.0, 28.0
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps_up(middle) else (low, middle)
    return low


class Bench:
    """The experiments. Each returns its figures, by which `rows` are made."""

    def __init__(self, knee: float, seed: int, trace: Path | None) -> None:
        self._knee_rps = knee
        self._seed = seed
        self._trace = trace

    def schedule(self, load: float, seconds: float, servers: int = SERVERS, seed: int = 0) -> tuple[LabRequest, ...]:
        """So many seconds at `load` of the knee of so many servers."""
        rate_rps = load * self._knee_rps * servers
        requests = round(rate_rps * seconds)
        workload = WORKLOAD if self._trace is None else read_trace(self._trace, requests)
        return schedule(workload, Clients(None, STREAMING_RATIO), rate_rps, self._seed + seed, requests=requests)

    def run(self, schedule: Sequence[LabRequest], config: str = PREDICTED_LATENCY_CONFIG, **how: Any) -> LabResult:
        return run(Experiment(config, **{"servers": alike(SERVERS), "seed": self._seed, **how}, schedule=schedule))

    def accuracy(self) -> Figures:
        """Five minutes at 0.8 of the knee, from the first published model on."""
        result = self.run(self.schedule(0.8, 300.0), quantiles=QUANTILES)
        start_s = result.published_s[0]
        served = between(result.served, start_s, result.served[-1].at_s - DRAIN_S)
        return {
            "from_s": start_s,
            "models": len(result.published_s),
            **{
                target.value: {
                    "samples": len(relative_errors(served, target)),
                    "mape": mean(relative_errors(served, target)),
                    "mape_before": mean(relative_errors(between(result.served, 0.0, start_s), target)),
                    "median": percentile(relative_errors(served, target), 0.5),
                    "coverage": {f"{q:g}": coverage(served, target, q) for q in QUANTILES},
                }
                for target in Target
            },
        }

    def first_500(self) -> Figures:
        """From the first request on, at 0.8 of the knee, three schedules: predictions against the composite."""
        figures: Figures = {}
        for seed in range(3):
            schedule = self.schedule(0.8, 500 / (0.8 * self._knee_rps * SERVERS), seed=seed)
            for name, config in (("predicted", PREDICTED_LATENCY_CONFIG), ("composite", COMPOSITE_CONFIG)):
                for figure, value in routing(self.run(schedule, config).served).items():
                    figures.setdefault(name, {}).setdefault(figure, []).append(value)
        return figures

    def slowed(self) -> Figures:
        """At 0.6 of the knee; after 60 s one of four servers takes twice as long."""
        change_s = 60.0
        result = self.run(self.schedule(0.6, 160.0), changes=[Slows(change_s, "sim-0", 2.0)])
        figures: Figures = {"share_before": share(between(result.served, 30.0, change_s), "sim-0")}
        figures["share_after"] = share(between(result.served, change_s + 30.0, change_s + 70.0), "sim-0")
        for target in (Target.TTFT, Target.TPOT):
            for whose in ("pool", "slowed"):
                mine = [s for s in result.served if whose == "pool" or s.server == "sim-0"]
                before = mean(relative_errors(between(mine, 30.0, change_s), target)) or 0.0
                after = [
                    mean(relative_errors(between(mine, change_s + at, change_s + at + 20.0), target)) or 0.0
                    for at in range(0, 80, 20)
                ]
                worse = [i for i, error in enumerate(after) if error > 1.5 * before]
                figures[f"{target.value}_{whose}"] = {
                    "before": before,
                    "after_each_20_s": after,
                    "back_within_s": 20 * (max(worse, default=-1) + 1),
                }
        return figures

    def joins(self) -> Figures:
        """At 0.8 of the knee of four servers; after 20 s a fifth joins."""
        result = self.run(self.schedule(0.8, 60.0), changes=[Joins(20.0, LabServer("new"))])
        shares = {f"{at}-{at + 5} s": share(between(result.served, 20.0 + at, 25.0 + at), "new") for at in (0, 5, 10)}
        new = [s for s in result.served if s.server == "new"]
        return {
            **shares,
            "20-40 s": share(between(result.served, 40.0, 60.0), "new"),
            "ttft_p99_of_its_first_100_ms": percentile(actual_ms(new[:100], Target.TTFT), 0.99),
        }

    def fails(self) -> Figures:
        """At 0.6 of the knee; from 20 to 40 s one server answers 500 after 2 ms."""
        changes = [Fails(20.0, "sim-0"), Recovers(40.0, "sim-0")]
        result = self.run(self.schedule(0.6, 90.0), changes=changes)
        failing = between(result.served, 20.0, 40.0)
        return {
            "share_before": share(between(result.served, 10.0, 20.0), "sim-0"),
            "share_while_failing": share(failing, "sim-0"),
            "errors": sum(s.status == 500 for s in result.served),
            "requests_while_failing": len(failing),
            "share_in_the_20_s_after": share(between(result.served, 40.0, 60.0), "sim-0"),
            "share_in_the_30_s_after_these": share(between(result.served, 60.0, 90.0), "sim-0"),
        }

    def mixed(self) -> Figures:
        """Two H100 and two A100 at a load of 2.4 H100."""
        a100 = EngineConfig(hardware=HARDWARE["8b-a100"])
        servers = (*alike(2), LabServer("old-0", a100), LabServer("old-1", a100))
        schedule = self.schedule(0.6, 90.0)
        figures: Figures = {}
        for name, config in (("predicted", PREDICTED_LATENCY_CONFIG), ("composite", COMPOSITE_CONFIG)):
            served = between(self.run(schedule, config, servers=servers).served, 40.0, 90.0 - DRAIN_S)
            figures[name] = routing(served) | {
                "share_of_a_h100": (share(served, "sim-0") or 0.0) / 2 + (share(served, "sim-1") or 0.0) / 2,
                "ttft_mape": mean(relative_errors(served, Target.TTFT)),
                "tpot_mape": mean(relative_errors(served, Target.TPOT)),
            }
        return figures


def routing(served: Sequence[Served]) -> Figures:
    ttft = actual_ms(served, Target.TTFT)
    return {
        "ttft_mean_ms": mean(ttft),
        "ttft_p99_ms": percentile(ttft, 0.99),
        "tpot_mean_ms": mean(actual_ms(served, Target.TPOT)),
        "attainment": attainment(served, TTFT_TARGET_MS, TPOT_TARGET_MS),
    }


def rows(figures: Figures, prefix: str = "") -> list[Row]:
    """Nested figures, one per row."""
    found: list[Row] = []
    for name, value in figures.items():
        label = f"{prefix} {name.replace('_', ' ')}".strip()
        if isinstance(value, dict):
            found += rows(value, label)
        elif isinstance(value, list):
            found.append((label, ", ".join(shown(v) for v in value)))
        else:
            found.append((label, shown(value)))
    return found


def shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.1f}".removesuffix(".0")


def main() -> None:
    names = ("accuracy", "first_500", "slowed", "joins", "fails", "mixed")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=names, help="run this experiment; may be given repeatedly")
    parser.add_argument("--seed", type=int, default=1, help="of schedules, servers and picker (default: 1)")
    parser.add_argument("--knee-rps", type=float, help="of one server; default: found by a rate ladder")
    parser.add_argument("--trace", type=Path, metavar="CSV", help="an Azure LLM inference trace, instead of its fit")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures there")
    options = parser.parse_args()
    knee = options.knee_rps or knee_rps()
    print(f"Knee of one server: {knee:.2f} rps; of the pool of {SERVERS}: {SERVERS * knee:.1f} rps.")
    bench = Bench(knee, options.seed, options.trace)
    figures: Figures = {"knee_rps": knee}
    for name in options.only or names:
        started_s = time.process_time()
        experiment: Callable[[], Figures] = getattr(bench, name)
        figures[name] = experiment()
        print(
            f"\n**{name.replace('_', ' ')}**: {experiment.__doc__} ({time.process_time() - started_s:.0f} s of CPU)\n"
        )
        print("| figure | value |\n|---|--:|", flush=True)
        for label, value in rows(figures[name]):
            print(f"| {label} | {value} |")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
