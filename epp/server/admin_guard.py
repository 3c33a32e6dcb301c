"""Who may read the pages of the metrics port, where the API server is asked. Probes carry no token and are let in."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from epp.kube.failures import ApiFailure
from epp.kube.reviews import Reviewer, Verdict

OPEN_TO_ALL = frozenset({"/healthz", "/readyz"})

Guard = Callable[[web.Request], Awaitable[web.Response | None]]
"""The refusal of a request, or `None` to let it pass."""


def reviewed_by(reviewer: Reviewer) -> Guard:
    """Let those pass who may `get` the page's path, as a right to a non-resource URL says."""

    async def guard(request: web.Request) -> web.Response | None:
        if request.path in OPEN_TO_ALL:
            return None
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return web.Response(status=401, text="give a bearer token\n", headers={"WWW-Authenticate": "Bearer"})
        try:
            verdict = await reviewer.review(token.strip(), request.path)
        except ApiFailure as failure:
            return web.Response(status=503, text=f"cannot ask the API server who you are: {failure.kind}\n")
        match verdict:
            case Verdict.ALLOWED:
                return None
            case Verdict.UNKNOWN:
                return web.Response(status=401, text=f"{verdict.value}\n", headers={"WWW-Authenticate": "Bearer"})
            case Verdict.FORBIDDEN:
                return web.Response(status=403, text=f"{verdict.value}: grant get on nonResourceURLs {request.path}\n")

    return guard
