"""Envoy is asked to spread its streams over several connections; nobody else is made to wait for that."""

import pytest
from hyperframe.frame import HeadersFrame, SettingsFrame
from lean_peers import PREFACE, REQUEST, Server, block, parse

from epp.server.lean.limits import LeanOptions

FEW = LeanOptions(envoys_streams=2, max_concurrent_streams=6)
ENVOY = (*REQUEST, ("x-envoy-internal", "true"))
CHECK = (*REQUEST, ("user-agent", "Envoy/HC"))
OTHER = (*REQUEST, ("user-agent", "tonic/0.12"))


def allowed(answer: bytes) -> list[int]:
    """Streams, by each SETTINGS frame that says."""
    told = (frame.settings.get(SettingsFrame.MAX_CONCURRENT_STREAMS) for frame in parse(answer) if is_settings(frame))
    return [streams for streams in told if streams is not None]


def is_settings(frame: object) -> bool:
    return isinstance(frame, SettingsFrame)


def opening(stream_id: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    return HeadersFrame(stream_id, block(headers), flags=["END_HEADERS"]).serialize()


@pytest.mark.parametrize("headers", [ENVOY, CHECK], ids=["ext_proc", "health"])
def test_envoy_is_told_of_few_and_served_more(headers: tuple[tuple[str, str], ...]) -> None:
    server = Server(FEW)
    assert allowed(server.talk(PREFACE + SettingsFrame(0).serialize())) == [2]
    answer = server.talk(b"".join(opening(stream_id, headers) for stream_id in (1, 3, 5, 7)))
    assert allowed(answer) == []
    assert len(server.exchanges) == 4


def test_another_is_told_of_the_bound_as_soon_as_it_calls() -> None:
    server = Server(FEW)
    assert allowed(server.talk(PREFACE + SettingsFrame(0).serialize())) == [2]
    assert allowed(server.talk(opening(1, OTHER))) == [6]
    assert allowed(server.talk(opening(3, OTHER))) == []


def test_without_other_processes_there_is_one_bound() -> None:
    server = Server(LeanOptions(max_concurrent_streams=6))
    assert allowed(server.talk(PREFACE + SettingsFrame(0).serialize())) == [6]
    assert allowed(server.talk(opening(1, OTHER))) == []
