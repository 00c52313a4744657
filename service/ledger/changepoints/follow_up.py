"""Follow up change points: explain them, start a bisection, and confirm or close them by its result.

A point is confirmed or closed once, and never reopened.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session, aliased

from kernels.cases import Role
from service.db.engine import clock, reading, transaction
from service.db.models import (
    WATCHED,
    Bisection,
    ChangePoint,
    Measurement,
    RegressionRow,
    Revision,
    Run,
    Series,
    Target,
    VerdictRow,
)
from service.domain.changepoints.matching import (
    HELD,
    MAX_REFUTED,
    SAME,
    PointMove,
    Sighting,
    by_event,
    is_exact,
    moves_of_same_machine,
    search_range,
)
from service.domain.policy.policy import Policy
from service.domain.regressions.lifecycle import KERNELWATCH
from service.domain.states import (
    OPEN_SEARCHES,
    BaselineKind,
    CellState,
    FoundBy,
    Outcome,
    PointReason,
    PointState,
    RegressionState,
    RunState,
    SearchState,
)
from service.errors import ServiceError
from service.ledger.bisections import bisections
from service.ledger.calibration.quarantines import quarantined
from service.ledger.changepoints.load import Mainline, mainline
from service.ledger.locking import backoff, lock, within_budget
from service.ledger.policies import effective
from service.ledger.regressions.transitions import Slower, open_one
from service.ledger.runs.revisions import recipe_of
from service.ledger.targets import on_device
from service.reports.words import cause_text


@dataclass(frozen=True)
class StepResult:
    """The verdict of one step of a bisection on one series."""

    run: Run
    sha: str
    ordinal: int
    since: int | None  # the ordinal of its baseline; None if that left the mainline
    verdict: VerdictRow


def settle(session: Session, rows: Sequence[ChangePoint]) -> None:
    """End the points whose bisection has ended; the others keep waiting."""
    for row in rows:
        search = session.get_one(Bisection, row.bisection_id)
        if search.state not in OPEN_SEARCHES:
            _settle(session, row, search)


def close(row: ChangePoint, code: PointReason, **args: Any) -> None:
    set_state(row, PointState.CLOSED, code, **args)


def set_state(row: ChangePoint, state: PointState, code: PointReason, **args: Any) -> None:
    """Set the state of a point and the reason for it."""
    row.state, row.reason_code, row.reason_args = state, code.value, args


def _settle(session: Session, row: ChangePoint, search: Bisection) -> None:
    steps = _steps(session, search, row)
    slow = [step for step in steps if step.verdict.outcome == Outcome.REGRESSION.value]
    steady = _not_repeating(session, search, row, steps)
    if search.state in (SearchState.FOUND, SearchState.RANGE) and slow:
        # The step that proves the culprit, or else the earliest revision that was slower than the good end.
        evidence = next((step for step in slow if step.sha == search.culprit), slow[0])
        regression = _regression(session, search, row, evidence)
        row.regression_id = regression.id
        set_state(row, PointState.CONFIRMED, PointReason.REGRESSION, regression=regression.id, bisection=search.id)
    elif search.state is not SearchState.STOPPED and steady:
        row.refuted_scans = max(row.refuted_scans, 1)
        close(row, PointReason.NOT_REPEATED, bisection=search.id, sessions=len(steady))
    else:  # a person may decide, or bisect again
        ended = search.reason or search.state.value
        set_state(row, PointState.OPEN, PointReason.INCONCLUSIVE, bisection=search.id, said=ended)


def _not_repeating(
    session: Session, search: Bisection, row: ChangePoint, steps: Sequence[StepResult]
) -> list[StepResult]:
    """The steady steps that would be slower if the point were of the code.

    Before the point, and between two revisions after it, a real step is steady as well.  The bisection goes there if it
    is of another series of the incident.  Only the bad end has all of a leak.
    """
    place, before = (session.get_one(Revision, revision_id).ordinal for revision_id in (row.revision_id, row.before_id))
    if place is None:
        return []
    last = place - 1 if before is None else before
    return [
        step
        for step in steps
        if step.verdict.outcome == Outcome.STEADY.value
        if step.since is not None and step.since <= last
        if (step.sha == search.bad if row.course else step.ordinal >= place)
    ]


def _steps(session: Session, search: Bisection, row: ChangePoint) -> list[StepResult]:
    """The results of a bisection's steps at the point's series, in the order of the mainline."""
    base = aliased(Revision)
    against = and_(base.target_id == Run.target_id, base.sha == func.coalesce(VerdictRow.baseline, Run.baseline))
    rows = session.execute(
        select(Run, Revision.sha, Revision.ordinal, base.ordinal, VerdictRow)
        .join(Revision, Revision.id == Run.revision_id)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .outerjoin(base, against)
        .where(Run.bisection_id == search.id, Run.state == RunState.DONE, Revision.ordinal.is_not(None))
        .where(
            VerdictRow.provider == row.provider,
            VerdictRow.case == row.case,
            VerdictRow.baseline_kind == BaselineKind.PARENT,
        )
        .order_by(Revision.ordinal, Run.id.desc())
    )
    return [StepResult(run, sha, ordinal or 0, since, verdict) for run, sha, ordinal, since, verdict in rows]


def _regression(session: Session, search: Bisection, row: ChangePoint, step: StepResult) -> RegressionRow:
    """The regression that the step showed: the stored one, or a new one."""
    stored = session.scalar(
        select(RegressionRow)
        .join(Run, Run.id == RegressionRow.run_id)
        .where(Run.revision_id == step.run.revision_id, RegressionRow.series_id == row.series_id)
        .order_by(RegressionRow.id.desc())
        .limit(1)
    )
    if stored is not None:
        return stored
    verdict = step.verdict
    slower = Slower(
        row.provider,
        row.case,
        verdict.ratio or row.ratio,
        verdict.low,
        verdict.high,
        verdict.cause_kind,
        cause_text(verdict),
    )
    return open_one(
        session,
        step.run,
        slower,
        found_by=FoundBy.HISTORY,
        good=search.good,
        culprit=search.culprit if step.sha == search.culprit else None,
        words=search.reason,
    )


log = structlog.get_logger()

LATELY_S = 7 * 86_400.0  # older points of other targets say nothing about the machine now
UNEXPLAINED = (PointState.OPEN, PointState.CHECKING)
Pair = tuple[int, str]  # target and device


def policy_of(session: Session, target: Target, device: str) -> Policy:
    """The policy of a target on a device, as it is now."""
    _, recipe = recipe_of(session, target)
    return effective(recipe, device)


def follow_due() -> None:
    """Follow up every unexplained point: there may be budget for a bisection now, or a regression was dismissed.

    Any number of processes may run this at the same time.
    """
    _follow_all(lambda session: _with_points(session, ChangePoint.state.in_(UNEXPLAINED)))


def follow_scanned(scanned: Collection[Pair]) -> None:
    """Follow up the points of what was just scanned, and those whose bisection has ended."""

    def pairs(session: Session) -> set[Pair]:
        over = select(Bisection.id).where(Bisection.state.not_in(OPEN_SEARCHES))
        ended = ChangePoint.state == PointState.CHECKING, ChangePoint.bisection_id.in_(over)
        return _with_points(session, *ended) | {*scanned}

    _follow_all(pairs)


def _with_points(session: Session, *which: ColumnElement[bool]) -> set[Pair]:
    pairs = select(Series.target_id, Series.device).join(ChangePoint.series)
    rows = session.execute(pairs.where(*which).distinct())
    return {(target_id, device) for target_id, device in rows}


def _follow_all(which: Callable[[Session], set[Pair]]) -> None:
    with reading() as session:
        due = list(which(session))
    random.shuffle(due)  # else the last ones would never have their turn where there are too many
    for target_id, device in within_budget(due):
        key = "points", target_id, device
        if backoff.should_skip(key):
            continue
        try:
            with transaction() as session:
                follow(session, session.get_one(Target, target_id), device)
            backoff.succeeded(key)
        except Exception:  # the failure of one target must not stop the others
            backoff.failed(key)
            log.exception("follow-up of change points failed", target=target_id, device=device)


def follow(session: Session, target: Target, device: str) -> None:
    """Explain the points of a target on a device, end those whose bisection has ended, and start bisections."""
    lock(session, target.id)
    rows = session.scalars(
        select(ChangePoint)
        .join(ChangePoint.series)
        .where(on_device(target.id, device), ChangePoint.state.in_(UNEXPLAINED))
        .order_by(ChangePoint.id)
        .execution_options(populate_existing=True)
    ).all()
    if not rows:
        return
    measured = mainline(session, target.id, device)
    for row in rows:
        if row.revision_id not in measured.place_of:
            close(row, PointReason.REWRITTEN)
    settle(session, [row for row in rows if row.state is PointState.CHECKING])
    _explain_slower(session, measured, [row for row in _open(rows) if row.ratio > 1])
    _explain_faster(session, measured, [row for row in _open(rows) if row.ratio < 1])
    _search_all(session, target, measured, [row for row in _open(rows) if row.ratio > 1 and row.reason_code is None])


def _open(rows: Sequence[ChangePoint]) -> list[ChangePoint]:
    return [row for row in rows if row.state is PointState.OPEN]


# -- explained


def _explain_slower(session: Session, measured: Mainline, rows: Sequence[ChangePoint]) -> None:
    """Explain points by a regression of the same series within `SAME` places, whichever comparison found it."""
    if not rows:
        return
    ordinals = [run.ordinal for run in measured.line]
    regressions: dict[int, list[tuple[int, RegressionRow]]] = {}  # by series
    for row, ordinal in session.execute(
        select(RegressionRow, Revision.ordinal)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(on_device(measured.target_id, measured.device), Revision.ordinal.is_not(None))
        .order_by(RegressionRow.id)
    ):
        regressions.setdefault(row.series_id, []).append((bisect_left(ordinals, ordinal or 0), row))
    for point in rows:
        place = measured.place_of[point.revision_id]
        for at, regression in regressions.get(point.series_id, ()):
            if abs(at - place) <= SAME:
                point.regression_id = regression.id
                if regression.state is RegressionState.DISMISSED:
                    why = {"why": regression.reason} if regression.reason else {}
                    close(point, PointReason.DISMISSED, regression=regression.id, **why)
                else:
                    set_state(point, PointState.CONFIRMED, PointReason.REGRESSION, regression=regression.id)


def _explain_faster(session: Session, measured: Mainline, rows: Sequence[ChangePoint]) -> None:
    """Confirm points by an improvement that a comparison found, or by a level that was held; never bisect them."""
    if not rows:
        return
    slower = _slower_places(session, measured, {row.series_id for row in rows})
    near = {
        run.revision_id
        for row in rows
        for run in measured.line[max(0, measured.place_of[row.revision_id] - SAME) :][: 2 * SAME + 1]
    }
    seen = session.execute(
        select(VerdictRow.provider, VerdictRow.case, Run.revision_id, Run.id)
        .join(Run, Run.id == VerdictRow.run_id)
        .where(Run.device == measured.device, Run.revision_id.in_(near), WATCHED)
        .where(VerdictRow.baseline_kind == BaselineKind.PARENT, VerdictRow.outcome == Outcome.IMPROVEMENT.value)
    ).all()
    for row in rows:
        place = measured.place_of[row.revision_id]
        runs = [
            run_id
            for provider, case, revision_id, run_id in seen
            if (provider, case) == row.name and abs(measured.place_of[revision_id] - place) <= SAME
        ]
        if runs:
            set_state(row, PointState.CONFIRMED, PointReason.IMPROVEMENT, run=max(runs))
        elif _is_held(row) and not any(place < at <= place + HELD for at in slower.get(row.series_id, ())):
            set_state(row, PointState.CONFIRMED, PointReason.HELD, revisions=HELD)


def _is_held(row: ChangePoint) -> bool:
    """Whether a scan found it when more than `HELD` revisions had followed, and no later scan contradicts it."""
    return row.followed_by is not None and row.followed_by > HELD and not row.refuted_scans


def _slower_places(session: Session, measured: Mainline, series: Collection[int]) -> dict[int, list[int]]:
    """The places at which each series became slower, without those that later values contradicted."""
    rows = session.execute(
        select(ChangePoint.series_id, ChangePoint.revision_id)
        .where(ChangePoint.series_id.in_(series), ChangePoint.ratio > 1)
        .where(ChangePoint.refuted_scans < MAX_REFUTED)
    )
    places: dict[int, list[int]] = {}
    for series_id, revision_id in rows:
        if (place := measured.place_of.get(revision_id)) is not None:
            places.setdefault(series_id, []).append(place)
    return places


# -- bisected


def _search_all(session: Session, target: Target, measured: Mainline, rows: Sequence[ChangePoint]) -> None:
    """Start a bisection for each incident if the policy and the daily budget allow it; otherwise the incident waits."""
    if not rows:
        return
    policy = policy_of(session, target, measured.device)
    names = {row.name for row in rows}
    silent = quarantined(session, target.id, measured.device, policy, names)
    for group in grouped(measured, [row for row in rows if row.name not in silent]):
        if others := _also_moved(session, target, measured, group):
            for row in group:
                close(row, PointReason.MACHINE, targets=others)
        elif bisections.may_start(session, target, policy):
            _search(session, target, measured, group)


def grouped(measured: Mainline, rows: Sequence[ChangePoint]) -> list[list[ChangePoint]]:
    """Group points of many cases into events."""
    ordered = sorted(rows, key=lambda row: (row.provider, row.case))
    return by_event(ordered, lambda row: _sighting(measured, row))


def _sighting(measured: Mainline, row: ChangePoint) -> Sighting:
    place = measured.place_of[row.revision_id]
    before = measured.place_of.get(row.before_id, place - 1)
    if row.course:
        return Sighting(before, measured.place_of_sha.get(row.course[-1]["revision"], place), leak=True)
    return Sighting(before, place, exact=row.revisions is not None and is_exact(row.low, row.high, row.revisions))


def _search(session: Session, target: Target, measured: Mainline, group: Sequence[ChangePoint]) -> None:
    seen = [_sighting(measured, row) for row in group]
    before, last = min(sighting.before for sighting in seen), max(sighting.last for sighting in seen)
    revisions = session.scalars(
        select(ChangePoint.revision_id)
        .where(ChangePoint.series_id.in_({row.series_id for row in group}))
        .where(ChangePoint.refuted_scans == 0, ChangePoint.id.not_in([row.id for row in group]))
    )
    others = [measured.place_of[revision] for revision in revisions if revision in measured.place_of]
    good, bad = search_range(before, last, len(measured.line) - 1, others)
    cases = sorted({row.case for row in group})
    try:
        search = bisections.start(
            session,
            target,
            measured.device,
            measured.line[good].sha,
            measured.line[bad].sha,
            cases,
            asked_by=KERNELWATCH,
        )
    except ServiceError as refusal:
        for row in group:
            set_state(row, PointState.OPEN, PointReason.NOT_BISECTABLE, said=str(refusal))
        return
    for row in group:
        row.bisection_id = search.id
        set_state(row, PointState.CHECKING, PointReason.BISECTION, bisection=search.id)


# -- the machine


def _also_moved(session: Session, target: Target, measured: Mainline, group: Sequence[ChangePoint]) -> list[str]:
    """The other targets that changed on the same machine within the same hours as this incident."""
    since = clock(session) - LATELY_S
    rows = session.scalars(
        select(ChangePoint)
        .join(ChangePoint.series)
        .where(Series.device == measured.device, Series.target_id != target.id)
        .where(ChangePoint.ratio > 1, ChangePoint.state != PointState.CONFIRMED, ChangePoint.found_at >= since)
    ).all()
    others: list[PointMove] = []
    for other_id in sorted({row.target_id for row in rows}):
        other, theirs = session.get_one(Target, other_id), mainline(session, other_id, measured.device)
        placed = [row for row in rows if row.target_id == other_id and row.revision_id in theirs.place_of]
        others += [_move(session, other, theirs, group) for group in grouped(theirs, placed)]
    if not others:
        return []
    return sorted({move.target for move in moves_of_same_machine(_move(session, target, measured, group), others)})


def _move(session: Session, target: Target, measured: Mainline, group: Sequence[ChangePoint]) -> PointMove:
    place = min(measured.place_of[row.revision_id] for row in group)
    after, before = measured.line[place], measured.line[max(0, place - 1)]
    series = session.scalar(
        select(func.count())
        .select_from(Measurement)
        .where(Measurement.run_id == after.run_id, Measurement.role == Role.HEAD.value)
        .where(Measurement.state == CellState.MEASURED)
    )
    return PointMove(target.name, after.worker, before.at, after.at, len(group), series or 0)
