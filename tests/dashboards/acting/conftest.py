"""The site of a module's tests."""

from collections.abc import Iterator

import pytest

from tests.dashboards.acting.site import Site, acting_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with acting_site(tmp_path_factory.mktemp("acting")) as made:
        yield made
