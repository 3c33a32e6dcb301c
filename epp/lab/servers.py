"""A simulated server in the lab: its engine, what runs there, and what else is true of it."""

import random
from dataclasses import dataclass

from epp.director import Assignment
from epp.lab.experiment import LabRequest, LabServer, Served
from epp.sim.engine import Engine


@dataclass(slots=True)
class Live:
    """A request that was sent to a server."""

    served: Served
    assignment: Assignment
    planned: LabRequest
    first_token_s: float = 0.0


class Server:
    """
    Attributes:
        live: what runs in its engine, by the engine's request id.
        failing: answers new requests with 500.
        alive: answers at all.
        present: is in the pool.
        restarts: how often it began anew.
        due_s: when its engine has something to do, as the world's heap has it.
    """

    def __init__(self, spec: LabServer, rng: random.Random) -> None:
        self.spec = spec
        self.endpoint = spec.endpoint
        self.engine = Engine(spec.engine, rng, every_token=False)
        self.live: dict[str, Live] = {}
        self.failing = False
        self.alive = True
        self.present = True
        self.restarts = 0
        self.due_s: float | None = None
        self._earlier_busy_s = 0.0
        self._earlier_preemptions = 0

    @property
    def busy_s(self) -> float:
        return self._earlier_busy_s + self.engine.busy_s

    @property
    def preemptions(self) -> int:
        return self._earlier_preemptions + self.engine.scheduler.preemptions

    def take_live(self) -> list[Live]:
        """What runs there; the engine forgets it."""
        for request_id in self.live:
            self.engine.abort(request_id)
        live, self.live = list(self.live.values()), {}
        return live

    def restart(self, rng: random.Random) -> None:
        """A new engine, with nothing cached."""
        self._earlier_busy_s, self._earlier_preemptions = self.busy_s, self.preemptions
        self.engine = Engine(self.spec.engine, rng, every_token=False)
        self.due_s = None
        self.alive, self.present, self.failing = True, True, False
        self.restarts += 1
