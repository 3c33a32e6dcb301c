"""Log lines: machine-readable, and silent about what clients send."""

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest

from epp.observe import logs

CANARY = "the patient's name is"


@pytest.fixture
def log_to() -> Iterator[Callable[..., io.StringIO]]:
    root, own = logging.getLogger(), logging.getLogger("epp")
    before = root.handlers[:], root.level, own.level

    def start(**options: object) -> io.StringIO:
        stream = io.StringIO()
        logs.setup(stream=stream, **options)  # type: ignore[arg-type]
        return stream

    yield start
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def test_a_json_line_has_time_level_logger_and_message(log_to: Callable[..., io.StringIO]) -> None:
    stream = log_to()
    logging.getLogger("epp.pool").info("%d endpoints", 3)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "info", "logger": "epp.pool", "message": "3 endpoints"}


def test_text_lines_say_the_same(log_to: Callable[..., io.StringIO]) -> None:
    stream = log_to(format="text")
    logging.getLogger("epp.pool").warning("%d endpoints", 3)
    assert stream.getvalue().endswith(" WARNING epp.pool: 3 endpoints\n")


@pytest.mark.parametrize("format", ["json", "text"])
def test_the_message_of_an_exception_is_not_written_but_its_place_is(
    log_to: Callable[..., io.StringIO], format: str
) -> None:
    stream = log_to(format=format)
    try:
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            raise ValueError(CANARY) from error
    except ValueError:
        logging.getLogger("epp.inference").exception("parsing failed")
    text = stream.getvalue()
    assert CANARY not in text
    assert text.count("\n") == 1
    assert "ValueError" in text
    assert "KeyError" in text
    assert "test_logs.py" in text


def test_what_the_operating_system_says_is_written(log_to: Callable[..., io.StringIO]) -> None:
    stream = log_to()
    try:
        open("/no/such/file").close()
    except OSError:
        logging.getLogger("epp.pool").warning("cannot read", exc_info=True)
    assert "No such file or directory" in stream.getvalue()


async def test_asyncio_reports_a_lost_task_without_its_exception(log_to: Callable[..., io.StringIO]) -> None:
    stream = log_to()

    async def fail() -> None:
        raise ValueError(CANARY)

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    del task
    await asyncio.sleep(0)
    assert "Task exception was never retrieved" in stream.getvalue()
    assert CANARY not in stream.getvalue()


@pytest.mark.parametrize(
    ("verbosity", "level"), [(-1, "INFO"), (0, "WARNING"), (2, "INFO"), (3, "VERBOSE"), (4, "DEBUG"), (9, "TRACE")]
)
def test_verbosity_is_on_the_scale_of_llm_d(log_to: Callable[..., io.StringIO], verbosity: int, level: str) -> None:
    log_to(verbosity=verbosity)
    assert logging.getLevelName(logging.getLogger("epp.pool").getEffectiveLevel()) == level
    assert not logging.getLogger("aiohttp.access").isEnabledFor(logging.INFO)


def test_a_repeated_warning_passes_once_per_interval_and_key() -> None:
    now_s = 0.0
    passes = logs.OncePer(30.0, lambda: now_s)
    assert [passes("a"), passes("a"), passes("b")] == [True, False, True]
    now_s = 29.9
    assert not passes("a")
    now_s = 30.0
    assert passes("a")
