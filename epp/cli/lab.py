"""`epp lab`: policies against each other on simulated pools, in virtual time."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.cli.flags import Parser, positive
from epp.problem import Problem

if TYPE_CHECKING:
    from epp.lab.comparison import Row

_DESCRIPTION = """\
Try routing policies on simulated pools before you touch a real one. The picker itself decides, with a virtual clock;
the model servers are simulated. Minutes of traffic take seconds.
"""

_EPILOG = """\
examples:
  epp lab run --workload azure-conv --pool h100x4 --load 0.8
  epp lab run --workload b2b-saas --pool h100x2+a100x2 --policies ours,lmetric,oracle --load 0.8,1.0 --seeds 3
  epp lab run --trace AzureLLMInferenceTrace_conv.csv --pool h100x4 --load 0.8 --config mine.yaml --report out.html
  epp lab run --workload azure-conv --pool h100x4 --load 0.6 --fault slow2x@20s --metrics-interval 5s
  epp lab list                      workloads, policies, shapes of servers

docs/lab.md says how it works and how far to trust it.
"""


def add_lab(commands: Any) -> None:
    lab = commands.add_parser(
        "lab",
        help="compare routing policies on simulated pools, in virtual time",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    actions = lab.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    _add_run(actions)
    listing = actions.add_parser("list", help="print workloads, policies and shapes of servers")
    listing.set_defaults(run=_list)


def _add_run(actions: Any) -> None:
    run = actions.add_parser(
        "run",
        help="run policies at one or several loads, and print a table",
        description="Run policies at one or several loads, and print a table. Same flags, same figures.",
        epilog=_EPILOG,
    )
    run.set_defaults(run=_run)
    add_scene(run)
    run.add_argument(
        "--load",
        type=loads,
        default=(0.8,),
        metavar="X[,X…]",
        help="rate as a share of the knee: of what the pool can answer at most (default 0.8)",
    )
    run.add_argument("--rate", type=above_zero, metavar="RPS", help="mean arrival rate, instead of --load")
    run.add_argument("--fault", action="append", default=[], metavar="FAULT", help=_FAULT_HELP)
    add_outputs(run)


_FAULT_HELP = """\
what befalls the first server; may be given again: kill@T+D (dies, back after D with an empty cache), restart@T+D,
slow2x@T[+D], fail@T+D (answers 500), add@T (one more joins); D is 15s unless given"""


def add_scene(parser: Any) -> None:
    """What is simulated, the rate left open."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--workload", default="azure-conv", metavar="NAME", help="see `epp lab list` (default %(default)s)"
    )
    what.add_argument(
        "--trace", type=Path, metavar="FILE", help="a recorded trace instead: Azure's CSV, Mooncake's JSON lines"
    )
    parser.add_argument(
        "--pool", default="h100x4", metavar="POOL", help="simulated servers, e.g. h100x4+a100x4 (default %(default)s)"
    )
    parser.add_argument(
        "--policies", type=names, metavar="A[,B…]", help="see `epp lab list`; `all` for all (default: a selection)"
    )
    parser.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="an EndpointPickerConfig as one more policy"
    )
    parser.add_argument(
        "--duration", type=seconds, metavar="T", help="how long requests arrive (default: the workload's own)"
    )
    parser.add_argument("--seeds", type=positive, default=1, metavar="N", help="runs of each, 1 to N (default 1)")
    parser.add_argument("--slo-ttft-ms", type=above_zero, metavar="MS", help="target, else the workload's own")
    parser.add_argument("--slo-tpot-ms", type=above_zero, metavar="MS", help="target, else the workload's own")
    parser.add_argument(
        "--streamed", type=above_zero, default=1.0, metavar="RATIO", help="share of answers that stream (default 1)"
    )
    parser.add_argument(
        "--metrics-interval",
        type=interval,
        default=(50.0, 100.0),
        metavar="T|never",
        help="how often metrics pages are read (default: 50 to 100 ms)",
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one per core)")


