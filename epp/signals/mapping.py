"""How the few numbers that a picker wants are read from an engine's metrics page.

A mapping is data: for each signal a metric, or nothing if the engine does not have it. One page may speak for several
engines (data-parallel ranks behind one port). Then

* counts (waiting, running, cache blocks) are summed: the endpoint has all of that work and all of that room;
* the cache usage ratio is averaged, since ranks of one server have caches of one size;
* the cache block size is what all of them agree on;
* totals, which tell a restart, are summed too;
* adapters are those of the series with the greatest value, since vLLM writes as value when it wrote the series and
  leaves the old ones on the page.

A series whose value is not a sensible number makes its signal unknown, for a sum without it would be too small.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from epp.pool.snapshot import EndpointSignals, LoraState
from epp.signals.page import Sample, Samples

_MAX_COUNT = 1e9  # beyond it, a count is a broken counter
_MAX_RATIO = 1.1  # engines overshoot a full cache by a little; beyond it, it is no ratio

_SPEC = re.compile(r"\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(?P<labels>.*)\})?\s*")
_SPEC_LABEL = re.compile(
    r"""\s*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^"{},=]*?))\s*(?:,|$)"""
)


class EngineError(ValueError):
    """An engine cannot be described so. The message is one line that names the fault and the fix."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric family and the labels that its series must have."""

    family: str
    labels: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(text: str) -> "MetricSpec":
        """Read `name` or `name{label=value,label2="v"}`; quotes are optional.

        Raises:
            EngineError: it is neither.
        """
        match = _SPEC.fullmatch(text)
        if match is None:
            raise EngineError(f"{text!r} is not a metric; write name or name{{label=value}}")
        labels: list[tuple[str, str]] = []
        listed, at = match["labels"] or "", 0
        while at < len(listed):
            label = _SPEC_LABEL.match(listed, at)
            if label is None:
                raise EngineError(f"{text!r}: cannot read the labels from {listed[at:]!r}; write label=value")
            quoted = label["quoted"]
            labels.append((label["name"], label["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)))
            at = label.end()
        return MetricSpec(match["name"], tuple(labels))

    def of(self, samples: Samples) -> list[Sample]:
        """The series that match."""
        series = samples.get(self.family, ())
        if not self.labels:
            return list(series)
        return [s for s in series if all(s.labels.get(name) == value for name, value in self.labels)]


Specs = tuple[MetricSpec, ...]  # spellings of one signal, the preferred first; empty: the engine does not have it


def spellings(*texts: str) -> Specs:
    """The spellings that are not empty. Raises `EngineError`."""
    return tuple(MetricSpec.parse(text) for text in texts if text)


@dataclass(frozen=True)
class EngineMapping:
    """Where one engine keeps its signals. Of several spellings the first that the page has counts.

    Attributes:
        totals: what only ever grows while the server runs; every one counts, none is another's spelling.
        block_size_label, blocks_label: labels of `cache_info` that hold the numbers, where `block_size` and `blocks` do
            not name metrics of their own.
    """

    name: str
    waiting: Specs = ()
    running: Specs = ()
    kv_usage: Specs = ()
    lora: Specs = ()
    cache_info: Specs = ()
    block_size_label: str = "block_size"
    blocks_label: str = "num_gpu_blocks"
    block_size: Specs = ()
    blocks: Specs = ()
    totals: Specs = ()

    @staticmethod
    def from_specs(
        name: str,
        *,
        queued_requests_spec: str = "",
        running_requests_spec: str = "",
        kv_usage_spec: str = "",
        lora_spec: str = "",
        cache_info_spec: str = "",
        cache_block_size_label_name: str = "",
        cache_num_blocks_label_name: str = "",
        cache_block_size_spec: str = "",
        cache_num_blocks_spec: str = "",
    ) -> "EngineMapping":
        """A mapping from the specs of a configuration; an empty one is a signal that the engine does not have.

        Raises:
            EngineError: a spec cannot be read.
        """
        return EngineMapping(
            name=name,
            waiting=spellings(queued_requests_spec),
            running=spellings(running_requests_spec),
            kv_usage=spellings(kv_usage_spec),
            lora=spellings(lora_spec),
            cache_info=spellings(cache_info_spec),
            block_size_label=cache_block_size_label_name or EngineMapping.block_size_label,
            blocks_label=cache_num_blocks_label_name or EngineMapping.blocks_label,
            block_size=spellings(cache_block_size_spec),
            blocks=spellings(cache_num_blocks_spec),
        )

    @cached_property
    def families(self) -> frozenset[str]:
        """Every metric family that `extract` looks at."""
        signals = (self.waiting, self.running, self.kv_usage, self.lora, self.cache_info, self.block_size, self.blocks)
        return frozenset(spec.family for specs in (*signals, self.totals) for spec in specs)

    def missing(self, signals: EndpointSignals) -> list[str]:
        """The load metrics that this engine should have and of which `signals` holds nothing."""
        load = (
            (self.waiting, signals.waiting_requests),
            (self.running, signals.running_requests),
            (self.kv_usage, signals.kv_cache_usage_ratio),
        )
        return [specs[0].family for specs, value in load if specs and value is None]


def totals(mapping: EngineMapping, samples: Samples) -> Mapping[str, float]:
    """What only ever grows on the page of one server, by family; unknown ones are left out."""
    sums = {spec.family: _known_sum([s.value for s in spec.of(samples)]) for spec in mapping.totals}
    return {family: total for family, total in sums.items() if total is not None}


def extract(mapping: EngineMapping, samples: Samples, scraped_at_s: float | None) -> EndpointSignals:
    """The signals of one endpoint from the samples of its page, by the rules of the module's text.

    How often the server was restarted cannot be told from one page alone.
    """
    cache_info = _series(mapping.cache_info, samples)
    if mapping.block_size:
        sizes = [s.value for s in _series(mapping.block_size, samples)]
    else:
        sizes = [_integer(s.labels.get(mapping.block_size_label)) for s in cache_info]
    if mapping.blocks:
        blocks = [s.value for s in _series(mapping.blocks, samples)]
    else:
        blocks = [_integer(s.labels.get(mapping.blocks_label)) for s in cache_info]
    return EndpointSignals(
        waiting_requests=_sum([s.value for s in _series(mapping.waiting, samples)]),
        running_requests=_sum([s.value for s in _series(mapping.running, samples)]),
        kv_cache_usage_ratio=_mean_ratio([s.value for s in _series(mapping.kv_usage, samples)]),
        kv_block_size_tokens=_positive_integer(sizes[0] if len(set(sizes)) == 1 else None),
        kv_blocks=_positive_integer(_sum(blocks)),
        lora=_lora(_series(mapping.lora, samples)),
        scraped_at_s=scraped_at_s,
    )


def _series(specs: Specs, samples: Samples) -> list[Sample]:
    for spec in specs:
        if series := spec.of(samples):
            return series
    return []


def _known_sum(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _sum(values: list[float | None]) -> float | None:
    total = _known_sum(values)
    return total if total is not None and total <= _MAX_COUNT else None


def _mean_ratio(values: list[float | None]) -> float | None:
    known = [min(v, 1.0) for v in values if v is not None and v <= _MAX_RATIO]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _integer(text: str | None) -> float | None:
    """A number from a label; vLLM writes "None" for what it does not know yet."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _positive_integer(value: float | None) -> int | None:
    return int(value) if value is not None and 1 <= value <= _MAX_COUNT else None


def _lora(series: list[Sample]) -> LoraState | None:
    newest = max(series, key=lambda s: -1.0 if s.value is None else s.value, default=None)
    if newest is None or newest.value is None:
        return None
    max_active = _integer(newest.labels.get("max_lora"))
    if max_active is None:
        return None
    return LoraState(
        active=_names(newest.labels.get("running_lora_adapters", "")),
        waiting=_names(newest.labels.get("waiting_lora_adapters", "")),
        max_active=int(max_active),
    )


def _names(listed: str) -> frozenset[str]:
    return frozenset(name for part in listed.split(",") if (name := part.strip()))
