"""Whether the bearer of a token may read a page, by the API server's word: TokenReview, then SubjectAccessReview."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from epp.kube.client import KubeClient
from epp.kube.objects import Json, mapping, text
from epp.kube.resources import ACCESS_REVIEWS, TOKEN_REVIEWS

# A scraper comes every few seconds; a right that was taken away is noticed within this time.
REMEMBER_S = 30.0
MAX_REMEMBERED = 256


class Verdict(Enum):
    ALLOWED = "allowed"
    UNKNOWN = "the token is not known"
    FORBIDDEN = "not allowed to get this page"


@dataclass(frozen=True, slots=True)
class _Remembered:
    verdict: Verdict
    until_s: float


class Reviewer:
    """Asks, and remembers the answers for a while. Tokens are kept as digests only."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._remembered: OrderedDict[tuple[bytes, str], _Remembered] = OrderedDict()

    async def review(self, token: str, path: str) -> Verdict:
        """Raises `ApiFailure`: the API server does not say."""
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), path
        known = self._remembered.get(key)
        if known is not None and self._clock() < known.until_s:
            return known.verdict
        verdict = await self._ask(token, path)
        self._remembered[key] = _Remembered(verdict, self._clock() + REMEMBER_S)
        self._remembered.move_to_end(key)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return verdict

    async def _ask(self, token: str, path: str) -> Verdict:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        answer = await self._client.request("POST", TOKEN_REVIEWS.path(None), body=body)
        if mapping(answer, "status").get("authenticated") is not True:
            return Verdict.UNKNOWN
        answer = await self._client.request(
            "POST", ACCESS_REVIEWS.path(None), body=_access_review(mapping(answer, "status", "user"), path)
        )
        return Verdict.ALLOWED if mapping(answer, "status").get("allowed") is True else Verdict.FORBIDDEN


def _access_review(user: Json, path: str) -> Json:
    spec = {
        "user": text(user.get("username")),
        "uid": text(user.get("uid")),
        "groups": user.get("groups") or [],
        "extra": user.get("extra") or {},
        "nonResourceAttributes": {"path": path, "verb": "get"},
    }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
