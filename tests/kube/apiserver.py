"""A real Kubernetes API server and its etcd on loopback, and a client that may do everything.

with ApiServer(folder) as server:
    async with Cluster(server) as cluster:
        await cluster.create(PODS, …)
    server.kill(); server.start()      # what is stored stays
"""

import json
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from epp.kube.resources import Resource

START_TIMEOUT_S = 90.0
ADMIN_TOKEN = "token-of-admin"
EPP_TOKEN = "token-of-epp"
EPP_USER = "epp"


class NoApiServer(Exception):
    """It was not built. The message says how to."""


def binaries() -> tuple[Path, Path]:
    """etcd and kube-apiserver. Raises `NoApiServer`."""
    folder = Path(os.environ.get("HEADROOM_KUBE_CACHE") or Path.home() / ".cache/headroom/kube") / "bin"
    found = folder / "etcd", folder / "kube-apiserver"
    if not all(os.access(path, os.X_OK) for path in found):
        raise NoApiServer(f"{found[1]} is missing; build it: tests/kube/build_apiserver.sh (5 to 8 minutes)")
    return found


class ApiServer:
    """Both processes; a context manager that starts and kills them.

    Attributes:
        url: where it serves; the same for all its lives.
        kubeconfig: of a cluster administrator.
        epp_kubeconfig: of the user `epp`, who has no rights until RBAC gives some.
    """

    def __init__(self, folder: Path) -> None:
        self._etcd, self._apiserver = binaries()
        self._folder = folder
        self._etcd_port, self._peer_port, self.port = _free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_file = folder / "certs" / "apiserver.crt"
        self.kubeconfig = folder / "kubeconfig"
        self.epp_kubeconfig = folder / "kubeconfig-epp"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._write_keys()
        self.write_kubeconfig(self.kubeconfig, ADMIN_TOKEN)
        self.write_kubeconfig(self.epp_kubeconfig, EPP_TOKEN)
        try:
            self._start_etcd()
            self.start()
        except BaseException:
            self._end(self._processes)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End both processes, if they run."""
        self._end(self._processes)

    def start(self) -> None:
        """Start the API server, which is not running, and wait until it is ready."""
        local = f"http://127.0.0.1:{self._etcd_port}"
        flags = [
            f"--etcd-servers={local}",
            f"--cert-dir={self.ca_file.parent}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--insecure-port=0",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._folder / 'sa.key'}",
            f"--service-account-signing-key-file={self._folder / 'sa.key'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--disable-admission-plugins=ServiceAccount",  # nobody runs who would make the accounts' tokens
        ]
        self._processes.append(self._spawn([str(self._apiserver), *flags], "apiserver.log"))
        self._wait(f"{self.url}/readyz")

    def kill(self) -> None:
        """SIGKILL the API server; etcd goes on."""
        self._end(self._processes[1:])

    def compact(self) -> None:
        """Forget all history. Who watches on from an earlier version is told 410 when the server has lost its cache."""
        head = self._ask_etcd("kv/range", {"key": "AA==", "limit": "1"})["header"]["revision"]
        self._ask_etcd("kv/compaction", {"revision": head, "physical": True})

    def write_kubeconfig(self, path: Path, token: str, url: str | None = None) -> None:
        """`url`: a way to the server other than the direct one."""
        cluster = {"server": url or self.url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))

    def log(self) -> str:
        return (self._folder / "apiserver.log").read_text(errors="replace")

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        flags = [
            "--data-dir",
            str(self._folder / "etcd"),
            "--unsafe-no-fsync",
            "--logger",
            "zap",
            "--log-level",
            "error",
        ]
        flags += ["--listen-client-urls", client, "--advertise-client-urls", client]
        flags += [
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"default={peer}",
        ]
        self._processes.append(self._spawn([str(self._etcd), *flags], "etcd.log"))
        self._wait(f"{client}/health")

    def _spawn(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self._folder / log).open("ab") as file:
            return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)

    def _wait(self, url: str) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its certificate does not exist yet
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        while True:
            try:
                with urllib.request.urlopen(request, timeout=5, context=context):
                    return
            except OSError as error:
                if self._processes[-1].poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(f"{url} is not ready: {error}; see the logs in {self._folder}") from error
            time.sleep(0.05)

    def _ask_etcd(self, call: str, body: Mapping[str, Any]) -> Any:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/{call}"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=10) as response:
            return json.loads(response.read())

    def _end(self, processes: list[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.kill()
            process.wait()
        self._processes = [process for process in self._processes if process.returncode is None]

    def _write_keys(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (self._folder / "sa.key").write_bytes(key.private_bytes(*pem))
        (self._folder / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,1,"system:masters"\n{EPP_TOKEN},{EPP_USER},2\n')


class Cluster:
    """What an administrator does, in short. An async context manager."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(self._server.ca_file))),
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=aiohttp.ClientTimeout(total=30),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The answer; errors raise, but for a 404 or 409, which is `None`."""
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, self._server.url + path, data=data, headers={"Content-Type": kind}
        ) as response:
            if response.status in (404, 409):
                return None
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {await response.text()}")
            return await response.json()

    async def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> Any:
        return await self.ask("POST", resource.path(namespace), body)

    async def get(self, resource: Resource, namespace: str | None, name: str | None = None) -> Any:
        return await self.ask("GET", resource.path(namespace, name))

    async def patch(
        self, resource: Resource, namespace: str | None, name: str, body: Mapping[str, Any], *, status: bool = False
    ) -> Any:
        path = resource.path(namespace, name) + ("/status" if status else "")
        return await self.ask("PATCH", path, body, "application/merge-patch+json")

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, grace_s: int = 0) -> Any:
        return await self.ask("DELETE", resource.path(namespace, name) + f"?gracePeriodSeconds={grace_s}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
