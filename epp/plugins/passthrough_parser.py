"""Stands for every path that no other parser claims."""

from epp.scheduling.plugin import Parser


class PassthroughParser(Parser):
    """Routes requests without reading their bodies: no model, no tokens, no prefix match. Takes no parameters."""

    plugin_type = "passthrough-parser"
