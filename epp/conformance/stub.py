"""A stub of Envoy's ext_proc filter: it speaks as Envoy speaks, and holds the picker to Envoy's rules.

    async with Envoy(target) as envoy:
        outcome = await envoy.exchange(request, response)           # one whole HTTP exchange, as Envoy would run it
        async with envoy.stream(request, response) as stream:       # or part by part
            await stream.send(Side.REQUEST, Part(Kind.HEADERS, pairs=request.headers))
            await stream.answered(Side.REQUEST)

A rule that the picker breaks is raised as `RuleBroken` by whatever is being waited for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from envoy_data_plane.envoy.config.core.v3 import HeaderMap, HeaderValue, Metadata
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingModeBodySendMode
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from envoy_data_plane.google.protobuf import Struct

from epp.conformance.broken import RuleBroken
from epp.conformance.connection import Connection, GrpcStream, Target
from epp.conformance.http import HttpMessage, Kind, Pairs, Part, Side, parts_of
from epp.conformance.manner import PLAIN, HeaderForm, Manner, Metadatas
from epp.conformance.recording import Recorder, StreamRecorder
from epp.conformance.rules import Rules

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DESTINATION = "x-gateway-destination-endpoint"
LB_NAMESPACE = "envoy.lb"

# No response is to come, or none is known.
NOTHING = HttpMessage(())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What client and model server see of an exchange."""

    rules: Rules

    @property
    def immediate(self) -> ImmediateResponse | None:
        return self.rules.immediate

    @property
    def answered(self) -> int | None:
        """HTTP status of the picker's own answer, if it gave one."""
        answer = self.rules.immediate
        return int(answer.status.code) if answer is not None and answer.status is not None else None

    @property
    def upstream(self) -> Pairs:
        """Headers that the model server gets."""
        return self.rules.request.headers

    @property
    def downstream(self) -> Pairs:
        """Headers that the client gets."""
        return self.rules.response.headers

    @property
    def destination(self) -> str | None:
        """The destination header on its way to Envoy's router."""
        return dict(self.upstream).get(DESTINATION)

    @property
    def metadata_destination(self) -> Any:
        return self.rules.metadata.get(LB_NAMESPACE, {}).get(DESTINATION)

    @property
    def endpoints(self) -> list[str]:
        return (self.destination or "").split(",") if self.destination else []


class Envoy:
    """One connection from a stub Envoy to a picker.

    Args:
        timeout_s: for each single wait.
        recorder: is told every stream.
    """

    def __init__(self, target: Target, timeout_s: float = 10.0, recorder: Recorder | None = None) -> None:
        self.connection = Connection(target, timeout_s)
        self._timeout_s = timeout_s
        self._recorder = recorder

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.connection.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def stream(
        self, request: HttpMessage, response: HttpMessage = NOTHING, manner: Manner = PLAIN
    ) -> AsyncIterator["Stream"]:
        """An open stream for an exchange, to be driven by hand. It is reset at the end if it is still open."""
        encoding = "gzip" if manner.compress else None
        await self.connection.room()
        grpc = self.connection.stream(METHOD, encoding=encoding)
        record = self._recorder.stream() if self._recorder is not None else None
        stream = Stream(
            grpc,
            Rules(manner.modes, request, response, observing=manner.observing, max_headers=manner.max_headers),
            manner,
            self._timeout_s,
            record,
        )
        try:
            yield stream
        finally:
            await stream.leave()

    async def exchange(self, request: HttpMessage, response: HttpMessage = NOTHING, manner: Manner = PLAIN) -> Outcome:
        """A whole exchange, as Envoy runs it. Raises `RuleBroken`."""
        async with self.stream(request, response, manner) as stream:
            await stream.show(Side.REQUEST, request)
            if response is not NOTHING and not stream.over:
                await stream.show(Side.RESPONSE, response)
            return await stream.finish()


