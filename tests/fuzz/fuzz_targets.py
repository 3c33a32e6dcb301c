"""What is fuzzed: one function per parser of foreign bytes. Each takes any bytes and fails on any broken promise.

A promise is more than "does not crash": a reply is one that Envoy takes, an exchange ends exactly once and holds
nothing afterwards, two ways of cutting the same bytes read alike, a refusal is of the kind that the parser documents.
"""

import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping

from envoy.service.ext_proc.v3 import external_processor_pb2 as envoy
from envoy_messages import request_body, request_headers, response_body, response_headers, response_trailers
from envoy_rules import Http, converse
from hyperframe.frame import GoAwayFrame
from lean_peers import Server, block, framed, greeted, parse
from picker_in_memory import ADDRESSES, THREE_ADDRESSES, World
from predicting_picker import predicting_world

from epp.config.errors import ConfigError
from epp.config.resolve import load_config
from epp.endings import EndCause
from epp.inference.apis import Parsers
from epp.inference.first_token import has_token
from epp.inference.parse import BadRequest, parse_request
from epp.inference.request import Api, Usage
from epp.inference.rewrite import ResponseModelRewriter, splice_model
from epp.inference.usage import merge_sse_usage, usage_from_json
from epp.ledger import Ledger
from epp.plugins.token_producer import TokenProducer, TokenProducerParameters
from epp.pool.errors import DiscoveryError
from epp.pool.file_format import parse_endpoints_file
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Services
from epp.scheduling.registry import Registry
from epp.server.lean.frames import ErrorCode
from epp.signals.engines import BUILT_IN_ENGINES
from epp.signals.mapping import extract
from epp.signals.page import PageReader
from epp.wire.access_log import MAX_ID_CHARACTERS, UnreadableError, read_records
from epp.wire.codec import ProtocolError
from epp.wire.events import BodyMode, Ended, RequestReady, ResponseBody, Route
from epp.wire.sse import SseReader
from epp.wire.window import BodyWindow

NOBODY = Candidates.all_of(Snapshot.build(()))
TOKENS = TokenProducer("token-producer", TokenProducerParameters(), Services(Ledger()))
MODES = tuple(BodyMode)
APIS = tuple(Api)
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/models",
    "/inference/v1/generate",
)


class Bytes:
    """Takes an input apart: decisions from its front, content from the rest."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, limit: int) -> int:
        """Below `limit`; 0 once the input is used up."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1] % limit

    def flag(self) -> bool:
        return self.number(2) == 1

    def take(self) -> bytes:
        """A piece whose length stands before it."""
        size = self.number(256)
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def rest(self) -> bytes:
        return self._data[self._at :]

    def __bool__(self) -> bool:
        return self._at < len(self._data)


def _pieces(data: bytes, seed: int) -> Iterator[bytes]:
    """`data`, cut in some way."""
    rng = random.Random(seed)
    at = 0
    while at < len(data):
        size = rng.choice((1, 2, 3, 7, 64, 1000))
        yield data[at : at + size]
        at += size


# --- the conversation ------------------------------------------------------------------------------------------------


def conversation(data: bytes) -> None:
    """A well-behaved Envoy in any mode, bodies cut in any way: every reply keeps its rules, every byte arrives."""
    given = Bytes(data)
    modes = MODES[given.number(len(MODES))], MODES[given.number(len(MODES))]
    late, observing, replace = given.flag(), given.flag(), given.flag()

    def http(first: tuple[str, str]) -> Http:
        headers = [first, (f"x-{given.number(256)}", given.take().decode("latin-1"))]
        if given.flag():
            return Http(headers, None)
        chunks = [given.take() for _ in range(given.number(5))]
        return Http(headers, chunks, given.flag(), given.flag(), given.number(32) + 1 if given.flag() else None)

    request, response = http((":method", "POST")), http((":status", "200"))
    body = [given.take(), b"x" * (given.number(3) * 62_000)] if replace else None
    talk = converse(request, response, modes, late=late, observing=observing, route=lambda: Route("a:1", body=body))
    assert len(talk.of(RequestReady)) == len(talk.of(Ended)) == 1
    assert talk.events[-1] == Ended(EndCause.NATURAL)
    assert response.body.startswith(b"".join(event.data for event in talk.of(ResponseBody)))
    if not observing:
        assert talk.rules.response.passed_on == response.body
        assert replace or talk.rules.request.passed_on == request.body


# Objectives in milliseconds, whose headers an input may set.
SLO_HEADERS = ("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms")
_world: World | None = None
_predicting: World | None = None


