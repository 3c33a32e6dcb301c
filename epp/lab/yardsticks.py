"""What the requests of a lab run add up to. A figure of nothing is `None`."""

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import fmean, stdev

from epp.lab.experiment import Served
from epp.latency.types import Source, Target

FEWEST_PREDICTIONS = 30
"""By the model, before its mean error says anything."""


def percentile(values: Iterable[float], ratio: float) -> float | None:
    """The smallest value that at least `ratio` (0..1] of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(ratio * len(ordered)), 1) - 1] if ordered else None


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Of those figures that there are."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def spread(by_seed: Sequence[float]) -> float:
    """Standard deviation over seeds, as of a sample; 0 of one seed. What stands behind every ±."""
    return stdev(by_seed) if len(by_seed) > 1 else 0.0


def variation(values: Iterable[float]) -> float | None:
    """Coefficient of variation: standard deviation over mean."""
    values = list(values)
    middle = mean(values)
    if not middle:
        return None
    return float((sum((v - middle) ** 2 for v in values) / len(values)) ** 0.5 / middle)


def actual_ms(served: Iterable[Served], target: Target) -> list[float]:
    return [s.actual_ms[target] for s in served if target in s.actual_ms]


def e2e_ms(served: Iterable[Served]) -> list[float]:
    """From arrival to the end of every good answer, streamed or not."""
    return [(s.ended_s - s.at_s) * 1e3 for s in served if s.status == 200 and s.ended_s is not None]


def relative_errors(served: Iterable[Served], target: Target) -> list[float]:
    """|actual - predicted| / actual of the server that was chosen; their mean is the MAPE of what was served."""
    return [
        abs(s.actual_ms[target] - s.promised[target].mean_ms) / s.actual_ms[target]
        for s in served
        if target in s.actual_ms and target in s.promised
    ]


def requests_until_better(served: Iterable[Served], target: Target) -> float | None:
    """How many requests had come when the mean relative error of what the model predicted, of all so far and of 30 at
    least, first was below that of what the prior did. `None`: it never was, or there was no model, or no prior."""
    errors: dict[Source, list[float]] = {Source.PRIOR: [0.0, 0.0], Source.MODEL: [0.0, 0.0]}  # sum and number
    (prior, model) = errors.values()
    for number, s in enumerate(served, 1):
        for error in relative_errors((s,), target) if target in s.promised else ():
            mine = errors[s.promised[target].source]
            mine[0] += error
            mine[1] += 1.0
        if prior[1] and model[1] >= FEWEST_PREDICTIONS and model[0] / model[1] < prior[0] / prior[1]:
            return float(number)
    return None


def pinball_ms(served: Iterable[Served], target: Target, quantile: float) -> float | None:
    """Mean pinball loss of the bounds: what a bound costs that is too high, and far more one that is too low."""
    missed = [
        s.actual_ms[target] - s.promised[target].bounds_ms[quantile]
        for s in served
        if target in s.actual_ms and quantile in getattr(s.promised.get(target), "bounds_ms", ())
    ]
    return mean(max(quantile * by_ms, (quantile - 1.0) * by_ms) for by_ms in missed)


def coverage(served: Iterable[Served], target: Target, quantile: float) -> float | None:
    """The share of actual values that did not exceed their bound; a good bound covers `quantile` of them."""
    return mean(
        float(s.actual_ms[target] <= s.promised[target].bounds_ms[quantile])
        for s in served
        if target in s.actual_ms and quantile in getattr(s.promised.get(target), "bounds_ms", ())
    )


def keeps(served: Served, ttft_ms: float | None, tpot_ms: float | None) -> bool:
    """Whether a stream kept both targets, or its own where it has some; one that failed or was refused did not. `None`:
    this one is not asked for."""
    own = served.targets
    infinite = float("inf")
    ttft_allowed_ms = infinite if ttft_ms is None else own.ttft_ms if own else ttft_ms
    tpot_allowed_ms = infinite if tpot_ms is None else own.tpot_ms if own else tpot_ms
    first_ms = served.actual_ms.get(Target.TTFT)
    return (
        first_ms is not None
        and first_ms <= ttft_allowed_ms
        and served.actual_ms.get(Target.TPOT, 0.0) <= tpot_allowed_ms
    )


def attainment(served: Iterable[Served], ttft_ms: float | None, tpot_ms: float | None) -> float | None:
    """The share of streams, failed and refused ones included, that kept both targets, as `keeps` has it."""
    return mean(float(keeps(s, ttft_ms, tpot_ms)) for s in served if s.streamed)


def lost(served: Iterable[Served], ttft_ms: float, tpot_ms: float) -> int:
    """Streams that did not keep both targets, of requests that have ended."""
    return sum(s.streamed and not keeps(s, ttft_ms, tpot_ms) for s in served)


def hit_ratio(served: Iterable[Served]) -> float | None:
    """Of the prompt tokens that were answered, those that were cached."""
    answered = [s for s in served if s.status == 200]
    tokens = sum(s.prompt_tokens for s in answered)
    return sum(s.cached_tokens for s in answered) / tokens if tokens else None


def answered_rps(served: Iterable[Served], from_s: float, to_s: float) -> float:
    """How many were answered, whenever they came, per second of that time."""
    return sum(s.status == 200 and s.ended_s is not None and from_s <= s.ended_s < to_s for s in served) / (
        to_s - from_s
    )


def share(served: Sequence[Served], server: str) -> float | None:
    """Of the requests, those that were sent there."""
    return mean(float(s.server == server) for s in served)


def between(served: Iterable[Served], from_s: float, to_s: float) -> list[Served]:
    """Those that arrived within [from_s, to_s)."""
    return [s for s in served if from_s <= s.at_s < to_s]
