"""The chart installed into a real API server, and the picker that it describes run against it by its rights."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from apiserver import EPP_USER, ApiServer, Cluster, NoApiServer
from custom_kinds import KINDS, definition, plural
from helm_chart import CHART, MANIFESTS, SERVERS, NoHelm, Object, find_helm, helm, merged, objects, template
from kube_world import start_pod, until

from epp.kube.resources import Resource
from epp.sim.config import SimConfig
from epp.sim.envoyproxy import EnvoyError, EnvoyProxy, find_envoy
from epp.sim.picker_process import PickerProcess
from epp.sim.server import SimServer

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="module")]

DEPLOYMENTS = Resource("apps", "v1", "deployments")
CONFIG_MAPS = Resource("", "v1", "configmaps")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings")
# What this server, of 1.20, does not know yet; tests/manifests holds these against the schema of a newer version.
OLDER = {"router": {"epp": {"probes": "http"}, "proxy": {"drainSeconds": 0}}}
NEWER_KINDS = {("policy/v1", "PodDisruptionBudget")}
PATHS = {
    ("v1", "ConfigMap"): "configmaps",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    **{key: plural(key[1]) for key in KINDS},
}


@pytest.fixture(scope="module")
def own_api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Not the one that other tests share: its custom kinds have strict schemas."""
    try:
        server = ApiServer(tmp_path_factory.mktemp("chart"))
        find_helm()
    except NoApiServer as missing:
        pytest.skip(f"needs a real Kubernetes API server. {missing}")
    except NoHelm as missing:
        pytest.skip(f"needs Helm. {missing}")
    with server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(own_api_server: ApiServer) -> AsyncIterator[Cluster]:
    async with Cluster(own_api_server) as cluster:
        crds = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
        for api_version, kind in KINDS:
            await cluster.create(crds, None, definition(api_version, kind))
        for key in KINDS:
            path = f"/apis/{key[0]}/{plural(key[1])}"
            await until(lambda path=path: cluster.ask("GET", path), lambda found: found is not None)
        yield cluster


def path_of(each: Object, namespace: str) -> str:
    group = "/api/v1" if each["apiVersion"] == "v1" else f"/apis/{each['apiVersion']}"
    plurals = PATHS.get((each["apiVersion"], each["kind"]), each["kind"].lower() + "s")
    cluster_wide = each["kind"].startswith("Cluster") or each["kind"] == "GatewayClass"
    return f"{group}/{plurals}" if cluster_wide else f"{group}/namespaces/{namespace}/{plurals}"


def dropped(sent: Any, stored: Any, path: str = "") -> list[str]:
    """What the server did not keep of what it was sent: fields that it does not know."""
    if isinstance(sent, dict):
        known = stored if isinstance(stored, dict) else {}
        return [fault for key, value in sent.items() for fault in dropped(value, known.get(key), f"{path}.{key}")]
    if isinstance(sent, list):
        known = stored if isinstance(stored, list) and len(stored) == len(sent) else [None] * len(sent)
        return [fault for i, value in enumerate(sent) for fault in dropped(value, known[i], f"{path}[{i}]")]
    empty = sent is None or sent == ""
    return [] if stored is not None or empty else [path]


GATEWAY: dict[str, Any] = merged(SERVERS, OLDER)
EVERYTHING = merged(
    GATEWAY,
    {"provider": {"name": "gke"}, "httpRoute": {"create": True}},
    {"router": {"inferenceObjectives": [{"name": "batch", "priority": -1}]}},
    {"router": {"epp": {"replicas": 3, "flags": {"ha-enable-leader-election": False}, "tls": {"secretName": "t"}}}},
    {"router": {"monitoring": {"prometheus": {"enabled": True, "auth": {"enabled": True}}}}},
)
STANDALONE = merged(GATEWAY, {"mode": "standalone"})


async def test_the_api_server_takes_every_manifest_and_keeps_every_field(cluster: Cluster, namespace: str) -> None:
    """With dryRun=All: it validates as if it stored them. What it does not know it would drop in silence."""
    rendered = []
    istio = merged(GATEWAY, {"provider": {"name": "istio"}})
    gmp = merged(EVERYTHING, {"router": {"monitoring": {"provider": {"name": "gmp"}}}})
    for values in (GATEWAY, EVERYTHING, istio, gmp, STANDALONE):
        done = template(values, "--kube-version", "1.20.2")
        assert done.returncode == 0, done.stderr
        rendered += objects(done.stdout)
    for path in sorted((MANIFESTS / "examples").rglob("*.yaml")):
        if path.name != "values.yaml":
            rendered += objects(path.read_text())
    unknown, lost = set(), []
    for each in rendered:
        each["metadata"]["namespace"] = namespace
        if each["kind"].startswith("Cluster") or each["kind"] == "GatewayClass":
            del each["metadata"]["namespace"]
        stored = await cluster.ask("POST", path_of(each, namespace) + "?dryRun=All", each)
        if stored is None:
            unknown.add((each["apiVersion"], each["kind"]))
        else:
            lost += [f"{each['kind']}{path}" for path in dropped(each, stored)]
    assert unknown == NEWER_KINDS
    assert lost == []


def install(server: ApiServer, namespace: str, values: dict[str, Any], verb: str = "install") -> None:
    where = ["--namespace", namespace, "--kubeconfig", str(server.kubeconfig)]
    done = helm(verb, "llama", str(CHART), *where, values=values)
    assert done.returncode == 0, done.stderr
    assert "Headroom" in done.stdout


