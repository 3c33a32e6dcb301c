"""Who is on each server, how many of them can still keep their targets, and how many a newcomer would cost theirs.

A TPOT target is for a whole answer. One that was fast at first can bear a slow stretch, one that is nearly done hardly
changes, and one that has been slow for long is lost whatever comes. So for each answer there it is reckoned what it
will come to per token: the time since its first token, and its rest at the pace of its server. The newcomer makes each
step of the rest longer, and all there wait while its prompt is computed.

How long an answer will be nobody knows: as long as the mean, and whoever is beyond that is nearly done. How sure all
this is depends on how long answers last: the longer, the more comes and goes meanwhile.
"""

from typing import NamedTuple

import numpy as np

from epp.plugins._odds import LEAST_TARGET_MS, within
from epp.plugins._progress import InFlight
from epp.scheduling.data import FloatArray

_LEAST_LEFT = 0.1  # of the mean length: so much is to come at least
_STEP_TOKENS = 8192.0  # of prompts, computed in one step at most (vLLM's default): one that has n steps left bears n
_SPREAD_OF_A_SECOND, _MOST_SPREAD = 0.05, 0.15  # grows by the square root of the time, as chance adds up


class Pace(NamedTuple):
    """Of the servers, without the newcomer and through it. One value per candidate.

    Attributes:
        token_ms: for each token of an answer, the prompts of those who are yet to come included.
        more_ms: by how much the newcomer makes each token later.
        backlog_ms: the prompts that wait there.
        own_ms: the newcomer's prompt.
        prompt_token_ms: for a token of a prompt.
        requests: there, of all processes that pick.
    """

    token_ms: FloatArray
    more_ms: FloatArray
    backlog_ms: FloatArray
    own_ms: FloatArray
    prompt_token_ms: FloatArray
    requests: FloatArray


class Company(NamedTuple):
    """One value per candidate, all in requests.

    Attributes:
        hopeful: who can still keep their targets.
        lost: how many of these no longer would, with the newcomer there.
        used_up: shares of their TPOT targets that it takes from them.
    """

    hopeful: FloatArray
    lost: FloatArray
    used_up: FloatArray


def company_of(
    there: InFlight, pace: Pace, tpot_target_ms: float | None, spread: float, output_tokens: float, new_tokens: float
) -> Company:
    """See the module's text.

    Args:
        tpot_target_ms: of the newcomer, and taken to be that of those whom other processes sent; `None`: it has none.
        spread: of the pace, as standard deviation of log(actual / expected).
        output_tokens: mean length of the answers.
        new_tokens: of the newcomer, at most that; `inf`: nobody says.
    """
    count = len(pace.requests)
    candidate, elapsed_ms, tokens, waits, hope, target_ms = there
    new_target_ms = np.inf if tpot_target_ms is None else tpot_target_ms
    # Those of other processes are taken to be at their beginning, and as hopeful as ours.
    ours = np.bincount(candidate, minlength=count)
    others = np.maximum(pace.requests - ours, 0.0)
    weight = np.minimum(pace.requests / np.maximum(ours, 1), 1.0)[candidate]  # below 1 if some were moved elsewhere
    if others.any():
        nothing = np.zeros(count)
        mean_hope = (np.bincount(candidate, hope, count) + (ours == 0)) / np.maximum(ours, 1)
        candidate = np.concatenate((candidate, np.arange(count)))
        elapsed_ms, tokens = np.concatenate((elapsed_ms, nothing)), np.concatenate((tokens, nothing))
        waits, hope = np.concatenate((waits, nothing)), np.concatenate((hope, mean_hope))
        target_ms = np.concatenate((target_ms, nothing + new_target_ms))
        weight = np.concatenate((weight, others))
    hope = hope * weight

    def added(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(candidate, values, count), dtype=np.float64)

    if np.isinf(target_ms).all():  # first tokens alone count
        nobody = np.zeros(count)
        return Company(added(hope), nobody, nobody)

    target_ms = np.maximum(target_ms, LEAST_TARGET_MS)
    left = np.maximum(output_tokens - tokens, _LEAST_LEFT * output_tokens)
    length = tokens + left
    most_stall_ms = left * (_STEP_TOKENS * pace.prompt_token_ms)[candidate]
    in_line = 1.0 - 0.5 * waits  # who waits is in the midst of those that do
    stall_ms = np.minimum(pace.backlog_ms[candidate] * in_line, most_stall_ms)
    expected_ms = (elapsed_ms + left * pace.token_ms[candidate] + stall_ms) / length
    more_ms = (
        np.minimum(left, new_tokens) * pace.more_ms[candidate] + np.minimum(pace.own_ms[candidate], most_stall_ms)
    ) / length
    chance = np.minimum(_SPREAD_OF_A_SECOND * (output_tokens * target_ms / 1e3) ** 0.5, _MOST_SPREAD)
    spread_each = np.maximum(spread, chance)
    before = hope * within(target_ms, expected_ms, spread_each)
    after = hope * within(target_ms, expected_ms + more_ms, spread_each)
    return Company(
        added(before),
        added(before - after),
        added(before * np.minimum(more_ms / target_ms, 1.0)),
    )
