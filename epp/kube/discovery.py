"""The pool as an API server knows it: an InferencePool's selector and ports, the pods that match, and from both the
endpoints in the store.

After every event the whole set is stated anew, so the store is right whatever came before. Of a huge pool that costs
time, so events that follow close upon each other are stated together. A pool that does not exist, or is about to go,
has no endpoints. An API server that is silent changes nothing: the last good set stands.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epp.kube.client import KubeClient
from epp.kube.failures import ErrorCounter
from epp.kube.options import KubeOptions, PodsBySelector, PoolByName
from epp.kube.pods import PodFacts, read_pod
from epp.kube.pool import PoolFacts, read_pool
from epp.kube.reflection import Kept
from epp.kube.reflector import Reflector, ReflectorTimings
from epp.kube.resources import PODS, POOLS
from epp.kube.selector import Selector
from epp.pool.endpoint import Endpoint
from epp.pool.store import PoolStore

logger = logging.getLogger(__name__)

# To state ten thousand pods takes 0.1 s. Then there is a pause of so many times what it took, so that a rollout takes a
# fifth of a core; but of half a second at most, since a pod that turns unready is to be left within one.
PAUSE_PER_COST = 4.0
LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which pods, and which of their ports."""

    selector: Selector
    target_ports: tuple[int, ...]


