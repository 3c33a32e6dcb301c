"""Stands for SGLang's own HTTP API."""

from epp.scheduling.plugin import Parser


class SglangHttpParser(Parser):
    """Claims /generate. Takes no parameters."""

    plugin_type = "sglanghttp-parser"
