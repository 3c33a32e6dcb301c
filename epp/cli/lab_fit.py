"""`epp lab fit`: the shape of a real server."""

import argparse
from pathlib import Path
from typing import Any

from epp.cli.flags import positive
from epp.cli.lab_files import keep_apart
from epp.files import new_file, write
from epp.problem import Problem

_LEAST_RUNGS = 3  # of two there are four times, and four constants
_CHECK = (
    "a step takes time even with one stream, so tpot_ms may not fall to nothing with fewer streams; are times in ms, "
    "and streams those that ran at once?"
)

_EXAMPLES = """\
examples:
  epp lab fit --url http://10.0.0.1:8000 --model llama-3.1-8b --out server.json     --model as /v1/models names it
  epp lab fit --url http://10.0.0.1:8000 --model llama-3.1-8b --repeats 5 --like 8b-a100 --measurements m.csv
  epp lab fit --csv m.csv --like 8b-a100 --out server.json      what was measured before, once more
  epp lab run --pool server.jsonx4                              that server, four times
"""


def add_fit(actions: Any) -> None:
    fit = actions.add_parser(
        "fit",
        help="fit the shape of a real server: what a step, a prompt token and a sequence cost",
        description="Measure a real server with a ladder of some 30 requests per repeat, or read measurements from a\n"
        "CSV, and fit the step law to them. The shape that is written can be used in --pool. Prompts of the\n"
        "ladder are too short to show what attention costs in long contexts: its two terms, memory and batch are\n"
        "those of --like, and can be edited in the file.",
        epilog=_EXAMPLES,
    )
    fit.set_defaults(run=_fit)
    source = fit.add_mutually_exclusive_group(required=True)
    source.add_argument("--url", metavar="URL", help="an idle server of OpenAI's completions API")
    source.add_argument("--csv", type=Path, metavar="FILE", help="measurements, as --measurements writes them")
    fit.add_argument("--model", default="", metavar="NAME", help="its model, as its /v1/models names it")
    fit.add_argument("--repeats", type=positive, default=3, metavar="N", help="of the ladder (default 3)")
    fit.add_argument("--longest", type=positive, default=2048, metavar="TOKENS", help="longest prompt (default 2048)")
    fit.add_argument("--seed", type=int, default=1, metavar="N", help="of the prompts (default 1)")
    fit.add_argument("--measurements", type=new_file, metavar="FILE", help="also write what was measured there, as CSV")
    fit.add_argument("--out", type=new_file, metavar="FILE", help="write the shape there, as JSON")
    fit.add_argument(
        "--like",
        default="8b-h100",
        metavar="SHAPE",
        help="the shape nearest to the server, for what is not measured: attention in long contexts, KV cache, batch "
        "(default %(default)s)",
    )


def _fit(arguments: argparse.Namespace) -> int:
    from epp.lab.fit import fit, read_measurements, write_measurements
    from epp.lab.measure import LADDER, measure
    from epp.lab.pools import shape_named, shape_text, with_long_contexts

    keep_apart(arguments)
    like = shape_named(arguments.like, "--like")
    if arguments.csv is not None:
        measurements = read_measurements(arguments.csv)
    else:
        ladder = [(streams, tokens) for streams, tokens in LADDER if tokens <= arguments.longest]
        if len(ladder) < _LEAST_RUNGS:
            least = sorted(tokens for _, tokens in LADDER)[_LEAST_RUNGS - 1]
            raise Problem(f"--longest {arguments.longest}: too few of the ladder's prompts are as short; say {least}")
        measurements = measure(arguments.url, arguments.model, arguments.repeats, arguments.seed, ladder)
    if arguments.measurements is not None:
        write_measurements(arguments.measurements, measurements)
    source = arguments.url if arguments.csv is None else arguments.csv
    try:
        found = fit(measurements)
        law = with_long_contexts(found.hardware, like)
        text = shape_text(law, found.overhead_ms, like)
    except ValueError as error:
        raise Problem(f"{source}: what fits these measurements is no server: {error}; {_CHECK}") from error
    except Problem as error:
        raise Problem(f"{source}: {error}") from error
    print(f"base_ms           {law.base_ms:g}")
    print(f"prefill_token_us  {law.prefill_token_us:g}")
    print(f"sequence_us       {law.sequence_us:g}")
    print(f"overhead_ms       {found.overhead_ms:g}")
    print(f"attention_pair_ns {law.attention_pair_ns:.4g}, not measured: as of {arguments.like}, see --like")
    print(f"context_token_ns  {law.context_token_ns:.4g}, not measured: as of {arguments.like}, see --like")
    print(f"mean error of {len(measurements)} measurements, in sample: {found.error_ratio:.1%}")
    if arguments.out is not None:
        write(arguments.out, text.encode())
    return 0
