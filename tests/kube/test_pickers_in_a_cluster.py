"""Pickers as processes, against a real API server and behind the real Envoy. Pods are addresses of loopback."""

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from apiserver import ADMIN_TOKEN, EPP_USER, ApiServer, Cluster
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
    until,
)
from stalling_proxy import StallingProxy

from epp.kube.permissions import When
from epp.kube.rbac import manifests
from epp.kube.resources import OBJECTIVES, PODS, REWRITES, Resource
from epp.sim.bootstraps import render_bootstrap
from epp.sim.config import SimConfig
from epp.sim.envoyproxy import EnvoyError, EnvoyProxy, find_envoy
from epp.sim.picker_process import PickerProcess
from epp.sim.server import SimServer

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="module")]

LABELS = {"app": "sim"}
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings")


@pytest.fixture(scope="module")
def envoy_binary() -> Path:
    """The real Envoy; whatever needs it is skipped, saying so, where it is not installed."""
    try:
        return find_envoy()
    except EnvoyError as error:
        pytest.skip(f"needs the real Envoy. {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(api_server: ApiServer) -> AsyncIterator[Cluster]:
    async with Cluster(api_server) as cluster:
        await install(cluster, POOL, OBJECTIVES[0], REWRITES[0])
        yield cluster


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[list[SimServer]]:
    """On 127.0.0.1, 127.0.0.2, …, all on one port, as pods have it."""
    for _ in range(20):
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(SimServer(SimConfig(name="pod-0")))
            try:
                others = [
                    await stack.enter_async_context(
                        SimServer(SimConfig(name=f"pod-{i}", host=f"127.0.0.{i + 1}", port=first.port))
                    )
                    for i in range(1, count)
                ]
            except OSError:  # somebody has that port there
                continue
            yield [first, *others]
            return
    raise RuntimeError("no port is free on all addresses")


async def pods_for(cluster: Cluster, namespace: str, sims: list[SimServer]) -> None:
    await cluster.create(POOL, namespace, pool("p", LABELS, [sims[0].port]))
    for sim in sims:
        await start_pod(cluster, namespace, sim.config.name, LABELS, sim.config.host)


def picker(folder: Path, kubeconfig: Path, namespace: str, *flags: str) -> PickerProcess:
    folder.mkdir(exist_ok=True)
    where = ["--kubeconfig", str(kubeconfig), "--pool-name", "p", "--pool-namespace", namespace]
    return PickerProcess(folder, [*where, "--secure-serving=false", *flags])


async def readiness(process: PickerProcess) -> str:
    """`ok`, or why not."""
    async with aiohttp.ClientSession() as client, client.get(process.metrics_url + "/readyz") as response:
        return await response.text()


async def ready(process: PickerProcess) -> None:
    await until(lambda: readiness(process), lambda said: said == "ok\n")


async def addresses(process: PickerProcess) -> list[str]:
    return sorted(endpoint["address"] for endpoint in (await process.state())["pool"]["endpoints"])


async def followed_policies(process: PickerProcess) -> dict[str, Any]:
    said = (await process.state())["kubernetes"]["policies"]
    return {"objectives": said["objectives"]["priorities"], "rewrites": said["rewrites"]["objects"]}


async def grant(cluster: Cluster, namespace: str) -> None:
    """To the user `epp` what the code says that it needs, and nothing else."""
    (role,) = manifests("picker", namespace, {When.DISCOVERY, When.POOL, When.LEADER_ELECTION})
    await cluster.create(ROLES, namespace, role)
    binding = {
        "metadata": {"name": "picker"},
        "roleRef": {"apiGroup": ROLES.group, "kind": "Role", "name": "picker"},
        "subjects": [{"kind": "User", "name": EPP_USER}],
    }
    await cluster.create(ROLE_BINDINGS, namespace, binding)


async def test_requests_reach_ready_pods_by_the_rights_of_the_role(
    api_server: ApiServer, cluster: Cluster, namespace: str, envoy_binary: Path, tmp_path: Path
) -> None:
    """Without rights the picker says which are missing; with the Role that is written from the code it becomes ready.
    A pod that turns unready gets no more requests, and what it streams goes on to its end."""
    async with AsyncExitStack() as stack:
        sims = await stack.enter_async_context(servers(3))
        await pods_for(cluster, namespace, sims)
        await cluster.create(REWRITES[0], namespace, rewrite("r", "p", [rule("alias", to={sims[0].config.model: 1})]))
        await cluster.create(OBJECTIVES[0], namespace, objective("batch", "p", -7))
        process = await stack.enter_async_context(picker(tmp_path, api_server.epp_kubeconfig, namespace))
        said = await until(lambda: readiness(process), lambda said: "forbidden" in said)
        for words in ("the verb list", "the resource inferencepools", "inference.networking.k8s.io", namespace):
            assert words in said
            assert words in process.log()
        await grant(cluster, namespace)
        await ready(process)

        members = [sim.address for sim in sims]
        bootstrap = render_bootstrap(
            epp_address=f"127.0.0.1:{process.ports['grpc']}", epp_tls=False, endpoints=members, fail_open=False
        )
        envoy = await stack.enter_async_context(EnvoyProxy(bootstrap))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))

        async def ask(headers: dict[str, str] | None = None) -> tuple[int, str]:
            """Status, and the model that answered, by its own word."""
            body = {"model": "alias", "prompt": uuid.uuid4().hex, "max_tokens": 1}
            async with client.post(f"{envoy.url}/v1/completions", json=body, headers=headers) as response:
                return response.status, (await response.json()).get("model", "")

        policies = {"objectives": {"batch": -7}, "rewrites": ["r"]}
        await until(lambda: followed_policies(process), lambda said: said == policies)
        assert await ask({"x-llm-d-inference-objective": "batch"}) == (200, "alias")
        request = (await process.state())["decisions"][0]["request"]
        assert (request["priority"], request["target_model"]) == (-7, sims[0].config.model)

        async def stream() -> bytes:
            body = {"model": "alias", "prompt": "x", "max_tokens": 400, "stream": True}
            async with client.post(f"{envoy.url}/v1/completions", json=body) as response:
                return await response.read()

        streaming = asyncio.create_task(stream())
        await until(lambda: [s for s in sims if s.engine.metrics().running], lambda busy: len(busy) == 1)
        (busy,) = [sim for sim in sims if sim.engine.metrics().running]
        name = busy.config.name
        await cluster.patch(PODS, namespace, name, status(busy.config.host, ready=False), status=True)
        await until(lambda: addresses(process), lambda said: busy.address not in said)
        assert busy.engine.metrics().running == 1
        before = busy.recorder.total
        assert [await ask() for _ in range(8)] == [(200, "alias")] * 8
        assert busy.recorder.total == before
        answer = await streaming
        assert answer.rstrip().endswith(b"data: [DONE]")
        assert b'"model":"alias"' in answer.replace(b": ", b":")


