"""The pages of the predictor's API that tell of what was learned, and hand it out.

Models are not handed out as pickles: the names of llm-d's pickles are 404. `/model/latency/download` is all that was
learned, as a model file, with an ETag; `/model/{ttft,tpot}/download` would be a pickle, `/model/{ttft,tpot}/xgb/json`
is not.
"""

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from epp.latency.boosters import opened
from epp.latency.types import Target
from epp.predictor.http import json_response, not_found
from epp.predictor.service import MODEL_TYPE, NotReady, PredictionService

LATENCY = "latency"
PICKLES = ("ttft", "tpot", "ttft_scaler", "tpot_scaler", "ttft_gated", "tpot_gated")
"""What llm-d's prediction servers ask for."""


class ModelPages:
    """
    Args:
        training_server_url: where models are fetched from; `None`: they are trained here.
    """

    def __init__(self, service: PredictionService, clock: Callable[[], float], training_server_url: str | None) -> None:
        self._service = service
        self._clock = clock
        self._training_server_url = training_server_url

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/status", self._status),
            web.get("/data/status", self._data_status),
            web.get("/models/list", self._models),
            web.get("/model/download/info", self._download_info),
            web.get("/model/{name}/info", self._model_info),
            web.get("/model/{name}/download", self._model_download),
            web.get("/model/{target}/xgb/json", self._trees),
        ]

    async def _status(self, request: web.Request) -> web.Response:
        return json_response(
            {
                "is_ready": self._service.ready,
                **self._service.described(),
                "last_model_load": self._service.trained_at(),
                "training_server_url": self._training_server_url,
                "models_exist": {target: target in self._trees_by_target() for target in ("ttft", "tpot")},
                "ensemble_active": False,
                "model_version": self._service.predictor.model_version,
                "predictor": self._service.predictor.state(self._clock()),
            }
        )

    async def _data_status(self, request: web.Request) -> web.Response:
        counts = self._service.sample_counts()
        errors = self._service.predictor.errors
        return json_response(
            {
                "training_data": {
                    "ttft_samples": counts[Target.TTFT],
                    "tpot_samples": counts[Target.TPOT],
                    "total_samples": counts[Target.TTFT] + counts[Target.TPOT],
                },
                "test_data": {"ttft_samples": 0, "tpot_samples": 0, "total_samples": 0},
                "ensemble": {"active": False},
                "metrics": {
                    f"{target.value}_scores_count": errors(target).samples_total
                    for target in (Target.TTFT, Target.TPOT)
                },
                "bucket_distribution": self._service.bucket_counts(),
                "model_ready": self._service.ready,
                "last_retrain": self._service.trained_at(),
            }
        )

    async def _models(self, request: web.Request) -> web.Response:
        absent = {"exists": False, "size_bytes": 0, "last_modified": None}
        return json_response(
            {
                "models": dict.fromkeys(PICKLES, absent) | {LATENCY: self._listed()},
                "model_type": MODEL_TYPE,
                "quantile": self._service.quantile,
                "server_time": self._service.now(),
                "evaluation_metrics": self._service.predictor.state(self._clock())["served"],
            }
        )

    async def _download_info(self, request: web.Request) -> web.Response:
        predictor = self._service.predictor
        return json_response(
            {
                "model_type": MODEL_TYPE,
                "quantile": self._service.quantile,
                "available_endpoints": {
                    "trees": {f"{target}_trees": f"/model/{target}/xgb/json" for target in ("ttft", "tpot")},
                    "model_file": f"/model/{LATENCY}/download",
                },
                "model_status": {
                    f"{target.value}_model_ready": predictor.is_ready(target) for target in (Target.TTFT, Target.TPOT)
                },
                "evaluation_info": {
                    "error": "Mean |actual - predicted| / actual of what was served, under /metrics",
                    "coverage": "Share of actual values within their bound, under /metrics",
                },
            }
        )

    async def _model_info(self, request: web.Request) -> web.Response:
        self._named(request)
        described = {"model_name": LATENCY, "path": f"/model/{LATENCY}/download", **self._listed()}
        return json_response(described | {"model_type": MODEL_TYPE, "quantile": self._service.quantile})

    async def _model_download(self, request: web.Request) -> web.Response:
        self._named(request)
        artefact = self._service.artefact()
        headers = {"ETag": artefact.etag, "X-Model-Version": str(artefact.version), "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == artefact.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=artefact.content, content_type="application/octet-stream", headers=headers)

    async def _trees(self, request: web.Request) -> web.Response:
        """XGBoost's dump of the trees for log(ms), one per tree."""
        trees = self._trees_by_target().get(request.match_info["target"])
        if trees is None:
            raise not_found("there are no trees of this name yet")
        return web.Response(
            body=b"[" + b",".join(tree.encode() for tree in opened(trees).get_dump(dump_format="json")) + b"]",
            content_type="application/json",
        )

    def _trees_by_target(self) -> Mapping[str, bytes]:
        return self._service.predictor.trees()

    def _listed(self) -> dict[str, Any]:
        try:
            artefact = self._service.artefact()
        except NotReady:
            return {"exists": False, "size_bytes": 0, "last_modified": None}
        return {
            "exists": True,
            "size_bytes": len(artefact.content),
            "last_modified": artefact.made_at.isoformat(),
            "etag": artefact.etag,
            "model_version": artefact.version,
        }

    def _named(self, request: web.Request) -> None:
        name = request.match_info["name"]
        if name in PICKLES:
            raise not_found(f"there are no pickles here; see /model/{LATENCY}/download and /model/{name}/xgb/json")
        if name != LATENCY:
            raise not_found("no such model")