class Stream:
    """One ext_proc stream."""

    def __init__(
        self, grpc: GrpcStream, rules: Rules, manner: Manner, timeout_s: float, recorder: StreamRecorder | None
    ) -> None:
        self.rules = rules
        self.grpc = grpc
        self.manner = manner
        self._timeout_s = timeout_s
        self._recorder = recorder
        self._first = True
        self._leaving = False
        self._broken: RuleBroken | None = None
        self._read_all = False
        self._changed = asyncio.Event()
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @property
    def over(self) -> bool:
        """Nothing more is to be sent: the picker has answered the client itself, or ended the stream."""
        return self.rules.immediate is not None or self._read_all or self._broken is not None

    # --- what Envoy does ---------------------------------------------------------------------------------------------

    async def show(self, side: Side, message: HttpMessage) -> None:
        """Send all parts of a message as its mode has it, and wait until all is answered that must be."""
        for part in parts_of(message, side, self.manner.modes):
            if self.over or self.rules.of(side).replaced:
                break
            await self.send(side, part)
            if self.rules.of(side).due is not None and self._waits(side):
                await self.answered(side)
        await self.answered(side)

    async def send(self, side: Side, part: Part) -> None:
        """Send one part, whether it may come now or not."""
        self.rules.sent(side, part)
        await self.send_message(self.message(side, part))

    async def send_message(self, message: ProcessingRequest) -> None:
        if self._recorder is not None:
            self._recorder.sent(message)
        await self.grpc.send(bytes(message), compress=self.manner.compress, bytewise=self.manner.bytewise)

    def message(self, side: Side, part: Part) -> ProcessingRequest:
        """A part as Envoy writes it."""
        message = ProcessingRequest(observability_mode=self.manner.observing)
        match part.kind:
            case Kind.HEADERS:
                content: Any = HttpHeaders(headers=self._header_map(part.pairs), end_of_stream=part.end)
            case Kind.BODY:
                content = HttpBody(body=part.body, end_of_stream=part.end)
            case Kind.TRAILERS:
                content = HttpTrailers(trailers=self._header_map(part.pairs))
        setattr(message, f"{side}_{part.kind}", content)
        if self._first:
            self._first = False
            if self.manner.announce:
                modes = self.manner.modes
                message.protocol_config = ProtocolConfiguration(
                    request_body_mode=ProcessingModeBodySendMode(modes.request),
                    response_body_mode=ProcessingModeBodySendMode(modes.response),
                )
            if self.manner.attributes is not None:
                message.attributes = _structs(self.manner.attributes)
        metadata = self.manner.request_metadata if side is Side.REQUEST else self.manner.response_metadata
        if metadata is not None:
            message.metadata_context = Metadata(filter_metadata=_structs(metadata))
        return message

    async def answered(self, side: Side) -> None:
        """Wait until nothing is due on this side. Raises `RuleBroken`, also for an answer that does not come."""
        await self.until(lambda: self.rules.of(side).due is None or self.over, lambda: self.rules.of(side).due)

    async def until(self, condition: Callable[[], bool], what: Callable[[], str | None]) -> None:
        """Wait for something that replies bring about."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._broken is None and not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise RuleBroken(f"Envoy has waited {self._timeout_s:g} s in vain for {what()}.") from None
        if self._broken is not None:
            raise self._broken

    async def silent(self, seconds: float) -> None:
        """Let some time pass, in which replies may come that are against the rules."""
        await asyncio.sleep(seconds)
        if self._broken is not None:
            raise self._broken

    async def half_close(self) -> None:
        self._leaving = True
        if self._recorder is not None:
            self._recorder.event("half-close")
        await self.grpc.half_close()

    def reset(self) -> None:
        self._leaving = True
        if self._recorder is not None:
            self._recorder.event("reset")
        self.grpc.reset()

    async def finish(self) -> Outcome:
        """End the exchange as Envoy does: half-close, and wait for the picker to end the stream."""
        if not self._read_all:
            await self.half_close()
        await self.until(lambda: self._read_all, lambda: "the end of the stream after its half-close")
        status = self.grpc.status
        if self._leaving and status is not None and status.code != 0:
            raise RuleBroken(f"The stream ended with {status.name} ({status.message}) after Envoy had half-closed it.")
        self.rules.check_lengths()
        return Outcome(self.rules)

    async def leave(self) -> None:
        if not self._read_all:
            self._leaving = True
            self.grpc.reset()
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader

    # --- what comes back ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            async for data in self.grpc:
                try:
                    reply = ProcessingResponse.parse(data)
                except Exception as error:  # whatever the parser raises for what it cannot read
                    raise RuleBroken("A reply is no ProcessingResponse.") from error
                if self._recorder is not None:
                    self._recorder.got(reply)
                self.rules.got(reply)
                self._changed.set()
            if self._recorder is not None and self.grpc.status is not None:
                self._recorder.ended(self.grpc.status)
            if not self._leaving and self.grpc.status is not None:
                self.rules.closed(self.grpc.status)
        except RuleBroken as broken:
            self._broken = broken
        finally:
            self._read_all = True
            self._changed.set()

    def _waits(self, side: Side) -> bool:
        return self.manner.modes.body_of(side).name != "FULL_DUPLEX_STREAMED"

    def _header_map(self, pairs: Pairs) -> HeaderMap:
        return HeaderMap(headers=[self._header(name, value) for name, value in pairs])

    def _header(self, name: str, value: str) -> HeaderValue:
        match self.manner.header_form:
            case HeaderForm.RAW:
                return HeaderValue(key=name, raw_value=value.encode())
            case HeaderForm.PLAIN:
                return HeaderValue(key=name, value=value)
            case HeaderForm.BOTH:
                return HeaderValue(key=name, value="not this one", raw_value=value.encode())


def _structs(values: Metadatas) -> dict[str, Struct]:
    return {namespace: Struct.from_dict(dict(keys)) for namespace, keys in values.items()}