def add_outputs(parser: Any) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every result there")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write one HTML page with plots")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def _run(arguments: argparse.Namespace) -> int:
    from epp.lab.comparison import compare, knees_of, specs_of

    pair = scene_of(arguments)
    if arguments.rate is None:
        knees = knees_of([pair], jobs_of(arguments))
        wanted = arguments.load
    else:
        knees, wanted = {pair: 1.0}, (arguments.rate,)
    specs = specs_of([pair], policies_of(arguments), wanted, arguments.seeds, knees, like_of(arguments))
    rows = compare(specs, knees if arguments.rate is None else {}, jobs_of(arguments))
    write_out(rows, arguments)
    return 0


def write_out(rows: "list[Row]", arguments: argparse.Namespace) -> None:
    from epp.lab.text_report import text_table

    print(text_table(rows, arguments.markdown))
    failures = {f"{name} ({row.policy})" for row in rows for r in row.results for name in r.plugin_failures}
    if failures:
        print(f"\nplugins that raised: {', '.join(sorted(failures))}")
    if arguments.json is not None:
        import orjson

        results = [r.plain() for row in rows for r in row.results]
        write(arguments.json, orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
    if arguments.report is not None:
        from epp.lab.html_report import html_page

        write(arguments.report, html_page(rows).encode())


def write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise Problem(f"{path}: cannot be written: {error.strerror}") from error


def scene_of(arguments: argparse.Namespace) -> tuple[str, str]:
    """Workload and pool, both known to be there."""
    from epp.lab.pools import parse_pool
    from epp.lab.runs import workload_of

    workload = arguments.workload if arguments.trace is None else str(arguments.trace)
    workload_of(workload)
    parse_pool(arguments.pool)
    return workload, arguments.pool


def policies_of(arguments: argparse.Namespace) -> list[str]:
    from epp.lab.comparison import DEFAULT_POLICIES, ORACLE
    from epp.lab.policies.catalogue import POLICIES
    from epp.lab.runs import policy_of

    wanted = arguments.policies or DEFAULT_POLICIES
    chosen = [*POLICIES, ORACLE] if "all" in wanted else list(wanted)
    chosen += arguments.config
    for name in chosen:
        policy_of(name)
    return list(dict.fromkeys(chosen))


def like_of(arguments: argparse.Namespace) -> Any:
    """What all runs share."""
    from epp.lab.pools import parse_pool
    from epp.lab.runs import workload_of
    from epp.lab.spec import RunSpec, parse_fault
    from epp.lab.workloads.workload import Targets

    workload, pool = scene_of(arguments)
    own = workload_of(workload).targets
    faults = tuple(getattr(arguments, "fault", ()))
    for fault in faults:
        parse_fault(fault, parse_pool(pool))
    return RunSpec(
        workload=workload,
        pool=pool,
        policy="",
        rate_rps=0.0,
        duration_s=arguments.duration or 0.0,
        targets=Targets(arguments.slo_ttft_ms or own.ttft_ms, arguments.slo_tpot_ms or own.tpot_ms),
        streaming_ratio=min(arguments.streamed, 1.0),
        metrics_interval_ms=arguments.metrics_interval,
        faults=faults,
    )


def jobs_of(arguments: argparse.Namespace) -> int:
    from epp.lab.parallel import cores

    return int(arguments.jobs or cores())


def _list(arguments: argparse.Namespace) -> int:
    from epp.lab import oracle
    from epp.lab.policies.catalogue import POLICIES
    from epp.lab.pools import ENGINES
    from epp.lab.workloads.catalogue import WORKLOADS

    print("workloads")
    for workload in WORKLOADS.values():
        print(f"  {workload.name:24} {workload.about}")
    print("policies")
    for policy in (*POLICIES.values(), oracle.POLICY):
        print(f"  {policy.name:24} {policy.about}")
    print("shapes of servers")
    for name, engine in ENGINES.items():
        print(f"  {name:24} {engine.kv_blocks * engine.block_tokens:,} tokens of KV cache")
    return 0


# --- values of flags --------------------------------------------------------------------------------------------------


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def loads(text: str) -> tuple[float, ...]:
    return tuple(above_zero(part) for part in text.split(","))


def seconds(text: str) -> float:
    from epp.units import parse_duration_s

    try:
        value = parse_duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def interval(text: str) -> tuple[float, float] | None:
    from epp.lab.spec import parse_metrics_interval

    try:
        return parse_metrics_interval(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None
