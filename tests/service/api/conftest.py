"""A few days of watching, for tests that only read."""

from collections.abc import Iterator

import pytest

from tests.dashboards import seed_deciding
from tests.dashboards.asking import Get, asking
from tests.dashboards.seed import Seeded, watched


@pytest.fixture(scope="module")
def get() -> Get:
    """GET an address of the app, in this process."""
    return asking()


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeded]:
    with watched(tmp_path_factory.mktemp("state")) as story:
        yield story


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeded]:
    """The same with what deciding adds."""
    with watched(tmp_path_factory.mktemp("decided"), seed_deciding.seed) as story:
        yield story
