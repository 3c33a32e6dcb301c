"""Which requests are routed."""

import gzip
import json

from epp.conformance.check import Bench, expect, must, should
from epp.conformance.checks._http import MODEL, answer, ask, bodyless, completion, post
from epp.conformance.http import HttpMessage, Kind, Part, Side
from epp.conformance.manner import HeaderForm, Manner

MESSAGES = [{"role": "user", "content": "How are you?"}]
BODIES: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "How are you?"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/embeddings": {"input": "How are you?"},
    "/v1/responses": {"input": "How are you?"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/chat/completions/render": {"messages": MESSAGES},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
}


@must
async def requests_of_known_apis_are_routed(bench: Bench) -> None:
    """Completions, chat, embeddings, responses and Anthropic messages are routed, bodies unchanged."""
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"):
        await _routed_unchanged(bench, path, _body(path))


@should
async def neighbouring_paths_are_routed(bench: Bench) -> None:
    """Paths beside the known ones (render, rerank) are routed, not refused."""
    for path in ("/v1/chat/completions/render", "/v1/rerank"):
        await _routed_unchanged(bench, path, _body(path))


@should
async def paths_may_have_query_prefix_and_slash(bench: Bench) -> None:
    """A query string, a prefix before the API's path and a slash at its end change nothing."""
    for before, after in (("", "?beta=true"), ("/some/prefix", ""), ("", "/")):
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages"):
            await _routed_unchanged(bench, before + path + after, _body(path))


@must
async def unknown_paths_are_routed(bench: Bench) -> None:
    """A request on a path that no API claims is routed, whatever its body is."""
    for body in (completion(), b"not JSON at all", bytes(range(256))):
        await _routed_unchanged(bench, "/some/where", body)


@must
async def bodyless_requests_are_routed(bench: Bench) -> None:
    """A request that ends with its headers is routed at once, by the reply to its headers."""
    for path in ("/v1/models", "/health", "/"):
        outcome = await bench.routed(bodyless(path), answer())
        header, metadata = outcome.destination, outcome.metadata_destination
        expect(header == metadata, f"The header says {header!r}, the metadata {metadata!r}.")


@must
async def unmatched_methods_are_routed(bench: Bench) -> None:
    """Methods other than GET and POST are routed, with a body and without one."""
    for method in ("HEAD", "OPTIONS", "DELETE", "PUT", "PATCH"):
        await bench.routed(bodyless("/some/where", method=method))
    for method in ("PUT", "PATCH", "DELETE"):
        await bench.routed(post(completion(), "/some/where", method=method))


@must
async def header_text_is_read_from_value_too(bench: Bench) -> None:
    """A header's text is its `raw_value` if that is not empty, else its `value`."""
    for form in HeaderForm:
        manner = Manner(header_form=form)
        await bench.routed(post(b"not JSON at all", "/some/where"), manner=manner)
        await bench.refused(400, post(b"not JSON at all", "/v1/completions"), manner)


@should
async def an_upgrade_is_answered_at_its_headers(bench: Bench) -> None:
    """A WebSocket upgrade has headers without an end and no body until it is granted: it is routed by its headers."""
    upgrade = HttpMessage(
        [*bodyless("/v1/realtime").headers, ("connection", "upgrade"), ("upgrade", "websocket")], [b"frame"]
    )
    async with bench.envoy.stream(upgrade) as stream:
        await stream.send(Side.REQUEST, Part(Kind.HEADERS, pairs=upgrade.headers))
        await stream.until(
            lambda: stream.rules.request.headers_answered or stream.over, lambda: "the reply to an upgrade"
        )
        expect(stream.rules.immediate is None, "It was refused.")


@should
async def compressed_bodies_are_routed(bench: Bench) -> None:
    """A body with a content-encoding is not refused for not being JSON, and comes back as it was."""
    body = gzip.compress(completion())
    outcome = await bench.routed(post(body, headers=[("content-encoding", "gzip")]))
    expect(outcome.rules.request.passed_on == body, "The body was changed.")


@should
async def unknown_shapes_are_left_to_the_model_server(bench: Bench) -> None:
    """JSON that a model server may understand is routed: unknown fields, unusual prompts, content in parts."""
    shapes: list[dict[str, object]] = [
        {"prompt": [[1, 2, 3], [4, 5]]},
        {"prompt": "x", "vllm_xargs": {"a": [1, {"b": None}]}},
        {"prompt": "x", "max_tokens": 2**60, "temperature": -1e300},
    ]
    for shape in shapes:
        await _routed_unchanged(bench, "/v1/completions", json.dumps({"model": MODEL, **shape}).encode())
    parts = [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}, {"type": "something_new"}]}]
    await _routed_unchanged(bench, "/v1/chat/completions", json.dumps({"model": MODEL, "messages": parts}).encode())


@must
async def attributes_do_not_disturb(bench: Bench) -> None:
    """Attributes and metadata that the picker does not know are skipped."""
    manner = Manner(
        attributes={"envoy.filters.http.ext_proc": {"source.address": "192.0.2.7:1234"}},
        request_metadata={"some.filter": {"some-key": {"a": [1, "x", None]}}},
    )
    await bench.routed(ask(), answer(), manner)


def _body(path: str) -> bytes:
    return json.dumps({"model": MODEL, **BODIES[path]}).encode()


async def _routed_unchanged(bench: Bench, path: str, body: bytes) -> None:
    outcome = await bench.routed(post(body, path))
    expect(outcome.rules.request.passed_on == body, f"The body of a request to {path} was changed.")
