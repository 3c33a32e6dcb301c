"""`epp lab`: policies against each other on simulated pools, in virtual time."""

import argparse
from typing import Any

from epp.cli.flags import Parser, positive
from epp.cli.lab_files import keep_apart, report_file, write_json
from epp.cli.lab_fit import add_fit
from epp.cli.lab_flags import (
    add_how_many,
    add_outputs,
    add_scene,
    group_of,
    jobs_of,
    like_of,
    origin_of,
    policies_of,
    print_failures,
    print_trace,
    rates_of,
    scene_of,
    warn_of_trace,
    write_out,
)
from epp.cli.lab_values import above_zero, loads, names, seeds, utf8
from epp.files import new_file, write
from epp.problem import Problem

_DESCRIPTION = """\
Try routing policies on simulated pools before you touch a real one. The picker itself decides, with a virtual clock;
the model servers are simulated. Minutes of traffic take seconds.
"""

_MORE = "docs/lab.md says how it works and how far to trust it."

_EPILOG = f"""\
examples, with what they take on two free cores:
  epp lab run --workload azure-conv --pool h100x4 --load 0.8    one load, usual policies: 15 seconds
  epp lab sweep --workload azure-conv --pool h100x4     how much each policy can carry within the targets: 2 minutes
  epp lab faults --policies ours,lmetric                while servers die, slow, restart and join
  epp lab table --quick             every workload, a few policies: a minute or two
  epp lab table                     every workload and policy: half an hour
  epp lab table --workloads held-out    three more, on which nothing was tuned: half an hour
  epp lab fit --url http://10.0.0.1:8000 --model llama --out server.json
  epp lab run --pool server.jsonx4  that server, four times
  epp lab list                      workloads, policies, shapes of servers

`epp lab COMMAND --help` has examples of each. {_MORE}
"""

_RUN_EXAMPLES = f"""\
examples:
  epp lab run --workload azure-conv --pool h100x4 --load 0.8
  epp lab run --workload b2b-saas --pool h100x2+a100x2 --policies ours,lmetric,oracle --load 0.8,1.0 --seeds 3
  epp lab run --trace trace.jsonl --rate 12 --pool server.jsonx3 --policies ours --config mine.yaml
                                    traffic that `epp serve --record-trace` recorded, at its own rate
  epp lab run --trace AzureLLMInferenceTrace_conv.csv --pool h100x4 --load 0.8 --report out.html
                                    a public one, "Azure LLM inference trace 2023": not part of this project
  epp lab run --workload azure-conv --pool h100x4 --load 0.6 --fault slow2x@20s --metrics-interval 5s

{_MORE}
"""

_SWEEP_EXAMPLES = f"""\
examples:
  epp lab sweep --workload azure-conv --pool h100x4     one workload, seven policies: some 4 minutes of CPU
  epp lab sweep --policies ours,lmetric --scale 0.1     a first look, in half a minute
  epp lab sweep --trace trace.jsonl --pool server.jsonx4 --policies ours --config mine.yaml
                                    how much more of your own traffic one carries than the other
  epp lab sweep --workload held-out --policies ours,lmetric --seeds 3

{_MORE}
"""

_TABLE_EXAMPLES = f"""\
examples, with what they take on two free cores:
  epp lab table                     half an hour
  epp lab table --quick             a minute or two
  epp lab table --workloads held-out    half an hour
  epp lab table --workloads held-out --policies ours,lmetric --loads 0.8 --seeds 1
                                    a first look at these: half a minute
  epp lab table --pool h100x3+l40sx3 --policies ours,lmetric --loads 0.8    on a pool of yours: a minute

{_MORE}
"""

_FAULTS_EXAMPLES = f"""\
examples:
  epp lab faults --policies ours,lmetric
  epp lab faults --workload rag --pool h100x8 --load 0.7 --policies ours,llm-d-default --json faults.json
  epp lab faults --trace trace.jsonl --pool server.jsonx4 --policies ours --config mine.yaml --rate 12

{_MORE}
"""


