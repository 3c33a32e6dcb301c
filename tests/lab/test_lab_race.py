"""Of several ways to run a schedule the best ones come to their end, with the very results that they have alone."""

from epp.lab.experiment import Experiment
from epp.lab.policies.catalogue import POLICIES
from epp.lab.pools import parse_pool
from epp.lab.race import fewest_lost
from epp.lab.workloads.single import Single
from epp.lab.workloads.workload import Clients, Targets, schedule
from epp.lab.world import run
from epp.lab.yardsticks import attainment, lost
from epp.sim.workload import Lengths

SHORT = Single("short", "", Targets(250.0, 12.0), 10.0, Lengths(6.5, 0.5, 2_000), Lengths(3.5, 0.5, 100))
NAMES = ("always-busiest", "least-requests", "lmetric", "power-of-two")


def experiments(rate_rps: float) -> list[Experiment]:
    planned = schedule(SHORT, Clients(SHORT.targets), rate_rps, 1, requests=300)
    policies = [POLICIES[name] for name in NAMES]
    return [Experiment(p.config_text, parse_pool("h100x2"), planned, plugins=p.plugins) for p in policies]


def test_the_best_of_a_race_is_the_best_of_whole_runs_and_the_worst_is_given_up() -> None:
    alone = [run(experiment) for experiment in experiments(80.0)]
    losses = [lost(result.served, *SHORT.targets) for result in alone]
    assert 0 < min(losses) < losses[0] == max(losses)
    raced = fewest_lost(experiments(80.0), lambda served: lost(served, *SHORT.targets), 300 / 80.0)
    whole = [result.served for result in alone]
    places = [whole.index(result.served) for result in raced]
    assert places == sorted(places)
    assert losses.index(min(losses)) in places
    assert 0 not in places
    best = max(raced, key=lambda result: attainment(result.served, *SHORT.targets) or 0.0)
    assert lost(best.served, *SHORT.targets) == min(losses)


def test_in_a_tie_all_come_to_their_end() -> None:
    raced = fewest_lost(experiments(40.0), lambda served: 0, 300 / 40.0)
    assert [result.served for result in raced] == [run(experiment).served for experiment in experiments(40.0)]
