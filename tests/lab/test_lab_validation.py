"""The lab against what it stands for: where a real server saturates, and the simulated server that speaks HTTP."""

import asyncio
import selectors
from dataclasses import replace
from math import log
from statistics import median
from types import SimpleNamespace

import orjson
import pytest

from epp.lab.experiment import Experiment, LabRequest, LabServer
from epp.lab.knee import knee_rps
from epp.lab.policies.catalogue import POLICIES
from epp.lab.prompts import text_of
from epp.lab.workloads.shared import SharedHeads
from epp.lab.workloads.single import Single
from epp.lab.workloads.workload import Clients, Targets, Workload, schedule
from epp.lab.world import run
from epp.latency.types import Target
from epp.sim import traffic
from epp.sim.config import EngineConfig, SimConfig
from epp.sim.server import SimServer
from epp.sim.timing import HARDWARE
from epp.sim.traffic import Result, run_traffic
from epp.sim.workload import Lengths, PlannedRequest

# --- knees ------------------------------------------------------------------------------------------------------------

# A public ladder of rates (inference-perf, vLLM 0.11, Llama 3.1 8B on one H100): some 200 tokens in and 62 out, Poisson
# arrivals. Measured knees: 101, 113 and 172 rps; the step law, which was fitted to them, has 106, 122 and 172. With a
# prefix cache, what prompts share is the fixed instruction before a short question: 12 of 12.5 blocks.
NO_TARGETS = Targets(1e9, 1e9)
NEW = Single("new", "", NO_TARGETS, run_s=12.0, prompt=Lengths.exactly(200), output=Lengths.exactly(62))
SHARED = SharedHeads("shared", "", NO_TARGETS, run_s=12.0, heads=(192,), question_tokens=8, output=Lengths.exactly(62))
H100 = EngineConfig(hardware=HARDWARE["8b-h100"])


@pytest.mark.parametrize(
    ("workload", "engine", "published_rps"),
    [
        (NEW, replace(H100, max_sequences=128, prefix_caching=False), 106),
        (NEW, replace(H100, max_sequences=192, prefix_caching=False), 122),
        (SHARED, replace(H100, max_sequences=128, max_batched_tokens=2_048), 172),
    ],
    ids=["128 sequences", "192 sequences", "prefix cache and chunked prefill"],
)
def test_a_load_of_one_is_where_a_real_server_saturates(
    workload: Workload, engine: EngineConfig, published_rps: float
) -> None:
    assert knee_rps(workload, [LabServer("sim-0", engine)]) == pytest.approx(published_rps, rel=0.1)


# --- the server that speaks HTTP and the lab --------------------------------------------------------------------------

# Tenants that share heads, more of them than the cache holds, and at times more requests than there are slots.
TENANTS = SharedHeads(
    "tenants", "", NO_TARGETS, run_s=60.0, heads=(608,) * 24, question_tokens=92, output=Lengths(log(30), 0.5, 80)
)
ENGINE = EngineConfig(
    hardware=HARDWARE["8b-l40s"], max_sequences=12, kv_blocks=900, noise_sigma=0.0, overhead_ms=(18.0, 18.0)
)
RATE_RPS, REQUESTS = 9.0, 120
LETTERS = bytes(ord("0") + i % 64 for i in range(256))
ARRIVES_S = 0.0005  # real time that the kernel has to carry bytes from one socket to the other


class _VirtualSelector(selectors.SelectSelector):
    """Never waits for time: when no socket is ready, time goes on at once to what is due next."""

    now_s = 0.0

    def select(self, timeout: float | None = None):
        ready = super().select(ARRIVES_S if timeout is None or timeout > 0 else 0)
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is virtual; its sockets are real."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def planned(request: LabRequest) -> PlannedRequest:
    """The same prompt as text."""
    body = {
        "model": "m",
        "prompt": text_of(request.prompt).translate(LETTERS).decode(),
        "max_tokens": request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json"}
    return PlannedRequest(request.at_s, "completions", True, None, headers, orjson.dumps(body))


def over_http(requests: tuple[LabRequest, ...], monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    async def send() -> list[Result]:
        clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
        monkeypatch.setattr(traffic, "time", clock)
        async with SimServer(SimConfig(model="m", engine=ENGINE)) as server:
            return await run_traffic(server.url, [planned(request) for request in requests], timeout_s=300.0)

    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(send())


def test_the_http_server_and_the_lab_agree_on_one_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, JSON, sockets and streams on one side, numbers on the other; the same times, and the same cached tokens."""
    requests = schedule(TENANTS, Clients(None), RATE_RPS, seed=3, requests=REQUESTS)
    policy = POLICIES["round-robin"]
    lab = run(Experiment(policy.config_text, [LabServer("sim-0", ENGINE)], requests, plugins=policy.plugins)).served
    http = over_http(requests, monkeypatch)

    assert [result.error for result in http] == [None] * REQUESTS
    assert [result.usage.prompt_tokens for result in http] == [served.prompt_tokens for served in lab]
    assert [result.usage.completion_tokens for result in http] == [served.output_tokens for served in lab]
    cached = sum(served.cached_tokens for served in lab)
    assert 0.1 < cached / sum(served.prompt_tokens for served in lab) < 0.9
    assert sum(result.usage.cached_tokens or 0 for result in http) == pytest.approx(cached, rel=0.02)

    in_lab = [served.actual_ms[Target.TTFT] for served in lab]
    assert max(in_lab) > 5 * min(in_lab)  # there were queues
    assert median(r.ttft_ms for r in http) == pytest.approx(median(in_lab), rel=0.03)
    assert median(r.tpot_ms for r in http) == pytest.approx(median(s.actual_ms[Target.TPOT] for s in lab), rel=0.03)
    apart_ms = [abs(result.ttft_ms - ttft_ms) for result, ttft_ms in zip(http, in_lab, strict=True)]
    assert median(apart_ms) < 2.0  # engines in real time are woken once a millisecond
