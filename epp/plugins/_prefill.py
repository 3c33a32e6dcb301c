"""Who prefills for another server, when prefill and decode are apart."""

from epp.scheduling.decision import Decision

PREFILL_PROFILE = "prefill"
"""The profile of that name picks who prefills (llm-d's convention)."""


def prefill_row(decision: Decision) -> int | None:
    """The snapshot row of the server that prefills for the one that answers; `None` if that one does both."""
    prefill = decision.profiles.get(PREFILL_PROFILE)
    if prefill is None or not prefill.picked or decision.primary == PREFILL_PROFILE:
        return None
    return prefill.picked[0]
