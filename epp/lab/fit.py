"""The shape of a real server: the step law's constants, fitted to measurements.

A measurement is what one server did with `streams` equal requests at once: prompt tokens, output tokens, median TTFT
and TPOT. By the law (`epp.sim.timing`), with `n` streams that decode together,

    tpot_ms = base + n · sequence
    ttft_ms = overhead + base + n · prompt · prefill + n · sequence      (prompts of one burst share their steps)

so all constants are linear in the measurements, and fall out of one least-squares fit, each equation weighted by what
was measured: relative errors count. Constants below 0 are no constants, so they are left out and the rest fitted anew.

What was not measured is not made up: where several constants would do as well, or where each equation only says what
one of them is, there is no fit.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from epp.files import write
from epp.problem import Problem
from epp.sim.timing import Hardware

_NAMES = ("base_ms", "prefill_token_us", "sequence_us", "overhead_ms")
_ALIKE = 1e-4  # of columns of length 1: what differs by less says nothing beside the noise of any measurement
_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "streams": (1.0, 1e5),
        "prompt_tokens": (1.0, 1e7),
        "output_tokens": (1.0, 1e7),
        "ttft_ms": (1e-3, 1e8),
        "tpot_ms": (1e-3, 1e8),
    }
)
"""Of a measurement: beyond any server, either way."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one server did with `streams` requests at once; times are medians. `tpot_ms` is `None` of one token."""

    streams: int
    prompt_tokens: float
    output_tokens: float
    ttft_ms: float
    tpot_ms: float | None


@dataclass(frozen=True, slots=True)
class Fit:
    """
    Attributes:
        overhead_ms: what TTFT has beyond the law: HTTP, templates, tokenisation.
        error_ratio: mean relative error over all times that were measured, in sample.
    """

    hardware: Hardware
    overhead_ms: float
    error_ratio: float


def fit(measurements: Sequence[Measurement]) -> Fit:
    """Raises `Problem` when there is too little to fit, or what no server can have."""
    for m in measurements:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(m, name)
            if value is not None and not least <= value <= most:
                raise Problem(f"{name} {value:g} of {m.streams} streams {_out_of(name)}")
    rows, times = _equations(measurements)
    weighted = rows / times[:, np.newaxis]
    _require_enough(measurements, rows, weighted)
    used = list(range(len(_NAMES)))
    constants = np.zeros(len(_NAMES))
    while used:
        found, *_ = np.linalg.lstsq(weighted[:, used], np.ones(len(times)), rcond=None)
        if (found >= 0.0).all():
            constants[used] = found
            break
        used.remove(used[int(found.argmin())])
    errors = np.abs(rows @ constants - times) / times
    base_ms, prefill_us, sequence_us, overhead_ms = (round(float(c), 4) for c in constants)
    return Fit(Hardware(base_ms, prefill_us, sequence_us), overhead_ms, float(errors.mean()))


def _require_enough(
    measurements: Sequence[Measurement], rows: npt.NDArray[np.float64], weighted: npt.NDArray[np.float64]
) -> None:
    """Raises `Problem`, with what to measure, unless the equations say each constant, and more than that."""
    lengths = np.linalg.norm(weighted, axis=0)
    columns = weighted / np.where(lengths > 0.0, lengths, 1.0)
    rank = _rank(columns)
    unknown = [name for j, name in enumerate(_NAMES) if _rank(np.delete(columns, j, axis=1)) == rank]
    if not unknown and len(np.unique(rows, axis=0)) > len(_NAMES):
        return
    by_tpot = {m.streams for m in measurements if m.tpot_ms is not None}
    prompts = {m.streams * m.prompt_tokens for m in measurements}
    missing = [] if by_tpot else ["tpot_ms, of answers of two tokens or more"]
    if len(by_tpot) < 2:
        missing.append("several numbers of streams at once, such as 1, 4 and 16")
    if len(prompts) < 2:
        missing.append("prompts of several lengths, such as 64, 512 and 2048 tokens")
    missing = missing or ["more lengths and numbers of streams"]
    what = f"do not tell {', '.join(unknown)}" if unknown else f"are as few as the {len(_NAMES)} constants"
    raise Problem(f"too few measurements: they {what}; measure {', and '.join(missing)}")


def _rank(columns: npt.NDArray[np.float64]) -> int:
    return int(np.linalg.matrix_rank(columns, tol=_ALIKE)) if columns.size else 0


def _equations(measurements: Iterable[Measurement]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    rows, times = [], []
    for m in measurements:
        rows.append((1.0, m.streams * m.prompt_tokens / 1e3, m.streams / 1e3, 1.0))
        times.append(m.ttft_ms)
        if m.tpot_ms is not None:
            rows.append((1.0, 0.0, m.streams / 1e3, 0.0))
            times.append(m.tpot_ms)
    return np.array(rows, dtype=np.float64).reshape(-1, len(_NAMES)), np.array(times, dtype=np.float64)


def read_measurements(path: Path) -> list[Measurement]:
    """A CSV with the fields of `Measurement` as its head; an empty `tpot_ms` is none. Raises `Problem`."""
    head = f"expected a CSV with the head {','.join(field.name for field in fields(Measurement))}"
    found: list[Measurement] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            for line in lines:
                try:
                    found.append(_measurement(line))
                except ValueError as error:
                    raise Problem(f"{path}:{lines.line_num}: no measurement: {error}; {head}") from error
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, csv.Error) as error:
        raise Problem(f"{path}: no measurements: {error}; {head}") from error
    if not found:
        raise Problem(f"{path}: no measurements in it; {head}")
    return found


def _measurement(line: Mapping[str, str | None]) -> Measurement:
    """Raises ValueError."""
    for field in fields(Measurement):
        if field.name not in line:
            raise ValueError(f"no column {field.name}")
    streams = _read(line, "streams")
    if not streams.is_integer():
        raise ValueError(f"streams {line['streams']} is not a whole number")
    return Measurement(
        int(streams),
        _read(line, "prompt_tokens"),
        _read(line, "output_tokens"),
        _read(line, "ttft_ms"),
        _read(line, "tpot_ms") if line["tpot_ms"] else None,
    )


def _read(line: Mapping[str, str | None], name: str) -> float:
    """Raises ValueError."""
    text, (least, most) = line[name], _BOUNDS[name]
    if text is None:
        raise ValueError("the line ends early")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} {text[:40]!r} is not a number") from None
    if not least <= value <= most:
        raise ValueError(f"{name} {text[:40]} {_out_of(name)}")
    return value


def _out_of(name: str) -> str:
    least, most = _BOUNDS[name]
    return f"is not from {least:g} to {most:g}"


def write_measurements(path: Path, measurements: Iterable[Measurement]) -> None:
    """As `read_measurements` reads them. Raises `Problem`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Measurement)])
    writer.writeheader()
    writer.writerows(asdict(m) for m in measurements)
    write(path, text.getvalue().encode())
