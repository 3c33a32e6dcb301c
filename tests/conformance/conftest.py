"""Our own picker, as each transport serves it and each kind of connection reaches it."""

from collections.abc import Iterator

import pytest
from target import PickerTarget

# Transport and connection. (What `lean` serves in plaintext, it serves on a Unix socket with the same code.)
PICKERS = ("grpc-plaintext", "grpc-tls", "grpc-unix", "lean-tls", "lean-unix")


@pytest.fixture(scope="session", params=PICKERS)
def picker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PickerTarget]:
    transport, _, connection = request.param.partition("-")
    with PickerTarget(tmp_path_factory.mktemp(request.param), transport, connection) as target:
        yield target
