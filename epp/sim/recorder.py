"""What a simulated server was sent, byte for byte, so that tests can tell what a proxy did to it."""

import base64
from collections import deque
from dataclasses import dataclass
from typing import Any

MARKER_HEADERS = (b"x-sim-marker", b"x-request-id")
_MOST_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it came; the body as on the wire, before any content-encoding was undone."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "path": self.path,
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers],
            "body_base64": base64.b64encode(self.body).decode(),
        }

    def marked(self, marker: str) -> bool:
        wanted = marker.encode("latin-1", "replace")
        return any(name.lower() in MARKER_HEADERS and value == wanted for name, value in self.headers)


class Recorder:
    """The last requests, bounded in number and in bytes of their bodies.

    Attributes:
        total: how many came, kept or not.
    """

    def __init__(self, most_requests: int = 256) -> None:
        self.total = 0
        self._requests: deque[Recorded] = deque()
        self._most_requests = most_requests
        self._body_bytes = 0

    def add(self, recorded: Recorded) -> None:
        self.total += 1
        self._requests.append(recorded)
        self._body_bytes += len(recorded.body)
        while len(self._requests) > self._most_requests or self._body_bytes > _MOST_BODY_BYTES:
            self._body_bytes -= len(self._requests.popleft().body)

    def find(self, marker: str | None) -> Recorded | None:
        """The last request that carries this marker, or the last one at all."""
        return next((r for r in reversed(self._requests) if marker is None or r.marked(marker)), None)
