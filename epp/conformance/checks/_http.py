"""Requests and responses that checks are made with."""

import json
from collections.abc import Sequence

from epp.conformance.http import HttpMessage, Pairs

MODEL = "conformance-fake-model"


def post(
    body: bytes | Sequence[bytes],
    path: str = "/v1/completions",
    headers: Pairs = (),
    *,
    method: str = "POST",
    content_type: str = "application/json",
    trailers: Pairs | None = None,
    end_rides_on_data: bool = False,
    buffer_bytes: int | None = None,
) -> HttpMessage:
    """A request with a body, whole or in the pieces given."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    length = [] if trailers is not None else [("content-length", str(sum(map(len, chunks))))]
    fixed = [*_pseudo(method, path), ("content-type", content_type), *length]
    return HttpMessage([*fixed, *headers], chunks, trailers, end_rides_on_data, buffer_bytes)


def completion(prompt: str = "How are you?", **more: object) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt, **more}).encode()


def ask(headers: Pairs = (), **more: object) -> HttpMessage:
    """The plainest request."""
    return post(completion(**more), headers=headers)  # type: ignore[arg-type]


def bodyless(path: str = "/v1/models", headers: Pairs = (), *, method: str = "GET") -> HttpMessage:
    return HttpMessage([*_pseudo(method, path), *headers])


def answer(
    body: bytes | Sequence[bytes] | None = b'{"id":"x","choices":[{"text":"fine"}]}',
    headers: Pairs = (),
    *,
    status: int = 200,
    content_type: str = "application/json",
    trailers: Pairs | None = None,
) -> HttpMessage:
    """A model server's response; `None`: without a body."""
    chunks = [body] if isinstance(body, bytes) else body
    return HttpMessage([(":status", str(status)), ("content-type", content_type), *headers], chunks, trailers)


def events(*payloads: object, done: bool = True) -> list[bytes]:
    """Server-sent events, one piece each."""
    lines = [b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads]
    return [*lines, b"data: [DONE]\n\n"] if done else lines


def stream_of(chunks: Sequence[bytes]) -> HttpMessage:
    return answer(chunks, content_type="text/event-stream")


def _pseudo(method: str, path: str) -> Pairs:
    return [(":method", method), (":path", path), (":scheme", "http"), (":authority", "conformance.example")]
