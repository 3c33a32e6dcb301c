"""Being here, it lets tests of every room import the helpers that lie beside it."""


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes are named after their parameter: packed ones hold the time, and names must not differ between processes."""
    return argname if isinstance(val, bytes | bytearray | memoryview) else None
