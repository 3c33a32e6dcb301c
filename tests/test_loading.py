"""Who serves requests loads XGBoost only to read a model from elsewhere, and then at the start."""

import subprocess
import sys
from pathlib import Path

import pytest

BEGINNING = """
import asyncio, pickle, random, sys, time
from pathlib import Path
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

def start(profile, workers=1, **flags):
    options = ServeOptions(profile=profile, workers=workers, endpoints="127.0.0.1:1", **flags)
    configuration = text_of(profile=profile)
    forked = fork(options, configuration)
    if forked is not None:
        forked.fork_server.close()
        return None
    state = PickerState(options, configuration, time.monotonic, Ledger())
    return state, Upkeep(state, Outbox(), random.Random(1))

assert not loaded(), loaded()
"""

STARTS = """
for profile in ("llm-d-default", "headroom", "predicted-latency"):
    for workers in (2, 1):
        start(profile, workers)
        assert not loaded(), (profile, workers, loaded())
"""

TRAINS = """
from latency_world import World
from epp.latency.types import Source

async def until_there_is_a_model(state, upkeep):
    predictor, world = state.predictor, World()
    jobs = [asyncio.create_task(job) for name, job in upkeep.jobs() if name == "trainer"]
    assert jobs
    async with asyncio.timeout(200):  # the process that trains is the humblest of a machine that may be busy
        while not predictor.model_version:
            world.run(predictor, 400)
            await asyncio.sleep(0.1)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    return world

if __name__ == "__main__":
    file = Path(sys.argv[1], "learned.model")
    state, upkeep = start("headroom", model_file=str(file))
    world = asyncio.run(until_there_is_a_model(state, upkeep))
    # As workers get it.
    learned = pickle.loads(pickle.dumps(state.predictor.snapshot(time.monotonic(), with_rows=False)))
    state.predictor.adopt(learned, time.monotonic())
    assert state.predictor.predict(world.situation()).ttft.source is Source.MODEL
    assert file.stat().st_size > 0
    version = state.predictor.model_version
    assert not loaded(), loaded()
    state, _ = start("headroom", model_file=str(file))  # to go on from a model takes XGBoost, from the start
    assert state.predictor.model_version == version > 0
    assert "xgboost" in loaded()
"""

REMOTE = """
start("headroom", training_server_url="http://127.0.0.1:1")
assert "xgboost" in loaded()
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("script", [STARTS, TRAINS, REMOTE], ids=["starts", "trains", "learns elsewhere"])
def test_who_serves_requests_need_not_load_xgboost(script: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # a file, as the training process looks for what its owner is
    path = f"import sys; sys.path.insert(0, {str(Path(__file__).parent / 'latency')!r})\n"
    program.write_text(path + BEGINNING + script)
    run = subprocess.run([sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=220)
    assert run.returncode == 0, run.stderr
