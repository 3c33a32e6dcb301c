"""Cases that need the same processes take turns, round after round, and so does Envoy alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.load.measuring import Sample, filling, reference_ms
from benchmarks.load.programs import Load
from benchmarks.load.rig import Rig, Setup
from benchmarks.load.rows import Row, row_of
from epp.problem import Problem

SLOS = ("x-slo-ttft-ms: 1000", "x-slo-tpot-ms: 100")
GROUPS = 64  # of requests that share the first half of their prompt
MAX_RAMP_S = 2.0
PAUSE_US = 100_000  # after the first token of answers that are not paced
BASE = Setup()

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One load on one set of processes.

    Attributes:
        body_bytes: 0 is a request without a body.
        tokens: of a streamed answer, an event each; 0 is a JSON answer.
        interval_us: between two events; 0 is as fast as they are taken, as all are after `paced_tokens`.
        connections: 0 for as many as fill Envoy's cores (see `filling`).
        rate: of an open loop, requests/s; 0 is a closed loop.
        seconds: at least so long is measured.
        alone: measure Envoy alone as well.
    """

    name: str
    setup: Setup = BASE
    body_bytes: int = 1_024
    tokens: int = 100
    connections: int = 0
    interval_us: int = 0
    paced_tokens: int = 1_000_000
    rate: float = 0.0
    seconds: float = 0.0
    alone: bool = True

    def load(self, seconds: float) -> Load:
        answer_s = min(self.tokens, self.paced_tokens) * self.interval_us / 1e6
        return Load(
            port=0,
            connections=self.connections or 64,
            seconds=max(seconds, self.seconds, 2 * answer_s),
            warmup_s=0.5 + 1.2 * answer_s,
            ramp_s=min(answer_s, MAX_RAMP_S),
            rate=self.rate,
            body_bytes=self.body_bytes,
            shared_bytes=self.body_bytes // 2,
            groups=GROUPS,
            max_tokens=self.tokens or 100,
            stream=int(self.tokens > 0),
            first_gap_us=self.interval_us or PAUSE_US,
            interval_us=self.interval_us,
            paced_tokens=self.paced_tokens,
            headers=SLOS if self.setup.profile == "predicted" else (),
        )


def load_of(case: Case, rig: Rig, seconds: float) -> tuple[Load, Load]:
    """For Envoy with the picker, and for Envoy alone."""
    load = case.load(seconds)
    if case.connections or case.rate or not case.tokens:
        return load, load
    return filling(load, rig.through), filling(load, rig.alone) if case.alone else load


def run(cases: Sequence[Case], rounds: int, seconds: float, progress: Progress) -> tuple[list[Row], dict[str, str]]:
    """What each took, in order, and why others failed, by name."""
    rows: dict[str, Row] = {}
    failed: dict[str, str] = {}
    for setup in dict.fromkeys(case.setup for case in cases):
        group = [case for case in cases if case.setup == setup]
        progress(f"starting {setup.profile}, {setup.bootstrap}, {setup.transport}, {setup.endpoints} endpoints")
        try:
            with Rig(setup) as rig:
                if setup.profile == "predicted":
                    progress("learning")
                    progress("a model is served" if rig.learn(group[0].load(2.0)) else "NO model is served yet")
                rows |= _take_turns(group, rig, rounds, seconds, failed, progress)
        except Problem as error:  # nothing of this group can be measured
            progress(f"FAILED: {error}")
            failed |= {case.name: str(error) for case in group}
    return [rows[case.name] for case in cases if case.name in rows], failed


def _take_turns(
    group: Sequence[Case], rig: Rig, rounds: int, seconds: float, failed: dict[str, str], progress: Progress
) -> dict[str, Row]:
    idle_ratio = rig.idle_picker_ratio()
    loads: dict[str, tuple[Load, Load]] = {}
    samples: dict[str, list[Sample]] = {case.name: [] for case in group}
    alone: dict[str, list[Sample]] = {case.name: [] for case in group}
    references_ms: dict[str, list[float]] = {case.name: [] for case in group}
    for number in range(rounds):
        for case in group:
            name = case.name
            if name in failed:
                continue
            progress(f"round {number + 1} of {rounds}: {name}")
            try:
                if name not in loads:
                    loads[name] = load_of(case, rig, seconds)
                references_ms[name].append(reference_ms(rig.cores.picker))
                samples[name].append(rig.through(loads[name][0]))
                if case.alone:
                    alone[name].append(rig.alone(loads[name][1]))
            except Problem as error:
                progress(f"FAILED: {error}")
                failed[name] = str(error)
    return {
        case.name: row_of(
            case.name, case.rate, idle_ratio, references_ms[case.name], samples[case.name], alone[case.name]
        )
        for case in group
        if case.name not in failed
    }
