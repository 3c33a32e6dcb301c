"""Plays the Envoy of a recorded conversation to a picker, and says where its replies differ from the recorded ones.

Compared is what any picker would have to do alike: which replies come in which order, how many bytes go back and where
they end, and with which status a client is refused. Not compared are the destination, added headers, and how a body is
cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import betterproto2
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    BodyResponse,
    HttpBody,
    HttpHeaders,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
)

from epp.conformance.broken import RuleBroken
from epp.conformance.connection import Connection
from epp.conformance.http import BodyMode, HttpMessage, Kind, Modes, Pairs, Part, Side
from epp.conformance.manner import Manner
from epp.conformance.recording import Line, StreamRecorder
from epp.conformance.rules import Rules
from epp.conformance.stub import METHOD, Stream


@dataclass(frozen=True, slots=True)
class _Answer:
    """One reply, or a run of body replies in one direction."""

    kind: str
    size: int = 0  # bytes of a body, or the status of an immediate response
    end: bool = False

    def __str__(self) -> str:
        if self.kind == "immediate_response":
            return f"{self.kind} with status {self.size}"
        return f"{self.kind} of {self.size} bytes{' with the end' if self.end else ''}" if self.size else self.kind


async def replay(lines: Sequence[Line], connection: Connection, timeout_s: float) -> list[str]:
    """Replay one stream. Returns the differences, as sentences. Raises `RuleBroken` if the picker breaks a rule."""
    messages = [ProcessingRequest.from_dict(line["message"]) for line in lines if _is_message(line, "envoy")]
    manner = Manner(_modes(messages), observing=any(message.observability_mode for message in messages))
    rules = Rules(
        manner.modes, _http(messages, Side.REQUEST), _http(messages, Side.RESPONSE), observing=manner.observing
    )
    played: list[Line] = []
    stream = Stream(connection.stream(METHOD), rules, manner, timeout_s, StreamRecorder(played.append))
    try:
        return await _play(stream, lines, played)
    finally:
        await stream.leave()


async def _play(stream: Stream, lines: Sequence[Line], played: list[Line]) -> list[str]:
    wanted: list[Line] = []
    for line in lines:
        if line["from"] == "picker":
            wanted.append(line)
            continue
        try:
            await stream.until(lambda: stream.over or _has_come(wanted, played), lambda: "a reply that was recorded")
        except RuleBroken:
            if stream.over:
                raise
            return [f"{_count(wanted)} were recorded up to here, {_count(played)} came."]
        if stream.over:
            break
        if line.get("event") == "reset":
            stream.reset()
        elif line.get("event") == "half-close":
            await stream.finish()
        else:
            message = ProcessingRequest.from_dict(line["message"])
            stream.rules.sent(*_part(message))
            await stream.send_message(message)
    await stream.until(lambda: stream.over or _has_come(lines, played), lambda: "a reply that was recorded")
    differences = []
    before, after = _answers(lines), _answers(played)
    for number, (old, new) in enumerate(zip(before, after, strict=False), 1):
        if old != new:
            differences.append(f"Reply {number} was recorded as {old}, and is {new}.")
    if len(before) != len(after):
        differences.append(f"{_count(lines)} were recorded, {_count(played)} came.")
    return differences


def _has_come(wanted: Sequence[Line], played: Sequence[Line]) -> bool:
    """As much as was recorded, or more."""
    before, after = _answers(wanted), _answers(played)
    if len(after) != len(before):
        return len(after) > len(before)
    return not before or (after[-1].size >= before[-1].size and after[-1].end >= before[-1].end)


def _count(lines: Sequence[Line]) -> str:
    return f"{len(_answers(lines))} replies"


def _answers(lines: Sequence[Line]) -> list[_Answer]:
    answers: list[_Answer] = []
    for line in lines:
        if not _is_message(line, "picker"):
            continue
        answer = _answer(ProcessingResponse.from_dict(line["message"]))
        if answers and answers[-1].kind == answer.kind and (answer.size or answer.end):
            answer = _Answer(answer.kind, answers.pop().size + answer.size, answer.end)
        answers.append(answer)
    return answers


def _answer(reply: ProcessingResponse) -> _Answer:
    kind, content = betterproto2.which_one_of(reply, "response")
    match content:
        case ImmediateResponse():
            return _Answer(kind, int(content.status.code) if content.status is not None else 0)
        case BodyResponse():
            mutation = content.response.body_mutation if content.response is not None else None
            piece = mutation.streamed_response if mutation is not None else None
            return _Answer(kind) if piece is None else _Answer(kind, len(piece.body), piece.end_of_stream)
    return _Answer(kind or "nothing")


def _is_message(line: Line, sender: str) -> bool:
    return line["from"] == sender and "message" in line


def _part(message: ProcessingRequest) -> tuple[Side, Part]:
    for side in Side:
        for kind in Kind:
            content = getattr(message, f"{side}_{kind}")
            match content:
                case None:
                    continue
                case HttpHeaders():
                    return side, Part(kind, content.end_of_stream, pairs=_pairs(content))
                case HttpBody():
                    return side, Part(kind, content.end_of_stream, content.body)
                case _:
                    return side, Part(kind)
    raise RuleBroken("The recording has a message of no known kind.")


def _http(messages: Sequence[ProcessingRequest], side: Side) -> HttpMessage:
    parts = [part for which, part in map(_part, messages) if which is side]
    headers: Pairs = next((part.pairs for part in parts if part.kind is Kind.HEADERS), ())
    return HttpMessage(headers, [part.body for part in parts if part.kind is Kind.BODY])


def _pairs(headers: HttpHeaders) -> Pairs:
    values = headers.headers.headers if headers.headers is not None else []
    return [(value.key, value.raw_value.decode("utf-8", "replace") or value.value) for value in values]


def _modes(messages: Sequence[ProcessingRequest]) -> Modes:
    config = next((m.protocol_config for m in messages if m.protocol_config is not None), None)
    if config is None:
        return Modes()
    return Modes(BodyMode(int(config.request_body_mode)), BodyMode(int(config.response_body_mode)))
