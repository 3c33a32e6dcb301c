"""The shape of an EndpointPickerConfig: llm-d's keys, nothing converted silently, nothing unknown let through.

References and names are plain text here, empty when absent; what they refer to is found out in `resolve`.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from epp.units import parse_duration_s, parse_quantity

API_VERSION = "llm-d.ai/v1alpha1"
DEPRECATED_API_VERSION = "inference.networking.x-k8s.io/v1alpha1"
KIND = "EndpointPickerConfig"

DurationS = Annotated[float, BeforeValidator(parse_duration_s)]
Quantity = Annotated[int, BeforeValidator(parse_quantity)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel, allow_inf_nan=False)


class PluginReference(_Strict):
    plugin_ref: str = ""


class PluginSpec(_Strict):
    name: str = ""
    type: str = ""
    parameters: dict[str, Any] = {}


class ProfilePlugin(_Strict):
    plugin_ref: str = ""
    weight: float | None = None


class SchedulingProfile(_Strict):
    name: str = ""
    plugins: tuple[ProfilePlugin, ...] = ()


class SourceSpec(_Strict):
    plugin_ref: str = ""
    extractors: tuple[PluginReference, ...] = ()


class DataLayer(_Strict):
    inject_defaults: bool = True
    sources: tuple[SourceSpec, ...] = ()
    discovery: PluginReference | None = None
    peer_discovery: PluginReference | None = None
    cross_replica_syncer_plugin_ref: str = ""
    cross_replica_sync_interval: DurationS | None = None


class PriorityBand(_Strict):
    priority: int = 0
    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    fairness_policy_ref: str = ""
    ordering_policy_ref: str = ""


class FlowControl(_Strict):
    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    default_request_ttl: DurationS | None = Field(None, alias="defaultRequestTTL")
    no_endpoint_request_ttl: DurationS | None = Field(None, alias="noEndpointRequestTTL")
    default_priority_band: PriorityBand | None = None
    default_negative_priority_band: PriorityBand | None = None
    priority_bands: tuple[PriorityBand, ...] = ()
    usage_limit_policy_plugin_ref: str = ""
    saturation_detector: PluginReference | None = None
    enable_eviction: bool = False


class RequestHandler(_Strict):
    parsers: tuple[PluginReference, ...] = ()


class EndpointPickerConfig(_Strict):
    """`saturation_detector` and `parser` are the deprecated places of what now stands in `flow_control` and
    `request_handler`."""

    api_version: str
    kind: str
    feature_gates: tuple[str, ...] = ()
    plugins: tuple[PluginSpec, ...] = ()
    scheduling_profiles: tuple[SchedulingProfile, ...] = ()
    data_layer: DataLayer = DataLayer()
    flow_control: FlowControl = FlowControl()
    request_handler: RequestHandler = RequestHandler()
    saturation_detector: PluginReference | None = None
    parser: PluginReference | None = None
