"""What `epp serve` can be told. Every field is a flag; names and defaults are llm-d's where it has the same thing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epp.kube.options import KubeOptions


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """
    Attributes:
        profile: one of `epp.config.builtins`, when there is neither file nor text; `None`: the default one.
        allow_experimental_plugins: do not mention in the log that a plugin is experimental.
        endpoints: `host:port,…`; `None` when the configuration names a discovery plugin, or with `kube`.
        pool_name: label of pool metrics.
        kube: the pool is what an API server says; by an InferencePool's name this yields to a discovery plugin.
        host: address that all ports bind to; `None` is every interface, IPv4 and IPv6.
        grpc_port, grpc_health_port, metrics_port: 0 takes any free port.
        transport: who serves ext_proc: `lean` (our own HTTP/2 server for this one method) or `grpc` (grpc.aio).
        workers: processes that serve ext_proc; 1: this one does.
        grpc_socket: path of a Unix socket that serves ext_proc too.
        cert_path: directory with `tls.crt` and `tls.key`; `None` makes a self-signed certificate at each start.
        drain_timeout_s: how long streams are still accepted after SIGTERM, with readiness already off.
        max_message_bytes: of one gRPC message that we receive.
        max_request_body_bytes: of one request body, over all its messages; beyond it the answer is 413.
        request_timeout_s: from a request's headers to the end of its body.
        scrape_interval_s: between two reads of a busy endpoint's metrics page.
        idle_scrape_interval_s: between two reads of an idle endpoint's.
        pool_gauges_interval_s: between two refreshes of our own pool gauges.
        staleness_s: signals that are older do not count in pool gauges, unless the endpoint is idle.
        model_file: where what was learned of latency survives a restart; `None` keeps it in memory.
        training_server_url, prediction_server_urls: predictors in other processes to learn with (see
            `epp.server.remote`): where samples go, and where the model comes from; `None` and empty: none.
        objectives: objective name to priority.
        legacy_metrics: also write every family under its older name.
        seed: of the random generator; `None` takes one from the operating system.
        observe_responses_ratio: of the responses that could be let go of, how many are watched to their end, 0 to 1.
        record_trace: file that gets a record of each request, from which the lab can replay them; `None`: none.
        record_trace_max_bytes: of that file; the one before it is kept, too.
        trace_key: 16 random bytes that hide what the trace's hashes are of; the same in all processes.
        ports_file: where the ports really bound are written as JSON, once serving.
    """

    config_file: str | None = None
    config_text: str | None = None
    profile: str | None = None
    allow_experimental_plugins: bool = False
    endpoints: str | None = None
    pool_name: str = "epp"
    kube: KubeOptions | None = None
    host: str | None = None
    grpc_port: int = 9002
    grpc_health_port: int = 9003
    metrics_port: int = 9090
    transport: str = "lean"
    workers: int = 1
    grpc_socket: str | None = None
    secure_serving: bool = True
    cert_path: str | None = None
    enable_cert_reload: bool = False
    drain_timeout_s: float = 30.0
    max_message_bytes: int = 32 * 2**20
    max_request_body_bytes: int = 64 * 2**20
    request_timeout_s: float = 60.0
    scrape_interval_s: float = 0.05
    idle_scrape_interval_s: float = 1.0
    pool_gauges_interval_s: float = 5.0
    staleness_s: float = 2.0
    use_subset: bool = True
    emit_scores: bool = False
    stream_metrics: bool = False
    legacy_metrics: bool = True
    model_file: str | None = None
    training_server_url: str | None = None
    prediction_server_urls: Sequence[str] = ()
    objectives: Mapping[str, int] = field(default_factory=dict)
    seed: int | None = None
    observe_responses_ratio: float = 0.0
    record_trace: str | None = None
    record_trace_max_bytes: int = 256 * 2**20
    trace_key: bytes = field(default=b"", repr=False)
    ports_file: str | None = None
    verbosity: int = 2
    log_format: str = "json"
