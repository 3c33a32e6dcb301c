"""`epp conformance`: does an endpoint picker, ours or another, keep to the protocol?"""

import argparse
from pathlib import Path
from typing import Any

from epp.cli.flags import add_duration, positive, size
from epp.files import keep_apart, new_file
from epp.problem import Problem

_DESCRIPTION = """\
Hold an endpoint picker to its protocol. A stub of Envoy's ext_proc filter talks to it in every way in which Envoy may,
and each clause of the protocol is a check with a name and a level. Any picker can be the target.

A clause that the target is not known to be set up for is skipped, and says which flag it takes. The target should serve
nobody else meanwhile: some checks fill it with requests that never reach a model server.
"""

_EPILOG = """\
exit code:
  0  every MUST that could be checked is kept       1  a MUST is broken       2  the command line or the target is wrong

It needs the extra packages of `pip install '.[conformance]'`.

examples:
  epp conformance --target 127.0.0.1:9002 --endpoints 10.0.0.1:8000,10.0.0.2:8000
  epp conformance --target 127.0.0.1:9002 --plaintext --only subset --only 'modes-*'
  epp conformance --target unix:/run/epp.sock --record talk.jsonl
  epp conformance --target 127.0.0.1:9002 --replay talk.jsonl
  epp conformance --list

A picker for which no clause is skipped, but for --pid:
  epp serve --endpoints 10.0.0.1:8000,10.0.0.1:8001,[fd00::1]:8000 --objective batch=-1 --emit-endpoint-scores \\
    --config-file conformance.yaml      # with header-based-testing-filter and destination-endpoint-served-verifier
  epp conformance --target 127.0.0.1:9002 --endpoints 10.0.0.1:8000,10.0.0.1:8001,[fd00::1]:8000 --test-plugins \\
    --destinations 1 --sheddable-objective batch --max-request-body 32Mi --health 127.0.0.1:9003 \\
    --metrics http://127.0.0.1:9090/metrics
"""


def add_conformance(commands: Any) -> None:
    parser = commands.add_parser(
        "conformance",
        help="hold an endpoint picker to its protocol",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(run=_run)

    target = parser.add_argument_group("the target")
    target.add_argument("--target", metavar="HOST:PORT", help="where it serves ext_proc; or unix:PATH")
    tls = target.add_mutually_exclusive_group()
    tls.add_argument("--tls", action="store_true", default=True, help="with TLS, any certificate (default)")
    tls.add_argument("--plaintext", dest="tls", action="store_false", help="without TLS")
    target.add_argument("--health", metavar="HOST:PORT", help="its health port, plaintext")
    target.add_argument("--metrics", metavar="URL", help="its Prometheus page")
    target.add_argument(
        "--pid", type=positive, metavar="N", help="its process, for the check of how it drains: ends it"
    )

    setup = parser.add_argument_group("how it is set up")
    setup.add_argument("--endpoints", metavar="HOST:PORT,…", help="the pool that it is configured for")
    setup.add_argument("--destinations", type=positive, metavar="N", help="how many endpoints it names per request")
    setup.add_argument("--max-request-body", type=size, metavar="SIZE", help="the largest request body it takes")
    setup.add_argument("--sheddable-objective", metavar="NAME", help="an objective of negative priority")
    setup.add_argument(
        "--saturating-streams",
        type=positive,
        default=64,
        metavar="N",
        help="so many requests in flight saturate its pool (default %(default)s)",
    )
    setup.add_argument("--test-plugins", action="store_true", help="it runs the conformance test plugins")

    run = parser.add_argument_group("the run")
    run.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="checks whose name or group matches; repeatable"
    )
    add_duration(run, "--timeout", 10.0, "for each reply that Envoy waits for")
    run.add_argument("--json", type=new_file, metavar="FILE", help="write the results as JSON too")
    run.add_argument("--record", type=new_file, metavar="FILE", help="record every conversation, bodies and all")
    run.add_argument("--replay", type=Path, metavar="FILE", help="instead of the checks: replay recorded conversations")
    run.add_argument("--list", action="store_true", help="print the clauses as Markdown and end")


def _run(arguments: argparse.Namespace) -> int:
    _refuse_what_has_no_effect(arguments)
    keep_apart([("--json", arguments.json), ("--record", arguments.record)])
    try:
        from epp.conformance.check import Expectations
        from epp.conformance.command import Options, clauses, conformance, replay_recorded
        from epp.conformance.connection import Target
    except ModuleNotFoundError as error:
        raise Problem(
            f"{error.name} is not installed; pip install 'headroom-epp[conformance]' (in a checkout: '.[conformance]')"
        ) from error

    if arguments.list:
        print(clauses(), end="")
        return 0
    if arguments.target is None:
        raise Problem("epp conformance: --target HOST:PORT is needed (see epp conformance --help)")
    target = Target.parse(arguments.target, tls=arguments.tls)
    if arguments.replay is not None:
        return replay_recorded(arguments.replay, target, arguments.timeout)
    return conformance(
        Options(
            target=target,
            known=Expectations(
                pool=[entry.strip() for entry in (arguments.endpoints or "").split(",") if entry.strip()],
                destinations=arguments.destinations,
                max_body_bytes=arguments.max_request_body,
                sheddable_objective=arguments.sheddable_objective,
                saturating_streams=arguments.saturating_streams,
                test_plugins=arguments.test_plugins,
                health=Target.parse(arguments.health, tls=False) if arguments.health is not None else None,
                metrics_url=arguments.metrics,
                pid=arguments.pid,
            ),
            only=arguments.only,
            json_file=arguments.json,
            record_file=arguments.record,
            timeout_s=arguments.timeout,
        )
    )


def _refuse_what_has_no_effect(arguments: argparse.Namespace) -> None:
    """Raises `Problem` for flags about checks where none are made."""
    of_checks = ("only", "json", "record")
    for instead, others in (("list", ("replay", *of_checks)), ("replay", of_checks)):
        given = [f"--{name}" for name in others if getattr(arguments, name)]
        if getattr(arguments, instead) and given:
            raise Problem(
                f"epp conformance: {' and '.join(given)} would have no effect beside --{instead}, "
                "which makes no checks: leave out the one or the other"
            )
