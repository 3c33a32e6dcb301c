"""Stands for the OpenAI API."""

from epp.scheduling.plugin import Parser


class OpenAIParser(Parser):
    """Claims completions, chat completions, responses, conversations, embeddings and images. Takes no parameters."""

    plugin_type = "openai-parser"