class KubeDiscovery:
    """Keeps `store` equal to what the API server says, while `run` runs."""

    def __init__(
        self,
        options: KubeOptions,
        client: KubeClient,
        store: PoolStore,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        on_error: ErrorCounter,
        timings: ReflectorTimings | None = None,
    ) -> None:
        self._options = options
        self._client = client
        self._store = store
        self._clock = clock
        self._shared: dict[str, Any] = {"clock": clock, "rng": rng, "on_error": on_error, "timings": timings}
        self._wanted: _Wanted | None = None
        self._said: str | None = None  # of a pool that routes nothing, in the log
        self._pool: Reflector[PoolFacts] | None = None
        self._pods: Reflector[PodFacts] | None = None
        self._pods_task: asyncio.Task[None] | None = None
        self._endpoints: dict[str, tuple[Kept[PodFacts], tuple[Endpoint, ...]]] = {}
        self._due: asyncio.TimerHandle | None = None
        self._not_before_s = 0.0
        source = options.source
        if isinstance(source, PoolByName):
            self._pool = Reflector(
                client,
                POOLS[source.group],
                options.namespace,
                read_pool,
                self._pool_changed,
                query={"fieldSelector": f"metadata.name={source.name}"},
                **self._shared,
            )

    async def run(self) -> None:
        """Until cancelled."""
        source = self._options.source
        try:
            if isinstance(source, PodsBySelector):
                self._follow(_Wanted(source.selector, source.target_ports))
                assert self._pods_task is not None
                await self._pods_task
            elif self._pool is not None:
                await self._pool.run()
        finally:
            self._state_later(None)
            if self._pods_task is not None:
                self._pods_task.cancel()

    @property
    def synced(self) -> bool:
        """The pool and its pods were listed once; what the store holds is meant."""
        if self._pool is not None:
            return self._pool.reflection.synced and (self._wanted is None or self._pods_synced)
        return self._pods_synced

    @property
    def _pods_synced(self) -> bool:
        return self._pods is not None and self._pods.reflection.synced

    def reflectors(self) -> Iterator[Reflector[Any]]:
        yield from (reflector for reflector in (self._pool, self._pods) if reflector is not None)

    @property
    def age_s(self) -> float | None:
        """For how long the API server was silent, of the reflector that waits the longest; `None`: it never spoke."""
        heard = [reflector.heard_s for reflector in self.reflectors()]
        known = [heard_s for heard_s in heard if heard_s is not None]
        return self._clock() - min(known) if known and len(known) == len(heard) else None

    def not_ready(self) -> list[str]:
        """Why there is nothing to route to; empty when there is."""
        problems = [r.problem for r in self.reflectors() if r.problem is not None and not r.reflection.synced]
        if problems:
            return problems
        if self._pool is not None and self._pool.reflection.synced and self._wanted is None:
            return [self._no_pool()]
        if not self.synced:
            return ["the API server has not been heard yet"]
        return [] if len(self._store.snapshot()) else [self._no_endpoint()]

    def state(self) -> Mapping[str, Any]:
        """Plain values for people."""
        age_s = self.age_s
        return {
            "namespace": self._options.namespace,
            "pool": self._options.pool_name,
            "selector": None if self._wanted is None else str(self._wanted.selector),
            "target_ports": None if self._wanted is None else list(self._wanted.target_ports),
            "synced": self.synced,
            "age_s": None if age_s is None else round(age_s, 3),
            "pods": 0 if self._pods is None else len(self._pods.reflection.kept),
            "problems": [r.problem for r in self.reflectors() if r.problem is not None],
        }

    # --- what changes ---------------------------------------------------------------------------------------------

    def _pool_changed(self) -> None:
        assert self._pool is not None
        kept = next(iter(self._pool.reflection.kept.values()), None)
        pool = None if kept is None else kept.value
        if pool is None or pool.fault is not None or pool.selector is None:
            if self._pool.reflection.synced and self._no_pool() != self._said:
                self._said = self._no_pool()
                logger.warning("%s; there is nothing to route to", self._said)
            self._forget()
            return
        self._said = None
        wanted = _Wanted(pool.selector, pool.target_ports)
        if wanted != self._wanted:
            logger.info("pool %s: pods %s, ports %s", self._options.pool_name, wanted.selector, wanted.target_ports)
            self._follow(wanted)

    def _forget(self) -> None:
        self._state_later(None)
        if self._pods_task is not None:
            self._pods_task.cancel()
        self._pods, self._pods_task, self._wanted = None, None, None
        self._endpoints = {}
        self._store.replace(())

    def _follow(self, wanted: _Wanted) -> None:
        """Watch these pods from now on. Of those known, the ones that match stay until the first list."""
        known: dict[str, Kept[PodFacts]] = {}
        heard_s = None if self._pods is None else self._pods.heard_s
        if self._pods is not None:
            if self._wanted is not None and self._wanted.selector == wanted.selector:
                self._wanted, self._endpoints = wanted, {}
                self._pods_changed()
                return
            known = {
                key: kept
                for key, kept in self._pods.reflection.kept.items()
                if wanted.selector.matches(kept.value.labels)
            }
        if self._pods_task is not None:
            self._pods_task.cancel()
        self._wanted, self._endpoints = wanted, {}
        self._pods = Reflector(
            self._client,
            PODS,
            self._options.namespace,
            read_pod,
            self._pods_changed,
            query={"labelSelector": str(wanted.selector)},
            known=known,
            **self._shared,
        )
        self._pods.heard_s = heard_s  # what is known is as old as it was
        self._pods_task = asyncio.create_task(self._pods.run(), name="pods")
        self._pods_changed()

    def _pods_changed(self) -> None:
        wait_s = self._not_before_s - self._clock()
        if wait_s > 0:
            if self._due is None:
                self._state_later(wait_s)
            return
        self._state_later(None)
        started_s = self._clock()
        self._state_all()
        ended_s = self._clock()
        self._not_before_s = ended_s + min(LONGEST_PAUSE_S, PAUSE_PER_COST * (ended_s - started_s))

    def _state_later(self, wait_s: float | None) -> None:
        """`None`: not at all."""
        if self._due is not None:
            self._due.cancel()
        self._due = None if wait_s is None else asyncio.get_running_loop().call_later(wait_s, self._state_due)

    def _state_due(self) -> None:
        self._due, self._not_before_s = None, 0.0
        self._pods_changed()

    def _state_all(self) -> None:
        if self._pods is None or self._wanted is None:
            return
        before, after = self._endpoints, {}
        replaced = False
        for key, kept in self._pods.reflection.kept.items():
            old = before.get(key)
            if old is not None and old[0] is kept:
                after[key] = old
                continue
            after[key] = (kept, kept.value.endpoints(self._wanted.target_ports))
            replaced = replaced or (old is not None and old[0].uid != kept.uid)
        self._endpoints = after
        if replaced:
            # A new pod under an old name: what is known of the old one has to go even if it has the same address.
            self._store.replace(
                endpoint
                for key, (kept, endpoints) in after.items()
                if key not in before or before[key][0].uid == kept.uid
                for endpoint in endpoints
            )
        changes = self._store.replace(endpoint for _, endpoints in after.values() for endpoint in endpoints)
        if changes:
            logger.info(
                "endpoints added %d, removed %d, changed %d: %d now",
                len(changes.added),
                len(changes.removed),
                len(changes.changed),
                len(self._store.snapshot()),
            )

    # --- in words -------------------------------------------------------------------------------------------------

    def _no_pool(self) -> str:
        source, namespace = self._options.source, self._options.namespace
        assert isinstance(source, PoolByName)
        assert self._pool is not None
        what = f"{POOLS[source.group].name} {namespace}/{source.name}"
        kept = next(iter(self._pool.reflection.kept.values()), None)
        if kept is None:
            return f"{what} does not exist; check --pool-name, --pool-namespace and --pool-group"
        return f"{what} {kept.value.fault}"

    def _no_endpoint(self) -> str:
        pods = () if self._pods is None else self._pods.reflection.kept.values()
        selector = None if self._wanted is None else self._wanted.selector
        if not pods:
            return f"no pod in namespace {self._options.namespace} matches {selector}"
        ready = sum(kept.value.serves for kept in pods)
        if not ready:
            return f"{len(pods)} pods match {selector}; none is ready"
        return f"{ready} pods are ready; none has an address and one of the ports {self._ports()} active"

    def _ports(self) -> str:
        return "" if self._wanted is None else ", ".join(map(str, self._wanted.target_ports))
