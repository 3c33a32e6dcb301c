"""What a request is expected to cost in targets kept, at each server: its own, those of others, those yet to come.

Probabilities are added up, so that one request lost for certain and two lost by even odds are the same. Five things:

1. *Its own targets*: the probability that it misses one of them.
2. *Those who are there*: by how much it raises the probability that they miss their TPOT target, see
   `epp.plugins._company`. Who waited too long for a first token, or was slow for too long, has nothing left to lose.
3. *Those who will follow it*: a prompt leaves its prefix there, and whoever asks for it again is best served there.
   As far as even a request without a prefill of its own would miss a target there, they are lost, too. Without this,
   what is lost would gather on one server with all that comes after it, although the pool has room for all. Where
   prefixes are not asked for again nobody follows, and this counts only while there is room.
4. *Those who come to the same server in the meantime*: its prefill takes time there, in which so many requests arrive.
   Some of them count in any case; at overload more, as far as they would keep their targets there. So what cannot be
   saved gathers where everyone is late already, and the other servers stay in time.
5. *Slack*: a tenth of the share of each target that is used up, its own and others', as far as these are kept. It
   decides between servers of which all keep all targets.

Overload goes by the queues of the pool, from 0, where they take up less than three tenths of the TTFT target, to 1 at
seven tenths; or by its pace, from nine tenths of the TPOT target to a fifth above it, if that says more. Below it
nobody has to be given up for the others.

The lab's oracle (`epp.lab.oracle`) goes by sums like these, without the third; but it sees the engines.
"""

from typing import NamedTuple

import numpy as np

from epp.plugins._company import Company
from epp.plugins._odds import LEAST_TARGET_MS, within
from epp.plugins._slo import Slo
from epp.scheduling.data import FloatArray

_FOLLOWED_PRICE, _FOLLOWED_RATIO = 1.3, 0.25  # in full where so much of the prompts is cached when they come
_TIME_PRICE, _TIMELY_PRICE = 0.25, 0.4  # per request that comes meanwhile: always; at overload if it is in time
_SLACK_PRICE = 0.1
_QUEUE_RATIOS, _PACE_RATIOS = (0.3, 0.7), (0.9, 1.2)  # of the targets: overload begins, and is complete
"""Found by trial in the lab, on all workloads at loads from 0.5 to 1.2."""

_LEAST_STAKE = 1e-9  # costs are compared by their ratio, so none may be 0


class Prospect(NamedTuple):
    """What a request is expected to meet. One value per candidate, but for the pool's.

    Attributes:
        queue_ms: to the first token, but for its own prefill.
        own_ms: its own prefill.
        tpot_ms: with this request.
        pool_tpot_ms: the same where as much of the time goes to prompts as on average. A server that has just computed
            a long one looks many times slower; of a pool it is one.
    """

    queue_ms: FloatArray
    own_ms: FloatArray
    tpot_ms: FloatArray
    pool_tpot_ms: float


class Spreads(NamedTuple):
    """Standard deviations of log(actual / expected)."""

    ttft: float
    tpot: float


class Stakes(NamedTuple):
    """The five things of the module's text, in targets. One value per candidate.

    Attributes:
        own: its own targets.
        others: those who are there.
        others_slack: what it uses up of theirs.
        followers: those who will follow it.
        meanwhile: those who come in the meantime.
        own_slack: what is used up of its own.
    """

    own: FloatArray
    others: FloatArray
    others_slack: FloatArray
    followers: FloatArray
    meanwhile: FloatArray
    own_slack: FloatArray

    @property
    def together(self) -> FloatArray:
        """Above 0."""
        own, others, others_slack, followers, meanwhile, own_slack = self
        return own + others + others_slack + followers + meanwhile + own_slack + _LEAST_STAKE


class Outlook(NamedTuple):
    """One value per candidate, but for the overload.

    Attributes:
        at_stake: in targets, above 0; see the module's text.
        stakes: what that is the sum of.
        overload_ratio: of the pool, from 0 to 1; likewise.
        in_time: how likely the request keeps its TTFT target; 1 if there is none.
    """

    at_stake: FloatArray
    stakes: Stakes
    overload_ratio: float
    in_time: FloatArray


def look_ahead(
    slo: Slo, prospect: Prospect, company: Company, spreads: Spreads, arrivals_per_s: FloatArray, reuse_ratio: float
) -> Outlook:
    """What is to be expected of each candidate.

    Args:
        slo: at least one target.
        arrivals_per_s: requests that come to each candidate.
        reuse_ratio: share of the prompts' tokens that was cached somewhere when they came.
    """
    queue_ms, own_ms, tpot_ms, pool_tpot_ms = prospect
    in_time = follower_in_time = paced = np.ones(len(queue_ms))
    used_up = np.zeros(len(queue_ms))  # of this request's own targets
    overload_ratio = 0.0
    if slo.ttft_ms is not None:
        target_ms = max(slo.ttft_ms, LEAST_TARGET_MS)
        in_time = within(target_ms, queue_ms + own_ms, spreads.ttft)
        follower_in_time = within(target_ms, queue_ms, spreads.ttft)
        used_up = used_up + (queue_ms + own_ms) / target_ms
        overload_ratio = _overload_ratio(float(queue_ms.mean()) / target_ms, _QUEUE_RATIOS)
    if slo.tpot_ms is not None:
        target_ms = max(slo.tpot_ms, LEAST_TARGET_MS)
        paced = within(target_ms, tpot_ms, spreads.tpot)
        used_up = used_up + tpot_ms / target_ms
        overload_ratio = max(overload_ratio, _overload_ratio(pool_tpot_ms / target_ms, _PACE_RATIOS))
    kept, follower_kept = in_time * paced, follower_in_time * paced
    followed = max(min(reuse_ratio / _FOLLOWED_RATIO, 1.0), 1.0 - overload_ratio)
    arrivals = arrivals_per_s * own_ms / 1e3
    stakes = Stakes(
        own=1.0 - kept,
        others=company.lost,
        others_slack=_SLACK_PRICE * company.used_up,
        followers=_FOLLOWED_PRICE * followed * (1.0 - follower_kept),
        meanwhile=arrivals * (_TIME_PRICE + _TIMELY_PRICE * overload_ratio * follower_kept),
        own_slack=_SLACK_PRICE * kept * used_up,
    )
    return Outlook(stakes.together, stakes, overload_ratio, in_time)


def _overload_ratio(of_target: float, between: tuple[float, float]) -> float:
    """From 0 to 1 while the share of the target that is taken up goes from the one to the other."""
    begins, complete = between
    return min(max((of_target - begins) / (complete - begins), 0.0), 1.0)
