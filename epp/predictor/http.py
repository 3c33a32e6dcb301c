"""What all paths of the predictor's API have in common: how bodies are read, and how is told what is wrong with them.

Mistakes are told the way FastAPI does, as clients of llm-d's servers know it, but without the values that were sent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from epp.predictor.service import NotReady
from epp.predictor.wire import Refused, mistake, mistakes

logger = logging.getLogger(__name__)

RowT = TypeVar("RowT", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

NOT_READY = "not ready: too few real requests were seen"


@web.middleware
async def in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """All that goes wrong is told in JSON."""
    try:
        return await handler(request)
    except Refused as refused:
        return json_response({"detail": refused.detail}, 422)
    except NotReady:
        return json_response({"detail": NOT_READY}, 503)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return json_response(
            {"detail": error.text if isinstance(error, web.HTTPNotFound) else error.reason}, error.status
        )
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        logger.exception("a request to the predictor failed")
        return json_response({"detail": "Internal Server Error"}, 500)


async def body_of(request: web.Request) -> Any:
    """Raises `Refused` for what is no JSON."""
    try:
        return orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:  # NaN and infinities are no JSON either
        raise Refused([mistake("json_invalid", (error.pos,), "JSON decode error")]) from error


def checked(kind: TypeAdapter[RowT], value: Any) -> RowT:
    """Raises `Refused`."""
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise Refused(mistakes(error)) from error


def sorted_out(
    kind: TypeAdapter[RowT], sent: Sequence[Any], key: str
) -> tuple[dict[int, RowT], dict[int, list[dict[str, Any]]]]:
    """Good rows, and what is wrong with the others, by index."""
    rows: dict[int, RowT] = {}
    errors: dict[int, list[dict[str, Any]]] = {}
    for index, value in enumerate(sent):
        try:
            rows[index] = kind.validate_python(value)
        except ValidationError as error:
            errors[index] = mistakes(error, key, index)
    return rows, errors


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def not_found(text: str) -> web.HTTPNotFound:
    return web.HTTPNotFound(text=text)
