"""A predictor that learns in another process: samples go there, its model comes here, no request waits for either.

A decision is made in one go, without I/O, so nothing is predicted remotely. What a remote predictor gives is what it
has learned, from all pickers together: trees, law, biases and calibration, as one versioned artefact, which is fetched
when it has changed and evaluated here. While no server can be reached, or none has learned more than we have, the
picker trains in its own process, on its own samples, as it would without one.

Servers are those of `epp predictor serve`. llm-d's own predict over HTTP and hand out pickles; they are told apart by
what they answer, and left alone.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from epp.latency.predictor import Predictor
from epp.latency.restoring import load
from epp.latency.sample_json import to_json
from epp.latency.types import Sample
from epp.server.outbox import Outbox

logger = logging.getLogger(__name__)

SEND_INTERVAL_S = 1.0
PULL_INTERVAL_S = 10.0
TIMEOUT_S = 5.0
FIRST_WAIT_S, MOST_WAIT_S = 1.0, 60.0
STALE_S = 60.0
"""So long after a server last gave us a model, or said that ours is its newest, the picker relies on it."""

MOST_SENT_SAMPLES = 500
MOST_MODEL_BYTES = 64 * 2**20
SAMPLES_PATH, MODEL_PATH = "/samples", "/model/latency/download"


class RemoteError(Exception):
    """A server did not do as asked; the text says what it did, in a few words."""


@dataclass(slots=True)
class Link:
    """One server as we know it. After each failure it is left alone twice as long as before, up to a minute."""

    url: str
    failures: int = 0
    not_before_s: float = 0.0
    last_error: str | None = None

    def succeeded(self) -> None:
        if self.failures:
            logger.info("%s: the predictor answers again", self.url)
        self.failures, self.not_before_s, self.last_error = 0, 0.0, None

    def failed(self, why: str, now_s: float, rng: random.Random) -> None:
        if why != self.last_error:
            logger.warning("%s: %s; predictions go on with what is known here", self.url, why)
        self.last_error = why
        self.failures += 1
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(self.failures - 1, 10), MOST_WAIT_S)
        self.not_before_s = now_s + wait_s * rng.uniform(0.75, 1.25)

    def state(self, now_s: float) -> dict[str, Any]:
        return {
            "url": self.url,
            "failures": self.failures,
            "last_error": self.last_error,
            "tried_again_in_s": max(self.not_before_s - now_s, 0.0) if self.failures else None,
        }


class RemotePredictor:
    """Keeps `predictor` as good as the remote one, for as long as `run` runs.

    Args:
        outbox: what is to be sent to `training_url`; see `Predictor`'s `on_sample`.
        clock: the clock that predictions are made with, monotonic seconds.
        training_url: where samples go; `None`: nowhere.
        model_urls: where the model comes from, the first that has one; with none, `training_url`.
    """

    def __init__(
        self,
        predictor: Predictor,
        outbox: Outbox,
        clock: Callable[[], float],
        rng: random.Random,
        *,
        training_url: str | None = None,
        model_urls: Sequence[str] = (),
    ) -> None:
        self._predictor = predictor
        self._outbox = outbox
        self._clock = clock
        self._rng = rng
        self._training = None if training_url is None else Link(training_url)
        self._models = [Link(url) for url in model_urls or ([] if training_url is None else [training_url])]
        self._confirmed_at_s: float | None = None
        self._etag: str | None = None  # of the model that was taken last, and its version
        self._taken_version: int | None = None
        self.sent_samples = 0
        self.taken_models = 0

    @property
    def is_relied_on(self) -> bool:
        """What we predict with is a remote predictor's, and not old."""
        return self._confirmed_at_s is not None and self._clock() - self._confirmed_at_s < STALE_S

    async def run(self) -> None:
        """Until cancelled."""
        async with new_client() as client, asyncio.TaskGroup() as jobs:
            jobs.create_task(self._every(SEND_INTERVAL_S, lambda: self.send(client)))
            jobs.create_task(self._every(PULL_INTERVAL_S, lambda: self.pull(client)))

    async def _every(self, interval_s: float, job: Callable[[], Awaitable[object]]) -> None:
        while True:
            await job()
            await asyncio.sleep(interval_s)

    async def send(self, client: aiohttp.ClientSession) -> None:
        """Send what there is; what cannot be sent is kept for later, within bounds."""
        link = self._training
        while link is not None and len(self._outbox) and self._clock() >= link.not_before_s:
            batch = self._outbox.take(MOST_SENT_SAMPLES)
            if not await self._attempt(link, self._post(client, link, batch)):
                self._outbox.put_back(batch)

    async def pull(self, client: aiohttp.ClientSession) -> bool:
        """Take the newest model of the first server that has one. Returns whether ours is the newest now."""
        for link in self._models:
            if self._clock() >= link.not_before_s and await self._attempt(link, self._get(client, link)):
                return True
        return False

    async def _attempt(self, link: Link, work: Awaitable[bool]) -> bool:
        """What `work` returns; False, and the link failed, if the server is at fault."""
        try:
            done = await work
        except RemoteError as error:
            why = str(error)
        except TimeoutError:
            why = "no answer in time"
        except (aiohttp.ClientError, OSError) as error:
            why = f"cannot be reached ({type(error).__name__})"
        else:
            link.succeeded()
            return done
        link.failed(why, self._clock(), self._rng)
        return False

    async def _post(self, client: aiohttp.ClientSession, link: Link, batch: Sequence[Sample]) -> bool:
        body = orjson.dumps(to_json(batch, self._clock()))
        headers = {"Content-Type": "application/json"}
        async with client.post(link.url + SAMPLES_PATH, data=body, headers=headers, allow_redirects=False) as response:
            if response.status == 202:
                self.sent_samples += len(batch)
                return True
            raise RemoteError(_unexpected(response.status))

    async def _get(self, client: aiohttp.ClientSession, link: Link) -> bool:
        ours = self._predictor.model_version == self._taken_version  # and not one trained here since
        headers = {"If-None-Match": self._etag} if ours and self._etag is not None else {}
        async with client.get(link.url + MODEL_PATH, headers=headers, allow_redirects=False) as response:
            if response.status == 503:
                return False  # it works, and has not learned anything yet
            if response.status != 304:
                if response.status != 200:
                    raise RemoteError(_unexpected(response.status))
                if not await self._take(await _limited(response.content)):
                    return False
                self._etag, self._taken_version = response.headers.get("ETag"), self._predictor.model_version
        self._confirmed_at_s = self._clock()
        return True

    async def _take(self, content: bytes) -> bool:
        """Go on from this model, unless that would be a step back."""
        loaded = await asyncio.to_thread(load, content)
        if loaded.state is None:
            raise RemoteError(f"what it calls a model is none for this version: {loaded.reason}")
        if loaded.state.model is None and self._predictor.model_version > 0:
            return False  # it has no trees yet, and we have some
        self._predictor.adopt(loaded.state, self._clock())
        self.taken_models += 1
        return True

    def state(self, now_s: float) -> dict[str, Any]:
        """What there is to know, as plain values."""
        return {
            "relied_on": self.is_relied_on,
            "training_server": None if self._training is None else self._training.state(now_s),
            "model_servers": [link.state(now_s) for link in self._models],
            "confirmed_age_s": None if self._confirmed_at_s is None else now_s - self._confirmed_at_s,
            "taken_models": self.taken_models,
            "sent_samples": self.sent_samples,
            "waiting_samples": len(self._outbox),
            "dropped_samples": self._outbox.dropped,
        }


def new_client() -> aiohttp.ClientSession:
    """For use with the methods above."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))


def _unexpected(status: int) -> str:
    if status in (404, 405):
        return f"answers {status}: not a server of `epp predictor serve`"
    return f"answers {status}"


async def _limited(content: aiohttp.StreamReader) -> bytes:
    pieces, size = [], 0
    async for piece in content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MOST_MODEL_BYTES:
            raise RemoteError(f"its model is larger than {MOST_MODEL_BYTES // 2**20} MiB")
    return b"".join(pieces)
