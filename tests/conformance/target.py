"""Our own picker as a target of the conformance suite: `epp serve` on loopback, set up so that every clause applies."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import epp
from epp.conformance.check import Expectations
from epp.conformance.connection import Target

# Nobody listens there, and nobody needs to: the picker only names them.
POOL = ("127.0.0.11:1", "127.0.0.11:2", "127.0.0.12:1", "[::1]:1", "[::1]:2")
DESTINATIONS = 3
MAX_CONCURRENCY = 4
MAX_BODY_BYTES = 21 * 2**20

# Steered by header, tells the served endpoint, names several, and is full when each has four requests in flight.
CONFIG = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
- type: active-request-scorer
- type: concurrency-detector
  parameters: {{maxConcurrency: {MAX_CONCURRENCY}}}
- type: max-score-picker
  parameters: {{maxNumOfEndpoints: {DESTINATIONS}}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: header-based-testing-filter
  - pluginRef: active-request-scorer
  - pluginRef: max-score-picker
"""

# The same, with the predicted-latency chain of llm-d's chart between filter and picker.
PREDICTING_CONFIG = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
- type: concurrency-detector
  parameters: {{maxConcurrency: {MAX_CONCURRENCY}}}
- type: predicted-latency-producer
- type: prefix-cache-affinity-filter
  name: strict-affinity-filter
  parameters: {{affinityThreshold: 0.99, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}}
- type: slo-headroom-tier-filter
- type: prefix-cache-affinity-filter
  name: loose-affinity-filter
  parameters: {{affinityThreshold: 0.80, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}}
- type: latency-scorer
- type: latency-slo-admitter
- type: weighted-random-picker
  parameters: {{maxNumOfEndpoints: {DESTINATIONS}}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: header-based-testing-filter
  - pluginRef: strict-affinity-filter
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: loose-affinity-filter
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
"""

START_TIMEOUT_S = 60.0


class PickerTarget:
    """A context manager.

    Args:
        transport: of `epp serve`.
        connection: how the stub reaches it: `plaintext`, `tls` or `unix`.
        config: that it decides by.
    """

    def __init__(self, folder: Path, transport: str, connection: str, config: str = CONFIG) -> None:
        self._folder = folder
        self._connection = connection
        self._socket = folder / "e.sock"
        self._ports_file = folder / "ports.json"
        flags = ["--endpoints", ",".join(POOL), "--config-text", config, "--objective", "batch=-1", "--v", "1"]
        flags += ["--emit-endpoint-scores", f"--max-request-body={MAX_BODY_BYTES}", "--host", "127.0.0.1"]
        flags += ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]
        flags += ["--ports-file", str(self._ports_file), f"--secure-serving={str(connection == 'tls').lower()}"]
        if transport != "grpc":
            flags += ["--transport", transport]
        if connection == "unix":
            flags += ["--grpc-socket", str(self._socket)]
        self._command = [sys.executable, "-m", "epp.cli", "serve", *flags]

    def __enter__(self) -> "PickerTarget":
        environment = {**os.environ, "PYTHONPATH": str(Path(epp.__file__).parent.parent)}
        self._log = (self._folder / "picker.log").open("wb")
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, env=environment)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ports_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"the picker did not start: {self.log()[-2000:]}")
            time.sleep(0.02)
        self._ports = json.loads(self._ports_file.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def target(self) -> Target:
        text = f"unix:{self._socket}" if self._connection == "unix" else f"127.0.0.1:{self._ports['grpc']}"
        return Target.parse(text, tls=self._connection == "tls")

    @property
    def known(self) -> Expectations:
        return Expectations(
            pool=POOL,
            destinations=DESTINATIONS,
            max_body_bytes=MAX_BODY_BYTES,
            sheddable_objective="batch",
            saturating_streams=MAX_CONCURRENCY * len(POOL),
            test_plugins=True,
            health=Target.parse(f"127.0.0.1:{self._ports['health']}", tls=False),
            metrics_url=f"http://127.0.0.1:{self._ports['metrics']}/metrics",
            pid=self.pid,
        )

    def log(self) -> str:
        return (self._folder / "picker.log").read_text(errors="replace")
