"""A request's view of a snapshot: which rows are still in the running."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.scheduling.data import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of `snapshot` that a request may go to. Filters return narrower ones; nothing is ever mutated.

    Attributes:
        rows: indices into the snapshot, ascending.
    """

    snapshot: Snapshot
    rows: IntArray

    @staticmethod
    def all_of(snapshot: Snapshot) -> "Candidates":
        return Candidates(snapshot, np.arange(len(snapshot), dtype=np.intp))

    def __len__(self) -> int:
        return int(self.rows.size)

    @property
    def endpoints(self) -> list[Endpoint]:
        endpoints = self.snapshot.endpoints
        return [endpoints[row] for row in self.rows]

    def take(self, column: FloatArray) -> FloatArray:
        """A snapshot-ordered column, cut down to these candidates."""
        return column[self.rows]

    def where(self, mask: npt.NDArray[np.bool_]) -> "Candidates":
        """Those candidates for which `mask` (one entry per candidate) is true."""
        return Candidates(self.snapshot, self.rows[mask])

    def intersect(self, rows: Iterable[int]) -> "Candidates":
        """Those candidates whose row is in `rows`."""
        return self.where(np.isin(self.rows, np.fromiter(rows, dtype=np.intp)))
