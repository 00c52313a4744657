"""Any two revisions, releases or pull requests of a target on one device."""

import csv
import io
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards import compared
from dashboards.compared import Show, Sort
from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.db.engine import clock
from service.db.models import Pull, Revision, Target
from service.errors import Conflict, NotFound
from service.ledger import queries
from service.ledger.intake.targets import target_named
from service.ledger.reading.compare import MAINLINE, compare
from service.ledger.reading.runs import CaseFilter
from service.reports.rows import RevisionsCompared

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

_OFFERED = 40  # revisions and pull requests that the form suggests
_Side = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True)
class ComparedAddress:
    """What the address of a comparison says."""

    target: str
    base: str
    head: str
    device: str
    show: Show = Show.CHANGED
    sort: Sort = Sort.RATIO
    text: str = ""

    def to(self, page: str = "compare", **changed: str) -> str:
        values = {
            "base": self.base,
            "head": self.head,
            "device": self.device,
            "show": "" if self.show is Show.CHANGED else self.show.value,
            "sort": "" if self.sort is Sort.RATIO else self.sort.value,
            "q": self.text,
        } | changed
        kept = {key: one for key, one in values.items() if one}
        return f"/targets/{quote(self.target)}/{page}?{urlencode(kept)}"


@router.get("/targets/{name}/compare")
def compare_page(
    name: str,
    session: Reading,
    base: _Side = "",
    head: _Side = "",
    device: Annotated[str, Query(max_length=40)] = "",
    show: Show = Show.CHANGED,
    sort: Sort = Sort.RATIO,
    q: Annotated[str, Query(max_length=200)] = "",
) -> str:
    """Show what two revisions differ in, or ask for them."""
    target = target_named(session, name)
    devices = queries.devices(session, target)
    address = ComparedAddress(target.name, base, head, device or next(iter(devices), ""), show, sort, q)
    found, trouble = _found(session, target, address) if base and head else (None, "")
    return page(
        "compare.html",
        now=clock(session),
        target=target,
        address=address,
        devices=devices,
        offered=_offered(session, target),
        found=found,
        trouble=trouble,
        table=compared.compose(found.cases, show, sort, q) if found else None,
        mainline=MAINLINE,
    )


def _found(session: Session, target: Target, address: ComparedAddress) -> tuple[RevisionsCompared | None, str]:
    """The comparison, or why there is none: the form stays, so that another revision or device can be chosen."""
    try:
        return compare(session, target, address.base, address.head, address.device, CaseFilter()), ""
    except (Conflict, NotFound) as why:
        return None, str(why)


def _offered(session: Session, target: Target) -> list[tuple[str, str]]:
    """The newest revisions of the mainline and the newest pull requests, with what they are."""
    newest = select(Revision.sha, Revision.subject).where(
        Revision.target_id == target.id, Revision.ordinal.is_not(None)
    )
    rows = session.execute(newest.order_by(Revision.ordinal.desc()).limit(_OFFERED)).all()
    pulls = select(Pull.number).where(Pull.target_id == target.id, Pull.head.is_not(None))
    numbers = session.scalars(pulls.order_by(Pull.number.desc()).limit(_OFFERED)).all()
    return [
        (MAINLINE, "the newest that was measured"),
        *((row.sha[:12] if len(row.sha) >= 40 else row.sha, row.subject) for row in rows),
        *((f"pull/{number}", f"pull request {number}") for number in numbers),
    ]


@router.get("/targets/{name}/compare.csv")
def compare_csv(
    name: str, session: Reading, base: _Side, head: _Side, device: Annotated[str, Query(max_length=40)]
) -> Response:
    """The comparison as CSV, every case."""
    target = target_named(session, name)
    found = compare(session, target, base, head, device, CaseFilter())
    file = io.StringIO()
    out = csv.writer(file)
    out.writerow(("provider", "case", "direction", "base", "head", "ratio", "low", "high", "method"))
    for one in found.cases:
        ratio = (one.ratio.ratio, one.ratio.low, one.ratio.high) if one.ratio else ("", "", "")
        row = (one.provider, one.case, one.direction, one.base_median, one.head_median, *ratio, one.method.value)
        out.writerow([_cell(value) for value in row])
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}-compare.csv"}
    return Response(file.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: object) -> object:
    """A spreadsheet runs what begins like a formula: a quote before it makes it text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value
