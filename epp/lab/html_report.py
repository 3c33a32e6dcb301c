"""A comparison, or a sweep, as one HTML page with plots in it: nothing to load, nothing to serve."""

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

from epp.lab.comparison import Row, grouped_by_load, grouped_by_pair
from epp.lab.result import CURVE_RATIOS, Result
from epp.lab.sweep import RATIOS, Goodput
from epp.lab.text_report import (
    AT_LEAST_IS,
    GOODPUT_IS,
    Cells,
    figure_cells,
    goodput_cells,
    load_cell,
    predicted_cells,
    title,
)
from epp.lab.yardsticks import mean_of_known
from epp.problem import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


class Origin(NamedTuple):
    """Where a page comes from: the command that made it, of which version, and when, as text."""

    command: str
    version: str
    date: str


_FEW_DECADES = 100.0  # from the lowest to the highest value
_MOST_SHARES = 16  # servers, of which each has a column
_INNER = ("pinball", "beats prior after")
_INNER_IS = (
    "More on the predictions: pinball loss of the bounds in ms, and after how many requests the trees beat their prior"
)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1em 0 }
td, th { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
td { white-space: nowrap }
.wide { overflow-x: auto }
svg { max-width: 100%; height: auto }
h2 { margin-top: 2.5em }
dt { font-weight: bold; float: left; clear: left; margin-right: .7em }
dd { margin: 0 0 .2em }
code { background: #f4f4f4; padding: .1em .4em }
"""

_WORDS = {
    "TTFT": "time to the first token, from the request's arrival.",
    "TPOT": "time per output token after the first, the mean of an answer.",
    "knee": "a load of 1.0: what the servers can do at most, when each request goes where the true work left is least.",
    "ours": "what epp serve --profile headroom does.",
    "oracle": "a yardstick, no rival: it looks into every server and knows how long each answer will be.",
}


def require_matplotlib() -> None:
    """Raises `Problem` when it is missing."""
    if find_spec("matplotlib") is None:
        raise Problem(f"a report with plots needs matplotlib: {sys.executable} -m pip install matplotlib")


def html_page(rows: Sequence[Row], origin: Origin) -> str:
    """The page of a comparison. The same results and origin give the same bytes. Raises `Problem` when matplotlib is
    missing."""

    def parts() -> Iterable[str]:
        yield from (_loads(group) for group in grouped_by_pair(rows) if len({row.load for row in group}) > 1)
        yield from (_section(group) for group in grouped_by_load(rows))

    return _page(
        "Simulated servers, the real picker, virtual time. Attained: the share of requests that kept both targets; "
        "failed and refused ones keep none. Regret: what the oracle attains more on the same schedule; below 0: less. "
        "Imbalance: the coefficient of variation of the time that servers computed. Shares: the least and the most of "
        "the requests that one server had. Times are in ms. Predictions, of who predicts: mean relative error, and how "
        "many of the actual values the bounds cover. Grey lines: the targets, and 90 and 99 % attained.",
        origin,
        parts,
    )


def html_sweep(goodputs: Sequence[Goodput], origin: Origin) -> str:
    """The page of a sweep. As `html_page`."""
    pairs: dict[tuple[str, str], list[Goodput]] = {}
    for goodput in goodputs:
        pairs.setdefault((goodput.workload, goodput.pool), []).append(goodput)
    return _page(
        "Goodput: the highest load at which so many requests keep both targets, by halving; in brackets in requests "
        f"per second. {AT_LEAST_IS}. Own knee: what the policy answers when more comes than it can do, likewise. The "
        "lines go through all loads that were measured with all seeds on the way there.",
        origin,
        lambda: (_goodput(group) for group in pairs.values()),
    )


def _page(about: str, origin: Origin, parts: Callable[[], Iterable[str]]) -> str:
    require_matplotlib()
    import matplotlib
    from cycler import cycler

    matplotlib.use("svg")
    colors = matplotlib.rcParams["axes.prop_cycle"]  # ten; there are more policies than that
    lines = cycler(linestyle=["-", "--"]) * colors
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "headroom", "font.size": 9, "axes.prop_cycle": lines}
    ):
        body = "\n".join(parts())
    made_by = (
        f"<p><code>{escape(origin.command)}</code><br>headroom-epp {escape(origin.version)}, {escape(origin.date)}</p>"
    )
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in _WORDS.items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Headroom lab</title>'
        f"<style>{_STYLE}</style></head><body><h1>Headroom lab</h1>\n{made_by}\n"
        f"<p>{escape(about)}</p>\n<dl>{words}</dl>\n{body}\n</body></html>\n"
    )


def _goodput(group: Sequence[Goodput]) -> str:
    def draw(axes: Sequence["Axes"]) -> None:
        for g in group:
            axes[0].plot(
                *zip(*sorted(g.attainment_by_load.items()), strict=True),
                marker="o",
                markersize=3,
                label=_as_label(g.policy),
            )
        axes[0].set_title("Attained, at the loads that were measured")
        axes[0].set_xlabel("load, as a share of the knee")
        _in_percent(axes[0].yaxis)
        for ratio in RATIOS:
            axes[0].axhline(ratio, color="#bbb", linewidth=0.8)

    def cell(g: Goodput, ratio: float) -> str:
        return f"{load_cell(g, ratio)} ({g.rate_rps(ratio):.3g})"

    def own_knee(g: Goodput) -> str:
        return f"{g.own_knee:.2f} ({g.own_knee_rps:.3g})"

    head = ["policy", *(f"goodput at {ratio:.0%}" for ratio in RATIOS), "own knee"]
    cells = head, [[g.policy, *(cell(g, ratio) for ratio in RATIOS), own_knee(g)] for g in group]
    where = f"{group[0].workload} on {group[0].pool}: knee {group[0].knee_rps:.3g} rps"
    return f"<h2>{escape(where)}</h2>{_table(cells)}{_plot(1, draw)}"


def _loads(rows: Sequence[Row]) -> str:
    """Attainment and tails by load, a line for each policy."""
    by_policy: dict[str, list[Row]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)

    def draw(axes: Sequence["Axes"]) -> None:
        loads = sorted({row.load for row in rows})
        for axis, figure, shown in zip(
            axes,
            ("attainment", "ttft_p99_ms", "e2e_p50_ms"),
            ("Attained", "TTFT p99", "E2E p50"),
            strict=True,
        ):
            for policy, line in by_policy.items():
                points = [(r.load, r.figures[figure]) for r in line if r.figures[figure] is not None]
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=_as_label(policy))
            axis.set_title(f"{shown} by load")
            axis.set_xlabel("load, as a share of the knee")
            axis.set_xticks(loads, [f"{load:g}" for load in loads])
            if figure == "attainment":
                _in_percent(axis.yaxis)
                axis.axhline(0.9, color="#bbb", linewidth=0.8)
                axis.axhline(0.99, color="#bbb", linewidth=0.8)
            else:
                axis.set_ylabel("ms")
                axis.set_yscale("log")

    goodput = goodput_cells(rows)
    table = "" if goodput is None else f"<p>{escape(GOODPUT_IS[:1].upper() + GOODPUT_IS[1:])}:</p>{_table(goodput)}"
    return f"<h2>{escape(rows[0].workload)} on {escape(rows[0].pool)}, by load</h2>{_plot(3, draw)}{table}"


def _section(rows: Sequence[Row]) -> str:
    usual, details = _folded(predicted_cells(rows))
    tables = _table(_with_full_heads(figure_cells(rows))), _table(usual), details, _table(_share_cells(rows))
    return f"<h2>{escape(title(rows[0]))}</h2>{''.join(tables)}{_plot(3, _curves(rows))}{_plot(2, _over_time(rows))}"


def _table(cells: Cells | None) -> str:
    if cells is None:
        return ""
    head, body = cells
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in line) for line in body]
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _with_full_heads(cells: Cells) -> Cells:
    """Beside `TTFT p50` a terminal's table says `p99` alone."""
    head, body = cells
    full, of = [], ""
    for name in head:
        of = name.removesuffix("p50") if name.endswith(" p50") else of
        full.append(of + name if name in ("p90", "p99") else name)
    return full, body


def _folded(cells: Cells | None) -> tuple[Cells | None, str]:
    """Predictions, but for what only who works on them asks for, and that to unfold."""
    if cells is None:
        return None, ""
    head, body = cells
    inner = [number for number, name in enumerate(head) if name.endswith(_INNER)]
    outer = [number for number in range(len(head)) if number not in inner]

    def of(columns: Sequence[int]) -> Cells:
        return [head[i] for i in columns], [[line[i] for i in columns] for line in body]

    return of(
        outer
    ), f"<details><summary>{escape(_INNER_IS)}</summary>{_table(of([0, *inner]))}</details>" if inner else ""


def _share_cells(rows: Sequence[Row]) -> Cells | None:
    """Of the requests, by server; of a large pool least and most, which another table has, have to do."""
    names = list(rows[0].results[0].servers)
    if len(names) > _MOST_SHARES:
        return None
    shares_by_row = [(row.policy, row.shares) for row in rows]
    body = [[policy, *(f"{shares[name]:.1%}" for name in names)] for policy, shares in shares_by_row]
    return ["shares of", *names], body


def _curves(rows: Sequence[Row]) -> Callable[[Sequence["Axes"]], None]:
    """Distributions: the share of requests that took at most so long."""

    def draw(axes: Sequence["Axes"]) -> None:
        targets = rows[0].results[0].targets
        for axis, curve, limit_ms in zip(
            axes, ("ttft_ms", "tpot_ms", "e2e_ms"), (targets.ttft_ms, targets.tpot_ms, None), strict=True
        ):
            for row in rows:
                values = [mean_of_known([r.curves[curve][i] for r in row.results]) for i in range(len(CURVE_RATIOS))]
                points = [(value, ratio) for value, ratio in zip(values, CURVE_RATIOS, strict=True) if value]
                if points:
                    axis.plot(*zip(*points, strict=True), label=_as_label(row.policy), linewidth=1.2)
            if limit_ms is not None:
                axis.axvline(limit_ms, color="#bbb", linewidth=0.8)
            axis.set_title(f"Requests with {curve.replace('_ms', '').upper()} up to x")
            axis.set_xscale("log")
            axis.set_xlabel("ms")
            _in_percent(axis.yaxis)
        axes[0].set_ylabel("of the requests")

    return draw


def _over_time(rows: Sequence[Row]) -> Callable[[Sequence["Axes"]], None]:
    def draw(axes: Sequence["Axes"]) -> None:
        for axis, figure, shown in zip(axes, ("attainment", "ttft_p90_ms"), ("Attained", "TTFT p90"), strict=True):
            for row in rows:
                axis.plot(*_timeline(row.results, figure), label=_as_label(row.policy), linewidth=1.2)
            axis.set_title(f"{shown} over time")
            axis.set_xlabel("by arrival, simulated s")
        _in_percent(axes[0].yaxis)
        axes[1].set_ylabel("ms")
        axes[1].set_yscale("log")

    return draw


def _timeline(results: Sequence[Result], figure: str) -> tuple[list[float], list[float]]:
    parts: Sequence[Sequence[Mapping[str, Any]]] = [result.timeline for result in results]
    means = [mean_of_known([timeline[i][figure] for timeline in parts]) for i in range(len(parts[0]))]
    return (
        [part["at_s"] for part in parts[0]],
        [nan if value is None else value for value in means],
    )


def _as_label(name: str) -> str:
    """For a legend, as it is. Between two dollars a formula is read, and what begins with `_` is left out."""
    shown = name.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _plot(panels: int, draw: Callable[[Sequence["Axes"]], None]) -> str:
    """An SVG element."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    draw(axes)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    for axis in axes:
        for scale in (axis.xaxis, axis.yaxis):
            if scale.get_scale() == "log":
                _label(scale)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().partition("<svg")[1] + out.getvalue().partition("<svg")[2]


def _in_percent(axis: "Axis") -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0))


def _label(log_axis: "Axis") -> None:
    """In plain numbers: 1, 2 and 5 of each decade, if there are few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = log_axis.get_view_interval()
    log_axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < _FEW_DECADES * low else (1.0,)))
    log_axis.set_major_formatter(lambda value, _: f"{value:,g}")
    log_axis.set_minor_formatter(NullFormatter())
