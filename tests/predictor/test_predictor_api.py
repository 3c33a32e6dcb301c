"""The predictor server over loopback, as llm-d's picker talks to it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predictor_rows import LOOPBACK, ROW, Client, row
from prometheus_client.parser import text_string_to_metric_families

from epp.latency.predictor import Predictor
from epp.latency.restoring import load
from epp.predictor.app import PredictorServer
from epp.predictor.wire import PREDICTION_ROW, situation_of


async def test_until_real_rows_were_learned_from_there_is_no_prediction(fresh: Client) -> None:
    for port in ("training", "prediction"):
        assert (await fresh.ask("GET", "/healthz", port=port)) == (200, {"status": "ok"})
        assert (await fresh.ask("GET", "/readyz", port=port))[0] == 503
        assert (await fresh.ask("POST", "/predict", ROW, port=port))[0] == 503
    assert (await fresh.ask("POST", "/predict/bulk/strict", {"requests": [ROW]}))[0] == 503
    status, told = await fresh.ask("POST", "/predict/bulk", {"requests": [ROW]})
    assert (status, told["predictions"], told["failed_predictions"]) == (200, [None], 1)
    assert "not ready" in told["errors"][0]["error"]
    assert (await fresh.ask("GET", "/model/latency/download"))[0] == 503
    assert (await fresh.ask("GET", "/status"))[1]["is_ready"] is False
    assert (await fresh.ask("GET", "/model/ttft/xgb/json"))[0] == 404


async def test_what_was_learned_is_predicted_and_alone_or_together_makes_no_difference(fresh: Client) -> None:
    await fresh.teach(100)
    assert await fresh.ask("GET", "/readyz") == (200, {"status": "ready"})
    rows = [row(num_request_running=n, prefix_cache_score=s) for n in (1, 20, 50) for s in (0, 0.5, 1)]
    status, told = await fresh.ask("POST", "/predict/bulk/strict", {"requests": rows})
    assert status == 200
    assert {k: told[k] for k in ("total_requests", "successful_predictions", "failed_predictions")} == {
        "total_requests": 9,
        "successful_predictions": 9,
        "failed_predictions": 0,
    }
    together = [numbers(answer) for answer in told["predictions"]]
    alone = [numbers((await fresh.ask("POST", "/predict", one))[1]) for one in rows]
    lenient = (await fresh.ask("POST", "/predict/bulk", {"requests": rows}))[1]["predictions"]
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    np.testing.assert_allclose(together, [numbers(answer) for answer in lenient], rtol=1e-6)
    ttft, tpot = zip(*together, strict=True)
    assert ttft[0] > ttft[1] > ttft[2]  # more of the prompt is cached
    assert tpot[0] == tpot[1] == tpot[2]
    assert ttft[0] < ttft[6]
    assert tpot[0] < tpot[3] < tpot[6]
    answer = told["predictions"][0]
    assert (answer["model_type"], answer["objective_type"], answer["quantile"]) == ("xgboost", "quantile", 0.9)
    low, high = answer["ttft_prediction_bounds"]
    assert 0 <= low < answer["ttft_ms"] < high


def numbers(answer: dict[str, Any]) -> tuple[float, float]:
    return answer["ttft_ms"], answer["tpot_ms"]


@pytest.mark.parametrize("quantile", [None, 0.5, 0.95])
async def test_answers_are_means_or_bounds_as_configured(quantile: float | None) -> None:
    async with PredictorServer(replace(LOOPBACK, quantile=quantile)) as server, aiohttp.ClientSession() as session:
        client = Client(session, server.ports)
        await client.teach(400)
        answer = (await client.ask("POST", "/predict", ROW))[1]
    assert answer["quantile"] == quantile
    assert answer["objective_type"] == ("mean" if quantile is None else "quantile")
    expected_ms = 40 + 0.03 * (600 + 500) + 0.02 * 36
    factor = {None: 1.0, 0.5: 1.0, 0.95: 1.18}[quantile]  # the noise is lognormal with sigma 0.1
    assert answer["ttft_ms"] == pytest.approx(expected_ms * factor, rel=0.35)
    if quantile == 0.5:
        assert answer["ttft_uncertainty"] is None
    else:
        assert answer["ttft_uncertainty"] == pytest.approx(0.15 * expected_ms, rel=0.9)


async def test_tokens_in_flight_count_on_every_path(fresh: Client) -> None:
    await fresh.teach(100)
    rows = [row(prefill_tokens_in_flight=0), row(prefill_tokens_in_flight=50_000)]
    for path in ("/predict/bulk", "/predict/bulk/strict"):
        first, second = (await fresh.ask("POST", path, {"requests": rows}))[1]["predictions"]
        assert second["ttft_ms"] > 2 * first["ttft_ms"]


async def test_without_streams_there_is_a_ttft_and_no_made_up_tpot(fresh: Client) -> None:
    entries = [row(actual_ttft_ms=2000 + n, actual_tpot_ms=0) for n in range(60)]
    assert (await fresh.ask("POST", "/add_training_data_bulk", {"entries": entries}))[0] == 202
    status, answer = await fresh.ask("POST", "/predict", ROW)
    assert (status, answer["tpot_ms"]) == (200, None)
    assert 1000 < answer["ttft_ms"] < 6000


BAD_FIELDS: list[dict[str, Any]] = [
    {"kv_cache_percentage": 1.0001},
    {"kv_cache_percentage": -0.1},
    {"kv_cache_percentage": None},
    {"prefix_cache_score": 1.5},
    {"input_token_length": -1},
    {"input_token_length": 1.5},
    {"num_request_waiting": "many"},
    {"num_request_running": 10**30},
    {"prefill_tokens_in_flight": -5},
    {"pod_type": 7},
]


@pytest.mark.parametrize("field", BAD_FIELDS)
async def test_a_row_outside_of_its_bounds_is_422_and_names_the_field(fresh: Client, field: dict[str, Any]) -> None:
    await fresh.teach(60)
    (name,) = field
    status, told = await fresh.ask("POST", "/predict", row(**field))
    assert status == 422
    assert [entry["loc"] for entry in told["detail"]] == [["body", name]]
    assert set(told["detail"][0]) == {"type", "loc", "msg"}
    status, told = await fresh.ask("POST", "/predict/bulk/strict", {"requests": [ROW, row(**field)]})
    assert (status, told["detail"][0]["loc"]) == (422, ["body", "requests", 1, name])
    status, told = await fresh.ask("POST", "/predict/bulk", {"requests": [row(**field), ROW]})
    assert (status, told["predictions"][0], told["failed_predictions"]) == (200, None, 1)
    assert told["predictions"][1]["ttft_ms"] > 0
    assert told["errors"][0]["index"] == 0


async def test_a_missing_field_and_an_unknown_type_of_pod(fresh: Client) -> None:
    await fresh.teach(60)
    lacking = {name: value for name, value in ROW.items() if name != "kv_cache_percentage"}
    status, told = await fresh.ask("POST", "/predict", lacking)
    assert (status, told["detail"][0]["type"]) == (422, "missing")
    for pod_type in ("somewhere", None, "decode"):
        assert (await fresh.ask("POST", "/predict", row(pod_type=pod_type)))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b'{"requests": [NaN]}',
        b'{"requests": [{"kv_cache_percentage": Infinity}]}',
        b"[]",
        b"{}",
        b'{"requests": {}}',
        b'{"requests": []}',
        b'{"requests": ' + b"[" * 5000,
    ],
)
async def test_garbage_is_422(fresh: Client, body: bytes) -> None:
    for path in ("/predict/bulk", "/predict/bulk/strict"):
        status, told = await fresh.ask("POST", path, body)
        assert status == 422
        assert told["detail"][0]["loc"][0] == "body"


async def test_too_many_rows_are_422_and_too_many_bytes_413(fresh: Client) -> None:
    assert (await fresh.ask("POST", "/predict/bulk", {"requests": [0] * 10_001}))[0] == 422
    assert (await fresh.ask("POST", "/predict/bulk", b" " * (33 * 2**20)))[0] == 413


async def test_a_bad_row_does_not_take_the_good_ones_along(fresh: Client) -> None:
    good, bad = row(actual_ttft_ms=100, actual_tpot_ms=10), row(actual_ttft_ms=-1, actual_tpot_ms=10)
    status, told = await fresh.ask("POST", "/add_training_data_bulk", {"entries": [good, bad, good]})
    assert (status, told["message"]) == (202, "Accepted 2 training samples.")
    assert [entry["index"] for entry in told["rejected"]] == [1]
    assert (await fresh.ask("POST", "/add_training_data_bulk", {"entries": [bad]}))[0] == 422
    assert (await fresh.ask("POST", "/add_training_data_bulk", {"entries": []}))[0] == 202
    status, told = await fresh.ask("GET", "/data/status")
    assert told["training_data"] == {"ttft_samples": 2, "tpot_samples": 2, "total_samples": 4}
    page = await page_of(fresh)
    assert page["llm_d_epp_predictor_server_rows_total", "rejected"] == 2
    assert page["llm_d_epp_predictor_server_rows_total", "accepted"] == 2


async def page_of(client: Client) -> dict[tuple[str, str], float]:
    async with client.session.get(f"http://127.0.0.1:{client.ports['training']}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    return {(s.name, *s.labels.values())[:2]: s.value for family in families for s in family.samples}


async def test_a_flush_forgets_samples_and_errors_and_keeps_what_was_learned(fresh: Client) -> None:
    await fresh.teach(100)
    before = (await fresh.ask("POST", "/predict", ROW))[1]
    status, told = await fresh.ask("POST", "/flush", {"flush_metrics": False, "reason": "test"})
    assert (status, told["ttft_training_samples_flushed"], told["reason"]) == (200, 100, "test")
    assert (await fresh.ask("POST", "/flush"))[1]["tpot_training_samples_flushed"] == 0
    assert (await fresh.ask("GET", "/data/status"))[1]["training_data"]["total_samples"] == 0
    assert numbers((await fresh.ask("POST", "/predict", ROW))[1]) == pytest.approx(numbers(before))
    assert (await fresh.ask("POST", "/flush", {"flush_metrics": "perhaps"}))[0] == 422


async def test_there_are_no_pickles(fresh: Client) -> None:
    await fresh.teach(60)
    for name in ("ttft", "tpot_gated", "../secret", "unknown"):
        for what in ("info", "download"):
            assert (await fresh.ask("GET", f"/model/{name}/{what}"))[0] == 404
    status, told = await fresh.ask("GET", "/models/list")
    assert status == 200
    assert [name for name, model in told["models"].items() if model["exists"]] == ["latency"]
    assert (await fresh.ask("GET", "/nothing"))[0] == 404
    assert (await fresh.ask("GET", "/predict"))[0] == 405


async def test_it_trains_in_the_background_and_hands_its_model_out_once(fresh: Client) -> None:
    await fresh.teach(600)
    for _ in range(600):
        status, told = await fresh.ask("GET", "/status")
        if told["model_version"]:  # of a training that began amid the samples, and found too few, there is none
            break
        await asyncio.sleep(0.1)
    assert told["model_version"] == 1
    assert told["models_exist"] == {"ttft": True, "tpot": True}
    status, trees = await fresh.ask("GET", "/model/ttft/xgb/json")
    assert status == 200
    assert {"nodeid", "children"} <= set(trees[0])
    url = f"http://127.0.0.1:{fresh.ports['training']}/model/latency/download"
    async with fresh.session.get(url) as response:
        content, etag = await response.read(), response.headers["ETag"]
    loaded = load(content)
    assert loaded.state is not None
    assert len(loaded.state.rows) == 0
    async with fresh.session.get(url, headers={"If-None-Match": etag}) as response:
        assert (response.status, await response.read()) == (304, b"")
    one = Predictor()
    one.restore(loaded.state, 0.0)
    expected = one.predict(situation_of([PREDICTION_ROW.validate_python(ROW)]), quantile=0.9)
    answer = (await fresh.ask("POST", "/predict", ROW))[1]
    assert numbers(answer) == pytest.approx((expected.ttft.bound_ms[0], expected.tpot.bound_ms[1]))


async def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    options = replace(LOOPBACK, prediction_port=None, model_file=str(tmp_path / "latency.model"))
    answers = []
    async with aiohttp.ClientSession() as session:
        for life in range(2):
            async with PredictorServer(options) as server:
                assert set(server.ports) == {"training"}
                client = Client(session, {"prediction": server.ports["training"], **server.ports})
                if life == 0:
                    await client.teach(80)
                answers.append(numbers((await client.ask("POST", "/predict", ROW))[1]))
    assert answers[0] == pytest.approx(answers[1])


ROWS = st.fixed_dictionaries(
    {
        "kv_cache_percentage": st.floats(0, 1),
        "input_token_length": st.integers(0, 10**9),
        "num_request_waiting": st.integers(0, 10**9),
        "num_request_running": st.integers(0, 10**9),
        "num_tokens_generated": st.integers(0, 10**9),
        "prefix_cache_score": st.floats(0, 1),
        "pod_type": st.sampled_from(["", "prefill", "decode", "x", None]),
        "prefill_tokens_in_flight": st.integers(0, 10**9),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=6))
def test_every_row_within_bounds_has_a_prediction(rows: list[dict[str, Any]]) -> None:
    checked = [PREDICTION_ROW.validate_python(one) for one in rows]
    prediction = Predictor().predict(situation_of(checked), quantile=0.9)
    for estimate in (prediction.ttft, prediction.tpot):
        assert (estimate.bound_ms > 0).all()
