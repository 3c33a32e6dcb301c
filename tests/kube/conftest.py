import uuid
from collections.abc import Iterator

import pytest
import pytest_asyncio
from apiserver import ApiServer, Cluster, NoApiServer
from kube_world import NAMESPACES


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server, shared by all tests of this process: each works in a namespace of its own."""
    try:
        server = ApiServer(tmp_path_factory.mktemp("kube"))
    except NoApiServer as missing:
        pytest.skip(f"needs a real Kubernetes API server. {missing}")
    with server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(cluster: Cluster) -> str:
    """One that only this test uses. `cluster` is the module's own."""
    name = f"ns-{uuid.uuid4().hex[:8]}"
    await cluster.create(NAMESPACES, None, {"metadata": {"name": name}})
    return name
