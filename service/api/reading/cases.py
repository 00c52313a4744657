"""Cases of a target: which there are, their histories and code, and any two revisions compared."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from kernelwatch.documents.base import Page
from kernelwatch.documents.runs import CompareDocument, FactsCheckItem, FactsDiffDocument
from kernelwatch.documents.targets import CaseItem, SeriesDocument, SeriesItem
from service.api.access import Reading, ReadingRoute
from service.api.common import (
    CACHED,
    ERRORS,
    Cases,
    Cursor,
    DeviceName,
    Limit,
    RevisionName,
    Since,
    Tables,
    page_of,
    seconds,
    tagged_json,
)
from service.db.paging import page_of_values
from service.domain.states import FactsState
from service.ledger.reading import compare as measured
from service.ledger.reading import queries, revisions
from service.ledger.reading.compare import compare
from service.ledger.targets import target_named
from service.reports.schema.base import Instant
from service.reports.schema.runs import compare_document, facts_check_item, facts_diff_document
from service.reports.schema.targets import case_item, series_document, series_item

router = APIRouter(route_class=ReadingRoute, prefix="/targets", tags=["targets"])


@router.get("/{name}/cases", response_model=Page[CaseItem])
def list_cases(
    name: str,
    session: Reading,
    cases: Cases,
    device: DeviceName = None,
    since: Since = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[CaseItem]:
    """List the cases that its latest mainline runs measured, or all `since` a time: by whom, where, and the metrics."""
    found = measured.series(session, target_named(session, name), cases, device=device, since=seconds(since))
    return page_of(page_of_values(measured.cases(found), lambda one: (one.case,), cursor, limit), case_item)


@router.get("/{name}/series", response_model=SeriesDocument, responses=CACHED)
def get_series(
    request: Request,
    name: str,
    session: Reading,
    case: Annotated[str, Query(max_length=120, description="For example rmsnorm.fwd.4096x1024.bf16-fp32.")],
    provider: Annotated[str, Query(max_length=80)],
    device: Annotated[str, Query(max_length=40)],
    since: Annotated[Instant | None, Query(description="Only revisions committed at this time or later.")] = None,
    limit: Annotated[int, Query(ge=1, le=queries.MAX_SERIES, description="At most the newest so many revisions.")] = (
        queries.MAX_SERIES
    ),
) -> Response:
    """Get the history of one case on the mainline; it is empty if the case was never measured."""
    target = target_named(session, name)
    points = queries.series(session, target, case, provider, device, since=seconds(since), limit=limit)
    document = series_document(points, target=name, case=case, provider=provider, device=device)
    return tagged_json(request, document)


@router.get("/{name}/series/keys", response_model=Page[SeriesItem])
def list_series(
    name: str,
    session: Reading,
    cases: Cases,
    device: DeviceName = None,
    since: Since = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[SeriesItem]:
    """List the series that its latest mainline runs continued, or all `since` a time."""
    found = measured.series(session, target_named(session, name), cases, device=device, since=seconds(since))
    page = page_of_values(found, lambda one: (one.device, one.provider, one.case), cursor, limit)
    return page_of(page, series_item)


@router.get("/{name}/facts", response_model=Page[FactsCheckItem], tags=["facts"])
def list_facts(
    name: str,
    session: Reading,
    revision: RevisionName = None,
    state: FactsState | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[FactsCheckItem]:
    """List revisions that were compiled without a GPU and compared with their baselines, the newest first."""
    target = target_named(session, name)
    found = revisions.checks(session, target, revision=revision, state=state, cursor=cursor, limit=limit)
    return page_of(found, facts_check_item)


@router.get("/{name}/facts/diff", response_model=FactsDiffDocument, responses=CACHED, tags=["facts"])
def get_facts_diff(
    request: Request,
    name: str,
    session: Reading,
    base: Annotated[str, Query(max_length=100, description="A sha or its beginning, or a version.")],
    head: Annotated[str, Query(max_length=100, description="A sha or its beginning, or a version.")],
    cases: Cases,
    device: DeviceName = None,
    changed: Annotated[bool, Query(description="Only cases of which something is known to differ.")] = False,
    tables: Tables = False,
) -> Response:
    """Compare what is known of the code of two revisions, without their times."""
    target = target_named(session, name)
    before, after = (revisions.named(session, target, one) for one in (base, head))
    found = revisions.facts_diff(session, before, after, cases, device=device)
    return tagged_json(request, facts_diff_document(found, target.name, tables=tables, changed_only=changed))


_NOT_COMPARABLE: dict[int | str, dict[str, Any]] = {
    409: {**ERRORS[404], "description": "They were not measured on this device, or not on one machine."}
}
_SIDE = "A sha or its beginning, a version, `pull/7`, or `mainline` (or its branch) for the newest that was measured."
Side = Annotated[str, Query(max_length=100, description=_SIDE)]


@router.get("/{name}/compare", response_model=CompareDocument, responses=CACHED | _NOT_COMPARABLE)
def get_comparison(
    request: Request,
    name: str,
    session: Reading,
    base: Side,
    head: Side,
    device: Annotated[str, Query(max_length=40)],
    cases: Cases,
) -> Response:
    """Compare two revisions, releases or pull requests by what was measured: paired where a session measured both."""
    target = target_named(session, name)
    return tagged_json(request, compare_document(compare(session, target, base, head, device, cases), target.name))
