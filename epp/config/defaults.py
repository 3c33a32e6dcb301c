"""What a configuration need not say: one small function per rule, after llm-d's defaults.

Where llm-d leaves a choice to the order of a map, ours is the order of the file.
"""

# mypy: disable-error-code="type-abstract"
# Roles are abstract classes; they are passed on here to ask for instances, never to be instantiated.

from epp.config.builtins import BUILT_INS, DEFAULT_BUILT_IN
from epp.config.draft import Draft
from epp.config.errors import KeyPath, printable
from epp.config.schema import PluginReference, ProfilePlugin, SchedulingProfile, SourceSpec
from epp.inference.apis import DEFAULT_PARSERS
from epp.scheduling.plugin import Filter, Picker, Plugin, Producer, ProfileHandler, Scorer

DEFAULT_CONFIG = BUILT_INS[DEFAULT_BUILT_IN].text
"""What runs when nothing is configured (llm-d default)."""

DEFAULT_PROFILE = "default"
PROFILE_HANDLER = "single-profile-handler"
PICKER = "max-score-picker"
SATURATION_DETECTOR = "utilization-detector"
METRICS_SOURCE = "metrics-data-source"
METRICS_EXTRACTOR = "core-metrics-extractor"
SCORER_WEIGHT = 1.0


def default_profile(draft: Draft) -> SchedulingProfile:
    """No profiles: one that has every declared filter, scorer and picker, in the order of the file."""
    names = [name for name, plugin in draft.instances.items() if isinstance(plugin, Filter | Scorer | Picker)]
    return SchedulingProfile.model_construct(
        name=DEFAULT_PROFILE, plugins=tuple(ProfilePlugin.model_construct(plugin_ref=name) for name in names)
    )


def default_profile_handler(draft: Draft) -> ProfileHandler | None:
    """One profile and no handler: the handler of a single profile."""
    handler = draft.inject(PROFILE_HANDLER)
    return draft.find(handler.name, ProfileHandler, "a profile handler", ())


def default_picker(draft: Draft, profile: KeyPath) -> Picker | None:
    """A profile without a picker: the first that is declared, else the best score."""
    declared = list(draft.of_role(Picker))
    if len(declared) > 1:
        names = ", ".join(map(printable, declared))
        draft.notice(profile, f"no picker is listed; of {names} the first is taken", "list the one you want")
    name = declared[0] if declared else draft.inject(PICKER).name
    return draft.find(name, Picker, "a picker", profile)


def default_parsers(draft: Draft) -> list[PluginReference]:
    """No parsers: all common APIs, and everything else passed through."""
    for name in DEFAULT_PARSERS:
        draft.inject(name)
    return [PluginReference.model_construct(plugin_ref=name) for name in DEFAULT_PARSERS]


def default_saturation_detector(draft: Draft) -> PluginReference:
    return PluginReference.model_construct(plugin_ref=draft.inject(SATURATION_DETECTOR).name)


def default_source(draft: Draft) -> SourceSpec | None:
    """No source that reads the core metrics: the metrics source, as declared or with its defaults.

    llm-d goes by the names of the instances and would scrape twice when they are renamed; we go by their types.
    """
    for source in draft.spec.data_layer.sources:
        if source.plugin_ref == METRICS_SOURCE:
            return None
        extractors = [e.plugin_ref for e in source.extractors]
        if _is_a(draft, source.plugin_ref, METRICS_SOURCE) and any(
            _is_a(draft, extractor, METRICS_EXTRACTOR) for extractor in extractors
        ):
            return None
    extractor = PluginReference.model_construct(plugin_ref=_declared_or_injected(draft, METRICS_EXTRACTOR))
    return SourceSpec.model_construct(plugin_ref=_declared_or_injected(draft, METRICS_SOURCE), extractors=(extractor,))


def add_missing_producers(draft: Draft) -> None:
    """Every producer that somebody reads from by its default name, and those that it reads from itself."""
    waiting: list[Plugin] = list(draft.instances.values())
    while waiting:
        reader = waiting.pop(0)
        at = draft.declared_at.get(reader.name, ())
        for key in reader.consumes:
            if key.producer == key.kind.default_producer and key.producer not in draft.instances:
                waiting.append(draft.inject(key.producer))
            maker = draft.instances.get(key.producer)
            if not isinstance(maker, Producer) or key not in maker.produces:
                makers = [name for name, p in draft.of_role(Producer).items() if key.kind.by(name) in p.produces]
                message = (
                    f"plugin '{printable(reader.name)}' reads {key.kind.name} of the producer "
                    f"'{printable(key.producer)}', which {'does not make it' if maker else 'is not configured'}"
                )
                fix = f"there are: {', '.join(map(printable, makers))}" if makers else "declare one under `plugins`"
                draft.problem(at, message, fix)


def _declared_or_injected(draft: Draft, type_name: str) -> str:
    """Name of the instance of that name, else of the first of that type, else of a new one."""
    if type_name not in draft.instances:
        for name in draft.declared_at:
            if _is_a(draft, name, type_name):
                return name
    return draft.inject(type_name).name


def _is_a(draft: Draft, name: str, type_name: str) -> bool:
    return name in draft.instances and draft.instances[name].plugin_type == type_name
