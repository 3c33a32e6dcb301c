from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from stack import Stack

from epp.sim.envoyproxy import EnvoyError, find_envoy


@pytest.fixture(scope="session")
def envoy_binary() -> Path:
    """The real Envoy; whatever needs it is skipped, saying so, where it is not installed."""
    try:
        return find_envoy()
    except EnvoyError as error:
        pytest.skip(f"needs the real Envoy. {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["recommended", "gateway"])
async def stack(request: pytest.FixtureRequest, envoy_binary: Path) -> AsyncIterator[Stack]:
    """The whole product with either bootstrap, shared by the tests of a module: leave it as you found it. As a gateway,
    Envoy speaks TLS to the picker. The picker logs and counts all that it can.

    Such tests are marked `pytest.mark.asyncio(loop_scope="module")`. One that kills something starts a `Stack` itself.
    """
    flags = ["-v", "5", "--enable-grpc-stream-metrics"]
    async with Stack(pool=3, bootstrap=request.param, tls=request.param == "gateway", picker_flags=flags) as stack:
        yield stack
