"""Where a server listens, and the one error that says why it cannot.

An address is tried with a plain socket before a server library gets it: the libraries either share a port silently or
hide the reason in a log of their own.
"""

import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass

from epp.problem import Problem


class CannotListen(Problem):
    """One line for the user: the address, the flag that set it, and why.

    Attributes:
        where: `port 9002` or a socket's path.
        flag: e.g. `--grpc-port`.
    """

    def __init__(self, where: str, flag: str, reason: str) -> None:
        super().__init__(f"cannot listen on {where} ({flag}): {reason}")
        self.where = where
        self.flag = flag


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """
    Attributes:
        port: 0 lets the system choose.
        flag: the flag that set it, for error messages.
        host: IP literal; `None` is every interface, IPv4 and IPv6.
    """

    port: int
    flag: str
    host: str | None = None

    def check_free(self) -> None:
        """Raises `CannotListen` if nobody could bind here now."""
        ipv6 = socket.has_dualstack_ipv6() if self.host is None else ":" in self.host
        try:
            with socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if ipv6 and self.host is None:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                probe.bind((self.host or "", self.port))
                probe.listen(1)
        except OSError as error:
            raise self.cannot_listen(error) from error

    def listener(self, backlog: int) -> socket.socket:
        """One socket that listens here, for IPv4 and IPv6 alike when there is no `host`. Raises `OSError`."""
        dualstack = self.host is None and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dualstack or ":" in (self.host or "") else socket.AF_INET
        return socket.create_server(
            (self.host or "", self.port), family=family, backlog=backlog, dualstack_ipv6=dualstack
        )

    def cannot_listen(self, error: OSError) -> CannotListen:
        where = f"port {self.port}" if self.host is None else f"{self.host} port {self.port}"
        return CannotListen(where, self.flag, reason_of(error))


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket. A file left behind by a dead process is replaced; anything else that is in the way is not."""

    path: str
    flag: str

    def check_free(self) -> None:
        """Raises `CannotListen` if nobody could bind here now."""
        try:
            is_socket = stat.S_ISSOCK(os.stat(self.path).st_mode)
        except FileNotFoundError:
            if not os.access(os.path.dirname(self.path) or ".", os.W_OK):
                raise CannotListen(self.path, self.flag, "its directory does not exist or is not writable") from None
            return
        except OSError as error:
            raise self.cannot_listen(error) from error
        if not is_socket:
            raise CannotListen(self.path, self.flag, "a file that is no socket is in the way")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(self.path) == 0:
                raise self.cannot_listen(OSError(errno.EADDRINUSE, ""))

    def listener(self, backlog: int) -> socket.socket:
        """A socket that listens here, in place of one that a dead process left behind. Raises `OSError`."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.path)
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
        return listener

    def cannot_listen(self, error: OSError) -> CannotListen:
        return CannotListen(self.path, self.flag, reason_of(error))


Address = TcpAddress | UnixAddress


def listen(address: Address, backlog: int) -> socket.socket:
    """A socket that listens there. Raises `CannotListen`."""
    address.check_free()
    try:
        return address.listener(backlog)
    except OSError as error:  # somebody took it since it was checked
        raise address.cannot_listen(error) from error


def reason_of(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there"
    if isinstance(error, socket.gaierror):  # its numbers are not those of the system
        return error.strerror or "no such host"
    return os.strerror(error.errno) if error.errno else str(error)
