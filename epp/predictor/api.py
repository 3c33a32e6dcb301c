"""The HTTP API of llm-d's training and prediction servers, in one application, and two paths of our own.

Where it differs from llm-d's:

* Not ready is 503 until real rows were learned from. `tpot_ms` is `null` while no answer was seen to stream.
* A bad row does not take the good ones of its batch along: these are learned from, the answer is 202 and says which
  were rejected. Only a batch without any good row is 422.
* Models are not handed out as pickles, see `epp.predictor.model_pages`.
* `timestamp` of a row is checked and not used: a row counts from its arrival.
* `/model/export`, `/model/{target}/lgb/…` and `/debug/prefix_distribution` are 404. What they are for is done by
  `epp model export` and `/status`.

Our own: `/samples` takes what one of our pickers learned, see `epp.latency.sample_json`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from epp import __version__
from epp.latency.sample_json import from_json
from epp.latency.types import Target
from epp.observe.families import Families
from epp.observe.predictor import PredictorMetrics
from epp.predictor.http import NOT_READY, body_of, checked, in_json, json_response, sorted_out
from epp.predictor.model_pages import ModelPages
from epp.predictor.service import NotReady, PredictionService
from epp.predictor.wire import (
    FLUSH,
    PREDICTION_ROW,
    TRAINING_ROW,
    Flush,
    PredictionRow,
    Refused,
    TrainingRow,
    mistake,
    rows_in,
)

MOST_BODY_BYTES = 32 * 2**20
ROWS_AT_ONCE = 250
"""So many rows are learned before others have their turn: some ten milliseconds."""

BANNER = {"message": "Headroom latency predictor", "version": __version__, "status": "running"}


class PredictorApi:
    """
    Args:
        reload: fetch the newest model from the training server now; returns whether ours is the newest then. `None`:
            there is no such server, or models are trained here.
        training_server_url: that server.
    """

    def __init__(
        self,
        service: PredictionService,
        clock: Callable[[], float],
        *,
        reload: Callable[[], Awaitable[bool]] | None = None,
        training_server_url: str | None = None,
    ) -> None:
        self._service = service
        self._clock = clock
        self._reload = reload
        self._pages = ModelPages(service, clock, training_server_url)
        self._registry = CollectorRegistry()
        families = Families(self._registry)
        self._figures = PredictorMetrics(families)
        self._predicted = families.counter("predictor_server_predictions", "Rows that were predicted.", ())
        self._learned = families.counter("predictor_server_rows", "Rows to learn from, accepted or not.", ("result",))

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[in_json])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.post("/predict", self._predict),
                web.post("/predict/bulk", self._predict_bulk),
                web.post("/predict/bulk/strict", self._predict_bulk_strict),
                web.post("/add_training_data_bulk", self._add_training_data),
                web.post("/samples", self._add_samples),
                web.post("/flush", self._flush),
                web.post("/reload", self._reload_now),
            ]
        )
        app.add_routes(self._pages.routes())
        return app

    # --- predict ----------------------------------------------------------------------------------------------------

    async def _predict(self, request: web.Request) -> web.Response:
        row = checked(PREDICTION_ROW, await body_of(request))
        (answer,) = self._answers([row])
        return json_response(answer)

    async def _predict_bulk_strict(self, request: web.Request) -> web.Response:
        """All rows, or none."""
        began_s = perf_counter()
        rows, errors = sorted_out(PREDICTION_ROW, rows_in(await body_of(request), "requests"), "requests")
        if errors:
            raise Refused([entry for found in errors.values() for entry in found])
        answers = self._answers(list(rows.values()))
        return json_response(
            {
                "predictions": answers,
                "total_requests": len(answers),
                "successful_predictions": len(answers),
                "failed_predictions": 0,
                "processing_time_ms": (perf_counter() - began_s) * 1e3,
            }
        )

    async def _predict_bulk(self, request: web.Request) -> web.Response:
        """What can be predicted; 200 also if that is nothing."""
        began_s = perf_counter()
        sent = rows_in(await body_of(request), "requests")
        rows, errors = sorted_out(PREDICTION_ROW, sent, "requests")
        answers: list[Any] = [None] * len(sent)
        why = {index: "; ".join(entry["msg"] for entry in found) for index, found in errors.items()}
        try:
            for index, answer in zip(rows, self._answers(list(rows.values())) if rows else [], strict=True):
                answers[index] = answer
        except NotReady:
            why |= dict.fromkeys(rows, NOT_READY)
        return json_response(
            {
                "predictions": answers,
                "errors": [{"index": i, "error": text, "request": sent[i]} for i, text in sorted(why.items())],
                "total_requests": len(sent),
                "successful_predictions": len(sent) - len(why),
                "failed_predictions": len(why),
                "processing_time_ms": (perf_counter() - began_s) * 1e3,
            }
        )

    def _answers(self, rows: list[PredictionRow]) -> list[dict[str, Any]]:
        answers = self._service.predict(rows)
        self._predicted[()].value += len(answers)
        return answers

    # --- learn ------------------------------------------------------------------------------------------------------

    async def _add_training_data(self, request: web.Request) -> web.Response:
        sent = rows_in(await body_of(request), "entries")
        rows, errors = sorted_out(TRAINING_ROW, sent, "entries")
        self._learned["rejected",].value += len(errors)
        if errors and not rows:
            raise Refused([entry for found in errors.values() for entry in found])
        good: list[TrainingRow] = list(rows.values())
        for start in range(0, len(good), ROWS_AT_ONCE):
            self._service.learn(good[start : start + ROWS_AT_ONCE])
            await asyncio.sleep(0)
        self._learned["accepted",].value += len(good)
        answer: dict[str, Any] = {"message": f"Accepted {len(good)} training samples."}
        if errors:
            answer["rejected"] = [{"index": i, "detail": found} for i, found in errors.items()]
        return json_response(answer, 202)

    async def _add_samples(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        try:
            samples = from_json(body, self._clock())
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise Refused([mistake("value_error", (), f"These are no samples: {type(error).__name__}")]) from error
        for start in range(0, len(samples), ROWS_AT_ONCE):
            self._service.learn_samples(samples[start : start + ROWS_AT_ONCE])
            await asyncio.sleep(0)
        self._learned["accepted",].value += len(samples)
        return json_response({"message": f"Accepted {len(samples)} training samples."}, 202)

    async def _flush(self, request: web.Request) -> web.Response:
        asked = checked(FLUSH, await body_of(request)) if await request.read() else Flush()
        counts = self._service.flush(samples=asked.flush_training_data, errors=asked.flush_metrics)
        return json_response(
            {
                "success": True,
                "flushed_at": self._service.now(),
                "reason": asked.reason,
                "ttft_training_samples_flushed": counts[Target.TTFT],
                "tpot_training_samples_flushed": counts[Target.TPOT],
                "ttft_test_samples_flushed": 0,  # there are no others: a model is tested on the newest samples
                "tpot_test_samples_flushed": 0,
                "metrics_cleared": asked.flush_metrics,
                "message": "Flushed; what was learned stays.",
            }
        )

    # --- look at ----------------------------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        return json_response({**BANNER, "is_ready": self._service.ready})

    async def _healthz(self, request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        if not self._service.ready:
            raise NotReady
        return json_response({"status": "ready"})

    async def _metrics(self, request: web.Request) -> web.Response:
        self._figures.refresh(self._service.predictor, self._clock())
        encode, content_type = choose_encoder(",".join(request.headers.getall("Accept", ())))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def _reload_now(self, request: web.Request) -> web.Response:
        synced = False if self._reload is None else await self._reload()
        return json_response(
            {
                "synced": synced,
                "loaded": self._service.ready,
                "is_ready": self._service.ready,
                **self._service.described(),
                "last_load_time": self._service.trained_at(),
            }
        )
