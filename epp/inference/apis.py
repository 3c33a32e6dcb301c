"""Which API a request speaks: decided by its path and by the parsers that the configuration lists.

A parser type owns path suffixes. A suffix matches whole segments only (`/prefix/v1/completions` is completions,
`/v1/xcompletions` is not), so that gateways may mount an API under any prefix; the longest suffix wins, and between
equals the parser listed first. The passthrough parser owns no suffix and takes what nobody else claims.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from epp.inference.request import Api, ErrorStyle

PASSTHROUGH = "passthrough-parser"

SUFFIXES: Mapping[str, Mapping[str, Api]] = MappingProxyType(
    {
        "openai-parser": {
            "chat/completions": Api.CHAT,
            "chat/completions/render": Api.CHAT,
            "completions": Api.COMPLETIONS,
            "completions/render": Api.COMPLETIONS,
            "responses": Api.RESPONSES,
            "conversations": Api.CONVERSATIONS,
            "embeddings": Api.EMBEDDINGS,
            "images/generations": Api.IMAGES,
        },
        "anthropic-parser": {
            "messages": Api.MESSAGES,
            "messages/count_tokens": Api.COUNT_TOKENS,
        },
        "vllmhttp-parser": {"inference/v1/generate": Api.VLLM_GENERATE},
        "sglanghttp-parser": {},  # owns one whole path, see WHOLE_PATHS
        PASSTHROUGH: {},
    }
)

# `generate` is too common a last segment (vLLM's and Triton's paths end so too) to be claimed under any prefix.
WHOLE_PATHS: Mapping[str, Mapping[str, Api]] = MappingProxyType(
    {"sglanghttp-parser": {"generate": Api.SGLANG_GENERATE}},
)

# llm-d default: the list used when the configuration names no parsers.
DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", PASSTHROUGH)


_REMEMBERED_PATHS = 128


class Parsers:
    """The configured parsers, by type. Raises `ValueError` for a type that does not exist."""

    def __init__(self, types: Sequence[str] = DEFAULT_PARSERS) -> None:
        self._suffixes: dict[str, Api] = {}
        self._whole: dict[str, Api] = {}
        for name in types:
            if name not in SUFFIXES:
                raise ValueError(f"unknown parser type {name!r}; known: {', '.join(sorted(SUFFIXES))}")
            for suffix, api in SUFFIXES[name].items():
                self._suffixes.setdefault(suffix, api)
            for whole, api in WHOLE_PATHS.get(name, {}).items():
                self._whole.setdefault(whole, api)
        self._fallback = Api.OPAQUE if PASSTHROUGH in types else None
        self._longest = max((suffix.count("/") + 1 for suffix in self._suffixes), default=0)
        # Clients ask for the same few paths again and again. The bound is against those that do not.
        self._remembered = lru_cache(maxsize=_REMEMBERED_PATHS)(self._find)

    def api_for(self, path: str) -> Api | None:
        """The API of a request path (`:path`, query and all); `None` when no parser takes it."""
        return self._remembered(path)

    def _find(self, path: str) -> Api | None:
        whole = _bare(path)
        if whole in self._whole:
            return self._whole[whole]
        segments = whole.rsplit("/", self._longest)[-self._longest :] if self._longest else []
        for first in range(len(segments)):
            api = self._suffixes.get("/".join(segments[first:]))
            if api is not None:
                return api
        return self._fallback


def is_render(path: str) -> bool:
    """The path asks only how a prompt would be rendered and tokenized; nothing is generated."""
    return "render" in path and f"/{_bare(path)}".endswith("/completions/render")


def error_style_of(api: Api | None) -> ErrorStyle:
    """The shape in which the clients of an API expect errors."""
    return ErrorStyle.ANTHROPIC if api in (Api.MESSAGES, Api.COUNT_TOKENS) else ErrorStyle.OPENAI


def _bare(path: str) -> str:
    """The path without query, fragment and outer slashes."""
    return path.partition("?")[0].partition("#")[0].strip("/")
