import pytest

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import EndpointSignals, LoraState
from epp.signals.engines import BUILT_IN_ENGINES, Engines
from epp.signals.mapping import EngineError, EngineMapping, MetricSpec, extract
from epp.signals.page import PageReader

BY_NAME = {engine.name: engine for engine in BUILT_IN_ENGINES}

VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 20.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.03223443223443223
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{_block_size_resolved="True",block_size="32",engine="0",num_cpu_blocks="None",num_gpu_blocks="5461"} 1.0
"""  # noqa: E501 (as vLLM writes it)


def signals(page: str, engine: EngineMapping | str = "vllm") -> EndpointSignals:
    mapping = BY_NAME[engine] if isinstance(engine, str) else engine
    return extract(mapping, PageReader(mapping.families).read(page.encode()).samples, 5.0)


def test_vllm() -> None:
    assert signals(VLLM) == EndpointSignals(
        waiting_requests=20.0,
        running_requests=4.0,
        kv_cache_usage_ratio=0.03223443223443223,
        kv_block_size_tokens=32,
        kv_blocks=5461,
        lora=None,
        scraped_at_s=5.0,
    )


def test_missing_metrics_are_unknown_not_idle() -> None:
    assert signals("") == EndpointSignals(scraped_at_s=5.0)


def test_the_old_name_of_the_cache_usage_counts_where_the_new_one_is_missing() -> None:
    old, new = "vllm:gpu_cache_usage_perc 0.5\n", "vllm:kv_cache_usage_perc 0.25\n"
    assert signals(old).kv_cache_usage_ratio == 0.5
    assert signals(new).kv_cache_usage_ratio == 0.25
    assert signals(old + new).kv_cache_usage_ratio == 0.25


def test_ranks_on_one_page_are_one_load() -> None:
    second = VLLM.replace('engine="0"', 'engine="1"').replace(" 20.0", " 1.0").replace("0.03223443223443223", "1.0")
    both = signals(VLLM + second)
    assert (both.waiting_requests, both.running_requests) == (21.0, 8.0)
    assert both.kv_cache_usage_ratio == pytest.approx((0.03223443223443223 + 1.0) / 2)
    assert (both.kv_block_size_tokens, both.kv_blocks) == (32, 2 * 5461)


def test_one_rank_of_nonsense_makes_the_whole_unknown_and_only_that() -> None:
    page = VLLM + 'vllm:num_requests_running{engine="1"} NaN\nvllm:kv_cache_usage_perc{engine="1"} -1\n'
    both = signals(page)
    assert both.running_requests is None
    assert both.kv_cache_usage_ratio is None
    assert both.waiting_requests == 20.0


def test_ranks_that_disagree_have_no_common_block_size() -> None:
    assert signals(VLLM + 'vllm:cache_config_info{block_size="16",engine="1"} 1').kv_block_size_tokens is None


@pytest.mark.parametrize("blocks", ["None", "", "0", "-5", "1e3", "9" * 40, "٣"])
def test_blocks_that_are_no_count_are_unknown(blocks: str) -> None:
    assert signals(VLLM.replace("5461", blocks)).kv_blocks is None


@pytest.mark.parametrize(("text", "ratio"), [("1.0001", 1.0), ("45", None), ("1", 1.0)])
def test_a_usage_is_a_ratio_or_unknown(text: str, ratio: float | None) -> None:
    assert signals(f"vllm:kv_cache_usage_perc {text}").kv_cache_usage_ratio == ratio


def test_a_count_beyond_all_sense_is_unknown() -> None:
    assert signals("vllm:num_requests_running 1e300").running_requests is None


LORA = """\
vllm:lora_requests_info{max_lora="2",running_lora_adapters="la",waiting_lora_adapters="la"} 1.7959830282081652e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="lb, lc",waiting_lora_adapters=""} 1.7959830410078826e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="lb",waiting_lora_adapters="lb"} 1.7959830282966156e+09
"""


def test_adapters_are_those_of_the_series_written_last() -> None:
    assert signals(LORA).lora == LoraState(active=frozenset({"lb", "lc"}), waiting=frozenset(), max_active=2)


@pytest.mark.parametrize("page", [LORA.replace('"2"', '"many"'), 'vllm:lora_requests_info{max_lora="1"} NaN'])
def test_adapters_are_unknown_when_their_limit_or_time_is(page: str) -> None:
    assert signals(page).lora is None


def test_sglang() -> None:
    page = (
        'sglang:num_queue_reqs{tp_rank="0"} 3\nsglang:num_running_reqs{tp_rank="0"} 2\nsglang:token_usage 0.5\n'
        'sglang:cache_config_info{page_size="64",num_pages="1000"} 1\n'
    )
    assert signals(page, "sglang") == EndpointSignals(3.0, 2.0, 0.5, 64, 1000, None, 5.0)


def test_trtllm_serve() -> None:
    page = (
        "trtllm_num_requests_waiting 3\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.5\n"
        "trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 900\n"
    )
    assert signals(page, "trtllm-serve") == EndpointSignals(3.0, 2.0, 0.5, 32, 900, None, 5.0)


def test_triton_tensorrt_llm() -> None:
    page = (
        'nv_trt_llm_request_metrics{model="m",request_type="waiting"} 3\n'
        'nv_trt_llm_request_metrics{model="m",request_type="scheduled"} 2\n'
        'nv_trt_llm_request_metrics{model="m",request_type="max"} 512\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.5\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"} 64\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 6239\n'
    )
    assert signals(page, "triton-tensorrt-llm") == EndpointSignals(3.0, 2.0, 0.5, 64, 6239, None, 5.0)


def test_what_triton_has_executed_since_its_start_is_no_load() -> None:
    page = 'nv_inference_pending_request_count{model="m"} 3\nnv_inference_exec_count{model="m"} 100000\n'
    assert signals(page, "triton") == EndpointSignals(waiting_requests=3.0, scraped_at_s=5.0)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("a:b_c", ()),
        (" a:b_c ", ()),
        ("a:b_c{}", ()),
        ("a:b_c{x=1}", (("x", "1"),)),
        ('a:b_c{ x = v , y="q,}\\"" }', (("x", "v"), ("y", 'q,}"'))),
    ],
)
def test_a_spec_names_a_family_and_labels(text: str, labels: tuple[tuple[str, str], ...]) -> None:
    assert MetricSpec.parse(text) == MetricSpec("a:b_c", labels)


@pytest.mark.parametrize(
    "text", ["", "a b", "1a", "a{", "a}", "a{x}", "a{x=}y", 'a{x="}', "a{=v}", "a{x=1;y=2}", "a{x=1}{y=2}"]
)
def test_a_bad_spec_is_named_with_its_fix(text: str) -> None:
    with pytest.raises(EngineError, match="write") as raised:
        MetricSpec.parse(text)
    assert repr(text) in str(raised.value)


def endpoint(**labels: str) -> Endpoint:
    names = {"new": "llm-d.ai/engine-type", "old": "inference.networking.k8s.io/engine-type", "own": "engine"}
    return Endpoint("default", "a", "10.0.0.1", 8000, {names[key]: value for key, value in labels.items()})


def test_each_endpoint_says_which_engine_it_runs() -> None:
    engines = Engines(default="trtllm-serve")
    assert engines.of(endpoint()).name == "trtllm-serve"
    assert engines.of(endpoint(old="sglang")).name == "sglang"
    assert engines.of(endpoint(new="triton", old="sglang")).name == "triton"
    assert engines.of(endpoint(new="llama.cpp")).name == "trtllm-serve"
    assert Engines(label="engine").of(endpoint(own="sglang")).name == "sglang"


def test_an_own_mapping_replaces_the_built_in_one_entirely() -> None:
    own = EngineMapping.from_specs("vllm", queued_requests_spec="q{kind=waiting}")
    mapping = Engines([own]).of(endpoint())
    assert mapping.families == {"q"}
    assert signals('q{kind="waiting"} 2\n' + VLLM, mapping) == EndpointSignals(waiting_requests=2.0, scraped_at_s=5.0)


def test_an_own_mapping_reads_its_own_labels() -> None:
    own = EngineMapping.from_specs("x", cache_info_spec="info", cache_block_size_label_name="bs")
    read = signals('info{bs="8",num_gpu_blocks="9"} 1', own)
    assert (read.kv_block_size_tokens, read.kv_blocks) == (8, 9)


@pytest.mark.parametrize(
    ("own", "default"), [(["default"], "vllm"), ([""], "vllm"), (["x", "x"], "vllm"), ([], "nobody")]
)
def test_impossible_engines_are_refused_in_one_line(own: list[str], default: str) -> None:
    with pytest.raises(EngineError) as raised:
        Engines([EngineMapping(name) for name in own], default=default)
    assert "\n" not in str(raised.value)
