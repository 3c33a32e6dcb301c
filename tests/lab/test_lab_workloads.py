"""The workloads have the shapes that they say, and traces are read as they were published."""

import json
import random
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, islice, pairwise
from math import ceil
from statistics import fmean, median, pstdev, quantiles

import pytest

from epp.lab.pools import ENGINES
from epp.lab.prompts import BlockHashes, Segment, text_of, tokens_of
from epp.lab.workloads.catalogue import GROUPS, HELD_OUT, WORKLOADS, by_name
from epp.lab.workloads.doubts import doubts
from epp.lab.workloads.traces import Trace, TraceRow, read_trace
from epp.lab.workloads.workload import Clients, Targets, schedule
from epp.problem import Problem
from epp.sim.text import BYTES_PER_TOKEN


def take(name: str, requests: int = 3000, rate_rps: float = 4.0, seed: int = 1):
    workload = by_name(name)
    assert workload is not None
    return list(islice(workload.requests(rate_rps, random.Random(seed)), requests))


def reused_ratio(requests) -> float:
    """Of the prompt tokens of the second half, those whose block was in an earlier prompt or answer."""
    hashes, seen, hits, tokens = BlockHashes(), set(), 0, 0
    for number, request in enumerate(requests):
        prompt = hashes.of(request.prompt, 64)
        if 2 * number >= len(requests):
            hits += next((i for i, block in enumerate(prompt) if block not in seen), len(prompt))
            tokens += tokens_of(request.prompt)
        seen.update(hashes.of((*request.prompt, *filter(None, [request.answer])), 64))
    return 64 * hits / tokens


@pytest.mark.parametrize("name", [*WORKLOADS, *HELD_OUT])
def test_requests_come_in_order_and_by_the_seed(name: str) -> None:
    requests = take(name, 300)
    assert all(a.at_s <= b.at_s for a, b in pairwise(requests))
    assert requests[0].at_s >= 0.0
    assert requests == take(name, 300)
    assert requests != take(name, 300, seed=2)
    assert all(tokens_of(r.prompt) + r.output_tokens <= 131_072 and r.output_tokens >= 1 for r in requests)
    assert all(r.max_output_tokens is None or r.max_output_tokens >= r.output_tokens for r in requests)


@pytest.mark.parametrize(
    ("name", "prompt_median", "output_median", "reused"),
    [
        ("azure-conv", 757, 151, 0.0),
        ("azure-code", 1_097, 16, 0.0),
        ("mooncake-conversation", 7_700, 350, 0.37),
        ("b2b-saas", 7_200, 1_000, 0.80),
        ("production-shaped", 50, 40, 0.92),
        ("code-gen", 26_000, 800, 0.95),
    ],
)
def test_lengths_and_reuse(name: str, prompt_median: float, output_median: float, reused: float) -> None:
    requests = take(name, 2000)
    assert median(tokens_of(r.prompt) for r in requests) == pytest.approx(prompt_median, rel=0.2)
    assert median(r.output_tokens for r in requests) == pytest.approx(output_median, rel=0.2)
    assert reused_ratio(requests) == pytest.approx(reused, abs=0.1)


@pytest.mark.parametrize(("name", "p99"), [("azure-conv", 7_500), ("azure-code", 16_000)])
def test_azures_long_prompts_are_as_long_as_is_said_of_them(name: str, p99: int) -> None:
    """Longer than in the traces, 4,142 and 7,436: the curves fit the middle."""
    rng = random.Random(1)
    lengths = [WORKLOADS[name].prompt.draw(rng) for _ in range(100_000)]
    assert quantiles(lengths, n=100)[-1] == pytest.approx(p99, rel=0.05)


def test_production_shaped_is_what_it_says_of_itself() -> None:
    workload = WORKLOADS["production-shaped"]
    heads = workload.heads
    assert f"{len(heads)} texts of {min(heads)} to {max(heads):,} tokens" in workload.about
    requests = take(workload.name, 20_000)
    shared = sum(r.prompt[0].tokens for r in requests) / sum(tokens_of(r.prompt) for r in requests)
    assert f"{100 * shared:.0f} % of the tokens are shared" in workload.about


