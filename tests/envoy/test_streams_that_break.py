"""A thousand ext_proc streams that end in every way at every phase, spoken to a picker's process directly."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from envoy_messages import (
    DROPPED_REASON,
    FULL_DUPLEX,
    RECOMMENDED,
    Modes,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    set_headers,
)
from scripted_envoy import BODY, HEAD, LAST, SSE, ScriptedStream, connect, responding, routed, streaming
from scripted_server import closed_address
from stack import Metrics, eventually

from epp.sim.picker_process import PickerProcess

STREAMS = 1000
AT_ONCE = 40
IN_FLIGHT_WHEN_ENVOY_DIES = 50
MAX_BODY_BYTES = 64 * 1024
SERVERS = [closed_address() for _ in range(3)]

# One request in flight per server is all there may be: from then on what may be shed is shed.
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: active-request-scorer
- type: prefix-cache-scorer
- type: inflight-load-producer
- type: random-picker
- type: concurrency-detector
  parameters: {maxConcurrency: 1}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
  - pluginRef: prefix-cache-scorer
  - pluginRef: random-picker
"""


async def refused(stream: ScriptedStream, status: int) -> None:
    answer = await stream.hear("immediate_response")
    assert answer.immediate_response.status.code == status
    assert set_headers(answer)[DROPPED_REASON]
    assert await stream.end() is grpc.StatusCode.OK


# Each way plays one stream to its end and names the cause that is counted; `None`: it never got as far as to count.


async def reset_before_the_first_message(stream: ScriptedStream, modes: Modes) -> None:
    stream.reset()


async def reset_before_the_bodys_end(stream: ScriptedStream, modes: Modes) -> None:
    await stream.say(request_headers(HEAD, modes=modes))
    if modes == FULL_DUPLEX:
        await stream.say(request_body(BODY[:50], end=False))
    stream.reset()


async def half_closed_before_the_bodys_end(stream: ScriptedStream, modes: Modes) -> None:
    await stream.say(request_headers(HEAD, modes=modes))
    assert await stream.half_close() is grpc.StatusCode.OK


async def reset_while_waiting(stream: ScriptedStream, modes: Modes) -> str:
    await routed(stream, modes)
    stream.reset()
    return "client_gone"


async def half_closed_while_waiting(stream: ScriptedStream, modes: Modes) -> str:
    await routed(stream, modes)
    assert await stream.half_close() is grpc.StatusCode.OK
    return "client_gone"


async def reset_after_the_response_headers(stream: ScriptedStream, modes: Modes) -> str:
    await responding(stream, modes)
    stream.reset()
    return "client_gone"


async def reset_mid_stream(stream: ScriptedStream, modes: Modes) -> str:
    await streaming(stream, modes)
    stream.reset()
    return "client_gone"


async def server_breaks_off_mid_stream(stream: ScriptedStream, modes: Modes) -> str:
    await streaming(stream, modes)
    assert await stream.half_close() is grpc.StatusCode.OK
    return "client_gone"  # Envoy does not tell one from the other


async def reset_after_the_last_byte(stream: ScriptedStream, modes: Modes) -> str:
    await streaming(stream, modes)
    await stream.say(response_body(LAST, end=True))
    await stream.hear("response_body")
    stream.reset()
    return "natural"


async def natural(stream: ScriptedStream, modes: Modes) -> str:
    await streaming(stream, modes)
    await stream.say(response_body(LAST, end=True))
    assert await stream.end() is grpc.StatusCode.OK
    return "natural"


async def natural_with_trailers(stream: ScriptedStream, modes: Modes) -> str:
    await streaming(stream, modes)
    await stream.say(response_trailers())
    assert await stream.end() is grpc.StatusCode.OK
    return "natural"


async def answered_404(stream: ScriptedStream, modes: Modes) -> str:
    await responding(stream, modes, 404)
    await stream.say(response_body(b'{"error":{}}', end=True))
    assert await stream.end() is grpc.StatusCode.OK
    return "natural"


