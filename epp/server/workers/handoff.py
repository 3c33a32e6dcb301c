"""Connections: the parent accepts them and hands each to the worker that has the fewest.

The kernel could share them out by itself (SO_REUSEPORT), but by a hash of the address: Envoy opens one connection for
each of its threads and keeps it, so with few of them one worker may get all and another none.

A handed socket travels over a pair of its own, one message each, with one byte that says which listener it came from.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from epp.server.listen import Address, TcpAddress, UnixAddress, listen

BACKLOG = 1024
MOST_AT_ONCE = 64
_PAUSE_S = 0.1


class Acceptor:
    """Listens on the addresses from `bind` on, and takes connections from `start` on.

    Args:
        give: who gets a connection, which listener it came from; False: nobody could take it, and it is closed.
    """

    def __init__(self, addresses: Sequence[Address], give: Callable[[socket.socket, int], bool]) -> None:
        self._addresses = tuple(addresses)
        self._give = give
        self._listeners: list[socket.socket] = []
        self._accepting = False
        self.port: int | None = None

    def bind(self) -> None:
        """Raises `CannotListen`. Whoever connects from now on waits for `start`."""
        for address in self._addresses:
            listener = listen(address, BACKLOG)
            listener.setblocking(False)
            self._listeners.append(listener)
            if isinstance(address, TcpAddress):
                self.port = listener.getsockname()[1]

    def start(self) -> None:
        if not self._accepting:
            self._accepting = True
            self._watch()

    def stop(self) -> None:
        """Stop listening."""
        loop = asyncio.get_running_loop()
        for address, listener in zip(self._addresses, self._listeners, strict=False):  # fewer, if one was in use
            if self._accepting:
                loop.remove_reader(listener)
            listener.close()
            if isinstance(address, UnixAddress):
                with suppress(OSError):
                    os.unlink(address.path)
        self._listeners.clear()
        self._accepting = False

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for number, listener in enumerate(self._listeners):
            loop.add_reader(listener, self._accept, number)

    def _accept(self, number: int) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                connection, _ = self._listeners[number].accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors, as a rule: those that wait are taken a little later
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listeners[number])
                loop.call_later(_PAUSE_S, self._resume)
                return
            with connection:
                self._give(connection, number)

    def _resume(self) -> None:
        if self._accepting:
            self._watch()


def hand_over(pair: socket.socket, connection: socket.socket, listener: int) -> bool:
    """To whoever has the other end of `pair`. False: it does not take any."""
    try:
        socket.send_fds(pair, [bytes([listener])], [connection.fileno()])
    except OSError:
        return False
    return True


def take_over(pair: socket.socket) -> tuple[socket.socket, int] | None:
    """A connection and its listener. `None`: there is none now, or none will come any more."""
    try:
        content, descriptors, _, _ = socket.recv_fds(pair, 1, 1)
    except OSError:
        return None
    if not content or not descriptors:
        return None
    connection = socket.socket(fileno=descriptors[0])
    connection.setblocking(False)
    return connection, content[0]
