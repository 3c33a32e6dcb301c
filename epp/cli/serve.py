"""`epp serve`: its flags, and the options that they become."""

import argparse
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epp.cli.flags import add_bool, add_duration, add_port, add_size, parse_server_urls, positive, ratio
from epp.cli.kube_flags import add_kube_flags, kube_options
from epp.cli.llmd_flags import add_flags_without_effect
from epp.cli.loading import loading
from epp.config.builtins import BUILT_INS, DEFAULT_BUILT_IN
from epp.files import new_file
from epp.kube.options import KubeOptions
from epp.problem import Problem
from epp.server.options import ServeOptions

_DESCRIPTION = """\
Run the picker. It serves ext_proc on --grpc-port, health on --grpc-health-port, metrics and debug pages on
--metrics-port.

Which model servers there are comes from --endpoints, from a discovery plugin in the configuration (file-discovery), or
from Kubernetes: from an InferencePool (--pool-name) or from pods with certain labels (--endpoint-selector).
How one is chosen comes from --config-file, or from a configuration that comes with the picker, by --profile:
  llm-d-default      what runs without either: queue-scorer 2, kv-cache-utilization-scorer 2, prefix-cache-scorer 3,
                     highest score wins
  predicted-latency  llm-d's profile with its latency predictor: the soonest among the servers within the targets
  headroom           the cheapest server in milliseconds and targets at stake, by how fast each was found to be
`epp check --profile NAME` shows what is in one, with --print as YAML; `epp lab run` tries them on simulated servers.
"""

_EPILOG = """\
examples:
  epp serve --endpoints 10.0.0.1:8000,10.0.0.2:8000
  epp serve --endpoints 10.0.0.1:8000,10.0.0.2:8000 --profile headroom
  epp serve --pool-name llama --pool-namespace inference
  epp serve --config-file epp.yaml --cert-path /etc/epp/tls --enable-cert-reload
  epp serve --endpoints 127.0.0.1:8000 --secure-serving=false --grpc-socket /run/epp.sock

Then point Envoy at it: envoy/recommended.yaml is a bootstrap to start from.
Flags may be written --flag=value or --flag value, booleans also as --flag alone.
"""

_ZAP_LEVELS = {"error": 0, "warn": 1, "info": 2, "debug": 4}


