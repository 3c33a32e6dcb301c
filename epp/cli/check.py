"""`epp check`: is this configuration one that would serve, and what does it make?"""

import argparse
from typing import Any

from epp.config.builtins import BUILT_INS

_EPILOG = """\
examples:
  epp check --config-file epp.yaml
  epp check --profile headroom
  epp check --profile headroom --print > mine.yaml      to start a configuration of your own from
"""


def add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="validate a configuration and print the pipeline that it makes",
        description="Validate a configuration without starting anything, and print the pipeline that it makes.\n"
        "The endpoints file of a file-discovery is read, too: after the pipeline, so that this is seen in any case.\n"
        "Exit code 0: it would serve. 2: it would not; each line on stderr names file, line, key and the fix.",
        epilog=_EPILOG,
    )
    check.set_defaults(run=_run)
    source = check.add_mutually_exclusive_group()
    source.add_argument(
        "--config-file", metavar="FILE", help="EndpointPickerConfig, YAML or JSON; without it the built-in one"
    )
    source.add_argument("--config-text", metavar="TEXT", help="the same, as text")
    source.add_argument("--profile", choices=list(BUILT_INS), help="one that comes with the picker, as of `epp serve`")
    check.add_argument(
        "--print", action="store_true", help="print the configuration itself, to copy, instead of its pipeline"
    )


def _run(arguments: argparse.Namespace) -> int:
    from epp.config.describe import describe
    from epp.ledger import Ledger
    from epp.scheduling.plugin import Services
    from epp.server.configuration import build_config, text_of
    from epp.server.pool_source import read_endpoints_file

    source = text_of(arguments.config_file, arguments.config_text, arguments.profile)
    config = build_config(source, Services(ledger=Ledger()))
    if arguments.print:
        print(source.text, end="")
    else:
        print(describe(config))
    endpoints = read_endpoints_file(config.discovery)
    if endpoints is not None and not arguments.print:
        print(f"endpoints: {endpoints}")
    return 0
