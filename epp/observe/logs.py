"""Logs: one line per event, JSON or text, and nothing in them of what clients send.

An exception's message may quote its input, so only the messages of operating system errors are written; of all others
the type and the places it came through.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import TextIO

import orjson

VERBOSE = 15
TRACE = 5
# llm-d's scale: 2 is the default, 3 verbose, 4 debug, 5 trace.
LEVEL_BY_VERBOSITY = {0: logging.WARNING, 1: logging.INFO, 2: logging.INFO, 3: VERBOSE, 4: logging.DEBUG, 5: TRACE}
DEFAULT_VERBOSITY = 2

MAX_FRAMES = 12
MAX_KEYS = 1024


def setup(
    *,
    verbosity: int = DEFAULT_VERBOSITY,
    format: str = "json",
    stream: TextIO | None = None,
    worker: int | None = None,
) -> None:
    """Configure the root logger.

    Args:
        format: `json` or `text`.
        stream: standard error by default.
        worker: the number of this process, if it is one of several, to be on every line.
    """
    logging.addLevelName(VERBOSE, "VERBOSE")
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(worker) if format == "json" else TextFormatter(worker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # libraries may log what they carry; of them only warnings
    logging.getLogger("epp").setLevel(level_of(verbosity))


def level_of(verbosity: int) -> int:
    if verbosity < 0:
        verbosity = DEFAULT_VERBOSITY
    return LEVEL_BY_VERBOSITY[min(verbosity, 5)]


class JsonFormatter(logging.Formatter):
    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if self._worker is not None:
            line["worker"] = self._worker
        if error := _error(record):
            line["error"] = error
        return orjson.dumps(line, default=str).decode()


class TextFormatter(logging.Formatter):
    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._process = "" if worker is None else f" worker {worker}"

    def format(self, record: logging.LogRecord) -> str:
        error = _error(record)
        return f"{_time(record)} {record.levelname}{self._process} {record.name}: {_message(record)}" + (
            f" [{error}]" if error else ""
        )


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage()
    # asyncio's reports of a failed task go on, from the second line, with the exception's own message.
    return message.partition("\n")[0] if record.name == "asyncio" else message


def _error(record: logging.LogRecord) -> str | None:
    error = record.exc_info[1] if record.exc_info else None
    return None if error is None else describe_error(error)


def describe_error(error: BaseException) -> str:
    """The type, the places (innermost last), and so for each exception behind it."""
    text = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text += f" ({error.strerror})"
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    if frames:
        text += " at " + " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text if behind is None else f"{text}, after {describe_error(behind)}"


class OncePer:
    """True at most once per `seconds` for each key: for warnings that would repeat."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last_s: dict[Hashable, float] = {}

    def __call__(self, key: Hashable) -> bool:
        now_s = self._clock()
        last_s = self._last_s.get(key)
        if last_s is not None and now_s - last_s < self._seconds:
            return False
        if len(self._last_s) >= MAX_KEYS:
            self._last_s.clear()
        self._last_s[key] = now_s
        return True
