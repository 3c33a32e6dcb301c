import pytest
from helm_chart import NoHelm, find_helm


@pytest.fixture(autouse=True, scope="session")
def _helm(request: pytest.FixtureRequest) -> None:
    """All tests here need Helm; where it is missing they are skipped and say how to get it."""
    try:
        find_helm()
    except NoHelm as missing:
        pytest.skip(f"needs Helm. {missing}")
