import numpy as np
from latency_world import situation

from epp.latency.buffer import SampleBuffer, bucket_of
from epp.latency.features import feature_matrix
from epp.latency.types import Promise, Sample, Target


def sample(at_s: float, in_flight: float = 0.0, tokens: float = 100.0, ttft: float = 50.0) -> Sample:
    row = feature_matrix(situation(prompt_tokens=tokens, in_flight=in_flight))[0]
    return Sample("a", Promise(row, {}, None, 0), at_s, {Target.TTFT: ttft})


def test_it_is_bounded_and_keeps_what_is_rare() -> None:
    buffer = SampleBuffer(capacity=100, max_age_s=1e9)
    for i in range(5):
        buffer.add(sample(i, in_flight=200.0, tokens=50_000.0, ttft=9000.0))
    for i in range(5, 1000):
        buffer.add(sample(i))
    rows = buffer.rows(1000.0)
    assert len(buffer) == len(rows) == 100
    assert (rows.actual_ms[:, 0] == 9000.0).sum() == 5
    assert rows.at_s.tolist() == sorted(rows.at_s.tolist())
    assert rows.at_s[-1] == 999.0


def test_nothing_is_kept_beyond_its_age_however_rare() -> None:
    buffer = SampleBuffer(capacity=100, max_age_s=60.0)
    buffer.add(sample(0.0, in_flight=200.0))
    buffer.add(sample(50.0))
    assert len(buffer.rows(59.0)) == 2
    assert buffer.rows(61.0).at_s.tolist() == [50.0]
    assert len(buffer.rows(1e6)) == 0


def test_old_rows_make_room_for_new_ones_of_their_kind() -> None:
    buffer = SampleBuffer(capacity=1000, max_age_s=10.0)
    for i in range(500):
        buffer.add(sample(float(i)))
    assert len(buffer) <= 13


def test_a_copy_does_not_change_with_the_buffer() -> None:
    buffer = SampleBuffer(capacity=2, max_age_s=1e9)
    buffer.add(sample(1.0, ttft=10.0))
    rows = buffer.rows(1.0)
    buffer.add(sample(2.0, ttft=20.0))
    buffer.add(sample(3.0, ttft=30.0))
    assert rows.actual_ms[:, 0].tolist() == [10.0]
    assert np.isnan(rows.actual_ms[:, 1:]).all()


def test_unknown_load_has_a_bucket() -> None:
    row = feature_matrix(situation(in_flight=float("nan"), running=float("nan"), prompt_tokens=float("nan")))[0]
    assert bucket_of(row) == 0
