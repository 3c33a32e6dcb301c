"""The page on prediction says what the code says."""

from pathlib import Path

from epp.latency.features import FEATURES
from epp.latency.predictor import PredictorOptions
from epp.latency.types import Target
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG

PAGE = Path(__file__).parents[2] / "docs" / "prediction.md"


def features_markdown() -> str:
    lines = ["| feature | unit | source | rises | needed by | meaning |", "|---|---|---|---|---|---|"]
    for f in FEATURES:
        rises, needed = (", ".join(t.name for t in Target if t in targets) or "–" for targets in (f.rises, f.needed_by))
        lines.append(f"| `{f.name}` | {f.unit} | {f.source} | {rises} | {needed} | {f.doc} |")
    return "\n".join(lines) + "\n"


def test_the_page_on_prediction_has_the_features_defaults_and_configuration_of_the_code() -> None:
    page = PAGE.read_text()
    assert features_markdown() in page
    assert PREDICTED_LATENCY_CONFIG in page
    options = PredictorOptions()
    assert f"from {options.training_min_rows} rows of a target" in page
    assert f"at most every {options.training_interval_s:g} s" in page
    assert f"{options.buffer_rows:,} rows" in page
    assert f"ready after {options.ready_samples} answers" in page
