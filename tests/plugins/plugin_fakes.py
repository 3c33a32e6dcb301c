"""Pools, requests and plugins in one line each."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epp.inference.request import Media, Prompt, Request
from epp.ledger import Ledger
from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import EndpointSignals, Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision, ProfileResult
from epp.scheduling.plugin import Services
from epp.scheduling.registry import Registry

NOW_S = 1000.0
REGISTRY = Registry.discover()


def make(
    plugin_type: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    ledger: Any = None,
    predictor: Any = None,
    timer: Any = None,
) -> Any:
    """A plugin as the configuration loader makes it: parameters by their names in the file."""
    plugin_class = REGISTRY.get(plugin_type)
    assert plugin_class is not None, plugin_type
    validated = plugin_class.parameters_model.model_validate(parameters or {})
    return plugin_class(name or plugin_type, validated, Services(ledger or Ledger(), predictor, timer))


def signals(*, scraped_at_s: float | None = NOW_S, **known: Any) -> EndpointSignals:
    return EndpointSignals(scraped_at_s=scraped_at_s, **known)


def endpoints(size: int, labels: Sequence[Mapping[str, str]] = ()) -> tuple[Endpoint, ...]:
    return tuple(Endpoint("ns", f"pod-{i}", f"10.0.0.{i + 1}", 8000, labels[i] if labels else {}) for i in range(size))


def pool(
    *rows: EndpointSignals, size: int | None = None, labels: Sequence[Mapping[str, str]] = (), version: int = 1
) -> Candidates:
    """Candidates `ns/pod-0`, `ns/pod-1`, … at 10.0.0.1:8000, 10.0.0.2:8000, …"""
    members = endpoints(size or len(rows) or len(labels), labels)
    known = {endpoint.id: row for endpoint, row in zip(members, rows, strict=False)}
    return Candidates.all_of(Snapshot.build(members, known, version=version, endpoints_version=version))


def queues(*waiting: float | None) -> Candidates:
    return pool(*(signals(waiting_requests=w) for w in waiting))


def a_cycle(
    *prompts: bytes | Sequence[bytes | Media],
    now_s: float = NOW_S,
    headers: Mapping[str, str] | None = None,
    seed: int = 7,
    model: str | None = "llama",
    **request: Any,
) -> Cycle:
    parsed = tuple(Prompt((p,) if isinstance(p, bytes) else tuple(p)) for p in prompts)
    return Cycle(
        Request(id="r", prompts=parsed, headers=headers or {}, model=model, target_model=model, **request),
        now_s,
        random.Random(seed),
    )


def decide(candidates: Candidates, row: int, *, prefill_row: int | None = None) -> Decision:
    """A decision for `row`, made by the profile `default`."""
    rows = candidates.rows
    profiles = {"default": ProfileResult("default", rows, np.zeros(len(rows)), {}, (row,))}
    if prefill_row is not None:
        profiles["prefill"] = ProfileResult("prefill", rows, np.zeros(len(rows)), {}, (prefill_row,))
    snapshot = candidates.snapshot
    return Decision(snapshot, (snapshot.endpoints[row],), "default", profiles)


def busy_ledger(*requests: int, tokens_each: int = 0) -> Ledger:
    """A ledger in which `ns/pod-i` has `requests[i]` requests in flight."""
    ledger = Ledger()
    for row, count in enumerate(requests):
        for i in range(count):
            ledger.reserve(f"{row}-{i}", f"ns/pod-{row}", prefill_tokens=tokens_each)
    return ledger
