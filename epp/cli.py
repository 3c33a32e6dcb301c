"""The `epp` command. It reads flags, calls one function, and turns a `Problem` into one clear line and exit code 2."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from epp import __version__
from epp.problem import Problem
from epp.server.options import ServeOptions
from epp.units import parse_duration_s, parse_size_bytes

EXIT_PROBLEM = 2

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

_SERVE_DESCRIPTION = """\
Run the picker. It serves ext_proc on --grpc-port, health on --grpc-health-port, metrics and debug pages on
--metrics-port.

Which model servers there are comes from --endpoints, or from a discovery plugin in the configuration (file-discovery).
How one is chosen comes from --config-file; without one the built-in configuration is used, which is llm-d's default:
queue-scorer 2, kv-cache-utilization-scorer 2, prefix-cache-scorer 3, highest score wins.
"""

_SERVE_EPILOG = """\
examples:
  epp serve --endpoints 10.0.0.1:8000,10.0.0.2:8000
  epp serve --config-file epp.yaml --cert-path /etc/epp/tls --enable-cert-reload
  epp serve --endpoints 127.0.0.1:8000 --secure-serving=false --grpc-socket /run/epp.sock

Then point Envoy at it: envoy/recommended.yaml is a bootstrap to start from.
Flags may be written --flag=value or --flag value, booleans also as --flag alone.
"""

# llm-d flags whose thing does not exist here (yet). A value in the set says "off" and is accepted, so that a command
# line can be carried over; anything else is refused by name rather than ignored.
_UNAVAILABLE_FLAGS: dict[str, tuple[frozenset[str], str]] = {
    "--pool-namespace": (frozenset(), "Kubernetes discovery is not in this version; use --endpoints or file-discovery"),
    "--pool-group": (frozenset(), "Kubernetes discovery is not in this version; use --endpoints or file-discovery"),
    "--endpoint-selector": (
        frozenset(),
        "Kubernetes discovery is not in this version; use --endpoints or file-discovery",
    ),
    "--endpoint-target-ports": (
        frozenset(),
        "Kubernetes discovery is not in this version; use --endpoints or file-discovery",
    ),
    "--ha-enable-leader-election": (frozenset({"false"}), "leader election is not in this version; remove the flag"),
    "--tracing": (frozenset({"false"}), "tracing is not in this version; remove the flag or say --tracing=false"),
    "--metrics-endpoint-auth": (
        frozenset({"false"}),
        "the metrics port has no authentication in this version; say --metrics-endpoint-auth=false and guard it",
    ),
    "--metrics-cert-dir": (frozenset(), "TLS on the metrics port is not in this version; remove the flag"),
    "--metrics-client-ca-file": (frozenset(), "TLS on the metrics port is not in this version; remove the flag"),
    "--enable-pprof": (frozenset({"false"}), "there is no pprof in a Python process; remove the flag"),
    "--tls-min-version": (frozenset(), "gRPC's own minimum (TLS 1.2) applies; remove the flag"),
    "--tls-cipher-suites": (frozenset(), "gRPC's own cipher suites apply; remove the flag"),
    "--total-queued-requests-metric": (frozenset(), "use engineConfigs of core-metrics-extractor in the configuration"),
    "--total-running-requests-metric": (
        frozenset(),
        "use engineConfigs of core-metrics-extractor in the configuration",
    ),
    "--kv-cache-usage-percentage-metric": (
        frozenset(),
        "use engineConfigs of core-metrics-extractor in the configuration",
    ),
    "--lora-info-metric": (frozenset(), "use engineConfigs of core-metrics-extractor in the configuration"),
    "--cache-info-metric": (frozenset(), "use engineConfigs of core-metrics-extractor in the configuration"),
}
# Accepted without effect: health is always served on both ports, messages are sent at any size, and of zap's flags only
# level and encoder mean something here.
_IGNORED_FLAGS = (
    "--health-checking",
    "--zap-devel",
    "--zap-stacktrace-level",
    "--zap-time-encoding",
    "--grpc-max-send-msg-size",
)
_ZAP_LEVELS = {"error": 0, "warn": 1, "info": 2, "debug": 4}


class _Parser(argparse.ArgumentParser):
    """Flags are never abbreviated, and a mistake is one line that says where to read more."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> Any:
        raise Problem(f"{self.prog}: {message} (see {self.prog} --help)")


