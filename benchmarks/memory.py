"""What things weigh that a picker holds many of.

    python -m benchmarks.memory [--only stream] [--only block] [--json FILE]

* `stream`: an open ext_proc stream whose response is waited for: transport, conversation, exchange and the director's
  assignment together. 2,000 are opened on one connection of the lean transport, each with a chat of 1 KB, and routed
  over ten endpoints with the default configuration; what they have added to the heap is divided by their number. All
  have the same prompt, so that they add nothing to the prefix index.
* `block`: a block in the prefix index, of a million of them over 100 endpoints: each on one endpoint, in chains of 500
  blocks (just before and just after the tables grow, and in between), and all of them on ten endpoints each.
* `body`: how high the heap rises over the message that brought a large body, while it is read (transport and
  conversation alone), and while it is decided on (all of the picker); and what is left of it then.

Python's own allocations are counted (tracemalloc). What protobuf and numpy keep beside is not; protobuf's objects live
for one message here.
"""

import argparse
import asyncio
import gc
import random
import secrets
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks import _envoy as envoy
from benchmarks._report import add_json_option, heading, table, write
from benchmarks.transport import ConstantPick
from epp.ledger import Ledger
from epp.pool.snapshot import EndpointSignals
from epp.pool.static import parse_endpoints
from epp.prefix.hashing import HASH_BITS
from epp.prefix.index import PrefixIndex
from epp.server import serving
from epp.server.configuration import text_of
from epp.server.lean.calls import Clockwork
from epp.server.lean.connection import Connection
from epp.server.lean.limits import LeanOptions
from epp.server.lean.stream import Method
from epp.server.options import ServeOptions
from epp.server.state import PickerState
from epp.server.transport import METHOD, ExchangeFactory

Row = dict[str, Any]

STREAMS = 2_000
ENDPOINTS = ",".join(f"10.0.0.{n}:8000" for n in range(1, 11))
TARGET_STREAM_BYTES = 5_000
TARGET_BLOCK_BYTES = 200
CHAIN_BLOCKS = 500
WARM_UP_STREAMS = 5_000  # until caches are full, and what is made once is made


def connection(exchanges: ExchangeFactory) -> Connection:
    """The lean transport's side of one connection."""
    clockwork = Clockwork(time.monotonic, asyncio.get_running_loop().call_later)
    served = Connection({METHOD.encode(): Method(exchanges)}, LeanOptions(), clockwork, lambda: None)
    served.receive(envoy.greeting() + envoy.frames(envoy.SETTINGS, envoy.ACK, 0, b""))
    served.take_output()
    return served


def picker() -> ExchangeFactory:
    """All that is behind a transport, with the default configuration and ten idle endpoints."""
    options = ServeOptions(seed=1)
    state = PickerState(options, text_of(), time.monotonic, Ledger())
    state.store.replace(parse_endpoints(ENDPOINTS))
    for endpoint in state.store.snapshot().endpoints:
        state.store.update_signals(endpoint.id, EndpointSignals(0.0, 0.0, 0.0, scraped_at_s=time.monotonic()))
    watching = serving.watching(options, state.metrics.access_log, time.monotonic, secrets.token_hex(4))
    return serving.ExchangeMaker(state.director(random.Random(1)), options, watching)


def heap_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


class Client:
    """Says one request after the other, each on a stream of its own, and leaves it open."""

    def __init__(self, served: Connection) -> None:
        self.served = served
        self._streams = 0

    def prepare(self, modes: envoy.Modes, body: bytes) -> tuple[int, list[bytes]]:
        """The next stream, and what opens it: a frame or two for each message."""
        stream_id = 2 * self._streams + 1
        messages = [envoy.request_headers(modes, self._streams), *envoy.request_body(modes, body)]
        self._streams += 1
        data = [envoy.frames(envoy.DATA, 0, stream_id, envoy.framed([message])) for message in messages]
        return stream_id, [envoy.frames(envoy.HEADERS, envoy.END_HEADERS, stream_id, envoy.call_block()), *data]

    def send(self, frames: list[bytes]) -> None:
        for data in frames:
            self.served.receive(data)
            self.served.take_output()
            self.served.after_output()

    def reset(self, stream_id: int) -> None:
        self.send([envoy.frames(envoy.RST_STREAM, 0, stream_id, (8).to_bytes(4))])


