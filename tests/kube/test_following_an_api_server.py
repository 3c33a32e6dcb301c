"""Discovery, objectives and rewrites in this process, against a real API server."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from apiserver import ADMIN_TOKEN, EPP_TOKEN, EPP_USER, ApiServer, Cluster
from kube_world import (
    POOL,
    Changes,
    install,
    objective,
    pool,
    rewrite,
    rule,
    start_pod,
    status,
    uninstall,
    until,
)
from prometheus_client import CollectorRegistry
from stalling_proxy import StallingProxy

from epp.kube.access import Access, load_access
from epp.kube.client import KubeClient
from epp.kube.discovery import KubeDiscovery
from epp.kube.leader import LeaderElection
from epp.kube.options import KubeOptions, LeaseTimings, PodsBySelector, PoolByName
from epp.kube.policies import Rewrites
from epp.kube.policy_source import PolicySource
from epp.kube.reflector import ReflectorTimings
from epp.kube.resources import LEASES, LEGACY_GROUP, OBJECTIVES, PODS, POOLS, REWRITES, Resource
from epp.kube.reviews import REMEMBER_S, Reviewer
from epp.kube.selector import parse_selector
from epp.observe.records import Selection
from epp.pool.store import PoolStore
from epp.problem import Problem
from epp.server.admin import AdminServer
from epp.server.admin_guard import reviewed_by
from epp.server.health import HealthState
from epp.server.listen import TcpAddress

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="module")]

QUICK = ReflectorTimings(watch_s=2, grace_s=1.0, first_pause_s=0.05, longest_pause_s=0.3, absent_pause_s=0.3)
LABELS = {"app": "vllm"}
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", namespaced=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(api_server: ApiServer) -> AsyncIterator[Cluster]:
    async with Cluster(api_server) as cluster:
        await install(cluster, *POOLS.values())
        yield cluster


class Followed:
    """Discovery that runs, and the store it fills."""

    def __init__(self, options: KubeOptions, client: KubeClient, timings: ReflectorTimings) -> None:
        self.errors: list[tuple[str, str]] = []
        self.also_on_error: Callable[[str, str], None] = lambda resource, kind: None
        self.store = PoolStore()
        self.discovery = KubeDiscovery(
            options,
            client,
            self.store,
            clock=time.monotonic,
            rng=random.Random(1),
            on_error=self._on_error,
            timings=timings,
        )

    def _on_error(self, resource: str, kind: str) -> None:
        self.errors.append((resource, kind))
        self.also_on_error(resource, kind)

    def addresses(self) -> dict[str, str]:
        return {endpoint.id: endpoint.address for endpoint in self.store.snapshot().endpoints}


@asynccontextmanager
async def following(
    server: ApiServer,
    options: KubeOptions,
    *,
    kubeconfig: Path | None = None,
    access: Callable[[], Access] | None = None,
) -> AsyncIterator[Followed]:
    client = KubeClient(access or (lambda: load_access(str(kubeconfig or server.kubeconfig))))
    followed = Followed(options, client, QUICK)
    task = asyncio.create_task(followed.discovery.run())
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def equals_truth(followed: Followed, changes: Changes, what: str) -> None:
    wanted = await changes.truth()
    await until(lambda: (what, followed.addresses()), lambda said: said[1] == wanted)


async def test_five_hundred_random_changes_are_followed(
    api_server: ApiServer, cluster: Cluster, namespace: str
) -> None:
    await cluster.create(POOL, namespace, pool("p", LABELS, [8000, 8001]))
    changes = Changes(cluster, namespace, "p", seed=7)
    sizes = set()
    async with following(api_server, KubeOptions(PoolByName("p"), namespace)) as followed:
        for number in range(500):
            what = await changes.one()
            await equals_truth(followed, changes, f"{number}: {what}")
            sizes.add(len(followed.addresses()))
    assert len(sizes) > 5
    assert followed.errors == []


async def test_a_watch_that_falls_silent_is_noticed_and_healed(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Its connection stays open and carries nothing; deletes that it would have told of are found by a list."""
    await cluster.create(POOL, namespace, pool("p", LABELS))
    for number in range(3):
        await start_pod(cluster, namespace, f"pod-{number}", LABELS, f"10.0.0.{number + 1}")
    async with StallingProxy(api_server.port) as proxy:
        api_server.write_kubeconfig(tmp_path / "k", ADMIN_TOKEN, f"https://127.0.0.1:{proxy.port}")
        options = KubeOptions(PoolByName("p"), namespace)
        async with following(api_server, options, kubeconfig=tmp_path / "k") as followed:
            await until(followed.addresses, lambda said: len(said) == 3)

            def works_again(resource: str, kind: str) -> None:
                proxy.stalls = proxy.stalls and (resource, kind) != ("pods", "stalled")

            followed.also_on_error = works_again
            proxy.stall()
            await cluster.delete(PODS, namespace, "pod-0")
            await cluster.patch(PODS, namespace, "pod-1", status("10.0.0.2", ready=False), status=True)
            assert len(followed.addresses()) == 3
            await until(followed.addresses, lambda said: said == {f"{namespace}/pod-2-rank-0": "10.0.0.3:8000"})
            assert ("pods", "stalled") in followed.errors


