"""Samples on their way to a remote predictor; see `epp.server.remote`."""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from epp.latency.types import Sample

MOST_KEPT_SAMPLES = 5000


class Outbox:
    """Samples to be sent, the newest of them.

    Attributes:
        dropped: of samples that nobody took in time.
    """

    def __init__(self, most: int = MOST_KEPT_SAMPLES) -> None:
        self._samples: deque[Sample] = deque(maxlen=most)
        self._most = most
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        self.dropped += len(self._samples) == self._most
        self._samples.append(sample)

    def take(self, most: int) -> list[Sample]:
        """The oldest, which are then not here any more."""
        return [self._samples.popleft() for _ in range(min(most, len(self._samples)))]

    def put_back(self, samples: Sequence[Sample]) -> None:
        """What was taken and not sent, as far as there is room: newer ones matter more."""
        room = self._most - len(self._samples)
        self.dropped += max(len(samples) - room, 0)
        self._samples.extendleft(islice(reversed(samples), max(room, 0)))
