"""Being here, it lets tests of every room import the helpers that lie beside it."""

import os

import pytest
from hypothesis import HealthCheck, settings

import epp
from epp.compiled import build_in_words, compiled_modules

# On a machine that is busy with other work, slow says nothing of a test: `pytest-timeout` bounds it.
settings.register_profile("busy machines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machines")


def pytest_report_header() -> str:
    return f"epp: {build_in_words()}, {epp.__path__[0]}"


def pytest_configure() -> None:
    """HEADROOM_COMPILED=1: the compiled installation is meant (`make test-compiled`), and no other will do."""
    if os.environ.get("HEADROOM_COMPILED") == "1" and not compiled_modules():
        raise pytest.UsageError(f"HEADROOM_COMPILED=1, but {epp.__path__[0]} holds no compiled module")


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes are named after their parameter: packed ones hold the time, and names must not differ between processes."""
    return argname if isinstance(val, bytes | bytearray | memoryview) else None