@pytest.mark.parametrize(
    ("name", "prompt_mean", "output_mean", "reused"),
    [
        ("tool-agent", 8_596, 182, 0.59),  # as published
        ("rag", 4_250, 200, 0.31),
        ("chat-and-batch", 4_150, 245, 0.22),
    ],
)
def test_means_and_reuse_of_what_is_held_out(name: str, prompt_mean: float, output_mean: float, reused: float) -> None:
    requests = take(name, 6000, rate_rps=20.0)
    assert fmean(tokens_of(r.prompt) for r in requests) == pytest.approx(prompt_mean, rel=0.05)
    assert fmean(r.output_tokens for r in requests) == pytest.approx(output_mean, rel=0.05)
    assert reused_ratio(requests) == pytest.approx(reused, abs=0.04)


def test_of_an_agents_blocks_most_come_once_and_a_few_thousands_of_times() -> None:
    """So it is in the published trace, whose blocks are of 512 tokens: three quarters come once."""
    hashes, often = BlockHashes(), Counter[int]()
    for request in take("tool-agent", 20_000, rate_rps=6.56):
        often.update(hashes.of(request.prompt, 512))
    assert sum(times == 1 for times in often.values()) / len(often) > 0.7
    assert max(often.values()) > 2_000


def test_a_few_documents_are_found_most_of_the_time_and_in_any_order() -> None:
    """Of those found by RAGCache's questions, 60 % are the 3 % that are most popular."""
    requests = take("rag", 6000)
    found = [request.prompt[1:-1] for request in requests]
    assert {len(set(documents)) for documents in found} == {4}
    assert len({request.prompt[0] for request in requests}) == 1
    often = Counter(document for documents in found for document in documents)
    # Each once in a prompt, so the most popular ones less often than by themselves.
    assert sum(times for _, times in often.most_common(150)) / (4 * len(found)) == pytest.approx(0.6, abs=0.06)
    top, second = (document for document, _ in often.most_common(2))
    orders = Counter(d.index(top) < d.index(second) for d in found if top in d and second in d)
    assert 0.35 < orders[True] / orders.total() < 0.75


def test_two_thirds_talk_beside_a_batch_with_loose_targets() -> None:
    requests = take("chat-and-batch", 6000, rate_rps=20.0)
    chats, batch = ([r for r in requests if (r.targets is None) is chat] for chat in (True, False))
    assert len(chats) / len(requests) == pytest.approx(2 / 3, abs=0.03)
    assert {r.targets for r in batch} == {Targets(15_000.0, 150.0)}
    assert fmean(tokens_of(r.prompt) for r in batch) == pytest.approx(9_000, rel=0.05)
    assert fmean(tokens_of(r.prompt) for r in chats) == pytest.approx(1_640, rel=0.05)
    assert (reused_ratio(batch), reused_ratio(chats)) == (0.0, pytest.approx(0.86, abs=0.03))
    assert {s for r in chats for s in r.prompt}.isdisjoint(s for r in batch for s in r.prompt)


@pytest.mark.parametrize("name", HELD_OUT)
def test_targets_of_what_is_held_out_follow_from_the_law_of_an_idle_server(name: str) -> None:
    """Three times the time of a prompt at the 90th percentile without a cache, and of a later token; rounded up."""
    engine, targets = ENGINES["8b-h100"], HELD_OUT[name].targets
    lengths = [tokens_of(r.prompt) for r in take(name, 6000, rate_rps=20.0) if r.targets is None]
    p90 = round(quantiles(lengths, n=10)[-1])
    first_ms = fmean(engine.overhead_ms) + engine.hardware.step_ms(p90, 0, p90**2 / 2)
    later_ms = engine.hardware.step_ms(0, 1, 0.0, round(median(lengths)))
    assert targets == (50 * ceil(3 * first_ms / 50), 5 * ceil(3 * later_ms / 5))