async def answered_500_without_a_body(stream: ScriptedStream, modes: Modes) -> str:
    await routed(stream, modes)
    await stream.say(response_headers(500, SSE, end=True))
    assert await stream.end() is grpc.StatusCode.OK
    return "natural"


async def server_resets_before_the_first_byte(stream: ScriptedStream, modes: Modes) -> str:
    await routed(stream, modes)
    await stream.say(response_headers(503, {"content-type": "text/plain"}))
    await stream.hear("response_headers")
    await stream.say(response_body(b"upstream connect error", end=True))
    assert await stream.end() is grpc.StatusCode.OK
    return "upstream_error"


async def bodyless(stream: ScriptedStream, modes: Modes) -> str:
    await stream.say(request_headers({**HEAD, ":method": "GET", ":path": "/v1/models"}, end=True, modes=modes))
    await stream.hear("request_headers")
    await stream.say(response_headers(200, end=True))
    assert await stream.end() is grpc.StatusCode.OK
    return "natural"


async def bodyless_reset(stream: ScriptedStream, modes: Modes) -> str:
    await stream.say(request_headers({**HEAD, ":method": "GET"}, end=True, modes=modes))
    await stream.hear("request_headers")
    stream.reset()
    return "client_gone"


async def refused_400(stream: ScriptedStream, modes: Modes) -> str:
    await stream.say(request_headers(HEAD, modes=modes))
    if modes == RECOMMENDED:
        await stream.hear("request_headers")
    await stream.say(request_body(b"{not json"))
    await refused(stream, 400)
    return "rejected"


async def refused_413(stream: ScriptedStream, modes: Modes) -> str:
    await stream.say(request_headers(HEAD, modes=modes))
    if modes == RECOMMENDED:
        await stream.hear("request_headers")
    await stream.say(request_body(b" " * (MAX_BODY_BYTES + 1)))
    await refused(stream, 413)
    return "rejected"


async def refused_429(stream: ScriptedStream, modes: Modes) -> str:
    await stream.say(request_headers({**HEAD, "x-llm-d-inference-objective": "batch"}, modes=modes))
    if modes == RECOMMENDED:
        await stream.hear("request_headers")
    await stream.say(request_body(BODY))
    await refused(stream, 429)
    return "rejected"


async def refused_408(stream: ScriptedStream, modes: Modes) -> str:
    await stream.say(request_headers(HEAD, modes=modes))
    if modes == RECOMMENDED:
        await stream.hear("request_headers")
    await refused(stream, 408)
    return "rejected"


async def nonsense_at_first(stream: ScriptedStream, modes: Modes) -> None:
    await stream.say(b"\xff\xff")
    assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT


async def nonsense_in_the_response(stream: ScriptedStream, modes: Modes) -> str:
    await streaming(stream, modes)
    await stream.say(b"\xff\xff")
    assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT
    return "lost"


async def served_elsewhere_and_reset(stream: ScriptedStream, modes: Modes) -> str:
    await responding(stream, modes, served=SERVERS[2])
    stream.reset()
    return "client_gone"


Way = Callable[[ScriptedStream, Modes], Awaitable[str | None]]
WAITING_WAYS = [refused_408]  # takes as long as the picker's deadline, so all of them wait at once
WAYS: list[Way] = [
    reset_before_the_first_message,
    reset_before_the_bodys_end,
    half_closed_before_the_bodys_end,
    reset_while_waiting,
    half_closed_while_waiting,
    reset_after_the_response_headers,
    reset_mid_stream,
    server_breaks_off_mid_stream,
    reset_after_the_last_byte,
    natural,
    natural_with_trailers,
    answered_404,
    answered_500_without_a_body,
    server_resets_before_the_first_byte,
    bodyless,
    bodyless_reset,
    refused_400,
    refused_413,
    refused_429,
    nonsense_at_first,
    nonsense_in_the_response,
    served_elsewhere_and_reset,
    *WAITING_WAYS,
]


