"""What an API server does for the picker: it names the pool, objectives and rewrites, and who of several leads."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from epp.kube.access import Access
from epp.kube.client import KubeClient
from epp.kube.discovery import KubeDiscovery
from epp.kube.leader import LeaderElection
from epp.kube.options import KubeOptions, PoolByName
from epp.kube.policy_source import PolicySource
from epp.kube.reflector import ReflectorTimings
from epp.kube.reviews import Reviewer
from epp.observe.kube import KubeMetrics
from epp.server.admin_guard import Guard, reviewed_by
from epp.server.state import PickerState

logger = logging.getLogger(__name__)

CHECK_AGE_S = 0.25
RESIGN_WITHIN_S = 2.0


class Kubernetes:
    """
    Args:
        access: finds the API server and credentials.

    Raises:
        Problem: there is no way to reach an API server, or a name that it cannot know.
    """

    def __init__(
        self, options: KubeOptions, state: PickerState, rng: random.Random, access: Callable[[], Access]
    ) -> None:
        options.check()
        self._options = options
        self._state = state
        self._client = KubeClient(access)
        clock = state.clock
        self.discovery = KubeDiscovery(
            options,
            self._client,
            state.store,
            clock=clock,
            rng=rng,
            on_error=self._count_error,
            timings=ReflectorTimings.for_age(options.max_snapshot_age_s),
        )
        self._policies = (
            PolicySource(
                options,
                options.source,
                self._client,
                state.policies.replace,
                clock=clock,
                rng=rng,
                on_error=self._count_error,
            )
            if isinstance(options.source, PoolByName)
            else None
        )
        self._election = (
            LeaderElection(
                options,
                options.leader_election,
                self._client,
                clock=clock,
                wall_clock=lambda: datetime.now(UTC),
                may_lead=lambda: self.discovery.synced,
                on_error=self._count_error,
            )
            if options.leader_election is not None
            else None
        )
        self._metrics = KubeMetrics(
            state.registry,
            options.pool_name,
            age_s=lambda: self.discovery.age_s,
            is_leader=None if self._election is None else lambda: self._is_leader,
        )

    def jobs(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Named; each runs until it is cancelled."""
        jobs = [("discovery", self._discover())]
        if self._policies is not None:
            jobs.append(("objectives and rewrites", self._policies.run()))
        if self._election is not None:
            jobs.append(("leader election", self._election.run()))
        if self._options.max_snapshot_age_s is not None:
            jobs.append(("snapshot age", self._check_age(self._options.max_snapshot_age_s)))
        return jobs

    def not_ready(self) -> list[str]:
        """Why requests should not come here, in words."""
        return [*self.discovery.not_ready(), *([] if self._election is None else self._election.not_ready())]

    def describe(self) -> dict[str, Any]:
        """For the debug page."""
        return {
            **self.discovery.state(),
            "policies": None if self._policies is None else self._policies.state(),
            "leader_election": None if self._election is None else self._election.state(),
        }

    def guard(self) -> Guard | None:
        """Who may read the metrics port, if that is to be asked; else `None`."""
        return reviewed_by(Reviewer(self._client, self._state.clock)) if self._options.metrics_auth else None

    async def stand_down(self) -> None:
        """Requests should go to another picker from now on."""
        if self._election is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._election.resign(), RESIGN_WITHIN_S)

    async def _discover(self) -> None:
        try:
            await self.discovery.run()
        finally:
            await self._client.close()

    async def _check_age(self, longest_s: float) -> None:
        """Requests are refused while the API server has been silent for longer than `longest_s`."""
        while True:
            age_s = self.discovery.age_s
            too_old = age_s is not None and age_s > longest_s
            if too_old != (self._state.suspended is not None):
                self._state.suspended = (
                    f"the API server has been silent for longer than --max-snapshot-age ({longest_s:g} s)"
                    if too_old
                    else None
                )
                logger.warning("%s", self._state.suspended or "requests are routed again: the API server speaks")
            await asyncio.sleep(CHECK_AGE_S)

    @property
    def _is_leader(self) -> bool:
        return self._election is not None and self._election.is_leader

    def _count_error(self, resource: str, reason: str) -> None:
        self._metrics.count_error(resource, reason)
