"""Takes part in the election of the picker that leads: reads and writes the Lease."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from epp.kube.client import KubeClient
from epp.kube.election import Election, read_lease
from epp.kube.failures import ApiFailure, ErrorCounter, Kind, advice
from epp.kube.options import KubeOptions, LeaseTimings
from epp.kube.resources import LEASES

logger = logging.getLogger(__name__)


class LeaderElection:
    """
    Args:
        may_lead: whether we could serve; who cannot does not take the Lease. Who has it keeps it.
        wall_clock: for the times in the Lease, which people read.
    """

    def __init__(
        self,
        options: KubeOptions,
        timings: LeaseTimings,
        client: KubeClient,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], datetime],
        may_lead: Callable[[], bool],
        on_error: ErrorCounter,
    ) -> None:
        self._options = options
        self._timings = timings
        self._client = client
        self._clock = clock
        self._wall_clock = wall_clock
        self._may_lead = may_lead
        self._on_error = on_error
        self._election = Election(options.identity, timings)
        self._failure: ApiFailure | None = None
        self._verb = "get"
        self._turn = asyncio.Lock()  # one request about the Lease at a time
        self._resigned = False

    @property
    def is_leader(self) -> bool:
        return self._election.is_leader

    def not_ready(self) -> list[str]:
        """Why we do not lead; empty when we do."""
        if self.is_leader:
            return []
        if self._failure is not None:
            return [self._problem(self._failure)]
        leader = self._election.leader
        return [f"standing by: {leader} leads" if leader is not None else "standing by: nobody leads yet"]

    def state(self) -> Mapping[str, Any]:
        """Plain values for people."""
        return {
            "identity": self._options.identity,
            "is_leader": self.is_leader,
            "leader": self._election.leader,
            "lease": f"{self._options.namespace}/{self._options.lease_name}",
            "problem": None if self._failure is None else self._problem(self._failure),
        }

    async def run(self) -> None:
        """Until cancelled, or until `resign` was called. Cancelling does not give the Lease back."""
        while not self._resigned:
            led = self.is_leader
            try:
                async with self._turn:
                    if not self._resigned:
                        await self._round()
                        self._failure = None
            except ApiFailure as failure:
                self._note(failure)
            if led != self.is_leader:
                logger.info("this picker leads" if self.is_leader else "%s leads now", *self._other_leader())
            await asyncio.sleep(max(0.05, self._election.wait_s(self._clock())))

    async def resign(self) -> None:
        """Take part no more; a Lease of ours is given back, so that another picker leads at once."""
        self._resigned = True
        async with self._turn:
            if not self.is_leader:
                return
            with suppress(ApiFailure):  # then it has to expire
                await self._write(self._election.given_back(self._now()))
                logger.info("the Lease is given back")

    async def _round(self) -> None:
        if not self.is_leader:
            await self._look()
        if not self._election.may_take(self._clock()) or not (self.is_leader or self._may_lead()):
            return
        try:
            await self._write(self._election.ours(self._now()))
        except ApiFailure as failure:
            if failure.kind not in (Kind.CONFLICT, Kind.NOT_FOUND):
                raise
            await self._look()  # somebody was faster, or took it away: what does it say now?

    async def _look(self) -> None:
        self._verb = "get"
        try:
            obj = await self._request("GET", self._options.lease_name)
        except ApiFailure as failure:
            if failure.kind is not Kind.NOT_FOUND:
                raise
            self._election.saw(None, self._clock())
        else:
            self._election.saw(read_lease(obj), self._clock())

    async def _write(self, spec: Mapping[str, object]) -> None:
        metadata = {"name": self._options.lease_name, "namespace": self._options.namespace}
        version = self._election.version
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if version is None:
            self._verb = "create"
            obj = await self._request("POST", None, body)
        else:
            self._verb = "update"
            body = {**body, "metadata": {**metadata, "resourceVersion": version}}
            obj = await self._request("PUT", self._options.lease_name, body)
        self._election.saw(read_lease(obj), self._clock())

    async def _request(self, method: str, name: str | None, body: Mapping[str, object] | None = None) -> Any:
        path = LEASES.path(self._options.namespace, name)
        return await self._client.request(method, path, body=body, timeout_s=self._timings.duration_s)

    def _note(self, failure: ApiFailure) -> None:
        self._on_error(LEASES.plural, failure.kind)
        known = self._failure
        self._failure = failure
        level = logging.DEBUG if known is not None and known.kind is failure.kind else logging.WARNING
        goes_on = "; this picker goes on leading until another does" if self.is_leader else ""
        logger.log(level, "%s%s", self._problem(failure), goes_on)

    def _problem(self, failure: ApiFailure) -> str:
        return advice(failure, self._verb, LEASES, self._options.namespace)

    def _other_leader(self) -> tuple[str, ...]:
        return () if self.is_leader else (self._election.leader or "nobody",)

    def _now(self) -> str:
        return self._wall_clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
