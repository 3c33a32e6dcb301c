"""From the text of a configuration to everything that it stands for: instances, profiles, parsers, sources.

Read → check the shape → create what `plugins` declares → follow the references, adding what the defaults give where
nothing is said. Every stage reports all that is wrong before it stops.
"""

# mypy: disable-error-code="type-abstract"
# Roles are abstract classes; they are passed on here to ask for instances, never to be instantiated.

from collections.abc import Mapping
from dataclasses import dataclass

from epp.config import defaults
from epp.config.draft import Draft
from epp.config.errors import ConfigError, KeyPath, Remark, did_you_mean, printable, shown
from epp.config.loader import Document, load_document
from epp.config.schema import (
    API_VERSION,
    DEPRECATED_API_VERSION,
    KIND,
    EndpointPickerConfig,
    PluginReference,
    SchedulingProfile,
)
from epp.config.validation import validate
from epp.scheduling.pipeline import ProducerCycleError, in_data_order
from epp.scheduling.plugin import (
    DataSource,
    Discovery,
    Extractor,
    Filter,
    Parser,
    Picker,
    Plugin,
    Producer,
    ProfileHandler,
    SaturationDetector,
    Scorer,
    Services,
)
from epp.scheduling.registry import Registry
from epp.scheduling.scheduler import Profile

FEATURE_GATES: Mapping[str, bool] = {"flowControl": False, "haPopulateNonLeaderDatastore": True}
UNAVAILABLE_GATES = ("flowControl",)
_BOOLEANS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


