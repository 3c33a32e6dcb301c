"""Stands for the Anthropic API."""

from epp.scheduling.plugin import Parser


class AnthropicParser(Parser):
    """Claims messages and messages/count_tokens. Takes no parameters."""

    plugin_type = "anthropic-parser"
