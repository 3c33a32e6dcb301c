"""A recorded conversation can be replayed, to the same picker and to one that answers differently."""

import io
import json
from pathlib import Path

import pytest
from bad_picker import Fault, Picker, immediate, no_fault, streamed

from epp.conformance.broken import RuleBroken
from epp.conformance.checks._http import answer, bodyless, completion, post
from epp.conformance.connection import Connection, Target
from epp.conformance.http import BodyMode, Modes
from epp.conformance.manner import Manner
from epp.conformance.recording import Line, Recorder, load, parse
from epp.conformance.replay import replay
from epp.conformance.stub import Envoy
from epp.problem import Problem

POST = post([completion()[:10], completion()[10:]])


async def recorded() -> list[list[Line]]:
    """Three conversations with a faultless picker."""
    file = io.StringIO()
    async with Picker() as port, Envoy(Target.parse(f"127.0.0.1:{port}", tls=False), 2.0, Recorder(file)) as envoy:
        await envoy.exchange(POST, answer([b"a", b"b"]))
        await envoy.exchange(bodyless(), answer(None, status=204))
        await envoy.exchange(POST, answer(), Manner(Modes(BodyMode.BUFFERED, BodyMode.STREAMED)))
    return parse(file.getvalue().splitlines())


async def replayed(streams: list[list[Line]], fault: Fault) -> list[list[str]]:
    async with Picker(fault) as port, Connection(Target.parse(f"127.0.0.1:{port}", tls=False), 1.0) as connection:
        return [await replay(lines, connection, 1.0) for lines in streams]


async def test_the_same_picker_answers_the_same():
    streams = await recorded()
    assert len(streams) == 3
    assert await replayed(streams, no_fault) == [[], [], []]


async def test_a_body_that_is_cut_otherwise_is_the_same():
    def halves(talk, message, replies):
        if not replies or message.WhichOneof("request") != "request_body" or len(replies) != 2:
            return replies
        return [
            replies[0],
            streamed("request_body", talk.body[:3], False),
            streamed("request_body", talk.body[3:], True),
        ]

    assert await replayed(await recorded(), halves) == [[], [], []]


async def test_another_answer_is_told():
    def refuses(talk, message, replies):
        return [immediate(503)] if message.WhichOneof("request") == "request_headers" else replies

    for differences in await replayed(await recorded(), refuses):
        assert "is immediate_response with status 503." in differences[0]


async def test_a_broken_rule_is_told():
    def spurious(talk, message, replies):
        return [*replies, *replies]

    with pytest.raises(RuleBroken):
        await replayed(await recorded(), spurious)


async def test_an_answer_that_does_not_come_is_told():
    def silent(talk, message, replies):
        return [] if message.WhichOneof("request") == "request_body" else replies

    streams = await recorded()
    ((difference,),) = await replayed(streams[:1], silent)
    assert difference == "2 replies were recorded up to here, 0 replies came."


def test_what_is_no_recording_is_a_problem(tmp_path: Path):
    file = tmp_path / "talk.jsonl"
    with pytest.raises(Problem, match="cannot be read"):
        load(file)
    for text in ("no JSON", json.dumps({"from": "envoy"}), "[]"):
        file.write_text(text)
        with pytest.raises(Problem, match="is no recorded conversation"):
            load(file)
