import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.errors import ScrapeError
from epp.signals.response import MAX_FRAMING_BYTES, PageResponse

MAX_BYTES = 10_000
PAGE = b"vllm:num_requests_running 1\n" * 20
HEAD = b"HTTP/1.1 200 OK\r\nServer: x\r\n"
SIZED = HEAD + b"Content-Length: %d\r\n\r\n" % len(PAGE) + PAGE


def chunked(page: bytes, sizes: list[int]) -> bytes:
    parts, at = [], 0
    for size in [*sizes, len(page)]:
        if piece := page[at : at + size]:
            parts.append(b"%x\r\n%s\r\n" % (len(piece), piece))
            at += len(piece)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n\r\n"


def read(data: bytes, cuts: list[int], *, ends: bool = False) -> tuple[bytes | None, PageResponse]:
    """What comes of `data` that arrives in pieces, and then the end of the connection if it `ends`."""
    response = PageResponse(MAX_BYTES)
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        if piece := data[at:cut]:
            page = response.feed(piece)
            if page is not None:
                return page, response
        at = max(at, cut)
    return (response.end() if ends else None), response


def failure(data: bytes, *, ends: bool = True) -> str:
    with pytest.raises(ScrapeError) as raised:
        read(data, [], ends=ends)
    return raised.value.kind.value


pieces = st.lists(st.integers(0, 2000), max_size=12)


@given(pieces, st.lists(st.integers(1, 200), max_size=6), st.sampled_from(["sized", "chunked", "to the end"]))
def test_a_page_is_the_same_however_it_comes(cuts: list[int], chunks: list[int], framing: str) -> None:
    data = {"sized": SIZED, "chunked": chunked(PAGE, chunks), "to the end": HEAD + b"\r\n" + PAGE}[framing]
    page, response = read(data, cuts, ends=framing == "to the end")
    assert page == PAGE
    assert response.keeps_connection == (framing != "to the end")


@given(st.binary(max_size=300), pieces, st.sampled_from([b"", HEAD, SIZED[:60], SIZED, chunked(PAGE, [3])[:90]]))
def test_whatever_comes_is_a_page_or_an_error_and_never_more(garbage: bytes, cuts: list[int], before: bytes) -> None:
    try:
        page, response = read(before + garbage, cuts, ends=True)
    except ScrapeError:
        return
    assert page is not None
    assert len(page) <= MAX_BYTES
    if garbage and before == SIZED and not cuts:
        assert page == PAGE
        assert not response.keeps_connection


@pytest.mark.parametrize("head", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"])
def test_interim_responses_are_passed_over(head: bytes) -> None:
    page, response = read(head + SIZED, [])
    assert page == PAGE
    assert response.keeps_connection


@pytest.mark.parametrize(
    "data",
    [
        SIZED.replace(b"Server: x", b"Connection: close"),
        SIZED.replace(b"HTTP/1.1", b"HTTP/1.0"),
        SIZED + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nm 1",
    ],
)
def test_a_connection_that_cannot_be_trusted_with_another_question_is_not_kept(data: bytes) -> None:
    page, response = read(data, [])
    assert page == PAGE
    assert not response.keeps_connection


@pytest.mark.parametrize(
    ("packed", "name"), [(gzip.compress(PAGE), b"gzip"), (zlib.compress(PAGE), b"deflate")], ids=["gzip", "deflate"]
)
def test_packed_pages_are_unpacked(packed: bytes, name: bytes) -> None:
    head = HEAD + b"content-encoding: %s\r\ncontent-length: %d\r\n\r\n" % (name, len(packed))
    assert read(head + packed, [])[0] == PAGE


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "connection"),
        (b"HTTP/1.1 200", "protocol"),
        (SIZED[:-1], "protocol"),
        (chunked(PAGE, [5])[:-3], "protocol"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "protocol"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nm 1", "protocol"),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "protocol"),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\nm 1", "protocol"),
        (HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\n", "protocol"),
        (HEAD + b"Content-Length: 10001\r\n\r\n", "too_large"),
        (HEAD + b"\r\n" + b"m 1\n" * 2501, "too_large"),
        (chunked(b"m 1\n" * 2501, [4000]), "too_large"),
        (HEAD + b"Content-Encoding: br\r\n\r\n?", "encoding"),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nm 1", "encoding"),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "redirect"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "redirect"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "status"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "status"),
        (b"HTTP/1.1 500 Oops\r\nContent-Encoding: br\r\nContent-Length: 99999\r\n\r\n", "status"),
    ],
)
def test_what_is_no_page_is_an_error_of_its_kind(data: bytes, kind: str) -> None:
    assert failure(data) == kind


@pytest.mark.parametrize(
    "endless",
    [HEAD + b"x: y\r\n" * (MAX_FRAMING_BYTES // 6), b"HTTP/1.1 103 x\r\n\r\n" * (MAX_FRAMING_BYTES // 18 + 1)],
)
def test_headers_without_end_are_given_up(endless: bytes) -> None:
    assert failure(endless, ends=False) == "protocol"


def test_trailers_without_end_are_given_up() -> None:
    endless = chunked(PAGE, [])[:-2] + b"x: y\r\n" * 20_000
    assert failure(endless, ends=False) == "protocol"


def test_chunks_of_one_byte_are_read() -> None:
    assert read(chunked(PAGE, [1] * len(PAGE)), [])[0] == PAGE
