"""A request's view of a snapshot: which rows are still in the running."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.scheduling.data import IntArray

ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(slots=True)
class Candidates:
    """Rows of `snapshot` that a request may go to. Filters return narrower ones; nothing is ever mutated.

    Attributes:
        rows: indices into the snapshot, ascending.
        everyone: nobody has been dropped, so that a column of the snapshot is one of the candidates as it stands.
        worked_out: what readers have worked out of these rows and keep here, by a key of theirs. Requests that see the
            same snapshot share one view of everyone, and so what follows from it.
    """

    snapshot: Snapshot
    rows: IntArray
    everyone: bool = field(init=False)
    worked_out: dict[object, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.everyone = len(self.rows) == len(self.snapshot)

    @staticmethod
    def all_of(snapshot: Snapshot) -> "Candidates":
        return Candidates(snapshot, np.arange(len(snapshot), dtype=np.intp))

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, row: int) -> bool:
        """Whether this row of the snapshot is still in the running."""
        if self.everyone:
            return 0 <= row < len(self.rows)
        at = int(self.rows.searchsorted(row))
        return at < len(self.rows) and bool(self.rows[at] == row)

    @property
    def endpoints(self) -> list[Endpoint]:
        endpoints = self.snapshot.endpoints
        return [endpoints[row] for row in self.rows.tolist()]

    def take(self, column: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
        """A snapshot-ordered column, cut down to these candidates; not to be written to."""
        return column if self.everyone else column[self.rows]

    def where(self, mask: npt.NDArray[np.bool_]) -> "Candidates":
        """Those candidates for which `mask` (one entry per candidate) is true."""
        return Candidates(self.snapshot, self.rows[mask])

    def intersect(self, rows: Iterable[int]) -> "Candidates":
        """Those candidates whose row is in `rows`."""
        return self.where(np.isin(self.rows, np.fromiter(rows, dtype=np.intp)))
