"""From a resolved configuration to the pipeline that runs requests."""

from collections.abc import Callable

from epp.config.resolve import ResolvedConfig
from epp.scheduling.instruments import Recorder
from epp.scheduling.pipeline import Pipeline
from epp.scheduling.scheduler import Scheduler


def build_pipeline(
    resolved: ResolvedConfig, recorder: Recorder | None = None, timer: Callable[[], float] | None = None
) -> Pipeline:
    """Wire the instances together; `recorder` and `timer` as in `epp.scheduling.instruments`."""
    scheduler = Scheduler(resolved.profile_handler, resolved.profiles, recorder, timer)
    return Pipeline(resolved.plugins, scheduler, resolved.saturation_detector, recorder, timer)
