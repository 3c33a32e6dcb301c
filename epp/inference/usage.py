"""Token counts by the model server's own word, from a JSON body or from the events of a stream.

Most payloads carry none: they are told apart by a search for bytes, before any JSON is parsed. Text that the model
generated cannot fool the search, since a quote inside a JSON string is escaped. Reading never raises.
"""

import json
import re
from collections.abc import Mapping

from epp.inference.counts import token_count
from epp.inference.jsonbytes import MalformedError, UnreadableError, loads
from epp.inference.request import Api, Usage

# An object must follow: `"usage":null` in every chunk of a stream is not worth a parse.
_USAGE = re.compile(rb'"usage"\s*+:\s*+\{')
_META_INFO = re.compile(rb'"meta_info"\s*+:\s*+\{')
# SGLang's events carry the whole text so far; only the last one is worth a parse.
_UNFINISHED = re.compile(rb'"finish_reason"\s*+:\s*+null')

_NOTHING = Usage()
_DECODER = json.JSONDecoder()
_MAX_USAGE_BYTES = 4096
_MOST_TRIES = 4


def usage_from_json(api: Api, body: bytes) -> Usage:
    """The counts in a JSON response; all absent when it has none."""
    if api is Api.OPAQUE or not (_META_INFO if api is Api.SGLANG_GENERATE else _USAGE).search(body):
        return _NOTHING
    return _read(api, body)


def usage_from_ends(api: Api, head: bytes, tail: bytes) -> Usage:
    """The counts in a JSON response of which only both ends were kept: `usage` is small and stands near one of them.

    It is read wherever it stands, so not SGLang's, which has no object of its own.
    """
    if api in (Api.OPAQUE, Api.SGLANG_GENERATE):
        return _NOTHING
    for end in (tail, head):
        for found in list(_USAGE.finditer(end))[: -_MOST_TRIES - 1 : -1]:
            begins = found.end() - 1
            try:
                counts, _ = _DECODER.raw_decode(end[begins : begins + _MAX_USAGE_BYTES].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            if (usage := _usage(counts)) != _NOTHING:
                return usage
    return _NOTHING


def first_usage(api: Api, events: bytes) -> int:
    """Where in the bytes of a stream the first token counts may stand; below 0: nowhere."""
    if api is Api.OPAQUE:
        return -1
    found = (_META_INFO if api is Api.SGLANG_GENERATE else _USAGE).search(events)
    return -1 if found is None else found.start()


def merge_sse_usage(api: Api, payload: bytes, so_far: Usage) -> Usage:
    """The counts so far, updated by one event's data. A count of 0 does not replace one that is known."""
    if api is Api.SGLANG_GENERATE:
        if not _META_INFO.search(payload) or _UNFINISHED.search(payload):
            return so_far
    elif api is Api.OPAQUE or not _USAGE.search(payload):
        return so_far
    new = _read(api, payload)
    return Usage(
        prompt_tokens=new.prompt_tokens or _first(so_far.prompt_tokens, new.prompt_tokens),
        completion_tokens=new.completion_tokens or _first(so_far.completion_tokens, new.completion_tokens),
        cached_tokens=_first(new.cached_tokens, so_far.cached_tokens),
    )


def _read(api: Api, payload: bytes) -> Usage:
    try:
        data = loads(payload)
    except (MalformedError, UnreadableError):
        return _NOTHING
    if api is Api.SGLANG_GENERATE:
        return _sglang(data)
    if not isinstance(data, dict):
        return _NOTHING
    if isinstance(data.get("usage"), dict):
        return _usage(data["usage"])
    # Events wrap it: the Responses API's response.completed, .incomplete and .failed; Anthropic's message_start, whose
    # output count is only a beginning and must not stand for the end.
    response, message = data.get("response"), data.get("message")
    if isinstance(response, dict) and isinstance(response.get("usage"), dict):
        return _usage(response["usage"])
    if isinstance(message, dict) and isinstance(message.get("usage"), dict):
        started = _usage(message["usage"])
        return Usage(prompt_tokens=started.prompt_tokens, cached_tokens=started.cached_tokens)
    return _NOTHING


def _usage(counts: Mapping[str, object]) -> Usage:
    cached = token_count(counts.get("cache_read_input_tokens"))
    for key in ("input_tokens_details", "prompt_tokens_details"):
        details = counts.get(key)
        if isinstance(details, dict):
            cached = _first(token_count(details.get("cached_tokens")), cached)
    return Usage(
        prompt_tokens=_first(token_count(counts.get("prompt_tokens")), token_count(counts.get("input_tokens"))),
        completion_tokens=_first(
            token_count(counts.get("completion_tokens")), token_count(counts.get("output_tokens"))
        ),
        cached_tokens=cached,
    )


def _sglang(data: object) -> Usage:
    """One answer, or a list of them for a batch, whose counts add up."""
    answers = data if isinstance(data, list) else [data]
    infos = [answer.get("meta_info") for answer in answers if isinstance(answer, dict)]
    return Usage(
        prompt_tokens=_total(infos, "prompt_tokens"),
        completion_tokens=_total(infos, "completion_tokens"),
        cached_tokens=_total(infos, "cached_tokens"),
    )


def _total(infos: list[object], key: str) -> int | None:
    counts = [token_count(info.get(key)) for info in infos if isinstance(info, dict)]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _first(first: int | None, second: int | None) -> int | None:
    return second if first is None else first
