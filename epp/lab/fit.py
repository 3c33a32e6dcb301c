"""The shape of a real server: the step law's constants, fitted to measurements.

A measurement is what one server did with `streams` equal requests at once: prompt tokens, output tokens, median TTFT
and TPOT. By the law (`epp.sim.timing`), with `n` streams that decode together,

    tpot_ms = base + n · sequence
    ttft_ms = overhead + base + n · prompt · prefill + n · sequence      (prompts of one burst share their steps)

so all constants are linear in the measurements, and fall out of one least-squares fit, each equation weighted by what
was measured: relative errors count. Constants below 0 are no constants, so they are left out and the rest fitted anew.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from epp.files import write
from epp.problem import Problem
from epp.sim.timing import Hardware

_NAMES = ("base_ms", "prefill_token_us", "sequence_us", "overhead_ms")


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
    """Raises `Problem` when there is too little to fit."""
    rows, times = _equations(measurements)
    if len(times) < len(_NAMES):
        raise Problem(
            f"{len(times)} times are too few to fit {len(_NAMES)} constants; measure more lengths and streams"
        )
    weights = 1.0 / times
    weighted = rows * weights[:, np.newaxis]
    used = list(range(len(_NAMES)))
    constants = np.zeros(len(_NAMES))
    while used:
        found, *_ = np.linalg.lstsq(weighted[:, used], np.ones(len(times)), rcond=None)
        if (found >= 0.0).all():
            constants[used] = found
            break
        used.remove(used[int(found.argmin())])
    errors = np.abs(rows @ constants - times) * weights
    base_ms, prefill_us, sequence_us, overhead_ms = (round(float(c), 4) for c in constants)
    return Fit(Hardware(base_ms, prefill_us, sequence_us), overhead_ms, float(errors.mean()))


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
    names = [field.name for field in fields(Measurement)]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [
                Measurement(
                    int(line["streams"]),
                    _positive(line, "prompt_tokens"),
                    _positive(line, "output_tokens"),
                    _positive(line, "ttft_ms"),
                    _positive(line, "tpot_ms") if line["tpot_ms"] else None,
                )
                for line in csv.DictReader(file)
            ]
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise Problem(f"{path}: no measurements ({error}); expected a CSV with the head {','.join(names)}") from error


def write_measurements(path: Path, measurements: Iterable[Measurement]) -> None:
    """As `read_measurements` reads them. Raises `Problem`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Measurement)])
    writer.writeheader()
    writer.writerows(asdict(m) for m in measurements)
    write(path, text.getvalue().encode())


def _positive(line: Mapping[str, str], name: str) -> float:
    """Raises KeyError, TypeError, ValueError."""
    value = float(line[name])
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} {line[name]} is not above 0 and finite")
    return value
