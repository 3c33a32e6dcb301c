"""The files of a picker: what it writes has a place of its own, apart from the rest and from all that it reads."""

from collections.abc import Iterator
from pathlib import Path

from epp.config.resolve import ResolvedConfig
from epp.files import Named, keep_apart, require_replaceable
from epp.kube.access import kubeconfig_files
from epp.observe.trace import path_of_worker
from epp.observe.trace_file import rotated
from epp.plugins.file_discovery import FileDiscovery
from epp.server.options import ServeOptions
from epp.server.tls import CERTIFICATE_FILE, KEY_FILE


def keep_files_apart(options: ServeOptions, config: ResolvedConfig) -> None:
    """To be called before any is written. Raises `Problem`."""
    files = list(_written(options))
    keep_apart([("--grpc-socket", options.grpc_socket), *files], _read(options, config))
    require_replaceable(files)


def _written(options: ServeOptions) -> Iterator[Named]:
    """All but the socket, which has a check of its own."""
    yield "--model-file", options.model_file
    if options.record_trace is not None:
        for trace in _traces(options.record_trace, options.workers):
            yield "--record-trace", trace
            yield "--record-trace", rotated(trace)
    yield "--ports-file", options.ports_file


def _traces(path: str, workers: int) -> list[Path]:
    return [Path(path)] if workers == 1 else [Path(path_of_worker(path, number)) for number in range(workers)]


def _read(options: ServeOptions, config: ResolvedConfig) -> Iterator[Named]:
    yield "--config-file", options.config_file
    if isinstance(config.discovery, FileDiscovery):
        yield f"{config.discovery.name}: path", config.discovery.parameters.path
    if options.secure_serving and options.cert_path is not None:
        for name in (CERTIFICATE_FILE, KEY_FILE):
            yield "--cert-path", Path(options.cert_path, name)
    if options.kube is not None:
        yield from kubeconfig_files(options.kube.kubeconfig)