_COLUMNS = """\
columns, times in ms, of requests that come after the first quarter of a run:
  attained     requests that kept both targets
  hits         tokens of prompts that were in a server's prefix cache
  imbalance    variation of the time that servers computed, from 0 (all alike)
  regret       what the oracle attains more; below 0: less, as where most is lost
  shares       the least and the most of the requests that one server had
  predictions  of policies that predict: mean relative error, pinball loss in ms, how many actual values the bounds
               cover, and after how many requests the trees are better than the closed-form law
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
    _add_sweep(actions)
    _add_table(actions)
    _add_faults(actions)
    add_fit(actions)
    listing = actions.add_parser("list", help="print workloads, policies and shapes of servers")
    listing.set_defaults(run=_list)


def _add_run(actions: Any) -> None:
    run = actions.add_parser(
        "run",
        help="run policies at one or several loads, and print a table",
        description="Run policies at one or several loads, and print a table. Same flags, same figures.",
        epilog=f"{_COLUMNS}\n{_RUN_EXAMPLES}",
    )
    run.set_defaults(run=_run)
    add_scene(run)
    add_how_many(run, loads, "0.8", "X[,X…]")
    run.add_argument("--fault", type=utf8, action="append", default=[], metavar="FAULT", help=_FAULT_HELP)
    add_outputs(run)


_FAULT_HELP = """\
what befalls the first server: kill@T+D (dies, back after D with an empty cache), restart@T+D, slow2x@T[+D] (to the
end without D), fail@T+D (answers 500), add@T (one more joins); else D is 15s unless given. May be given again: each
add@T is another server; of the rest only slow and fail may be at once"""


def _run(arguments: argparse.Namespace) -> int:
    from epp.lab.comparison import compare, specs_of

    keep_apart(arguments)
    pair, policies, like = scene_of(arguments), policies_of(arguments), like_of(arguments)
    print_trace(arguments)
    knees, wanted = rates_of(arguments, pair, arguments.load)
    specs = specs_of([pair], policies, wanted, arguments.seeds, knees, like)
    warn_of_trace(arguments, [spec.rate_rps for spec in specs])
    rows = compare(specs, knees if arguments.rate is None else {}, jobs_of(arguments))
    write_out(rows, arguments)
    return 0


def _add_sweep(actions: Any) -> None:
    sweep = actions.add_parser(
        "sweep",
        help="find each policy's goodput, the highest rate at which requests keep their targets, and its own knee",
        description="Find each policy's goodput: the highest rate at which 90 % and 99 % of the requests keep both\n"
        "targets, by halving, as a share of the knee. And its own knee: what it answers when more comes than it can\n"
        "do. One workload with the default policies takes some 4 minutes of CPU.",
        epilog=_SWEEP_EXAMPLES,
    )
    sweep.set_defaults(run=_sweep)
    add_scene(sweep, several=True)
    sweep.add_argument("--scale", type=above_zero, default=1.0, metavar="X", help=_SCALE_HELP)
    sweep.add_argument("--json", type=new_file, metavar="FILE", help="also write what was measured there")
    sweep.add_argument("--report", type=report_file, metavar="FILE", help="also write one HTML page with plots")
    sweep.add_argument("--markdown", action="store_true", help="print the tables as Markdown")


_SCALE_HELP = """\
length of runs for goodput, times the usual one (default 1);
in short ones queues have no time to grow, so goodputs are too high"""


def _sweep(arguments: argparse.Namespace) -> int:
    from epp.lab.comparison import knees_of
    from epp.lab.sweep import sweep
    from epp.lab.table import POOL, goodput_table, pairs_on

    keep_apart(arguments)
    if not arguments.streamed:
        raise Problem("--streamed 0: only answers that stream keep targets, so there is no goodput without one")
    pool = None if arguments.pool == POOL else arguments.pool
    group = group_of(arguments)
    pairs = [scene_of(arguments)] if group is None else list(pairs_on(pool, tuple(group)))
    policies, like, jobs = policies_of(arguments), like_of(arguments), jobs_of(arguments)
    print_trace(arguments)
    knees = knees_of(pairs, jobs)
    warn_of_trace(arguments, list(knees.values()))
    goodputs = sweep(pairs, policies, arguments.seeds, knees, like, jobs, arguments.scale)
    print(goodput_table(goodputs, arguments.markdown))
    print_failures((g.policy, g.failing_plugins) for g in goodputs)
    if arguments.json is not None:
        write_json(arguments.json, [g.plain() for g in goodputs])
    if arguments.report is not None:
        from epp.lab.html_report import html_sweep

        write(arguments.report, html_sweep(goodputs, origin_of(arguments)).encode())
    return 0


def _add_table(actions: Any) -> None:
    table = actions.add_parser(
        "table",
        help="the full table: all workloads, mixed hardware, all policies, four loads, three seeds",
        description="All workloads on four H100, and one on mixed hardware; all policies;\n"
        "loads 0.5, 0.8, 1.0 and 1.2; three seeds. About half an hour on two free cores.\n"
        "Three more, on which nothing was tuned, are there with --workloads held-out, in half an hour, too.",
        epilog=_TABLE_EXAMPLES,
    )
    table.set_defaults(run=_table)
    table.add_argument(
        "--quick",
        action="store_true",
        help="six policies, the oracle and always-busiest, two loads, short runs, one seed: a minute or two on two "
        "free cores",
    )
    table.add_argument(
        "--policies", type=names, metavar="A[,B…]", help="only these; `all` for all, files of your own too"
    )
    table.add_argument(
        "--pool", type=utf8, metavar="POOL", help="all of it on this one instead, e.g. a100x6 or h100x3+l40sx3"
    )
    table.add_argument(
        "--workloads",
        type=names,
        metavar="A[,B…]",
        help="only these; `held-out`: those that `epp lab list` has under this name, which are not in the full table",
    )
    table.add_argument("--loads", type=loads, metavar="X[,X…]", help="only these")
    table.add_argument("--seeds", type=seeds, metavar="N", help="runs of each")
    table.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one per core)")
    add_outputs(table)


def _table(arguments: argparse.Namespace) -> int:
    from epp.lab import table
    from epp.lab.comparison import compare, knees_of, specs_of
    from epp.lab.runs import policy_of, workload_of
    from epp.lab.spec import RunSpec
    from epp.lab.workloads.catalogue import GROUPS, by_name

    keep_apart(arguments)
    quick = arguments.quick
    policies = arguments.policies or (table.QUICK_POLICIES if quick else table.ALL_POLICIES)
    if "all" in policies:
        policies = table.ALL_POLICIES
    for name in policies:
        policy_of(name)
    wanted = [one for name in arguments.workloads or ("all",) for one in GROUPS.get(name, (name,))]
    for name in wanted:
        workload_of(name)
        if by_name(name) is None:
            raise Problem(f"--workloads {name}: a trace is for `epp lab run --trace`, not for the table")
    pairs = table.pairs_on(arguments.pool, [name for group in GROUPS.values() for name in group if name in wanted])
    jobs = jobs_of(arguments)
    knees = knees_of(pairs, jobs)
    specs = specs_of(
        pairs,
        policies,
        arguments.loads or (table.QUICK_LOADS if quick else table.LOADS),
        arguments.seeds or (1 if quick else table.SEEDS),
        knees,
        RunSpec(workload="", pool="", policy="", rate_rps=0.0, duration_s=0.0),
        table.QUICK_SCALE if quick else table.SCALE,
    )
    write_out(compare(specs, knees, jobs), arguments, table.summary)
    return 0


def _add_faults(actions: Any) -> None:
    faults = actions.add_parser(
        "faults",
        help="the same run while a server dies, slows, restarts or joins, and with metrics that are seldom read",
        description="The same run in nine scenes: nothing wrong; a server dies, slows twofold, restarts empty, joins;\n"
        "metrics pages read every 50 ms, 500 ms, 5 s and never. What is attained, and how soon it has recovered.",
        epilog=_FAULTS_EXAMPLES,
    )
    faults.set_defaults(run=_faults)
    add_scene(faults)
    add_how_many(faults, above_zero, "0.6", "X")
    faults.add_argument("--json", type=new_file, metavar="FILE", help="also write every result there")
    faults.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def _faults(arguments: argparse.Namespace) -> int:
    from epp.lab.comparison import specs_of
    from epp.lab.faults import faults_table, run_scenes

    keep_apart(arguments)
    pair, policies, like = scene_of(arguments), policies_of(arguments), like_of(arguments)
    print_trace(arguments)
    knees, wanted = rates_of(arguments, pair, [arguments.load])
    specs = specs_of([pair], policies, wanted, arguments.seeds, knees, like)
    warn_of_trace(arguments, [spec.rate_rps for spec in specs])
    found = run_scenes(specs, jobs_of(arguments))
    print(faults_table(found, arguments.markdown))
    print_failures((row.policy, r.plugin_failures) for _, rows in found for row in rows for r in row.results)
    if arguments.json is not None:
        write_json(arguments.json, [r.plain() for _, rows in found for row in rows for r in row.results])
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from epp.lab import oracle
    from epp.lab.policies.catalogue import POLICIES
    from epp.lab.pools import ENGINES, SHORT
    from epp.lab.workloads.catalogue import GROUPS

    for group, workloads in GROUPS.items():
        print("workloads" if group == "all" else f"workloads, {group}: nothing was tuned on them")
        for workload in workloads.values():
            targets = f"targets: TTFT {workload.targets.ttft_ms:g} ms, TPOT {workload.targets.tpot_ms:g} ms"
            print(f"  {workload.name:26} {workload.about}; {targets}")
    print("policies")
    for policy in (*POLICIES.values(), oracle.policy_of()):
        print(f"  {policy.name:26} {policy.about}")
    print("shapes of servers")
    for name, engine in ENGINES.items():
        known_as = ", ".join((name, *(short for short, full in SHORT.items() if full == name)))
        print(f"  {known_as:26} {engine.kv_blocks * engine.block_tokens:,} tokens of KV cache")
    return 0
