"""The ring of decisions: what it tells, and what it must not."""

import json
import math
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from observed_world import SnapshotOf, endpoints

from epp.inference.request import Prompt, Request
from epp.observe.records import MAX_ROWS, DecisionRing, Selection
from epp.pool.snapshot import EndpointSignals, Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.decision import Decision, Denial, FilterStep, ProfileResult

CANARY = "the patient's name is"


def request(id: str = "stream-1") -> Request:
    return Request(
        id=id, model="llama", prompts=(Prompt((CANARY.encode(),)),), headers={"authorization": f"Bearer {CANARY}"}
    )


def record(
    ring: DecisionRing,
    snapshot: Snapshot,
    totals: list[float],
    picked: int,
    id: str = "stream-1",
    explain: Callable[[Cycle], None] = lambda cycle: None,
) -> None:
    rows = np.arange(len(totals), dtype=np.intp)
    result = ProfileResult(
        profile="default",
        rows=rows,
        totals=np.array(totals),
        scores={"queue": np.array(totals) / 2},
        picked=(picked,),
        steps=(FilterStep("label-filter", len(totals) + 1, len(totals), "label differs"),),
    )
    decision = Decision(snapshot, (snapshot.endpoints[picked],), "default", {"default": result, "prefill": None})
    cycle = Cycle(request(id), now_s=10.0, rng=random.Random(1), notes={"predictor": "timed out"})
    cycle.profile = "default"
    explain(cycle)
    ring.request_routed(cycle.request, decision, cycle, 0.0001)


def test_a_decision_tells_scores_filters_notes_and_choice(snapshot_of: SnapshotOf) -> None:
    ring = DecisionRing()
    record(ring, snapshot_of(EndpointSignals(), EndpointSignals()), [0.25, 0.5], picked=1)
    assert ring.render(now_s=12.5) == [
        {
            "age_s": 2.5,
            "decision_us": 100.0,
            "request": {
                "id": "stream-1",
                "x_request_id": None,
                "api": "opaque",
                "model": "llama",
                "target_model": None,
                "priority": 0,
                "streaming": False,
                "body_bytes": 0,
            },
            "notes": {"predictor": "timed out"},
            "endpoints": [{"id": "ns/server-1", "address": "10.0.0.1:8001"}],
            "primary": "default",
            "profiles": {
                "default": {
                    "filters": [{"plugin": "label-filter", "before": 3, "after": 2, "reason": "label differs"}],
                    "candidates": 2,
                    "picked": ["ns/server-1"],
                    "best": [
                        {"endpoint": "ns/server-1", "total": 0.5, "scores": {"queue": 0.25}},
                        {"endpoint": "ns/server-0", "total": 0.25, "scores": {"queue": 0.125}},
                    ],
                },
                "prefill": None,
            },
        }
    ]


def test_denials_are_told_with_their_reason(snapshot_of: SnapshotOf) -> None:
    ring = DecisionRing()
    ring.request_refused(None, Denial.too_large("large"), None, 0.001)
    cycle = Cycle(request(), now_s=1.0, rng=random.Random(1))
    ring.request_refused(cycle.request, Denial.no_endpoints("none"), cycle, 0.001)
    newest, oldest = ring.render(now_s=2.0)
    assert newest["denied"] == {"code": "ServiceUnavailable", "status": 503, "reason": "rejected-no-endpoints"}
    assert newest["request"]["id"] == "stream-1"
    assert oldest["request"] is None
    assert oldest["age_s"] is None


def test_the_ring_is_bounded_and_newest_first(snapshot_of: SnapshotOf) -> None:
    ring = DecisionRing(capacity=3)
    for i in range(10):
        record(ring, snapshot_of(EndpointSignals()), [1.0], picked=0, id=f"stream-{i}")
    assert [r["request"]["id"] for r in ring.render(11.0)] == ["stream-9", "stream-8", "stream-7"]


class Note:
    """Told as text only."""

    def __init__(self) -> None:
        self.told = 0

    def __str__(self) -> str:
        self.told += 1
        return "noted"


@pytest.mark.parametrize(
    ("selection", "told"),
    [
        (Selection(), [5, 4, 3, 2, 1, 0]),
        (Selection(most=2), [5, 4]),
        (Selection(most=0), []),
        (Selection(most=10**9), [5, 4, 3, 2, 1, 0]),
        (Selection(x_request_id="even"), [4, 2, 0]),
        (Selection(most=2, x_request_id="odd"), [5, 3]),
        (Selection(x_request_id="nobody"), []),
    ],
    ids=["all", "two", "none", "more than there are", "of one request", "two of one request", "of nobody"],
)
def test_only_what_is_asked_for_is_made_into_a_page(selection: Selection, told: list[int]) -> None:
    ring, notes = DecisionRing(), [Note() for _ in range(6)]
    for i, note in enumerate(notes):
        headers = {"x-request-id": "odd" if i % 2 else "even"}
        cycle = Cycle(Request(id=f"stream-{i}", headers=headers), 1.0, random.Random(1), notes={"plugin": note})
        ring.request_refused(cycle.request, Denial.no_endpoints("none"), cycle, 0.001)
    rendered = ring.render(11.0, selection)
    assert [entry["request"]["id"] for entry in rendered] == [f"stream-{i}" for i in told]
    assert [note.told for note in notes] == [int(i in told) for i in range(6)]