async def test_a_leader_that_is_killed_or_told_to_stop_is_succeeded(
    api_server: ApiServer, cluster: Cluster, namespace: str, envoy_binary: Path, tmp_path: Path
) -> None:
    """Of two pickers one is ready. When it is killed the other becomes ready, and when that one is told to stop, a
    third. Clients notice nothing."""
    flags = ["--ha-enable-leader-election", "--drain-timeout", "2s"]

    async def leads(process: PickerProcess) -> bool:
        return (await process.state())["kubernetes"]["leader_election"]["is_leader"]

    async with AsyncExitStack() as stack:
        sims = await stack.enter_async_context(servers(2))
        await pods_for(cluster, namespace, sims)
        pickers = [picker(tmp_path / name, api_server.kubeconfig, namespace, *flags) for name in ("a", "b")]
        for process in pickers:
            await stack.enter_async_context(process)
        await until(lambda: asyncio.gather(*map(leads, pickers)), lambda said: sorted(said) == [False, True])
        first, second = pickers if await leads(pickers[0]) else reversed(pickers)
        await ready(first)
        assert "standing by" in await readiness(second)

        bootstrap = render_bootstrap(
            epp_address=[f"127.0.0.1:{process.ports['grpc']}" for process in (first, second)],
            epp_tls=False,
            endpoints=[sim.address for sim in sims],
        )
        envoy = await stack.enter_async_context(EnvoyProxy(bootstrap))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        over = asyncio.Event()

        async def keep_asking() -> list[int]:
            statuses = []
            while not over.is_set():
                body = {"model": sims[0].config.model, "prompt": uuid.uuid4().hex, "max_tokens": 2}
                async with client.post(f"{envoy.url}/v1/completions", json=body) as response:
                    await response.read()
                    statuses.append(response.status)
            return statuses

        clients = [asyncio.create_task(keep_asking()) for _ in range(4)]
        await asyncio.sleep(0.5)
        killed_s = time.monotonic()
        await first.kill()
        await ready(second)
        print(f"another leads {time.monotonic() - killed_s:.2f} s after the leader was killed")

        third = await stack.enter_async_context(picker(tmp_path / "c", api_server.kubeconfig, namespace, *flags))
        assert "standing by" in await until(lambda: readiness(third), lambda said: "leads" in said)
        stopped_s = time.monotonic()
        await second.signal(signal.SIGTERM)
        await ready(third)
        print(f"another leads {time.monotonic() - stopped_s:.2f} s after the leader was told to stop")
        assert await second.wait() == 0
        over.set()
        statuses = [status for statuses in await asyncio.gather(*clients) for status in statuses]
        assert set(statuses) == {200}


