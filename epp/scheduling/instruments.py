"""How plugins are called: timed if somebody wants to know, and never able to take a request down.

The framework has no clock and no metrics of its own. Whoever builds it may hand in a recorder and a timer; without them
a hook is the plugin's bare method and costs nothing more.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Plugin

P = ParamSpec("P")
R = TypeVar("R")
PluginT = TypeVar("PluginT", bound=Plugin)


class ExtensionPoint(Enum):
    """The names under which llm-d's metrics report durations, in the order of time."""

    REQUEST_HEADER = "RequestHeader"
    SCREENER = "Screener"
    DATA_PRODUCER = "DataProducer"
    ADMISSION = "Admission"
    PROFILE_PICKER = "ProfilePicker"
    FILTER = "Filter"
    SCORER = "Scorer"
    PICKER = "Picker"
    PROCESS_RESULTS = "ProcessProfilesResults"
    PRE_REQUEST = "PreRequest"
    RESPONSE_RECEIVED = "ResponseReceived"
    FIRST_TOKEN = "FirstToken"  # ours: llm-d has no hook of its own for it
    RESPONSE_STREAMING = "ResponseStreaming"
    RESPONSE_COMPLETE = "ResponseComplete"


class Recorder(Protocol):
    """Where durations and failures of plugins are counted."""

    def record(self, extension_point: str, plugin: Plugin, seconds: float) -> None:
        """One call of `plugin` took so long."""

    def failure(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """`plugin` raised, or returned what it must not. The message of `error` may hold anything: do not log it."""


class Hook(NamedTuple, Generic[PluginT, R]):
    """One method of one plugin, ready to be called."""

    plugin: PluginT
    call: Callable[..., R]


class Instruments:
    """Times and counts what plugins do.

    Args:
        recorder: `None` counts nothing.
        timer: monotonic seconds; `None` measures nothing.
    """

    def __init__(self, recorder: Recorder | None = None, timer: Callable[[], float] | None = None) -> None:
        self._recorder = recorder
        self._timer = timer

    def bind(self, point: ExtensionPoint, plugin: Plugin, call: Callable[P, R]) -> Callable[P, R]:
        """`call` itself, or a version of it that is timed."""
        recorder, timer = self._recorder, self._timer
        if recorder is None or timer is None:
            return call
        name, record = point.value, recorder.record

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            started_s = timer()
            try:
                return call(*args, **kwargs)
            finally:
                record(name, plugin, timer() - started_s)

        return timed

    def hooks(
        self, point: ExtensionPoint, plugins: Iterable[PluginT], method: Callable[[PluginT], Callable[..., R]]
    ) -> tuple[Hook[PluginT, R], ...]:
        """A hook per plugin, in order."""
        return tuple(Hook(plugin, self.bind(point, plugin, method(plugin))) for plugin in plugins)

    def failed(self, point: ExtensionPoint, plugin: Plugin, cycle: Cycle, error: Exception) -> None:
        """Count a failure, and leave a note of it in the decision record: what kind it was, never its message."""
        cycle.notes[plugin.name] = f"{point.value} failed: {type(error).__name__}"
        if self._recorder is not None:
            self._recorder.failure(point.value, plugin, error)

    def run_all(self, point: ExtensionPoint, hooks: Iterable[Hook[Any, None]], cycle: Cycle, *args: Any) -> None:
        """Call every hook with the cycle and `args`; a failure of one hides none of the others."""
        for plugin, call in hooks:
            try:
                call(cycle, *args)
            except Exception as error:
                self.failed(point, plugin, cycle, error)
