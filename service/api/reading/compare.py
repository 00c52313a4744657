"""Any two revisions of a target on one device."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.api.access import Reading, ReadingRoute
from service.api.common import CACHED, ERRORS, tagged_json
from service.api.lists import Cases
from service.ledger.intake.targets import target_named
from service.ledger.reading.compare import compare
from service.reports.schema.compare import CompareDocument

router = APIRouter(route_class=ReadingRoute, prefix="/targets", tags=["targets"])
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
    return tagged_json(request, CompareDocument.of(compare(session, target, base, head, device, cases), target.name))
