"""What `/debug/state` shows of the pool, of what is in flight and of the process, as plain values."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from epp.ledger import Ledger
from epp.pool.snapshot import Snapshot
from epp.signals.scraper import ScrapeStats

MAX_ENDPOINTS = 1000


def pool_state(snapshot: Snapshot, ledger: Ledger, stats: Mapping[str, ScrapeStats], now_s: float) -> Mapping[str, Any]:
    """The endpoints with their signals, each signal's age, and what we have sent there. `None`: not known."""
    ages_s = snapshot.age_s(now_s)
    endpoints = []
    for row, endpoint in enumerate(snapshot.endpoints[:MAX_ENDPOINTS]):
        signals, in_flight = snapshot.signals[row], ledger.in_flight(endpoint.id)
        scrape = stats.get(endpoint.id)
        endpoints.append(
            {
                "id": endpoint.id,
                "address": endpoint.address,
                "labels": dict(endpoint.labels),
                "waiting_requests": signals.waiting_requests,
                "running_requests": signals.running_requests,
                "kv_cache_usage_ratio": signals.kv_cache_usage_ratio,
                "age_s": round(float(ages_s[row]), 3) if math.isfinite(ages_s[row]) else None,
                "scrape_error": None if scrape is None or not scrape.consecutive_failures else scrape.last_error_text,
                "in_flight_requests": in_flight.requests,
                "in_flight_tokens": in_flight.tokens,
            }
        )
    return {"endpoints": endpoints, "total": len(snapshot), "version": snapshot.version}


def ledger_state(ledger: Ledger) -> Mapping[str, Any]:
    totals = ledger.totals()
    return {"streams": ledger.open_streams(), "requests": totals.requests, "tokens": totals.tokens}


def process_state() -> Mapping[str, Any]:
    """How many asyncio tasks there are, this request's own included. An idle process always has the same few."""
    return {"tasks": len(asyncio.all_tasks())}
