"""Numbers that clients write in headers. A client may send anything: what is no sensible number is none."""

import re

_NUMBER = re.compile(r"\+?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,3})?", re.ASCII)


def positive_number(text: str, most: float) -> float | None:
    """Above 0, finite, and `most` at most; `None` for anything else."""
    text = text.strip()  # of more than `float` takes for blank
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    return value if 0 < value <= most else None
