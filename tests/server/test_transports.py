"""What every transport promises, with a toy exchange and a real gRPC client: grpc.aio, and our own on either loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc
import pytest
import uvloop
from grpc import aio

from epp.server.grpc_transport import GrpcOptions, ext_proc_server
from epp.server.health import HealthState
from epp.server.lean.limits import LeanOptions
from epp.server.lean.server import lean_server
from epp.server.listen import Address, CannotListen, TcpAddress, UnixAddress
from epp.server.transport import METHOD, Stream, StreamObserver, Transport
from epp.wire.codec import ProtocolError

# There is no other way for as long as older releases of pytest-asyncio are to do.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")

LOOPBACK = TcpAddress(0, "--grpc-port", "127.0.0.1")


class ToyExchange:
    """Answers each message with itself, but for a few words that make it do something else."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.finished = False
        self.received: list[bytes] = []
        self.closings: list[bool] = []
        self.closed_event = asyncio.Event()

    def receive(self, data: bytes) -> list[bytes]:
        self.received.append(data)
        match data:
            case b"garbage":
                raise ProtocolError("undecodable message")
            case b"bug":
                raise ZeroDivisionError("secret prompt")
            case b"last":
                self.finished = True
            case b"later":
                self.stream.afterwards(lambda: self.received.append(b"put off"))
            case b"silence":
                return []
            case b"three":
                return [b"1", b"2", b"3"]
        return [data]

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        self.closings.append(cancelled)
        self.closed_event.set()


@dataclass
class Toys:
    """Factory and observer in one: remembers every exchange and every count."""

    exchanges: list[ToyExchange] = field(default_factory=list)
    opened: int = 0
    codes: list[str] = field(default_factory=list)

    def __call__(self, stream: Stream) -> ToyExchange:
        self.exchanges.append(ToyExchange(stream))
        return self.exchanges[-1]

    def stream_opened(self) -> None:
        self.opened += 1

    def stream_closed(self, code: str, duration_s: float) -> None:
        assert duration_s >= 0
        self.codes.append(code)

    async def ended(self) -> ToyExchange:
        """The last exchange, once it is closed."""
        exchange = self.exchanges[-1]
        await asyncio.wait_for(exchange.closed_event.wait(), 30)
        return exchange


class Maker(Protocol):
    def __call__(
        self, toys: Toys, *addresses: Address, observer: StreamObserver | None = None, max_receive_bytes: int = ...
    ) -> Transport: ...


