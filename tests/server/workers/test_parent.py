"""What `--workers` is refused with, and several workers' decisions as one list."""

from typing import Any

import pytest

from epp.problem import Problem
from epp.server.configuration import text_of
from epp.server.options import ServeOptions
from epp.server.workers import parent
from epp.server.workers.parent import fork, merged


def test_one_worker_is_this_process() -> None:
    assert fork(ServeOptions(), text_of()) is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (ServeOptions(workers=2, transport="grpc"), "--workers 2: is for --transport lean"),
        (ServeOptions(workers=256, transport="lean"), "--workers 256: there can be 255"),
    ],
    ids=["gRPC's own server", "too many"],
)
def test_what_cannot_work_is_refused_before_anything_is_forked(options: ServeOptions, complaint: str) -> None:
    with pytest.raises(Problem, match=complaint):
        fork(options, text_of())


def test_elsewhere_than_on_linux_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(parent.os, "pidfd_open", raising=False)
    with pytest.raises(Problem, match="needs Linux"):
        fork(ServeOptions(workers=2, transport="lean"), text_of())


def test_decisions_are_merged_by_age_and_carry_their_worker() -> None:
    def decision(age_s: float | None, name: str) -> dict[str, Any]:
        return {"age_s": age_s, "name": name}

    newest_first = merged(
        {
            0: [decision(1.0, "a"), decision(None, "b"), decision(4.0, "c")],
            1: [decision(None, "d"), decision(2.0, "e"), decision(3.0, "f")],
        },
        256,
    )
    assert [(entry["name"], entry["worker"]) for entry in newest_first] == [
        ("d", 1),
        ("a", 0),
        ("b", 0),
        ("e", 1),
        ("f", 1),
        ("c", 0),
    ]
    many = {n: [decision(float(age), "x") for age in range(200)] for n in range(3)}
    assert [len(merged(many, most)) for most in (256, 2, 0)] == [256, 2, 0]
