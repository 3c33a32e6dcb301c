"""Targets from headers: whatever a client sends, a target is a sane number or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.plugins._slo import MAX_TARGET_MS, Slo, opted_in, slo_of


def test_both_names_and_both_targets():
    assert slo_of({"x-llm-d-slo-ttft-ms": "500", "x-llm-d-slo-tpot-ms": "50.5"}) == Slo(500.0, 50.5)
    assert slo_of({"x-slo-ttft-ms": "1e3", "x-slo-tpot-ms": " 20 "}) == Slo(1000.0, 20.0)
    assert slo_of({}) == Slo(None, None)
    assert not slo_of({}).constrained


def test_the_new_name_wins_even_when_it_cannot_be_read():
    assert slo_of({"x-llm-d-slo-ttft-ms": "100", "x-slo-ttft-ms": "900"}) == Slo(100.0)
    broken = slo_of({"x-llm-d-slo-ttft-ms": "200ms", "x-slo-ttft-ms": "900"})
    assert broken == Slo(None, None, ("x-llm-d-slo-ttft-ms",))


NOT_FINITE = ["nan", "NaN", "inf", "+Inf", "-inf", "1e400", "1" * 400]
NOT_POSITIVE = ["-5", "0", "0.0", "-0"]
BEYOND_REASON = ["9300000000000000", "9223372036854775807", "1e9"]
NO_NUMBER = ["", " ", "200ms", "soon", "0x1p4", "1_000", "1,5", "5 5", "\u0661\u0660"]


@pytest.mark.parametrize("text", [*NOT_FINITE, *NOT_POSITIVE, *BEYOND_REASON, *NO_NUMBER])
def test_what_is_no_target_is_absent_and_counted(text):
    assert slo_of({"x-slo-tpot-ms": text}) == Slo(None, None, ("x-slo-tpot-ms",))


@given(st.text(max_size=30))
def test_no_text_gives_a_target_out_of_bounds(text):
    value = slo_of({"x-slo-ttft-ms": text}).ttft_ms
    assert value is None or 0 < value <= MAX_TARGET_MS


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("TRUE", True), ("false", False), (" False ", False), ("maybe", None)]
)
def test_opting_in_and_out(text, expected):
    for default in (True, False):
        answer = opted_in({"x-prediction-based-scheduling": text}, default)
        assert answer is (default if expected is None else expected)
        assert opted_in({}, default) is default
