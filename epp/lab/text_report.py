"""A comparison as tables on a terminal, or in Markdown.

For each workload, pool and load one of what clients and servers saw, and one of how far off predictions were, if any
were served. Of several loads also the goodput, as far as these tell it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from epp.lab.comparison import Row, grouped_by_load, grouped_by_pair
from epp.lab.sweep import MOST_LOAD, RATIOS, Goodput

Columns = Sequence[tuple[str, str, str]]
"""Head, figure, how it is written."""

_COLUMNS: Columns = (
    ("attained", "attainment", ".1%"),
    ("TTFT p50", "ttft_p50_ms", ".0f"),
    ("p90", "ttft_p90_ms", ".0f"),
    ("p99", "ttft_p99_ms", ".0f"),
    ("TPOT p50", "tpot_p50_ms", ".1f"),
    ("p99", "tpot_p99_ms", ".1f"),
    ("E2E p50", "e2e_p50_ms", ".0f"),
    ("p99", "e2e_p99_ms", ".0f"),
    ("hits", "hit_ratio", ".1%"),
    ("imbalance", "imbalance", ".2f"),
    ("failed", "failed", ".0f"),
    ("regret", "regret_attainment", "+.1%"),
)
_PREDICTED: Columns = tuple(
    (f"{target.upper()} {head}", f"{target}_{figure}", how)
    for target in ("ttft", "tpot", "e2e")
    for head, figure, how in (
        ("error", "mape", ".0%"),
        ("pinball", "pinball_ms", ".1f"),
        ("covered", "coverage", ".0%"),
        ("beats prior after", "beats_prior_after", ".0f"),
    )
)


def shown(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)


def text_table(rows: Sequence[Row], markdown: bool = False) -> str:
    """Tables for each workload, pool and load. Columns that say nothing of anybody are left out."""
    tables = []
    for group in grouped_by_load(rows):
        tables.append(f"{title(group[0])}\n\n{grid(*figure_cells(group), markdown)}")
        if (predicted := predicted_cells(group)) is not None:
            tables.append(grid(*predicted, markdown))
    tables += [
        f"{group[0].workload} on {group[0].pool}: {GOODPUT_IS}\n\n{grid(*goodput, markdown)}"
        for group in grouped_by_pair(rows)
        if (goodput := goodput_cells(group)) is not None
    ]
    return "\n\n".join(tables)


Cells = tuple[list[str], list[list[str]]]
"""The head of a table, and its lines."""


def figure_cells(rows: Sequence[Row]) -> Cells:
    """What clients and servers saw."""
    columns = _known(_COLUMNS, rows)
    head = ["policy", *(name for name, _, _ in columns), "shares"]
    return head, [[row.policy, *(_cell(row, figure, how) for _, figure, how in columns), _shares(row)] for row in rows]


def predicted_cells(rows: Sequence[Row]) -> Cells | None:
    """How far off predictions were; `None`: nobody made any."""
    if not (columns := _known(_PREDICTED, rows)):
        return None
    who = [row for row in rows if any(row.figures.get(figure) is not None for _, figure, _ in columns)]
    head = ["predictions of", *(name for name, _, _ in columns)]
    return head, [[row.policy, *(_cell(row, figure, how) for _, figure, how in columns)] for row in who]


GOODPUT_IS = (
    "goodput, the highest load that keeps so many requests within their targets, between the loads that were run"
)


AT_LEAST_IS = f"≥: also at {MOST_LOAD:g}, the highest load that is tried, so it may carry more"


def load_cell(goodput: Goodput, ratio: float) -> str:
    """The load of a sweep, and its spread over the seeds."""
    spread = goodput.spread_by_ratio[ratio]
    bound = "≥ " if goodput.is_at_least(ratio) else ""
    return f"{bound}{goodput.load_by_ratio[ratio]:.3f}" + (f" ±{spread:.3f}" if spread else "")


def goodput_cells(rows: Sequence[Row]) -> Cells | None:
    """Of one workload and pool; `None`: a single load says nothing of it."""
    by_policy: dict[str, dict[float, float]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, {})[row.load] = row.figures["attainment"] or 0.0
    if len({row.load for row in rows}) < 2:
        return None
    body = [[policy, *(_carried(line, ratio) for ratio in RATIOS)] for policy, line in by_policy.items()]
    return ["policy", *(f"at {ratio:.0%}" for ratio in RATIOS)], body


def _carried(attainment_by_load: Mapping[float, float], ratio: float) -> str:
    """Where it falls below `ratio`: on a straight line from the highest load that keeps it to the next."""
    points = sorted(attainment_by_load.items())
    kept = [number for number, (_, attained) in enumerate(points) if attained >= ratio]
    if not kept:
        return f"< {points[0][0]:g}"
    low, above = points[kept[-1]]
    if kept[-1] == len(points) - 1:
        return f"≥ {low:g}"
    high, below = points[kept[-1] + 1]
    return f"{low + (high - low) * (above - ratio) / (above - below):.2f}"


def _known(columns: Columns, rows: Iterable[Row]) -> Columns:
    rows = list(rows)
    return [column for column in columns if any(row.figures.get(column[1]) is not None for row in rows)]


def _cell(row: Row, figure: str, how: str) -> str:
    text = shown(row.figures.get(figure), how)
    spread = row.spreads.get(figure)
    return (
        f"{text} ±{shown(spread, how.lstrip('+'))}"
        if figure == "attainment" and len(row.results) > 1 and spread
        else text
    )


def _shares(row: Row) -> str:
    """The least and the most that a server had of the requests."""
    shares, how = row.shares.values(), share_format(len(row.shares))
    return f"{min(shares):{how}}-{max(shares):{how}}"


def share_format(servers: int) -> str:
    """Of a pool of so many: fine enough to show a fifth of what a server's fair share is."""
    return f".{max(0, math.ceil(math.log10(max(1, servers) / 20)))}%"


def title(row: Row) -> str:
    result = row.results[0]
    spec, targets = result.spec, result.targets
    rate = f"{spec.rate_rps:.3g} rps" + (f", {row.load:.2g} of the knee" if result.knee_rps else "")
    seeds = f", {len(row.results)} seeds" if len(row.results) > 1 else ""
    return (
        f"{row.workload} on {row.pool} at {rate}, {round(spec.duration_s, 2):g} s{seeds}; "
        f"targets: TTFT {targets.ttft_ms:g} ms, TPOT {targets.tpot_ms:g} ms"
    )


def grid(head: Sequence[str], body: Sequence[Sequence[str]], markdown: bool) -> str:
    """Text left in the first column, figures right in the others."""
    if markdown:
        lines = [head, ["---", *("--:" for _ in head[1:])], *body]
        cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in (head, *body)
    )
