"""Envoy's side of ext_proc by hand: streams that say exactly what a test says, and end as it says."""

from typing import Any

import grpc
import orjson
from envoy_messages import RECOMMENDED, Modes, reply, request_body, request_headers, response_body, response_headers
from grpc import aio

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

HEAD = {":method": "POST", ":path": "/v1/completions", "x-request-id": "same"}
BODY = orjson.dumps({"model": "m", "prompt": "once upon a time " * 40, "stream": True})
SSE = {"content-type": "text/event-stream", "x-envoy-upstream-service-time": "1"}
TOKEN = b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'
LAST = b"data: [DONE]\n\n"


def connect(port: int) -> aio.Channel:
    """A connection of its own to a picker without TLS."""
    return aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])


class ScriptedStream:
    """One ext_proc stream."""

    def __init__(self, channel: aio.Channel) -> None:
        self._call = channel.stream_stream(METHOD, None, None)()

    async def say(self, *messages: bytes) -> None:
        for message in messages:
            await self._call.write(message)

    async def hear(self, kind: str) -> Any:
        """The next reply, which must be of this kind."""
        data = await self._call.read()
        assert data is not aio.EOF, f"the stream ended where {kind} was due"
        answer = reply(data)
        assert answer.WhichOneof("response") == kind
        return answer

    async def half_close(self) -> grpc.StatusCode:
        """Say that nothing more comes, and wait for the end."""
        await self._call.done_writing()
        return await self.end()

    async def end(self) -> grpc.StatusCode:
        """Wait until the picker has ended the stream; what it still says is not looked at."""
        try:
            while await self._call.read() is not aio.EOF:
                pass
        except aio.AioRpcError:
            pass
        return await self._call.code()

    def reset(self) -> None:
        self._call.cancel()


# --- the common beginnings of a stream ----------------------------------------------------------------------------


async def routed(stream: ScriptedStream, modes: Modes, **headers: str) -> None:
    """A request that came whole and has its answer."""
    await stream.say(request_headers({**HEAD, **headers}, modes=modes))
    if modes == RECOMMENDED:
        await stream.hear("request_headers")
        await stream.say(request_body(BODY))
    else:
        await stream.say(request_body(BODY[:100], end=False), request_body(BODY[100:]))
        await stream.hear("request_headers")
    await stream.hear("request_body")


async def responding(stream: ScriptedStream, modes: Modes, status: int = 200, served: str | None = None) -> None:
    await routed(stream, modes)
    await stream.say(response_headers(status, SSE, served=served))
    await stream.hear("response_headers")


async def streaming(stream: ScriptedStream, modes: Modes) -> None:
    await responding(stream, modes)
    for _ in range(3):
        await stream.say(response_body(TOKEN))
        await stream.hear("response_body")
