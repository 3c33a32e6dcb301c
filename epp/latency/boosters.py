"""XGBoost's own objects: what trees are trained as, and what they are when they come from a file.

Everywhere else trees are bytes, in its binary JSON, and arrays to predict with (`epp.latency.trees`). So whoever
predicts with what another process has trained need not load XGBoost.
"""

import xgboost


def saved(booster: xgboost.Booster) -> bytes:
    return bytes(booster.save_raw("ubj"))


def opened(trees: bytes) -> xgboost.Booster:
    """From any format of XGBoost's own. Raises ValueError if these are no trees."""
    try:
        return xgboost.Booster({"nthread": 1}, model_file=bytearray(trees))
    except xgboost.core.XGBoostError as error:
        raise ValueError("the trees are not XGBoost's") from error


def as_json(trees: bytes) -> bytes:
    return bytes(opened(trees).save_raw("json"))
