"""Asking a server for its numbers: by name if it can, else for the whole page.

A vLLM page has some 600 lines, and a picker wants seven. Exporters made with Prometheus' client libraries write only
the families that a query names (`?name[]=…`), which saves most of the work at both ends. Others ignore the query and
write all; and some, that gather numbers from several processes, write nothing. So the first page is read whole, the
next by name. A page by name that fails, or lacks what the whole page had, is not believed: the whole page is read in
its place, and from then on, until the server is another process.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from epp.signals.errors import ScrapeError, ScrapeErrorKind
from epp.signals.fetch import PageConnection
from epp.signals.page import Page, PageReader, unlabelled_value
from epp.signals.restarts import PROCESS_START

# These say nothing about how the server takes a query.
_UNRELATED = (ScrapeErrorKind.TIMEOUT, ScrapeErrorKind.CONNECTION, ScrapeErrorKind.TLS)

_MAX_KEPT_BYTES = 1 << 13  # whole pages differ anyway


@dataclass(frozen=True, slots=True)
class Reading:
    """What one page said.

    Attributes:
        started_at_s: Unix time at which the server's process started; `None` if the page does not say.
    """

    page: Page
    started_at_s: float | None
    size_bytes: int


class PageSource:
    """Reads `families` from one server, over `connection`."""

    def __init__(self, connection: PageConnection, families: Iterable[str]) -> None:
        self._connection = connection
        self._reader = PageReader(families)
        self._names = (*sorted(families), PROCESS_START)
        self._by_name_suits = True
        self._whole: frozenset[str] = frozenset()  # what the latest whole page had
        self._latest: tuple[bytes, Reading] | None = None  # a server at rest says the same again

    def close(self) -> None:
        self._connection.close()

    def server_is_new(self) -> None:
        """The server is another process than before: it may take queries in another way."""
        self._by_name_suits = True

    async def read(self) -> Reading:
        """Read the page. Raises `ScrapeError`."""
        suits = self._by_name_suits
        if suits and self._whole:
            try:
                reading = await self._read(self._names)
            except ScrapeError as error:
                if error.kind in _UNRELATED:
                    raise
            else:
                if self._whole <= _families(reading):
                    return reading
            suits = False
        reading = await self._read(())
        self._by_name_suits = suits
        self._whole = _families(reading)
        return reading

    async def _read(self, names: tuple[str, ...]) -> Reading:
        data = await self._connection.fetch(names)
        if self._latest is not None and data == self._latest[0]:
            return self._latest[1]
        reading = Reading(self._reader.read(data), unlabelled_value(data, PROCESS_START), len(data))
        self._latest = (data, reading) if len(data) <= _MAX_KEPT_BYTES else None
        return reading


def _families(reading: Reading) -> frozenset[str]:
    families = frozenset(reading.page.samples)
    return families if reading.started_at_s is None else families | {PROCESS_START}
