import uuid
from collections.abc import Generator, Iterator

import pytest
import pytest_asyncio
from apiserver import ApiServer, Cluster, NoApiServer
from kube_world import NAMESPACES

SERVING: pytest.StashKey[ApiServer] = pytest.StashKey()


@pytest.fixture(scope="session")
def api_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server, shared by all tests of this process: each works in a namespace of its own."""
    try:
        server = ApiServer(tmp_path_factory.mktemp("kube"))
    except NoApiServer as missing:
        pytest.skip(f"needs a real Kubernetes API server. {missing}")
    users = [item for item in request.session.items if "api_server" in getattr(item, "fixturenames", ())]
    with server:
        users[-1].stash[SERVING] = server
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """The API server ends with the last test that asks for it: idle, it would take a share of a CPU to the very end."""
    yield
    if (server := item.stash.get(SERVING, None)) is not None:
        server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(cluster: Cluster) -> str:
    """One that only this test uses. `cluster` is the module's own."""
    name = f"ns-{uuid.uuid4().hex[:8]}"
    await cluster.create(NAMESPACES, None, {"metadata": {"name": name}})
    return name