def exchange(data: bytes) -> None:
    """A whole picker under any sequence of messages: replies that parse, ProtocolError at worst, nothing left."""
    global _world
    _world = _world or World(THREE_ADDRESSES)
    _any_messages(_world, data)


def predicting_exchange(data: bytes) -> None:
    """The same with predicted latencies, learned from every answer that an input gives, and any objectives."""
    global _predicting
    _predicting = _predicting or predicting_world()
    _any_messages(_predicting, data)


def _any_messages(world: World, data: bytes) -> None:
    given = Bytes(data)
    modes = MODES[given.number(len(MODES))], MODES[given.number(len(MODES))]
    talk = world.open()
    replies: list[bytes] = []
    while given:
        try:
            match given.number(9):
                case 0:
                    name = given.take().decode("latin-1")
                    head = {":method": "POST", ":path": PATHS[given.number(len(PATHS))], name: "1"}
                    subset = given.take().decode("latin-1") if given.flag() else None
                    message = request_headers(head, given.flag(), modes, subset)
                case 1:
                    message = request_body(given.take(), given.flag())
                case 2:
                    message = request_body(given.take() + b'{"model":"m","prompt":"' + given.take() + b'"}', True)
                case 3:
                    kind = ("text/event-stream", "application/json")[given.number(2)]
                    served = ADDRESSES[given.number(3)] if given.flag() else given.take().decode("latin-1")
                    message = response_headers(200, {"content-type": kind}, given.flag(), served)
                case 4:
                    message = response_body(given.take(), given.flag())
                case 5:
                    message = response_trailers()
                case 6:
                    world.clock.advance(given.number(256))
                    continue
                case 7:
                    slos = {name: given.take().decode("latin-1") for name in SLO_HEADERS}
                    message = request_headers({":method": "POST", ":path": PATHS[0], **slos}, given.flag(), modes)
                case _:
                    message = given.take()
            replies += talk.exchange.receive(message)
        except ProtocolError:
            break
    talk.close(cancelled=given.flag())
    for reply in (*replies, *talk.stream.sent):
        answer = envoy.ProcessingResponse.FromString(reply)
        assert answer.WhichOneof("response")
        lb = answer.dynamic_metadata.fields.get("envoy.lb")
        if lb is not None:
            chosen = lb.struct_value.fields["x-gateway-destination-endpoint"].string_value
            assert set(chosen.split(",")) <= set(ADDRESSES), "an endpoint outside the pool"
    world.assert_nothing_is_left()


# A header block that opens a call, a message and one that ends its call; and what is nothing or zero.
USUAL_PAYLOADS = (block(), framed(b"a"), framed(b"last"), bytes(4), bytes(8), b"")


def http2_frames(data: bytes) -> None:
    """The lean transport, frames of any kind cut in any way: no unexpected error, and each exchange is closed once."""
    given = Bytes(data)
    server, seed, sent = greeted(Server()), given.number(256), bytearray()
    while given:
        kind, flags, stream_id = given.number(11), given.number(256), given.number(8)
        payload = USUAL_PAYLOADS[given.number(len(USUAL_PAYLOADS))] if given.flag() else given.take()
        sent += struct.pack(">HBBBI", 0, len(payload), kind, flags, stream_id) + payload
    answers = parse(b"".join(server.talk(piece) for piece in _pieces(bytes(sent), seed)))
    goodbyes = [frame.error_code for frame in answers if isinstance(frame, GoAwayFrame)]
    assert server.connection.closing or not any(goodbyes), "an offence, and it goes on"
    assert ErrorCode.INTERNAL_ERROR not in goodbyes, "an unexpected error"
    server.connection.lost()
    server.assert_each_closed_once()


# --- bodies ----------------------------------------------------------------------------------------------------------

ENCODINGS: tuple[Mapping[str, str], ...] = (
    {},
    {"content-encoding": "gzip"},
    {"content-encoding": "deflate"},
    {"content-encoding": "br"},
)


def request(data: bytes) -> None:
    """Any body on any API: a request or a bad request; prompts that render; a splice that changes the model alone."""
    given = Bytes(data)
    api, headers = APIS[given.number(len(APIS))], ENCODINGS[given.number(len(ENCODINGS))]
    path = given.take().decode("latin-1") if given.flag() else PATHS[given.number(len(PATHS))]
    Parsers().api_for(path)
    body = given.rest()
    parsed = parse_request(api, body, headers, id="1", path=path)
    if isinstance(parsed, BadRequest):
        assert api is not Api.OPAQUE
        return
    TOKENS.produce(Cycle(parsed, 0.0, random.Random(0)), NOBODY)
    assert parsed.max_output_tokens is None or parsed.max_output_tokens >= 0
    for text in (parsed.model, parsed.cache_salt):
        assert text is None or text.encode() is not None
    parts = splice_model(body, "another")
    if parts is None or headers:
        return
    try:
        before, after = json.loads(body), json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        return
    assert after["model"] == "another"
    assert {**before, "model": None} == {**after, "model": None} or body != b"".join(parts)