@pytest.fixture(params=["grpc", "lean", "lean on uvloop"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def event_loop_policy(kind: str) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if kind == "lean on uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def server_of(kind: str) -> Maker:
    def make(
        toys: Toys, *addresses: Address, observer: StreamObserver | None = None, max_receive_bytes: int = 32 * 2**20
    ) -> Transport:
        addresses, observer, health = addresses or (LOOPBACK,), observer or toys, HealthState(list)
        if kind == "grpc":
            options = GrpcOptions(max_receive_bytes=max_receive_bytes)
            return ext_proc_server(toys, addresses, health, observer, options=options)
        return lean_server(toys, addresses, health, observer, options=LeanOptions(max_receive_bytes=max_receive_bytes))

    return make


@pytest.fixture
async def toys() -> Toys:
    return Toys()


@pytest.fixture
async def channel(server_of: Maker, toys: Toys) -> AsyncIterator[aio.Channel]:
    server = server_of(toys)
    await server.start()
    options = [("grpc.max_receive_message_length", -1)]
    async with aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        yield channel
    await server.stop()


def call_on(channel: aio.Channel) -> "aio.StreamStreamCall[bytes, bytes]":
    return channel.stream_stream(METHOD, None, None)()


async def talk(call: "aio.StreamStreamCall[bytes, bytes]", *messages: bytes) -> list[bytes]:
    """Send each message and wait for its one reply."""
    replies = []
    for message in messages:
        await call.write(message)
        replies.append(await call.read())
    return replies


async def rest_of(call: "aio.StreamStreamCall[bytes, bytes]") -> list[bytes]:
    replies: list[bytes] = []
    while (reply := await call.read()) is not aio.EOF:
        replies.append(reply)
    return replies


async def test_replies_come_in_order_and_half_close_ends_with_ok(channel: aio.Channel, toys: Toys) -> None:
    call = call_on(channel)
    assert await talk(call, b"a", b"b") == [b"a", b"b"]
    await call.write(b"three")
    await call.write(b"silence")
    await call.write(b"c")
    await call.done_writing()
    assert await rest_of(call) == [b"1", b"2", b"3", b"c"]
    assert await call.code() is grpc.StatusCode.OK
    exchange = await toys.ended()
    assert exchange.closings == [False]
    assert (toys.opened, toys.codes) == (1, ["OK"])


async def test_a_client_that_blocks_is_served_too(server_of: Maker, toys: Toys) -> None:
    server = server_of(toys)
    await server.start()

    def ask() -> list[bytes]:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            return list(channel.stream_stream(METHOD)(iter([b"a", b"three", b"last", b"never read"]), timeout=30))

    assert await asyncio.to_thread(ask) == [b"a", b"1", b"2", b"3", b"last"]
    assert (await toys.ended()).closings == [False]
    await server.stop()


async def test_a_cancelled_call_closes_the_exchange_once_as_cancelled(channel: aio.Channel, toys: Toys) -> None:
    call = call_on(channel)
    await talk(call, b"a")
    call.cancel()
    exchange = await toys.ended()
    assert exchange.closings == [True]
    assert toys.codes == ["Canceled"]


async def test_a_lost_connection_closes_the_exchange_once_as_cancelled(server_of: Maker, toys: Toys) -> None:
    server = server_of(toys)
    await server.start()
    channel = aio.insecure_channel(f"127.0.0.1:{server.port}")
    await talk(call_on(channel), b"a")
    await channel.close()
    assert (await toys.ended()).closings == [True]
    await server.stop()


async def test_a_finished_exchange_ends_the_stream_after_its_reply(channel: aio.Channel, toys: Toys) -> None:
    call = call_on(channel)
    await call.write(b"last")
    assert await rest_of(call) == [b"last"]
    assert await call.code() is grpc.StatusCode.OK
    assert (await toys.ended()).closings == [False]


async def test_what_is_put_off_is_done_once_and_before_the_next_message(channel: aio.Channel, toys: Toys) -> None:
    call = call_on(channel)
    assert await talk(call, b"later", b"next") == [b"later", b"next"]
    await call.done_writing()
    exchange = await toys.ended()
    assert exchange.received == [b"later", b"put off", b"next"]


async def test_what_the_exchange_sends_of_its_own_accord_arrives_while_the_peer_is_silent(
    channel: aio.Channel, toys: Toys
) -> None:
    call = call_on(channel)
    await talk(call, b"a")
    stream = toys.exchanges[0].stream
    stream.send([b"x", b"y"])
    stream.send([b"z"])
    assert [await call.read() for _ in range(3)] == [b"x", b"y", b"z"]
    assert await talk(call, b"b") == [b"b"]
    call.cancel()


async def test_finish_sends_what_is_queued_and_ends_with_ok_while_the_peer_is_silent(
    channel: aio.Channel, toys: Toys
) -> None:
    call = call_on(channel)
    await talk(call, b"a")
    toys.exchanges[0].stream.send([b"too late"])
    toys.exchanges[0].stream.finish()
    assert await rest_of(call) == [b"too late"]
    assert await call.code() is grpc.StatusCode.OK
    exchange = await toys.ended()
    assert exchange.closings == [False]
    assert toys.codes == ["OK"]


async def test_sending_on_an_ended_stream_does_nothing(channel: aio.Channel, toys: Toys) -> None:
    call = call_on(channel)
    await talk(call, b"a")
    call.cancel()
    exchange = await toys.ended()
    exchange.stream.send([b"x"])
    exchange.stream.finish()
    await asyncio.sleep(0.05)
    assert await talk(call_on(channel), b"b") == [b"b"]


async def test_a_message_that_is_no_ext_proc_ends_with_invalid_argument(channel: aio.Channel, toys: Toys) -> None:
    call = call_on(channel)
    await call.write(b"garbage")
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await toys.ended()).closings == [False]
    assert toys.codes == ["InvalidArgument"]


async def test_a_bug_ends_one_stream_and_is_logged_without_its_message(
    channel: aio.Channel, toys: Toys, caplog: pytest.LogCaptureFixture
) -> None:
    call = call_on(channel)
    await call.write(b"bug")
    assert await call.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in await call.details()
    assert (await toys.ended()).closings == [False]
    assert "secret" not in caplog.records[-1].getMessage()
    assert await talk(call_on(channel), b"a") == [b"a"]


async def test_a_message_of_five_megabytes_passes_whole(channel: aio.Channel) -> None:
    message = bytes(5_000_000)
    assert await talk(call_on(channel), message) == [message]


async def test_a_message_over_the_limit_ends_the_stream_and_closes_the_exchange(server_of: Maker, toys: Toys) -> None:
    server = server_of(toys, max_receive_bytes=1000)
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = call_on(channel)
        await call.write(bytes(2000))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len((await toys.ended()).closings) == 1
    await server.stop()


async def test_streams_ended_in_every_way_are_all_closed_exactly_once(channel: aio.Channel, toys: Toys) -> None:
    async def end(how: int) -> None:
        call = call_on(channel)
        await talk(call, b"a")
        match how % 4:
            case 0:
                call.cancel()
            case 1:
                await call.done_writing()
                await rest_of(call)
            case 2:
                await call.write(b"last")
                await rest_of(call)
            case 3:
                await call.write(b"garbage")
                await call.code()

    await asyncio.gather(*(end(i) for i in range(80)))
    await asyncio.gather(*(asyncio.wait_for(e.closed_event.wait(), 30) for e in toys.exchanges))
    assert [len(e.closings) for e in toys.exchanges] == [1] * 80
    assert toys.opened == len(toys.codes) == 80


async def test_a_deadline_that_passes_closes_the_exchange_once_as_cancelled(channel: aio.Channel, toys: Toys) -> None:
    for timeout_s in (0.2, 10.0):
        call = channel.stream_stream(METHOD, None, None)(timeout=timeout_s)
        try:
            assert await talk(call, b"a") == [b"a"]
            break
        except aio.AioRpcError:  # it passed before there was an answer, on a machine that stood still
            pass
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await toys.ended()).closings == [True]


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_read(channel: aio.Channel, toys: Toys, compression: grpc.Compression) -> None:
    call = channel.stream_stream(METHOD, None, None)(compression=compression)
    message = b"compressible " * 10_000
    assert await talk(call, message, b"a") == [message, b"a"]
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_a_message_that_unpacks_to_too_much_is_not_unpacked(server_of: Maker, toys: Toys) -> None:
    server = server_of(toys, max_receive_bytes=10_000)
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.stream_stream(METHOD, None, None)(compression=grpc.Compression.Gzip)
        await call.write(bytes(1_000_000))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert toys.exchanges[-1].received == []
    await server.stop()


