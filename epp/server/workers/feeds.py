"""What the parent knows and every worker should: the pool, its policies, readiness, what was learned of latency."""

from dataclasses import replace

from epp.latency.types import Sample
from epp.server.health import HealthState
from epp.server.state import PickerState
from epp.server.workers.channel import PARENT, packed
from epp.server.workers.messages import Health, Kind, Learned, Policies
from epp.server.workers.pool_feed import PoolFeed
from epp.server.workers.shared_load import SharedLoad


class Feeds:
    """Frames for workers. Those that have heard every change know what a newcomer is told.

    Args:
        load: the parent's view, which follows the pool.
    """

    def __init__(self, state: PickerState, health: HealthState, load: SharedLoad) -> None:
        self._state = state
        self._health = health
        self._pool = PoolFeed(state.store, load)
        self._told_health: Health | None = None
        self._told_policies: object = None
        self._told_version: int | None = None
        self._new_samples = False

    def newcomer(self) -> list[bytes]:
        """All there is to know. Tell the others the `changes` first."""
        frames = [packed(Kind.POOL, PARENT, self._pool.whole()), packed(Kind.POLICIES, PARENT, self._policies())]
        frames.append(packed(Kind.HEALTH, PARENT, self._health_now()))
        if self._state.predicts:
            frames.append(packed(Kind.LEARNED, PARENT, self._learned(has_model=True)))
        return frames

    def changes(self) -> list[bytes]:
        """Since the last call. Costs little when there are none."""
        frames = []
        if (change := self._pool.change()) is not None:
            frames.append(packed(Kind.POOL, PARENT, change))
        if (policies := self._state.policies.current[0]) is not self._told_policies:
            self._told_policies = policies
            frames.append(packed(Kind.POLICIES, PARENT, self._policies()))
        if (health := self._health_now()) != self._told_health:
            self._told_health = health
            frames.append(packed(Kind.HEALTH, PARENT, health))
        return frames

    def observe(self, samples: list[Sample]) -> None:
        """A worker's samples: what is learned from them is for all."""
        self._new_samples = True
        for sample in samples:
            self._state.predictor.observe(sample)

    def learned(self) -> bytes | None:
        """What was learned since the last call, if anything was."""
        version = self._state.predictor.model_version
        has_model = version != self._told_version
        if not self._state.predicts or not (has_model or self._new_samples):
            return None
        self._told_version, self._new_samples = version, False
        return packed(Kind.LEARNED, PARENT, self._learned(has_model=has_model))

    def _health_now(self) -> Health:
        health = self._health
        plugins = list(health.plugins_not_ready())
        return Health(health.reasons(), plugins, health.draining, health.stopping, self._state.suspended)

    def _policies(self) -> Policies:
        objectives, rewrites = self._state.policies.current
        return Policies(dict(objectives), rewrites)

    def _learned(self, *, has_model: bool) -> Learned:
        state = self._state.predictor.snapshot(self._state.clock(), with_rows=False)
        return Learned(state if has_model else replace(state, model=None), has_model)