async def test_a_killed_api_server_and_a_forgotten_history(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """While it is gone the last good set stands and grows old. When it is back it has forgotten the version that was
    heard last, and changed meanwhile."""
    await cluster.create(POOL, namespace, pool("p", LABELS))
    for number in range(3):
        await start_pod(cluster, namespace, f"pod-{number}", LABELS, f"10.0.0.{number + 1}")
    async with StallingProxy(api_server.port) as proxy:
        api_server.write_kubeconfig(tmp_path / "k", ADMIN_TOKEN, f"https://127.0.0.1:{proxy.port}")
        options = KubeOptions(PoolByName("p"), namespace)
        async with following(api_server, options, kubeconfig=tmp_path / "k") as followed:
            last_good = await until(followed.addresses, lambda said: len(said) == 3)
            proxy.refuses = True
            proxy.cut()
            await cluster.delete(PODS, namespace, "pod-0")
            await cluster.delete(PODS, namespace, "pod-1")
            await start_pod(cluster, namespace, "pod-1", LABELS, "10.0.0.9")
            await asyncio.to_thread(api_server.kill)
            await until(lambda: followed.discovery.age_s, lambda age_s: age_s is not None and age_s > 1)
            assert followed.addresses() == last_good
            assert followed.discovery.not_ready() == []
            assert "does not answer" in followed.discovery.state()["problems"][0]
            await asyncio.to_thread(api_server.compact)
            await asyncio.to_thread(api_server.start)
            proxy.refuses = False
            wanted = {f"{namespace}/pod-1-rank-0": "10.0.0.9:8000", f"{namespace}/pod-2-rank-0": "10.0.0.3:8000"}
            await until(followed.addresses, lambda said: said == wanted)
            await until(lambda: followed.discovery.age_s, lambda age_s: age_s is not None and age_s < 1)
            assert ("pods", "expired") in followed.errors
            await until(lambda: followed.discovery.state()["problems"], lambda said: said == [])


async def test_a_pool_that_goes_and_comes_back(
    api_server: ApiServer, cluster: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    await start_pod(cluster, namespace, "pod-0", LABELS, "10.0.0.1")
    async with following(api_server, KubeOptions(PoolByName("p"), namespace)) as followed:
        missing = await until(followed.discovery.not_ready, lambda said: "does not exist" in said[0])
        assert f"inferencepools.inference.networking.k8s.io {namespace}/p" in missing[0]
        assert missing[0] in caplog.text
        await cluster.create(POOL, namespace, pool("p", {"app": "elsewhere"}))
        await until(followed.discovery.not_ready, lambda said: "no pod in namespace" in said[0])
        await cluster.patch(POOL, namespace, "p", {"spec": {"selector": {"matchLabels": LABELS}}})
        await until(followed.discovery.not_ready, lambda said: said == [])
        await cluster.patch(PODS, namespace, "pod-0", status("10.0.0.1", ready=False), status=True)
        await until(followed.discovery.not_ready, lambda said: said == ["1 pods match app=vllm; none is ready"])
        await cluster.patch(PODS, namespace, "pod-0", status("10.0.0.1", ready=True), status=True)
        await until(followed.addresses, lambda said: len(said) == 1)
        await cluster.patch(POOL, namespace, "p", {"metadata": {"finalizers": ["test/kept"]}})
        await cluster.delete(POOL, namespace, "p")
        await until(followed.discovery.not_ready, lambda said: said != [] and "is being deleted" in said[0])
        assert followed.addresses() == {}
        await cluster.patch(POOL, namespace, "p", {"metadata": {"finalizers": []}})
        await until(followed.discovery.not_ready, lambda said: "does not exist" in said[0])
        await cluster.create(POOL, namespace, pool("p", LABELS, [9000]))
        await until(followed.addresses, lambda said: said == {f"{namespace}/pod-0-rank-0": "10.0.0.1:9000"})


async def test_a_pool_of_the_older_group(api_server: ApiServer, cluster: Cluster, namespace: str) -> None:
    await cluster.create(POOLS[LEGACY_GROUP], namespace, pool("p", LABELS, [8001], resource=POOLS[LEGACY_GROUP]))
    await start_pod(cluster, namespace, "pod-0", LABELS, "fd00::1")
    async with following(api_server, KubeOptions(PoolByName("p", LEGACY_GROUP), namespace)) as followed:
        await until(followed.addresses, lambda said: said == {f"{namespace}/pod-0-rank-0": "[fd00::1]:8001"})


async def test_pods_by_a_selector_alone(api_server: ApiServer, cluster: Cluster, namespace: str) -> None:
    for name, labels in (("a", {"tier": "a"}), ("b", {"tier": "b"}), ("c", {"tier": "a", "canary": "yes"})):
        await start_pod(cluster, namespace, name, {"app": "vllm", **labels}, f"10.0.0.{ord(name)}")
    selector = parse_selector("app==vllm, tier in (a,c), !canary")
    source = PodsBySelector("epp", selector, (8000, 8001))
    async with following(api_server, KubeOptions(source, namespace)) as followed:
        ranks = {f"{namespace}/a-rank-0": "10.0.0.97:8000", f"{namespace}/a-rank-1": "10.0.0.97:8001"}
        await until(followed.addresses, lambda said: said == ranks)
        await cluster.patch(PODS, namespace, "c", {"metadata": {"labels": {"canary": None}}})
        await until(followed.addresses, lambda said: len(said) == 4)


async def test_what_is_missing_is_named(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """A kind that is not installed, a right that is not there, a token that is not known; and it goes on by itself when
    that is mended."""
    await cluster.create(POOL, namespace, pool("p", LABELS))
    await start_pod(cluster, namespace, "pod-0", LABELS, "10.0.0.1")
    options = KubeOptions(PoolByName("p"), namespace)
    async with following(api_server, options, kubeconfig=api_server.epp_kubeconfig) as followed:
        said = await until(followed.discovery.not_ready, lambda said: "forbidden" in said[0])
        for words in ("the verb list", "inferencepools", '"inference.networking.k8s.io"', f"namespace {namespace}"):
            assert words in said[0]
    api_server.write_kubeconfig(tmp_path / "k", "token-of-nobody")
    async with following(api_server, options, kubeconfig=tmp_path / "k") as followed:
        await until(followed.discovery.not_ready, lambda said: "credentials" in said[0])
        api_server.write_kubeconfig(tmp_path / "k", ADMIN_TOKEN)  # the token is rotated
        await until(followed.addresses, lambda said: len(said) == 1)
    legacy = POOLS[LEGACY_GROUP]
    await uninstall(cluster, legacy)
    async with following(api_server, KubeOptions(PoolByName("p", LEGACY_GROUP), namespace)) as followed:
        said = await until(followed.discovery.not_ready, lambda said: "not installed" in said[0])
        assert f"{legacy.name}/v1alpha2" in said[0]
        await install(cluster, legacy)
        await cluster.create(legacy, namespace, pool("p", LABELS, resource=legacy))
        await until(followed.addresses, lambda said: len(said) == 1)


async def test_objectives_and_rewrites_of_either_group(api_server: ApiServer, cluster: Cluster, namespace: str) -> None:
    """None is installed, then the older group, then both: the newer counts, without a restart. Those of other pools
    never count."""
    await uninstall(cluster, *OBJECTIVES, *REWRITES)
    seen: dict[str, Any] = {}

    def apply(priorities: Any, rewrites: Rewrites) -> None:
        seen.update(priorities=dict(priorities), rewrites=rewrites)

    def target(model: str | None) -> str | None:
        rewritten = seen["rewrites"].resolve(model, random.Random(1))
        return None if rewritten is None else rewritten.model

    client = KubeClient(lambda: load_access(str(api_server.kubeconfig)))
    source = PoolByName("p")
    errors: list[Any] = []
    policies = PolicySource(
        KubeOptions(source, namespace),
        source,
        client,
        apply,
        clock=time.monotonic,
        rng=random.Random(1),
        on_error=lambda *error: errors.append(error),
        timings=QUICK,
    )
    task = asyncio.create_task(policies.run())
    try:
        await until(policies.state, lambda said: len(said["problems"]) == 4)
        await install(cluster, OBJECTIVES[1], REWRITES[1])
        await cluster.create(OBJECTIVES[1], namespace, objective("batch", "p", -1, group=LEGACY_GROUP))
        await cluster.create(OBJECTIVES[1], namespace, objective("plain", "p", None, group=LEGACY_GROUP))
        await cluster.create(OBJECTIVES[1], namespace, objective("theirs", "q", 5, group=LEGACY_GROUP))
        old = rewrite("r", "p", [rule("a", to={"old": None})], group=LEGACY_GROUP)
        await cluster.create(REWRITES[1], namespace, old)
        await until(lambda: seen.get("priorities"), lambda said: said == {"batch": -1, "plain": 0})
        await until(lambda: target("a"), lambda said: said == "old")
        await install(cluster, OBJECTIVES[0], REWRITES[0])
        await cluster.create(OBJECTIVES[0], namespace, objective("batch", "p", 3))
        await cluster.create(
            REWRITES[0], namespace, rewrite("r", "p", [rule("a", to={"new": None}), rule(to={"any": 1})])
        )
        await until(lambda: seen.get("priorities"), lambda said: said == {"batch": 3})
        await until(lambda: [target("a"), target("b"), target(None)], lambda said: said == ["new", "any", "any"])
        await cluster.delete(OBJECTIVES[0], namespace, "batch")
        await until(lambda: seen.get("priorities"), lambda said: said == {})
        await uninstall(cluster, OBJECTIVES[0])
        await until(lambda: seen.get("priorities"), lambda said: said == {"batch": -1, "plain": 0})
        await install(cluster, OBJECTIVES[0])
        await until(lambda: seen.get("priorities"), lambda said: said == {})
        assert errors == []
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def test_in_a_pod_the_service_account_is_used_and_its_token_read_again(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.config import incluster_config

    token = tmp_path / "token"
    token.write_text("token-that-expired")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(api_server.ca_file))
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api_server.port)}
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    await cluster.create(POOL, namespace, pool("p", LABELS))
    await start_pod(cluster, namespace, "pod-0", LABELS, "10.0.0.1")
    async with following(api_server, KubeOptions(PoolByName("p"), namespace), access=lambda: load_access(None)) as f:
        await until(f.discovery.not_ready, lambda said: "credentials" in said[0])
        token.write_text(ADMIN_TOKEN)
        await until(f.addresses, lambda said: len(said) == 1)


async def test_without_a_way_to_an_api_server_there_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"nowhere.*--kubeconfig"):
        load_access(str(tmp_path / "nowhere"))
    (tmp_path / "half").write_text("apiVersion: v1\nkind: Config\nclusters: []\n")
    with pytest.raises(Problem, match=r"half.*--kubeconfig"):
        load_access(str(tmp_path / "half"))