def stream() -> list[Row]:
    rows = []
    for name, modes in (("recommended", envoy.RECOMMENDED), ("full duplex", envoy.FULL_DUPLEX)):
        client, body = Client(connection(picker())), envoy.chat(1_024)
        for _ in range(WARM_UP_STREAMS):
            stream_id, frames = client.prepare(modes, body)
            client.send(frames)
            client.reset(stream_id)
        before_bytes = heap_bytes()
        for _ in range(STREAMS):
            client.send(client.prepare(modes, body)[1])
        if client.served.open_streams != STREAMS:
            raise SystemExit("streams have ended that should be waiting for their response")
        weight_bytes = (heap_bytes() - before_bytes) / STREAMS
        rows.append(
            {"what": f"open stream, 1 KB chat, {name}", "bytes": round(weight_bytes), "target": TARGET_STREAM_BYTES}
        )
    return rows


def body() -> list[Row]:
    rows: list[Row] = []
    for size in (400_000, 4_000_000):
        for name, exchanges in (("reading", ConstantPick), ("reading and deciding", picker())):
            client = Client(connection(exchanges))
            client.send(client.prepare(envoy.RECOMMENDED, envoy.chat(1_024))[1])
            _, frames = client.prepare(envoy.RECOMMENDED, envoy.chat(size))
            before_bytes = heap_bytes()
            tracemalloc.reset_peak()
            client.send(frames)
            # What the transport puts together from frames is the message, once.
            over = tracemalloc.get_traced_memory()[1] - before_bytes - size
            left = heap_bytes() - before_bytes
            rows.append({"what": f"{name}, {size // 1000} KB body", "bytes": over, "of the body": over / size})
            rows.append({"what": "  left of it", "bytes": left, "of the body": left / size})
    return rows


def block() -> list[Row]:
    rows: list[Row] = []
    for blocks, holders in ((690_000, 1), (1_000_000, 1), (1_390_000, 1), (1_000_000, 10)):
        rng, index = random.Random(1), PrefixIndex(1 << 40)
        before_bytes = heap_bytes()
        for number in range(blocks // (CHAIN_BLOCKS * holders)):
            chain = [rng.getrandbits(HASH_BITS) for _ in range(CHAIN_BLOCKS)]
            for holder in range(holders):
                # Each request hashes anew, so no two have an object in common.
                index.insert(f"ns/{(number + holder) % 100}", [hash_ + 0 for hash_ in chain], blocks)
        chain.clear()
        weight_bytes = (heap_bytes() - before_bytes) / len(index)
        shared = "" if holders == 1 else f", each on {holders} endpoints"
        rows.append(
            {"what": f"cached block, {blocks:,} in all{shared}", "bytes": weight_bytes, "target": TARGET_BLOCK_BYTES}
        )
    return rows


# Each part by its name: what it measures, as rows.
PARTS: dict[str, Callable[[], list[Row]]] = {"stream": stream, "body": body, "block": block}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part; may be given repeatedly")
    add_json_option(parser)
    arguments = parser.parse_args()
    results: dict[str, list[Row]] = {}
    tracemalloc.start()
    for name in arguments.only or PARTS:
        print(f"{name} …", file=sys.stderr)
        results[name] = PARTS[name]()
    print(heading())
    columns = dict.fromkeys(key for rows in results.values() for row in rows for key in row)
    print(table([{column: row.get(column) for column in columns} for rows in results.values() for row in rows]))
    write(results, arguments.json)


if __name__ == "__main__":
    asyncio.run(main())
