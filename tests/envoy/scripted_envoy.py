"""Envoy's side of ext_proc by hand: streams that say exactly what a test says, and end as it says."""

from typing import Any

import grpc
from envoy_messages import reply
from grpc import aio

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


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
