"""Stands for vLLM's own HTTP API."""

from epp.scheduling.plugin import Parser


class VllmHttpParser(Parser):
    """Claims inference/v1/generate. Takes no parameters."""

    plugin_type = "vllmhttp-parser"
