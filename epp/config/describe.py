"""A resolved configuration as text for people: what runs, in which order, and what only the defaults asked for."""

from collections.abc import Iterable, Iterator

from epp.config.resolve import ResolvedConfig
from epp.scheduling.pipeline import in_data_order
from epp.scheduling.plugin import Plugin, Producer
from epp.scheduling.scheduler import Profile

NONE = "none"


def describe(resolved: ResolvedConfig) -> str:
    """Several lines, without a newline at the end."""
    return "\n".join(_lines(resolved))


def _lines(resolved: ResolvedConfig) -> Iterator[str]:
    def label(plugin: Plugin) -> str:
        kind = "" if plugin.name == plugin.plugin_type else f" ({plugin.plugin_type})"
        return f"{plugin.name}{kind}{' [default]' if plugin.name in resolved.injected else ''}"

    def labels(plugins: Iterable[Plugin]) -> str:
        return ", ".join(map(label, plugins)) or NONE

    yield f"configuration: {resolved.filename}"
    yield "feature gates: " + ", ".join(f"{name}={str(on).lower()}" for name, on in resolved.feature_gates.items())
    yield f"profile handler: {label(resolved.profile_handler)}"
    for profile in resolved.profiles:
        yield f"profile {profile.name}{' [default]' if resolved.default_profile else ''}"
        yield f"  filters, in order: {labels(profile.filters)}"
        yield from _scorers(profile, [label(scorer) for scorer, _ in profile.scorers])
        yield f"  picker: {label(profile.picker)}"
    producers = in_data_order(p for p in resolved.plugins if isinstance(p, Producer))
    yield "producers, in the order they run" + ("" if producers else f": {NONE}")
    for producer in producers:
        made = set(producer.produces)
        readers = [p.name for p in resolved.plugins if p is not producer and made.intersection(p.consumes)]
        yield f"  {label(producer)} → {', '.join(readers) or 'nobody reads it'}"
    yield "parsers, in order"
    for parser in resolved.parsers:
        yield f"  {label(parser)}"
    yield f"saturation detector: {label(resolved.saturation_detector)}"
    yield "data sources"
    for source in resolved.sources:
        yield f"  {label(source.source)} → {labels(source.extractors)}"
    yield f"discovery: {label(resolved.discovery) if resolved.discovery else 'from the command line'}"
    if idle := _not_shown(resolved, producers):
        yield f"other plugins: {labels(idle)}"
    if resolved.notices:
        yield "notices"
        for notice in resolved.notices:
            yield f"  {notice}"


def _scorers(profile: Profile, labels: list[str]) -> Iterator[str]:
    yield "  scorers, with weights" + ("" if labels else f": {NONE}")
    width = max(map(len, labels), default=0)
    for text, (_, weight) in zip(labels, profile.scorers, strict=True):
        yield f"    {text:<{width}}  {weight:g}"


def _not_shown(resolved: ResolvedConfig, producers: Iterable[Plugin]) -> list[Plugin]:
    """Instances that no line above speaks of: their hooks run all the same."""
    shown: set[Plugin] = {resolved.profile_handler, resolved.saturation_detector, *producers, *resolved.parsers}
    shown.update(*([p.picker, *p.filters, *(s for s, _ in p.scorers)] for p in resolved.profiles))
    shown.update(*([s.source, *s.extractors] for s in resolved.sources))
    return [p for p in resolved.plugins if p not in shown and p is not resolved.discovery]