@dataclass(frozen=True, slots=True)
class Source:
    """A data source and what is read out of it."""

    source: DataSource
    extractors: tuple[Extractor, ...]


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A configuration with every default applied and every reference followed.

    Attributes:
        plugins: every instance: as declared, in the order of the file, then what the defaults added.
        injected: names of the instances that the defaults added.
        default_profile: no profile was configured; there is one with all that is declared.
        parsers: in order of precedence.
        discovery: `None` when the pool comes from elsewhere.
        notices: deprecations, and what was ignored.
    """

    filename: str
    plugins: tuple[Plugin, ...]
    injected: frozenset[str]
    profile_handler: ProfileHandler
    profiles: tuple[Profile, ...]
    default_profile: bool
    parsers: tuple[Parser, ...]
    saturation_detector: SaturationDetector
    sources: tuple[Source, ...]
    discovery: Discovery | None
    feature_gates: Mapping[str, bool]
    notices: tuple[Remark, ...]


def load_config(
    text: str,
    *,
    filename: str,
    registry: Registry,
    services: Services,
    allow_experimental: bool = False,
) -> ResolvedConfig:
    """Read an EndpointPickerConfig, YAML or JSON.

    Args:
        filename: what messages call it.
        allow_experimental: do not mention that experimental plugins are experimental.

    Raises:
        ConfigError: it cannot be used; with all that is wrong, as far as that can be told at once.
    """
    document = load_document(text, filename)
    deprecated_version = _check_envelope(document)
    spec = validate(EndpointPickerConfig, document.value, document, ())
    draft = Draft(document, spec, registry, services, allow_experimental)
    if deprecated_version:
        draft.notice(("apiVersion",), f"'{DEPRECATED_API_VERSION}' is deprecated", f"write '{API_VERSION}'")
    gates = _feature_gates(draft)
    draft.declare_all()

    profiles = _profiles(draft)
    handler = _profile_handler(draft, profiles)
    parsers = _parsers(draft)
    detector = _saturation_detector(draft)
    sources = _sources(draft)
    discovery = _discovery(draft)
    defaults.add_missing_producers(draft)
    _check_producer_order(draft)
    draft.stop_on_problems()
    assert handler is not None  # or there was a problem
    assert detector is not None
    return ResolvedConfig(
        filename=filename,
        plugins=tuple(draft.instances.values()),
        injected=frozenset(draft.injected),
        profile_handler=handler,
        profiles=tuple(profiles),
        default_profile=not spec.scheduling_profiles,
        parsers=tuple(parsers),
        saturation_detector=detector,
        sources=tuple(sources),
        discovery=discovery,
        feature_gates=gates,
        notices=tuple(draft.notices),
    )


def _check_envelope(document: Document) -> bool:
    """Whether the file uses the deprecated API version.

    Raises:
        ConfigError: it is no EndpointPickerConfig at all.
    """
    value = document.value
    if not isinstance(value, dict):
        fix = f"it starts with apiVersion: {API_VERSION} and kind: {KIND}"
        raise ConfigError([document.remark((), f"a configuration must be an object, not {shown(value)}", fix)])
    problems = []
    for key, known in (("apiVersion", (API_VERSION, DEPRECATED_API_VERSION)), ("kind", (KIND,))):
        given = value.get(key)
        if given is None:
            problems.append(document.remark((), f"required key '{key}' is missing", f"add `{key}: {known[0]}`"))
        elif given not in known:
            problems.append(document.remark((key,), f"unknown {key} {shown(given)}", f"write `{key}: {known[0]}`"))
    if problems:
        raise ConfigError(problems)
    return bool(value["apiVersion"] == DEPRECATED_API_VERSION)


def _feature_gates(draft: Draft) -> Mapping[str, bool]:
    gates = dict(FEATURE_GATES)
    for index, entry in enumerate(draft.spec.feature_gates):
        path: KeyPath = ("featureGates", index)
        name, equals, text = (part.strip() for part in entry.partition("="))
        value = _BOOLEANS.get(text.lower()) if equals else True
        if name not in gates:
            fix = did_you_mean(name, gates) or f"known gates are {', '.join(gates)}"
            draft.problem(path, f"feature gate '{printable(name)}' is unknown or unregistered", fix)
        elif value is None:
            draft.problem(path, f"feature gate '{name}' cannot be {shown(text)}", f"write {name}=true or {name}=false")
        elif value and name in UNAVAILABLE_GATES:
            draft.problem(path, f"feature gate '{name}' is not available in this version yet", "remove it")
        else:
            gates[name] = value
    ignored = draft.spec.flow_control.model_fields_set - {"saturation_detector"}
    if ignored and not gates["flowControl"]:
        message = "flow control is off: its settings other than saturationDetector are ignored"
        draft.notice(("flowControl",), message)
    return gates


# --- profiles -----------------------------------------------------------------------------------------------------


def _profiles(draft: Draft) -> list[Profile]:
    given = draft.spec.scheduling_profiles or (defaults.default_profile(draft),)
    profiles: list[Profile] = []
    seen: set[str] = set()
    for index, spec in enumerate(given):
        path: KeyPath = ("schedulingProfiles", index)
        if not spec.name:
            draft.problem(path, "is missing a name", "add `name:`")
        elif spec.name in seen:
            message = f"has duplicate name '{printable(spec.name)}'"
            draft.problem((*path, "name"), message, "give each profile its own name")
        seen.add(spec.name)
        profile = _profile(draft, spec, path)
        if profile is not None:
            profiles.append(profile)
    return profiles


def _profile(draft: Draft, spec: SchedulingProfile, path: KeyPath) -> Profile | None:
    filters: list[Filter] = []
    scorers: list[tuple[Scorer, float]] = []
    pickers: list[Picker] = []
    for index, entry in enumerate(spec.plugins):
        at: KeyPath = (*path, "plugins", index)
        if not entry.plugin_ref:
            draft.problem(at, "is missing a 'pluginRef'", "add `pluginRef:` with the name of a plugin")
            continue
        plugin: Plugin | None = draft.find(entry.plugin_ref, Plugin, "a plugin", at)
        if isinstance(plugin, Filter):
            filters.append(plugin)
        if isinstance(plugin, Scorer):
            scorers.append((plugin, defaults.SCORER_WEIGHT if entry.weight is None else entry.weight))
        elif plugin is not None and entry.weight is not None:
            draft.notice((*at, "weight"), f"'{printable(plugin.name)}' is no scorer: its weight is ignored")
        if isinstance(plugin, Picker):
            pickers.append(plugin)
            if len(pickers) > 1:
                message = f"a profile has one picker; '{printable(pickers[0].name)}' is there already"
                draft.problem(at, message, "remove one of them")
        if plugin is not None and not isinstance(plugin, Filter | Scorer | Picker):
            name = printable(plugin.name)
            draft.notice(at, f"'{name}' is neither filter, scorer nor picker: in a profile it does nothing")
    picker = pickers[0] if pickers else defaults.default_picker(draft, path)
    return None if picker is None else Profile(spec.name, tuple(filters), tuple(scorers), picker)


def _profile_handler(draft: Draft, profiles: list[Profile]) -> ProfileHandler | None:
    handlers = list(draft.of_role(ProfileHandler).values())
    several = len(draft.spec.scheduling_profiles) > 1
    if len(handlers) > 1:
        names = ", ".join(f"'{printable(h.name)}'" for h in handlers)
        message = f"multiple profile handlers found ({names}); only one is allowed"
        draft.problem(draft.declared_at[handlers[1].name], message, "remove the others")
        return None
    if not handlers:
        if not several:
            return defaults.default_profile_handler(draft)
        message = "no profile handler configured, and there are several profiles"
        draft.problem(("schedulingProfiles",), message, "declare a handler under `plugins`, or keep one profile")
        return None
    if several and handlers[0].plugin_type == defaults.PROFILE_HANDLER:
        message = f"{defaults.PROFILE_HANDLER} cannot support multiple scheduling profiles"
        draft.problem(draft.declared_at[handlers[0].name], message, "keep one profile, or use another handler")
    return handlers[0]


# --- everything around the scheduler ------------------------------------------------------------------------------


def _parsers(draft: Draft) -> list[Parser]:
    spec = draft.spec
    references: list[tuple[PluginReference, KeyPath]] = [
        (reference, ("requestHandler", "parsers", index))
        for index, reference in enumerate(spec.request_handler.parsers)
    ]
    if spec.parser is not None:
        _note_moved(draft, "parser", "requestHandler.parsers", ignored=bool(references))
        references = references or [(spec.parser, ("parser",))]
    if not references:
        references = [(reference, ("requestHandler",)) for reference in defaults.default_parsers(draft)]
    parsers: list[Parser] = []
    for reference, path in references:
        if reference.plugin_ref in draft.registry:  # a parser need not be declared
            draft.inject(reference.plugin_ref)
        parser = draft.find(reference.plugin_ref, Parser, "a parser plugin", path)
        if parser is None:
            continue
        if any(parser.plugin_type == earlier.plugin_type for earlier in parsers):
            draft.notice(path, f"a second '{parser.plugin_type}' is ignored")
        else:
            parsers.append(parser)
    return parsers


def _saturation_detector(draft: Draft) -> SaturationDetector | None:
    spec = draft.spec
    reference, path = spec.flow_control.saturation_detector, ("flowControl", "saturationDetector")
    at: KeyPath = path
    if spec.saturation_detector is not None:
        _note_moved(draft, "saturationDetector", ".".join(path), ignored=reference is not None)
        if reference is None:
            reference, at = spec.saturation_detector, ("saturationDetector",)
    if reference is None:
        reference = defaults.default_saturation_detector(draft)
    return draft.find(reference.plugin_ref, SaturationDetector, "a saturation detector", at)


def _note_moved(draft: Draft, old: str, new: str, *, ignored: bool) -> None:
    consequence = f"; it is ignored because {new} is there too" if ignored else ""
    draft.notice((old,), f"'{old}' is deprecated{consequence}", f"write {new}")


def _sources(draft: Draft) -> list[Source]:
    layer = draft.spec.data_layer
    given = [(spec, ("dataLayer", "sources", index)) for index, spec in enumerate(layer.sources)]
    added = defaults.default_source(draft) if layer.inject_defaults else None
    sources: list[Source] = []
    for spec, path in [*given, *([(added, ("dataLayer", "sources", len(given)))] if added else [])]:
        source = draft.find(spec.plugin_ref, DataSource, "a data source", path)
        extractors = [
            draft.find(reference.plugin_ref, Extractor, "an extractor", (*path, "extractors", index))
            for index, reference in enumerate(spec.extractors)
        ]
        if not extractors:
            draft.notice(path, "a source without extractors: nothing is read from it", "list its `extractors`")
        if source is not None:
            sources.append(Source(source, tuple(e for e in extractors if e is not None)))
    if not given and added is None:
        message = "data layer enabled but no data sources configured"
        draft.problem(("dataLayer", "injectDefaults"), message, "add `sources`, or remove `injectDefaults: false`")
    return sources


def _discovery(draft: Draft) -> Discovery | None:
    layer = draft.spec.data_layer
    for key, given in (
        ("peerDiscovery", layer.peer_discovery is not None),
        ("crossReplicaSyncerPluginRef", bool(layer.cross_replica_syncer_plugin_ref)),
    ):
        if given:
            draft.problem(("dataLayer", key), f"'{key}' is not available in this version yet", "remove it")
    if layer.discovery is None:
        for name in draft.of_role(Discovery):
            message = f"'{printable(name)}' is declared but not used for discovery"
            draft.notice(draft.declared_at[name], message, f"add `dataLayer.discovery.pluginRef: {printable(name)}`")
        return None
    return draft.find(layer.discovery.plugin_ref, Discovery, "a discovery plugin", ("dataLayer", "discovery"))


def _check_producer_order(draft: Draft) -> None:
    try:
        in_data_order(draft.of_role(Producer).values())
    except ProducerCycleError as error:
        declared = [draft.declared_at[name] for name in error.names if name in draft.declared_at]
        draft.problem(declared[0] if declared else (), str(error), "let one of them read from another producer")