def add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="run the picker", description=_DESCRIPTION, epilog=_EPILOG)
    serve.set_defaults(run=_run)
    d = ServeOptions()

    pool = serve.add_argument_group("the pool")
    pool.add_argument(
        "--endpoints",
        metavar="HOST:PORT,…",
        help="the model servers, by IP address: Envoy does not look up names; IPv6 in brackets: [fd00::1]:8000",
    )
    pool.add_argument(
        "--pool-name",
        metavar="NAME",
        help="the model servers are the pods of this InferencePool; with --endpoints or file-discovery only the label "
        f"of pool metrics (default {d.pool_name})",
    )
    add_kube_flags(serve)

    config = serve.add_argument_group("the configuration").add_mutually_exclusive_group()
    config.add_argument("--config-file", metavar="FILE", help="EndpointPickerConfig, YAML or JSON")
    config.add_argument("--config-text", metavar="TEXT", help="the same, as text")
    config.add_argument(
        "--profile",
        choices=list(BUILT_INS),
        help=f"a configuration that comes with the picker, see above (default {DEFAULT_BUILT_IN})",
    )

    add_bool(
        serve, "--allow-experimental-plugins", d.allow_experimental_plugins, "do not log that a plugin is experimental"
    )

    ports = serve.add_argument_group("ports")
    ports.add_argument("--host", metavar="ADDRESS", help="address to bind (default: every interface, IPv4 and IPv6)")
    add_port(ports, "--grpc-port", d.grpc_port, "ext_proc")
    add_port(ports, "--grpc-health-port", d.grpc_health_port, "gRPC health, plaintext")
    add_port(ports, "--metrics-port", d.metrics_port, "/metrics, /healthz, /debug/state")
    ports.add_argument("--grpc-socket", metavar="PATH", help="serve ext_proc on this Unix socket too, plaintext")
    ports.add_argument(
        "--transport",
        choices=["lean", "grpc"],
        default=d.transport,
        help="who serves ext_proc: our own HTTP/2 server for this one method, or grpc.aio, at many times its cost "
        "(default %(default)s)",
    )
    ports.add_argument(
        "--workers",
        type=positive,
        default=d.workers,
        metavar="N",
        help="processes that serve ext_proc on the same ports and decide alike; more than 1 need --transport lean and "
        "Linux (default %(default)s: one process does everything)",
    )
    ports.add_argument("--ports-file", metavar="FILE", help="write the ports really bound here as JSON, once serving")

    tls = serve.add_argument_group("TLS")
    add_bool(tls, "--secure-serving", d.secure_serving, "TLS on --grpc-port; self-signed without --cert-path")
    tls.add_argument("--cert-path", metavar="DIR", help="directory with tls.crt and tls.key")
    add_bool(tls, "--enable-cert-reload", d.enable_cert_reload, "read the certificate again when its files change")

    limits = serve.add_argument_group("limits")
    add_size(limits, "--grpc-max-recv-msg-size", d.max_message_bytes, "largest gRPC message to receive")
    add_size(limits, "--max-request-body", d.max_request_body_bytes, "largest request body; beyond it 413")
    add_duration(
        limits, "--request-timeout", d.request_timeout_s, "from a request's headers to the end of its body; then 408"
    )
    add_duration(
        limits,
        "--drain-timeout",
        d.drain_timeout_s,
        "after SIGTERM: how long new streams are still served; SIGINT (Ctrl-C) does not wait",
    )

    signals = serve.add_argument_group("signals")
    add_duration(
        signals,
        "--refresh-metrics-interval",
        d.scrape_interval_s,
        "between two reads of a busy server's metrics page (at least 50ms)",
    )
    add_duration(
        signals,
        "--idle-metrics-interval",
        d.idle_scrape_interval_s,
        "the same of a server at which nothing happens; a request that is sent there ends its rest at once",
    )
    add_duration(
        signals,
        "--metrics-staleness-threshold",
        d.staleness_s,
        "older signals do not count in pool gauges, unless the server rests",
    )
    add_duration(
        signals, "--refresh-prometheus-metrics-interval", d.pool_gauges_interval_s, "refresh of our own pool gauges"
    )
    add_bool(signals, "--enable-grpc-stream-metrics", d.stream_metrics, "count ext_proc streams and how long they live")
    add_bool(signals, "--legacy-metrics", d.legacy_metrics, "write every family under its older name as well")

    routing = serve.add_argument_group("routing")
    routing.add_argument(
        "--objective",
        action="append",
        default=[],
        metavar="NAME=PRIORITY",
        help="priority of requests that name this objective in a header; below 0 may be shed; repeatable",
    )
    add_bool(routing, "--disable-endpoint-subset-filter", not d.use_subset, "ignore the proxy's subset hint")
    routing.add_argument(
        "--observe-responses",
        type=ratio,
        default=d.observe_responses_ratio,
        metavar="RATIO",
        help="how many of the streamed responses are watched to their end, 0 to 1, although their first tokens and "
        "Envoy's access log tell enough (default %(default)s)",
    )
    add_bool(routing, "--emit-endpoint-scores", d.emit_scores, "put every candidate's score into the envoy.lb metadata")
    routing.add_argument(
        "--model-file",
        metavar="FILE",
        help="keep what predicted-latency-producer learned here, across restarts (default: in memory only)",
    )
    routing.add_argument(
        "--training-server-url",
        metavar="URL",
        help="an `epp predictor serve` to learn with: samples go there, its model comes here "
        "(default: $TRAINING_SERVER_URL; none: learn in this process)",
    )
    routing.add_argument(
        "--prediction-server-url",
        metavar="URL,…",
        help="where else its model comes from, tried in this order (default: $PREDICTION_SERVER_URL)",
    )
    routing.add_argument("--seed", type=int, metavar="N", help="seed of the random generator, to repeat a run")

    logs = serve.add_argument_group("logs")
    logs.add_argument(
        "-v", "--v", dest="verbosity", type=int, default=d.verbosity, metavar="N", help="0 errors … 2 default, 4 debug"
    )
    logs.add_argument("--zap-log-level", choices=sorted(_ZAP_LEVELS), help="the same, by name")
    logs.add_argument(
        "--record-trace",
        metavar="FILE.jsonl",
        help="record each request, to replay it with `epp lab run --trace`: times, lengths and hashes by which equal "
        "beginnings of prompts are equal, no text; with --observe-responses 1 also lengths of streams without usage "
        "(default: nothing is recorded)",
    )
    add_size(logs, "--record-trace-max-size", d.record_trace_max_bytes, "of that file; the one before it is kept, too")
    logs.add_argument("--zap-encoder", choices=["json", "console"], default="json", help="log format (default json)")

    add_flags_without_effect(serve)


