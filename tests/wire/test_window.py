import itertools
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from epp.wire.window import BodyWindow


def windowed(chunks, head_bytes, tail_bytes):
    window = BodyWindow(head_bytes, tail_bytes)
    for chunk in chunks:
        window.feed(chunk)
    return window


@given(
    body=st.binary(max_size=200),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    head=st.integers(0, 40),
    tail=st.integers(0, 40),
)
def test_both_ends_are_kept_whatever_the_chunks(body, cuts, head, tail):
    edges = [0, *sorted(min(c, len(body)) for c in cuts), len(body)]
    window = windowed([body[a:b] for a, b in itertools.pairwise(edges)], head, tail)
    assert window.head == body[:head]
    assert window.tail == body[max(head, len(body) - tail) :]
    assert window.whole == (body if len(body) <= head + tail else None)


def test_memory_is_bounded_whatever_passes():
    tracemalloc.start()
    try:
        window = BodyWindow(head_bytes=100, tail_bytes=10_000)
        for size, number in ((7, 3_000), (1_000_000, 3), (1, 3_000), (0, 1_000), (9_999, 10), (1, 9_999)):
            for _ in range(number):
                window.feed(bytes([65 + number % 26]) * size)
            held_bytes, _ = tracemalloc.get_traced_memory()
            assert held_bytes < 60_000
    finally:
        tracemalloc.stop()
    assert len(window.tail) == 10_000
    assert window.tail.endswith(bytes([65 + 9_999 % 26]) * 9_999)
    assert window.total_bytes == 21_000 + 3_000_000 + 3_000 + 99_990 + 9_999


def test_a_stream_that_fits_gives_all_its_events():
    assert windowed([b"data: a\n", b"\ndata: b\n\ndata: c"], 10, 100).payloads() == [b"a", b"b", b"c"]


def test_of_a_long_stream_the_events_of_both_ends_are_given_once_and_in_order():
    events = [b"data: %03d\n\n" % i for i in range(100)]
    for head in range(60):
        for tail in range(60):
            payloads = windowed(events, head, tail).payloads()
            first = [b"%03d" % i for i in range(head // 11)]
            last = payloads[len(first) :]
            assert payloads[: len(first)] == first
            # An event that begins exactly with the tail may be left out.
            assert last == [b"%03d" % i for i in range(100 - len(last), 100)]
            assert len(last) in (tail // 11, max(0, tail // 11 - 1))


def test_a_body_without_line_ends_gives_no_events():
    assert windowed([b"x" * 1_000], 10, 10).payloads() == []


LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    events=st.lists(st.sampled_from([b"a", b"plain", b"usage 1", b"usage 2", b"x" * 30]), max_size=12),
    line_end=LINE_ENDS,
    head=st.integers(0, 60),
    tail=st.integers(0, 60),
)
def test_looking_for_something_leaves_out_only_what_lies_before_it(events, line_end, head, tail):
    chunks = [b"data: " + event + line_end * 2 for event in events]
    window = windowed(chunks, head, tail)
    everything = window.payloads()
    found = window.payloads(lambda data: data.find(b"usage"))
    assert [event for event in found if b"usage" in event] == [event for event in everything if b"usage" in event]
    if window.whole is not None and line_end == b"\n":
        assert found == everything[next((i for i, event in enumerate(events) if b"usage" in event), len(events)) :]
