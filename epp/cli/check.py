"""`epp check`: is this configuration one that would serve, and what does it make?"""

import argparse
from typing import Any

from epp.config.builtins import BUILT_INS


def add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="validate a configuration and print the pipeline that it makes",
        description="Validate a configuration without starting anything, and print the pipeline that it makes.\n"
        "Exit code 0: it would serve. 2: it would not; each line on stderr names file, line, key and the fix.",
    )
    check.set_defaults(run=_run)
    source = check.add_mutually_exclusive_group()
    source.add_argument(
        "--config-file", metavar="FILE", help="EndpointPickerConfig, YAML or JSON; without it the built-in one"
    )
    source.add_argument("--config-text", metavar="TEXT", help="the same, as text")
    source.add_argument("--profile", choices=list(BUILT_INS), help="one that comes with the picker, as of `epp serve`")


def _run(arguments: argparse.Namespace) -> int:
    from epp.server.configuration import check

    print(check(arguments.config_file, arguments.config_text, arguments.profile))
    return 0
