"""Fuzz targets of `fuzz_targets` with atheris: `python tests/fuzz/run.py [--seconds S] [--into DIR] [TARGET …]`.

Starts from the committed corpus. New inputs go to `--into` (a scratch directory unless given), and an input that
breaks a promise, or takes longer than a few seconds, is written there as `crash-…` or `timeout-…`; the exit code is
then not 0. Put such an input into `corpus/<target>/` once it is fixed: `make test` replays it from then on.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

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


def fuzz_one(name: str, seconds: int, into: Path) -> None:
    """Fuzz in this process, which atheris ends."""
    import atheris

    tests = HERE.parent
    sys.path[:0] = [str(path) for path in (HERE, tests, tests / "wire", tests / "server" / "lean", tests.parent)]
    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz_targets import TARGETS
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MEGABYTES}",
        f"-max_len={LONGEST_INPUT_BYTES}",
        f"-artifact_prefix={into}/",
        "-verbosity=0",
        "-print_final_stats=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(into), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


def fuzz_in_process_of_its_own(name: str, seconds: int, into: Path) -> subprocess.CompletedProcess[str]:
    into.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--inside", "--seconds", str(seconds), "--into", str(into), name]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all when none is given")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--into", type=Path, help="where new inputs and failures go")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        fuzz_one(args.targets[0], args.seconds, args.into)
    root = args.into or Path(tempfile.mkdtemp(prefix="fuzz-"))
    failed = False
    for name in args.targets or sorted(directory.name for directory in CORPUS.iterdir()):
        result = fuzz_in_process_of_its_own(name, args.seconds, root / name)
        print(f"{name}: {'ok' if result.returncode == 0 else 'FAILED'}", flush=True)
        if result.returncode != 0:
            failed = True
            print(result.stdout[-6000:])
            print(f"inputs are in {root / name}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
