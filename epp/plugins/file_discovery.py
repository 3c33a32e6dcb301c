"""Endpoints out of a file."""

from pydantic import Field

from epp.scheduling.plugin import Discovery, Parameters


class FileDiscoveryParameters(Parameters):
    path: str = Field(min_length=1, description="YAML or JSON file that lists the endpoints.")
    watch_file: bool = Field(False, description="Follow changes of the file.")


class FileDiscovery(Discovery):
    """The pool is what a file says; no Kubernetes is asked."""

    plugin_type = "file-discovery"
    parameters_model = FileDiscoveryParameters
    parameters: FileDiscoveryParameters
