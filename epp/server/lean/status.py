"""gRPC status codes: the number for the wire, and the name for metrics as gRPC's own libraries for Go spell it."""

from enum import Enum


class Status(Enum):
    OK = 0, "OK"
    CANCELLED = 1, "Canceled"
    INVALID_ARGUMENT = 3, "InvalidArgument"
    DEADLINE_EXCEEDED = 4, "DeadlineExceeded"
    RESOURCE_EXHAUSTED = 8, "ResourceExhausted"
    UNIMPLEMENTED = 12, "Unimplemented"
    INTERNAL = 13, "Internal"

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def text(self) -> str:
        return self.value[1]


class RpcFault(Exception):
    """Ends a call with a status. The message goes to the peer: nothing of a request may be in it."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
