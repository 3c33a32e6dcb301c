"""The one switch between our arithmetic and llm-d's, where somebody could depend on the latter."""

from typing import Literal

from pydantic import Field

from epp.scheduling.plugin import Parameters


class CompatibleParameters(Parameters):
    compatibility: Literal["none", "llm-d"] = Field(
        "none", description='"llm-d": decide exactly as llm-d does, for those who depend on it.'
    )

    @property
    def like_llm_d(self) -> bool:
        return self.compatibility == "llm-d"
