"""Who does not predict latency need not load what trains and keeps trees; who does has it from the start."""

import subprocess
import sys

SCRIPT = """
import random, sys, time
from epp.ledger import Ledger
from epp.server import app  # what `epp serve` loads
from epp.server.configuration import text_of
from epp.server.options import ServeOptions
from epp.server.outbox import Outbox
from epp.server.state import PickerState
from epp.server.upkeep import Upkeep
from epp.server.workers.parent import fork

HEAVY = {"xgboost", "scipy", "matplotlib", "kubernetes"}

def loaded():
    return sorted(HEAVY & set(sys.modules))

def start(profile, workers):
    options = ServeOptions(profile=profile, workers=workers, endpoints="127.0.0.1:1")
    configuration = text_of(profile=profile)
    forked = fork(options, configuration)
    if forked is not None:
        forked.fork_server.close()
        return
    Upkeep(PickerState(options, configuration, time.monotonic, Ledger()), Outbox(), random.Random(1))

assert not loaded(), loaded()
for workers in (2, 1):
    start("llm-d-default", workers)
    assert not loaded(), (workers, loaded())
start("predicted-latency", 2)  # before the fork, so that workers share it
assert "xgboost" in loaded()
assert "epp.server.training" not in sys.modules
start("predicted-latency", 1)
assert "epp.server.training" in sys.modules
"""


def test_only_a_profile_that_predicts_loads_what_trees_need() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
