"""Follows the objectives and model rewrites of a pool, from whichever API group they are installed in.

Both kinds may be in the newer group, the older one, both or none, and may be installed later. Where both are, the newer
one counts. None is no fault: then there are no such objects.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from epp.kube.client import KubeClient
from epp.kube.failures import ErrorCounter
from epp.kube.objects import Json
from epp.kube.options import KubeOptions, PoolByName
from epp.kube.policies import PoolRef, Rewrites, priorities, read_objective, read_rewrite
from epp.kube.reflector import Reflector, ReflectorTimings
from epp.kube.resources import OBJECTIVES, REWRITES, Resource

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PolicySource:
    """
    Args:
        apply: called with the priorities and rewrites that hold from now on.
    """

    def __init__(
        self,
        options: KubeOptions,
        source: PoolByName,
        client: KubeClient,
        apply: Callable[[Mapping[str, int], Rewrites], None],
        *,
        clock: Callable[[], float],
        rng: random.Random,
        on_error: ErrorCounter,
        timings: ReflectorTimings | None = None,
    ) -> None:
        self._pool = PoolRef(source.group, source.name)
        self._apply = apply
        self._warned: set[str] = set()

        def follow(resources: Sequence[Resource], read: Callable[[Json], T]) -> "_Preferred[T]":
            return _Preferred(
                [
                    Reflector(
                        client,
                        resource,
                        options.namespace,
                        read,
                        self._changed,
                        clock=clock,
                        rng=rng,
                        on_error=on_error,
                        optional=True,
                        timings=timings,
                    )
                    for resource in resources
                ]
            )

        self._objectives = follow(OBJECTIVES, read_objective)
        self._rewrites = follow(REWRITES, read_rewrite)

    async def run(self) -> None:
        """Until cancelled."""
        reflectors: list[Reflector[Any]] = [*self._objectives.reflectors, *self._rewrites.reflectors]
        await asyncio.gather(*(reflector.run() for reflector in reflectors))

    def state(self) -> Mapping[str, Any]:
        """Plain values for people."""
        return {
            "objectives": {"from": self._objectives.installed, "priorities": self._priorities()},
            "rewrites": {"from": self._rewrites.installed, "objects": [r.name for r in self._rewrites.values()]},
            "problems": [*self._objectives.problems(), *self._rewrites.problems()],
        }

    def _changed(self) -> None:
        for rewrite in self._rewrites.values():
            if rewrite.mixed_weights and rewrite.name not in self._warned:
                self._warned.add(rewrite.name)
                logger.warning(
                    "model rewrite %s: some targets of a rule have a weight; those without get nothing", rewrite.name
                )
        self._apply(self._priorities(), Rewrites(self._rewrites.values(), self._pool))

    def _priorities(self) -> dict[str, int]:
        return priorities(self._objectives.values(), self._pool)


class _Preferred(Generic[T]):
    """One kind in several groups, the best first: the first that is installed counts."""

    def __init__(self, reflectors: Sequence[Reflector[T]]) -> None:
        self.reflectors = reflectors

    def values(self) -> list[T]:
        reflector = self._counting()
        return [] if reflector is None else [kept.value for kept in reflector.reflection.kept.values()]

    @property
    def installed(self) -> str | None:
        """The group that counts."""
        reflector = self._counting()
        return None if reflector is None else reflector.resource.group

    def problems(self) -> Iterator[str]:
        """What keeps us from reading what counts; nothing if some group is read."""
        if self._counting() is None:
            yield from (reflector.problem for reflector in self.reflectors if reflector.problem is not None)

    def _counting(self) -> Reflector[T] | None:
        return next((r for r in self.reflectors if r.is_installed), None)
