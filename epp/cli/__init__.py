"""The `epp` command. It reads flags, calls one function, and turns a `Problem` into one clear line and exit code 2."""

import argparse
import io
import os
import select
import shlex
import sys
from collections.abc import Callable, Sequence

from epp import __version__
from epp.cli.check import add_check
from epp.cli.conformance import add_conformance
from epp.cli.demo import add_demo
from epp.cli.flags import Parser
from epp.cli.lab import add_lab
from epp.cli.model import add_model
from epp.cli.predictor import add_predictor
from epp.cli.serve import add_serve
from epp.compiled import build_in_words
from epp.problem import Problem

EXIT_PROBLEM = 2
EXIT_NO_READER = 141
"""As a shell says it of who was ended by SIGPIPE."""

_DESCRIPTION = """\
Headroom is an endpoint picker for LLM inference: Envoy asks it over ext_proc which model server should get a request.
"""

_EPILOG = """\
examples:
  epp demo                          see it work: Envoy, the picker and simulated model servers on loopback
  epp check --config-file c.yaml    validate a configuration and print the pipeline that it makes
  epp serve --endpoints 10.0.0.1:8000,10.0.0.2:8000
                                    run the picker for two model servers, with the built-in configuration

`epp COMMAND --help` explains each command. Configuration files are llm-d's EndpointPickerConfig.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `epp` with these arguments (`None`: the process's own). Returns the exit code."""
    _print_whatever_comes()
    try:
        try:
            return _run(argv)
        finally:
            print(end="", flush=True)  # so that it is known here whether somebody reads it
    except OSError as error:
        gone = isinstance(error, BrokenPipeError) and _reader_is_gone()
        lost = None if gone else _lost_output()
        if not gone and lost is None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        if gone:
            return EXIT_NO_READER
        print(f"standard output cannot be written: {lost}", file=sys.stderr)
        return EXIT_PROBLEM


def _run(argv: Sequence[str] | None) -> int:
    try:
        given = sys.argv[1:] if argv is None else list(argv)
        arguments, unknown = _parser().parse_known_args(given)
        arguments.command_line = shlex.join(["epp", *given])
        if unknown:
            raise Problem(f"{arguments.prog}: unknown: {' '.join(unknown)} (see {arguments.prog} --help)")
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return EXIT_PROBLEM
    except KeyboardInterrupt:
        return 130


def _print_whatever_comes() -> None:
    """What an encoding has no letter for, in words of ours or in a file's name, is printed as its code."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _lost_output() -> str | None:
    """Why what we have printed cannot be written, as on a full disk; `None`: it can be."""
    try:
        print(end="", flush=True)  # what could not be written is kept, and fails again
    except OSError as error:
        return error.strerror
    return None


def _reader_is_gone() -> bool:
    """Whether our output goes nowhere, as with `| head`: a pipe broke, and it was not one of the network's."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except (OSError, TypeError, ValueError):
        return False  # no file behind it
    return bool(poll.poll(0))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="epp", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"headroom-epp {__version__} ({build_in_words()})")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    add_serve(commands)
    add_check(commands)
    add_demo(commands)
    add_conformance(commands)
    add_lab(commands)
    add_model(commands)
    add_predictor(commands)
    return parser
