"""A server that fails is named in the log, with what it fails at, once and not for every request."""

import logging

import pytest

from epp.endings import EndCause
from epp.inference.request import Usage
from epp.ledger import Outcome
from epp.observe.failures import INTERVAL_S, ServerFailures


def ended(cause: EndCause, status: int | None, endpoint: str = "default/a") -> Outcome:
    return Outcome(cause, status, False, endpoint, 0.0, 0.0, None, 1.0, Usage())


def test_each_server_and_cause_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    failures = ServerFailures(lambda: now_s)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            failures.request_ended(ended(EndCause.NATURAL, 500))
            failures.request_ended(ended(EndCause.UPSTREAM_ERROR, 503))
            failures.request_ended(ended(EndCause.UPSTREAM_ERROR, 503, "default/b"))
        assert [record.getMessage() for record in caplog.records] == [
            "a request that was sent to default/a failed: the server answered 500",
            "a request that was sent to default/a failed: no answer of the server came through; the proxy answered 503",
            "a request that was sent to default/b failed: no answer of the server came through; the proxy answered 503",
        ]
        now_s += INTERVAL_S
        failures.request_ended(ended(EndCause.NATURAL, 500))
        assert len(caplog.records) == 4


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (EndCause.NATURAL, 200),
        (EndCause.NATURAL, 404),
        (EndCause.NATURAL, None),
        (EndCause.CLIENT_GONE, 200),
        (EndCause.CLIENT_GONE, None),
        (EndCause.REJECTED, None),
        (EndCause.LOST, 500),
    ],
)
def test_what_is_no_servers_failure_is_not_told(
    cause: EndCause, status: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ServerFailures(lambda: 0.0).request_ended(ended(cause, status))
    assert caplog.records == []