def test_a_refusal_of_what_was_no_request_is_nobodys() -> None:
    ring = DecisionRing()
    ring.request_refused(None, Denial.bad_request("no"), None, 0.1)
    assert len(ring.render(11.0)) == 1
    assert ring.render(11.0, Selection(x_request_id="")) == []


def test_a_thousand_endpoints_and_odd_numbers_give_capped_and_valid_json() -> None:
    ring = DecisionRing()
    pool = Snapshot.build(endpoints(1000))
    totals = [0.001 * i for i in range(1000)]
    totals[7], totals[8], totals[9] = math.inf, math.nan, -math.inf
    record(ring, pool, totals, picked=7)
    text = orjson.dumps(ring.render(11.0))
    best = json.loads(text)[0]["profiles"]["default"]["best"]
    assert len(best) == MAX_ROWS
    assert best[0] == {"endpoint": "ns/server-7", "total": None, "scores": {"queue": None}}
    assert best[1]["endpoint"] == "ns/server-999"
    assert len(text) < 4000


def test_what_plugins_explain_stands_beside_the_scores(snapshot_of: SnapshotOf) -> None:
    ring, pool = DecisionRing(), snapshot_of(*[EndpointSignals()] * 3)

    def explain(cycle: Cycle) -> None:
        everyone = Candidates.all_of(pool)
        of_two = {"wait_ms": np.array([1.5, np.nan]), "too_short_ms": np.array([1.0]), "target_ms": 200.0, "none": None}
        cycle.explain("cost", everyone.intersect([1, 2]), of_two)
        cycle.explain("pace", everyone, {"tpot_ms": np.array([10.0, 20.0, 30.0])})
        cycle.profile = "prefill"
        cycle.explain("pace", everyone, {"tpot_ms": np.zeros(3)})

    record(ring, pool, [0.1, 0.2, 0.3], picked=2, explain=explain)
    told = ring.render(11.0)[0]["profiles"]["default"]
    assert told["explained"] == {"cost": {"target_ms": 200.0, "none": None}}
    assert [(entry["endpoint"], entry["explained"]) for entry in told["best"]] == [
        ("ns/server-2", {"cost": {"wait_ms": None}, "pace": {"tpot_ms": 30.0}}),
        ("ns/server-1", {"cost": {"wait_ms": 1.5}, "pace": {"tpot_ms": 20.0}}),
        ("ns/server-0", {"pace": {"tpot_ms": 10.0}}),
    ]


def explained(entry: dict[str, Any]) -> list[float | None]:
    return [row["explained"]["cost"]["wait_ms"] for row in entry["profiles"]["default"]["best"] if "explained" in row]


def test_in_a_large_pool_the_newest_decisions_stay_explained() -> None:
    ring, pool = DecisionRing(), Snapshot.build(endpoints(1000))
    columns: list[weakref.ref[FloatArray]] = []

    def explain(cycle: Cycle) -> None:
        wait_ms = np.arange(1000.0)
        columns.append(weakref.ref(wait_ms))
        cycle.explain("cost", Candidates.all_of(pool), {"wait_ms": wait_ms})

    for _ in range(40):
        record(ring, pool, [0.001 * i for i in range(1000)], picked=5, explain=explain)
    told = [explained(entry) for entry in ring.render(11.0)]
    assert told[0] == [*range(999, 999 - MAX_ROWS, -1), 5]  # the best, and who was picked
    assert all(wait_ms == told[0] for wait_ms in told[:30])
    assert told[-1] == []
    assert columns[0]() is None


def test_of_what_has_left_the_ring_no_explanation_is_kept(snapshot_of: SnapshotOf) -> None:
    ring, pool = DecisionRing(capacity=2), snapshot_of(EndpointSignals())
    columns: list[weakref.ref[FloatArray]] = []

    def explain(cycle: Cycle) -> None:
        wait_ms = np.array([1.0])
        columns.append(weakref.ref(wait_ms))
        cycle.explain("cost", Candidates.all_of(pool), {"wait_ms": wait_ms})

    for _ in range(3):
        record(ring, pool, [1.0], picked=0, explain=explain)
    assert [column() is None for column in columns] == [True, False, False]
    assert [explained(entry) for entry in ring.render(11.0)] == [[1.0], [1.0]]


def test_nothing_of_a_prompt_or_a_header_is_in_a_record(snapshot_of: SnapshotOf) -> None:
    ring = DecisionRing()
    record(ring, snapshot_of(EndpointSignals()), [1.0], picked=0)
    ring.request_refused(request(), Denial.bad_request("no"), None, 0.1)
    assert CANARY not in repr(ring.render(11.0))


def test_a_model_name_as_long_as_a_book_is_cut() -> None:
    ring = DecisionRing()
    ring.request_refused(Request(id="stream-1", model="m" * 10_000), Denial.bad_request("no"), None, 0.1)
    assert len(repr(ring.render(11.0))) < 1000


def test_what_is_decided_while_a_page_is_made_is_not_on_it() -> None:
    ring = DecisionRing(capacity=2)
    for number in range(2):
        ring.request_refused(Request(id=f"{number}"), Denial.bad_request("no"), None, 0.1)
    rendering = ring.rendering(1.0)
    told = [next(rendering)["request"]["id"]]
    ring.request_refused(Request(id="2"), Denial.bad_request("no"), None, 0.1)
    assert [*told, *(entry["request"]["id"] for entry in rendering)] == ["1", "0"]
