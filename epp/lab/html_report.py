"""A comparison as one HTML page with plots in it: nothing to load, nothing to serve."""

import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from math import nan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from epp.lab.comparison import Row
from epp.lab.result import CURVE_RATIOS, Result
from epp.lab.text_report import COLUMNS, shown, title
from epp.problem import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1em 0 }
td, th { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
svg { max-width: 100%; height: auto }
h2 { margin-top: 2.5em }
"""


def require_matplotlib() -> None:
    """Raises `Problem` when it is missing."""
    if find_spec("matplotlib") is None:
        raise Problem("a report with plots needs matplotlib: pip install '.[lab]' in a checkout of Headroom")


def html_page(rows: Sequence[Row]) -> str:
    """The page. The same results give the same bytes. Raises `Problem` when matplotlib is missing."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("svg")
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.workload, row.pool, row.load), []).append(row)
    sweeps: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sweeps.setdefault((row.workload, row.pool), []).append(row)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "headroom", "font.size": 9}):
        parts = [_loads(group) for group in sweeps.values() if len({row.load for row in group}) > 1]
        parts += [_section(group) for group in groups.values()]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Headroom lab</title>'
        f"<style>{_STYLE}</style></head><body><h1>Headroom lab</h1>\n"
        "<p>Simulated servers, the real picker, virtual time. Attained: the share of requests that kept both targets; "
        "failed and refused ones keep none. Regret: what the oracle attains more on the same schedule.</p>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _loads(rows: Sequence[Row]) -> str:
    """Attainment and tails by load, a line for each policy."""
    by_policy: dict[str, list[Row]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)

    def draw(axes: Sequence["Axes"]) -> None:
        for axis, figure, label in zip(
            axes,
            ("attainment", "ttft_p99_ms", "e2e_p50_ms"),
            ("attained", "TTFT p99, ms", "E2E p50, ms"),
            strict=True,
        ):
            for policy, line in by_policy.items():
                points = [(r.load, r.figures[figure]) for r in line if r.figures[figure] is not None]
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=policy)
            axis.set_xlabel("load, as a share of the knee")
            axis.set_ylabel(label)
            if figure == "attainment":
                axis.axhline(0.9, color="#bbb", linewidth=0.8)
                axis.axhline(0.99, color="#bbb", linewidth=0.8)
            else:
                axis.set_yscale("log")
        axes[-1].legend(fontsize=7)

    return f"<h2>{escape(rows[0].workload)} on {escape(rows[0].pool)}, by load</h2>{_plot(3, draw)}"


def _section(rows: Sequence[Row]) -> str:
    return f"<h2>{escape(title(rows[0]))}</h2>{_table(rows)}{_plot(3, _curves(rows))}{_plot(2, _over_time(rows))}"


def _table(rows: Sequence[Row]) -> str:
    columns = [c for c in COLUMNS if any(row.figures.get(c[1]) is not None for row in rows)]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("policy", *(c[0] for c in columns), "shares"))
    lines = []
    for row in rows:
        shares = ", ".join(
            f"{name} {fmean(r.servers[name]['share'] or 0.0 for r in row.results):.0%}"
            for name in row.results[0].servers
        )
        cells = [row.policy, *(shown(row.figures.get(figure), how) for _, figure, how in columns), shares]
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + "</table>"


def _curves(rows: Sequence[Row]) -> Callable[[Sequence["Axes"]], None]:
    """Distributions: the share of requests that took at most so long."""

    def draw(axes: Sequence["Axes"]) -> None:
        targets = rows[0].results[0].targets
        for axis, curve, limit_ms in zip(
            axes, ("ttft_ms", "tpot_ms", "e2e_ms"), (targets.ttft_ms, targets.tpot_ms, None), strict=True
        ):
            for row in rows:
                values = [_mean([r.curves[curve][i] for r in row.results]) for i in range(len(CURVE_RATIOS))]
                points = [(value, ratio) for value, ratio in zip(values, CURVE_RATIOS, strict=True) if value]
                if points:
                    axis.plot(*zip(*points, strict=True), label=row.policy, linewidth=1.2)
            if limit_ms is not None:
                axis.axvline(limit_ms, color="#bbb", linewidth=0.8)
            axis.set_xscale("log")
            axis.set_xlabel(curve.replace("_ms", "").upper() + ", ms")
        axes[0].set_ylabel("share of the requests")
        axes[-1].legend(fontsize=7)

    return draw


def _over_time(rows: Sequence[Row]) -> Callable[[Sequence["Axes"]], None]:
    def draw(axes: Sequence["Axes"]) -> None:
        for axis, figure, label in zip(axes, ("attainment", "ttft_p90_ms"), ("attained", "TTFT p90, ms"), strict=True):
            for row in rows:
                axis.plot(*_timeline(row.results, figure), label=row.policy, linewidth=1.2)
            axis.set_xlabel("seconds")
            axis.set_ylabel(label)
        axes[1].set_yscale("log")
        axes[1].legend(fontsize=7)

    return draw


def _timeline(results: Sequence[Result], figure: str) -> tuple[list[float], list[float]]:
    parts: Sequence[Sequence[Mapping[str, Any]]] = [result.timeline for result in results]
    return (
        [part["at_s"] for part in parts[0]],
        [_mean([timeline[i][figure] for timeline in parts]) or nan for i in range(len(parts[0]))],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _plot(panels: int, draw: Callable[[Sequence["Axes"]], None]) -> str:
    """An SVG element."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    draw(figure.subplots(1, panels))
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().partition("<svg")[1] + out.getvalue().partition("<svg")[2]
