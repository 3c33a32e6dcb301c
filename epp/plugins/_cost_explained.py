"""What a decision record says of a cost: the names that docs/routing.md explains."""

from epp.plugins._company import Company
from epp.plugins._slo import Slo
from epp.plugins._targets_at_stake import Outlook, Prospect
from epp.scheduling.cycle import Explained
from epp.scheduling.data import FloatArray


def factors(
    uncached_tokens: FloatArray,
    prefill_ms: FloatArray,
    wait_ms: FloatArray,
    requests: FloatArray,
    tpot_ms: FloatArray,
    cost: FloatArray,
) -> dict[str, Explained]:
    """Of any request."""
    return {
        "cost": cost,
        "wait_ms": wait_ms,
        "uncached_tokens": uncached_tokens,
        "prefill_ms": prefill_ms,
        "requests": requests,
        "tpot_ms": tpot_ms,
    }


def at_stake(slo: Slo, prospect: Prospect, company: Company, outlook: Outlook) -> dict[str, Explained]:
    """Of a request with targets, besides."""
    stakes = outlook.stakes
    return {
        "queue_ms": prospect.queue_ms,
        "hopeful_requests": company.hopeful,
        "at_stake": outlook.at_stake,
        "at_stake_own": stakes.own,
        "at_stake_others": stakes.others,
        "at_stake_followers": stakes.followers,
        "at_stake_meanwhile": stakes.meanwhile,
        "at_stake_own_slack": stakes.own_slack,
        "at_stake_others_slack": stakes.others_slack,
        "ttft_target_ms": slo.ttft_ms,
        "tpot_target_ms": slo.tpot_ms,
        "overload_ratio": outlook.overload_ratio,
    }
