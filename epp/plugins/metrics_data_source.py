"""Where and how often each server's metrics page is read."""

from typing import Literal

from pydantic import Field, field_validator

from epp.scheduling.plugin import DataSource, Parameters
from epp.units import parse_duration_s


class MetricsDataSourceParameters(Parameters):
    scheme: Literal["http", "https"] = Field("http")
    path: str = Field("/metrics", pattern="^/", description="Path of the page.")
    port: int | None = Field(None, ge=1, le=65535, description="Port of the page, when it is not the server's own.")
    insecure_skip_verify: bool = Field(True, description="Accept any certificate of the server.")
    ca_cert_path: str = Field("", description="Certificates that the server's is checked against.")
    client_cert_path: str = Field("", description="Our own certificate.")
    client_key_path: str = Field("", description="Its key.")
    interval: str = Field("", description="Time between two reads of a busy server, like 50ms; empty: the picker's.")

    @field_validator("interval")
    @classmethod
    def _is_a_positive_duration(cls, text: str) -> str:
        if text and parse_duration_s(text) <= 0:
            raise ValueError("must be above 0")
        return text

    @property
    def interval_s(self) -> float | None:
        return parse_duration_s(self.interval) if self.interval else None


class MetricsDataSource(DataSource):
    """The Prometheus page of every model server."""

    plugin_type = "metrics-data-source"
    parameters_model = MetricsDataSourceParameters
    parameters: MetricsDataSourceParameters