async def described(cluster: Cluster, namespace: str, folder: Path) -> list[str]:
    """The flags of the installed picker, with its files in `folder`, but for ports and API server."""
    deployment = await cluster.get(DEPLOYMENTS, namespace, "llama-epp")
    (container,) = [c for c in deployment["spec"]["template"]["spec"]["containers"] if c["name"] == "epp"]
    files = (await cluster.get(CONFIG_MAPS, namespace, "llama-epp"))["data"]
    for name, text in files.items():
        (folder / name).write_text(text)
    places = {"/etc/headroom/config": str(folder), "/run/headroom": str(folder)}
    flags = []
    for flag in container["args"]:
        for there, here in places.items():
            flag = flag.replace(there, here)
        flags.append(flag)
    return [flag for flag in flags if not flag.startswith(("--grpc-port", "--grpc-health-port", "--metrics-port"))]


async def act_for(cluster: Cluster, namespace: str) -> None:
    """Give the user of our picker the Role that the chart gives its service account, and nothing else."""
    rbac = "rbac.authorization.k8s.io"
    body = {
        "metadata": {"name": "tests"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "llama-epp"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": EPP_USER}],
    }
    await cluster.create(ROLE_BINDINGS, namespace, body)


async def readiness(process: PickerProcess) -> str:
    async with aiohttp.ClientSession() as client, client.get(process.metrics_url + "/readyz") as response:
        return await response.text()


async def test_an_installed_picker_follows_its_pool_and_leads_by_the_rights_of_the_chart(
    own_api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Three replicas, so with leader election. Then the release is changed and uninstalled, and leaves nothing."""
    install(own_api_server, namespace, merged(GATEWAY, {"router": {"epp": {"replicas": 3}}}))
    await start_pod(cluster, namespace, "vllm-0", {"app": "vllm"}, "127.0.0.9")
    flags = await described(cluster, namespace, tmp_path)
    assert "--ha-enable-leader-election=true" in flags
    flags += ["--kubeconfig", str(own_api_server.epp_kubeconfig)]
    async with PickerProcess(tmp_path, flags) as process:
        assert "forbidden" in await until(lambda: readiness(process), lambda said: "forbidden" in said)
        await act_for(cluster, namespace)
        await until(lambda: readiness(process), lambda said: said == "ok\n")
        state = await process.state()
        assert [endpoint["id"] for endpoint in state["pool"]["endpoints"]] == [f"{namespace}/vllm-0-rank-0"]
        assert state["kubernetes"]["leader_election"]["is_leader"]

    install(own_api_server, namespace, GATEWAY, "upgrade")
    assert "--ha-enable-leader-election=true" not in await described(cluster, namespace, tmp_path)
    done = helm("uninstall", "llama", "--namespace", namespace, "--kubeconfig", str(own_api_server.kubeconfig))
    assert done.returncode == 0, done.stderr
    for each in objects(template(GATEWAY, "--kube-version", "1.20.2").stdout):
        path = f"{path_of(each, namespace)}/{each['metadata']['name']}"
        await until(lambda path=path: cluster.ask("GET", path), lambda found: found is None)


async def test_requests_reach_servers_through_an_installed_standalone(
    own_api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real Envoy with the bootstrap of the release, the picker on its socket, and a server that is a pod."""
    try:
        find_envoy()
    except EnvoyError as error:
        pytest.skip(f"needs the real Envoy. {error}")
    monkeypatch.setenv("POD_NAME", "llama-epp-5c9d7f4b6-x2x9k")
    async with AsyncExitStack() as stack:
        sim = await stack.enter_async_context(SimServer(SimConfig(name="vllm-0")))
        values = merged(STANDALONE, {"router": {"modelServers": {"targetPorts": [{"number": sim.port}]}}})
        install(own_api_server, namespace, values)
        await act_for(cluster, namespace)
        await start_pod(cluster, namespace, "vllm-0", {"app": "vllm"}, sim.config.host)
        flags = await described(cluster, namespace, tmp_path)
        process = await stack.enter_async_context(
            PickerProcess(tmp_path, [*flags, "--kubeconfig", str(own_api_server.epp_kubeconfig)])
        )
        await until(lambda: readiness(process), lambda said: said == "ok\n")

        text = (await cluster.get(CONFIG_MAPS, namespace, "llama-epp-envoy"))["data"]["envoy.yaml"]
        # Nobody answers for the cluster's DNS here, nor is /run ours; all else is as installed.
        name = f"llama-epp-servers.{namespace}.svc.cluster.local."
        assert text.count(name) == 1
        text = text.replace(name, sim.config.host).replace("/run/headroom", str(tmp_path))
        bootstrap = yaml.safe_load(text)
        bootstrap["admin"]["address"]["socket_address"]["port_value"] = 0
        listener = bootstrap["static_resources"]["listeners"][0]["address"]["socket_address"]
        assert listener == {"address": "0.0.0.0", "port_value": 8080}
        listener |= {"address": "127.0.0.1", "port_value": 0}
        envoy = await stack.enter_async_context(EnvoyProxy(bootstrap))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))

        async def ask() -> int:
            body = {"model": sim.config.model, "prompt": "Why?", "max_tokens": 2}
            async with client.post(f"{envoy.url}/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
            return len((await process.state())["decisions"])

        await until(ask, lambda decisions: decisions > 0)
        assert sim.recorder.total > 0
