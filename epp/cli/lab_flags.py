"""Flags that the commands of `epp lab` share, and what becomes of them."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp import __version__
from epp.cli.flags import positive, ratio
from epp.cli.lab_files import report_file, write_json
from epp.cli.lab_values import above_zero, interval, names, seconds, seeds, sigma, utf8
from epp.files import new_file, write
from epp.problem import Problem
from epp.sim.timing import STEP_NOISE_SIGMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from epp.lab.comparison import Row
    from epp.lab.html_report import Origin
    from epp.lab.workloads.workload import Targets, Workload


def add_scene(parser: Any, several: bool = False) -> None:
    """What is simulated, the rate left open; `several`: --workload may name a group."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--workload",
        type=utf8,
        default="azure-conv",
        metavar="NAME",
        help="see `epp lab list`"
        + ("; `all`: those of `epp lab table`; `held-out`: those of this name" if several else "")
        + " (default %(default)s)",
    )
    what.add_argument(
        "--trace",
        type=utf8,
        metavar="FILE",
        help="a recorded trace instead: Azure's CSV, Mooncake's JSON lines, what `epp serve "
        "--record-trace` writes, or a saved /debug/state",
    )
    parser.add_argument(
        "--pool",
        type=utf8,
        default="h100x4",
        metavar="POOL",
        help="simulated servers, e.g. h100x4+a100x4 (default %(default)s)",
    )
    parser.add_argument(
        "--policies",
        type=names,
        metavar="A[,B…]",
        help="see `epp lab list`; `all` for all (default: ours, five usual ones, oracle)",
    )
    parser.add_argument(
        "--config",
        type=utf8,
        action="append",
        default=[],
        metavar="FILE",
        help="an EndpointPickerConfig as one more policy; may be given again; what it says of discovery is not used",
    )
    parser.add_argument(
        "--duration",
        type=seconds,
        metavar="T",
        help="how long requests arrive (default: the workload's own; of a trace 2m, or all of it)",
    )
    parser.add_argument("--seeds", type=seeds, default=1, metavar="N", help="runs of each, 1 to N (default 1)")
    parser.add_argument(
        "--slo-ttft-ms",
        type=above_zero,
        metavar="MS",
        help="target of the time to the first token, else the workload's own",
    )
    parser.add_argument(
        "--slo-tpot-ms", type=above_zero, metavar="MS", help="target per output token after it, else the workload's own"
    )
    parser.add_argument(
        "--streamed", type=ratio, default=1.0, metavar="RATIO", help="share of answers that stream (default 1)"
    )
    parser.add_argument(
        "--metrics-interval",
        type=interval,
        default=(50.0, 100.0),
        metavar="T|never",
        help="how often metrics pages are read (default: 50 to 100 ms)",
    )
    parser.add_argument(
        "--noise",
        type=sigma,
        default=STEP_NOISE_SIGMA,
        metavar="SIGMA",
        help="of the lognormal factor on each step of a server (default %(default)s); 0: none. The knee is that of the "
        "default",
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one per core)")


def add_how_many(parser: Any, load: "Callable[[str], Any]", default: str, metavar: str) -> None:
    """How many requests, by the knee or by the clock; `load` reads what is written after --load."""
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument(
        "--load",
        type=load,
        default=default,
        metavar=metavar,
        help="rate as a share of the knee: of what the pool can answer at most (default %(default)s)",
    )
    how_many.add_argument("--rate", type=above_zero, metavar="RPS", help="mean arrival rate, instead of --load")


def rates_of(
    arguments: argparse.Namespace, pair: tuple[str, str], loads: "Sequence[float]"
) -> "tuple[Mapping[tuple[str, str], float], Sequence[float]]":
    """What makes rates when multiplied: the knee and `loads`, or 1 rps and --rate, which does without the knee. Raises
    `Problem`."""
    from epp.lab.comparison import knees_of

    if arguments.rate is not None:
        return {pair: 1.0}, (arguments.rate,)
    return knees_of([pair], jobs_of(arguments)), loads


def add_outputs(parser: Any) -> None:
    parser.add_argument("--json", type=new_file, metavar="FILE", help="also write every result there")
    parser.add_argument("--report", type=report_file, metavar="FILE", help="also write one HTML page with plots")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def scene_of(arguments: argparse.Namespace) -> tuple[str, str]:
    """Workload and pool, both known to be there."""
    from epp.lab.pools import parse_pool
    from epp.lab.runs import workload_of
    from epp.lab.workloads.traces import SUFFIXES, suffix_of

    if arguments.trace is not None and suffix_of(Path(arguments.trace)) not in SUFFIXES:
        raise Problem(
            f"--trace {arguments.trace or repr('')}: a trace is told by how its name ends: {', '.join(SUFFIXES)}; "
            "give the path of one that does"
        )
    workload = arguments.workload if arguments.trace is None else str(Path(arguments.trace))
    workload_of(workload)
    parse_pool(arguments.pool)
    return workload, arguments.pool