async def test_many_large_messages_pass_whole_both_ways_while_the_client_is_slow_to_read(
    channel: aio.Channel, toys: Toys
) -> None:
    call = call_on(channel)
    messages = [bytes([i]) * 700_000 for i in range(40)]

    async def write() -> None:
        for message in messages:
            await call.write(message)
        await call.done_writing()

    writing = asyncio.create_task(write())
    await asyncio.sleep(0.2)
    assert await rest_of(call) == messages
    await writing
    assert await call.code() is grpc.StatusCode.OK


async def test_an_unknown_method_is_unimplemented(channel: aio.Channel, toys: Toys) -> None:
    call = channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Other", None, None)()
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert toys.exchanges == []


async def test_unix_socket_and_tcp_serve_the_same(server_of: Maker, toys: Toys, tmp_path: Path) -> None:
    path = f"{tmp_path}/epp.sock"
    server = server_of(toys, LOOPBACK, UnixAddress(path, "--grpc-socket"))
    await server.start()
    for target in (f"unix:{path}", f"127.0.0.1:{server.port}"):
        async with aio.insecure_channel(target) as channel:
            assert await talk(call_on(channel), b"a") == [b"a"]
    await server.stop()


async def test_every_interface_is_served_without_a_host(server_of: Maker, toys: Toys) -> None:
    server = server_of(toys, TcpAddress(0, "--grpc-port"))
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert await talk(call_on(channel), b"a") == [b"a"]
    await server.stop()


async def test_a_port_in_use_is_one_line_that_names_port_and_flag(server_of: Maker, toys: Toys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen) as caught:
            await server_of(toys, TcpAddress(port, "--grpc-port", "127.0.0.1")).start()
    assert str(caught.value) == (f"cannot listen on 127.0.0.1 port {port} (--grpc-port): another process listens there")


async def test_two_pickers_cannot_share_a_port(server_of: Maker, toys: Toys) -> None:
    server = server_of(toys)
    await server.start()
    assert server.port is not None
    with pytest.raises(CannotListen):
        await server_of(toys, TcpAddress(server.port, "--grpc-port")).start()
    await server.stop()


@pytest.mark.parametrize("obstacle", ["live socket", "no socket", "no directory"])
async def test_a_unix_path_that_cannot_be_used_is_refused(
    server_of: Maker, toys: Toys, tmp_path: Path, obstacle: str
) -> None:
    path = f"{tmp_path}/epp.sock"
    holder = socket.socket(socket.AF_UNIX)
    if obstacle == "live socket":
        holder.bind(path)
        holder.listen()
    elif obstacle == "no socket":
        path = str(tmp_path)
    else:
        path = f"{tmp_path}/missing/epp.sock"
    with holder, pytest.raises(CannotListen, match="--grpc-socket"):
        await server_of(toys, UnixAddress(path, "--grpc-socket")).start()


async def test_the_socket_of_a_dead_process_is_replaced(server_of: Maker, toys: Toys, tmp_path: Path) -> None:
    path = f"{tmp_path}/epp.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    server = server_of(toys, UnixAddress(path, "--grpc-socket"))
    await server.start()
    async with aio.insecure_channel(f"unix:{path}") as channel:
        assert await talk(call_on(channel), b"a") == [b"a"]
    await server.stop()


async def test_drain_lets_open_streams_finish_and_takes_no_new_ones(server_of: Maker, toys: Toys) -> None:
    server = server_of(toys)
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as own:
        call = call_on(own)
        await talk(call, b"a")
        draining = asyncio.create_task(server.drain(60))
        await asyncio.sleep(0.05)
        assert await talk(call, b"b") == [b"b"]
        assert not draining.done()
        await call.write(b"last")
        assert await rest_of(call) == [b"last"]
        await asyncio.wait_for(draining, 30)
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as late:
        assert await call_on(late).code() is grpc.StatusCode.UNAVAILABLE


async def test_drain_is_bounded_and_closes_what_is_left(server_of: Maker, toys: Toys) -> None:
    server = server_of(toys)
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        await talk(call_on(channel), b"a")
        await asyncio.wait_for(server.drain(0.05), 30)
        assert (await toys.ended()).closings == [True]
