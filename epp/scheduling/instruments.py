"""How plugins are called: timed if somebody wants to know, and never able to take a request down.

The framework has no clock and no metrics of its own. Whoever builds it may hand in a recorder and a timer.

Hooks that run one after another share their readings of the timer: what ends one begins the next. So the few steps of
the framework between two calls count with the later one, and timing costs 0.3 µs per call, not 0.8.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Plugin

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

    def durations(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        """Asked once per hook: whom to tell, after each of its calls, how many seconds it took."""

    def failure(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """`plugin` raised, or returned what it must not. The message of `error` may hold anything: do not log it."""


class Hook(NamedTuple, Generic[PluginT, R]):
    """One method of one plugin, ready to be called.

    Attributes:
        took: to be told the seconds of each call.
    """

    plugin: PluginT
    call: Callable[..., R]
    took: Callable[[float], None]


class Instruments:
    """Times and counts what plugins do.

    Args:
        recorder: `None` counts nothing.
        timer: monotonic seconds; `None` measures nothing.
    """

    def __init__(self, recorder: Recorder | None = None, timer: Callable[[], float] | None = None) -> None:
        self._recorder = recorder
        self._timed = recorder is not None and timer is not None
        self.timer = timer if self._timed and timer is not None else _no_time

    def hook(self, point: ExtensionPoint, plugin: PluginT, call: Callable[..., R]) -> Hook[PluginT, R]:
        if self._recorder is None or not self._timed:
            return Hook(plugin, call, _untold)
        return Hook(plugin, call, self._recorder.durations(point.value, plugin))

    def hooks(
        self, point: ExtensionPoint, plugins: Iterable[PluginT], method: Callable[[PluginT], Callable[..., R]]
    ) -> tuple[Hook[PluginT, R], ...]:
        """A hook per plugin, in order."""
        return tuple(self.hook(point, plugin, method(plugin)) for plugin in plugins)

    def failed(self, point: ExtensionPoint, plugin: Plugin, cycle: Cycle, error: Exception) -> None:
        """Count a failure, and leave a note of it in the decision record: what kind it was, never its message."""
        cycle.notes[plugin.name] = f"{point.value} failed: {type(error).__name__}"
        if self._recorder is not None:
            self._recorder.failure(point.value, plugin, error)

    def run_all(self, point: ExtensionPoint, hooks: Sequence[Hook[Any, None]], cycle: Cycle, *args: Any) -> None:
        """Call every hook with the cycle and `args`; a failure of one hides none of the others."""
        if not hooks:
            return
        timer = self.timer
        began_s = timer()
        for plugin, call, took in hooks:
            try:
                call(cycle, *args)
            except Exception as error:
                self.failed(point, plugin, cycle, error)
            ended_s = timer()
            took(ended_s - began_s)
            began_s = ended_s


def _no_time() -> float:
    return 0.0


def _untold(_seconds: float) -> None:
    pass