class NoPages:
    async def collect(self) -> None: ...

    async def state(self, selection: Selection) -> dict[str, Any]:
        return {"decisions": []}

    async def plugins(self) -> dict[str, Any]:
        return {}


async def test_the_api_server_says_who_may_read_the_metrics_port(api_server: ApiServer, cluster: Cluster) -> None:
    """A right is to the page's path. Probes need none. Answers are remembered, and then asked for again."""
    now_s = 0.0
    client = KubeClient(lambda: load_access(str(api_server.kubeconfig)))
    admin = AdminServer(
        TcpAddress(0, "--metrics-port", "127.0.0.1"),
        registry=CollectorRegistry(),
        health=HealthState(list),
        pages=NoPages(),
        guard=reviewed_by(Reviewer(client, lambda: now_s)),
    )
    await admin.start()
    rule = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    subject = {"kind": "User", "name": EPP_USER, "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": "reads-metrics", "apiGroup": "rbac.authorization.k8s.io"}
    try:
        async with aiohttp.ClientSession() as http:

            async def status_of(path: str, authorization: str | None) -> int:
                headers = {} if authorization is None else {"Authorization": authorization}
                async with http.get(f"http://127.0.0.1:{admin.port}{path}", headers=headers) as response:
                    return response.status

            assert [await status_of(path, None) for path in ("/healthz", "/readyz")] == [200, 200]
            for nobody in (None, "Bearer", "Basic abc", "Bearer token-of-nobody"):
                assert await status_of("/metrics", nobody) == 401
            assert await status_of("/metrics", f"Bearer {EPP_TOKEN}") == 403
            await cluster.create(CLUSTER_ROLES, None, {"metadata": {"name": "reads-metrics"}, "rules": [rule]})
            binding = {"metadata": {"name": "reads-metrics"}, "roleRef": reference, "subjects": [subject]}
            await cluster.create(CLUSTER_ROLE_BINDINGS, None, binding)
            assert await status_of("/metrics", f"Bearer {EPP_TOKEN}") == 403  # remembered
            now_s += REMEMBER_S + 1
            assert await status_of("/metrics", f"bearer {EPP_TOKEN}") == 200
            assert await status_of("/debug/state", f"Bearer {EPP_TOKEN}") == 403
            assert await status_of("/debug/state", f"Bearer {ADMIN_TOKEN}") == 200
    finally:
        await cluster.delete(CLUSTER_ROLE_BINDINGS, None, "reads-metrics")
        await cluster.delete(CLUSTER_ROLES, None, "reads-metrics")
        await admin.stop()
        await client.close()