def test_what_is_held_out_is_in_no_other_group() -> None:
    assert [*GROUPS] == ["all", "held-out"]
    assert not set(WORKLOADS) & set(HELD_OUT)


def test_targets_of_its_own_are_sent_whatever_those_of_the_run_are() -> None:
    of_the_run, own = Targets(1.0, 2.0), Targets(15_000.0, 150.0)
    for sent in (of_the_run, None):
        requests = schedule(HELD_OUT["chat-and-batch"], Clients(sent), 20.0, seed=1, duration_s=30.0)
        by_targets = {targets: [r.headers for r in requests if r.targets == targets] for targets in (None, own)}
        assert sum(map(len, by_targets.values())) == len(requests) == 600
        for targets, headers in by_targets.items():
            expected = {} if sent is None else (targets or sent).headers
            assert headers
            assert all(said == expected for said in headers)


@pytest.mark.parametrize(
    "name", ["azure-conv", "b2b-saas", "production-shaped", "code-gen", "mooncake-conversation", "tool-agent", "rag"]
)
def test_the_rate_is_what_was_asked_for(name: str) -> None:
    requests = take(name, 3000, rate_rps=7.0)
    assert len(requests) / requests[-1].at_s == pytest.approx(7.0, rel=0.1)


def test_code_comes_in_bursts_as_in_the_trace() -> None:
    """Of the published trace: a coefficient of variation of 13, and of the counts of 1-s windows 73 % are 0."""
    at_s = [r.at_s for r in take("azure-code", 12_000, rate_rps=2.57)]
    gaps = [b - a for a, b in pairwise(at_s)]
    assert 9 < pstdev(gaps) / fmean(gaps) < 18
    counts = [0] * (int(at_s[-1]) + 1)
    for at in at_s:
        counts[int(at)] += 1
    assert counts.count(0) / len(counts) == pytest.approx(0.73, abs=0.06)
    assert sorted(counts)[int(0.99 * len(counts))] == pytest.approx(28, abs=6)


def test_mooncakes_requests_come_in_steps() -> None:
    at_s = {r.at_s for r in take("mooncake-conversation", 500, rate_rps=3.40)}
    assert all(abs(at / 3.0 - round(at / 3.0)) < 1e-6 for at in at_s)


def test_a_schedule_has_the_rate_that_was_asked_for_and_carries_targets() -> None:
    targets = Targets(200.0, 20.0)
    requests = schedule(WORKLOADS["azure-code"], Clients(targets, 0.5), 20.0, seed=3, duration_s=30.0)
    assert len(requests) == 600
    assert 0.0 <= requests[0].at_s <= requests[-1].at_s < 30.0
    assert {tuple(r.headers.items()) for r in requests} == {
        (("x-llm-d-slo-ttft-ms", "200"), ("x-llm-d-slo-tpot-ms", "20"))
    }
    assert 0.4 < fmean(r.streaming for r in requests) < 0.6


def test_an_azure_trace_gives_times_and_lengths(tmp_path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n2023-11-16 18:16:46.6805900,7,8\n"
    )
    trace = read_trace(path)
    assert [r.at_s for r in trace.rows] == pytest.approx([0.0, 4.314579, 60.0])
    requests = list(trace.requests(0.5, random.Random(1)))
    assert [r.at_s for r in requests] == pytest.approx([0.0, 0.4314579, 6.0])  # 0.05 rps, made ten times as dense
    assert [tokens_of(r.prompt) for r in requests] == [374, 396, 7]
    assert [r.output_tokens for r in requests] == [44, 1, 8]
    assert len(read_trace(path, most=1).rows) == 1


def test_a_trace_from_a_spreadsheet_and_out_of_order_is_read_all_the_same(tmp_path) -> None:
    path = tmp_path / "azure.csv"
    text = 'TIMESTAMP,ContextTokens,GeneratedTokens\r\n"2023-11-16 18:15:50","7","8"\r\n2023-11-16 18:15:46,374,44\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [(row.at_s, row.output_tokens) for row in read_trace(path).rows] == [(0.0, 44), (4.0, 8)]


