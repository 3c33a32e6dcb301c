"""Numbers that clients write in headers. A client may send anything: what is no sensible number is none."""

import re

_NUMBER = re.compile(r"\+?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,3})?", re.ASCII)


def positive_number(text: str, most: float) -> float | None:
    """Above 0, finite, and `most` at most; `None` for anything else."""
    value = float(text) if _NUMBER.fullmatch(text.strip()) else 0.0
    return value if 0 < value <= most else None
