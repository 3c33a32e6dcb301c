"""Access log records reach the worker that waits for them, wherever they come."""

from epp.server.access_log.awaiting import AccessLog
from epp.server.workers.batches import Clockwork
from epp.server.workers.messages import Kind
from epp.server.workers.records import ForeignRecords
from epp.wire.access_log import Record


class Nobody:
    def awaited_record_came(self) -> None: ...

    def awaited_record_is_missing(self) -> None: ...

    def relied_on(self, relied_on: bool) -> None: ...


class Timer:
    def cancel(self) -> None: ...


def test_each_record_goes_to_the_worker_in_its_name() -> None:
    sent: list[tuple[Kind, list[Record], int]] = []
    due = []
    access_log = AccessLog("abcd.1", Nobody(), clock=lambda: 0.0, call_later=lambda delay_s, call: Timer())
    records = ForeignRecords(
        access_log,
        1,
        3,
        lambda kind, content, worker: sent.append((kind, content, worker)),
        Clockwork(lambda: 0.0, lambda delay_s, call: due.append(call)),
    )
    awaited = access_log.expect("1s")
    assert awaited is not None
    came: list[Record | None] = []
    awaited.let_go(came.append)
    ours, theirs = record(awaited.name), [record("ef01.0-5"), record("ef01.0-6")]
    assert records.deliver(ours)
    assert came == [ours]
    assert all(records.deliver(other) for other in theirs)
    for call in due:
        call()
    assert sent == [(Kind.RECORDS, theirs, 0)]
    assert not records.deliver(record("ef01.7-5"))  # there is no such worker
    assert not records.deliver(record("another-5"))
    assert records.deliver(record("dead.1-5")) is False  # an earlier life of this one
    records.came_back([record("dead.1-6"), record("nonsense")])


def record(name: str) -> Record:
    return Record(request_id=name, ended=True)
