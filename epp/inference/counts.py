"""Token counts as clients and servers write them."""

# A count beyond a signed 32-bit integer is a way to say "no limit", or a fault: not a count.
MAX_COUNT = 2**31 - 1


def token_count(value: object) -> int | None:
    """A non-negative whole number, as an integer, a float or decimal digits; anything else is absent."""
    if isinstance(value, str):
        if not (value.isascii() and value.isdecimal() and len(value) <= 10):
            return None
        value = int(value)
    elif isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= MAX_COUNT else None
