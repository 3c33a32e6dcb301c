"""The kinds of objects that the picker talks to an API server about, by their places in its API.

Some kinds are in two groups: pools moved from `inference.networking.x-k8s.io` to `inference.networking.k8s.io` when
they became v1, objectives and rewrites moved from the former to `llm-d.ai`. Either may be installed, or both.
"""

from dataclasses import dataclass

POOL_GROUP = "inference.networking.k8s.io"
LEGACY_GROUP = "inference.networking.x-k8s.io"
LLMD_GROUP = "llm-d.ai"


@dataclass(frozen=True, slots=True)
class Resource:
    """
    Attributes:
        group: API group; the core group is the empty string.
        plural: as in URLs and in rules of RBAC, e.g. `pods`.
        namespaced: whether its objects live in a namespace.
    """

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def name(self) -> str:
        """`plural.group`, as kubectl writes it; of the core group `plural` alone."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """The path of one object, or of all of a namespace when `name` is `None`."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{root}{place}/{self.plural}" + ("" if name is None else f"/{name}")


PODS = Resource("", "v1", "pods")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
POOLS = {
    POOL_GROUP: Resource(POOL_GROUP, "v1", "inferencepools"),
    LEGACY_GROUP: Resource(LEGACY_GROUP, "v1alpha2", "inferencepools"),
}
# The first that is installed counts.
OBJECTIVES = tuple(Resource(group, "v1alpha2", "inferenceobjectives") for group in (LLMD_GROUP, LEGACY_GROUP))
REWRITES = tuple(Resource(group, "v1alpha2", "inferencemodelrewrites") for group in (LLMD_GROUP, LEGACY_GROUP))
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