def response(data: bytes) -> None:
    """Any response, cut in two ways: the same events, the same bytes to the client, the same usage; memory bounded."""
    given = Bytes(data)
    api, seed, event_stream = APIS[given.number(len(APIS))], given.number(256), given.flag()
    body = given.rest()
    readings, rewritten, usages = [], [], []
    for cut in (seed, seed + 1):
        reader = SseReader(max_event_bytes=200)
        rewriter = ResponseModelRewriter("m", "client", event_stream=event_stream)
        window = BodyWindow(head_bytes=50, tail_bytes=80)
        payloads, out = [], []
        for piece in _pieces(body, cut):
            payloads += reader.feed(piece)
            out.append(rewriter.feed(piece, False))
            window.feed(piece)
        out.append(rewriter.feed(b"", True))
        usage = Usage()
        for payload in window.payloads():
            usage = merge_sse_usage(api, payload, usage)
        readings.append(payloads + reader.close())
        rewritten.append(b"".join(out))
        usages.append(usage)
    assert readings[0] == readings[1]
    assert rewritten[0] == rewritten[1]
    assert usages[0] == usages[1]
    assert all(len(payload) <= 200 for payload in readings[0])
    if b'"model"' not in body:
        assert rewritten[0] == body
    for payload in readings[0]:
        assert has_token(api, payload) in (True, False)
    usage = usage_from_json(api, body)
    assert all(count is None or count >= 0 for count in (usage.prompt_tokens, usage.completion_tokens))


# --- what operators and servers write --------------------------------------------------------------------------------

_HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
_registry: Registry | None = None


def configuration(data: bytes) -> None:
    """Any text: a configuration, or a ConfigError whose remarks are single lines."""
    global _registry
    _registry = _registry or Registry.discover("epp.plugins")
    text = data.decode("utf-8", "replace")
    for whole in (text, _HEAD + text):
        said = ""
        try:
            load_config(whole, filename="f", registry=_registry, services=Services(ledger=Ledger()))
        except ConfigError as error:
            said = str(error)
        assert all(line.isprintable() for line in said.split("\n"))


def endpoints_file(data: bytes) -> None:
    """Any bytes: endpoints, bad entries, or a DiscoveryError of one line."""
    for whole in (data, b"endpoints:\n" + data):
        try:
            file = parse_endpoints_file(whole, "f")
        except DiscoveryError as error:
            said, endpoints = [str(error)], ()
        else:
            said, endpoints = [entry.message for entry in file.bad], file.endpoints
        assert all(line.isprintable() for line in said)
        assert all(0 < endpoint.port < 65536 and hash(endpoint.id) for endpoint in endpoints)


_READERS = [(engine, PageReader(engine.families)) for engine in BUILT_IN_ENGINES]


def metrics_page(data: bytes) -> None:
    """Any page, one after the other through readers that remember: sensible numbers or nothing."""
    for engine, reader in _READERS:
        page = reader.read(data)
        assert page == PageReader(engine.families).read(data), "what was read before changes nothing"
        signals = extract(engine, page.samples, 1.0)
        for value in (signals.waiting_requests, signals.running_requests):
            assert value is None or 0 <= value <= 1e9
        assert signals.kv_cache_usage_ratio is None or 0 <= signals.kv_cache_usage_ratio <= 1


def access_log(data: bytes) -> None:
    """A message of Envoy's access log is read or told to be none, and what it says is of the kind that it should be."""
    try:
        records = list(read_records(data))
    except UnreadableError:
        return
    for record in records:
        assert record.request_id is None or 0 < len(record.request_id) <= MAX_ID_CHARACTERS
        assert record.cut_by in (None, EndCause.UPSTREAM_ERROR, EndCause.CLIENT_GONE)
        assert record.response_bytes >= 0
        assert all(count is None or count >= 0 for count in record[-3:])


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        conversation,
        exchange,
        predicting_exchange,
        http2_frames,
        request,
        response,
        configuration,
        endpoints_file,
        metrics_page,
        access_log,
    )
}