class _Refuse(argparse.Action):
    """A flag that llm-d has and we do not."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, option: str | None = None
    ) -> None:
        accepted, advice = _UNAVAILABLE_FLAGS[str(option)]
        if str(values).lower() not in accepted:
            parser.error(f"{option}: {advice}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `epp` with these arguments (`None`: the process's own). Returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return EXIT_PROBLEM
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="epp", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"headroom-epp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    _add_serve(commands)
    _add_check(commands)
    _add_demo(commands)
    return parser


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="run the picker", description=_SERVE_DESCRIPTION, epilog=_SERVE_EPILOG)
    serve.set_defaults(run=_serve)
    d = ServeOptions()

    pool = serve.add_argument_group("the pool")
    pool.add_argument("--endpoints", metavar="HOST:PORT,…", help="the model servers; IPv6 in brackets: [fd00::1]:8000")
    pool.add_argument(
        "--pool-name", default=d.pool_name, metavar="NAME", help="label of pool metrics (default %(default)s)"
    )

    config = serve.add_argument_group("the configuration").add_mutually_exclusive_group()
    config.add_argument("--config-file", metavar="FILE", help="EndpointPickerConfig, YAML or JSON")
    config.add_argument("--config-text", metavar="TEXT", help="the same, as text")

    _add_bool(
        serve, "--allow-experimental-plugins", d.allow_experimental_plugins, "do not log that a plugin is experimental"
    )

    ports = serve.add_argument_group("ports")
    ports.add_argument("--host", default=d.host, help="address to bind (default %(default)s)")
    _add_port(ports, "--grpc-port", d.grpc_port, "ext_proc")
    _add_port(ports, "--grpc-health-port", d.grpc_health_port, "gRPC health, plaintext")
    _add_port(ports, "--metrics-port", d.metrics_port, "/metrics, /healthz, /debug/state")
    ports.add_argument("--grpc-socket", metavar="PATH", help="serve ext_proc on this Unix socket too, plaintext")
    ports.add_argument("--ports-file", metavar="FILE", help="write the ports really bound here as JSON, once serving")

    tls = serve.add_argument_group("TLS")
    _add_bool(tls, "--secure-serving", d.secure_serving, "TLS on --grpc-port; self-signed without --cert-path")
    tls.add_argument("--cert-path", metavar="DIR", help="directory with tls.crt and tls.key")
    _add_bool(tls, "--enable-cert-reload", d.enable_cert_reload, "read the certificate again when its files change")

    limits = serve.add_argument_group("limits")
    _add_size(limits, "--grpc-max-recv-msg-size", d.max_message_bytes, "largest gRPC message to receive")
    _add_size(limits, "--max-request-body", d.max_request_body_bytes, "largest request body; beyond it 413")
    _add_duration(
        limits, "--request-timeout", d.request_timeout_s, "from a request's headers to the end of its body; then 408"
    )
    _add_duration(limits, "--drain-timeout", d.drain_timeout_s, "after SIGTERM: how long new streams are still served")

    signals = serve.add_argument_group("signals")
    _add_duration(
        signals,
        "--refresh-metrics-interval",
        d.scrape_interval_s,
        "between two reads of a metrics page (at least 50ms)",
    )
    _add_duration(signals, "--metrics-staleness-threshold", d.staleness_s, "older scrapes do not count in pool gauges")
    _add_duration(
        signals, "--refresh-prometheus-metrics-interval", d.pool_gauges_interval_s, "refresh of our own pool gauges"
    )
    _add_bool(
        signals, "--enable-grpc-stream-metrics", d.stream_metrics, "count ext_proc streams and how long they live"
    )
    _add_bool(signals, "--legacy-metrics", d.legacy_metrics, "write every family under its older name as well")

    routing = serve.add_argument_group("routing")
    routing.add_argument(
        "--objective",
        action="append",
        default=[],
        metavar="NAME=PRIORITY",
        help="priority of requests that name this objective in a header; below 0 may be shed; repeatable",
    )
    _add_bool(routing, "--disable-endpoint-subset-filter", not d.use_subset, "ignore the proxy's subset hint")
    _add_bool(
        routing, "--emit-endpoint-scores", d.emit_scores, "put every candidate's score into the envoy.lb metadata"
    )
    routing.add_argument("--seed", type=int, metavar="N", help="seed of the random generator, to repeat a run")

    logs = serve.add_argument_group("logs")
    logs.add_argument(
        "-v", "--v", dest="verbosity", type=int, default=d.verbosity, metavar="N", help="0 errors … 2 default, 4 debug"
    )
    logs.add_argument("--zap-log-level", choices=sorted(_ZAP_LEVELS), help="the same, by name")
    logs.add_argument("--zap-encoder", choices=["json", "console"], default="json", help="log format (default json)")

    for flag in _UNAVAILABLE_FLAGS:
        serve.add_argument(
            flag, nargs="?", const="true", action=_Refuse, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    for flag in _IGNORED_FLAGS:
        serve.add_argument(flag, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="validate a configuration and print the pipeline that it makes",
        description="Validate a configuration without starting anything, and print the pipeline that it makes.\n"
        "Exit code 0: it would serve. 2: it would not; each line on stderr names file, line, key and the fix.",
    )
    check.set_defaults(run=_check)
    source = check.add_mutually_exclusive_group()
    source.add_argument(
        "--config-file", metavar="FILE", help="EndpointPickerConfig, YAML or JSON; without it the built-in one"
    )
    source.add_argument("--config-text", metavar="TEXT", help="the same, as text")


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="see it work: Envoy, the picker and simulated model servers on loopback",
        description="Start a real Envoy, the picker and a pool of simulated model servers on loopback, send\n"
        "mixed requests through Envoy and print what happened. At the end, or at Ctrl-C, all of it is stopped.",
    )
    demo.set_defaults(run=_demo)
    demo.add_argument("--serve", action="store_true", help="keep running afterwards, and print a curl line to try")
    demo.add_argument(
        "--servers", type=int, default=4, metavar="N", help="simulated model servers (default %(default)s)"
    )
    demo.add_argument("--requests", type=int, default=300, metavar="N", help="requests to send (default %(default)s)")
    demo.add_argument("--config-file", metavar="FILE", help="EndpointPickerConfig to run instead of the built-in one")
    demo.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of traffic and picker (default %(default)s)"
    )


def _add_port(group: Any, flag: str, default: int, what: str) -> None:
    group.add_argument(
        flag, type=_port, default=default, metavar="PORT", help=f"{what} (default {default}; 0: any free one)"
    )


def _add_bool(group: Any, flag: str, default: bool, what: str) -> None:
    group.add_argument(
        flag,
        nargs="?",
        const=True,
        default=default,
        type=_boolean,
        metavar="true|false",
        help=f"{what} (default {str(default).lower()})",
    )


def _add_size(group: Any, flag: str, default_bytes: int, what: str) -> None:
    group.add_argument(
        flag,
        type=_checked(parse_size_bytes),
        default=default_bytes,
        metavar="SIZE",
        help=f"{what} (default {default_bytes // 2**20}Mi)",
    )


def _add_duration(group: Any, flag: str, default_s: float, what: str) -> None:
    group.add_argument(
        flag,
        type=_checked(_duration),
        default=default_s,
        metavar="DURATION",
        help=f"{what} (default {_duration_text(default_s)})",
    )


def _duration(text: str) -> float:
    seconds = parse_duration_s(text)
    if seconds < 0:
        raise ValueError("must not be negative")
    return seconds


def _duration_text(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1e3:g}ms"


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse show the text of a ValueError instead of its own."""

    def parse_or_explain(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_or_explain


def _boolean(text: str) -> bool:
    value = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}.get(text.lower())
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return value


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _objectives(entries: Sequence[str]) -> dict[str, int]:
    objectives = {}
    for entry in entries:
        name, _, priority = entry.partition("=")
        try:
            objectives[name] = int(priority)
        except ValueError:
            raise Problem(f"--objective {entry}: write it NAME=PRIORITY with a whole number, e.g. batch=-1") from None
    return objectives


