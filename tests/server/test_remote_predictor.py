"""A predictor that learns with a remote one: what both know, and servers that hang, fail, lie, die and return."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from epp.cli.flags import parse_server_urls
from epp.latency.persistence import dump
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.training import train
from epp.latency.types import Sample, Situation, Source, Target
from epp.predictor.app import PredictorServer, PredictorServerOptions
from epp.problem import Problem
from epp.server.outbox import Outbox
from epp.server.remote import RemotePredictor

TRAINER = PredictorServerOptions(host="127.0.0.1", training_port=0, prediction_port=None, quantile=None)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Picker:
    """A predictor and its remote side, whose rounds are made by hand."""

    def __init__(self, *model_urls: str, training_url: str | None = None, kept: int = 1000, seed: int = 1) -> None:
        self.clock = Clock()
        self.outbox = Outbox(kept)
        self.predictor = Predictor(PredictorOptions(training_min_rows=100), on_sample=self.outbox.add)
        self.remote = RemotePredictor(
            self.predictor,
            self.outbox,
            self.clock,
            random.Random(seed),
            training_url=training_url,
            model_urls=model_urls,
        )
        self._rng = np.random.default_rng(seed)

    def serve(self, requests: int, slow: float = 1.0) -> None:
        """Predict, observe."""
        for _ in range(requests):
            in_flight = float(self._rng.integers(0, 50))
            prediction = self.predictor.predict(situation(in_flight), quantile=0.9)
            self.clock.now_s += 0.1
            noise = self._rng.lognormal(0.0, 0.1, 2)
            actual_ms = {
                Target.TTFT: slow * (50 + in_flight**2 / 10) * noise[0],
                Target.TPOT: slow * (9 + in_flight / 9) * noise[1],
            }
            self.predictor.observe(Sample("default/a", prediction.promise(0), self.clock.now_s, actual_ms))

    async def send(self, timeout_s: float = 5.0) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as client:
            await self.remote.send(client)

    async def pull(self, timeout_s: float = 5.0) -> bool:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as client:
            return await self.remote.pull(client)

    def later(self, seconds: float = 100.0) -> None:
        self.clock.now_s += seconds

    def told(self) -> dict[str, object]:
        return self.remote.state(self.clock.now_s)

    def ttft_ms(self, in_flight: float = 20.0) -> float:
        return float(self.predictor.predict(situation(in_flight)).ttft.mean_ms[0])


def situation(in_flight: float) -> Situation:
    one = np.array([in_flight])
    return Situation(
        endpoint_ids=["default/a"],
        prompt_tokens=500.0,
        max_output_tokens=math.nan,
        is_prefill=np.zeros(1, dtype=np.bool_),
        uncached_tokens=np.array([500.0]),
        waiting_requests=np.zeros(1),
        running_requests=one,
        kv_cache_usage_ratio=np.array([math.nan]),
        in_flight_requests=one,
        prefill_tokens_in_flight=np.zeros(1),
        decode_tokens_in_flight=one * 100,
    )


@asynccontextmanager
async def trainer(options: PredictorServerOptions = TRAINER) -> AsyncIterator[str]:
    async with PredictorServer(options) as server:
        yield f"http://127.0.0.1:{server.ports['training']}"


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[str]:
    """A server that answers everything so."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def trained_state() -> bytes:
    picker = Picker(seed=5)
    picker.serve(400)
    job = picker.predictor.training_due(picker.clock())
    assert job is not None
    assert picker.predictor.publish(train(job))
    return dump(picker.predictor.snapshot(picker.clock()))


# --- with one of ours ---------------------------------------------------------------------------------------------


async def test_a_picker_that_has_seen_nothing_knows_what_another_has_learned() -> None:
    async with trainer() as url:
        old, new = Picker(training_url=url), Picker(training_url=url, seed=2)
        assert not await new.pull()
        assert not new.predictor.ready
        assert not new.remote.is_relied_on
        old.serve(80)
        await old.send()
        assert (len(old.outbox), old.told()["sent_samples"]) == (0, 80)
        assert await new.pull()
        assert new.predictor.is_ready(Target.TTFT)
        assert new.predictor.is_ready(Target.TPOT)
        assert new.predictor.samples_of("default/a") == 80
        assert new.ttft_ms() == pytest.approx(old.ttft_ms(), rel=1e-6)
        assert new.remote.is_relied_on
        new.later()
        assert not new.remote.is_relied_on


async def test_a_model_is_fetched_only_when_it_has_changed() -> None:
    async with trainer() as url:
        picker = Picker(training_url=url)
        picker.serve(60)
        await picker.send()
        assert [await picker.pull() for _ in range(3)] == [True] * 3
        assert picker.told()["taken_models"] == 1


async def test_own_samples_and_served_errors_stay_when_a_model_is_taken() -> None:
    async with trainer() as url:
        picker = Picker(training_url=url)
        picker.serve(60)
        await picker.send()
        assert await picker.pull()
        assert len(picker.predictor.rows(picker.clock())) == 60
        assert picker.predictor.errors(Target.TTFT).samples_total == 60


async def test_trees_that_were_trained_elsewhere_predict_here() -> None:
    content = trained_state()

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=content, headers={"ETag": '"1"'})

    async with scripted(answer) as url:
        picker = Picker(url)
        assert await picker.pull()
        assert picker.predictor.predict(situation(10)).ttft.source is Source.MODEL
        assert picker.predictor.model_version == 1


async def test_trees_of_our_own_are_not_given_up_for_a_server_that_knows_less() -> None:
    async with trainer() as url:
        picker = Picker(training_url=url)
        picker.serve(60)
        await picker.send()
        picker.serve(300)
        job = picker.predictor.training_due(picker.clock())
        assert job is not None
        assert picker.predictor.publish(train(job))
        assert not await picker.pull()
        assert picker.predictor.model_version == 1
        assert not picker.remote.is_relied_on


