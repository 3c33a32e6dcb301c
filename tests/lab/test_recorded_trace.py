"""What `epp serve --record-trace` writes, and that the lab replays it: same times, same lengths, same sharing."""

import json
import logging
import random
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from envoy_messages import response_body, response_headers
from picker_in_memory import ADDRESSES, World
from prometheus_client import CollectorRegistry

from epp.cli import main
from epp.cli.serve import trace_path
from epp.endings import EndCause
from epp.inference.request import Usage
from epp.lab.workloads.traces import read_trace
from epp.ledger import Outcome
from epp.observe import trace_file
from epp.observe.families import Families
from epp.observe.trace import BLOCK_TOKENS, TraceRecorder, output_tokens, path_of_worker
from epp.observe.trace_file import TraceCounts, TraceFile
from epp.problem import Problem

SSE = {"content-type": "text/event-stream"}
HEADERS = {"x-llm-d-slo-ttft-ms": "300", "x-llm-d-slo-tpot-ms": "30"}
SECRET = "the patient's name is"


def counts() -> TraceCounts:
    return TraceCounts(Families(CollectorRegistry()))


def recorder(path: Path, key: bytes = bytes(16), told: TraceCounts | None = None) -> TraceRecorder:
    return TraceRecorder(path, 1 << 20, key, told or counts(), unix_offset_s=1_000_000.0)


def ask(world: World, prompt: str, output: int = 20, status: int = 200, **fields: Any) -> None:
    """One completion, streamed with usage at its end; 50 ms to its first token."""
    talk = world.post({"model": "m", "prompt": prompt, "stream": True, **fields}, headers=HEADERS)
    world.clock.advance(0.05)
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": output}}).encode()
    talk.send(response_headers(status, SSE), response_body(b'data: {"choices":[{"text":"a"}]}\n\n'))
    world.clock.advance(0.01 * (output - 1))
    talk.send(response_body(b"data: " + usage + b"\n\ndata: [DONE]\n\n", end=True))
    talk.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_says_when_how_long_and_how_it_went_and_nothing_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.touch(0o644)
    trace = recorder(path)
    world = World(trace=trace)
    ask(world, SECRET * 40, 11, max_tokens=64)
    world.get().close()  # no inference, no record
    trace.close()
    (row,) = lines(path)
    assert (row["timestamp"], row["input_length"], row["output_length"]) == (1_001_000_000.0, 210, 11)
    assert (len(row["hash_ids"]), row["block_tokens"]) == (3, BLOCK_TOKENS)
    assert (row["ttft_ms"], row["tpot_ms"], row["e2e_ms"]) == (50.0, 10.0, 150.0)
    assert (row["ttft_target_ms"], row["tpot_target_ms"], row["max_output_tokens"]) == (300.0, 30.0, 64)
    assert (row["model"], row["streamed"], row["status"], row["cause"]) == ("m", True, 200, "natural")
    assert row["endpoint"] in {world.id_of(address) for address in ADDRESSES}
    assert SECRET not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    world.assert_nothing_is_left()


def test_hashes_are_equal_for_equal_beginnings_with_one_key_and_tell_nothing_with_another(tmp_path: Path) -> None:
    ids = []
    for number, key in enumerate((bytes(16), bytes(16), bytes([1] * 16))):
        path = tmp_path / f"{number}.jsonl"
        trace = recorder(path, key)
        world = World(trace=trace)
        ask(world, "s" * 512 + "a" * 256)
        ask(world, "s" * 512 + "b" * 256)
        trace.close()
        ids.append([row["hash_ids"] for row in lines(path)])
    (first, second), again, other = ids
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert again == [first, second]
    assert not set(first + second) & set(other[0] + other[1])
    assert len(set(first)) == 3  # the same text in two places is another block


