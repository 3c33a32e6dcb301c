"""Where the API server is and how to prove who we are: kubeconfig or pod, by the official client.

The official client is loaded here and nowhere else, and only when Kubernetes is asked for: it costs half a second.
It knows every way to authenticate (certificates, tokens, plugins that are executed) and renews what expires; requests
go over aiohttp, since its own are synchronous.
"""

import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.problem import Problem

_DEFAULT_FILE = "~/.kube/config"


@dataclass(frozen=True, slots=True)
class Access:
    """
    Attributes:
        url: of the API server, without a slash at its end.
        tls: `None` over plain HTTP.
        server_name: to verify instead of the URL's host.
    """

    url: str
    tls: ssl.SSLContext | None
    proxy: str | None
    server_name: str | None
    _configuration: Any

    def headers(self) -> dict[str, str]:
        """What proves who we are, renewed if it has expired. May run a program and wait for it."""
        configuration = self._configuration
        # What the key is called has changed between versions of the client; this is the way to it that has not.
        settings = configuration.auth_settings().values()
        authorization = next((s["value"] for s in settings if s["in"] == "header" and s["value"]), None)
        if authorization is None and configuration.username:
            authorization = configuration.get_basic_auth_token()
        return {} if authorization is None else {"Authorization": authorization}


def load_access(kubeconfig: str | None, environ: Mapping[str, str] = os.environ) -> Access:
    """
    Args:
        kubeconfig: a file; `None`: `$KUBECONFIG`, else what a pod is given, else `~/.kube/config`.

    Raises:
        Problem: none of them can be used.
    """
    from kubernetes import config
    from kubernetes.client import Configuration

    configuration = Configuration()
    in_cluster = _in_cluster(kubeconfig, environ)
    try:
        if in_cluster:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig, client_configuration=configuration, persist_config=False
            )
        return Access(
            url=configuration.host.rstrip("/"),
            tls=_tls(configuration),
            proxy=_proxy(configuration),
            server_name=configuration.tls_server_name or None,
            _configuration=configuration,
        )
    except (config.ConfigException, OSError, ssl.SSLError, ValueError, TypeError, KeyError) as error:
        source = "the pod's service account" if in_cluster else _named(kubeconfig, environ)[1]
        raise Problem(
            f"{source}: cannot be used to reach the API server: {' '.join(str(error).split())[:300]}; "
            "give --kubeconfig FILE, or run in a pod with a service account"
        ) from error


def kubeconfig_files(kubeconfig: str | None, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, Path]]:
    """What `load_access` reads, whether it is there or not, and what the user calls it by. What a pod is given is not
    among it: nobody can write there."""
    if _in_cluster(kubeconfig, environ):
        return
    name, files = _named(kubeconfig, environ)
    for file in files.split(os.pathsep):
        if file:
            yield name, Path(file).expanduser()


def _in_cluster(kubeconfig: str | None, environ: Mapping[str, str]) -> bool:
    return kubeconfig is None and not environ.get("KUBECONFIG") and bool(environ.get("KUBERNETES_SERVICE_HOST"))


def _named(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Who says which files, and which: several are joined as in `$PATH`."""
    if kubeconfig is not None:
        return "--kubeconfig", kubeconfig
    by_environment = environ.get("KUBECONFIG")
    return ("$KUBECONFIG", by_environment) if by_environment else ("the kubeconfig", _DEFAULT_FILE)


def _proxy(configuration: Any) -> str | None:
    """`$HTTPS_PROXY` is for everybody in the pod, and `$NO_PROXY` tells that the API server is nearer than that."""
    from kubernetes.client.rest import should_bypass_proxies

    if not configuration.proxy or should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        return None
    return str(configuration.proxy)


def _tls(configuration: Any) -> ssl.SSLContext | None:
    if not configuration.host.startswith("https"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    # Python 3.13 asks for extensions that the CAs of many clusters, made years ago, do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
