"""Error bodies in the shape that each API's clients expect."""

import orjson

from epp.inference.request import ErrorStyle

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(style: ErrorStyle, status: int, code: str, message: str) -> bytes:
    """A JSON error.

    Args:
        status: HTTP status, which decides the error's type.
        code: llm-d's name of the error, e.g. `ServiceUnavailable`.
        message: what happened; it is written after llm-d's `inference error: <code> - `.
    """
    text = f"inference error: {code} - {message}".encode("utf-8", "replace").decode()
    if style is ErrorStyle.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": text}})
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"error": {"message": text, "type": kind, "param": None, "code": code}})
