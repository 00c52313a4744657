"""What lists have in common: the parameters that filter them, and pages of runs."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Depends, Query
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.api.common import page_of
from service.db.models import Target
from service.domain.states import RegressionState, RunState
from service.ledger import queries
from service.ledger.queries import Glance
from service.ledger.reading import runs
from service.ledger.reading.filters import CaseFilter, RunFilter
from service.ledger.regressions import listing
from service.reports.schema.base import Instant, Page
from service.reports.schema.regressions import RegressionItem
from service.reports.schema.runs import RunItem

_LARGEST_PULL = 2**31 - 1  # of its column; PostgreSQL compares it with no larger number
Since = Annotated[
    Instant | None, Query(description="Only what began at this time or later, as in 2026-11-21T03:02:00Z.")
]
RegressionStates = Annotated[list[RegressionState] | None, Query(description="May be repeated; all by default.")]
WithEvents = Annotated[list[Literal["events"]] | None, Query(description="`events` adds the history of each.")]
RunStates = Annotated[list[RunState] | None, Query(description="May be repeated; all by default.")]
TargetName = Annotated[str | None, Query(description="Only this target.", max_length=80)]
DeviceName = Annotated[str | None, Query(description="Only this device.", max_length=40)]
RevisionName = Annotated[str | None, Query(max_length=100, description="A sha or its beginning, or a version.")]
PullNumber = Annotated[int | None, Query(ge=1, le=_LARGEST_PULL, description="Only this pull request.")]
Tables = Annotated[bool, Query(description="Include the tables of `facts`: megabytes for a large suite.")]
Expanded = Annotated[
    list[Literal["counts"]] | None, Query(description="`counts` adds the number of cases by outcome to each run.")
]


def seconds(since: datetime | None) -> float | None:
    """As it is stored.  Documents round to a microsecond: a time from one of them includes what it is the time of."""
    return since.timestamp() - 1e-6 if since else None


async def _cases(
    provider: Annotated[str | None, Query(max_length=80)] = None,
    op: Annotated[str | None, Query(max_length=80, description="For example rmsnorm.")] = None,
    metric: Metric | None = None,
    case: Annotated[
        str | None, Query(max_length=120, description="A case, or with * and ? several: `rmsnorm.*.bf16*`.")
    ] = None,
) -> CaseFilter:
    return CaseFilter(provider, op, metric, case)


Cases = Annotated[CaseFilter, Depends(_cases)]


def page_of_runs(
    session: Session, which: RunFilter, cursor: str | None, limit: int, expand: Collection[str] | None
) -> Page[RunItem]:
    """Runs that fit, the newest first."""
    found = runs.listed(session, which, cursor, limit)
    if not expand:
        return page_of(found, RunItem.of)
    return Page(items=run_items(queries.glances(session, found.items)), next=found.next)


def run_items(glances: Iterable[Glance]) -> list[RunItem]:
    """Runs with the number of their cases by outcome."""
    return [RunItem.of(one.run, one.counts, one.behind) for one in glances]


def page_of_regressions(
    session: Session,
    target: Target | None,
    states: Collection[RegressionState] | None,
    cursor: str | None,
    limit: int,
    expand: Collection[str] | None,
) -> Page[RegressionItem]:
    """Regressions of a target or of all, the newest first."""
    found = listing.listed(session, target, states or (), cursor, limit)
    events = listing.events(session, [one.row.id for one in found.items]) if expand else {}
    return page_of(found, lambda one: RegressionItem.of(one, events.get(one.row.id)))
