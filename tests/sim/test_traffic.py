"""Schedules, the load generator against simulated servers, and the table."""

import itertools
import random
from collections import Counter
from dataclasses import replace
from statistics import median

import orjson
import pytest

from epp.inference.request import Usage
from epp.sim.config import EngineConfig, SimConfig
from epp.sim.faults import Faults
from epp.sim.report import render_report, summarize
from epp.sim.server import SimServer
from epp.sim.traffic import Result, read_usage, run_traffic
from epp.sim.workload import PATHS, TTFT_SLO_HEADER, WORKLOADS, PlannedRequest, plan

FAST = replace(WORKLOADS["mixed"], rate_rps=400.0, shared_tokens=400)


def schedule(requests: int, **changes: object) -> list[PlannedRequest]:
    return plan(replace(FAST, **changes), "sim-model", requests, random.Random(3))


# --- schedules --------------------------------------------------------------------------------------------------------


def test_same_seed_same_schedule() -> None:
    first, again = (plan(FAST, "m", 50, random.Random(1)) for _ in range(2))
    assert first == again
    assert first != plan(FAST, "m", 50, random.Random(2))


def test_a_schedule_is_mixed_and_keeps_its_rate() -> None:
    planned = schedule(2000)
    assert {p.api for p in planned} == set(PATHS)
    assert 0.65 < sum(p.streaming for p in planned) / 2000 < 0.75
    assert 0.25 < sum(TTFT_SLO_HEADER in p.headers for p in planned) / 2000 < 0.35
    assert planned[-1].at_s == pytest.approx(2000 / 400, rel=0.1)
    assert [p.at_s for p in planned] == sorted(p.at_s for p in planned)


def test_groups_share_the_head_of_their_prompts() -> None:
    heads = {(p.group, orjson.loads(p.body)["prompt"][:1600]) for p in schedule(300) if p.api == "completions"}
    assert len(heads) == FAST.groups
    assert len({head for _, head in heads}) == FAST.groups


@pytest.mark.parametrize(("name", "prompt_p50", "output_p50"), [("azure-conv", 758, 151), ("azure-code", 1097, 16)])
def test_azure_lengths(name: str, prompt_p50: int, output_p50: int) -> None:
    workload = replace(WORKLOADS[name], apis=(("completions", 1.0),))
    bodies = [orjson.loads(p.body) for p in plan(workload, "m", 400, random.Random(1))]
    assert median(len(body["prompt"]) / 4 for body in bodies) == pytest.approx(prompt_p50, rel=0.2)
    assert median(body["max_tokens"] for body in bodies) == pytest.approx(output_p50, rel=0.2)


def test_gaps_are_as_bursty_as_asked() -> None:
    def gap_cv(cv: float) -> float:
        planned = schedule(3000, gap_cv=cv, groups=0, apis=(("completions", 1.0),))
        gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(planned)]
        mean = sum(gaps) / len(gaps)
        return (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean

    assert gap_cv(1.0) == pytest.approx(1.0, rel=0.1)
    assert gap_cv(4.0) == pytest.approx(4.0, rel=0.25)


# --- traffic ----------------------------------------------------------------------------------------------------------


async def test_every_request_of_a_schedule_has_a_full_result() -> None:
    planned = schedule(120)
    seen: list[Result] = []
    async with SimServer(SimConfig(model="sim-model", speed=50.0)) as server:
        results = await run_traffic(server.url, planned, on_result=seen.append)
        metrics = server.engine.metrics()
    assert [r.planned for r in results] == planned
    assert Counter(map(id, seen)) == Counter(map(id, results))
    for result in results:
        assert (result.status, result.error, result.server) == (200, None, "sim-0")
        assert result.usage.completion_tokens == orjson.loads(result.planned.body)["max_tokens"]
        assert (result.ttft_ms is not None) == result.planned.streaming
        assert result.tpot_ms is None or result.tpot_ms > 0
        assert result.ttft_ms is None or 0 < result.ttft_ms <= result.duration_ms
    assert sum(r.usage.prompt_tokens or 0 for r in results) == metrics.prompt_tokens_total
    assert sum(r.usage.cached_tokens or 0 for r in results) == metrics.prefix_hits_total > 0
    assert metrics.finished_total == 120


async def test_errors_are_told_apart() -> None:
    async def errors(planned: list[PlannedRequest], faults: Faults, **options: float) -> set[str | None]:
        server.break_with(faults)
        return {r.error for r in await run_traffic(server.url, planned, **options)}

    streams, wholes = schedule(4, streaming_ratio=1.0), schedule(4, streaming_ratio=0.0)
    async with SimServer(SimConfig(model="sim-model", speed=50.0)) as server:
        assert await errors(wholes, Faults()) == {None}
        assert await errors(wholes, Faults(error_status=503)) == {"HTTP 503"}
        assert await errors(streams, Faults(reset_after_tokens=0)) == {"no answer"}
        assert await errors(streams, Faults(reset_after_tokens=1)) == {"broken off"}
        assert await errors(wholes, Faults(hang=True), timeout_s=0.2) == {"timeout"}
    assert await errors(wholes, Faults()) == {"no answer"}


async def test_no_more_at_once_than_allowed() -> None:
    config = SimConfig(model="sim-model", speed=50.0, engine=EngineConfig(max_sequences=3, max_waiting=0))
    async with SimServer(config) as server:
        results = await run_traffic(server.url, schedule(20), concurrency=3)
    assert {r.error for r in results} == {None}


def test_usage_of_each_api() -> None:
    details = b'"prompt_tokens_details":{"cached_tokens":16}'
    whole = b'{"usage":{"prompt_tokens":20,"completion_tokens":3,' + details + b"}}"
    assert read_usage(whole, streaming=False) == Usage(20, 3, 16)
    assert read_usage(b'data: {"usage":null}\n\ndata: ' + whole + b"\n\ndata: [DONE]\n\n", True) == Usage(20, 3, 16)
    start = b'data: {"message":{"usage":{"input_tokens":4,"cache_read_input_tokens":16,"output_tokens":0}}}\n\n'
    delta = b'data: {"usage":{"input_tokens":4,"output_tokens":7}}\n\n'
    assert read_usage(start + delta, streaming=True) == Usage(20, 7, 16)
    assert read_usage(b'data: {"choices":[]}\n\n', streaming=True) == Usage()


# --- the table --------------------------------------------------------------------------------------------------------


def result(server: str | None, ttft_ms: float | None, error: str | None = None) -> Result:
    usage = Usage() if error else Usage(100, 10, 25)
    return Result(schedule(1)[0], None if error else 200, error, ttft_ms, None, 50.0, usage, server)


def test_the_table_tells_shares_and_errors() -> None:
    results = [result("sim-1", 10.0), result("sim-0", 30.0), result("sim-0", 20.0), result(None, None, "timeout")]
    lines = render_report(results).splitlines()
    assert [line.split()[0] for line in lines] == ["server", "sim-0", "sim-1", lines[3], "all", "1"]
    assert lines[1].split() == ["sim-0", "2", "50.0%", "0", "25.0", "29.9", "–", "–", "25.0%"]
    assert lines[4].split()[:5] == ["all", "4", "100.0%", "1", "20.0"]
    assert lines[5] == "1 × timeout"
    assert len({len(line) for line in lines[:5]}) == 1


def test_nothing_known_is_absent_not_zero() -> None:
    summary = summarize([])
    assert (summary.requests, summary.ttft_p50_ms, summary.prefix_hit_ratio) == (0, None, None)
    assert render_report([]).splitlines()[-1].split() == ["all", "0", "–", "0", "–", "–", "–", "–", "–"]
