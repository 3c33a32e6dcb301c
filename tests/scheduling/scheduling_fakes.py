"""Tiny plugins of every role, whose behaviour is a function given by the test."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from epp.inference.request import Request
from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.scheduling import plugin as roles
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import DataKey
from epp.scheduling.plugin import Plugin, Services

SERVICES = Services(ledger=cast(Any, object()))


def pool(size: int) -> Candidates:
    return Candidates.all_of(
        Snapshot.build(tuple(Endpoint("default", f"pod-{i}", f"10.0.0.{i + 1}", 8000) for i in range(size)))
    )


def a_cycle(priority: int = 0) -> Cycle:
    return Cycle(Request(id="r", priority=priority), now_s=0.0, rng=random.Random(7))


def fake(role: type[Plugin], name: str, **methods: Callable[..., Any]) -> Any:
    """An instance that plays `role`; each method is the function given, called without `self`."""
    body: dict[str, Any] = {"plugin_type": name}
    for method, function in methods.items():
        body[method] = staticmethod(function)
    return type(name, (role,), body)(name, None, SERVICES)


def scorer(name: str, values: Sequence[float] | Exception) -> Any:
    def score(cycle: Cycle, candidates: Candidates) -> Any:
        if isinstance(values, Exception):
            raise values
        return np.array(values, dtype=float)

    return fake(roles.Scorer, name, score=score)


def filter_(name: str, keep: Callable[[Candidates], Candidates]) -> Any:
    return fake(roles.Filter, name, filter=lambda cycle, candidates: keep(candidates))


def best(name: str = "best") -> Any:
    """Picks every candidate, best total first."""
    return fake(
        roles.Picker,
        name,
        pick=lambda cycle, candidates, totals: [candidates.rows[i] for i in np.argsort(-totals, kind="stable")],
    )


def run_once(primary: str | None = None) -> Any:
    """Runs every profile at once and answers with the first, or the one named."""

    def pick(cycle: Cycle, profiles: Sequence[str], results: Mapping[str, Any]) -> Sequence[str]:
        return () if results else profiles

    return fake(
        roles.ProfileHandler,
        "handler",
        pick_profiles=pick,
        process_results=lambda cycle, results: primary or next(iter(results)),
    )


def producer(
    name: str,
    produce: Callable[[Cycle, Candidates], None],
    produces: Sequence[DataKey[Any]] = (),
    consumes: Sequence[DataKey[Any]] = (),
) -> Any:
    return type(
        name,
        (roles.Producer,),
        {"plugin_type": name, "produces": produces, "consumes": consumes, "produce": staticmethod(produce)},
    )(name, None, SERVICES)


class FakeRecorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str, float]] = []
        self.failures: list[tuple[str, str, str]] = []

    def durations(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        return lambda seconds: self.calls.append((extension_point, plugin.name, seconds))

    def failure(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        self.failures.append((extension_point, plugin.name, type(error).__name__))
