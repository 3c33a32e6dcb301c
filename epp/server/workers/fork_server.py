"""Workers are forks of a process that has everything loaded and does nothing.

Loading all modules anew takes 0.7 s of CPU and 80 MB for each worker; a fork that is ready to serve has taken 0.02 s
and has 13 MB of its own. But only a process without threads may be forked, and the parent has some as soon as it runs
(gRPC's, and those that compress pages). So it forks this server at the very beginning, before its event loop, and asks
it for workers from then on.

When the server ends, the kernel ends its workers; when the parent ends, the kernel ends the server.
"""

import ctypes
import gc
import logging
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_MESSAGE_BYTES = 65_536
_FAILED = 70  # exit status of a worker that ended by an exception, which it has logged


@dataclass(frozen=True, slots=True)
class Birth:
    """A worker began to live."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class Death:
    """
    Attributes:
        pid: `None`: it could not be forked at all.
        status: its exit status, or minus the signal that killed it; an errno if it could not be forked.
    """

    worker: int
    pid: int | None
    status: int


WorkerMain = Callable[[int, bytes, Sequence[int]], None]
"""A worker's life: its number, its order, its file descriptors, which it owns."""


class ForkServer:
    """The parent's end."""

    def __init__(self, main: WorkerMain) -> None:
        """Fork it. Call this before anything starts threads or an event loop."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _end_with_parent(parent)
            _serve(theirs, main)
        theirs.close()
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """For an event loop: readable when there is something to `receive`."""
        return self._socket.fileno()

    def order(self, worker: int, order: bytes, descriptors: Sequence[int]) -> None:
        """Fork a worker; what becomes of it is received. The descriptors may be closed afterwards. Raises `OSError`."""
        socket.send_fds(self._socket, [pickle.dumps((worker, order))], descriptors)

    def receive(self) -> list[Birth | Death] | None:
        """What has happened since the last time. `None`: the server has ended, and so have all workers."""
        news: list[Birth | Death] = []
        while True:
            try:
                message = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return news
            except OSError:
                return None
            if not message:
                return None
            news.append(pickle.loads(message))

    def close(self) -> None:
        """End it, and whatever workers are left."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. Elsewhere than on Linux the end of a socket has to do."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        os._exit(1)


def _serve(parent: socket.socket, main: WorkerMain) -> None:
    """The server's life. Does not return."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # of a terminal or a service manager: the parent sees to those
            signal.signal(number, signal.SIG_IGN)
        gc.freeze()  # so that a worker's collections leave alone, and shared, what was there before it
        _Nursery(parent, main).run()
        status = 0
    except BaseException as error:
        logger.error("the fork server ended by an unexpected error", exc_info=error)
    finally:
        os._exit(status)


class _Nursery:
    """The server's side: forks, and tells of deaths."""

    def __init__(self, parent: socket.socket, main: WorkerMain) -> None:
        self._parent = parent
        self._main = main
        self._pids: dict[int, tuple[int, int]] = {}  # descriptor of a process to its pid and the worker's number
        self._poll = select.poll()
        self._poll.register(parent, select.POLLIN)

    def run(self) -> None:
        """Until the parent closes its end."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._pids:
                    self._bury(descriptor)
                elif not self._take_order():
                    for pid, _ in self._pids.values():
                        os.kill(pid, signal.SIGKILL)
                    return

    def _take_order(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._parent, _MESSAGE_BYTES, 16)
        if not message:
            return False
        worker, order = pickle.loads(message)
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(Death(worker, None, error.errno or 1))
        else:
            if pid == 0:
                _live(server, self._close, lambda: self._main(worker, order, descriptors))
            process = os.pidfd_open(pid)
            self._pids[process] = pid, worker
            self._poll.register(process, select.POLLIN)
            self._tell(Birth(worker, pid))
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _bury(self, process: int) -> None:
        pid, worker = self._pids.pop(process)
        self._poll.unregister(process)
        os.close(process)
        self._tell(Death(worker, pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))

    def _tell(self, news: Birth | Death) -> None:
        with suppress(OSError):  # the parent is gone: that is noticed when it is read from
            self._parent.send(pickle.dumps(news))

    def _close(self) -> None:
        """In a worker: what is the server's alone."""
        self._parent.close()
        for process in self._pids:
            os.close(process)


def _live(server: int, close: Callable[[], None], main: Callable[[], None]) -> None:
    """In a worker. Does not return."""
    status = _FAILED
    try:
        _end_with_parent(server)
        close()
        main()
        status = 0
    except BaseException as error:
        logger.error("a worker ended by an unexpected error", exc_info=error)
    finally:
        os._exit(status)
