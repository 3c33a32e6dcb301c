"""What `epp demo` runs by default: the profile of llm-d's chart with its latency predictor switched on."""

from epp.config.builtins import BUILT_INS

DEMO_PROFILE = "predicted-latency"

PREDICTED_LATENCY_CONFIG = BUILT_INS[DEMO_PROFILE].text.partition("\n")[2]
"""Without the comment that it begins with."""
