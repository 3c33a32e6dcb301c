from collections.abc import Iterator

import pytest
from apiserver import ApiServer, NoApiServer


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server, shared by all tests of this process: each works in a namespace of its own."""
    try:
        server = ApiServer(tmp_path_factory.mktemp("kube"))
    except NoApiServer as missing:
        pytest.skip(f"needs a real Kubernetes API server. {missing}")
    with server:
        yield server
