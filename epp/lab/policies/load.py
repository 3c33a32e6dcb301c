"""Policies that look at load alone."""

import numpy as np

from epp.lab.policies.view import View, ViewPicker, lowest
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import BoolArray


class RoundRobin(ViewPicker):
    """Each in turn."""

    plugin_type = "lab-round-robin"
    _turn = 0

    def best(self, cycle: Cycle, view: View) -> BoolArray:
        self._turn += 1
        servers = len(view.requests)
        whose: BoolArray = np.arange(servers) == self._turn % servers
        return whose


class PowerOfTwo(ViewPicker):
    """Of two taken by chance the one with fewer requests in flight."""

    plugin_type = "lab-power-of-two"

    def best(self, cycle: Cycle, view: View) -> BoolArray:
        servers = len(view.requests)
        two = cycle.rng.sample(range(servers), min(2, servers))
        among = np.full(servers, np.inf)
        among[two] = view.requests[two]
        return lowest(among)


class AlwaysBusiest(ViewPicker):
    """Deliberately bad: every measure of goodness must rank it last."""

    plugin_type = "lab-always-busiest"

    def best(self, cycle: Cycle, view: View) -> BoolArray:
        return lowest(-view.requests)


class ModelDock(ViewPicker):
    """The baseline of the ModelDock gateway: in flight + 2 · waiting + running + 10 · KV use."""

    plugin_type = "lab-modeldock"

    def best(self, cycle: Cycle, view: View) -> BoolArray:
        return lowest(view.requests + 2 * view.waiting + view.running + 10 * view.kv_usage_ratio)
