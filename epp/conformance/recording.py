"""Recorded conversations: one JSON object per line, in the order in which things happened.

    {"stream": 1, "from": "envoy", "message": {…ProcessingRequest as proto3 JSON…}}
    {"stream": 1, "from": "picker", "message": {…ProcessingResponse…}}
    {"stream": 1, "from": "envoy", "event": "half-close"}          (or "reset")
    {"stream": 1, "from": "picker", "event": "end", "status": "OK"}

A recording holds headers and bodies: treat it as you treat the requests themselves.
"""

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingRequest, ProcessingResponse

from epp.conformance.connection import Status
from epp.problem import Problem

Line = dict[str, Any]


class Recorder:
    """Writes streams into a file as they happen."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._ids = itertools.count(1)

    def stream(self) -> "StreamRecorder":
        number = next(self._ids)

        def write(line: Line) -> None:
            self._file.write(json.dumps({"stream": number, **line}) + "\n")

        return StreamRecorder(write)


class StreamRecorder:
    """Says in lines what happens on one stream."""

    def __init__(self, write: Callable[[Line], None]) -> None:
        self._write = write

    def sent(self, message: ProcessingRequest) -> None:
        self._write({"from": "envoy", "message": message.to_dict()})

    def event(self, name: str) -> None:
        self._write({"from": "envoy", "event": name})

    def got(self, reply: ProcessingResponse) -> None:
        self._write({"from": "picker", "message": reply.to_dict()})

    def ended(self, status: Status) -> None:
        self._write({"from": "picker", "event": "end", "status": status.name})


def load(path: Path) -> list[list[Line]]:
    """The streams of a file, each as its lines. Raises `Problem`."""
    try:
        return parse(path.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"{path}: is no recorded conversation") from error


def parse(texts: Iterable[str]) -> list[list[Line]]:
    streams: dict[int, list[Line]] = {}
    for text in texts:
        line = json.loads(text)
        streams.setdefault(line["stream"], []).append(line)
    return list(streams.values())
