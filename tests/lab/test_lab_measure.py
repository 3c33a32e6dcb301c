"""Measuring a server over HTTP: the ladder is climbed, and what is measured is what the server takes."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.cli import main
from epp.lab.fit import read_measurements
from epp.lab.measure import measure
from epp.problem import Problem
from epp.sim.config import EngineConfig, SimConfig
from epp.sim.server import SimServer
from epp.sim.timing import Hardware

# Slow enough that what a busy machine adds does not count.
LAW = Hardware(base_ms=25.0, prefill_token_us=200.0, sequence_us=1_000.0)


@pytest.fixture
def url() -> Iterator[str]:
    """A simulated server on a loop of its own, as the measuring has one too."""
    started, address = threading.Event(), []

    async def serve() -> None:
        ended = asyncio.Event()
        config = SimConfig(model="m", engine=EngineConfig(hardware=LAW, noise_sigma=0.0, overhead_ms=(30.0, 30.0)))
        async with SimServer(config) as server:
            address.extend([f"http://{server.address}", asyncio.get_running_loop(), ended])
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    yield address[0]
    address[1].call_soon_threadsafe(address[2].set)
    thread.join(30)


def test_a_server_is_measured_and_fitted(url: str, tmp_path, capsys) -> None:
    csv, shape = tmp_path / "m.csv", tmp_path / "shape.json"
    flags = ["--model", "m", "--repeats", "1", "--longest", "512", "--measurements", str(csv), "--out", str(shape)]
    assert main(["lab", "fit", "--url", url, *flags]) == 0
    found = read_measurements(csv)
    assert [m.streams for m in found] == [1, 1, 2, 4, 8, 16]
    for m in found:
        assert m.output_tokens == 32
        assert m.tpot_ms == pytest.approx(LAW.step_ms(0, m.streams), rel=0.5)
        assert m.ttft_ms > 0.9 * (30.0 + LAW.step_ms(int(m.prompt_tokens), 1))
    assert "mean error of 6 measurements" in capsys.readouterr().out
    assert shape.is_file()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b'data: {"choices": [\n\n', "no JSON"),
        (b'data: {"choices": [{}], "usage": {"prompt_tokens": "x"}}\n\n', "usage has no prompt_tokens"),
        (b"data: [DONE]\n\n", "no tokens or no usage"),
    ],
    ids=["half an event", "usage of another kind", "nothing"],
)
async def test_what_a_server_says_and_makes_no_sense_is_told(answer: bytes, says: str) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=answer, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/completions", handle)
    async with TestServer(app) as server:
        with pytest.raises(Problem, match=says):
            await asyncio.to_thread(measure, str(server.make_url("")), "m", 1, 1)


def test_a_server_that_does_not_know_the_model_or_is_not_there_is_named(url: str, capsys) -> None:
    assert main(["lab", "fit", "--url", url, "--model", "other"]) == 2
    assert "answered 404 to a request for model 'other'" in capsys.readouterr().err
    assert main(["lab", "fit", "--url", "http://127.0.0.1:9"]) == 2
    assert "http://127.0.0.1:9: " in capsys.readouterr().err