def _serve(arguments: argparse.Namespace) -> int:
    from epp.server.app import serve  # the other commands need not load gRPC

    level = arguments.zap_log_level
    return serve(
        ServeOptions(
            config_file=arguments.config_file,
            config_text=arguments.config_text,
            allow_experimental_plugins=arguments.allow_experimental_plugins,
            endpoints=arguments.endpoints,
            pool_name=arguments.pool_name,
            host=arguments.host,
            grpc_port=arguments.grpc_port,
            grpc_health_port=arguments.grpc_health_port,
            metrics_port=arguments.metrics_port,
            grpc_socket=arguments.grpc_socket,
            secure_serving=arguments.secure_serving,
            cert_path=arguments.cert_path,
            enable_cert_reload=arguments.enable_cert_reload,
            drain_timeout_s=arguments.drain_timeout,
            max_message_bytes=arguments.grpc_max_recv_msg_size or ServeOptions().max_message_bytes,
            max_request_body_bytes=arguments.max_request_body,
            request_timeout_s=arguments.request_timeout,
            scrape_interval_s=max(0.05, arguments.refresh_metrics_interval),
            pool_gauges_interval_s=arguments.refresh_prometheus_metrics_interval,
            staleness_s=arguments.metrics_staleness_threshold,
            use_subset=not arguments.disable_endpoint_subset_filter,
            emit_scores=arguments.emit_endpoint_scores,
            stream_metrics=arguments.enable_grpc_stream_metrics,
            legacy_metrics=arguments.legacy_metrics,
            objectives=_objectives(arguments.objective),
            seed=arguments.seed,
            ports_file=arguments.ports_file,
            verbosity=arguments.verbosity if level is None else _ZAP_LEVELS[level],
            log_format="json" if arguments.zap_encoder == "json" else "text",
        )
    )


def _check(arguments: argparse.Namespace) -> int:
    from epp.server.app import check

    print(check(arguments.config_file, arguments.config_text))
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from epp.sim.demo import DemoOptions, demo

    return demo(
        DemoOptions(
            servers=arguments.servers,
            requests=arguments.requests,
            config_file=arguments.config_file,
            keep_running=arguments.serve,
            seed=arguments.seed,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
