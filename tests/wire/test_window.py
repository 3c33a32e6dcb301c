import itertools

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
    window = BodyWindow(head_bytes=100, tail_bytes=100)
    for chunk in [b"x" * 7] * 1_000 + [b"y" * 100_000] * 3 + [b"z"] * 1_000:
        window.feed(chunk)
        assert len(window._head) + len(window._tail) <= 100 + 2 * 100
    assert window.tail == b"z" * 100


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
