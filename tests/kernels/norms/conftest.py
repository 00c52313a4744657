"""What tests look at that have no GPU: findings of Triton's interpreter."""

from typing import Any

import pytest

from .interpreted import in_the_interpreter
from .unchanged import is_unchanged


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the interpreter found of these sources before, it finds again every night."""
    of_interpreter = [item for item in items if "interpreted" in getattr(item, "fixturenames", ())]
    if of_interpreter and is_unchanged():
        for item in of_interpreter:
            item.add_marker("long")


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> Any:
    """The findings of the test's module; of all its trials if the long tests were asked for."""
    return in_the_interpreter(request.module.__name__, all_trials="long" in request.config.option.requested)
