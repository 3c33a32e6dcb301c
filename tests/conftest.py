"""Being here, it lets tests of every room import the helpers that lie beside it."""

from hypothesis import HealthCheck, settings

# On a machine that is busy with other work, slow says nothing of a test: `pytest-timeout` bounds it.
settings.register_profile("busy machines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machines")


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes are named after their parameter: packed ones hold the time, and names must not differ between processes."""
    return argname if isinstance(val, bytes | bytearray | memoryview) else None
