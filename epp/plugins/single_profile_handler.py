"""Runs the one profile there is."""

from collections.abc import Mapping, Sequence

from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import ProfileResult
from epp.scheduling.plugin import ProfileHandler


class SingleProfileHandler(ProfileHandler):
    """For configurations with exactly one scheduling profile, whose pick is the decision. Takes no parameters."""

    plugin_type = "single-profile-handler"

    def pick_profiles(
        self, cycle: Cycle, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        return () if results else profiles

    def process_results(self, cycle: Cycle, results: Mapping[str, ProfileResult | None]) -> str | None:
        return next((name for name, result in results.items() if result is not None), None)
