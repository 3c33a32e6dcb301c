"""The last decisions and their reasons, for whoever asks why a request went where it went.

Recording keeps references and costs next to nothing; a record becomes plain values only when somebody reads it. No
reference to a prompt is kept, so the ring neither shows one nor holds its memory.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from epp.inference.request import Api, Request
from epp.observe.explanations import Explanations, Newest, number, numbers
from epp.pool.endpoint import Endpoint
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision, Denial, ProfileResult

MAX_ROWS = 16  # of the endpoints that a profile scored, the best
MAX_NAME_CHARACTERS = 256  # of a model's name, which is the client's word


class _Facts(NamedTuple):
    """What a record tells of the request."""

    id: str
    api: Api
    model: str | None
    target_model: str | None
    priority: int
    streaming: bool
    body_bytes: int
    x_request_id: str | None

    @staticmethod
    def of(request: Request) -> "_Facts":
        return _Facts(
            request.id,
            request.api,
            _short(request.model),
            _short(request.target_model),
            request.priority,
            request.streaming,
            request.body_bytes,
            _short(request.headers.get("x-request-id")),
        )


def _short(name: str | None) -> str | None:
    return None if name is None else name[:MAX_NAME_CHARACTERS]


class _Record(NamedTuple):
    at_s: float | None
    seconds: float
    request: _Facts | None
    notes: Mapping[str, object]
    endpoints: tuple[Endpoint, ...] = ()
    pool: tuple[Endpoint, ...] = ()
    primary: str | None = None
    profiles: Mapping[str, ProfileResult | None] | None = None
    denial: Denial | None = None
    explanations: Explanations | None = None


class Selection(NamedTuple):
    """Which of the decisions that are kept are told.

    Attributes:
        most: so many of the newest; `None`: all.
        x_request_id: only those of the request with this id; `None`: of any request, and refusals of none.
    """

    most: int | None = None
    x_request_id: str | None = None

    def wants(self, record: _Record) -> bool:
        if self.x_request_id is None:
            return True
        return record.request is not None and record.request.x_request_id == self.x_request_id


ALL: Final = Selection()


class DecisionRing:
    """The last `capacity` decisions and denials."""

    def __init__(self, capacity: int = 256) -> None:
        self._records: deque[_Record] = deque(maxlen=capacity)
        self._explained = Newest(capacity)

    def request_routed(self, request: Request, decision: Decision, cycle: Cycle, seconds: float) -> None:
        if cycle.explanations:
            self._explained.add(cycle.explanations)
        self._records.append(
            _Record(
                at_s=cycle.now_s,
                seconds=seconds,
                request=_Facts.of(request),
                notes=cycle.notes,
                endpoints=decision.endpoints,
                pool=decision.snapshot.endpoints,
                primary=decision.primary,
                profiles=decision.profiles,
                explanations=cycle.explanations,
            )
        )

    def request_refused(self, request: Request | None, denial: Denial, cycle: Cycle | None, seconds: float) -> None:
        self._records.append(
            _Record(
                at_s=None if cycle is None else cycle.now_s,
                seconds=seconds,
                request=None if request is None else _Facts.of(request),
                notes={} if cycle is None else cycle.notes,
                denial=denial,
            )
        )

    def render(self, now_s: float, selection: Selection = ALL) -> list[dict[str, Any]]:
        """Newest first, as plain JSON values. `now_s`: the clock of the cycles, to tell ages."""
        return list(self.rendering(now_s, selection))

    def rendering(self, now_s: float, selection: Selection = ALL) -> Iterator[dict[str, Any]]:
        """The same, of those that are there now, each when it is asked for: in a large pool it takes 0.1 ms."""
        wanted = list(islice(filter(selection.wants, reversed(self._records)), selection.most))
        return (_rendered(record, now_s) for record in wanted)


def _rendered(record: _Record, now_s: float) -> dict[str, Any]:
    request = record.request
    out: dict[str, Any] = {
        "age_s": None if record.at_s is None else round(now_s - record.at_s, 3),
        "decision_us": round(record.seconds * 1e6, 1),
        "request": None
        if request is None
        else {
            "id": request.id,
            "x_request_id": request.x_request_id,
            "api": request.api.value,
            "model": request.model,
            "target_model": request.target_model,
            "priority": request.priority,
            "streaming": request.streaming,
            "body_bytes": request.body_bytes,
        },
        "notes": {plugin: str(note) for plugin, note in record.notes.items()},
    }
    if record.denial is not None:
        out["denied"] = {"code": record.denial.code, "status": record.denial.status, "reason": record.denial.reason}
    else:
        out["endpoints"] = [{"id": endpoint.id, "address": endpoint.address} for endpoint in record.endpoints]
        out["primary"] = record.primary
        out["profiles"] = {
            name: None if result is None else _rendered_profile(result, record.pool, record.explanations or {})
            for name, result in (record.profiles or {}).items()
        }
    return out


def _rendered_profile(result: ProfileResult, pool: tuple[Endpoint, ...], explanations: Explanations) -> dict[str, Any]:
    places = _places_shown(result)
    rows = result.rows[places].tolist()
    of_all, of_each = numbers(explanations, result.profile, rows)
    rendered: dict[str, Any] = {
        "filters": [
            {"plugin": step.plugin, "before": step.before, "after": step.after, "reason": step.reason}
            for step in result.steps
        ],
        "candidates": len(result.rows),
        "picked": [pool[row].id for row in result.picked],
        "best": [
            {
                "endpoint": pool[row].id,
                "total": number(result.totals[place]),
                "scores": {scorer: number(scores[place]) for scorer, scores in result.scores.items()},
                **({"explained": explained} if explained else {}),
            }
            for place, row, explained in zip(places, rows, of_each, strict=True)
        ],
    }
    if of_all:
        rendered["explained"] = of_all
    return rendered


def _places_shown(result: ProfileResult) -> list[int]:
    """Places in `result.rows`: of the best, first of all; then of those that were picked and are not among them."""
    behind = -result.totals  # NaN comes last
    if len(behind) > MAX_ROWS:
        places = np.sort(behind.argpartition(MAX_ROWS)[:MAX_ROWS])
        places = places[behind[places].argsort(kind="stable")]
    else:
        places = behind.argsort(kind="stable")
    best: list[int] = places.tolist()
    picked = [int(result.rows.searchsorted(row)) for row in result.picked]
    return best + [place for place in picked if place not in best]