def test_a_trace_of_one_moment_has_no_rate(tmp_path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text('{"timestamp": 5, "input_length": 1100, "output_length": 5, "hash_ids": []}\n' * 3)
    with pytest.raises(Problem, match="no rate to scale"):
        schedule(read_trace(path), Clients(None), 1.0, 1, duration_s=3.0)


def test_a_run_may_end_before_the_second_moment_of_a_trace(tmp_path) -> None:
    path = tmp_path / "mooncake.jsonl"
    row = '{"timestamp": %d, "input_length": 1100, "output_length": 5, "hash_ids": []}\n'
    path.write_text(row % 0 * 5 + row % 3000)
    assert [r.at_s for r in schedule(read_trace(path), Clients(None), 1.0, 1, duration_s=3.0)] == [0.0] * 3


def test_a_mooncake_trace_shares_its_blocks(tmp_path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 3000, "input_length": 1600, "output_length": 7, "hash_ids": [0, 1, 3, 4]}\n'
    )
    first, second = read_trace(path).requests(2 / 3, random.Random(1))
    assert (first.at_s, second.at_s) == (0.0, 3.0)
    assert (tokens_of(first.prompt), tokens_of(second.prompt)) == (1100, 1600)
    assert first.prompt[:2] == second.prompt[:2] == (Segment(1, 512), Segment(3, 512))
    assert first.prompt[2] not in second.prompt


def test_the_decisions_of_a_picker_are_a_trace(tmp_path) -> None:
    path = tmp_path / "state.json"
    facts = [(1.0, 4000, {}), (3.0, 400, {}), (2.0, 800, {"denied": {"status": 429}}), (0.5, 40, {})]
    decisions = [{"age_s": age, "request": {"body_bytes": size}} | more for age, size, more in facts]
    path.write_text(json.dumps({"decisions": decisions}))
    rows = read_trace(path).rows
    assert [row.at_s for row in rows] == [0.0, 2.0, 2.5]
    assert [tokens_of(row.prompt) for row in rows] == [100, 1000, 10]
    assert all(row.output_tokens >= 1 for row in rows)
    assert rows == read_trace(path).rows


