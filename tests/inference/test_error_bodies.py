import json

import pytest

from epp.inference.errors import error_body
from epp.inference.request import ErrorStyle


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (403, "permission_error", "permission_error"),
        (404, "not_found_error", "not_found_error"),
        (412, "invalid_request_error", "invalid_request_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "server_error", "api_error"),
        (503, "server_error", "overloaded_error"),
        (504, "server_error", "timeout_error"),
    ],
)
def test_errors_have_the_shape_and_type_of_their_api(status, openai, anthropic):
    text = "inference error: Code - what happened"
    assert json.loads(error_body(ErrorStyle.OPENAI, status, "Code", "what happened")) == {
        "error": {"message": text, "type": openai, "param": None, "code": "Code"}
    }
    assert json.loads(error_body(ErrorStyle.ANTHROPIC, status, "Code", "what happened")) == {
        "type": "error",
        "error": {"type": anthropic, "message": text},
    }


def test_odd_characters_in_a_message_do_no_harm():
    assert json.loads(error_body(ErrorStyle.OPENAI, 400, "BadRequest", 'path "\ud800"'))
