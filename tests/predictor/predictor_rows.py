"""Rows of llm-d's predictor API, as its picker sends them, and a client for them."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from epp.predictor.app import PredictorServerOptions

LOOPBACK = PredictorServerOptions(host="127.0.0.1", training_port=0, prediction_port=0)
ROW = {
    "kv_cache_percentage": 0.3,
    "input_token_length": 800,
    "num_request_waiting": 2,
    "num_request_running": 6,
    "num_tokens_generated": 1,
    "prefix_cache_score": 0.25,
    "prefill_tokens_in_flight": 500,
    "decode_tokens_in_flight": 0,
}


def row(**fields: Any) -> dict[str, Any]:
    return {**ROW, **fields}


def measured(rng: random.Random, **fields: Any) -> list[dict[str, Any]]:
    """One request's two rows, one for TTFT and one for TPOT, under some load."""
    running, tokens = rng.randrange(1, 60), rng.randrange(100, 4000)
    prefill, score = rng.randrange(0, 6000), rng.random()
    state = row(
        kv_cache_percentage=running / 80,
        input_token_length=tokens,
        num_request_running=running,
        num_request_waiting=max(0, running - 40),
        num_tokens_generated=0,
        prefill_tokens_in_flight=prefill,
        timestamp="2026-08-21T10:00:00.123456789Z",  # nine digits, as Go writes it
        **fields,
    )
    ttft_ms = (40 + 0.03 * ((1 - score) * tokens + prefill) + 0.02 * running**2) * rng.lognormvariate(0, 0.1)
    tpot_ms = (8 + 0.1 * running + 0.004 * running**2) * rng.lognormvariate(0, 0.1)
    return [
        {**state, "prefix_cache_score": score, "actual_ttft_ms": ttft_ms, "actual_tpot_ms": 0},
        {**state, "prefix_cache_score": 0, "actual_ttft_ms": 0, "actual_tpot_ms": tpot_ms},
    ]


@dataclass
class Client:
    """Asks the server; `ports` as in `PredictorServer`."""

    session: aiohttp.ClientSession
    ports: Mapping[str, int]

    async def ask(self, method: str, path: str, body: Any = None, *, port: str = "prediction", **options: Any) -> Any:
        """Status and JSON."""
        url = f"http://127.0.0.1:{self.ports[port]}{path}"
        options |= {} if body is None else {"data" if isinstance(body, bytes) else "json": body}
        async with self.session.request(method, url, **options) as response:
            return response.status, await response.json()

    async def teach(self, requests: int, seed: int = 0) -> None:
        rng = random.Random(seed)
        # At once, since training may begin between two requests, with only a part of them.
        entries = [entry for _ in range(requests) for entry in measured(rng)]
        told = await self.ask("POST", "/add_training_data_bulk", {"entries": entries}, port="training")
        assert told == (202, {"message": f"Accepted {len(entries)} training samples."})
