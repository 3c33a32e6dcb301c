"""What decisions read and write: the pool, the ledger, what was learned, the plugins with theirs, and the counts.

A picker in one process has one of these. One in several has one in each: workers decide with theirs, and the parent
keeps the one that people look at.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from epp import __version__
from epp.compiled import build_in_words
from epp.config.build import build_pipeline
from epp.director import Director, DirectorOptions
from epp.inference.apis import Parsers
from epp.kube.policies import Policies
from epp.latency.predictor import Predictor
from epp.latency.types import Sample
from epp.ledger import Ledger
from epp.observe.metrics import Metrics
from epp.observe.observer import RequestObserver
from epp.observe.records import DecisionRing, Selection
from epp.observe.trace import TraceRecorder
from epp.observe.trace_file import TraceCounts
from epp.pool.snapshot import Snapshot
from epp.pool.store import PoolStore
from epp.scheduling.plugin import Services
from epp.server import debug
from epp.server.configuration import ConfigText, build_config, predicts
from epp.server.options import ServeOptions
from epp.signals.scraper import ScrapeStats

_NOTHING = Snapshot.build(())


class PickerState:
    """
    Attributes:
        options: of the command line.
        clock: monotonic seconds, the same in all processes of a machine.
        store: empty at first; see `epp.server.pool_source`.
        registry, metrics: the same families, to be read and to count in.
        policies: objectives and model rewrites, as they are now.
        suspended: why requests are refused although there are endpoints; `None`: they are not.
    """

    def __init__(
        self,
        options: ServeOptions,
        configuration: ConfigText,
        clock: Callable[[], float],
        ledger: Ledger,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        """
        Args:
            configuration: what the options name, as it was read.
            on_sample: as of `Predictor`.

        Raises `Problem` for a configuration that cannot work.
        """
        self.options = options
        self.clock = clock
        self.ledger = ledger
        self.store = PoolStore()
        self.predictor = Predictor(on_sample=on_sample)
        self.config = build_config(
            configuration,
            Services(ledger=self.ledger, predictor=self.predictor, timer=time.perf_counter),
            allow_experimental=options.allow_experimental_plugins,
        )
        self.policies = Policies(options.objectives)
        self.suspended: str | None = None
        self.registry = CollectorRegistry()
        self.metrics = Metrics(
            self.registry,
            pool_name=options.pool_name,
            snapshot=self.store.snapshot,
            ledger=self.ledger,
            clock=clock,
            objectives=self.policies.priorities,
            stream_metrics=options.stream_metrics,
            legacy=options.legacy_metrics,
            build_ref=__version__,
        )
        self.ring = DecisionRing()
        self._trace_counts = None if options.record_trace is None else TraceCounts(self.metrics.families)
        self._trace: TraceRecorder | None = None

    def director(self, rng: random.Random) -> Director:
        """Who decides with it. To be asked for once; a trace is recorded from then on, until `close`."""
        options = self.options
        if options.record_trace is not None and self._trace_counts is not None:
            self._trace = TraceRecorder(
                Path(options.record_trace),
                options.record_trace_max_bytes,
                options.trace_key,
                self._trace_counts,
                unix_offset_s=time.time() - self.clock(),
            )
        return Director(
            build_pipeline(self.config, self.metrics.plugins, time.perf_counter),
            Parsers([parser.plugin_type for parser in self.config.parsers]),
            self.ledger,
            self.snapshot,
            RequestObserver(self.metrics, self.ring, self.clock, self._trace),
            clock=self.clock,
            rng=rng,
            options=DirectorOptions(
                objectives=self.policies.priorities,
                resolve_rewrite=self.policies.resolve_rewrite,
                use_subset=options.use_subset,
                emit_scores=options.emit_scores,
            ),
        )

    def close(self) -> None:
        """Nothing is decided any more: write what has not been."""
        if self._trace is not None:
            self._trace.close()

    def snapshot(self) -> Snapshot:
        """What decisions choose from."""
        return self.store.snapshot() if self.suspended is None else _NOTHING

    @property
    def predicts(self) -> bool:
        """Whether the configuration predicts latency."""
        return predicts(self.config)

    def not_ready(self) -> list[str]:
        """Why requests should not come yet, in words."""
        reasons = [f"{p.name}: {reason}" for p in self.config.plugins if (reason := p.not_ready()) is not None]
        if self.suspended is not None:
            reasons.insert(0, self.suspended)
        return reasons if len(self.store.snapshot()) else ["the pool has no endpoint", *reasons]

    def describe(self, stats: Mapping[str, ScrapeStats], now_s: float) -> dict[str, Any]:
        """For the debug page."""
        return {
            "version": __version__,
            "build": build_in_words(),
            "configuration": self.config.filename,
            "pool": debug.pool_state(self.store.snapshot(), self.ledger, stats, now_s),
            "predictor": self.predictor.state(now_s) if self.predicts else None,
        }

    async def decided(self, selection: Selection) -> dict[str, Any]:
        """The same, of what this process decided. Requests need not wait until all is told."""
        decisions = []
        for decision in self.ring.rendering(self.clock(), selection):
            decisions.append(decision)
            await asyncio.sleep(0)
        return {
            "ledger": debug.ledger_state(self.ledger),
            "process": debug.process_state(),
            "decisions": decisions,
        }
