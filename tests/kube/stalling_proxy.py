"""A TCP proxy that can fall silent: connections stay open and carry nothing any more."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class StallingProxy:
    """
    Attributes:
        port: where it listens.
        refuses: new connections are closed at once.
        stalls: new connections carry nothing, and go on to do so.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._live: set[asyncio.Event] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.refuses = False
        self.stalls = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()

    def stall(self) -> None:
        """What is open, or is opened until `stalls` is taken back, carries nothing any more, in either direction."""
        self.stalls = True
        for stalled in self._live:
            stalled.set()

    def cut(self) -> None:
        """Close what is open."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stalled = asyncio.Event()
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        writers = {writer, there_writer}
        if self.stalls:
            stalled.set()
        self._live.add(stalled)
        self._writers |= writers
        try:
            if not self.refuses:
                await asyncio.gather(_pump(reader, there_writer, stalled), _pump(there_reader, writer, stalled))
        finally:
            self._live.discard(stalled)
            self._writers -= writers
            for each in writers:
                each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stalled: asyncio.Event) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            if not stalled.is_set():
                writer.write(data)
                await writer.drain()
        writer.write_eof()
