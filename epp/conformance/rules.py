"""Envoy's side of an ext_proc stream: what a picker may reply, and what becomes of the HTTP messages.

`Rules` is told each part that Envoy sends and judges each reply as Envoy's filter does. What Envoy answers with an
error, or what loses bytes, is a `RuleBroken` whose text says which rule it was. What Envoy forgives, though it is a
mistake, is a lapse and only noted: other proxies need not forgive it.
"""

from collections import deque
from dataclasses import dataclass, field

import betterproto2
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    BodyMutation,
    CommonResponse,
    CommonResponseResponseStatus,
    HeaderMutation,
    ImmediateResponse,
    ProcessingResponse,
)

from epp.conformance.connection import OK, Status
from epp.conformance.http import BodyMode, HttpMessage, Kind, Modes, Pairs, Part, Side
from epp.conformance.mutation import apply

FULL_DUPLEX = BodyMode.FULL_DUPLEX_STREAMED


class RuleBroken(Exception):
    """The picker broke one of Envoy's rules. The text is a sentence that says which."""


@dataclass
class Direction:
    """The request or the response on its way through the picker.

    Attributes:
        headers: as they stand after the picker's mutations; trailers likewise.
        forwarded: body bytes that have passed.
        pieces: sizes of the body pieces that the picker sent back (FULL_DUPLEX_STREAMED).
        mutations: of the headers, as the picker sent them.
        clears_route_cache: it asked for another choice of the route.
    """

    side: Side
    mode: BodyMode
    message: HttpMessage
    max_headers: int
    lapses: list[str]
    headers: Pairs = ()
    trailers: Pairs | None = None
    sent: list[Part] = field(default_factory=list)
    forwarded: bytearray = field(default_factory=bytearray)
    pieces: list[int] = field(default_factory=list)
    mutations: list[HeaderMutation] = field(default_factory=list)
    clears_route_cache: bool = False
    headers_answered: bool = False
    trailers_answered: bool = False
    ended: bool = False
    replaced: bool = False  # by CONTINUE_AND_REPLACE: the client's own body is dropped
    _waiting: deque[Part] = field(default_factory=deque)  # sent and not answered; not used in FULL_DUPLEX_STREAMED
    _claimed_length: str | None = None

    def __post_init__(self) -> None:
        self.headers = tuple(self.message.headers)
        self.trailers = self.message.trailers

    def send(self, part: Part) -> None:
        self.sent.append(part)
        if self.mode is not FULL_DUPLEX:
            self._waiting.append(part)

    @property
    def due(self) -> str | None:
        """What Envoy waits for; `None` when it is free to go on."""
        if self.mode is not FULL_DUPLEX:
            return f"the reply to {self.side} {self._waiting[0].kind}" if self._waiting else None
        last = self.sent[-1] if self.sent else None
        if last is None or not (last.end or last.kind is Kind.TRAILERS):
            return None
        if self._was_sent(Kind.HEADERS) and not self.headers_answered:
            return f"the reply to {self.side} headers"
        if last.kind is Kind.BODY and not self.ended:
            return f"the end of the {self.side} body"
        if last.kind is Kind.TRAILERS and not self.trailers_answered:
            return f"the reply to {self.side} trailers"
        return None

    @property
    def passed_on(self) -> bytes:
        """The body that the other side gets: what came back from the picker, and what it was not shown."""
        if self.replaced:
            return bytes(self.forwarded)
        shown = sum(len(part.body) for part in self.sent)
        return bytes(self.forwarded) + self.message.body[shown:]

    def reply(self, kind: Kind, common: CommonResponse | None, trailers: HeaderMutation | None) -> None:
        match kind:
            case Kind.HEADERS:
                self._headers_reply(common or CommonResponse())
            case Kind.BODY:
                self._body_reply(common or CommonResponse())
            case Kind.TRAILERS:
                self._trailers_reply(trailers)

    def stopped(self) -> None:
        """The picker ended the stream with OK: Envoy goes on alone."""
        if self.mode is FULL_DUPLEX and self.due is not None:
            raise RuleBroken(
                f"The picker ended the stream while {self.due} was due: in FULL_DUPLEX_STREAMED Envoy has given the "
                "body away, and passes on an empty or a cut one."
            )
        unechoed = sum(len(part.body) for part in self.sent) - len(self.forwarded)
        if self.mode is FULL_DUPLEX and unechoed > 0 and not self.replaced:
            raise RuleBroken(
                f"The picker ended the stream with {unechoed} bytes of the {self.side} body not sent back."
            )
        for part in self._waiting:
            self.forwarded += part.body
        self._waiting.clear()

    def check_length(self) -> None:
        """Once the direction is through: a content-length that was set must be true."""
        if self._claimed_length is not None and self._claimed_length != str(len(self.passed_on)):
            raise RuleBroken(
                f"The picker set content-length {self._claimed_length} on a {self.side} whose body has "
                f"{len(self.passed_on)} bytes."
            )

    # --- replies -----------------------------------------------------------------------------------------------------

    def _headers_reply(self, common: CommonResponse) -> None:
        name = f"{self.side}_headers"
        if not self._was_sent(Kind.HEADERS):
            raise RuleBroken(f"A {name} reply came, but Envoy has sent no {self.side} headers: a spurious message.")
        if self.headers_answered:
            raise RuleBroken(f"A second {name} reply came: Envoy takes exactly one.")
        self._take_turn(Kind.HEADERS, name)
        self.headers_answered = True
        self._mutate(common.header_mutation)
        self.clears_route_cache |= common.clear_route_cache
        if common.clear_route_cache and self.side is Side.RESPONSE:
            self.lapses.append("clear_route_cache on a response: Envoy ignores it and counts it.")
        if common.status == CommonResponseResponseStatus.CONTINUE_AND_REPLACE:
            if self.mode is FULL_DUPLEX:
                raise RuleBroken("CONTINUE_AND_REPLACE is not allowed in FULL_DUPLEX_STREAMED.")
            self.replaced = self.ended = True
            if common.body_mutation is not None:
                self.forwarded += common.body_mutation.body or b""
        elif common.body_mutation is not None:
            self.lapses.append(f"A body_mutation in a {name} reply without CONTINUE_AND_REPLACE: Envoy ignores it.")

    def _body_reply(self, common: CommonResponse) -> None:
        name = f"{self.side}_body"
        mutation = common.body_mutation or BodyMutation()
        if common.status == CommonResponseResponseStatus.CONTINUE_AND_REPLACE:
            raise RuleBroken(f"CONTINUE_AND_REPLACE came in a {name} reply: it is for headers replies only.")
        if self.mode is FULL_DUPLEX:
            self._streamed(name, mutation)
            return
        if mutation.streamed_response is not None:
            raise RuleBroken(
                f"A streamed_response came in mode {self.mode.name}: it is for FULL_DUPLEX_STREAMED only, anywhere "
                "else a spurious message."
            )
        part = self._take_turn(Kind.BODY, name)
        self.clears_route_cache |= common.clear_route_cache
        data = part.body
        if mutation.body is not None or mutation.clear_body:
            data = mutation.body or b""
        if common.header_mutation is None:
            pass
        elif self.mode is BodyMode.STREAMED:
            self.lapses.append(
                f"A header mutation in a {name} reply in STREAMED: the headers have left, nothing is set."
            )
        else:
            self._mutate(common.header_mutation)
        if mutation.body is not None and self.mode is BodyMode.BUFFERED:
            length = dict(self.headers).get("content-length")
            if length is not None and length != str(len(data)):
                raise RuleBroken(
                    f"A {self.side} body of {len(data)} bytes was put in place under content-length {length}: Envoy "
                    "answers 500 for a mismatch of content length and mutated body."
                )
        self.forwarded += data
        self.ended |= part.end

    def _streamed(self, name: str, mutation: BodyMutation) -> None:
        if mutation.streamed_response is None:
            raise RuleBroken(
                f"A {name} reply without streamed_response came in FULL_DUPLEX_STREAMED: a spurious message."
            )
        piece = mutation.streamed_response
        if self._was_sent(Kind.HEADERS) and not self.headers_answered:
            raise RuleBroken(f"A {name} reply came before the {self.side}_headers reply: headers go first.")
        if self.ended:
            raise RuleBroken(f"A {name} reply came after the one with end_of_stream.")
        if self.trailers_answered:
            raise RuleBroken(f"A {name} reply came after the {self.side}_trailers reply: trailers go last.")
        if not any(part.kind is Kind.BODY for part in self.sent) and not self._was_sent(Kind.TRAILERS):
            raise RuleBroken(f"A {name} reply came, but Envoy has sent no {self.side} body: a spurious message.")
        if piece.end_of_stream:
            if self._was_sent(Kind.TRAILERS):
                raise RuleBroken(f"end_of_stream came in a {name} reply, but the {self.side} ends with its trailers.")
            if not any(part.end for part in self.sent):
                raise RuleBroken(f"end_of_stream came in a {name} reply before Envoy had sent the end of the body.")
            self.ended = True
        elif not piece.body:
            self.lapses.append(f"A {name} reply with neither bytes nor an end.")
        self.pieces.append(len(piece.body))
        self.forwarded += piece.body

    def _trailers_reply(self, mutation: HeaderMutation | None) -> None:
        name = f"{self.side}_trailers"
        if not self._was_sent(Kind.TRAILERS):
            raise RuleBroken(f"A {name} reply came, but Envoy has sent no {self.side} trailers: a spurious message.")
        if self.trailers_answered:
            raise RuleBroken(f"A second {name} reply came: Envoy takes exactly one.")
        if self._was_sent(Kind.HEADERS) and not self.headers_answered:
            raise RuleBroken(f"A {name} reply came before the {self.side}_headers reply: headers go first.")
        self._take_turn(Kind.TRAILERS, name)
        self.trailers_answered = True
        if mutation is not None:
            self.trailers = self._mutated(self.trailers or (), mutation)

    def _take_turn(self, kind: Kind, name: str) -> Part:
        """Outside of FULL_DUPLEX_STREAMED each part has one reply, in order."""
        if self.mode is FULL_DUPLEX:
            return Part(kind)
        if not self._waiting:
            raise RuleBroken(f"A {name} reply came where none was due: a spurious message.")
        part = self._waiting.popleft()
        if part.kind is not kind:
            raise RuleBroken(f"A {name} reply came where the reply to {self.side} {part.kind} was due.")
        return part

    def _was_sent(self, kind: Kind) -> bool:
        return any(part.kind is kind for part in self.sent)

    def _mutate(self, mutation: HeaderMutation | None) -> None:
        if mutation is not None:
            self.mutations.append(mutation)
            self.headers = self._mutated(self.headers, mutation)

    def _mutated(self, pairs: Pairs, mutation: HeaderMutation) -> Pairs:
        for what, count in (("sets", len(mutation.set_headers)), ("removes", len(mutation.remove_headers))):
            if count > self.max_headers:
                raise RuleBroken(
                    f"A mutation {what} {count} headers: Envoy fails the request beyond {self.max_headers}."
                )
        after, lapses, broken = apply(pairs, mutation)
        if broken is not None:
            raise RuleBroken(broken)
        self.lapses.extend(lapses)
        lengths = [value for name, value in after if name == "content-length"]
        if any(
            option.header is not None and option.header.key.lower() == "content-length"
            for option in mutation.set_headers
        ):
            if len(lengths) > 1:
                raise RuleBroken("The mutation leaves more than one content-length.")
            self._claimed_length = lengths[0]
            if self.mode not in (BodyMode.BUFFERED, BodyMode.NONE):
                self.lapses.append(
                    f"content-length is set on a {self.side} in {self.mode.name}: the body is not known when the "
                    "headers leave, Envoy drops the header, and other proxies may believe it."
                )
        if len(after) > max(self.max_headers, len(pairs)):
            raise RuleBroken(f"After the mutation there are {len(after)} headers: Envoy allows {self.max_headers}.")
        return after


