from collections.abc import AsyncIterator

import aiohttp
import pytest

from epp.sim.config import EngineConfig, SimConfig
from epp.sim.server import SimServer


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    """A server with few slots that runs 20 times faster than a real one."""
    engine = EngineConfig(max_sequences=4, max_waiting=2, kv_blocks=16_384)
    async with SimServer(SimConfig(model="sim-model", adapters=("lora-a",), engine=engine, speed=20.0)) as server:
        yield server
