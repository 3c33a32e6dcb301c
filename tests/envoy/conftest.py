from pathlib import Path

import pytest

from epp.sim.envoyproxy import EnvoyError, find_envoy


@pytest.fixture(scope="session")
def envoy_binary() -> Path:
    """The real Envoy; whatever needs it is skipped, saying so, where it is not installed."""
    try:
        return find_envoy()
    except EnvoyError as error:
        pytest.skip(f"needs the real Envoy. {error}")