_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
_HALF_A_LINE = '{"timestamp": 1, "input_length": 1}\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "a,b\n1,2\n"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n"),
        ("t.csv", ""),
        ("t.jsonl", "no json\n"),
        ("t.jsonl", '{"timestamp": 1}\n'),
        ("t.json", '{"decisions": 3}'),
        ("t.csv:3", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n2023-11-16 18:15:4"),
        ("t.csv:2", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-3,1\n"),
        ("t.csv:2", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,99999999999,1\n"),
        ("t.csv:2", 'TIMESTAMP,ContextTokens,GeneratedTokens\n"' + 200_000 * "x"),
        ("t.jsonl:1", '{"timestamp": 1e400, "input_length": 1, "output_length": 1, "hash_ids": []}\n'),
        ("t.jsonl:1", '{"timestamp": 1, "input_length": 1e300, "output_length": 1, "hash_ids": []}\n'),
        ("t.jsonl:1", "[1]\n"),
        ("t.csv:2: cannot be read as a trace: the line ends early; a .csv is in", _HEAD + "2023-11-16,3\n"),
        ("t.jsonl:1: cannot be read as a trace: no 'output_length'; a line is in Mooncake's", _HALF_A_LINE),
    ],
    ids=[
        *("other columns", "no time", "empty", "no json", "fields missing", "no decisions"),
        *("half a line", "below 0", "too long", "no end of a quote", "no time", "endless", "no object"),
        *("field missing at the end of a CSV", "what a line of JSON is"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, name: str, text: str) -> None:
    path = tmp_path / name.partition(":")[0]
    path.write_text(text)
    with pytest.raises(Problem, match=name):
        read_trace(path)


def mooncake_line(**fields: object) -> str:
    return json.dumps({"timestamp": 1, "input_length": 1536, "output_length": 5} | fields) + "\n"


@pytest.mark.parametrize(
    "hashes",
    [[-1, -2, -3], [2**63, 2**63 + 1, 0], [2**64 - 1, -1, 1], [2**64, 2**64 + 1, 2**200], [1e300, 1.0, 2**63 - 1]],
)
def test_hashes_may_be_any_integers_and_equal_ones_are_equal_text(tmp_path, hashes: list[int]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(mooncake_line(hash_ids=hashes) + mooncake_line(hash_ids=[*hashes[:2], 7]))
    first, second = (row.prompt for row in read_trace(path).rows)
    assert first[:2] == second[:2]
    assert len({*first, *second}) == 4
    text = text_of(first)
    assert len(text) == 1536 * BYTES_PER_TOKEN
    assert len({text[i : i + 16] for i in range(0, len(text), 512 * BYTES_PER_TOKEN)}) == 3


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("hash_ids", [1.2, 1.7], "hash_ids 1.2 is in its list, and is not an integer"),
        ("hash_ids", ["a"], 'hash_ids "a" is in its list'),
        ("hash_ids", [None], "hash_ids null is in its list"),
        ("hash_ids", [[1]], "hash_ids [1] is in its list"),
        ("hash_ids", [True], "hash_ids true is in its list"),
        ("hash_ids", "123", 'hash_ids "123" is not a list of integers'),
        ("hash_ids", None, "hash_ids null is not a list of integers"),
        ("status", "ok", 'status "ok" is not a finite number'),
        ("status", [200], "status [200] is not a number"),
        ("timestamp", None, "timestamp null is not a number"),
        ("timestamp", True, "timestamp true is not a number"),
        ("timestamp", 1e300, "timestamp 1e+300 is no time"),
        ("input_length", 1.5, "input_length 1.5 is not a whole number"),
        ("input_length", {}, "input_length {} is not a number"),
        ("output_length", False, "output_length false is not a number"),
        ("output_length", -1, "output_length -1 is out of bounds: 0 to 10000000 tokens make sense"),
        ("block_tokens", 0, "block_tokens 0 is out of bounds: 1 to"),
        ("max_output_tokens", -1, "max_output_tokens -1 is out of bounds: 0 or more tokens make sense"),
        ("ttft_target_ms", "soon", 'ttft_target_ms "soon" is not a finite number'),
        ("tpot_target_ms", 0, "tpot_target_ms 0 ms is no target"),
    ],
)
def test_a_field_that_cannot_be_read_is_named_with_its_line(tmp_path, field: str, value: object, says: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(mooncake_line() + mooncake_line(**{field: value}))
    with pytest.raises(Problem) as refused:
        read_trace(path)
    assert f"{path}:2: cannot be read as a trace: {says}" in str(refused.value)


def test_text_that_says_a_number_is_one_and_what_is_null_is_absent(tmp_path) -> None:
    path = tmp_path / "t.jsonl"
    nulls = dict.fromkeys(("status", "block_tokens", "max_output_tokens", "ttft_target_ms", "tpot_target_ms"))
    path.write_text(
        mooncake_line(status="200", input_length="1024.0") + mooncake_line(status="500") + mooncake_line(**nulls)
    )
    assert [tokens_of(row.prompt) for row in read_trace(path).rows] == [1024, 1536]


@pytest.mark.parametrize(
    ("decision", "says"),
    [
        ({"age_s": "old", "request": {"body_bytes": 1}}, 'age_s "old" is not a finite number'),
        ({"age_s": 1, "request": {"body_bytes": [1]}}, "body_bytes [1] is not a number"),
        ({"age_s": 1, "request": {"body_bytes": -1}}, "body_bytes -1 is out of bounds"),
        ({"age_s": 1, "request": 3}, "request 3 is not an object"),
        ({"age_s": 1}, "no 'request'"),
        (3, "no list of decisions"),
    ],
)
def test_a_decision_that_cannot_be_read_names_its_field(tmp_path, decision: object, says: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"decisions": [decision]}))
    with pytest.raises(Problem) as refused:
        read_trace(path)
    assert f"{path}: cannot be read as a trace: {says}" in str(refused.value)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
@pytest.mark.parametrize(
    ("more", "line", "byte"), [(b"\xff\xfe{\x00", 1, "0xff"), (b"\n" * 5000 + b"\x80", 5001, "0x80")]
)
def test_what_is_no_text_is_told_of_with_its_line(tmp_path, name: str, more: bytes, line: int, byte: str) -> None:
    path = tmp_path / name
    path.write_bytes(more)
    with pytest.raises(Problem) as refused:
        read_trace(path)
    assert f"{path}:{line}: cannot be read as a trace: byte {byte} is not UTF-8" in str(refused.value)


def test_offsets_of_a_csv_s_times_are_applied(tmp_path) -> None:
    path = tmp_path / "t.csv"
    whens = (
        *("2023-11-16 18:15:00.120+01:00", "2023-11-16 17:15:01.1200000", "2023-11-16T17:15:02.120Z"),
        *("2023-11-16 17:15:03.120 UTC", "2023-11-16 12:15:04.1200000-05:00"),
    )
    path.write_text(_HEAD + "".join(f"{when},1,1\n" for when in whens))
    assert [row.at_s for row in read_trace(path).rows] == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0])
    path.write_text(_HEAD + "noon,1,1\n")
    with pytest.raises(Problem, match=r't\.csv:2: .*TIMESTAMP "noon" is not a date and time'):
        read_trace(path)


