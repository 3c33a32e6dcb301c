"""Label values that clients choose are bounded: the first ones are told apart, the rest are `other`.

An admitted value stays admitted and a folded one stays folded, so a gauge that is raised under some labels is lowered
under the same.
"""

from collections.abc import Collection, Hashable
from typing import ClassVar, Generic, TypeVar

from epp.inference.request import Request

OTHER = "other"
MAX_LABEL_VALUES = 1000  # llm-d default, of model names and of fairness ids each
# Of all labels together: what memory and the length of a page grow with. A set has some 300 lines.
MAX_LABEL_SETS = 250
MAX_LABEL_CHARACTERS = 256

T = TypeVar("T", bound=Hashable)
LabelSet = tuple[str, str, str, str]


class Admission(Generic[T]):
    """Admits the first `limit` distinct values."""

    def __init__(self, limit: int, always: Collection[T] = ()) -> None:
        self._limit = limit
        self._always = frozenset(always)
        self._admitted: set[T] = set()

    def __call__(self, value: T) -> bool:
        if value in self._admitted or value in self._always:
            return True
        if len(self._admitted) >= self._limit:
            return False
        self._admitted.add(value)
        return True


class RequestLabels:
    """`(model_name, target_model_name, fairness_id, priority)` of requests, bounded.

    Model and target model share one bound. An empty value (no model, say) stays empty. When there are too many sets,
    tenants fold first, then models.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("model_name", "target_model_name", "fairness_id", "priority")

    def __init__(self) -> None:
        self._models = Admission(MAX_LABEL_VALUES, ("",))
        self._fairness_ids = Admission(MAX_LABEL_VALUES, ("",))
        self._sets: Admission[tuple[str, ...]] = Admission(MAX_LABEL_SETS)
        self._sets_without_tenant: Admission[tuple[str, ...]] = Admission(MAX_LABEL_SETS)
        # What is told apart, by what the requests said: as many as there are admitted sets, and the common case.
        self._admitted: dict[tuple[str | None, str | None, str, int], LabelSet] = {}

    def of(self, request: Request) -> LabelSet:
        said = (request.model, request.target_model, request.fairness_id, request.priority)
        labels = self._admitted.get(said)
        if labels is None:
            labels = self._bounded(request)
            if labels == (request.model or "", request.target_model or "", request.fairness_id, str(request.priority)):
                self._admitted[said] = labels
        return labels

    def _bounded(self, request: Request) -> LabelSet:
        model, target_model, priority = (
            self.model(request.model),
            self.model(request.target_model),
            str(request.priority),
        )
        labels = (model, target_model, _folded(request.fairness_id, self._fairness_ids), priority)
        if self._sets(labels):
            return labels
        labels = (model, target_model, OTHER, priority)
        return labels if self._sets_without_tenant(labels) else (OTHER, OTHER, OTHER, priority)

    def model(self, name: str | None) -> str:
        return _folded(name or "", self._models)


def _folded(value: str, admission: Admission[str]) -> str:
    return value if len(value) <= MAX_LABEL_CHARACTERS and admission(value) else OTHER