def group_of(arguments: argparse.Namespace) -> "Mapping[str, Workload] | None":
    """The workloads that --workload stands for, if it stands for several."""
    from epp.lab.workloads.catalogue import GROUPS

    return GROUPS.get(arguments.workload)


def print_trace(arguments: argparse.Namespace) -> None:
    """How much of a recorded trace there is, and at which rate it came."""
    from epp.lab.runs import workload_of

    if arguments.trace is not None:
        print(f"{workload_of(scene_of(arguments)[0]).about}\n", flush=True)


def warn_of_trace(arguments: argparse.Namespace, rates_rps: "Sequence[float]") -> None:
    """On standard error, what makes the figures of a recorded trace doubtful at these rates."""
    from epp.lab.runs import workload_of
    from epp.lab.workloads.doubts import doubts
    from epp.lab.workloads.traces import Trace

    if arguments.trace is not None and isinstance(trace := workload_of(scene_of(arguments)[0]), Trace):
        for doubt in doubts(trace, rates_rps):
            print(f"warning: {arguments.trace}: {doubt}", file=sys.stderr, flush=True)


def policies_of(arguments: argparse.Namespace) -> list[str]:
    from epp.lab.comparison import DEFAULT_POLICIES
    from epp.lab.oracle import NAME as ORACLE
    from epp.lab.policies.catalogue import POLICIES
    from epp.lab.runs import CONFIG_SUFFIXES, policy_of

    for path in arguments.config:
        if Path(path).suffix not in CONFIG_SUFFIXES:
            raise Problem(
                f"--config {path or repr('')}: a configuration is told by how its name ends: "
                f"{', '.join(CONFIG_SUFFIXES)}; give the path of one that does"
            )
    wanted = arguments.policies or DEFAULT_POLICIES
    chosen = [*POLICIES, ORACLE] if "all" in wanted else list(wanted)
    chosen += arguments.config
    for name in chosen:
        policy_of(name)
    return list(dict.fromkeys(chosen))


def like_of(arguments: argparse.Namespace) -> Any:
    """What all runs share. Raises `Problem`."""
    from epp.lab.fault_spec import parse_faults, require_within
    from epp.lab.pools import parse_pool
    from epp.lab.spec import RunSpec

    workload, pool = scene_of(arguments) if group_of(arguments) is None else ("", arguments.pool)
    faults = tuple(getattr(arguments, "fault", ()))
    parse_faults(faults, parse_pool(pool))
    if arguments.duration is not None:
        require_within(faults, arguments.duration)
    return RunSpec(
        workload=workload,
        pool=pool,
        policy="",
        rate_rps=0.0,
        duration_s=arguments.duration or 0.0,
        targets=_targets_of(arguments, workload),
        streaming_ratio=arguments.streamed,
        metrics_interval_ms=arguments.metrics_interval,
        faults=faults,
        noise_sigma=arguments.noise,
    )


def _targets_of(arguments: argparse.Namespace, workload: str) -> "Targets | None":
    """`None`: each workload's own."""
    from epp.lab.runs import workload_of
    from epp.lab.workloads.workload import Targets

    if arguments.slo_ttft_ms is None and arguments.slo_tpot_ms is None:
        return None
    if not workload:
        raise Problem("--slo-ttft-ms and --slo-tpot-ms are for one workload, not for several")
    own = workload_of(workload).targets
    return Targets(arguments.slo_ttft_ms or own.ttft_ms, arguments.slo_tpot_ms or own.tpot_ms)


def jobs_of(arguments: argparse.Namespace) -> int:
    from epp.lab.parallel import cores

    return int(arguments.jobs or cores())


def write_out(
    rows: "list[Row]", arguments: argparse.Namespace, table: "Callable[[list[Row], bool], str] | None" = None
) -> None:
    """Print the table, and write the files that were asked for."""
    from epp.lab.text_report import text_table

    print((table or text_table)(rows, arguments.markdown))
    print_failures((row.policy, r.plugin_failures) for row in rows for r in row.results)
    if arguments.json is not None:
        write_json(arguments.json, [r.plain() for row in rows for r in row.results])
    if arguments.report is not None:
        from epp.lab.html_report import html_page

        write(arguments.report, html_page(rows, origin_of(arguments)).encode())


def origin_of(arguments: argparse.Namespace) -> "Origin":
    """What a report says of where it comes from."""
    from epp.lab.html_report import Origin

    return Origin(arguments.command_line, __version__, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")


def print_failures(found: "Iterable[tuple[str, Iterable[str]]]") -> None:
    """Plugins that raised: pairs of a policy and their types. They cost quality, which nobody would understand."""
    failures = {f"{name} ({policy})" for policy, types in found for name in types}
    if failures:
        print(f"\nplugins that raised: {', '.join(sorted(failures))}")
