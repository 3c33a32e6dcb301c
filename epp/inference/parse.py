"""From the bytes of a body to a `Request`.

Whatever a model server may accept is never refused. Refused are only a missing body, bytes that are not JSON, and JSON
that is not an object, on a path whose API needs one. Everything else that is not understood (a body cut short, an
unknown content coding, unknown shapes, nesting beyond reason) is opaque: a request without model or prompts, which is
routed all the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from epp.inference import anthropic, native, openai
from epp.inference.apis import error_style_of, is_render
from epp.inference.content_encoding import decode
from epp.inference.counts import token_count
from epp.inference.jsonbytes import MalformedError, UnreadableError, loads
from epp.inference.prompt import string_of
from epp.inference.request import Api, Prompt, Request

Body = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BadRequest:
    """Why a request is refused (400). The message has nothing of the body in it."""

    message: str


@dataclass(frozen=True, slots=True)
class _Shape:
    """How an API's body is read: its prompts, and where the client's cap of output tokens stands."""

    prompts: Callable[[Body], tuple[Prompt, ...]]
    caps: tuple[str, ...] = ()
    sampling_caps: tuple[str, ...] = ()  # inside `sampling_params`
    salt: Callable[[Body], str | None] = lambda body: string_of(body, "cache_salt")


_SHAPES: Mapping[Api, _Shape] = MappingProxyType(
    {
        Api.COMPLETIONS: _Shape(openai.completions, caps=("max_tokens",)),
        Api.CHAT: _Shape(openai.chat, caps=("max_completion_tokens", "max_tokens")),
        Api.RESPONSES: _Shape(openai.responses, caps=("max_output_tokens",)),
        Api.CONVERSATIONS: _Shape(openai.conversations),
        Api.EMBEDDINGS: _Shape(openai.embeddings),
        Api.IMAGES: _Shape(openai.images),
        Api.MESSAGES: _Shape(anthropic.messages, caps=("max_tokens",)),
        Api.COUNT_TOKENS: _Shape(lambda body: ()),
        Api.VLLM_GENERATE: _Shape(native.vllm_generate, sampling_caps=("max_tokens",)),
        Api.SGLANG_GENERATE: _Shape(native.sglang_generate, sampling_caps=("max_new_tokens",), salt=native.sglang_salt),
    }
)

# A conversation may be created with nothing in it.
_EMPTY_ALLOWED = frozenset({Api.OPAQUE, Api.CONVERSATIONS})


def parse_request(
    api: Api,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    id: str,
    path: str,
    body_complete: bool = True,
    has_body: bool = True,
) -> Request | BadRequest:
    """Read a request once.

    Args:
        api: from `Parsers.api_for`.
        body: as the client sent it, compressed or not; `None` when it cannot be seen, or when there is none.
        headers: lower-cased name to last value, pseudo headers included.
        id: our own id of the stream.
        path: the request path with its query.
        body_complete: False when the proxy cut the body short.
        has_body: False when the request ended with its headers.

    Returns:
        A request; or a `BadRequest`.
    """
    generates = has_body and body != b"" and api is not Api.COUNT_TOKENS and not is_render(path)
    body_bytes = 0 if body is None else len(body)
    style = error_style_of(api)
    opaque = Request(id, api, path, headers, body_bytes=body_bytes, generates=generates, error_style=style)
    if body == b"" or not has_body:
        if headers.get(":method", "POST") == "POST" and api not in _EMPTY_ALLOWED:
            return BadRequest("request body is empty")
        return opaque
    if body is None or api is Api.OPAQUE or not body_complete:
        return opaque
    plain = decode(body, headers.get("content-encoding"))
    if plain is None:
        return opaque
    try:
        data = loads(plain)
    except MalformedError:
        return BadRequest("request body is not valid JSON")
    except UnreadableError:
        return opaque
    if not isinstance(data, dict):
        return BadRequest("request body must be a JSON object")
    shape = _SHAPES[api]
    model = string_of(data, "model")
    return Request(
        id,
        api,
        path,
        headers,
        model=model,
        target_model=model,
        streaming=data.get("stream") is True,
        max_output_tokens=_cap(data, shape),
        cache_salt=shape.salt(data),
        prompts=_prompts(data, shape),
        body_bytes=body_bytes,
        generates=generates,
        error_style=style,
    )


def _prompts(data: Body, shape: _Shape) -> tuple[Prompt, ...]:
    try:
        return shape.prompts(data)
    except UnreadableError:  # a part of it cannot be written back as JSON; the rest still counts
        return ()


def _cap(data: Body, shape: _Shape) -> int | None:
    for key in shape.caps:
        cap = token_count(data.get(key))
        if cap is not None:
            return cap
    sampling = data.get("sampling_params") if shape.sampling_caps else None
    if isinstance(sampling, dict):
        for key in shape.sampling_caps:
            cap = token_count(sampling.get(key))
            if cap is not None:
                return cap
    return None
