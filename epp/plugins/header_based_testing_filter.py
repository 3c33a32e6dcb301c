"""Lets a request name the servers it may go to. For conformance tests; not for pools whose clients are strangers."""

from epp.pool.subset import rows_in_subset
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Filter

SELECTION_HEADER = "test-epp-endpoint-selection"


class HeaderBasedTestingFilter(Filter):
    """Keeps the candidates that the header `test-epp-endpoint-selection` lists: `ip` or `ip:port`, comma-separated.

    `10.0.0.1, [fd00::1]:8000` keeps every port of the first host and one port of the second. Without the header, or
    with an empty one, all stay: so does Gateway API's own test picker, while llm-d's keeps none. Takes no parameters.
    """

    plugin_type = "header-based-testing-filter"

    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        selection = cycle.request.headers.get(SELECTION_HEADER, "").strip()
        if not selection:
            return candidates
        return candidates.intersect(rows_in_subset(candidates.snapshot, map(str.strip, selection.split(","))))

    def drop_reason(self) -> str:
        return f"not in {SELECTION_HEADER}"
