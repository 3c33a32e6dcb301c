"""Our own picker, as each transport serves it and each kind of connection reaches it."""

from collections.abc import Iterator

import pytest
from target import CONFIG, PREDICTING_CONFIG, PickerTarget

# Transport, connection, configuration. (Plaintext and a Unix socket are served with the same code.)
PICKERS = {
    "grpc-plaintext": ("grpc", "plaintext", CONFIG),
    "grpc-tls": ("grpc", "tls", CONFIG),
    "grpc-unix": ("grpc", "unix", CONFIG),
    "lean-tls": ("lean", "tls", CONFIG),
    "lean-unix": ("lean", "unix", CONFIG),
    "predicting": ("lean", "plaintext", PREDICTING_CONFIG),
}


@pytest.fixture(scope="session", params=PICKERS.values(), ids=PICKERS)
def picker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PickerTarget]:
    with PickerTarget(tmp_path_factory.mktemp("picker"), *request.param) as target:
        yield target
