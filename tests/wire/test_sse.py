import itertools

from hypothesis import given
from hypothesis import strategies as st

from epp.wire.sse import SseReader

STREAM = (
    b"\xef\xbb\xbf: hello\r\n"
    b'data: {"choices":[{"delta":{"content":"\xc3\xa9\xf0\x9f\x98\x80"}}]}\r\n\r\n'
    b"event: message\ndata:no space\nid: 7\n\n"
    b"data: two\ndata:  lines\ndata\n\n"
    b"data: two\r\ndata: more\r\n\r\n"
    b": ping\n\n\n\n"
    b"retry: 5\rdata: cr only\r\r"
    b"data:\n\n"
    b"database: no\n\n"
    b'data: {"usage":{"completion_tokens":3}}\r\n\r\ndata: [DONE]\n\n'
)
PAYLOADS = [
    b'{"choices":[{"delta":{"content":"\xc3\xa9\xf0\x9f\x98\x80"}}]}',
    b"no space",
    b"two\n lines\n",
    b"two\nmore",
    b"cr only",
    b"",
    b'{"usage":{"completion_tokens":3}}',
    b"[DONE]",
]


def read(chunks, **options):
    reader = SseReader(**options)
    return [payload for chunk in chunks for payload in reader.feed(chunk)] + reader.close()


def test_lines_fields_and_comments_are_read_by_the_standard():
    assert read([STREAM]) == PAYLOADS


def test_a_split_at_any_byte_changes_nothing():
    for at in range(len(STREAM) + 1):
        assert read([STREAM[:at], STREAM[at:]]) == PAYLOADS, at


def test_single_bytes_and_empty_chunks_change_nothing():
    assert read([STREAM[i : i + 1] for i in range(len(STREAM))]) == PAYLOADS
    assert read([c for i in range(len(STREAM)) for c in (STREAM[i : i + 1], b"")]) == PAYLOADS


def test_an_event_is_given_with_the_chunk_that_completes_it():
    reader = SseReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\ndata: b") == [b"a"]
    assert reader.feed(b"\n\n") == [b"b"]


def test_a_stream_that_ends_without_its_last_blank_line_still_gives_its_last_event():
    assert read([b"data: a\n\ndata: usage"]) == [b"a", b"usage"]
    assert read([b"data: usage\n"]) == [b"usage"]
    assert read([b": only a comment"]) == []


def test_an_endless_line_is_dropped_and_reading_goes_on_after_it():
    reader = SseReader(max_event_bytes=100)
    for _ in range(1_000):
        assert reader.feed(b"data: never ending " * 10) == []
        assert len(reader._line) <= 100
    assert reader.feed(b"\ndata: same event\n\ndata: next\n\n") == [b"next"]


def test_endless_data_lines_are_dropped_and_reading_goes_on_after_them():
    reader = SseReader(max_event_bytes=100)
    for _ in range(1_000):
        assert reader.feed(b"data: one more\n") == []
        assert sum(map(len, reader._data)) <= 100
    assert reader.feed(b"\ndata: next\n\n") == [b"next"]


def test_reading_from_mid_stream_leaves_out_what_may_be_a_part():
    assert read([b'ial"}\ndata: same event\n\ndata: whole\n\n'], mid_stream=True) == [b"whole"]
    assert read([b"\ndata: after half a line end\r\n\r\ndata: whole\r\n\r\n"], mid_stream=True) == [b"whole"]


@given(
    text=st.lists(st.sampled_from([b"data: x", b"data:", b"d", b":", b"\r", b"\n", b"\r\n", b"\xff"]), max_size=30),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    limit=st.integers(0, 20),
)
def test_fragmentation_never_matters(text, cuts, limit):
    stream = b"".join(text)
    edges = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert read(chunks, max_event_bytes=limit) == read([stream], max_event_bytes=limit)


@given(
    st.lists(
        st.sampled_from([b"data: one\n\n", b"data: {}\n\n", b"data: o\rne\n\n", b"\n\n", b"data: a", b"\r", b"x"])
    ),
    st.sampled_from([6, 9, 1000]),
    st.booleans(),
)
def test_an_event_in_a_chunk_of_its_own_reads_as_in_any_other(chunks, limit, mid_stream):
    whole, apart = SseReader(limit, mid_stream=mid_stream), SseReader(limit, mid_stream=mid_stream)
    in_bytes = [payload for byte in b"".join(chunks) for payload in apart.feed(bytes([byte]))]
    assert [payload for chunk in chunks for payload in whole.feed(chunk)] == in_bytes
