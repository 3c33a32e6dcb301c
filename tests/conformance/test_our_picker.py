"""Our picker keeps every clause of the protocol, MUST and SHOULD, in every transport, over every connection,
and with latencies predicted."""

import pytest
from target import PickerTarget

from epp.conformance.check import Check
from epp.conformance.suite import Verdict, all_checks, run_one

pytestmark = pytest.mark.timeout(60)


# Grouped by picker, and within it in the suite's order: the last check ends it.
@pytest.mark.parametrize("check", [pytest.param(check, id=check.name) for check in all_checks()])
async def test_clause(picker: PickerTarget, check: Check) -> None:
    result = await run_one(check, picker.target, picker.known, timeout_s=10.0)
    assert result.verdict is Verdict.PASSED, f"{check.demand} {result.sentence}\n{picker.log()[-2000:]}"
