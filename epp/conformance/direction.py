"""One direction of an exchange, request or response, as Envoy's filter takes it through the picker."""

from collections import deque
from dataclasses import dataclass, field

from envoy_data_plane.envoy.service.ext_proc.v3 import (
    BodyMutation,
    CommonResponse,
    CommonResponseResponseStatus,
    HeaderMutation,
)

from epp.conformance.broken import RuleBroken
from epp.conformance.http import BodyMode, HttpMessage, Kind, Pairs, Part, Side
from epp.conformance.mutation import apply

FULL_DUPLEX = BodyMode.FULL_DUPLEX_STREAMED


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
        after, lapses = apply(pairs, mutation)
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
