"""What the parent tells all workers, and that one who comes late is told the same."""

import os
import pickle
import time
from collections.abc import Sequence

import numpy as np
import pytest

from epp.kube.policies import Rewrites
from epp.latency.features import FEATURES
from epp.latency.predictor import Predictor
from epp.latency.training import train
from epp.latency.types import Promise, Sample, Source, Target, TargetPromise
from epp.ledger import Ledger
from epp.pool.static import parse_endpoints
from epp.server.configuration import text_of
from epp.server.health import HealthState
from epp.server.options import ServeOptions
from epp.server.state import PickerState
from epp.server.workers import shared_load
from epp.server.workers.channel import Frame, FrameReader
from epp.server.workers.feeds import Feeds
from epp.server.workers.messages import Kind
from epp.server.workers.shared_load import SharedLoad
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG


class Parent:
    def __init__(self, config_text: str | None = None) -> None:
        memory = shared_load.create(2)
        load = SharedLoad(memory, 2, None)
        os.close(memory)
        self.state = PickerState(ServeOptions(), text_of(config_text=config_text), time.monotonic, Ledger(load))
        self.state.store.replace(parse_endpoints("10.0.0.1:8000"))
        self.health = HealthState(self.state.not_ready)
        self.feeds = Feeds(self.state, self.health, load)


def opened(frames: Sequence[bytes]) -> list[Frame]:
    return FrameReader().feed(b"".join(frames))


def kinds(frames: Sequence[bytes]) -> list[Kind]:
    return [frame.kind for frame in opened(frames)]


def test_only_what_has_changed_is_told() -> None:
    parent = Parent()
    assert set(kinds(parent.feeds.changes())) == {Kind.POOL, Kind.POLICIES, Kind.HEALTH}
    assert parent.feeds.changes() == []
    parent.state.suspended = "silence"
    (frame,) = opened(parent.feeds.changes())
    assert (frame.open().suspended, frame.open().reasons) == ("silence", ["silence"])
    parent.health.start_draining()
    (frame,) = opened(parent.feeds.changes())
    assert (frame.open().draining, frame.open().stopping) == (True, False)
    parent.state.policies.replace({"batch": -1}, Rewrites())
    (frame,) = opened(parent.feeds.changes())
    assert frame.open().objectives == {"batch": -1}
    parent.state.policies.replace({"batch": -2}, parent.state.policies.current[1])
    (frame,) = opened(parent.feeds.changes())
    assert frame.open().objectives == {"batch": -2}
    assert kinds(parent.feeds.newcomer()) == [Kind.POOL, Kind.POLICIES, Kind.HEALTH]
    assert parent.feeds.changes() == []
    assert parent.feeds.learned() is None  # nothing is predicted


def sample(number: int) -> Sample:
    rng = np.random.default_rng(number)
    features = np.abs(rng.normal(20, 5, len(FEATURES))).astype(np.float32)
    actual_ms = {Target.TTFT: 50 + float(features.sum()) / 10, Target.TPOT: 20 + float(features[0])}
    promised = {target: TargetPromise(60.0, 90.0, 60.0, 1.0, Source.PRIOR) for target in actual_ms}
    return Sample("default/10.0.0.1-8000", Promise(features, promised, 0.9, 0), time.monotonic(), actual_ms)


@pytest.fixture(scope="module")
def parent() -> Parent:
    """One that has learned from workers, and trained."""
    parent = Parent(PREDICTED_LATENCY_CONFIG)
    parent.feeds.observe(pickle.loads(pickle.dumps([sample(number) for number in range(400)])))
    job = parent.state.predictor.training_due(time.monotonic())
    assert job is not None
    parent.state.predictor.publish(train(job))
    return parent


def adopted(frame: Frame, predictor: Predictor) -> Predictor:
    predictor.adopt(frame.open().state, time.monotonic())
    return predictor


def test_what_was_learned_reaches_workers_with_trees_only_when_these_are_new(parent: Parent) -> None:
    version = parent.state.predictor.model_version
    assert version == 1, "the trees were no better, and nothing is shown"
    told = parent.feeds.learned()
    assert told is not None
    (frame,) = opened([told])
    assert frame.open().has_model
    assert len(frame.open().state.rows) == 0
    worker = adopted(frame, Predictor())
    assert worker.is_ready(Target.TTFT)
    assert (worker.model_version, worker.samples_of("default/10.0.0.1-8000")) == (version, 400)
    ours, theirs = parent.state.predictor.snapshot(0.0, with_rows=False), worker.snapshot(0.0, with_rows=False)
    assert (theirs.prior, theirs.bias, theirs.calibration) == (ours.prior, ours.bias, ours.calibration)
    assert parent.feeds.learned() is None
    parent.feeds.observe([sample(1000)])
    told = parent.feeds.learned()
    assert told is not None
    (frame,) = opened([told])
    assert not frame.open().has_model
    assert len(frame.payload) < 400_000
    (*_, late) = opened(parent.feeds.newcomer())
    assert late.kind is Kind.LEARNED
    assert late.open().has_model
