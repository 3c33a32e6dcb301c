"""`epp demo`: everything together on one machine."""

import argparse
from typing import Any

from epp.cli.flags import positive
from epp.config.builtins import BUILT_INS

DEMO_PROFILE = "predicted-latency"


def add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="see it work: Envoy, the picker and simulated model servers on loopback",
        description="Start a real Envoy, the picker and a pool of simulated model servers on loopback, send\n"
        "mixed requests through Envoy and print what happened. At the end, or at Ctrl-C, all of it is stopped.",
    )
    demo.set_defaults(run=_run)
    demo.add_argument("--serve", action="store_true", help="keep running afterwards, and print a curl line to try")
    demo.add_argument(
        "--servers", type=positive, default=4, metavar="N", help="simulated model servers (default %(default)s)"
    )
    demo.add_argument(
        "--requests", type=positive, default=400, metavar="N", help="requests to send (default %(default)s)"
    )
    config = demo.add_mutually_exclusive_group()
    config.add_argument("--config-file", metavar="FILE", help="EndpointPickerConfig to run instead")
    config.add_argument(
        "--profile",
        choices=list(BUILT_INS),
        default=DEMO_PROFILE,
        help="a configuration that comes with the picker, as of `epp serve` (default %(default)s)",
    )
    demo.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of traffic and picker (default %(default)s)"
    )


def _run(arguments: argparse.Namespace) -> int:
    from epp.sim.demo import DemoOptions, demo

    return demo(
        DemoOptions(
            servers=arguments.servers,
            requests=arguments.requests,
            config_file=arguments.config_file,
            profile=arguments.profile,
            keep_running=arguments.serve,
            seed=arguments.seed,
        )
    )
