"""Envoy's side of an ext_proc stream: what a picker may reply, and what becomes of the HTTP messages.

`Rules` is told each part that Envoy sends and judges each reply as Envoy's filter does. What Envoy answers with an
error, or what loses bytes, is a `RuleBroken` whose text says which rule it was. What Envoy forgives, though it is a
mistake, is a lapse and only noted: other proxies need not forgive it.
"""

import betterproto2
from envoy_data_plane.envoy.service.ext_proc.v3 import ImmediateResponse, ProcessingResponse

from epp.conformance.broken import RuleBroken
from epp.conformance.connection import OK, Status
from epp.conformance.direction import Direction
from epp.conformance.http import HttpMessage, Kind, Modes, Part, Side
from epp.conformance.mutation import apply


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
            apply((), answer.headers)
        self.immediate = answer
