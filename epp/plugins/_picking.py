"""What pickers share: how many endpoints they name."""

from pydantic import Field

from epp.scheduling.plugin import Parameters, Picker, Services


class PickerParameters(Parameters):
    max_num_of_endpoints: int = Field(
        1, description="Endpoints to name: the first choice, then fallbacks. 0 or less means 1."
    )


class CountingPicker(Picker):
    """A picker that names up to `count` endpoints."""

    parameters_model = PickerParameters

    def __init__(self, name: str, parameters: PickerParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self.count = max(parameters.max_num_of_endpoints, 1)
