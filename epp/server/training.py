"""Trains and keeps the predictor's model, away from the requests.

Training runs in a process of its own, at the lowest priority: it neither holds this process's interpreter lock nor can
a crash inside a native library take routing down. The process starts with the first job. What it found comes back to
the event loop, which alone touches the predictor. The model file is written by a thread, from a copy.
"""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

from epp.files import PRIVATE, write_atomically
from epp.latency.jobs import TrainedModel, TrainingJob
from epp.latency.persistence import dump
from epp.latency.predictor import Predictor

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
SAVE_INTERVAL_S = 60.0
RETRY_AFTER_FAILURE_S = 60.0
LOWEST_PRIORITY = 19
_PR_SET_PDEATHSIG = 1


class Trainer:
    """Keeps `predictor` trained for as long as `run` runs.

    Args:
        clock: the clock that predictions are made with, monotonic seconds.
        model_file: where model and samples survive a restart; `None` keeps them in memory only.
        wanted: whether to train here now; not, while another process does it for us.
    """

    def __init__(
        self,
        predictor: Predictor,
        clock: Callable[[], float],
        model_file: Path | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._predictor = predictor
        self._clock = clock
        self._model_file = model_file
        self._wanted = wanted
        self._workers: ProcessPoolExecutor | None = None
        self._saved_at_s = clock()

    def restore(self) -> None:
        """Go on from the model file, if there is a good one; else start untrained, and say so."""
        if self._model_file is None:
            return
        try:
            content = self._model_file.read_bytes()
        except FileNotFoundError:
            logger.info("%s: no model yet; starting untrained", self._model_file)
            return
        except OSError as error:
            logger.warning("%s: cannot be read (%s); starting untrained", self._model_file, error.strerror)
            return
        from epp.latency.restoring import load  # loads XGBoost, which nobody needs without a file

        loaded = load(content)
        if loaded.state is None:
            logger.warning("%s: %s; starting untrained", self._model_file, loaded.reason)
            return
        self._predictor.restore(loaded.state, self._clock())
        logger.info("%s: model version %d restored", self._model_file, self._predictor.model_version)

    async def run(self) -> None:
        """Train when it is due and save now and then, until cancelled; then save once more."""
        try:
            while True:
                await asyncio.sleep(LOOK_INTERVAL_S)
                job = self._predictor.training_due(self._clock()) if self._wanted() else None
                if job is not None and not await self._train(job):
                    await asyncio.sleep(RETRY_AFTER_FAILURE_S)
                if self._clock() - self._saved_at_s >= SAVE_INTERVAL_S:
                    await self._save()
        finally:
            if self._workers is not None:
                self._workers.shutdown(wait=False, cancel_futures=True)
            await self._save()

    async def _train(self, job: TrainingJob) -> bool:
        if self._workers is None:
            self._workers = ProcessPoolExecutor(
                max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=_settle_in
            )
        try:
            trained: TrainedModel = await asyncio.get_running_loop().run_in_executor(self._workers, _train, job)
        except BrokenProcessPool:
            logger.warning("the training process died; the served model stays, and training is tried again later")
            self._workers = None
            return False
        except Exception:
            logger.exception("training failed; the served model stays")
            return False
        if not self._wanted():
            return True
        if self._predictor.publish(trained):
            logger.info(
                "model version %d is served, trained on %d requests", self._predictor.model_version, trained.rows
            )
        else:
            logger.debug("a model trained on %d requests was no better on the newest; it is not served", trained.rows)
        return True

    async def _save(self) -> None:
        self._saved_at_s = now_s = self._clock()
        if self._model_file is None:
            return
        state = self._predictor.snapshot(now_s)
        path = self._model_file
        try:
            await asyncio.to_thread(lambda: write_atomically(path, dump(state), PRIVATE))
        except OSError as error:
            logger.warning("%s: the model cannot be saved: %s", path, error.strerror)


def _train(job: TrainingJob) -> TrainedModel:
    """In the training process, which alone loads XGBoost: loading it in this one would hold up requests."""
    from epp.latency.training import train

    return train(job)


def _settle_in() -> None:
    """In the training process: be humble, leave signals to the owner, and do not outlive it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # Linux only; elsewhere the process ends with its pipe
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
