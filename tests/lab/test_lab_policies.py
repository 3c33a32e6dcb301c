"""The policies: what they see, and what they choose in situations that tell them apart."""

import ast
import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np
import pytest

from epp.config.resolve import load_config
from epp.lab import oracle, policies, runs
from epp.lab.experiment import Experiment, LabRequest, LabResult, Served
from epp.lab.policies.cache import CacheAware, LeastLoad, LMetric
from epp.lab.policies.catalogue import POLICIES
from epp.lab.policies.load import AlwaysBusiest, ModelDock, PowerOfTwo, RoundRobin
from epp.lab.policies.view import View
from epp.lab.runs import run_spec
from epp.lab.servers import Live, Server
from epp.lab.spec import RunSpec
from epp.lab.world import World
from epp.ledger import Ledger
from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Plugin, Services
from epp.scheduling.registry import Registry
from epp.sim.engine import Engine

SIMULATOR = (World, Server, Engine, LabRequest, Live, Served)
SPEC = RunSpec("azure-conv", "h100x2", "", rate_rps=20.0, duration_s=1.5)


def reachable(roots: list[object], kinds: tuple[type, ...]) -> set[str]:
    """Names of the types, of these, that can be reached from objects without going through modules.

    Of a function what it holds on to: its closure's cells, its defaults and attributes; not the globals of its module.
    A bound method leads to its object, a weak reference to what it is of, a class of ours to its attributes.
    """
    seen, todo, found = set(), list(roots), set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, ModuleType):
            continue
        seen.add(id(thing))
        if isinstance(thing, kinds):
            found.add(type(thing).__name__)
        if isinstance(thing, FunctionType):
            todo += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
        elif isinstance(thing, type):
            todo += [vars(thing)] if thing.__module__.startswith(("epp.", __name__)) else []
        elif isinstance(thing, BuiltinFunctionType):
            todo.append(thing.__self__)
        else:
            todo += gc.get_referents(thing)
            if isinstance(thing, weakref.ref):
                todo.append(thing())
    return found


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[str]]:
    """Runs a policy by `run_spec`, as tables do, and says what of the simulator its plugins could reach, in the middle
    of the run and at its end. The wiring is that of `epp.lab.runs`: what its experiment makes of the picker's services
    is looked at, not replaced."""
    given: list[Services] = []
    held: set[str] = set()

    def look() -> None:
        plugins = [thing for thing in gc.get_objects() if isinstance(thing, Plugin) and thing.services in given]
        assert plugins
        held.update(reachable([*plugins, *given], SIMULATOR))

    def watched(experiment: Experiment) -> LabResult:
        def noted(services: Services, world: World) -> Services:
            given.append(experiment.services_of(services, world))
            return given[-1]

        world = World(replace(experiment, services_of=noted))
        world._at(0.8, look)  # while some are answered and others wait
        result = world.run()
        look()
        assert any(served.at_s < 0.8 < (served.ended_s or 0.0) for served in result.served)
        return result

    def reached_by(policy: str) -> set[str]:
        monkeypatch.setattr(runs, "run", watched)
        run_spec(replace(SPEC, policy=policy))
        assert given
        return held

    return reached_by


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_holds_on_to_nothing_of_the_simulator(name: str, watch: Callable[[str], set[str]]) -> None:
    assert watch(name) == set()


def test_that_test_would_find_out_a_policy_that_is_given_foresight(
    watch: Callable[[str], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "only_what_a_picker_has", oracle.with_foresight)
    assert {"World", "Server", "Engine", "LabRequest"} <= watch("lmetric")


class Secret:
    """What is looked for."""


class Hides:
    """An object to hide things in."""

    inside: object = None

    def method(self) -> None:
        """Bound, it holds on to the object."""


def hidden_in_a_closure(thing: object) -> object:
    return lambda: thing


def hidden_in_a_closure_of_a_closure(thing: object) -> object:
    inner = hidden_in_a_closure(thing)
    return [lambda: inner]


def hidden_in_a_default(thing: object) -> object:
    def function(default: object = thing) -> object:
        return default

    return function


def hidden_in_a_keyword_default(thing: object) -> object:
    return {"key": lambda *, default=thing: default}


def hidden_in_an_attribute_of_a_function(thing: object) -> object:
    def function() -> None:
        pass

    function.thing = thing  # type: ignore[attr-defined]
    return function


def hidden_in_a_bound_method(thing: object) -> object:
    hides = Hides()
    hides.inside = thing
    return hides.method


def hidden_in_a_bound_method_of_a_list(thing: object) -> object:
    return [thing].append


def hidden_in_a_partial(thing: object) -> object:
    return partial(print, thing)


def hidden_in_a_class(thing: object) -> object:
    return type("Hiding", (Hides,), {"inside": thing})()


def hidden_behind_a_weak_reference(thing: object) -> object:
    return (weakref.ref(thing),)


def hidden_in_a_generator(thing: object) -> object:
    return (kept for kept in [thing])


@pytest.mark.parametrize(
    "hide",
    [function for name, function in globals().items() if name.startswith("hidden_")],
    ids=lambda function: function.__name__.removeprefix("hidden_"),
)
def test_the_walk_finds_what_is_hidden(hide: Callable[[object], object]) -> None:
    secret = Secret()
    assert reachable([hide(secret)], (Secret,)) == {"Secret"}
    assert reachable([hide(Hides())], (Secret,)) == set()


AROUND = {"gc", "inspect", "ctypes", "traceback", "_getframe", "_current_frames", "settrace", "setprofile"} | {
    *("f_back", "f_locals", "tb_frame", "gi_frame", "cr_frame", "__import__", "import_module", "eval", "exec"),
}
"""Names by which code finds what nobody gave it: all objects there are, its callers, and modules by other names."""


def ways_around(source: str) -> set[str]:
    """Those of these names that a module imports, uses, or has as text, as `getattr` takes them."""
    used: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import() | ast.ImportFrom():
                names = [alias.name for alias in node.names]
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                used.update(part for name in [*names, *modules] for part in name.split("."))
            case ast.Name():
                used.add(node.id)
            case ast.Attribute():
                used.add(node.attr)
            case ast.Constant(value=str()):
                used.add(node.value)
    return used & AROUND


def test_no_policy_looks_for_what_it_was_not_given() -> None:
    modules = sorted(Path(policies.__path__[0]).rglob("*.py"))
    assert len(modules) > 5
    assert {path.name: ways_around(path.read_text()) for path in modules} == {path.name: set() for path in modules}


@pytest.mark.parametrize(
    "source",
    [
        "import gc",
        "import gc as rubbish",
        "def f():\n    from gc import get_objects",
        "import inspect",
        "from inspect import currentframe as here",
        "import sys\nsys._getframe(1)",
        "from sys import _getframe",
        "import sys\ngetattr(sys, '_getframe')(1)",
        "import sys\nsys._current_frames()",
        "def f(error):\n    return error.__traceback__.tb_frame",
        "import importlib\nimportlib.import_module('x')",
        "__import__('x')",
    ],
)
def test_that_test_would_find_it_out(source: str) -> None:
    assert ways_around(source)


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
