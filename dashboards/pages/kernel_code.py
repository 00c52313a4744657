"""One kind of compiled code of a case of a run: what differs between the head and its baseline."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dashboards import kernel_code
from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.api.common import Key
from service.domain.codefacts.side_by_side import MAX_COMPARED, MAX_EDITS
from service.domain.codefacts.texts import NAMES
from service.errors import NotFound
from service.ledger import code_texts, queries

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/runs/{run_id}/code/{kind}")
def run_code(
    run_id: Key,
    kind: Literal["ttgir", "ptx", "sass", "generated"],
    session: Reading,
    case: Annotated[str, Query(max_length=120)],
    provider: Annotated[str, Query(max_length=80)],
) -> str:
    """Show the texts of one kind side by side; pages of cases and regressions fetch it when it is opened."""
    run = queries.whole_run(session, run_id)
    sides = kernel_code.sides_of(code_texts.at_case(session, run, case), provider)
    if not any(one.kind == kind for one in (*sides.before, *sides.after)):
        raise NotFound(NAMES[kind], f"of {case[:120]} in run {run_id}", "Equal code is not stored.")
    found, more = kernel_code.differences(sides, kind, lambda ids: code_texts.texts(session, ids))
    return page(
        "run_code.html",
        run=run,
        case=case,
        provider=provider,
        kind=kind,
        kind_names=NAMES,
        sides=sides,
        kernels=found,
        more=more,
        max_compared=MAX_COMPARED,
        max_edits=MAX_EDITS,
    )
