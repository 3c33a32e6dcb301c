"""From the text of a configuration to everything that it stands for: instances, profiles, parsers, sources.

Read → check the shape → create what `plugins` declares → follow the references, adding what the defaults give where
nothing is said. Every stage reports all that is wrong before it stops.
"""

# mypy: disable-error-code="type-abstract"
# Roles are abstract classes; they are passed on here to ask for instances, never to be instantiated.

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from epp.config import defaults
from epp.config.draft import Draft
from epp.config.errors import ConfigError, KeyPath, Remark, did_you_mean, printable, shown
from epp.config.loader import Document, load_document
from epp.config.profiles import resolve_profile_handler, resolve_profiles
from epp.config.schema import (
    API_VERSION,
    DEPRECATED_API_VERSION,
    KIND,
    EndpointPickerConfig,
    PluginReference,
    SourceSpec,
)
from epp.config.validation import validate
from epp.scheduling.pipeline import ProducerCycleError, in_data_order
from epp.scheduling.plugin import (
    DataSource,
    Discovery,
    Extractor,
    Parser,
    Plugin,
    Producer,
    ProfileHandler,
    SaturationDetector,
    Services,
)
from epp.scheduling.registry import Registry
from epp.scheduling.scheduler import Profile

FEATURE_GATES: Mapping[str, bool] = {"flowControl": False, "haPopulateNonLeaderDatastore": True}
UNAVAILABLE_GATES = ("flowControl",)
# Plugins that in llm-d extract data from a source that they may bring along themselves. Ours need none.
SELF_FED = ("inflight-load-producer",)
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

    profiles = resolve_profiles(draft)
    handler = resolve_profile_handler(draft)
    parsers = _parsers(draft)
    detector = _saturation_detector(draft)
    discovery = _discovery(draft)
    defaults.add_missing_producers(draft)
    sources = _sources(draft)
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
    given: list[tuple[SourceSpec, KeyPath]] = [
        (spec, ("dataLayer", "sources", index)) for index, spec in enumerate(layer.sources)
    ]
    added = defaults.default_source(draft) if layer.inject_defaults else None
    if added is not None:
        given.append((added, ("dataLayer",)))
    if not given and not any(p.plugin_type in SELF_FED for p in draft.instances.values()):
        message = "data layer enabled but no data sources configured"
        draft.problem(("dataLayer", "injectDefaults"), message, "add `sources`, or remove `injectDefaults: false`")
    sources: list[Source] = []
    for spec, path in given:
        source = draft.find(spec.plugin_ref, DataSource, "a data source", path)
        if not spec.extractors:
            draft.notice(path, "a source without extractors: nothing is read from it", "list its `extractors`")
        extractors = tuple(_extractors(draft, spec, path))
        if source is not None:
            sources.append(Source(source, extractors))
    return sources


def _extractors(draft: Draft, spec: SourceSpec, path: KeyPath) -> Iterator[Extractor]:
    for index, reference in enumerate(spec.extractors):
        at = (*path, "extractors", index)
        plugin = draft.instances.get(reference.plugin_ref)
        if plugin is not None and plugin.plugin_type in SELF_FED:
            draft.notice(at, f"'{printable(plugin.name)}' needs no data source: the entry is ignored")
        elif extractor := draft.find(reference.plugin_ref, Extractor, "an extractor", at):
            yield extractor


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
