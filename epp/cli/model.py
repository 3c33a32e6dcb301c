"""`epp model`: what is in a latency model file, and its way to other programs and back."""

import argparse
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from epp.cli.flags import Parser
from epp.files import PRIVATE, require_replaceable, write, write_atomically
from epp.problem import Problem

if TYPE_CHECKING:
    from epp.latency.predictor import PredictorState

_DESCRIPTION = """\
Look into the file that `epp serve --model-file FILE` and `epp predictor serve --model-file FILE` keep what they learned
of latency in, and carry it elsewhere.
"""

_EPILOG = """\
examples:
  epp model show /var/lib/epp/latency.model
  epp model export /var/lib/epp/latency.model exported/     trees as XGBoost's JSON, samples as CSV
  epp model import exported/ /var/lib/epp/latency.model     and back, while nobody serves from that file

A model made for other features, by another version, is refused; a picker that finds one starts untrained.
"""


def add_model(commands: Any) -> None:
    model = commands.add_parser(
        "model",
        help="look into a latency model file, export and import it",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    actions = model.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)

    show = actions.add_parser(
        "show",
        help="print what a model file holds",
        description="Print what a model file holds: version, trees, their errors, the law's coefficients, endpoints.",
    )
    show.add_argument("file", metavar="FILE", type=Path, help="the model file")
    show.set_defaults(run=_show)

    export = actions.add_parser(
        "export",
        help="write a model file's content as JSON and CSV",
        description="Write trees as XGBoost's own JSON, the rest as metadata.json, and the samples as samples.csv.",
    )
    export.add_argument("file", metavar="FILE", type=Path, help="the model file")
    export.add_argument("folder", metavar="FOLDER", type=Path, help="where to; made if it is not there")
    export.set_defaults(run=_export)

    load = actions.add_parser(
        "import",
        help="make a model file from an export or from another model file",
        description="Check an export or another model file, and replace FILE by it in one step.",
    )
    load.add_argument("source", metavar="SOURCE", type=Path, help="a folder that was exported to, or a model file")
    load.add_argument("file", metavar="FILE", type=Path, help="the model file to write")
    load.set_defaults(run=_import)


def _show(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    state, saved_s = _read(path)
    saved = datetime.fromtimestamp(saved_s, UTC)
    print("\n".join(_report(state, f"{path}, saved {saved:%Y-%m-%d %H:%M:%S} UTC")))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from epp.latency.bundle import unpack

    folder: Path = arguments.folder
    files = unpack(_read(arguments.file)[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Problem(f"{folder}: cannot be written: {error.strerror}") from error
    for name, content in files.items():
        write(folder / name, content)
    print(f"{folder}: {', '.join(sorted(files))}")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from epp.latency.persistence import dump

    file: Path = arguments.file
    require_replaceable([("FILE", file)])
    state, _ = _read(arguments.source)
    try:
        write_atomically(file, dump(state), PRIVATE)
    except OSError as error:
        raise Problem(f"{file}: cannot be written: {error.strerror}") from error
    print(f"{file}: model version {state.model_version}, {len(state.rows)} samples")
    return 0


def _read(path: Path) -> tuple["PredictorState", float]:
    """From a model file or a folder, and the Unix time at which what was read was saved. Raises `Problem`."""
    from epp.latency.bundle import pack
    from epp.latency.restoring import load

    try:
        if path.is_dir():
            saved_s = path.stat().st_mtime
            loaded = pack({file.name: file.read_bytes() for file in path.iterdir() if file.is_file()})
        else:
            with path.open("rb") as file:
                saved_s = os.fstat(file.fileno()).st_mtime  # of this file, whatever a picker puts in its place
                loaded = load(file.read())
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    if loaded.state is None:
        raise Problem(f"{path}: no latency model for this version: {loaded.reason}")
    return loaded.state, saved_s


def _report(state: "PredictorState", title: str) -> Iterable[str]:
    from epp.latency.features import FEATURE_SET_HASH, FEATURES
    from epp.latency.predictor import Predictor

    predictor = Predictor()
    predictor.restore(state, 0.0)
    told = predictor.state(0.0)
    age = "" if state.model_age_s is None else f", trained {_duration(state.model_age_s)} before it was saved"
    yield title
    yield ""
    yield f"model version  {state.model_version}{age}"
    features = f"features       {len(FEATURES)}, set {FEATURE_SET_HASH}: {', '.join(f.name for f in FEATURES)}"
    yield fill(features, 100, subsequent_indent=" " * 15)
    yield f"samples        {len(state.rows)} kept, {sum(state.samples_by_endpoint.values())} learned from"
    yield f"ready          {', '.join(name for name, ready in told['ready'].items() if ready) or 'for nothing yet'}"
    yield ""
    yield "Trees; errors are mean |log(actual / predicted)| on the newest samples"
    yield from _table(
        ("target", "weight", "trained rows", "error", "error before"),
        [
            (name, f"{t['weight']:g}", t["trained_rows"], f"{t['score']:.3f}", f"{t['champion_score']:.3f}")
            for name, t in told["trees"].items()
        ],
    )
    yield ""
    yield "The law's coefficients, in ms per unit (E2E: factors)"
    yield from _table(
        ("target", "term", "coefficient"),
        [(name, term, f"{value:.5g}") for name, terms in told["prior_ms"].items() for term, value in terms.items()],
    )
    yield ""
    yield "Endpoints; how many times slower than the model each is"
    factors = told["bias_factor"]
    yield from _table(
        ("endpoint", "samples", *factors),
        [
            (endpoint, samples, *(f"{of[endpoint]:.2f}" if endpoint in of else "–" for of in factors.values()))
            for endpoint, samples in sorted(state.samples_by_endpoint.items())
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterable[str]:
    if not rows:
        return ["  none"]
    cells = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
