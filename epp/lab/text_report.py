"""A comparison as a table on a terminal, or in Markdown."""

from collections.abc import Sequence

from epp.lab.comparison import Row

# Head, figure, how it is written.
COLUMNS: tuple[tuple[str, str, str], ...] = (
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
    ("TTFT err", "ttft_mape", ".0%"),
    ("covered", "ttft_coverage", ".0%"),
)


def shown(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)


def text_table(rows: Sequence[Row], markdown: bool = False) -> str:
    """One table for each workload, pool and load. Columns that say nothing of anybody are left out."""
    tables: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        tables.setdefault((row.workload, row.pool, row.load), []).append(row)
    return "\n\n".join(_table(group, markdown) for group in tables.values())


def _table(rows: Sequence[Row], markdown: bool) -> str:
    columns = [c for c in COLUMNS if any(row.figures.get(c[1]) is not None for row in rows)]
    head = ["policy", *(name for name, _, _ in columns)]
    body = [[row.policy, *(_cell(row, figure, how) for _, figure, how in columns)] for row in rows]
    return f"{title(rows[0])}\n\n{grid(head, body, markdown)}"


def _cell(row: Row, figure: str, how: str) -> str:
    text = shown(row.figures.get(figure), how)
    spread = row.spreads.get(figure)
    return (
        f"{text} ±{shown(spread, how.lstrip('+'))}"
        if figure == "attainment" and len(row.results) > 1 and spread
        else text
    )


def title(row: Row) -> str:
    result = row.results[0]
    spec, targets = result.spec, result.targets
    rate = f"{spec.rate_rps:.3g} rps" + (f", {row.load:.2g} of the knee" if result.knee_rps else "")
    seeds = f", {len(row.results)} seeds" if len(row.results) > 1 else ""
    return (
        f"{row.workload} on {row.pool} at {rate}, {spec.duration_s:g} s{seeds}; "
        f"targets: TTFT {targets.ttft_ms:g} ms, TPOT {targets.tpot_ms:g} ms"
    )


def grid(head: Sequence[str], body: Sequence[Sequence[str]], markdown: bool) -> str:
    """Text left in the first column, figures right in the others."""
    if markdown:
        lines = [head, ["---", *("--:" for _ in head[1:])], *body]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in (head, *body)
    )
