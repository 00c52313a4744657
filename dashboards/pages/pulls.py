"""One pull request: its newest head on each device, every case from head to head, and its comments as shown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any

from fastapi import Path
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from dashboards.docs import scrolled_code
from dashboards.rendering import page, page_router
from dashboards.runs.lines import lines_of
from dashboards.runs.strips import RatioAxis, interval
from service.api.access import Reading
from service.db.engine import clock
from service.db.models import OutboxMessage, Pull, Revision, Run, Target, VerdictRow
from service.domain.case_names import CaseName, case_name
from service.domain.states import OPEN_STATES, BaselineKind, Outcome, Purpose, RunState
from service.errors import NotFound
from service.ledger.reading import brief, queries
from service.ledger.reading.queries import Glance
from service.ledger.targets import target_named
from service.reports.comment_head import by_gravity, heading, next_step, times
from service.reports.report import ALARMING, Report
from service.settings import settings

_OURS = re.compile(r"</?(?:details|summary|sub)>")
_MARKER = re.compile(r"<!--.*?-->\s*", re.DOTALL)


def as_html(comment: str) -> Markup:
    """Render the comment as HTML."""
    return Markup(_reader.render(_MARKER.sub("", comment)))  # noqa: S704  # every tag in it is ours or escaped


def _ours_only(_: RendererHTML, tokens: Sequence[Token], place: int, *__: Any) -> str:
    """Keep the few tags that our comments use, and show other HTML as text."""
    raw = tokens[place].content
    kept, end = [], 0
    for found in _OURS.finditer(raw):
        kept += [str(escape(raw[end : found.start()])), found[0]]
        end = found.end()
    return "".join([*kept, str(escape(raw[end:]))])


def _image(renderer: RendererHTML, tokens: Sequence[Token], place: int, options: Any, env: Any) -> str:
    """Our own pictures, from wherever this page is read; nobody else's."""
    token, address = tokens[place], f"{settings().address}/"
    alt = escape(renderer.renderInlineAsText(token.children or [], options, env))
    source = str(token.attrGet("src"))
    path = source.removeprefix(address)
    if path == source or path.startswith("/"):  # an address that begins with two of them names another host
        return str(alt)
    return f'<img src="/{escape(path)}" alt="{alt}">'


_reader = MarkdownIt("commonmark", {"html": True}).enable("table")
_reader.add_render_rule("html_block", _ours_only)
_reader.add_render_rule("html_inline", _ours_only)
_reader.add_render_rule("image", _image)
_reader.add_render_rule("fence", scrolled_code)
_reader.add_render_rule("code_block", scrolled_code)


router = page_router()
MAX_HEADS = 20  # that are listed
MAX_COMPARED = 5  # heads with a column of their own
MAX_CASES = 40  # before all are asked for
_QUIET = (Outcome.STEADY, Outcome.NEW, Outcome.REMOVED)
# What an author acts on first.  A case that is quiet at the newest head moved at an earlier one.
_GRAVITY = (Outcome.INVALID, Outcome.FAILED, Outcome.REGRESSION, Outcome.INCONCLUSIVE, Outcome.IMPROVEMENT)


class Listed(StrEnum):
    """How many of the cases that moved are shown."""

    MOST_SEVERE = "gravest"
    ALL = "all"


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


@dataclass(frozen=True)
class LastPush:
    """What a head changed against the one before, in cases that were measured at both."""

    before: Revision
    fixed: int  # regressions, failures and wrong results that are gone
    still: int
    added: int