async def test_a_picker_follows_changes_and_stops_when_what_it_knows_is_too_old(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """With the API server out of reach the last good pool stands, until its age is reached and requests are refused.
    When it is back they are routed again, to the pods that there are then."""
    await cluster.create(POOL, namespace, pool("p", {"app": "vllm"}, [8000, 8001]))
    changes = Changes(cluster, namespace, "p", seed=11)

    async def pool_of(process: PickerProcess) -> dict[str, str]:
        return {e["id"]: e["address"] for e in (await process.state())["pool"]["endpoints"]}

    async def follows(what: str) -> None:
        wanted = await changes.truth()
        await until(lambda: pool_of(process), lambda said: said == wanted)

    async def age_s(process: PickerProcess) -> float:
        page = (await process.ask("/metrics")).decode()
        (line,) = [line for line in page.splitlines() if line.startswith("llm_d_epp_pool_snapshot_age_seconds{")]
        return float(line.rpartition(" ")[2])

    async with StallingProxy(api_server.port) as proxy:
        api_server.write_kubeconfig(tmp_path / "k", ADMIN_TOKEN, f"https://127.0.0.1:{proxy.port}")
        flags = ["--max-snapshot-age", "3s", "--refresh-metrics-interval", "10s"]
        async with picker(tmp_path, tmp_path / "k", namespace, *flags) as process:
            for _ in range(40):
                await follows(await changes.one())
            await start_pod(cluster, namespace, "last", {"app": "vllm", "tier": "a"}, "10.9.9.9")
            body = {"spec": {"selector": {"matchLabels": {"app": "vllm", "tier": None}}}}
            await cluster.patch(POOL, namespace, "p", body)
            last_good = await until(lambda: pool_of(process), lambda said: f"{namespace}/last-rank-0" in said)
            await ready(process)
            proxy.refuses = True
            proxy.cut()
            await cluster.delete(PODS, namespace, "last")
            said = await until(lambda: readiness(process), lambda said: said != "ok\n")
            assert "silent for longer than --max-snapshot-age" in said
            assert await pool_of(process) == last_good
            assert await age_s(process) > 3
            assert "does not answer" in (await process.state())["kubernetes"]["problems"][0]
            proxy.refuses = False
            await until(lambda: pool_of(process), lambda said: f"{namespace}/last-rank-0" not in said)
            await until(lambda: readiness(process), lambda said: "silent" not in said)
            assert await age_s(process) < 15


async def test_an_unready_pod_is_left_at_once_and_a_restart_of_the_api_server_costs_nothing(
    api_server: ApiServer, cluster: Cluster, namespace: str, envoy_binary: Path, tmp_path: Path
) -> None:
    """Under traffic without a pause. It is measured how long after its pod turned unready a server gets its last
    request: one second is what we want, 5 s what a busy machine may take. Then the API server is killed: requests are
    routed on; when it is back changes are followed again."""
    async with AsyncExitStack() as stack:
        sims = await stack.enter_async_context(servers(3))
        await pods_for(cluster, namespace, sims)
        process = await stack.enter_async_context(picker(tmp_path, api_server.kubeconfig, namespace))
        await ready(process)
        bootstrap = render_bootstrap(
            epp_address=f"127.0.0.1:{process.ports['grpc']}",
            epp_tls=False,
            endpoints=[sim.address for sim in sims],
            fail_open=False,
        )
        envoy = await stack.enter_async_context(EnvoyProxy(bootstrap))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        over, statuses, pause_s = asyncio.Event(), [], 0.01

        async def keep_asking() -> None:
            while not over.is_set():
                body = {"model": sims[0].config.model, "prompt": uuid.uuid4().hex, "max_tokens": 1}
                async with client.post(f"{envoy.url}/v1/completions", json=body) as response:
                    await response.read()
                    statuses.append(response.status)
                await asyncio.sleep(pause_s)

        async def turn(sim: SimServer, *, is_ready: bool) -> None:
            body = status(sim.config.host, ready=is_ready)
            await cluster.patch(PODS, namespace, sim.config.name, body, status=True)

        async def reached(sim: SimServer) -> None:
            before = sim.recorder.total
            await until(lambda: sim.recorder.total, lambda total: total > before)

        async def left_after_s(sim: SimServer) -> float:
            """From just before the change is written until the last request that reaches the server."""
            await reached(sim)
            total, answered = sim.recorder.total, len(statuses)
            started_s = last_s = time.monotonic()
            turning = asyncio.create_task(turn(sim, is_ready=False))
            # It is left when nothing has reached it for a second in which the others answered.
            while time.monotonic() - last_s < 1 or len(statuses) < answered + 20:
                if sim.recorder.total > total:
                    total, answered, last_s = sim.recorder.total, len(statuses), time.monotonic()
                assert last_s - started_s < 5, "requests reach a pod that is not ready"
                await asyncio.sleep(0.005)
            await turning
            await turn(sim, is_ready=True)
            await reached(sim)
            return last_s - started_s

        clients = [asyncio.create_task(keep_asking()) for _ in range(4)]
        took_s = [await left_after_s(sim) for sim in sims]

        everyone = await addresses(process)
        await asyncio.to_thread(api_server.kill)
        pause_s = 0.2  # leave the machine to the API server, which takes seconds to start

        async def problems() -> list[str]:
            return (await process.state())["kubernetes"]["problems"]

        await until(problems, lambda said: any("does not answer" in problem for problem in said))
        for sim in sims:
            await reached(sim)
        assert (await readiness(process), await addresses(process)) == ("ok\n", everyone)
        await asyncio.to_thread(api_server.start)
        await until(problems, lambda said: said == [])
        pause_s = 0.01
        took_s.append(await left_after_s(sims[0]))
        print(f"last requests {', '.join(f'{took * 1000:.0f}' for took in took_s)} ms after pods turned unready")
        over.set()
        await asyncio.gather(*clients)
        assert set(statuses) == {200}