def test_a_trace_that_was_rotated_is_read_by_what_it_was_called(tmp_path) -> None:
    path = tmp_path / "t.csv.1"
    path.write_text(_HEAD + "2023-11-16 18:15:00,7,1\n")
    assert [tokens_of(row.prompt) for row in read_trace(path).rows] == [7]


def test_a_trace_says_at_which_rate_it_was_recorded(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(_HEAD + "".join(f"2023-11-16 18:15:{second:02},1,1\n" for second in range(0, 50, 10)))
    assert read_trace(path).about == f"{path}: 5 requests in 40 s, 0.125 rps as recorded"
    path.write_text(_HEAD + "2023-11-16 18:15:00,1,1\n")
    with pytest.raises(Problem, match=r"t\.csv: 1 request, all at one time, so there is no rate to scale"):
        next(iter(read_trace(path).requests(1.0, random.Random(1))))


def recorded(times_s: Iterable[float]) -> Trace:
    return Trace("t", "t", tuple(TraceRow(at_s, (Segment(n, 100),), 10) for n, at_s in enumerate(times_s)))


def test_a_trace_that_is_soon_over_or_has_pauses_is_doubted_with_the_fix() -> None:
    rng = random.Random(1)
    steady = list(accumulate(rng.expovariate(2.0) for _ in range(1800)))
    bursts = [request.at_s for request in take("azure-code", 3000, 2.0)]
    few = list(accumulate(rng.expovariate(2.0) for _ in range(60)))
    for fine, rate_rps in ((steady, 30.0), (bursts, 2.0), (few, 1.0), ([0.0, 1000.0], 0.01), ([0.0] * 60, 1.0)):
        assert doubts(recorded(fine), [rate_rps / 2, rate_rps]) == []
    (short,) = doubts(recorded(steady), [1.0, 60.0])
    assert short.startswith("at 60 rps its 1,800 requests are over in 30 s; in less than 60 s queues have no time")
    assert "record 3,600 or more" in short
    (paused,) = doubts(recorded([*steady, *(steady[-1] + 300.0 + at_s for at_s in steady)]), [2.0])
    assert paused.startswith("14% of it are pauses, the longest 300 s of 2,115 (gaps of 10% or more count)")
    assert "record anew" in paused
