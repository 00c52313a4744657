"""One run: its result, its cases as a table, one case by itself, and its compiled code."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import geometric_mean
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards import kernel_code
from dashboards.change_pictures import draw
from dashboards.pages import controls, pulls
from dashboards.rendering import page, page_router
from dashboards.runs import facts
from dashboards.runs.evidence import evidence
from dashboards.runs.filters import CaseFilters, filtered, offered
from dashboards.runs.lines import (
    FOLDED,
    KINDS,
    CaseLine,
    LineSort,
    geomean_of,
    groups_of,
    late_groups,
    lines_of,
)
from dashboards.runs.strips import RatioAxis, dot_plot, interval, rounds_figure, tick_marks
from kernels.cases import Role
from service.api.access import Reading
from service.api.common import PRIVATE, Key, tagged
from service.db.engine import clock
from service.db.models import OutboxMessage, RegressionRow, Run
from service.domain.codefacts.comparison import MAX_COMPARED, MAX_EDITS
from service.domain.codefacts.texts import NAMES
from service.domain.forges import pull_noun
from service.domain.phases import seconds_by_phase
from service.domain.states import OPEN_STATES, OutboxState, RegressionState, RunState
from service.errors import NotFound
from service.ledger import stored_texts
from service.ledger.reading import brief, queries
from service.ledger.reading.queries import Glance
from service.ledger.runs import queue
from service.reports import markdown, notes
from service.reports.change_picture import change_picture
from service.reports.comment_head import heading, next_step
from service.reports.encoders import csv_text

router = page_router()
_PICTURE_KEPT = "public, max-age=86400, immutable"  # its address names the run and what is drawn
MAX_UNFOLDED = 60  # lines that a filter left are shown without their folds
_COMMENT_STATES = {
    OutboxState.SENT: "Comment on the {}",
    OutboxState.WAITING: "Comment on the {}, not sent yet",
}

_WORDS: dict[str, Any] = {
    "kind_words": KINDS,
    "late_groups": late_groups,
    "strip": interval,
    "ticks": tick_marks,
}
_Word = Annotated[str, Query(max_length=120)]


def _filters(
    outcome: _Word = "",
    op: _Word = "",
    direction: _Word = "",
    rows: _Word = "",
    metric: _Word = "",
    provider: _Word = "",
    q: _Word = "",
    sort: LineSort = LineSort.RELEVANCE,
    unfold: Annotated[list[str] | None, Query(max_length=60)] = None,
) -> CaseFilters:
    """The state of the table, from the address."""
    return CaseFilters(outcome, op, direction, rows, metric, provider, q.strip(), sort, tuple(unfold or ()))


Filters = Annotated[CaseFilters, Depends(_filters)]


@router.get("/runs/{run_id}")
def run(run_id: Key, session: Reading, filters: Filters) -> str:
    """Show one run: its result, the next step, and its cases."""
    read = brief.brief(session, run_id)
    whole, found = read.run, read.report
    every = lines_of(found)
    lines = filtered(every, filters)
    groups = groups_of(lines, every, filters.sort, _unfolded(filters, lines))
    whole_groups = groups if not filters.active else groups_of(every, every)
    heads = [line.row.head for line in every if line.row.head]
    waiting = whole.state in (RunState.QUEUED, RunState.LEASED)
    return page(
        "run.html",
        now=clock(session),
        run=whole,
        report=found,
        heading=heading(found),
        lines=every,
        shown=lines,
        sections=[(kind, list(some)) for kind, some in groupby(groups, key=lambda group: group.kind)],
        with_rates=any(head.gb_s for head in heads),
        with_ceiling=any(head.speed.copy_share or head.speed.utilisation or head.speed.l2_resident for head in heads),
        several_providers=len({line.row.provider for line in every}) > 1,
        **_WORDS,
        filters=filters,
        offered=offered(every, filters, found.sota),
        axis=RatioAxis.of(every),
        dots=[
            dot_plot(every, whole_groups, width, height, [said for _, said in found.tally], to)
            for width, height, to in ((1216, 118, f"/runs/{run_id}"), (340, 96, ""))  # a phone's are too small to touch
        ],
        geomean=geomean_of(every),
        incidents=_incidents(read.regressions, every),
        next_step=pulls.as_html(next_step(found)),
        control=control_words(every),
        place=queue.places(session).get(run_id) if waiting else None,
        ahead=queries.ahead_of(session, whole) if whole.state is RunState.QUEUED else None,
        build_log=stored_texts.log_characters(session, run_id),
        comment_state=_comment_state(session, whole, messages := _messages(session, whole)),
        messages=messages,
        without_sota=notes.without_sota(found) or notes.functions_alone(found),
        provisional=notes.provisional(found),
        second_session=notes.second_session(found),
        live=whole.state in OPEN_STATES,
        controls=controls.forms_of_run(whole),
        others=_others(session, whole),
        stack_change=queries.stack_change(session, whole),
        limits=markdown.limits(found),
        ceilings=markdown.ceilings(found),
    )


@router.get("/runs/{run_id}/cases/{case:path}")
def run_case(
    run_id: Key, case: str, session: Reading, provider: Annotated[str | None, Query(max_length=80)] = None
) -> str:
    """Show one case of a run: verdict, facts of both sides, every round, and how to measure it again."""
    read = brief.of_case(session, run_id, case, provider)
    whole, found = read.run, read.report
    line = lines_of(found)[0]
    samples = brief.samples_of_case(session, run_id, case)
    timed = [one for one in samples if one.provider == line.row.provider or one.role in brief.OTHERS]
    return page(
        "run_case.html",
        now=clock(session),
        run=whole,
        report=found,
        line=line,
        row=line.row,
        source=line.row.source,
        sides=facts.sides(line.row),
        code_sides=kernel_code.sides_of(stored_texts.at_case(session, whole, case), line.row.provider),
        **_WORDS,
        figure=rounds_figure(case, timed),
    )


@router.get("/runs/{run_id}/cases.csv")
def run_cases_csv(request: Request, run_id: Key, session: Reading, filters: Filters) -> Response:
    """The lines that the table shows, as CSV."""
    lines = _exported(session, run_id, filters)
    records = [_record(line) for line in lines]
    names = list(records[0]) if records else ["case", "provider", "outcome"]
    answer = tagged(request, csv_text(names, (one.values() for one in records)), "text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = f'attachment; filename="run-{run_id}.csv"'
    return answer


@router.get("/runs/{run_id}/cases.json")
def run_cases_json(request: Request, run_id: Key, session: Reading, filters: Filters) -> Response:
    """The lines that the table shows, as JSON; the API has everything that was measured."""
    lines = _exported(session, run_id, filters)
    return tagged(request, json.dumps([_record(line) for line in lines]), "application/json")


@router.get("/runs/{run_id}/comment")
def run_comment(run_id: Key, session: Reading) -> str:
    """Show the comment that the pull request gets, and what became of it."""
    whole = queries.whole_run(session, run_id)
    reports = queries.pull_reports(session, whole) if whole.pull is not None else (queries.report_on(session, whole),)
    comment = markdown.comment(*reports)
    messages = _messages(session, whole)
    return page(
        "run_comment.html",
        run=whole,
        heading=_comment_state(session, whole, messages),
        comment=comment,
        comment_html=pulls.as_html(comment),
        messages=messages,
    )


@router.get("/runs/{run_id}/changes.svg", response_model=None)
def run_changes(
    request: Request, run_id: Key, session: Reading, version: Annotated[str, Query(alias="v", max_length=20)] = ""
) -> Response:
    """Return the picture of the comment: what changed in a run.  Raises NotFound where nothing did."""
    report = queries.found_in(session, run_id)
    picture = change_picture(report)
    if picture is None:
        raise NotFound("picture of run", run_id, "No case of it changed.")
    kept = _PICTURE_KEPT if report.public and version == picture.version else PRIVATE
    return tagged(request, draw(picture).__html__(), "image/svg+xml; charset=utf-8", caching=kept)


@router.get("/runs/{run_id}/telemetry")
def run_telemetry(run_id: Key, session: Reading) -> str:
    """Show the state of the device during the run, its attempts and its stack."""
    whole = queries.whole_run(session, run_id)
    found = queries.report_on(session, whole)
    return page(
        "run_telemetry.html",
        now=clock(session),
        run=whole,
        report=found,
        attempts=queries.attempts(session, run_id),
        board=facts.board(found.telemetry),
        phases=seconds_by_phase(found.telemetry),
        trials=facts.trials(found.telemetry),
        others=facts.rest(found.telemetry),
    )


@router.get("/runs/{run_id}/unsupported")
def run_unsupported(run_id: Key, session: Reading) -> str:
    """List the cases that a provider of the head does not support, with the reasons."""
    read = brief.brief(session, run_id)
    return page("run_unsupported.html", run=read.run, report=read.report)


def control_words(lines: Sequence[CaseLine]) -> str:
    """`95 of 100 A/A controls within 0.88 %`; empty without controls."""
    sizes = sorted(abs(line.row.control_ratio - 1) for line in lines if line.row.control_ratio)
    if len(sizes) < 2:
        return ""
    within = sizes[max(0, round(0.95 * len(sizes)) - 1)]
    return f"95 of 100 A/A controls within {within * 100:.2f} %"


def _unfolded(filters: CaseFilters, lines: Sequence[CaseLine]) -> tuple[str, ...]:
    """What a filter left is what the reader asked for: it is not folded, if it is not too long."""
    narrow = filters.q or filters.outcome in {kind.value for kind in FOLDED}
    return ("all",) if narrow and len(lines) <= MAX_UNFOLDED else filters.unfold


@dataclass(frozen=True)
class IncidentLine:
    """What a run recorded as one event: its regressions, the largest first, and the lines of their cases."""

    regressions: tuple[RegressionRow, ...]
    lines: tuple[CaseLine, ...]

    @property
    def first(self) -> RegressionRow:
        """The one whose state needs a person first."""
        return min(self.regressions, key=lambda row: list(RegressionState).index(row.state))

    @property
    def geomean(self) -> float:
        return geometric_mean(row.ratio for row in self.regressions)

    @property
    def assignees(self) -> list[str]:
        return sorted({row.assignee for row in self.regressions if row.assignee})

    @property
    def culprits(self) -> list[str]:
        return sorted({row.culprit for row in self.regressions if row.culprit})

    @property
    def behind(self) -> int:
        return sum(line.row.behind for line in self.lines)

    @property
    def behind_before(self) -> int:
        return sum(line.behind_before for line in self.lines)


def _incidents(regressions: Sequence[RegressionRow], lines: Sequence[CaseLine]) -> list[IncidentLine]:
    """The events that a run recorded, the largest first."""
    of_case = {(line.row.provider, line.row.case): line for line in lines}
    found: dict[int, list[RegressionRow]] = {}
    for row in sorted(regressions, key=lambda one: -one.ratio):
        found.setdefault(row.incident_id or -row.id, []).append(row)
    return [
        IncidentLine(tuple(rows), tuple(of_case[row.name] for row in rows if row.name in of_case))
        for rows in sorted(found.values(), key=lambda rows: -len(rows))
    ]


def _exported(session: Session, run_id: int, filters: CaseFilters) -> list[CaseLine]:
    every = lines_of(brief.brief(session, run_id).report)
    groups = groups_of(filtered(every, filters), every, filters.sort)
    return [line for group in groups for line in group.lines]


def _record(line: CaseLine) -> dict[str, Any]:
    row, head, parent = line.row, line.row.head, line.row.parent
    sota = row.sota
    return {
        "case": row.case,
        "provider": row.provider,
        "outcome": row.outcome.value,
        "says": line.kind.value,
        "baseline": parent.median if parent else None,
        "head": head.median if head else None,
        "unit": row.metric.unit,
        "ratio": row.ratio,
        "low": row.low,
        "high": row.high,
        "gb_s": head.gb_s if head else None,
        "copy_share": head.speed.copy_share if head else None,
        "sota": sota.provider if sota else None,
        "to_sota": sota.ratio if sota else None,
        "behind_sota": row.behind,
        "control": row.control_ratio,
        "cause": row.cause_words,
        "reason": row.reason,
    }


def _messages(session: Session, whole: Run) -> Sequence[OutboxMessage]:
    """Return the messages of this run, and the comment of its pull request, whichever run wrote it last."""
    of_run = OutboxMessage.run_id == whole.id
    of_pull = OutboxMessage.key == f"comment:{whole.target_id}:{whole.pull}"
    return session.scalars(select(OutboxMessage).where(of_run | of_pull).order_by(OutboxMessage.id)).all()


def _comment_state(session: Session, whole: Run, messages: Sequence[OutboxMessage]) -> str:
    """Return a heading for the comment that says whether the pull request shows it."""
    comment = next((one for one in messages if one.kind == "comment"), None)
    # A newer head of the pull request takes the comment over.
    if (
        comment is None
        or comment.run_id is None
        or session.get_one(Run, comment.run_id).revision_id != whole.revision_id
    ):
        return "Preview of the comment"
    return _COMMENT_STATES.get(comment.state, "Preview of the comment").format(pull_noun(whole.target.forge_kind))


def _others(session: Session, whole: Run) -> list[Glance]:
    """Return the other runs of the revision, on this and other devices."""
    return [
        one for one in queries.glances(session, queries.runs_of(session, whole.revision_id)) if one.run.id != whole.id
    ]


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
    sides = kernel_code.sides_of(stored_texts.at_case(session, run, case), provider)
    if not any(one.kind == kind for one in (*sides.before, *sides.after)):
        raise NotFound(NAMES[kind], f"of {case[:120]} in run {run_id}", "Equal code is not stored.")
    found, more = kernel_code.differences(sides, kind, lambda ids: stored_texts.texts(session, ids))
    rows = queries.report_on(session, run).rows if sides.baseline is Role.PARENT else ()  # with which rows compare
    row = next((one for one in rows if (one.case, one.provider) == (case, provider)), None)
    return page(
        "run_code.html",
        run=run,
        case=case,
        provider=provider,
        kind=kind,
        kind_names=NAMES,
        sides=sides,
        row=row,
        evidence=evidence(row, facts.sides(row)) if row else [],
        kernels=found,
        more=more,
        max_compared=MAX_COMPARED,
        max_edits=MAX_EDITS,
    )
