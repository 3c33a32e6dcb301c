"""One direction of a conversation: how far it has been read, and the replies that wait for the owner's answer."""

from epp.wire.codec import ProtocolError
from epp.wire.table import Action, Kind, Rows, State


class Direction:
    """
    Attributes:
        state: after the last message.
        owed: the owner's answer is due. It goes first, so replies are held back until it is there.
    """

    __slots__ = ("_held", "_rows", "owed", "state")

    def __init__(self) -> None:
        self.state = State.START
        self.owed = False
        self._rows: Rows = {}
        self._held: list[bytes] | None = None

    def follow(self, rows: Rows) -> None:
        self._rows = rows

    def advance(self, kind: Kind) -> Action:
        """Take the next part.

        Raises:
            ProtocolError: it cannot come here.
        """
        try:
            action, self.state = self._rows[self.state, kind]
        except KeyError:
            raise ProtocolError(f"{kind.value!r} cannot come in state {self.state.value!r}") from None
        return action

    def action_on(self, kind: Kind) -> Action:
        """What the next part means, if it is of this kind. Raises `KeyError`: it cannot come here."""
        return self._rows[self.state, kind][0]

    def send(self, messages: list[bytes], out: list[bytes]) -> None:
        """Put replies into `out`, or behind the answer that is due."""
        if self.owed:
            if self._held is None:
                self._held = []
            self._held.extend(messages)
        else:
            out.extend(messages)

    def send_one(self, message: bytes, out: list[bytes]) -> None:
        """`send`, of one."""
        if self.owed:
            self.send([message], out)
        else:
            out.append(message)

    def settle(self, answer: list[bytes]) -> list[bytes]:
        """The owner's answer has come: that, and what waited behind it."""
        messages = answer if self._held is None else answer + self._held
        self.drop()
        return messages

    def drop(self) -> None:
        """No answer will come, and what waited for it will not be sent."""
        self.owed = False
        self._held = None
