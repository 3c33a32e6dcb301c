"""Prompts as bytes: the same content is the same bytes, and sizes are bounded whatever a client claims."""

import pytest
from plugin_fakes import a_cycle, make, pool
from pydantic import ValidationError

from epp.inference.request import Media, MediaKind, Prompt, Request
from epp.plugins._media_tokens import AUDIO_TOKENS, MAX_TOKENS_PER_MEDIA
from epp.plugins.token_producer import MAX_MEDIA_TOKENS_PER_REQUEST
from epp.scheduling.data import TOKENIZED_PROMPT

IMAGE = Media(MediaKind.IMAGE, content_hash=0x1122334455667788)


def tokenize(*prompts, parameters=None, **request):
    cycle = a_cycle(*prompts, **request)
    make("token-producer", parameters).produce(cycle, pool(size=1))
    return cycle.get(TOKENIZED_PROMPT.by(None))


def test_four_bytes_are_a_token_and_text_is_taken_as_it_is():
    prompt = tokenize(b"0123456789", b"\xe4\xb8\xad")
    assert prompt.prompts == (b"0123456789", b"\xe4\xb8\xad")
    assert prompt.bytes_per_token == 4
    assert prompt.tokens == 3 + 1


def test_model_and_salt_are_the_seed():
    assert tokenize(b"x").seed == b"llama\0"
    seeds = {tokenize(b"x", model=m, cache_salt=s).seed for m in ("a", "ab", None) for s in (None, "b", "c")}
    assert len(seeds) == 9


def test_text_that_is_no_utf8_scalar_is_no_error():
    assert tokenize(b"x", cache_salt="\ud800").seed


def test_pictures_start_on_a_token_and_count_their_pixels():
    (data,) = tokenize([b"abcde", IMAGE, b"tail"]).prompts
    assert data.startswith(b"abcde\0\0\0" + 0x1122334455667788.to_bytes(8, "little"))
    assert data.endswith(b"tail")
    assert len(data) == 8 + 4 * 225 + 4
    known = Media(MediaKind.IMAGE, 1, width=1024, height=512)
    assert tokenize([known]).tokens == 512


def test_other_pictures_are_other_bytes_and_the_same_are_the_same():
    other = Media(MediaKind.IMAGE, content_hash=1)
    assert tokenize([IMAGE]).prompts == tokenize([IMAGE]).prompts
    assert tokenize([IMAGE]).prompts != tokenize([other]).prompts


@pytest.mark.parametrize(
    ("kind", "estimate", "tokens"),
    [
        (MediaKind.IMAGE, {}, 225),
        (MediaKind.IMAGE, {"image": {"mode": "static", "static": {"staticToken": 77}}}, 77),
        (MediaKind.IMAGE, {"image": {"defaultResolution": {"width": 1280, "height": 720}}}, 900),
        (MediaKind.IMAGE, {"image": {"dynamic": {"factor": 2048}}}, 112),
        (MediaKind.VIDEO, {}, 20 * 225),
        (MediaKind.VIDEO, {"video": {"maxVideoTokens": 1000}}, 1000),
        (MediaKind.VIDEO, {"video": {"defaultDuration": 3.5}}, 7 * 225),
        (MediaKind.VIDEO, {"video": {"frames": {"sampled": {"sampleFPS": 1, "temporalPatchSize": 2}}}}, 5 * 225),
        (MediaKind.VIDEO, {"video": {"frames": {"maxFrames": 4}}}, 4 * 225),
        (MediaKind.VIDEO, {"video": {"frames": {"minFrames": 30}}}, 30 * 225),
        (MediaKind.VIDEO, {"video": {"frames": {"mode": "strided", "strided": {"frameStride": 24}}}}, 10 * 225),
        (
            MediaKind.VIDEO,
            {"video": {"tokensPerFrame": {"mode": "static", "static": {"numTokensPerFrame": 3}}}},
            60,
        ),
        (MediaKind.AUDIO, {}, AUDIO_TOKENS),
    ],
)
def test_media_estimates(kind, estimate, tokens):
    assert tokenize([Media(kind, 5)], parameters={"estimate": estimate}).tokens == tokens


STRIDED = {"video": {"frames": {"mode": "strided", "strided": {"frameStride": 24}}}}


@pytest.mark.parametrize(
    ("headers", "estimate", "tokens"),
    [
        ({"x-llm-d-video-duration-seconds": "3.5"}, {}, 7 * 225),
        ({"x-llm-d-video-resolution": "1280x720"}, {}, 20 * 900),
        ({"x-llm-d-video-fps": "48"}, STRIDED, 20 * 225),
        ({"x-llm-d-video-fps": "48"}, {}, 20 * 225),  # frames are sampled by time
        ({"x-llm-d-video-duration-seconds": "soon"}, {}, 20 * 225),
        ({"x-llm-d-video-duration-seconds": "1e300"}, {}, 20 * 225),
        ({"x-llm-d-video-resolution": "1280"}, {}, 20 * 225),
        ({"x-llm-d-video-resolution": "-1x720"}, {}, 20 * 225),
        ({"x-llm-d-video-fps": "nan"}, STRIDED, 10 * 225),
    ],
)
def test_headers_say_what_nobody_here_can_see_of_a_film(headers, estimate, tokens):
    film = Media(MediaKind.VIDEO, 5)
    assert tokenize([film], parameters={"estimate": estimate}, headers=headers).tokens == tokens


def test_a_picture_that_claims_to_be_huge_is_bounded():
    assert tokenize([Media(MediaKind.IMAGE, 1, width=10**6, height=10**6)]).tokens == MAX_TOKENS_PER_MEDIA


def test_a_body_full_of_pictures_is_bounded_over_all_its_prompts():
    many = [Media(MediaKind.IMAGE, i) for i in range(1500)]
    assert tokenize(many, many).tokens == MAX_MEDIA_TOKENS_PER_REQUEST


@pytest.mark.parametrize("request_", [Request(id="r"), Request(id="r", prompts=(Prompt((b"x",)),), generates=False)])
def test_nothing_is_published_without_a_prompt_or_inference(request_):
    cycle = a_cycle()
    cycle.request = request_
    make("token-producer").produce(cycle, pool(size=1))
    assert cycle.get(TOKENIZED_PROMPT.by(None)) is None


def test_the_deprecated_name_publishes_under_its_own_instance_name():
    cycle = a_cycle(b"abcd")
    make("tokenizer").produce(cycle, pool(size=1))
    assert cycle.get(TOKENIZED_PROMPT.by("tokenizer")).tokens == 1


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"modelName": "meta/llama"}, "remove modelName"),
        ({"vllm": {}}, "remove vllm"),
        ({"modelName": "m", "vllm": {"url": "http://x"}}, "remove modelName, vllm"),
        ({"udsTokenizerConfig": {"socketFile": "/x"}}, "remove udsTokenizerConfig"),
    ],
)
def test_remote_tokenizers_are_refused_with_the_way_out(parameters, names):
    with pytest.raises(ValueError, match=names):
        make("token-producer", parameters)


@pytest.mark.parametrize(
    "bad",
    [
        {"estimate": {"image": {"mode": "static"}}},
        {"estimate": {"video": {"tokensPerFrame": {"mode": "static"}}}},
        {"estimate": {"image": {"dynamic": {"factor": 0}}}},
        {"estimate": {"audio": {}}},
        {"model": "x"},
    ],
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        make("token-producer", bad)
