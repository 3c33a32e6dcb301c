"""The policies: what they see, and what they choose in situations that tell them apart."""

import gc
import random
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np
import pytest

from epp.config.resolve import load_config
from epp.lab import oracle
from epp.lab.experiment import Experiment, LabRequest, Served
from epp.lab.policies.cache import CacheAware, LeastLoad, LMetric
from epp.lab.policies.catalogue import POLICIES
from epp.lab.policies.load import AlwaysBusiest, ModelDock, PowerOfTwo, RoundRobin
from epp.lab.policies.view import View
from epp.lab.pools import parse_pool
from epp.lab.servers import Live, Server
from epp.lab.workloads.catalogue import WORKLOADS
from epp.lab.workloads.workload import Clients, Targets, schedule
from epp.lab.world import World
from epp.ledger import Ledger
from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Plugin, Services
from epp.scheduling.registry import Registry
from epp.sim.engine import Engine


def reachable(roots: list[object], kinds: tuple[type, ...]) -> set[str]:
    """Names of the types, of these, that can be reached from objects without going through code or modules."""
    seen, todo, found = set(), list(roots), set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            continue
        seen.add(id(thing))
        if isinstance(thing, kinds):
            found.add(type(thing).__name__)
        todo += gc.get_referents(thing)
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_holds_on_to_nothing_of_the_simulator(name: str) -> None:
    policy = POLICIES[name]
    given: list[Services] = []

    def noted(services: Services, world: World) -> Services:
        given.append(services)
        return services

    requests = schedule(WORKLOADS["azure-conv"], Clients(Targets(200.0, 25.0)), 20.0, seed=1, requests=20)
    servers = parse_pool("h100x2")
    world = World(Experiment(policy.config_text, servers, requests, plugins=policy.plugins, services_of=noted))
    held: set[str] = set()

    def look() -> None:
        plugins = [thing for thing in gc.get_objects() if isinstance(thing, Plugin) and thing.services in given]
        assert plugins
        held.update(reachable([*plugins, *given], (World, Server, Engine, LabRequest, Live, Served)))

    world._at(0.8, look)  # while some are answered and others wait
    result = world.run()
    look()
    assert any(served.at_s < 0.8 < (served.ended_s or 0.0) for served in result.served)
    assert held == set()


def test_that_test_would_find_the_oracle_out() -> None:
    given: list[Services] = []

    def noted(services: Services, world: World) -> Services:
        given.append(oracle.with_foresight(services, world))
        return given[-1]

    policy = oracle.policy_of()
    World(Experiment(policy.config_text, parse_pool("h100"), (), plugins=policy.plugins, services_of=noted)).run()
    assert {"World", "Server", "Engine"} <= reachable(list(given), (World, Server, Engine, LabRequest))


def test_the_oracle_runs_in_the_lab_only() -> None:
    policy = oracle.policy_of()
    with pytest.raises(Exception, match="the oracle runs in the lab only"):
        load_config(
            policy.config_text,
            filename="x",
            registry=Registry([*map(Registry.discover().get, Registry.discover()), *policy.plugins]),
            services=Services(ledger=Ledger()),
        )


def view(**columns: list[float]) -> View:
    nothing = [0.0] * len(next(iter(columns.values())))
    return View(**{name: np.array(columns.get(name, nothing), dtype=float) for name in View.__dataclass_fields__})


def chosen(kind: type, seen: View, seed: int = 1) -> list[int]:
    plugin = kind(kind.plugin_type, None, Services(ledger=Ledger()))
    cycle = Cycle(request=None, now_s=0.0, rng=random.Random(seed))  # type: ignore[arg-type]
    return np.flatnonzero(plugin.best(cycle, seen)).tolist()


@pytest.mark.parametrize(
    ("kind", "seen", "best"),
    [
        (AlwaysBusiest, view(requests=[1, 5, 5]), [1, 2]),
        (ModelDock, view(requests=[3, 1], waiting=[0, 1], running=[1, 1], kv_usage_ratio=[0.1, 0.2]), [0]),
        (CacheAware, view(requests=[30, 2], match_ratio=[0.9, 0.0]), [0]),  # the match counts
        (CacheAware, view(requests=[30, 2], match_ratio=[0.3, 0.0]), [1]),  # too short a match
        (CacheAware, view(requests=[90, 2], match_ratio=[0.9, 0.0]), [1]),  # out of balance
        (LMetric, view(requests=[3, 0], uncached_tokens=[100, 1000]), [0]),  # 400 to 1,000
        (LMetric, view(requests=[9, 0], uncached_tokens=[100, 999]), [1]),  # 1,000 to 999
        (LeastLoad, view(uncached_tokens=[1000, 1000], kv_usage_ratio=[0.9, 0.1]), [1]),
    ],
)
def test_whom_a_policy_takes(kind: type, seen: View, best: list[int]) -> None:
    assert chosen(kind, seen) == best


def test_round_robin_takes_each_in_turn_and_power_of_two_never_the_busiest_of_three() -> None:
    plugin = RoundRobin("r", None, Services(ledger=Ledger()))
    turns = [int(np.flatnonzero(plugin.best(None, view(requests=[0, 0, 0])))[0]) for _ in range(6)]  # type: ignore[arg-type]
    assert sorted(turns[:3]) == [0, 1, 2]
    assert turns[3:] == turns[:3]
    picks = {chosen(PowerOfTwo, view(requests=[9, 1, 2]), seed)[0] for seed in range(30)}
    assert picks == {1, 2}
