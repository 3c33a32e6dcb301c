"""What a client sends reaches the server byte for byte, however odd it is and however it is cut; so does the answer."""

import asyncio
import gzip
import json
import uuid
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
from stack import Stack, eventually
from yarl import URL

from epp.sim.config import SimConfig
from epp.sim.recorder import Recorded
from epp.sim.server import SERVER_HEADER

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary"), pytest.mark.asyncio(loop_scope="module")]

MODEL = SimConfig().model
COMPLETIONS = "/v1/completions"
MARKER = "x-sim-marker"


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(stack.url, timeout=timeout, auto_decompress=False) as client:
        yield client
    await eventually(stack.is_idle)


def arrived(stack: Stack, marker: str) -> Recorded:
    """The request as a server got it; exactly one server did."""
    (recorded,) = [r for server in stack.servers if (r := server.recorder.find(marker)) is not None]
    return recorded


def body_of(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "max_tokens": 3, "prompt": "größe 東京", **fields}, ensure_ascii=False).encode()


async def post(
    stack: Stack, client: aiohttp.ClientSession, data: Any, sent: bytes, status: int = 200, **headers: str
) -> bytes:
    """Send it and see that it arrives so. `sent` is what `data` amounts to."""
    marker = uuid.uuid4().hex
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    headers = {MARKER: marker, "content-type": "application/json", **named}
    async with client.post(COMPLETIONS, data=data, headers=headers) as response:
        answer = await response.read()
        assert response.status == status, answer
    assert arrived(stack, marker).body == sent
    return answer


async def in_chunks(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0.001)  # else they would be sent as one


ODD = {
    "whitespace": b' \n\t{ "model" :\t"%s" ,\r\n "prompt":"x",  "max_tokens" : 3 } \n ' % MODEL.encode(),
    "a key twice": b'{"model": "%s", "prompt": "x", "prompt": "y", "max_tokens": 3}' % MODEL.encode(),
    "the model twice": b'{"model": "nope", "prompt": "x", "max_tokens": 3, "model": "%s"}' % MODEL.encode(),
    "numbers": b'{"model": "%s", "prompt": "x", "max_tokens": 3, "seed": 9007199254740993, "top_k": 1e2, "a": -0.0, '
    b'"b": 1.10, "c": 12345678901234567890123}' % MODEL.encode(),
    "escapes": b'{"model": "%s", "prompt": "\\u00e9 \xc3\xa9 \\/ \\ud83d\\ude42", "max_tokens": 3}' % MODEL.encode(),
    "key order": b'{"z": 1, "max_tokens": 3, "prompt": "x", "a": null, "model": "%s"}' % MODEL.encode(),
}


@pytest.mark.parametrize("what", list(ODD))
async def test_odd_json_is_let_alone(stack: Stack, client: aiohttp.ClientSession, what: str) -> None:
    await post(stack, client, ODD[what], ODD[what])


async def test_a_body_may_be_cut_inside_a_character(stack: Stack, client: aiohttp.ClientSession) -> None:
    body = body_of(prompt="東京🙂" * 3)
    cut = body.index("🙂".encode()) + 2
    await post(stack, client, in_chunks([body[:cut], body[cut:]]), body)
    await post(stack, client, in_chunks([body[i : i + 1] for i in range(len(body))]), body)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_long_prompt_arrives_whole(stack: Stack, client: aiohttp.ClientSession, chunked: bool) -> None:
    """The server refuses what exceeds its context; what counts is what it got."""
    body = body_of(prompt="größe" * 800_000)
    assert len(body) > 5_000_000
    data = in_chunks([body[i : i + 500_000] for i in range(0, len(body), 500_000)]) if chunked else body
    assert b"maximum context length" in await post(stack, client, data, body, status=400)


