"""Connections are accepted in one place and served in another."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from epp.server.listen import CannotListen, TcpAddress, UnixAddress
from epp.server.workers.handoff import Acceptor, hand_over, take_over

LOOPBACK = TcpAddress(0, "--grpc-port", "127.0.0.1")


async def test_a_connection_arrives_with_its_listener_and_works(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    unix = UnixAddress(str(tmp_path / "picker.sock"), "--grpc-socket")
    acceptor = Acceptor([LOOPBACK, unix], lambda connection, number: hand_over(ours, connection, number))
    acceptor.bind()
    loop = asyncio.get_running_loop()
    early = socket.create_connection(("127.0.0.1", acceptor.port or 0))  # waits until somebody accepts
    acceptor.start()
    late = socket.socket(socket.AF_UNIX)
    late.connect(unix.path)
    readable = asyncio.Queue[None]()
    loop.add_reader(theirs, lambda: readable.put_nowait(None))
    served: dict[int, socket.socket] = {}
    async with asyncio.timeout(20):
        while len(served) < 2:
            await readable.get()
            while (taken := take_over(theirs)) is not None:
                served[taken[1]] = taken[0]
    loop.remove_reader(theirs)
    for number, client in enumerate((early, late)):
        client.sendall(b"ping")
        assert await loop.sock_recv(served[number], 10) == b"ping"
        served[number].close()
        assert client.recv(1) == b"", "the parent has kept no end of it"
        client.close()
    acceptor.stop()
    assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", acceptor.port or 0))
    ours.close()
    assert take_over(theirs) is None
    theirs.close()


async def test_a_connection_that_nobody_takes_is_closed() -> None:
    acceptor = Acceptor([LOOPBACK], lambda connection, number: False)
    acceptor.bind()
    acceptor.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", acceptor.port)
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    acceptor.stop()
    acceptor.stop()  # does nothing


async def test_a_port_in_use_is_told_by_its_flag() -> None:
    first = Acceptor([LOOPBACK], lambda connection, number: False)
    first.bind()
    second = Acceptor([TcpAddress(first.port or 0, "--grpc-port", "127.0.0.1")], lambda connection, number: False)
    with pytest.raises(CannotListen, match="--grpc-port"):
        second.bind()
    first.stop()
    second.stop()


def test_who_has_ended_takes_nothing() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with socket.socket() as connection:
        assert not hand_over(ours, connection, 0)
    ours.close()