def _run(arguments: argparse.Namespace) -> int:
    with loading():
        from epp.server.app import serve  # the other commands need not load gRPC

    level = arguments.zap_log_level
    kube = kube_options(arguments, os.environ)
    return serve(
        ServeOptions(
            config_file=arguments.config_file,
            config_text=arguments.config_text,
            profile=arguments.profile,
            allow_experimental_plugins=arguments.allow_experimental_plugins,
            endpoints=arguments.endpoints,
            pool_name=_pool_name(arguments, kube),
            kube=kube,
            host=arguments.host,
            grpc_port=arguments.grpc_port,
            grpc_health_port=arguments.grpc_health_port,
            metrics_port=arguments.metrics_port,
            transport=arguments.transport,
            workers=arguments.workers,
            grpc_socket=arguments.grpc_socket,
            secure_serving=arguments.secure_serving,
            cert_path=arguments.cert_path,
            enable_cert_reload=arguments.enable_cert_reload,
            drain_timeout_s=arguments.drain_timeout,
            max_message_bytes=arguments.grpc_max_recv_msg_size or ServeOptions().max_message_bytes,
            max_request_body_bytes=arguments.max_request_body,
            request_timeout_s=arguments.request_timeout,
            scrape_interval_s=max(0.05, arguments.refresh_metrics_interval),
            idle_scrape_interval_s=arguments.idle_metrics_interval,
            pool_gauges_interval_s=arguments.refresh_prometheus_metrics_interval,
            staleness_s=arguments.metrics_staleness_threshold,
            use_subset=not arguments.disable_endpoint_subset_filter,
            emit_scores=arguments.emit_endpoint_scores,
            observe_responses_ratio=arguments.observe_responses,
            stream_metrics=arguments.enable_grpc_stream_metrics,
            legacy_metrics=arguments.legacy_metrics,
            objectives=_objectives(arguments.objective),
            model_file=arguments.model_file,
            training_server_url=training_url(arguments.training_server_url),
            prediction_server_urls=_server_urls(
                arguments.prediction_server_url, "--prediction-server-url", "PREDICTION_SERVER_URL"
            ),
            seed=arguments.seed,
            record_trace=trace_path(arguments.record_trace),
            record_trace_max_bytes=arguments.record_trace_max_size,
            trace_key=secrets.token_bytes(16),
            ports_file=arguments.ports_file,
            verbosity=arguments.verbosity if level is None else _ZAP_LEVELS[level],
            log_format="json" if arguments.zap_encoder == "json" else "text",
        )
    )


def _pool_name(arguments: argparse.Namespace, kube: KubeOptions | None) -> str:
    if kube is not None:
        return kube.pool_name
    return arguments.pool_name or ServeOptions().pool_name


def trace_path(given: str | None) -> str | None:
    """Raises `Problem` for a place where nothing can be written, or that the lab would not read."""
    if given is None:
        return None
    if Path(given).suffix != ".jsonl":
        raise Problem(f"--record-trace {given}: let it end in .jsonl, by which `epp lab run --trace` knows it")
    try:
        new_file(given)
    except Problem as problem:
        raise Problem(f"--record-trace {problem}") from problem
    return given


def training_url(given: str | None) -> str | None:
    """By the flag, or by the environment. Raises `Problem`."""
    urls = _server_urls(given, "--training-server-url", "TRAINING_SERVER_URL")
    if len(urls) > 1:
        raise Problem("--training-server-url: there is one training server; more are for --prediction-server-url")
    return urls[0] if urls else None


def _server_urls(given: str | None, flag: str, variable: str) -> list[str]:
    if given is None:
        return parse_server_urls(os.environ.get(variable, ""), variable)
    return parse_server_urls(given, flag)


def _objectives(entries: Sequence[str]) -> dict[str, int]:
    objectives = {}
    for entry in entries:
        name, _, priority = entry.partition("=")
        try:
            if not name:
                raise ValueError
            objectives[name] = int(priority)
        except ValueError:
            raise Problem(f"--objective {entry}: write it NAME=PRIORITY with a whole number, e.g. batch=-1") from None
    return objectives
