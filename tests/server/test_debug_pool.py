"""What `/debug/state` says of each server of the pool."""

from epp.ledger import Ledger
from epp.pool.static import parse_endpoints
from epp.pool.store import PoolStore
from epp.server.debug import pool_state
from epp.signals.errors import ScrapeError, ScrapeErrorKind
from epp.signals.scraper import ScrapeStats


def test_why_a_metrics_page_could_not_be_read_is_said_as_in_the_log_until_it_can() -> None:
    store, error = PoolStore(), ScrapeError(ScrapeErrorKind.STATUS, "HTTP 404")
    store.replace(parse_endpoints("10.0.0.1:8000"))
    (endpoint,) = store.snapshot().endpoints

    def said(scrape: ScrapeStats) -> object:
        (only,) = pool_state(store.snapshot(), Ledger(), {endpoint.id: scrape}, 1.0)["endpoints"]
        return only["scrape_error"]

    failed = ScrapeStats().after(error, 0.1)
    assert said(ScrapeStats()) is None
    assert said(failed) == str(error) == "status: HTTP 404"
    assert said(failed.after(None, 0.1)) is None
