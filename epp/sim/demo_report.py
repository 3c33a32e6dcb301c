"""What `epp demo` says of predicted latency: targets met, promises against what came, and what went without."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from epp.sim.traffic import Result
from epp.sim.workload import TPOT_SLO_HEADER, TTFT_SLO_HEADER

_FALLBACK = "llm_d_epp_prediction_fallback"


def render_latency_report(results: Sequence[Result], state: Mapping[str, Any], metrics_page: str) -> str:
    """
    Args:
        state: the picker's `/debug/state`.
        metrics_page: its `/metrics`.
    """
    lines = list(_attainment(results))
    predictor = state.get("predictor")
    if predictor is not None:
        lines += _served(predictor)
        lines += _fallbacks(metrics_page)
    return "\n".join(lines)


def _attainment(results: Sequence[Result]) -> Iterator[str]:
    """Targets by the clients' own clocks. A request that failed has missed its target."""
    for name, header, figure in (
        ("TTFT", TTFT_SLO_HEADER, "ttft_ms"),
        ("TPOT", TPOT_SLO_HEADER, "tpot_ms"),
    ):
        with_target = [r for r in results if r.planned.streaming and header in r.planned.headers]
        judged = [r for r in with_target if getattr(r, figure) is not None or r.error is not None]
        if judged:
            met = sum(_within(getattr(r, figure), r.planned.headers[header]) for r in judged)
            targets = ", ".join(sorted({f"{float(r.planned.headers[header]):g} ms" for r in judged}))
            yield (
                f"{name} targets met    {met} of {len(judged)} streams with a target of {targets} "
                f"({met / len(judged):.0%})"
            )


def _within(value_ms: float | None, target_ms: str) -> bool:
    return value_ms is not None and value_ms <= float(target_ms)


def _served(predictor: Mapping[str, Any]) -> Iterator[str]:
    for target, figures in predictor["served"].items():
        if figures["samples"]:
            yield (
                f"{target.upper():4} predictions    {figures['samples']} judged: off by "
                f"{figures['mean_absolute_ms']:.1f} ms on average, {figures['median_absolute_ratio']:.0%} at the median"
            )
    version = predictor["model_version"]
    trained = "trees of version " + str(version) if version else "the closed-form law, fitted online (no trees yet)"
    yield f"predicting by       {trained}, learned from {sum(predictor['samples_by_endpoint'].values())} requests"


def _fallbacks(metrics_page: str) -> Iterator[str]:
    reasons = {
        sample.labels["reason"]: int(sample.value)
        for family in text_string_to_metric_families(metrics_page)
        if family.name == _FALLBACK
        for sample in family.samples
    }
    if reasons:
        told = ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in sorted(reasons.items()))
        yield f"by heuristic        {sum(reasons.values())} requests, for want of a prediction: {told}"
