import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.page import MAX_LINES_PER_FAMILY, Page, PageReader, Sample

UNDER_LOAD = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 20.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 20.0
"""


def read(data: bytes, *families: str) -> Page:
    return PageReader(families or ("m",)).read(data)


def values(data: bytes, family: str = "m") -> list[float | None]:
    return [s.value for s in read(data, family).samples.get(family, ())]


def test_only_the_wanted_family_is_read_and_not_one_with_a_longer_name() -> None:
    page = read(UNDER_LOAD, "vllm:num_requests_waiting", "vllm:absent")
    assert page == Page(
        {"vllm:num_requests_waiting": (Sample({"engine": "0", "model_name": "tiny"}, 20.0),)}, is_metrics=True
    )


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        (rb"m 1", {}),
        (rb"m{} 1", {}),
        (rb'm{a="b"}1', {"a": "b"}),
        (rb'm{a="x,y}z{",b="=\"q\"",} 1', {"a": "x,y}z{", "b": '="q"'}),
        (rb'm { a = "\\n\n\\" , b="" } 1', {"a": "\\n\n\\", "b": ""}),
        ('m{a="ü"} 1'.encode(), {"a": "ü"}),
        (b'm{a="\xff"} 1', {"a": "\ufffd"}),
    ],
)
def test_labels_may_hold_anything(line: bytes, labels: dict[str, str]) -> None:
    assert read(b"x 0\r\n" + line + b"\r\ny 0\n").samples == {"m": (Sample(labels, 1.0),)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1e3", 1000.0),
        (b"+.5", 0.5),
        (b"7 1700000000000", 7.0),
        (b"NaN", None),
        (b"+Inf", None),
        (b"-Inf", None),
        (b"-1", None),
        (b"1e999", None),
    ],
)
def test_what_no_gauge_can_be_is_unknown_and_not_a_number(text: bytes, value: float | None) -> None:
    assert values(b"m " + text) == [value]


@pytest.mark.parametrize("line", [b"m", b"m ", b"m x", b"m 1_0", b"m 0x1", b"m{a=1} 1", b'm{a="1" 1', b'm{a="b"c} 1'])
def test_a_malformed_line_is_no_sample(line: bytes) -> None:
    assert values(line + b'\nm{ok="1"} 5') == [5.0]


def test_of_a_series_that_is_there_twice_the_latest_stands() -> None:
    assert values(b'm{a="1"} 1\nm{a="1"} 2\nm{a="2"} 3\n') == [2.0, 3.0]
    assert values(b"m 1 2000\nm 2 1000\nm 3\n") == [1.0]


def test_remembered_labels_never_outlive_their_page() -> None:
    reader = PageReader(["m"])
    for label in ("a", "b", "b", "a"):
        assert reader.read(f'm{{x="{label}"}} 1'.encode()).samples == {"m": (Sample({"x": label}, 1.0),)}


def test_a_family_without_end_is_unknown_rather_than_half_read() -> None:
    lines = b"".join(b'm{i="%d"} 1\n' % i for i in range(MAX_LINES_PER_FAMILY + 1))
    assert read(lines + b"n 1", "m", "n").samples == {"n": (Sample({}, 1.0),)}
    assert values(b"m 1\n" * (MAX_LINES_PER_FAMILY + 1)) == []


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b"<!DOCTYPE html>\n<html><body>m 1</body></html>", b'{"error": "not found"}', b"\x00" * 99]
)
def test_what_is_no_metrics_page_is_told_apart(data: bytes) -> None:
    assert read(data) == Page({}, is_metrics=False)


def test_a_metrics_page_without_the_wanted_families_is_a_metrics_page() -> None:
    assert read(UNDER_LOAD) == Page({}, is_metrics=True)


def test_a_reader_that_wants_nothing_reads_nothing() -> None:
    assert PageReader([]).read(UNDER_LOAD).samples == {}


fragments = st.sampled_from(
    [b"m", b"\n", b"{", b"}", b'"', b"\\", b",", b"=", b"a", b' a="b"', b" ", b"1", b"NaN", b"-", b"# TYPE m gauge\n"]
)


@given(st.one_of(st.binary(), st.lists(fragments, max_size=40).map(b"".join)))
def test_no_page_makes_reading_fail(data: bytes) -> None:
    page = read(data, "m", "a")
    for series in page.samples.values():
        for sample in series:
            assert sample.value is None or (math.isfinite(sample.value) and sample.value >= 0)


def written(labels: dict[str, str], value: float) -> str:
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    return "m{" + ",".join(f'{k}="{v}"' for k, v in escaped.items()) + "} " + repr(value)


@given(
    st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]*", fullmatch=True), st.text()),
    st.floats(0, allow_nan=False, allow_infinity=False),
)
def test_what_an_exporter_writes_is_what_is_read(labels: dict[str, str], value: float) -> None:
    assert read(written(labels, value).encode()).samples == {"m": (Sample(labels, value),)}
