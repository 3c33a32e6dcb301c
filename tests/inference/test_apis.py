import pytest

from epp.inference.apis import DEFAULT_PARSERS, Parsers, error_style_of, is_render
from epp.inference.request import Api, ErrorStyle


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/completions", Api.COMPLETIONS),
        ("/v1/chat/completions", Api.CHAT),
        ("/v1/chat/completions?x=1", Api.CHAT),
        ("/v1/chat/completions/", Api.CHAT),
        ("/v1/chat/completions/?x=a/b/messages", Api.CHAT),
        ("/prefix/v1/completions", Api.COMPLETIONS),
        ("/v1/projects/p/locations/l/endpoints/e/chat/completions", Api.CHAT),
        ("/v1/completions/render", Api.COMPLETIONS),
        ("/v1/chat/completions/render", Api.CHAT),
        ("/v1/responses", Api.RESPONSES),
        ("/v1/conversations", Api.CONVERSATIONS),
        ("/v1/embeddings", Api.EMBEDDINGS),
        ("/v1/images/generations", Api.IMAGES),
        ("/v1/messages?beta=true", Api.MESSAGES),
        ("/v1/messages/", Api.MESSAGES),
        ("/v1/messages/count_tokens", Api.COUNT_TOKENS),
        ("/inference/v1/generate", Api.VLLM_GENERATE),
        ("/gateway/inference/v1/generate", Api.VLLM_GENERATE),
    ],
)
def test_a_path_names_its_api(path, api):
    assert Parsers().api_for(path) is api


@pytest.mark.parametrize(
    "path",
    ["/v1/xcompletions", "/v1/rerank", "/", "", "?", "/v1/models", "/generate", "/v1/completions/x", "/v1/generate"],
)
def test_unknown_paths_are_opaque_not_refused(path):
    assert Parsers().api_for(path) is Api.OPAQUE


def test_without_passthrough_an_unknown_path_has_no_parser():
    parsers = Parsers(["openai-parser"])
    assert parsers.api_for("/v1/messages") is None
    assert parsers.api_for("/v1/xcompletions") is None
    assert parsers.api_for("/v1/completions") is Api.COMPLETIONS


def test_a_list_of_nothing_but_passthrough_takes_everything():
    assert Parsers(["passthrough-parser"]).api_for("/v1/chat/completions") is Api.OPAQUE


def test_sglang_owns_its_whole_path_only():
    parsers = Parsers(["sglanghttp-parser", "passthrough-parser"])
    assert parsers.api_for("/generate") is Api.SGLANG_GENERATE
    assert parsers.api_for("/generate/?stream=1") is Api.SGLANG_GENERATE
    assert parsers.api_for("/inference/v1/generate") is Api.OPAQUE
    assert parsers.api_for("/v2/models/m/generate") is Api.OPAQUE


def test_an_unknown_parser_type_is_named():
    with pytest.raises(ValueError, match="'nosuch-parser'"):
        Parsers([*DEFAULT_PARSERS, "nosuch-parser"])


def test_render_paths_are_told_apart():
    assert is_render("/v1/chat/completions/render?x=1")
    assert not is_render("/v1/chat/completions")
    assert not is_render("/v1/xcompletions/render")


def test_each_api_has_the_error_style_of_its_clients():
    assert error_style_of(Api.MESSAGES) is ErrorStyle.ANTHROPIC
    assert error_style_of(Api.COUNT_TOKENS) is ErrorStyle.ANTHROPIC
    assert error_style_of(Api.CHAT) is ErrorStyle.OPENAI
    assert error_style_of(None) is ErrorStyle.OPENAI
