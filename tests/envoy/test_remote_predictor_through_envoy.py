"""A picker that learns with a predictor server, through the real Envoy, while the server dies and comes back."""

from dataclasses import replace

import aiohttp
import pytest
from stack import Stack, eventually

from epp.predictor.app import PredictorServer, PredictorServerOptions
from epp.sim.config import SimConfig

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary")]

TRAINER = PredictorServerOptions(host="127.0.0.1", training_port=0, prediction_port=None, quantile=None)
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: predicted-latency-producer
- type: latency-scorer
- type: weighted-random-picker
- type: metrics-data-source
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: predicted-latency-producer
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""
ASKED = {"model": SimConfig().model, "prompt": "word " * 50, "max_tokens": 10, "stream": True}


async def serve(stack: Stack, requests: int) -> None:
    async with aiohttp.ClientSession(stack.url, timeout=aiohttp.ClientTimeout(total=20)) as client:
        for _ in range(requests):
            async with client.post("/v1/completions", json=ASKED) as response:
                await response.read()
                assert response.status == 200


async def test_requests_go_on_while_the_predictor_server_dies_and_comes_back() -> None:
    server = PredictorServer(TRAINER)
    await server.__aenter__()
    try:
        url = f"http://127.0.0.1:{server.ports['training']}"
        pool = [SimConfig(name=f"sim-{i}", seed=i, speed=4.0) for i in range(2)]
        flags = ["--training-server-url", url, "--refresh-prometheus-metrics-interval", "200ms"]
        async with Stack(pool, bootstrap="gateway", config_text=CONFIG, picker_flags=flags) as stack:

            async def remote() -> dict:
                return (await stack.picker_state())["remote_predictor"]

            async def all_sent() -> bool:
                told = await remote()
                return told["sent_samples"] == 60 and told["waiting_samples"] == 0

            await serve(stack, 60)
            await eventually(all_sent)

            async def relied_on() -> bool:
                page = await stack.picker_metrics()
                return page.total("llm_d_epp_predictor_remote") == 1

            await eventually(relied_on, timeout_s=40.0)  # the next pull

            await server.__aexit__(None, None, None)
            await serve(stack, 20)

            async def missed() -> bool:
                told = await remote()
                return told["training_server"]["failures"] > 0 and told["waiting_samples"] == 20

            await eventually(missed)
            assert (await stack.picker_state())["predictor"]["ready"]["ttft"]
            server = PredictorServer(replace(TRAINER, training_port=int(url.rpartition(":")[2])))
            await server.__aenter__()

            async def caught_up() -> bool:
                return (await remote())["sent_samples"] == 80

            await eventually(caught_up, timeout_s=40.0)
            await serve(stack, 5)
    finally:
        await server.__aexit__(None, None, None)


async def test_requests_do_not_wait_for_a_predictor_server_that_is_not_there() -> None:
    flags = ["--training-server-url", "http://127.0.0.1:1", "--prediction-server-url", "http://127.0.0.1:1"]
    async with Stack(2, bootstrap="gateway", config_text=CONFIG, picker_flags=flags) as stack:
        await serve(stack, 10)
        told = (await stack.picker_state())["remote_predictor"]
        assert told["relied_on"] is False
        assert told["model_servers"][0]["failures"] > 0
        assert "cannot be reached" in told["model_servers"][0]["last_error"]
