"""Reads server-sent events (WHATWG HTML, 9.2) as they pass by, however they are cut, in bounded memory."""

from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_DATA: Final = b"data: "


class SseReader:
    """Incremental reader of an event stream's `data`; other fields and comments are skipped.

    An event whose data, or a line that alone, is longer than `max_event_bytes` is dropped, and reading goes on with the
    next event.

    Args:
        mid_stream: the first bytes are somewhere within a stream: skip what may be only a part of an event.
    """

    def __init__(self, max_event_bytes: int = 1024 * 1024, *, mid_stream: bool = False) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()  # the line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._data_bytes = 0
        self._skip_line = mid_stream
        self._skip_event = mid_stream
        self._after_cr = False  # a LF now belongs to the CR before it
        self._at_start = not mid_stream

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; give the data of the events that they complete."""
        payloads: list[bytes] = []
        if not chunk:
            return payloads
        if self._is_one_event(chunk):
            self._at_start = False
            return [chunk[len(_DATA) : -2]]
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        # `splitlines` on bytes knows exactly the line ends of the standard: CRLF, LF and CR.
        for part in chunk.splitlines(keepends=True):
            if not part.endswith((b"\n", b"\r")):
                self._carry(part)
                continue
            self._carry(part.rstrip(b"\r\n"))
            self._end_line(payloads)
        self._after_cr = chunk.endswith(b"\r")
        return payloads

    def _is_one_event(self, chunk: bytes) -> bool:
        """As servers write them, one line of data each, and as they travel alone: it need not be cut into lines."""
        return (
            chunk.startswith(_DATA)
            and chunk.endswith(b"\n\n")
            and chunk.count(b"\n") == 2
            and b"\r" not in chunk
            and len(chunk) - 2 <= self._max_event_bytes
            and not (self._line or self._data or self._skip_line or self._skip_event or self._after_cr)
        )

    def close(self) -> list[bytes]:
        """The stream is over: give the data of a last event that lacks its blank line, as some servers end."""
        payloads: list[bytes] = []
        if self._line:
            self._end_line(payloads)
        self._end_event(payloads)
        return payloads

    def _carry(self, part: bytes) -> None:
        if self._skip_line:
            return
        if len(self._line) + len(part) + self._data_bytes > self._max_event_bytes:
            self._skip_line = self._skip_event = True
            self._line.clear()
            self._forget_data()
        else:
            self._line += part

    def _end_line(self, payloads: list[bytes]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._skip_line:
            self._skip_line = False
            return
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            self._end_event(payloads)
        elif not self._skip_event:
            name, _, value = line.partition(b":")
            if name == b"data":
                value = value.removeprefix(b" ")
                self._data.append(value)
                self._data_bytes += len(value) + 1  # an empty line takes room too

    def _end_event(self, payloads: list[bytes]) -> None:
        if self._data:
            payloads.append(b"\n".join(self._data))
        self._forget_data()
        self._skip_event = False

    def _forget_data(self) -> None:
        self._data.clear()
        self._data_bytes = 0