def picker(folder: Path, transport: str = "grpc") -> PickerProcess:
    flags = ["--endpoints", ",".join(SERVERS), "--config-text", CONFIG, "--secure-serving=false"]
    flags += [
        "--transport",
        transport,
        "--enable-grpc-stream-metrics",
        "--objective",
        "batch=-1",
        "--refresh-metrics-interval",
        "10s",
    ]
    flags += ["--request-timeout", "4s", "--max-request-body", str(MAX_BODY_BYTES)]
    return PickerProcess(folder, flags)


async def metrics(process: PickerProcess) -> Metrics:
    return Metrics((await process.ask("/metrics")).decode())


@pytest.mark.parametrize("transport", ["grpc", "lean"])
async def test_a_thousand_streams_ended_in_every_way_leave_nothing_behind(tmp_path: Path, transport: str) -> None:
    causes: Counter[str] = Counter()
    async with picker(tmp_path, transport) as process:
        held = connect(process.ports["grpc"])
        for _ in SERVERS:  # the pool is full from here on, to the end
            await routed(ScriptedStream(held), FULL_DUPLEX)

        async def play(number: int, channel: grpc.aio.Channel) -> None:
            way, modes = WAYS[number % len(WAYS)], (FULL_DUPLEX, RECOMMENDED)[number // len(WAYS) % 2]
            async with some_at_once if way not in WAITING_WAYS else no_limit:
                cause = await asyncio.wait_for(way(ScriptedStream(channel), modes), 20)
            if cause is not None:
                causes[cause] += 1

        some_at_once, no_limit = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(STREAMS)
        async with connect(process.ports["grpc"]) as channel:
            await asyncio.gather(*(play(number, channel) for number in range(STREAMS)))

        # Envoy dies with streams in flight: its connection is gone.
        dying = connect(process.ports["grpc"])
        await asyncio.gather(*(streaming(ScriptedStream(dying), FULL_DUPLEX) for _ in range(IN_FLIGHT_WHEN_ENVOY_DIES)))
        in_flight = IN_FLIGHT_WHEN_ENVOY_DIES + len(SERVERS)
        assert (await process.state())["ledger"]["requests"] == in_flight
        assert (await metrics(process)).total("llm_d_epp_inflight_requests") == in_flight
        await dying.close()
        await held.close()
        causes["client_gone"] += in_flight

        async def all_is_over() -> bool:
            return (await metrics(process)).total("llm_d_epp_extproc_streams_inflight") == 0

        await eventually(all_is_over)
        assert (await process.state())["ledger"] == dict.fromkeys((await process.state())["ledger"], 0)
        page = await metrics(process)
        for gauge in ("request_running", "inflight_requests", "inflight_tokens"):
            assert page.total(f"llm_d_epp_{gauge}") == 0, gauge
        counted = {cause: page.total("llm_d_epp_request_end_total", cause=cause) for cause in causes}
        assert counted == dict(causes)
        assert page.total("llm_d_epp_request_end_total") == causes.total()
        sent_on = causes.total() - causes["rejected"]
        assert page.total("llm_d_epp_request_total") == sent_on
        assert "unexpected error" not in process.log()


async def test_fifty_streams_of_one_request_id_are_counted_apart(tmp_path: Path) -> None:
    async with picker(tmp_path) as process, connect(process.ports["grpc"]) as channel:
        streams = [ScriptedStream(channel) for _ in range(50)]
        await asyncio.gather(*(streaming(stream, FULL_DUPLEX) for stream in streams))
        assert (await process.state())["ledger"]["streams"] == 50
        for stream in streams[:20]:
            stream.reset()

        async def thirty_are_left() -> bool:
            return (await process.state())["ledger"]["streams"] == 30

        await eventually(thirty_are_left)
        for stream in streams[20:]:
            await stream.say(response_body(LAST, end=True))
            assert await stream.end() is grpc.StatusCode.OK
        page = await metrics(process)
        assert page.total("llm_d_epp_request_end_total", cause="natural") == 30
        assert page.total("llm_d_epp_request_end_total", cause="client_gone") == 20
        assert page.total("llm_d_epp_inflight_requests") == 0
