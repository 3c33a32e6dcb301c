"""Who serves ext_proc: the exchange of each stream, and the transport that the options ask for."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from epp.director import Director
from epp.files import READABLE, write_atomically
from epp.observe.access_log import AccessLogMetrics
from epp.observe.streams import StreamMetrics
from epp.problem import Problem
from epp.server.access_log.awaiting import AccessLog
from epp.server.access_log.service import AccessLogService
from epp.server.deadlines import Deadlines
from epp.server.exchange import Exchange, ExchangeOptions
from epp.server.grpc_transport import GrpcOptions, ext_proc_server
from epp.server.health import HealthState
from epp.server.lean.limits import LeanOptions
from epp.server.lean.server import lean_server
from epp.server.lean.tls import tls_context
from epp.server.listen import TcpAddress, UnixAddress
from epp.server.options import ServeOptions
from epp.server.tls import CertificateDirectory, CertificateSource, grpc_credentials, load_pair, self_signed_now
from epp.server.transport import Stream, Transport
from epp.server.watching import PaceBudget, Watching
from epp.wire.conversation import Limits

# After draining, open streams get this long to finish. Long generations are cut off by then; with the recommended
# bootstrap Envoy carries them on without us.
CLOSING_GRACE_S = 60.0


class ExchangeMaker:
    """Makes the exchange of each new stream."""

    def __init__(self, director: Director, options: ServeOptions, watching: Watching) -> None:
        self._director = director
        self._watching = watching
        self._options = ExchangeOptions(limits=Limits(max_request_body_bytes=options.max_request_body_bytes))
        self._clock = time.monotonic
        self._deadlines = Deadlines(options.request_timeout_s, self._clock, _call_later)

    def __call__(self, stream: Stream) -> Exchange:
        return Exchange(
            stream, self._director, self._options, self._watching, clock=self._clock, deadlines=self._deadlines
        )


def _call_later(delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, call)


def watching(
    options: ServeOptions, metrics: AccessLogMetrics, clock: Callable[[], float], access_log_tag: str
) -> Watching:
    """What exchanges share to learn from responses. `access_log_tag`: see `AccessLog`."""
    chance, ratio = random.Random(options.seed), options.observe_responses_ratio
    access_log = AccessLog(access_log_tag, metrics, clock=clock, call_later=_call_later, watched_ratio=ratio)
    return Watching(access_log, metrics, PaceBudget(clock), lambda: chance.random() < ratio)


def transport(
    options: ServeOptions,
    exchanges: ExchangeMaker,
    access_logs: AccessLogService,
    health: HealthState,
    streams: StreamMetrics | None,
) -> Transport:
    """`streams`: who counts them. Raises `Problem` for a certificate that cannot be used."""
    addresses = ext_proc_addresses(options)
    source = certificates(options)
    if options.transport == "lean":
        return lean_server(
            exchanges,
            addresses,
            health,
            streams,
            access_logs=access_logs,
            tls=None if source is None else tls_context(source),
            options=LeanOptions(max_receive_bytes=options.max_message_bytes),
        )
    return ext_proc_server(
        exchanges,
        addresses,
        health,
        streams,
        access_logs=access_logs,
        credentials=None if source is None else grpc_credentials(source),
        options=GrpcOptions(max_receive_bytes=options.max_message_bytes),
    )


def ext_proc_addresses(options: ServeOptions) -> list[TcpAddress | UnixAddress]:
    addresses: list[TcpAddress | UnixAddress] = [TcpAddress(options.grpc_port, "--grpc-port", options.host)]
    if options.grpc_socket is not None:
        addresses.append(UnixAddress(options.grpc_socket, "--grpc-socket"))
    return addresses


def certificates(options: ServeOptions) -> CertificateSource | None:
    """`None`: plaintext. Raises `Problem`."""
    if not options.secure_serving:
        return None
    if options.cert_path is None:
        return self_signed_now()
    directory = Path(options.cert_path)
    return CertificateDirectory(directory) if options.enable_cert_reload else load_pair(directory)


def write_ports(file: str, ports: Mapping[str, Any]) -> None:
    """In one step, so that nobody reads half of it. Raises `Problem`."""
    try:
        write_atomically(Path(file), json.dumps(ports).encode(), READABLE)
    except OSError as error:
        raise Problem(f"{file}: cannot be written (--ports-file): {error.strerror}") from error
