"""Lists load no column that takes megabytes: neither pages, nor the API, nor `status`."""

from collections.abc import Iterator

import pytest
from sqlalchemy import event

from service.db.engine import engine
from tests.dashboards.asking import asking
from tests.dashboards.seed import Seeded
from tests.shell import attempt

# A list that loads one of these takes half a second of processor time where there are many cases.
LARGE = ("runs.telemetry", "runs.summary", "runs.log", "measurements.samples", "measurements.facts", "effects.payload")
LISTS = (
    "/",
    "/targets/norms",
    "/regressions",
    "/regressions?state=fixed",
    "/bisections",
    "/workers",
    "/calibration",
    "/api/v1/targets",
    "/api/v1/targets/norms",
    "/api/v1/targets/norms/runs",
    "/api/v1/targets/norms/revisions",
    "/api/v1/targets/norms/regressions",
    "/api/v1/targets/norms/gaps",
    "/api/v1/targets/norms/incidents",
    "/api/v1/targets/norms/change-points",
    "/api/v1/regressions",
    "/api/v1/bisections",
    "/api/v1/queue",
    "/api/v1/workers",
    "/metrics",
)


@pytest.fixture
def statements(decided: Seeded) -> Iterator[list[str]]:
    """The SQL that the test sends."""
    sent = list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(engine(), "before_cursor_execute", note)
    yield sent
    event.remove(engine(), "before_cursor_execute", note)


@pytest.mark.parametrize("path", LISTS)
def test_a_list_loads_no_large_column(statements: list[str], path: str) -> None:
    assert asking()(path).status_code == 200
    assert statements
    assert _large(statements) == []


def test_status_loads_no_large_column(statements: list[str]) -> None:
    assert attempt("status").exit_code == 0
    assert statements
    assert _large(statements) == []


def _large(statements: list[str]) -> list[tuple[str, str]]:
    """The statements that load a large column, and which.  What the database takes out of one is small."""
    read = [(one, one.partition("FROM")[0].replace("json_extract(runs.telemetry", "")) for one in statements]
    return [(column, one) for one, loaded in read for column in LARGE if column in loaded]
