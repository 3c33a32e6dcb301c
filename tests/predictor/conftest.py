from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio
from predictor_rows import LOOPBACK, Client

from epp.predictor.app import PredictorServer


@pytest_asyncio.fixture
async def fresh() -> AsyncIterator[Client]:
    """A server that has seen nothing."""
    async with PredictorServer(LOOPBACK) as server, aiohttp.ClientSession() as session:
        yield Client(session, server.ports)