class Rules:
    """One ext_proc stream.

    Attributes:
        immediate: the picker's own answer to the client, once it has given one.
        metadata: what the picker's dynamic metadata add up to, namespace to key to value.
        replies: how many have come.
    """

    def __init__(
        self,
        modes: Modes,
        request: HttpMessage,
        response: HttpMessage,
        *,
        observing: bool = False,
        max_headers: int = 100,
    ) -> None:
        self.lapses: list[str] = []
        self.request = Direction(Side.REQUEST, modes.request, request, max_headers, self.lapses)
        self.response = Direction(Side.RESPONSE, modes.response, response, max_headers, self.lapses)
        self.immediate: ImmediateResponse | None = None
        self.metadata: dict[str, dict[str, object]] = {}
        self.replies = 0
        self._observing = observing

    def of(self, side: Side) -> Direction:
        return self.request if side is Side.REQUEST else self.response

    def sent(self, side: Side, part: Part) -> None:
        if not self._observing:
            self.of(side).send(part)

    @property
    def due(self) -> str | None:
        return None if self.immediate is not None else self.request.due or self.response.due

    def got(self, reply: ProcessingResponse) -> None:
        """Judge a reply. Raises `RuleBroken`."""
        self.replies += 1
        if self._observing:
            raise RuleBroken("A reply came in observability mode: Envoy sends copies and takes no answers.")
        if self.immediate is not None:
            raise RuleBroken("A reply came after the immediate_response, which is the last word.")
        name, value = betterproto2.which_one_of(reply, "response")
        if reply.dynamic_metadata is not None:
            for namespace, values in reply.dynamic_metadata.to_dict().items():
                if not isinstance(values, dict):
                    raise RuleBroken("Dynamic metadata must map a namespace to a struct.")
                self.metadata.setdefault(namespace, {}).update(values)
        if reply.mode_override is not None:
            self.lapses.append("A mode_override: Envoy ignores it unless its configuration allows it.")
        match value:
            case None:
                raise RuleBroken("A reply without any response in it came: a spurious message.")
            case ImmediateResponse():
                self._immediate(value)
            case _:
                side, _, kind = name.partition("_")
                if kind not in tuple(Kind):
                    raise RuleBroken(f"A {name} came: Envoy does not take it from a picker.")
                common = None if kind == Kind.TRAILERS else value.response
                trailers = value.header_mutation if kind == Kind.TRAILERS else None
                self.of(Side(side)).reply(Kind(kind), common, trailers)

    def closed(self, status: Status) -> None:
        """The picker ended the stream before Envoy did. Raises `RuleBroken`."""
        if status.code != OK:
            raise RuleBroken(
                f"The picker ended the stream with gRPC status {status.name} ({status.message}): Envoy answers 500, "
                "or fails open; an error is said with an immediate_response."
            )
        if self.immediate is None and not self._observing:
            if not self.response.sent:  # when there is a response, nobody needs the rest of the request
                self.request.stopped()
            self.response.stopped()

    def check_lengths(self) -> None:
        if self.immediate is None:
            self.request.check_length()
            self.response.check_length()

    def _immediate(self, answer: ImmediateResponse) -> None:
        code = int(answer.status.code) if answer.status is not None else 0
        if not 200 <= code <= 599:
            raise RuleBroken(f"An immediate_response has HTTP status {code}: it must be 200 to 599.")
        if answer.headers is not None:
            _, _, broken = apply((), answer.headers)
            if broken is not None:
                raise RuleBroken(broken)
        self.immediate = answer
