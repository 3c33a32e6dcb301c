import pytest
from observed_world import SnapshotOf, World, endpoints

from epp.pool.snapshot import EndpointSignals, Snapshot


@pytest.fixture
def snapshot_of() -> SnapshotOf:
    """`snapshot_of(signals of server-0, signals of server-1, …)`."""

    def build(*signals: EndpointSignals, version: int = 0) -> Snapshot:
        pool = endpoints(len(signals))
        return Snapshot.build(
            pool, {e.id: s for e, s in zip(pool, signals, strict=True)}, version=version, endpoints_version=version
        )

    return build


@pytest.fixture
def world(snapshot_of: SnapshotOf) -> World:
    return World(snapshot_of(EndpointSignals(), EndpointSignals()))