async def test_a_leader_goes_on_while_the_api_server_is_away_and_stands_by_when_it_reads_another_name(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    options = KubeOptions(PoolByName("p"), namespace, leader_election=LeaseTimings(1, 0.1), identity="us")
    lease = options.lease_name

    @asynccontextmanager
    async def taking_part(kubeconfig: Path) -> AsyncIterator[LeaderElection]:
        client = KubeClient(lambda: load_access(str(kubeconfig)))
        election = LeaderElection(
            options,
            LeaseTimings(1, 0.1),
            client,
            clock=time.monotonic,
            wall_clock=lambda: datetime.now(UTC),
            may_lead=lambda: may_lead,
            on_error=lambda *error: None,
        )
        task = asyncio.create_task(election.run())
        try:
            yield election
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()

    may_lead = True
    async with taking_part(api_server.epp_kubeconfig) as election:
        said = await until(election.not_ready, lambda said: said != [] and "forbidden" in said[0])
        assert "the verb get on the resource leases" in said[0]
    may_lead = False
    async with StallingProxy(api_server.port) as proxy:
        api_server.write_kubeconfig(tmp_path / "k", ADMIN_TOKEN, f"https://127.0.0.1:{proxy.port}")
        async with taking_part(tmp_path / "k") as election:
            await asyncio.sleep(0.5)
            assert await cluster.get(LEASES, namespace, lease) is None  # who could not serve does not take it
            may_lead = True
            await until(election.not_ready, lambda said: said == [])
            proxy.refuses = True
            await until(
                lambda: election.state()["problem"], lambda said: said is not None and "does not answer" in said
            )
            await cluster.patch(LEASES, namespace, lease, {"spec": {"holderIdentity": "them"}})
            assert election.is_leader
            proxy.refuses = False
            await until(election.not_ready, lambda said: said == ["standing by: them leads"])
            await until(election.not_ready, lambda said: said == [])  # they never renew it
            await election.resign()
            spec = (await cluster.get(LEASES, namespace, lease))["spec"]
            assert spec["holderIdentity"] == ""
            assert not election.is_leader
