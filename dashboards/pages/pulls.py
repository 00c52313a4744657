"""One pull request: what its newest head does on each device, and what became of every case from head to head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from dashboards.pages import comments
from dashboards.pages.rendering import page
from dashboards.runs.case_names import CaseName, case_name
from service.api.access import Reading, ReadingRoute
from service.db.engine import clock
from service.db.models import Pull, Revision, Run, Target, VerdictRow
from service.domain.states import OPEN_STATES, BaselineKind, Purpose, RunState
from service.domain.verdicts.judge import Outcome
from service.errors import NotFound
from service.ledger import queries
from service.ledger.intake.targets import target_named
from service.ledger.queries import Glance
from service.ledger.reading import brief
from service.reports.comment_head import by_gravity, next_step

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)
MAX_HEADS = 20  # that are listed
MAX_COMPARED = 5  # heads with a column of their own
MAX_CASES = 80
_QUIET = (Outcome.STEADY, Outcome.NEW, Outcome.REMOVED)


@dataclass(frozen=True)
class PullHead:
    """One head of a pull request, with its newest run on each device."""

    revision: Revision
    glances: Mapping[str, Glance]


@dataclass(frozen=True)
class HeadCell:
    """One case at one head."""

    run_id: int
    outcome: Outcome
    ratio: float | None


@dataclass(frozen=True)
class PullCase:
    """One case on one device, at each head, the newest first; None where it was not measured."""

    device: str
    provider: str
    name: CaseName
    cells: tuple[HeadCell | None, ...]

    @property
    def newest(self) -> HeadCell | None:
        return next((cell for cell in self.cells if cell), None)


@router.get("/targets/{name}/pulls/{number}")
def pull_request(name: str, number: Annotated[int, Path(ge=1, le=2**31 - 1)], session: Reading) -> str:
    """Show one pull request: its newest head on every device, the cases that moved, and its heads."""
    target = target_named(session, name)
    heads = _heads(session, target, number)
    if not heads:
        raise NotFound("measured pull request", number, f"/targets/{name} lists the latest.")
    newest = heads[0]
    reports = by_gravity([brief.brief(session, one.run.id).report for one in newest.glances.values()])
    cases = _cases(session, heads[:MAX_COMPARED])
    record = session.scalar(select(Pull).where(Pull.target_id == target.id, Pull.number == number))
    return page(
        "pull.html",
        now=clock(session),
        target=target,
        number=number,
        heads=heads,
        compared=heads[:MAX_COMPARED],
        reports=reports,
        first=reports[0],
        next_step=comments.as_html(next_step(reports[0])) if reports[0].state not in OPEN_STATES else "",
        cases=cases[:MAX_CASES],
        left_out=max(0, len(cases) - MAX_CASES),
        record=record,
        live=any(
            one.run.state in OPEN_STATES and one.run.state is not RunState.HELD for one in newest.glances.values()
        ),
    )


def _heads(session: Session, target: Target, number: int) -> list[PullHead]:
    """The heads of a pull request, that of the newest run first."""
    runs = session.scalars(
        select(Run)
        .where(Run.target_id == target.id, Run.pull == number, Run.purpose == Purpose.WATCH)
        .options(selectinload(Run.target), selectinload(Run.revision))
        .order_by(Run.id.desc())
        .limit(MAX_HEADS * 4)
    ).all()
    by_revision: dict[int, list[Glance]] = {}
    for glance in queries.glances(session, runs):
        by_revision.setdefault(glance.run.revision_id, []).append(glance)
    return [
        PullHead(glances[0].run.revision, {one.run.device: one for one in reversed(glances)})
        for glances in list(by_revision.values())[:MAX_HEADS]
    ]


def _cases(session: Session, heads: Sequence[PullHead]) -> list[PullCase]:
    """The cases that moved at any of these heads, those that are the slowest at the newest first."""
    place = {one.run.id: (n, device) for n, head in enumerate(heads) for device, one in head.glances.items()}
    rows = session.execute(
        select(VerdictRow.run_id, VerdictRow.provider, VerdictRow.case, VerdictRow.outcome, VerdictRow.ratio)
        .where(VerdictRow.run_id.in_(place), VerdictRow.baseline_kind == BaselineKind.PARENT)
        .order_by(VerdictRow.case, VerdictRow.provider)
    ).all()
    found = []
    for (case, provider), of_case in groupby(rows, key=lambda row: (row.case, row.provider)):
        cells: dict[str, list[HeadCell | None]] = {}
        for run_id, _, _, outcome, ratio in of_case:
            n, device = place[run_id]
            cells.setdefault(device, [None] * len(heads))[n] = HeadCell(run_id, Outcome(outcome), ratio)
        for device, line in cells.items():
            if any(cell and cell.outcome not in _QUIET for cell in line):
                found.append(PullCase(device, provider, case_name(case), tuple(line)))
    return sorted(found, key=_gravity)


def _gravity(case: PullCase) -> tuple[bool, float, str, str]:
    cell = case.newest
    moved = cell is not None and cell.outcome not in _QUIET
    return not moved, -((cell.ratio if cell else None) or 99.0), case.device, case.name.text