async def test_a_prediction_server_takes_the_trainers_model_and_hands_samples_on() -> None:
    async with trainer() as url:
        picker = Picker(training_url=url)
        picker.serve(80)
        await picker.send()
        replica = replace(TRAINER, training_port=None, prediction_port=0, training_server_url=url)
        async with PredictorServer(replica) as server, aiohttp.ClientSession() as client:
            base = f"http://127.0.0.1:{server.ports['prediction']}"
            async with client.post(base + "/reload") as response:
                assert (await response.json())["synced"] is True
            async with client.get(base + "/readyz") as response:
                assert response.status == 200
            second = Picker(base, seed=3)
            assert await second.pull()
            assert second.predictor.ready
            row = {"kv_cache_percentage": 0, "input_token_length": 9, "num_request_waiting": 0}
            row |= {"num_request_running": 0, "num_tokens_generated": 0, "prefix_cache_score": 0}
            entries = [row | {"actual_ttft_ms": 40, "actual_tpot_ms": 0}] * 7
            async with client.post(base + "/add_training_data_bulk", json={"entries": entries}) as response:
                assert response.status == 202
            for _ in range(200):
                async with client.get(url + "/data/status") as response:
                    counts = (await response.json())["training_data"]
                if counts["ttft_samples"] == 87:
                    break
                await asyncio.sleep(0.05)
            assert counts["ttft_samples"] == 87


# --- with servers that are not as they should be ------------------------------------------------------------------


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


async def trickle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(300):
        await response.write(b"x")
        await asyncio.sleep(0.1)
    return response


async def fail(request: web.Request) -> web.StreamResponse:
    return web.Response(status=500)


async def garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\x80\x04 a pickle")


async def not_ours(request: web.Request) -> web.StreamResponse:
    return web.Response(status=404, text="Not Found")


async def elsewhere(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:1/")


async def cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"x")
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (hang, "no answer in time"),
        (trickle, "no answer in time"),
        (fail, "answers 500"),
        (garbage, "is none for this version: not a latency model"),
        (not_ours, "not a server of `epp predictor serve`"),
        (elsewhere, "answers 302"),
        (cut, "cannot be reached"),
    ],
)
async def test_what_was_known_stays_and_the_server_is_left_alone_for_longer_and_longer(
    answer: Answer, why: str
) -> None:
    asked = 0

    async def counted(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await answer(request)

    async with scripted(counted) as url:
        picker = Picker(url)
        picker.serve(60)
        before = picker.ttft_ms()
        waits = []
        patience_s = 0.3 if answer in (hang, trickle) else 30.0
        for expected in (1, 2, 3):
            assert not await picker.pull(timeout_s=patience_s)
            assert asked == expected
            (link,) = picker.told()["model_servers"]  # type: ignore[misc]
            assert why in link["last_error"]
            waits.append(link["tried_again_in_s"])
            assert not await picker.pull(timeout_s=patience_s)
            assert asked == expected  # too soon
            picker.later()
        assert waits[0] < waits[1] < waits[2]
        assert picker.ttft_ms() == before
        assert not picker.remote.is_relied_on


@pytest.mark.parametrize("answer", [hang, fail, garbage, not_ours, elsewhere, cut])
async def test_samples_that_nobody_takes_are_kept_within_bounds(answer: Answer) -> None:
    async with scripted(answer) as url:
        picker = Picker(training_url=url, kept=50)
        picker.serve(40)
        await picker.send(timeout_s=0.3)
        assert len(picker.outbox) == 40
        picker.serve(40)
        picker.later()
        await picker.send(timeout_s=0.3)
        assert len(picker.outbox) == 50
        assert picker.told()["dropped_samples"] == 30
        assert picker.predictor.ready  # it learns by itself


async def test_a_server_that_is_killed_and_comes_back_is_used_again() -> None:
    async with trainer() as url:
        picker = Picker(training_url=url)
        picker.serve(60)
        await picker.send()
        assert await picker.pull()
    picker.later()
    picker.serve(20)
    await picker.send()
    assert not await picker.pull()
    assert len(picker.outbox) == 20
    assert picker.predictor.ready
    assert not picker.remote.is_relied_on
    async with trainer(replace(TRAINER, training_port=int(url.rpartition(":")[2]))):
        picker.later()
        picker.serve(40)
        await picker.send()
        assert len(picker.outbox) == 0
        picker.later()
        assert await picker.pull()
        assert picker.remote.is_relied_on


async def test_the_next_server_is_asked_when_one_fails() -> None:
    async with trainer() as url, scripted(fail) as broken:
        Picker()
        teacher = Picker(training_url=url)
        teacher.serve(60)
        await teacher.send()
        picker = Picker(broken, url)
        assert await picker.pull()
        assert picker.predictor.ready


async def test_it_runs_until_cancelled_whatever_its_server_does() -> None:
    async with scripted(garbage) as url:
        picker = Picker(training_url=url)
        picker.serve(60)
        job = asyncio.create_task(picker.remote.run())
        async with asyncio.timeout(30):
            while picker.told()["training_server"]["failures"] == 0:  # type: ignore[index]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not job.done()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job


@pytest.mark.parametrize("text", ["trainer:8000", "ftp://a", "http://", "http://a/path", "http://a?x=1"])
def test_a_url_that_is_none_names_its_flag(text: str) -> None:
    with pytest.raises(Problem, match=r"^--training-server-url: "):
        parse_server_urls(text, "--training-server-url")


def test_urls_are_a_list() -> None:
    assert parse_server_urls(" http://a:1/, https://b ,", "-") == ["http://a:1", "https://b"]
