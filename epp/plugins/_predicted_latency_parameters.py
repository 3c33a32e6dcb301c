"""What can be said about latency prediction in a configuration: llm-d's parameters, and ours."""

from pydantic import Field, field_validator

from epp.plugins._compatibility import CompatibleParameters
from epp.units import parse_duration_s


class PredictedLatencyParameters(CompatibleParameters):
    sampling_mean: float = Field(1000, description="Ignored: there is one prediction per request.")
    max_decode_token_samples_for_prediction: int = Field(0, description="Ignored: there is one prediction per request.")
    slo_buffer_factor: float = Field(1.0, gt=0, description="Multiplies TPOT targets; below 1 keeps a reserve.")
    context_ttl: str | int = Field(
        "5m",
        alias="contextTTL",
        description="Ignored: a request is remembered until it ends. Nanoseconds, or a duration such as 5m.",
    )
    streaming_mode: bool = Field(
        False, description="Take every answer for a stream. Otherwise the request says whether it wants one."
    )
    endpoint_role_label: str = Field("", description='Label whose value "prefill" marks servers that only prefill.')
    predict_in_produce: bool = Field(True, description="Off: learn, and let nothing be decided by predictions.")
    prefix_match_info_producer_name: str = Field("", description="Whose matches to read; empty: the default producer.")
    in_flight_load_producer_name: str = Field("", description="Whose load to read; empty: the default producer.")
    use_encoder_cache_features: bool = Field(
        False, description="Ignored: what a picture costs is in the prompt's length."
    )
    encoder_cache_match_info_producer_name: str = Field("", description="Ignored, see useEncoderCacheFeatures.")
    quantile: float | None = Field(
        None, gt=0, lt=1, description="Decide on the bound that holds with this probability, not on the mean."
    )
    budget_ms: float = Field(
        10.0, gt=0, description="What a prediction may take. After a longer one, some requests go without."
    )
    default_opt_in: bool = Field(
        True, description="Use predictions for requests that do not say x-prediction-based-scheduling."
    )
    slow_start_samples: int = Field(20, ge=0, description="Good answers to begin until a server is not new any more.")
    failure_threshold: int = Field(3, ge=0, description="Failures in a row that take a server out; 0: none do.")

    @field_validator("context_ttl")
    @classmethod
    def _is_a_duration(cls, value: str | int) -> str | int:
        if isinstance(value, str):
            parse_duration_s(value)
        return value
