import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_world import World

from epp.latency import persistence, restoring
from epp.latency.persistence import dump, header_of
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.restoring import load
from epp.latency.training import train
from epp.latency.types import Target


def used_predictor(count: int, train_it: bool) -> tuple[Predictor, World]:
    world, predictor = World(), Predictor(PredictorOptions(training_min_rows=100))
    world.run(predictor, count, quantile=0.9)
    if train_it:
        job = predictor.training_due(world.now_s)
        assert job is not None
        assert predictor.publish(train(job))
    return predictor, world


@pytest.fixture(scope="module")
def small_file() -> bytes:
    predictor, world = used_predictor(200, train_it=True)
    return dump(predictor.snapshot(world.now_s))


def test_a_restored_predictor_says_the_same_and_learns_on() -> None:
    predictor, world = used_predictor(800, train_it=True)
    world.run(predictor, 100)
    loaded = load(dump(predictor.snapshot(world.now_s)))
    assert loaded.state is not None, loaded.reason
    other = Predictor(PredictorOptions(training_min_rows=100))
    other.restore(loaded.state, now_s=5.0)
    assert other.model_version == 1
    assert other.ready
    assert other.samples_of("a") == predictor.samples_of("a")
    assert other.model_age_s(5.0) == pytest.approx(predictor.model_age_s(world.now_s))
    s = World(seed=12).situation()
    one, two = predictor.predict(s, quantile=0.95, e2e=True), other.predict(s, quantile=0.95, e2e=True)
    assert one.e2e is not None
    assert two.e2e is not None
    for a, b in ((one.ttft, two.ttft), (one.tpot, two.tpot), (one.e2e, two.e2e)):
        np.testing.assert_allclose(a.bound_ms, b.bound_ms, rtol=1e-6)
        assert a.source is b.source
    world.now_s = 5.0
    world.run(other, 120)
    job = other.training_due(world.now_s)
    assert job is not None
    assert len(job.rows) == 1020
    assert Target.TTFT in train(job).contests


def test_an_untrained_predictor_survives_too() -> None:
    predictor, world = used_predictor(30, train_it=False)
    loaded = load(dump(predictor.snapshot(world.now_s)))
    assert loaded.state is not None
    assert loaded.state.model is None
    empty = load(dump(Predictor().snapshot(0.0)))
    assert empty.state is not None


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_truncation_is_untrained(small_file: bytes, data: st.DataObject) -> None:
    end = data.draw(st.one_of(st.integers(0, 100), st.integers(0, len(small_file) - 1)))
    loaded = load(small_file[:end])
    assert loaded.state is None
    assert loaded.reason
    assert "\n" not in loaded.reason


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_flipped_bit_is_untrained(small_file: bytes, data: st.DataObject) -> None:
    at = data.draw(st.one_of(st.integers(0, 100), st.integers(0, len(small_file) - 1)))
    damaged = bytearray(small_file)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    assert load(bytes(damaged)).state is None


def test_other_features_are_untrained_with_a_reason(small_file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "FEATURE_SET_HASH", "another")
    assert load(small_file).reason == "made for other features"


def test_a_sound_checksum_over_nonsense_is_untrained(small_file: bytes) -> None:
    header = header_of(small_file)
    start = header.pop("blobs_at")
    for key, value in (("prior", {}), ("bias", []), ("endpoint_ids", ["a"]), ("trees", {"ttft": {}}), ("format", 0)):
        text = json.dumps(header | {key: value}).encode()
        body = len(text).to_bytes(8, "big") + text + small_file[start:]
        forged = small_file[:16] + persistence.hashlib.sha256(body).digest() + body
        loaded = load(forged)
        assert loaded.state is None
        assert loaded.reason