async def test_a_client_may_wait_to_be_asked_for_its_body(stack: Stack, client: aiohttp.ClientSession) -> None:
    """As curl does with a long one."""
    marker, body = uuid.uuid4().hex, body_of(prompt="x" * 50_000)
    async with client.post(COMPLETIONS, data=body, headers={MARKER: marker}, expect100=True) as response:
        assert response.status == 200
        await response.read()
    assert arrived(stack, marker).body == body


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_body_stays_compressed(stack: Stack, client: aiohttp.ClientSession, coding: str) -> None:
    plain = body_of(prompt="size " * 1000)
    packed = gzip.compress(plain) if coding == "gzip" else zlib.compress(plain)
    answer = await post(stack, client, packed, packed, content_encoding=coding)
    assert json.loads(answer)["usage"]["completion_tokens"] == 3
    decision = (await stack.picker_state())["decisions"][0]["request"]
    assert (decision["model"], decision["body_bytes"]) == (MODEL, len(packed))


async def test_a_body_in_an_unknown_coding_is_passed_on(stack: Stack, client: aiohttp.ClientSession) -> None:
    body = b"\x28\xb5\x2f\xfd not for us"
    await post(stack, client, body, body, status=400, content_encoding="zstd")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models?after=%C3%A9&limit=1", "//v1//odd/./path"])
async def test_a_get_arrives_as_it_was_asked(stack: Stack, client: aiohttp.ClientSession, path: str) -> None:
    marker = uuid.uuid4().hex
    async with client.get(URL(stack.url + path, encoded=True), headers={MARKER: marker}) as response:
        assert response.status == (200 if path.startswith("/v1/models") else 404)
        await response.read()
    recorded = arrived(stack, marker)
    assert (recorded.method, recorded.path, recorded.body) == ("GET", path, b"")


async def test_any_path_and_body_is_routed(stack: Stack, client: aiohttp.ClientSession) -> None:
    marker, body = uuid.uuid4().hex, bytes(range(256))
    async with client.post("/v1/audio/transcriptions", data=body, headers={MARKER: marker}) as response:
        assert response.status == 404
        assert SERVER_HEADER in response.headers
    assert arrived(stack, marker).body == body


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "GET"])
@pytest.mark.parametrize("body", [None, b'{"a":  1}'])
async def test_any_method_is_routed_with_a_body_and_without(
    stack: Stack, client: aiohttp.ClientSession, method: str, body: bytes | None
) -> None:
    marker = uuid.uuid4().hex
    async with client.request(method, "/v1/models", data=body, headers={MARKER: marker}) as response:
        assert SERVER_HEADER in response.headers
        await response.read()
    recorded = arrived(stack, marker)
    assert (recorded.method, recorded.body) == (method, body or b"")


async def test_request_trailers_do_no_harm(stack: Stack) -> None:
    marker, body = uuid.uuid4().hex, body_of()
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\n{MARKER}: {marker}\r\ncontent-type: application/json\r\n"
        "trailer: x-checksum\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\r\n"
    ).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:9], body[9:]))
    url = urlsplit(stack.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(head + chunks + b"0\r\nx-checksum: abc\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    finally:
        writer.close()
        await writer.wait_closed()
    assert arrived(stack, marker).body == body


async def test_a_stream_is_what_the_server_itself_says(stack: Stack, client: aiohttp.ClientSession) -> None:
    """The same request, through everything and directly: event by event the same, from the first byte to the last."""
    asked = body_of(stream=True, max_tokens=50, stream_options={"include_usage": True})
    headers = {"x-request-id": "the-same"}
    async with client.post(COMPLETIONS, data=asked, headers=headers) as response:
        through, server = await response.read(), response.headers[SERVER_HEADER]
    (direct_url,) = [s.url for s in stack.servers if s.config.name == server]
    async with (
        aiohttp.ClientSession() as direct,
        direct.post(direct_url + COMPLETIONS, data=asked, headers=headers) as r,
    ):
        assert _without_changing(await r.read()) == _without_changing(through)


def _without_changing(stream: bytes) -> list[Any]:
    """The events without the time of their making and what the prefix cache had."""
    events = []
    for line in stream.splitlines(keepends=True):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            event.pop("created")
            (event.get("usage") or {}).pop("prompt_tokens_details", None)
            events.append(event)
        else:
            events.append(line)
    return events
