"""Being here, it lets tests of every room import the helpers that lie beside it."""


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes are named after their parameter: a name must be the same in every process, and packed bytes hold the time."""
    return argname if isinstance(val, bytes | bytearray | memoryview) else None
