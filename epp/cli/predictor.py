"""`epp predictor`: the latency predictor as a server of its own."""

import argparse
import os
from typing import Any

from epp.cli.flags import Parser, number, port
from epp.problem import Problem

_DESCRIPTION = """\
Serve latency predictions over HTTP, with the API of llm-d's training and prediction servers, so that llm-d's picker, or
several of ours, learn together. Both ports serve the whole API; they are two because llm-d's are two servers.

`epp serve` needs none of this: it predicts in its own process. See --training-server-url there and here.
"""

_EPILOG = """\
environment, as for llm-d's servers; flags come first:
  LATENCY_OBJECTIVE_TYPE   quantile (default) or mean: what ttft_ms and tpot_ms are
  LATENCY_QUANTILE_ALPHA   the quantile (default 0.9)

examples:
  epp predictor serve --model-file /var/lib/epp/latency.model
                                            in the place of both of llm-d's servers
  epp predictor serve --training-port off --training-server-url http://trainer:8000
                                            one of many prediction servers; it takes its model from the trainer

Until it has learned from real requests it answers 503, and a picker goes by its heuristic.
"""


def add_predictor(commands: Any) -> None:
    predictor = commands.add_parser(
        "predictor", help="serve latency predictions to other pickers", description=_DESCRIPTION, epilog=_EPILOG
    )
    actions = predictor.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    serve = actions.add_parser(
        "serve", help="run the training and prediction server", description=_DESCRIPTION, epilog=_EPILOG
    )
    serve.set_defaults(run=_run)

    ports = serve.add_argument_group("ports")
    ports.add_argument("--host", default="0.0.0.0", help="address to bind (default %(default)s)")
    for flag, default, what in (("--training-port", 8000, "training"), ("--prediction-port", 8001, "prediction")):
        ports.add_argument(
            flag,
            type=_port_or_off,
            default=default,
            metavar="PORT",
            help=f"for clients of the {what} server (default {default}; 0: any free one; off: none)",
        )
    ports.add_argument("--ports-file", metavar="FILE", help="write the ports really bound here as JSON, once serving")

    model = serve.add_argument_group("the model")
    model.add_argument(
        "--model-file", metavar="FILE", help="keep what was learned here (default: in memory only); see epp model"
    )
    model.add_argument(
        "--training-server-url",
        metavar="URL",
        help="with --training-port off: another `epp predictor serve` that trains; take its model, and hand on what "
        "is to be learned (default: $TRAINING_SERVER_URL; none: train here)",
    )
    model.add_argument("--objective", choices=["quantile", "mean"], help="what ttft_ms and tpot_ms are")
    model.add_argument("--quantile", type=_quantile, metavar="Q", help="between 0 and 1, for --objective quantile")

    logs = serve.add_argument_group("logs")
    logs.add_argument(
        "-v", "--v", dest="verbosity", type=int, default=2, metavar="N", help="0 errors … 2 default, 4 debug"
    )
    logs.add_argument("--zap-encoder", choices=["json", "console"], default="json", help="log format (default json)")


def _run(arguments: argparse.Namespace) -> int:
    from epp.cli.serve import training_url
    from epp.predictor.app import PredictorServerOptions, serve

    if arguments.training_port is None and arguments.prediction_port is None:
        raise Problem("epp predictor serve: --training-port and --prediction-port are both off; nothing to serve")
    trains = arguments.training_port is not None
    if trains and arguments.training_server_url is not None:
        raise Problem("--training-server-url: a training server trains by itself; say --training-port off as well")
    return serve(
        PredictorServerOptions(
            host=arguments.host,
            training_port=arguments.training_port,
            prediction_port=arguments.prediction_port,
            model_file=arguments.model_file,
            training_server_url=None if trains else training_url(arguments.training_server_url),
            quantile=_asked_quantile(arguments.objective, arguments.quantile),
            ports_file=arguments.ports_file,
            verbosity=arguments.verbosity,
            log_format="json" if arguments.zap_encoder == "json" else "text",
        )
    )


def _asked_quantile(objective: str | None, quantile: float | None) -> float | None:
    """`None` is the mean. Raises `Problem` for what the environment says."""
    objective = objective or os.environ.get("LATENCY_OBJECTIVE_TYPE") or "quantile"
    if objective not in ("quantile", "mean"):
        raise Problem(f"LATENCY_OBJECTIVE_TYPE: {objective!r} is not quantile or mean")
    if objective == "mean":
        return None
    if quantile is not None:
        return quantile
    try:
        return _quantile(os.environ.get("LATENCY_QUANTILE_ALPHA") or "0.9")
    except argparse.ArgumentTypeError as error:
        raise Problem(f"LATENCY_QUANTILE_ALPHA: {error}") from None


def _quantile(text: str) -> float:
    value = number(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return value


def _port_or_off(text: str) -> int | None:
    return None if text == "off" else port(text)
