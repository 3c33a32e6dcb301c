"""What a prediction costs: CPU per call for both targets, features included, next to XGBoost's own call; and training.

Both are timed in one run, alternating, on the CPU clock of the process; the figure is the best of several rounds, since
other load on the machine can only add. Run it on an otherwise idle machine:

    python -m benchmarks.predict --json predict.json
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from epp.latency.boosters import opened
from epp.latency.buffer import Rows, bucket_of
from epp.latency.features import COLUMN, feature_matrix
from epp.latency.jobs import TrainedModel, TrainingJob
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.prior import Prior
from epp.latency.training import train
from epp.latency.types import Situation, Target

CANDIDATES = (1, 10, 100, 1000)
ROUND_S = 0.005  # short, so that some are undisturbed
TRAINING_ROWS = (1_000, 10_000)
# What a prediction may cost, in µs of CPU for both targets, and training in seconds.
TARGET_US = {10: 300.0, 100: 1000.0}
TARGET_S = {10_000: 1.0}


def situation(rng: np.random.Generator, candidates: int) -> Situation:
    """A pool under mixed load; one server in twenty was never scraped."""
    in_flight = rng.integers(0, 120, candidates).astype(np.float64)
    prompt = float(rng.lognormal(6.6, 1.0))
    unknown = rng.random(candidates) < 0.05
    return Situation(
        endpoint_ids=[f"default/server-{i}-rank-0" for i in range(candidates)],
        prompt_tokens=prompt,
        max_output_tokens=float(rng.integers(16, 1024)),
        is_prefill=np.zeros(candidates, dtype=np.bool_),
        uncached_tokens=prompt * rng.random(candidates),
        waiting_requests=np.where(unknown, np.nan, np.maximum(in_flight - 100, 0)),
        running_requests=np.where(unknown, np.nan, np.minimum(in_flight, 100)),
        kv_cache_usage_ratio=np.where(unknown, np.nan, in_flight / 130),
        in_flight_requests=in_flight,
        prefill_tokens_in_flight=in_flight * rng.random(candidates) * 40,
        decode_tokens_in_flight=in_flight * 900.0,
    )


def rows(rng: np.random.Generator, count: int) -> Rows:
    """Samples of all three targets, noisy as real ones are."""
    features = np.concatenate([feature_matrix(situation(rng, 10)) for _ in range(-(-count // 10))])[:count]
    law = Prior().freeze().predict(features)
    bend = 1.0 + np.square(features[:, COLUMN["active_requests"]] / 100.0)  # what the law does not know
    ttft = law[Target.TTFT] * bend * rng.lognormal(0.0, 0.2, count)
    tpot = law[Target.TPOT] * bend * rng.lognormal(0.0, 0.15, count)
    actual = np.stack([ttft, tpot, ttft + tpot * features[:, COLUMN["max_output_tokens"]]], axis=1)
    ids = [f"default/server-{i % 10}-rank-0" for i in range(count)]
    buckets = np.array([bucket_of(row) for row in features], dtype=np.intp)
    return Rows(features, actual, np.linspace(0.0, 600.0, count), ids, buckets)


def job(data: Rows) -> TrainingJob:
    return TrainingJob(data, Prior().freeze(), None, 0, now_s=600.0, half_life_s=900.0, min_rows=100)


def best_of(rounds: int, *calls: Callable[[], object]) -> list[float]:
    """CPU seconds per call of each, the best round of each; the calls take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            count = 0
            start = now = time.process_time()
            while now - start < ROUND_S:
                call()
                count += 1
                now = time.process_time()
            best[i] = min(best[i], (now - start) / count)
    return best


def time_predictions(trained: TrainedModel, rounds: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    predictor = Predictor(PredictorOptions())
    if not predictor.publish(trained) or trained.model is None or len(trained.model.targets) < len(Target):
        raise SystemExit("training found no better model: nothing to time")
    ttft, tpot = (opened(trained.model.targets[target].mean) for target in (Target.TTFT, Target.TPOT))
    results = []
    for candidates in CANDIDATES:
        s = situation(rng, candidates)
        features = feature_matrix(s)

        def ours(s: Situation = s) -> object:
            return predictor.predict(s, quantile=0.9)

        def xgboosts(features: np.ndarray[Any, np.dtype[np.float32]] = features) -> object:
            return ttft.inplace_predict(features), tpot.inplace_predict(features)

        def features_only(s: Situation = s) -> object:
            return feature_matrix(s)

        ours_s, xgboost_s, features_s = best_of(rounds, ours, xgboosts, features_only)
        results.append(
            {
                "candidates": candidates,
                "ours_us": ours_s * 1e6,
                "of_that_features_us": features_s * 1e6,
                "inplace_predict_us": xgboost_s * 1e6,
                "target_us": TARGET_US.get(candidates),
            }
        )
    return results


def time_training(rounds: int) -> tuple[list[dict[str, Any]], TrainedModel]:
    results = []
    for count in TRAINING_ROWS:
        task = job(rows(np.random.default_rng(0), count))
        best = float("inf")
        for _ in range(rounds):
            start = time.process_time()
            trained = train(task)
            best = min(best, time.process_time() - start)
        results.append({"rows": count, "train_s": best, "target_s": TARGET_S.get(count)})
    return results, trained


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures there")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of which the best counts (default: 60)")
    options = parser.parse_args()
    training, trained = time_training(min(3, options.rounds))
    predictions = time_predictions(trained, options.rounds)
    machine = {
        "processor": processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "xgboost": xgboost.__version__,
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print("\nµs of CPU per call, TTFT and TPOT with bounds, features included; inplace_predict: both means, no bounds")
    print("| candidates | ours | of that features | Booster.inplace_predict | target |\n|--:|--:|--:|--:|--:|")
    for r in predictions:
        target = "–" if r["target_us"] is None else f"≤ {r['target_us']:.0f}"
        print(
            f"| {r['candidates']} | {r['ours_us']:.0f} | {r['of_that_features_us']:.0f} "
            f"| {r['inplace_predict_us']:.0f} | {target} |"
        )
    print("\nTraining, all three targets, one thread\n| rows | s of CPU | target |\n|--:|--:|--:|")
    for r in training:
        target = "–" if r["target_s"] is None else f"≤ {r['target_s']:g}"
        print(f"| {r['rows']} | {r['train_s']:.2f} | {target} |")
    if options.json is not None:
        options.json.write_text(
            json.dumps({"machine": machine, "predictions": predictions, "training": training}, indent=2)
        )


if __name__ == "__main__":
    main()
