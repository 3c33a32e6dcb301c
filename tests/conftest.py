"""Being here, it lets tests of every room import the helpers that lie beside it."""

import os
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import epp
from epp.cli.loading import loading
from epp.compiled import build_in_words, compiled_modules

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

# Rooms whose modules take longest, each started before all others: a long one at the end would leave workers idle.
LONG_ROOMS = ("kube", "envoy", "fuzz", "conformance", "lab", "latency")

# On a machine that is busy with other work, slow says nothing of a test: `pytest-timeout` bounds it.
settings.register_profile("busy machines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machines")


def pytest_report_header() -> str:
    return f"epp: {build_in_words()}, {epp.__path__[0]}"


def pytest_configure() -> None:
    """HEADROOM_COMPILED=1: the compiled installation is meant (`make test-compiled`), and no other will do."""
    if os.environ.get("HEADROOM_COMPILED") == "1" and not compiled_modules():
        raise pytest.UsageError(f"HEADROOM_COMPILED=1, but {epp.__path__[0]} holds no compiled module")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Test modules are loaded here: a million objects, which later collections need not look at."""
    with loading():
        return (yield)


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes are named after their parameter: packed ones hold the time, and names must not differ between processes."""
    return argname if isinstance(val, bytes | bytearray | memoryview) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several workers take the modules in the order of their number of tests, unless told otherwise; see below."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


def _turn(nodeid: str) -> int:
    room = nodeid.split("/")[1] if nodeid.startswith("tests/") else ""
    return LONG_ROOMS.index(room) if room in LONG_ROOMS else len(LONG_ROOMS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Three for two CPUs: tests of real processes wait half of their time, in which another test can be computed."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cpus + (cpus + 1) // 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadScopeScheduling | None":
    """With `--dist loadscope`: the modules in the order above, and one worker for all that share an API server."""
    if config.option.dist != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/kube" if nodeid.startswith("tests/kube/") else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