def test_a_recorded_run_is_replayed_with_its_sharing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four system prompts of 640 tokens, questions of 128 and a bit: five sixths of a prompt were seen before."""
    path = tmp_path / "trace.jsonl"
    trace = recorder(path)
    world, rng = World(trace=trace), random.Random(3)
    for number in range(200):
        ask(world, f"{number % 4}" * 2560 + f"{rng.random():<514}", 21)
    ask(world, "x" * 400, status=400)
    trace.close()
    assert main(["lab", "run", "--trace", str(path), "--pool", "h100", "--policies", "ours,random", "--rate", "5",
                 "--duration", "38s", "--jobs", "1", "--json", str(tmp_path / "out.json")]) == 0  # fmt: skip
    capsys.readouterr()
    for result in json.loads((tmp_path / "out.json").read_text()):
        assert result["targets"] == {"ttft_ms": 300.0, "tpot_ms": 30.0}
        assert result["figures"]["hit_ratio"] == pytest.approx(640 / 769, abs=0.01)
    replayed = read_trace(path)
    assert len(replayed.rows) == 200  # one was refused by the server
    assert {row.output_tokens for row in replayed.rows} == {21}
    assert replayed.rows[10].at_s == pytest.approx(10 * 0.25)


def test_files_of_several_workers_are_one_trace_put_together(tmp_path: Path) -> None:
    paths = [Path(path_of_worker(str(tmp_path / "trace.jsonl"), number)) for number in range(2)]
    assert [path.name for path in paths] == ["trace.0.jsonl", "trace.1.jsonl"]
    for number, path in enumerate(paths):
        trace = recorder(path)
        world = World(trace=trace)
        world.clock.advance(number)
        ask(world, "s" * 1024)
        trace.close()
    both = tmp_path / "all.jsonl"
    both.write_text("".join(path.read_text() for path in reversed(paths)))
    first, second = read_trace(both).rows
    assert (first.at_s, second.at_s) == (0.0, 1.0)
    assert first.prompt == second.prompt


def test_a_full_file_is_renamed_and_the_one_before_is_gone(tmp_path: Path) -> None:
    path, told = tmp_path / "trace.jsonl", counts()
    for part in range(4):  # a picker that restarts goes on in the file
        file = TraceFile[int](path, 100, lambda n: b"%039d\n" % n, told)
        file.put(part, 40)
        file.close()
    assert [int(line) for line in path.read_text().split()] == [2, 3]
    assert [int(line) for line in (tmp_path / "trace.old.jsonl").read_text().split()] == [0, 1]
    assert told.written.value == 4


def test_a_disk_that_fails_is_told_once_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "PAUSE_S", 0.01)
    place, told = tmp_path / "gone", counts()
    trace = recorder(place / "trace.jsonl", told=told)
    world = World(trace=trace)
    with caplog.at_level(logging.INFO):
        for _ in range(40):
            ask(world, "x" * 400)
        wait_until(lambda: told.disk_error.value == 40)
        place.mkdir()
        ask(world, "x" * 400)
        wait_until(lambda: told.written.value == 1)
        trace.close()
    assert world.ends() == {"natural": 41}
    assert [r.levelname for r in caplog.records if "trace" in r.message] == ["ERROR", "INFO"]
    assert len(lines(place / "trace.jsonl")) == 1


def test_what_finds_no_room_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MAX_WAITING_BYTES", 100)
    monkeypatch.setattr(trace_file, "PAUSE_S", 600.0)  # nothing is written before the end, however slow this is
    told = counts()
    file = TraceFile[int](tmp_path / "trace.jsonl", 1000, lambda n: b"%d\n" % n, told)
    for number in range(3):
        file.put(number, 60)
    file.close()
    assert (told.written.value, told.no_room.value) == (1, 2)


def test_a_record_that_makes_no_line_does_not_end_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--objective` takes a priority of any size, JSON does not."""
    monkeypatch.setattr(trace_file, "PAUSE_S", 0.01)
    path, told = tmp_path / "trace.jsonl", counts()
    file = TraceFile[int](path, 1000, lambda n: orjson.dumps(n) + b"\n", told)
    file.put(10**30, 40)
    wait_until(lambda: told.disk_error.value == 1)
    file.put(1, 40)
    file.close()
    assert path.read_text() == "1\n"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize(
    ("known", "tokens"),
    [
        ({"usage": Usage(completion_tokens=7), "token_events": 5}, 7),
        ({"token_events": 5}, 5),
        ({"token_events": 11, "counted_s": 2.0}, 31),  # ten in a second, and it went on for three
        ({"token_events": 1, "counted_s": 1.0}, None),
        ({}, None),
        ({"streamed": False, "token_events": 1}, None),
        ({"streamed": False, "usage": Usage(prompt_tokens=4)}, 0),
    ],
    ids=["server", "events", "pace", "one event", "nothing", "body", "embedding"],
)
def test_how_long_an_answer_was_is_told_as_well_as_it_is_known(known: dict[str, Any], tokens: int | None) -> None:
    fields = {"streamed": True, "usage": Usage(), **known}
    outcome = Outcome(EndCause.NATURAL, 200, served_endpoint_id="a", received_s=0.0, dispatched_s=0.0,
                      first_token_s=1.0, ended_s=4.0, **fields)  # fmt: skip
    assert output_tokens(outcome) == tokens


def test_an_answer_of_unknown_length_is_as_long_as_one_of_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 100, "output_length": null, "hash_ids": [], "status": null}\n'
    path.write_text("".join(row % number for number in range(50)))
    once, again = (read_trace(path).rows for _ in range(2))
    assert once == again
    assert len({r.output_tokens for r in once}) > 20


def test_an_answer_of_unknown_length_is_no_longer_than_its_client_wanted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 100, "output_length": null, "max_output_tokens": 14}\n'
    path.write_text("".join(row % number for number in range(50)))
    rows = read_trace(path).rows
    assert max(r.output_tokens for r in rows) == 14
    assert {r.max_output_tokens for r in rows} == {14}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("trace.txt", "end in .jsonl"),
        ("no/such/trace.jsonl", "cannot be written"),
        (f"{'long' * 100}.jsonl", "cannot be written: File name too long"),
    ],
    ids=["no suffix", "no folder", "too long"],
)
def test_a_file_that_would_not_do_is_refused_at_the_start(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(Problem, match=says):
        trace_path(str(tmp_path / name))
