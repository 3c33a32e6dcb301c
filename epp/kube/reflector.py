"""Keeps a `Reflection` true: lists, watches, and does both again after whatever goes wrong.

A watch is asked to end after some seconds and started again where it ended. That is cheap, and it bounds how long a
connection that carries nothing any more can pass for a quiet one: a watch that neither speaks nor ends in time has
stalled, and everything is listed. Now and then everything is listed anyway.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from epp.kube.client import KubeClient
from epp.kube.failures import ApiFailure, ErrorCounter, Kind, advice
from epp.kube.objects import Json
from epp.kube.reflection import Kept, Reflection
from epp.kube.resources import Resource

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReflectorTimings:
    """
    Attributes:
        watch_s: after which the API server ends a watch in order; whole seconds.
        grace_s: how much later it may do so before the watch has stalled.
        relist_s: between two lists of everything, whatever happens.
        first_pause_s, longest_pause_s: after failures in a row, doubling; each is drawn from its upper half.
        absent_pause_s: between two looks for an optional kind that is not installed or not allowed; a kind whose
            objects are known counts as gone after so long.
    """

    watch_s: int = 10
    grace_s: float = 4.0
    relist_s: float = 300.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    absent_pause_s: float = 10.0

    @staticmethod
    def for_age(longest_age_s: float | None) -> "ReflectorTimings":
        """Such that a quiet watch never looks that old, and that one which stalls is mended before if it can be.
        `None`: any age is well."""
        usual = ReflectorTimings()
        if longest_age_s is None:
            return usual
        watch_s = max(1, min(usual.watch_s, int(longest_age_s / 2)))
        return replace(usual, watch_s=watch_s, grace_s=min(usual.grace_s, longest_age_s / 4))


class Reflector(Generic[T]):
    """
    Args:
        optional: that the kind is not installed is nothing to warn of.
        query: `labelSelector` or `fieldSelector`, if not all of the namespace's objects are meant.
        on_change: called after each batch of events, or list, that changed the copy.
        on_error: counts failures.

    Attributes:
        reflection: the copy.
        failure: what went wrong last; `None` when all is well again.
        heard_s: when the API server was last heard, on `clock`; `None`: never.
        is_installed: whether it knows the kind; `None` until it was heard. A change of this is told by `on_change` too.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str,
        read: Callable[[Json], T],
        on_change: Callable[[], None],
        *,
        clock: Callable[[], float],
        rng: random.Random,
        on_error: ErrorCounter,
        optional: bool = False,
        query: Mapping[str, str] | None = None,
        known: Mapping[str, Kept[T]] | None = None,
        timings: ReflectorTimings | None = None,
    ) -> None:
        self.resource = resource
        self.reflection = Reflection(read, known)
        self.failure: ApiFailure | None = None
        self.heard_s: float | None = None
        self.is_installed: bool | None = None
        self._client = client
        self._namespace = namespace
        self._on_change = on_change
        self._clock = clock
        self._rng = rng
        self._on_error = on_error
        self._optional = optional
        self._query = dict(query or {})
        self._timings = timings or ReflectorTimings()
        self._failures_in_a_row = 0
        self._verb = "list"
        self._list_again_s = 0.0
        self._missing_since_s: float | None = None

    @property
    def problem(self) -> str | None:
        """What does not work and the fix, in a line; `None` when it works."""
        if self.failure is None:
            return None
        return advice(self.failure, self._verb, self.resource, self._namespace)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if self.reflection.watch_from is None or self._clock() >= self._list_again_s:
                    await self._list()
                await self._watch()
            except ApiFailure as failure:
                self._note(failure)
                await asyncio.sleep(self._pause_s(failure))
            except Exception as error:  # a mistake of ours about one object must not leave all others unwatched
                logger.exception("%s: an unexpected error; everything is listed again", self.resource.name)
                unexpected = ApiFailure(Kind.REFUSED, f"an unexpected error: {type(error).__name__}: {error}")
                self._note(unexpected)
                await asyncio.sleep(self._pause_s(unexpected))

    async def _list(self) -> None:
        self._verb = "list"
        everything: dict[str, Kept[T]] = {}
        version = ""
        async with aclosing(self._client.pages(self.resource, self._namespace, self._query)) as pages:
            async for page in pages:
                everything.update(map(self.reflection.keep, page.objects))
                version = page.version
        self._list_again_s = self._clock() + self._timings.relist_s * self._rng.uniform(0.8, 1.2)
        self._heard()
        was_installed, self.is_installed, self._missing_since_s = self.is_installed, True, None
        if self.reflection.listed(everything, version) or was_installed is False:
            self._on_change()

    async def _watch(self) -> None:
        """Returns when the API server ended it in order."""
        self._verb = "watch"
        query = {
            **self._query,
            "resourceVersion": self.reflection.watch_from or "",
            "timeoutSeconds": str(self._timings.watch_s),
        }
        started_s = self._clock()
        events = 0
        watch = self._client.watch(self.resource, self._namespace, query)
        try:
            async with asyncio.timeout(self._timings.watch_s + self._timings.grace_s), aclosing(watch) as batches:
                async for batch in batches:
                    self._heard()
                    events += len(batch)
                    changed = False
                    for kind, obj in batch:
                        changed |= self.reflection.happened(kind, obj)
                    if changed:
                        self._on_change()
                    if events:
                        self._failures_in_a_row = 0
        except TimeoutError:
            raise ApiFailure(Kind.STALLED, f"a watch said nothing for {self._clock() - started_s:.0f} s") from None
        ended_at_once = self._clock() - started_s < min(1.0, self._timings.watch_s / 2)
        if ended_at_once and not events:
            raise ApiFailure(Kind.UNREACHABLE, "the watch ended at once")
        self._heard()
        self._failures_in_a_row = 0
        if ended_at_once:  # with news, which may be the same each time
            await asyncio.sleep(self._timings.first_pause_s)

    def _heard(self) -> None:
        self.heard_s = self._clock()
        if self.failure is not None:
            logger.info("%s: in touch with the API server again", self.resource.name)
        self.failure = None

    def _note(self, failure: ApiFailure) -> None:
        is_expected = self._optional and failure.kind is Kind.NOT_FOUND
        if not is_expected:
            self._on_error(self.resource.plural, failure.kind)
        if failure.kind not in (Kind.UNREACHABLE, Kind.BUSY):  # then it is worth to try where we were
            self.reflection.must_list()
        known_kind = None if self.failure is None else self.failure.kind
        self.failure = failure
        self._failures_in_a_row += 1
        if failure.kind is Kind.EXPIRED or failure.kind is known_kind:  # the former is healed by the list that follows
            logger.debug("%s", self.problem)
        else:
            kept = f" ({len(self.reflection.kept)} of before stay)" if self.reflection.synced else ""
            logger.log(logging.INFO if is_expected else logging.WARNING, "%s%s", self.problem, kept)
        if self.is_installed is not False and self._is_uninstalled(failure):
            self.is_installed = False
            self._on_change()

    def _is_uninstalled(self, failure: ApiFailure) -> bool:
        """A kind goes after its objects. One that is missed sooner may be of an API server that has just started."""
        if failure.kind is not Kind.NOT_FOUND:
            self._missing_since_s = None
            return False
        if self._missing_since_s is None:
            self._missing_since_s = self._clock()
        is_missed_for_s = self._clock() - self._missing_since_s
        return self.is_installed is None or not self.reflection.kept or is_missed_for_s >= self._timings.absent_pause_s

    def _pause_s(self, failure: ApiFailure) -> float:
        timings = self._timings
        if self._optional and failure.kind in (Kind.NOT_FOUND, Kind.FORBIDDEN) and not self.reflection.synced:
            longest_s = timings.absent_pause_s
        elif self._failures_in_a_row == 1 and failure.kind in (Kind.EXPIRED, Kind.STALLED):
            return 0.0
        else:
            longest_s = min(timings.longest_pause_s, timings.first_pause_s * 2 ** min(self._failures_in_a_row - 1, 30))
        return longest_s * self._rng.uniform(0.5, 1.0)
