"""Envoy with a picker, and Envoy alone, before the same model servers: what one request costs each of them.

    with Rig(Setup(endpoints=100)) as rig:
        with_picker = rig.through(Load(rig.port, connections=64))
        alone = rig.alone(Load(rig.alone_port, connections=64))

The picker has cores for itself; Envoy, load and model servers share the others. A figure is CPU time of a process
between two marks of the load generator, divided by the requests completed between them.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks._report import cpu_seconds
from benchmarks.load.measuring import Cores, Sample, measure, pinned
from benchmarks.load.programs import Load, Upstream
from epp.sim.bootstraps import Bootstrap, render_bootstrap
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG
from epp.sim.envoyproxy import EnvoyProxy
from epp.sim.picker_process import PickerProcess

RANDOM_CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: random-picker
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: random-picker}
"""
PROFILES: Mapping[str, str | None] = {"random": RANDOM_CONFIG, "llm-d": None, "predicted": PREDICTED_LATENCY_CONFIG}
NEVER = "24h"
_TRAINING_TIMEOUT_S = 60.0
_TRAFFIC_ENDS = ("ext_proc.stream_msgs_sent", "cluster.picker.upstream_cx_tx_bytes_total")
_TRAFFIC = "|".join(_TRAFFIC_ENDS)
_ROUND_ROBIN = "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"


@dataclass(frozen=True, slots=True)
class Setup:
    """What is started.

    Attributes:
        profile: of `PROFILES`.
        bootstrap: `recommended` or `gateway`.
        scraping: whether the picker reads metrics pages; without, it reads each once.
        picker_flags: more flags of `epp serve`.
        picker_cores: how many cores it may use.
        python: of the installation whose picker runs; `None`: this one.
    """

    profile: str = "llm-d"
    bootstrap: str = "recommended"
    transport: str = "lean"
    endpoints: int = 10
    scraping: bool = False
    picker_flags: tuple[str, ...] = field(default=())
    picker_cores: int = 1
    python: str | None = None


def bootstrap_without_picker(endpoints: Sequence[str]) -> Bootstrap:
    """The recommended bootstrap without its filters: Envoy takes turns among the servers."""
    config = render_bootstrap("recommended", epp_address="127.0.0.1:1", endpoints=endpoints)
    resources = config["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = manager["http_filters"][-1:]
    manager.pop("access_log", None)
    (servers,) = (cluster for cluster in resources["clusters"] if cluster["name"] == "model_servers")
    policy = {"name": "envoy.load_balancing_policies.round_robin", "typed_config": {"@type": _ROUND_ROBIN}}
    servers["load_balancing_policy"] = {"policies": [{"typed_extension_config": policy}]}
    resources["clusters"] = [servers]
    return config


class Rig:
    """A context manager around all the processes.

    Args:
        upstream: model servers that run already and go on running; by default its own.
        envoy_apart: False puts both Envoys on the picker's cores, so that a whole data path has them and no others.

    Attributes:
        port, alone_port: of the two Envoys.
    """

    def __init__(self, setup: Setup, upstream: Upstream | None = None, envoy_apart: bool = True) -> None:
        self.setup = setup
        self.cores = Cores.split(setup.picker_cores)
        self._upstream = upstream
        self._envoy_cores = self.cores.rest if envoy_apart else self.cores.picker
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-bench-")))
            self._runner = stack.enter_context(asyncio.Runner())
            if self._upstream is None:
                with pinned(self.cores.rest):
                    self._upstream = stack.enter_context(Upstream())
            addresses = self._upstream.addresses(self.setup.endpoints)
            self._start_picker(stack, addresses)
            with pinned(self._envoy_cores):
                threads = len(self._envoy_cores)
                bootstrap = render_bootstrap(
                    self.setup.bootstrap,
                    epp_address=f"127.0.0.1:{self.picker.ports['grpc']}",
                    epp_tls=False,
                    endpoints=addresses,
                )
                self.envoy = stack.enter_context(EnvoyProxy(bootstrap, concurrency=threads))
                self.alone_envoy = stack.enter_context(
                    EnvoyProxy(bootstrap_without_picker(addresses), concurrency=threads)
                )
            self.port = urlsplit(self.envoy.url).port or 0
            self.alone_port = urlsplit(self.alone_envoy.url).port or 0
            self._exit = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._exit.close()

    def _start_picker(self, stack: ExitStack, addresses: Sequence[str]) -> None:
        flags = ["--endpoints", ",".join(addresses), "--transport", self.setup.transport, "--secure-serving=false"]
        config = PROFILES[self.setup.profile]
        if config is not None:
            flags += ["--config-text", config]
        if not self.setup.scraping:
            flags += ["--refresh-metrics-interval", NEVER]
        self.picker = PickerProcess(self._folder, [*flags, *self.setup.picker_flags], self.setup.python)
        with pinned(self.cores.picker):
            stack.callback(lambda: self._runner.run(self.picker.stop()))
            self._runner.run(self.picker.start())

    # --- what is asked of it ------------------------------------------------------------------------------------------

    def through(self, load: Load) -> Sample:
        """Envoy with the picker: costs of `picker` and `envoy`."""
        before = self.envoy.stats(_TRAFFIC)
        with pinned(self.cores.rest):
            sample = measure(replace(load, port=self.port), {"picker": self.picker_pids(), "envoy": [self.envoy.pid]})
        after = self.envoy.stats(_TRAFFIC)
        messages, sent = (
            sum(value - before[name] for name, value in after.items() if name.endswith(end)) for end in _TRAFFIC_ENDS
        )
        started = sample.result.total_completed + sample.result.unfinished
        return replace(sample, picker_messages=messages / started, picker_bytes=sent / started)

    def alone(self, load: Load) -> Sample:
        """Envoy without one: cost of `envoy`."""
        with pinned(self.cores.rest):
            return measure(replace(load, port=self.alone_port), {"envoy": [self.alone_envoy.pid]})

    def idle_picker_ratio(self, seconds: float = 1.0) -> float:
        """CPU of the picker without any request, of one core."""
        before = sum(map(cpu_seconds, self.picker_pids()))
        time.sleep(seconds)
        return (sum(map(cpu_seconds, self.picker_pids())) - before) / seconds

    def picker_pids(self) -> list[int]:
        return [self.picker.pid]

    def picker_state(self) -> Any:
        return self._runner.run(self.picker.state())

    def learn(self, load: Load) -> bool:
        """Send the load until a profile that predicts has trained; whether the model was good enough to be served."""
        deadline = time.monotonic() + _TRAINING_TIMEOUT_S
        state: dict[str, Any] = {}
        while not state.get("last_training") and time.monotonic() < deadline:
            self.through(load)
            state = self.picker_state()["predictor"] or {}
        self.through(load)
        return bool(state.get("model_version"))
