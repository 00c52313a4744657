"""Any two revisions, releases or pull requests of a target on one device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import geometric_mean
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Query, Response
from sqlalchemy import and_, exists, select
from sqlalchemy.orm import Session

from dashboards.drawing import Figure, Scale
from dashboards.rendering import page, page_router
from service.api.access import Reading
from service.db.engine import clock
from service.db.models import Pull, Revision, Run, Target
from service.domain.case_names import CaseName, case_name
from service.domain.forges import pull_name
from service.errors import Conflict, NotFound
from service.ledger.reading import queries
from service.ledger.reading.compare import COMPARED, MAINLINE, compare
from service.ledger.reading.runs import CaseFilter
from service.ledger.targets import target_named
from service.reports.encoders import csv_text
from service.reports.rows import ComparedCase, RevisionsCompared

router = page_router()

_OFFERED = 40  # revisions and pull requests that the form suggests
_LISTED = 12  # of these, that the page lists
_Side = Annotated[str, Query(max_length=100)]
WIDTH = 372  # px of the column of intervals
_MOST = 8.0  # larger ratios are drawn at the edge
_ORDER = ("slower", "faster", "unknown", "same")


class Show(StrEnum):
    """Which cases the page lists."""

    CHANGED = "changed"  # slower and faster
    ALL = "all"


class Sort(StrEnum):
    RATIO = "ratio"  # the largest change first
    LOST = "lost"  # the most µs first
    NAME = "name"


@dataclass(frozen=True)
class ComparedLine:
    """A case of the comparison."""

    case: ComparedCase
    name: CaseName
    interval: Figure | None

    @property
    def change(self) -> float:
        return abs(math.log(self.case.ratio.ratio)) if self.case.ratio else 0.0

    @property
    def lost(self) -> float:
        """How much more the head takes, in the unit of the metric."""
        head, base = self.case.head_median, self.case.base_median
        return head - base if head is not None and base is not None else 0.0


@dataclass(frozen=True)
class Compared:
    """The cases by direction, and the axis that their intervals share."""

    lines: Sequence[ComparedLine]  # those that are shown
    counts: dict[str, int]
    geomean: float | None  # of all that have a ratio
    axis: Scale

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Positions in per cent of the column, and texts of the ticks."""
        return [(f"{self.axis(tick) / WIDTH * 100:.1f}%", f"{tick:.2f}") for tick in self.axis.ticks]

    @property
    def one(self) -> str:
        """The position of the ratio 1, in per cent of the column."""
        return f"{self.axis(1.0) / WIDTH * 100:.1f}%"


def compose(
    cases: Sequence[ComparedCase], show: Show = Show.CHANGED, sort: Sort = Sort.RATIO, text: str = ""
) -> Compared:
    """The cases that have every word of `text`; without changed ones all are shown."""
    words = text.lower().split()
    found = [case for case in cases if all(word in f"{case.case} {case.provider}".lower() for word in words)]
    ratios = [case.ratio.ratio for case in found if case.ratio]
    # At least 5 % to both sides, so that noise does not look like a change.
    low, high = max(min([0.95, *ratios]), 1 / _MOST), min(max([1.05, *ratios]), _MOST)
    axis = Scale(low / 1.01, high * 1.01, 0, WIDTH, log=True)
    counts = {word: sum(case.direction == word for case in found) for word in _ORDER}
    shown = found if show is Show.ALL else [case for case in found if case.direction in ("slower", "faster")]
    lines = sorted((_line(case, axis) for case in shown), key=_KEYS[sort])
    return Compared(lines, counts, geometric_mean(ratios) if ratios else None, axis)


def _line(case: ComparedCase, axis: Scale) -> ComparedLine:
    figure = Figure(WIDTH, 22, preserveAspectRatio="none") if case.ratio else None
    if figure and case.ratio:
        figure.interval(axis, case.ratio.low, case.ratio.ratio, case.ratio.high)
    return ComparedLine(case, case_name(case.case), figure)


_KEYS = {
    Sort.RATIO: lambda line: (_ORDER.index(line.case.direction), -line.change, line.case.case),
    Sort.LOST: lambda line: (_ORDER.index(line.case.direction), -abs(line.lost), line.case.case),
    Sort.NAME: lambda line: (line.name.op, line.name.direction, line.name.columns or 0, line.name.rows or 0),
}


@dataclass(frozen=True)
class Choice:
    """A side that can be compared: something that was measured on the device."""

    name: str  # as the form takes it
    what: str  # the branch or the pull request
    subject: str
    at: float  # when it was committed or released; 0 of the branch
    before: str = ""  # the mainline revision that was measured before it


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

    def figure(self) -> str:
        """The figure to explore of all cases."""
        return f"/api/v1{self.to('compare/figure', show='', sort='', q='')}"


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
        offered=(offered := _offered(session, target, address.device)),
        listed=sorted(offered[1:], key=lambda one: -one.at)[:_LISTED],
        found=found,
        trouble=trouble,
        table=compose(found.cases, show, sort, q) if found else None,
        mainline=MAINLINE,
    )


def _found(session: Session, target: Target, address: ComparedAddress) -> tuple[RevisionsCompared | None, str]:
    """The comparison, or why there is none: the form stays, so that another revision or device can be chosen."""
    try:
        return compare(session, target, address.base, address.head, address.device, CaseFilter()), ""
    except (Conflict, NotFound) as why:
        return None, str(why)


def _offered(session: Session, target: Target, device: str) -> list[Choice]:
    """The newest revisions of the mainline and the newest pull requests that were measured on the device."""
    done = exists().where(Run.revision_id == Revision.id, Run.device == device, *COMPARED)
    columns = (Revision.sha, Revision.subject, Revision.committed_at)
    mainline = select(*columns).where(Revision.target_id == target.id, Revision.ordinal.is_not(None), done)
    rows = session.execute(mainline.order_by(Revision.ordinal.desc()).limit(_OFFERED)).all()
    heads = (Revision.target_id == Pull.target_id, Revision.sha == Pull.head)
    of_pulls = select(Pull.number, *columns).join(Revision, and_(*heads)).where(Pull.target_id == target.id, done)
    pulls = session.execute(of_pulls.order_by(Pull.number.desc()).limit(_OFFERED)).all()
    branch = target.branch or MAINLINE
    names = [row.sha[:12] if len(row.sha) >= 40 else row.sha for row in rows]
    return [
        Choice(branch, "the newest that was measured", "", 0.0),
        *(
            Choice(name, branch, row.subject, row.committed_at, before)
            for name, row, before in zip(names, rows, [*names[1:], ""], strict=False)
        ),
        *(
            Choice(f"pull/{number}", pull_name(target.forge_kind, number), subject, at)
            for number, _, subject, at in pulls
        ),
    ]


@router.get("/targets/{name}/compare.csv")
def compare_csv(
    name: str, session: Reading, base: _Side, head: _Side, device: Annotated[str, Query(max_length=40)]
) -> Response:
    """The comparison as CSV, every case."""
    target = target_named(session, name)
    found = compare(session, target, base, head, device, CaseFilter())
    rows = []
    for one in found.cases:
        ratio = (one.ratio.ratio, one.ratio.low, one.ratio.high) if one.ratio else ("", "", "")
        medians = (one.base_median, one.head_median)
        rows.append((one.provider, one.case, one.direction, *medians, *ratio, one.method.value))
    text = csv_text(("provider", "case", "direction", "base", "head", "ratio", "low", "high", "method"), rows)
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}-compare.csv"}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)
