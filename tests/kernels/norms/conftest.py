"""What tests look at that have no GPU: findings of Triton's interpreter."""

from typing import Any

import pytest

from .interpreted import in_the_interpreter


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> Any:
    """The findings of the test's module; of all its trials if the long tests were asked for."""
    return in_the_interpreter(request.module.__name__, all_trials="long" in request.config.option.requested)