@router.get("/targets/{name}/pulls/{number}")
def pull_request(
    name: str,
    number: Annotated[int, Path(ge=1, le=2**31 - 1)],
    session: Reading,
    cases: Listed = Listed.MOST_SEVERE,
) -> str:
    """Show one pull request: its newest head on every device, the cases that moved, and its heads."""
    target = target_named(session, name)
    record = session.scalar(select(Pull).where(Pull.target_id == target.id, Pull.number == number))
    heads = _heads(session, target, number, record.head if record else None)
    if not heads:
        raise NotFound("measured pull request", number, f"/targets/{name} lists the latest.")
    newest = heads[0]
    reports = by_gravity([brief.brief(session, one.run.id).report for one in newest.glances.values()])
    compared = heads[:MAX_COMPARED]
    moved = _cases(session, compared)
    shown = moved if cases is Listed.ALL else moved[:MAX_CASES]
    pushes = [_push(compared, moved, place) for place in range(len(compared))]
    lines = {(report.device, line.row.provider, line.row.case): line for report in reports for line in lines_of(report)}
    evidence = {case: lines.get((case.device, case.provider, case.name.text)) for case in shown}
    return page(
        "pull.html",
        now=clock(session),
        target=target,
        number=number,
        heads=heads,
        compared=compared,
        pushes=pushes,
        evidence=evidence,
        axis=RatioAxis.of([line for line in evidence.values() if line]),
        strip=interval,
        times=times,
        comment=_comment(session, target, number),
        reports=reports,
        first=reports[0],
        heading=heading,
        next_step="" if _goes_on(reports[0].state) else as_html(next_step(reports[0])),
        baselines=_baselines(reports),
        cases=shown,
        left_out=len(moved) - len(shown),
        measured=any(one.run.state is RunState.DONE for head in compared for one in head.glances.values()),
        record=record,
        max_heads=MAX_HEADS,
        live=any(_goes_on(one.run.state) for one in newest.glances.values()),
    )


def _goes_on(state: RunState) -> bool:
    """Whether the run goes on without a person."""
    return state in OPEN_STATES and state is not RunState.HELD


def _baselines(reports: Sequence[Report]) -> list[tuple[Report, list[str]]]:
    """What the head was compared with, and on which devices."""
    found: dict[str, tuple[Report, list[str]]] = {}
    for report in reports:
        if report.baseline_sha:
            found.setdefault(report.baseline_sha, (report, []))[1].append(report.device)
    return list(found.values())


def _heads(session: Session, target: Target, number: int, newest: str | None) -> list[PullHead]:
    """The heads of a pull request, the newest first: a head that is measured again is not a new one."""
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
    pushed = sorted(
        by_revision.values(), key=lambda glances: (glances[0].run.revision.sha != newest, -glances[-1].run.id)
    )
    return [
        PullHead(glances[0].run.revision, {one.run.device: one for one in reversed(glances)})
        for glances in pushed[:MAX_HEADS]
    ]


def _cases(session: Session, heads: Sequence[PullHead]) -> list[PullCase]:
    """The cases that moved at any of these heads, those that are the most severe at the newest first."""
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


def _gravity(case: PullCase) -> tuple[int, float, str, str]:
    cell = case.newest
    place = _GRAVITY.index(cell.outcome) if cell and cell.outcome in _GRAVITY else len(_GRAVITY)
    return place, -((cell.ratio if cell else None) or 0.0), case.device, case.name.text


def _push(heads: Sequence[PullHead], moved: Sequence[PullCase], place: int) -> LastPush | None:
    """What this head changed; None where there is no head before, or no case was measured at both."""
    if place + 1 == len(heads):
        return None
    both = [(case.cells[place + 1], case.cells[place]) for case in moved]
    bad = [(before.outcome in ALARMING, now.outcome in ALARMING) for before, now in both if before and now]
    if not bad:
        return None
    before = heads[place + 1].revision
    return LastPush(before, bad.count((True, False)), bad.count((True, True)), bad.count((False, True)))


def _comment(session: Session, target: Target, number: int) -> str | None:
    """The id of the comment at the forge; None before it was sent."""
    return session.scalar(select(OutboxMessage.remote_id).where(OutboxMessage.key == f"comment:{target.id}:{number}"))
