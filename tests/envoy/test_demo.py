"""`epp demo` with the real Envoy: a profile of one's choice, and no address that is gone when it is read."""

import re
import subprocess
import sys

import pytest

from epp.config.builtins import BUILT_INS
from epp.sim.demo import SHARES_ARE_UNEVEN


@pytest.mark.usefixtures("envoy_binary")
@pytest.mark.parametrize("profile", list(BUILT_INS))
def test_a_demonstration_runs_with_each_profile_and_leaves_nothing_to_look_at(profile: str) -> None:
    command = [sys.executable, "-m", "epp.cli", "demo", "--servers", "2", "--requests", "12", "--profile", profile]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^all +12 +100\.0% +0 ", ran.stdout, re.MULTILINE)
    assert SHARES_ARE_UNEVEN in ran.stdout
    _, _, after = ran.stdout.partition(SHARES_ARE_UNEVEN)
    assert "http://" not in after
    assert ("predicting by" in after) == (profile != "llm-d-default")
