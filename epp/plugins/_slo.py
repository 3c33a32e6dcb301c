"""A request's latency targets, from its headers.

A client may send anything. A target that is not a positive, finite number of milliseconds within reason is no target:
it is counted, never believed, and never refused.
"""

from collections.abc import Mapping
from typing import NamedTuple

from epp.plugins._numbers import positive_number
from epp.wire.names import TPOT_TARGET, TTFT_TARGET

OPT_IN_HEADER = "x-prediction-based-scheduling"

MAX_TARGET_MS = 24 * 3600 * 1e3
"""A day. Longer targets are mistakes (another unit, an overflow), not targets."""


class Slo(NamedTuple):
    """Targets in milliseconds; `None`: no constraint. `invalid`: headers whose values are none."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    invalid: tuple[str, ...] = ()

    @property
    def constrained(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None


def slo_of(headers: Mapping[str, str]) -> Slo:
    """The targets that a request's headers state."""
    invalid: list[str] = []
    return Slo(_target(headers, TTFT_TARGET, invalid), _target(headers, TPOT_TARGET, invalid), tuple(invalid))


def opted_in(headers: Mapping[str, str], default: bool) -> bool:
    """Whether predictions may decide about this request; anything but `true` and `false` is the default."""
    match headers.get(OPT_IN_HEADER, "").strip().lower():
        case "true":
            return True
        case "false":
            return False
    return default


def _target(headers: Mapping[str, str], names: tuple[str, str], invalid: list[str]) -> float | None:
    for name in names:
        text = headers.get(name)
        if text is not None:
            target_ms = positive_number(text, MAX_TARGET_MS)
            if target_ms is None:
                invalid.append(name)
            return target_ms
    return None
