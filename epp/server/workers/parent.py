"""Several processes, from the parent's side: how they come to be, and their pages as one."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from epp.ledger import Ledger
from epp.observe.records import Selection
from epp.problem import Problem
from epp.scheduling.plugin import Services
from epp.server import serving
from epp.server.configuration import ConfigText, build_config
from epp.server.drain import Draining
from epp.server.health import HealthState
from epp.server.options import ServeOptions
from epp.server.state import PickerState
from epp.server.tls import KeyPair
from epp.server.workers import shared_load
from epp.server.workers.channel import MAX_WORKERS
from epp.server.workers.fork_server import ForkServer
from epp.server.workers.shared_load import SharedLoad
from epp.server.workers.supervisor import Supervisor
from epp.server.workers.worker import worker_main

MOST_DECISIONS = 256


@dataclass(frozen=True, slots=True)
class Forked:
    """
    Attributes:
        load, memory: the parent's view of the memory that all share, and its descriptor.
    """

    fork_server: ForkServer
    load: SharedLoad
    memory: int


def fork(options: ServeOptions, configuration: ConfigText) -> Forked | None:
    """What has to be there before the parent has threads. `None`: it does everything itself. Raises `Problem`."""
    if options.workers == 1:
        return None
    if options.transport != "lean":
        raise Problem(
            f"--workers {options.workers}: is for --transport lean; gRPC's own server cannot be handed connections"
        )
    if options.workers > MAX_WORKERS:
        raise Problem(f"--workers {options.workers}: there can be {MAX_WORKERS}")
    if not hasattr(os, "pidfd_open"):
        raise Problem(f"--workers {options.workers}: needs Linux")
    build_config(configuration, Services(ledger=Ledger()))  # so that modules of plugins are loaded once for all
    memory = shared_load.create(options.workers)
    load = SharedLoad(memory, options.workers, me=None)
    return Forked(ForkServer(partial(worker_main, options, configuration)), load, memory)


class Workers:
    """A `Front` whose streams are served by workers."""

    def __init__(self, state: PickerState, health: HealthState, forked: Forked) -> None:
        """Raises `Problem` for a certificate that cannot be used."""
        self._state = state
        certificate = serving.certificates(state.options)
        self._supervisor = Supervisor(
            state,
            health,
            forked.fork_server,
            forked.load,
            forked.memory,
            certificate if isinstance(certificate, KeyPair) else None,
        )

    @property
    def port(self) -> int | None:
        return self._supervisor.port

    @property
    def draining(self) -> Sequence[Draining]:
        return (self._supervisor,)

    @property
    def failure(self) -> str | None:
        return self._supervisor.failure

    async def start(self) -> None:
        await self._supervisor.start()

    async def stop(self) -> None:
        await self._supervisor.stop()

    async def collect(self) -> None:
        await self._supervisor.ask("counts")

    async def describe(self, selection: Selection) -> dict[str, Any]:
        answers = await self._supervisor.ask("state", selection)
        workers = self._supervisor.describe()
        for worker in workers:
            answer = answers.get(worker["worker"], {})
            worker |= {name: answer.get(name) for name in ("requests", "ledger", "process")}
        ledgers = [answer["ledger"] for answer in answers.values()]
        return await self._state.decided(selection) | {
            "workers": workers,
            "ledger": {name: sum(ledger[name] for ledger in ledgers) for name in ("streams", "requests", "tokens")},
            "decisions": merged(
                {number: answer["decisions"] for number, answer in answers.items()},
                MOST_DECISIONS if selection.most is None else min(selection.most, MOST_DECISIONS),
            ),
        }

    async def plugins(self) -> Mapping[str, Any]:
        """Those of the first worker, beside all others': they differ by what is on its way."""
        answers = await self._supervisor.ask("plugins")
        first: dict[str, Any] = next(iter(answers.values()), {})
        return {
            name: {**entry, "workers": {str(number): plugins.get(name) for number, plugins in answers.items()}}
            for name, entry in first.items()
        }


def merged(decisions: Mapping[int, Sequence[Mapping[str, Any]]], most: int) -> list[dict[str, Any]]:
    """Decisions of several workers as one list, newest first, each with its worker's number; at most so many.

    A refusal without an age is as old as the decision before it.
    """
    aged = []
    for number, of_worker in decisions.items():
        age_s = 0.0
        for place, decision in enumerate(of_worker):
            age_s = age_s if decision["age_s"] is None else decision["age_s"]
            aged.append((age_s, number, place, {**decision, "worker": number}))
    return [decision for *_, decision in sorted(aged, key=lambda entry: entry[:3])[:most]]
