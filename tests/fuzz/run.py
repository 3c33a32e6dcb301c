"""Fuzz targets of `fuzz_targets` with atheris: `python tests/fuzz/run.py [--seconds S] [--into DIR] [TARGET …]`.

Starts from the committed corpus. New inputs go to `--into` (a scratch directory unless given), and an input that
breaks a promise, or takes longer than a few seconds, is written there as `crash-…` or `timeout-…`; the exit code is
then not 0. Put such an input into `corpus/<target>/` once it is fixed: `make test` replays it from then on.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
SECONDS_PER_INPUT = 5
MEGABYTES = 1024
LONGEST_INPUT_BYTES = 4096
# Seen by the coverage guide. numpy, protobuf, orjson and the plugins' insides are not what is fuzzed.
INSTRUMENTED = [
    "epp.wire",
    "epp.server.lean",
    "epp.inference",
    "epp.config.loader",
    "epp.pool",
    "epp.signals.page",
    "epp.signals.mapping",
]


def load() -> Mapping[str, Callable[[bytes], None]]:
    """The targets, with the code that they reach made visible to the coverage guide. Takes seconds."""
    import atheris

    tests = HERE.parent
    sys.path[:0] = [str(path) for path in (HERE, tests, tests / "wire", tests / "server" / "lean", tests.parent)]
    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz_targets import TARGETS
    return TARGETS


def fuzz(name: str, target: Callable[[bytes], None], seconds: int, into: Path) -> NoReturn:
    """Fuzz in this process, which atheris ends."""
    import atheris

    options = [
        f"-max_total_time={seconds}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MEGABYTES}",
        f"-max_len={LONGEST_INPUT_BYTES}",
        f"-artifact_prefix={into}/",
        "-verbosity=0",
        "-print_final_stats=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(into), str(CORPUS / name)], target)
    atheris.Fuzz()
    raise AssertionError("atheris came back")


def fuzz_in_a_fork(name: str, target: Callable[[bytes], None], seconds: int, into: Path) -> tuple[bool, str]:
    """Whether all promises were kept, and what was printed. A fork has loaded already what all targets need."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                fuzz(name, target, seconds, into)
            finally:
                sys.stderr.flush()
                os._exit(1)
        kept = os.waitpid(child, 0)[1] == 0
        printed.seek(0)
        return kept, printed.read().decode(errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all when none is given")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--into", type=Path, help="where new inputs and failures go")
    args = parser.parse_args()
    root = args.into or Path(tempfile.mkdtemp(prefix="fuzz-"))
    targets = load()
    if unknown := set(args.targets) - set(targets):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(sorted(targets))}")
    failed = False
    for name in args.targets or sorted(targets):
        kept, printed = fuzz_in_a_fork(name, targets[name], args.seconds, root / name)
        print(f"{name}: {'ok' if kept else 'FAILED'}", flush=True)
        if not kept:
            failed = True
            print(printed[-6000:])
            print(f"inputs are in {root / name}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
