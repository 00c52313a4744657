"""What one run measured of a target and of other providers: the rows of the board, and what badges say."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, String, bindparam, case, func, null, select
from sqlalchemy.orm import Session, aliased

from kernels.cases import Metric, Role
from service.db.engine import clock
from service.db.models import (
    WATCHED,
    Gap,
    Measurement,
    RegressionRow,
    Revision,
    Run,
    RunTotals,
    Series,
    Target,
    VerdictRow,
)
from service.db.paging import distinct
from service.domain import roofline
from service.domain.metrics import split_metric
from service.domain.policy.policy import Policy
from service.domain.states import OPEN_REGRESSIONS, BaselineKind, Outcome, Purpose, RunState
from service.errors import NotFound
from service.ledger.policies import effective
from service.ledger.reading import queries
from service.ledger.reading.revisions import named
from service.ledger.reading.runs import CaseFilter
from service.reports.charts.board import BoardCase, BoardRun, Since, Timed
from service.reports.feeds.badges import SotaFacts, StatusFacts
from service.reports.report import readable

_OTHERS = (Role.SOTA.value, Role.RIVAL.value)
_LATEST = 20  # runs of a device, one of which compared with SOTA if any does
_CANDIDATES = 8  # revisions that are read for each of the past ones that are shown: not all were measured


def _ended(device: ColumnElement[str]) -> ColumnElement[bool]:
    done = aliased(Run)
    of_mainline = (done.target_id == bindparam("target_id"), done.state == RunState.DONE)
    watched = (done.purpose == Purpose.WATCH, done.pull.is_(None))
    return select(done.id).where(*of_mainline, *watched, done.device == device).limit(1).exists()


# Statements are made once: making one takes longer than the database needs for it.
_MEASURED_DEVICES = distinct(Run.device, Run.target_id == bindparam("target_id"), only=_ended)


def measured_devices(session: Session, target: Target) -> Sequence[str]:
    """The devices on which a run of the mainline ended."""
    return session.scalars(_MEASURED_DEVICES, {"target_id": target.id}).all()


def newest_compared(session: Session, target_ids: Sequence[int]) -> Sequence[RunTotals]:
    """The totals of the newest mainline run of each target and device that compared with SOTA, by device."""
    on = func.min(RunTotals.device)
    first = select(on).where(RunTotals.target_id == Target.id).correlate(Target).scalar_subquery()
    places = select(Target.id.label("target_id"), first.label("device")).where(Target.id.in_(target_ids))
    pairs = places.cte("pairs", recursive=True)
    later = select(on).where(RunTotals.target_id == pairs.c.target_id, RunTotals.device > pairs.c.device)
    following = select(pairs.c.target_id, later.correlate(pairs).scalar_subquery()).where(pairs.c.device.is_not(None))
    pairs = pairs.union_all(following)
    done = (Run.target_id == pairs.c.target_id, Run.device == pairs.c.device, Run.state == RunState.DONE, WATCHED)
    latest = select(Run.id).where(*done).order_by(Run.id.desc()).limit(_LATEST).correlate(pairs)
    newest = select(func.max(RunTotals.run_id)).where(RunTotals.run_id.in_(latest), RunTotals.sota_cases > 0)
    statement = select(newest.correlate(pairs).scalar_subquery()).where(pairs.c.device.is_not(None))
    ids = [run_id for run_id in session.scalars(statement) if run_id is not None]
    return session.scalars(select(RunTotals).where(RunTotals.run_id.in_(ids)).order_by(RunTotals.device)).all()


def limit_to_sota(target: Target, device: str) -> tuple[str, float]:
    """The provider that is SOTA on a device, and the ratio to it above which a case is behind."""
    recipe = readable(target.recipe.text) if target.recipe else None
    policy = effective(recipe, device) if recipe else Policy()
    return (recipe.sota_on(device) if recipe else None) or "SOTA", 1 + policy.behind_sota


@dataclass(frozen=True)
class PastRun:
    """A revision of the mainline with its geometric mean against SOTA."""

    revision: str
    committed_at: float
    ordinal: int  # place on the mainline
    geomean: float
    pinned: str | None  # the release, or another pinned baseline, that it was compared with


def past(session: Session, target: Target, device: str, count: int, also: str = "") -> list[PastRun]:
    """About so many measured revisions at even distances, the oldest first, and the newest included.

    They are of the whole mainline, or of its newest part where the device is new to it.  Pinned baselines and the
    revision `also` are included.
    """
    candidates = _CANDIDATES * count
    every = _compared(session, target, device, queries.spread_places(session, target, candidates).where)
    if len(every) < count:
        recent = _compared(session, target, device, queries.newest_places(session, target, candidates).where)
        every = max(every, recent, key=len)
    step = max(1, -(-len(every) // count))
    named_ones = {run.pinned for run in every if run.pinned} | {also}
    marked = _compared(session, target, device, Revision.sha.in_(named_ones) & Revision.ordinal.is_not(None))
    by_place = {run.ordinal: run for run in [*every[::step], *marked]}
    return [by_place[place] for place in sorted(by_place)]


_MEASURED = (
    select(Revision.sha)
    .join(Run, Run.revision_id == Revision.id)
    .where(Revision.target_id == bindparam("target_id"), Run.device == bindparam("device"))
    .where(Run.state == RunState.DONE, WATCHED)
    .limit(1)
)
_BEFORE = _MEASURED.where(Revision.ordinal < bindparam("ordinal")).order_by(Revision.ordinal.desc())
_AFTER = _MEASURED.where(Revision.ordinal > bindparam("ordinal")).order_by(Revision.ordinal)


def neighbours(session: Session, target: Target, device: str, ordinal: int) -> tuple[str, str]:
    """The measured revisions before and after a place of the mainline; empty where there is none."""
    place = {"target_id": target.id, "device": device, "ordinal": ordinal}
    return session.scalar(_BEFORE, place) or "", session.scalar(_AFTER, place) or ""


_COMPARED = (
    select(Revision.sha, Revision.committed_at, Revision.ordinal, Run.pinned, RunTotals.sota_log, RunTotals.sota_cases)
    .select_from(Revision)
    .join(Run, (Run.revision_id == Revision.id) & (Run.device == bindparam("device")) & WATCHED)
    .join(RunTotals, RunTotals.run_id == Run.id)
    .where(Revision.target_id == bindparam("target_id"), RunTotals.sota_cases > 0)
    .order_by(Revision.ordinal.desc(), Run.id.desc())
)


def _compared(session: Session, target: Target, device: str, places: ColumnElement[bool]) -> list[PastRun]:
    """The runs of revisions at these places that compared with SOTA, the newest first."""
    rows = session.execute(_COMPARED.where(places), {"target_id": target.id, "device": device})
    return [
        PastRun(sha, at, ordinal, math.exp(log / cases), pinned)
        for sha, at, ordinal, pinned, log, cases in rows
        if ordinal is not None
    ]


def board(session: Session, target: Target, device: str, revision: str = "") -> BoardRun:
    """The times of the newest run of the mainline, or of a revision.

    A revision of the mainline that was not measured on the device has the board of the nearest earlier one.
    Raises NotFound.
    """
    run, instead_of = _run(session, target, device, revision)
    times = _times(session, run.id)
    of_kernels = {case: own_times for case, own_times in times.items() if split_metric(case)[1] is Metric.KERNEL}
    of_blocks = {case: own_times for case, own_times in times.items() if split_metric(case)[1] is Metric.BLOCK}
    rows = session.execute(_VERDICTS, {"run_id": run.id})
    verdicts = {(provider, name): (ratio, behind) for provider, name, ratio, behind in rows}
    since = _behind_since(session, target, device, run.ordinal)
    best = roofline.ceilings({"ceilings": run.ceilings})
    cases, blocks = (
        [
            BoardCase(
                provider,
                case,
                own,
                own_times.others,
                provider in own_times.in_cache,
                *verdicts.get((provider, case), (None, False)),
                since.get((provider, case)),
            )
            for case, own_times in some.items()
            for provider, own in own_times.own.items()
        ]
        for some in (of_kernels, of_blocks)
    )
    return BoardRun(
        run_id=run.id,
        revision=run.sha,
        subject=run.subject,
        committed_at=run.committed_at,
        ordinal=run.ordinal,
        copy_gb_s=best.get("copy_gb_s"),
        matmul_tflop_s=best.get("matmul_tflop_s"),
        l2_bytes=roofline.l2_bytes({"device": run.device_facts}),
        cases=cases,
        blocks=blocks,
        instead_of=instead_of,
        of_functions=_of_functions(target),
    )


def _of_functions(target: Target) -> dict[str, roofline.Work]:
    """The least work of the functions of the recipe, by case, where it has formulas of bytes and of operations."""
    recipe = readable(target.recipe.text) if target.recipe else None
    cases = [one.case(text) for one in (recipe.function if recipe else ()) for text in one.cases]
    return {str(case): roofline.Work(case.flops, case.least_bytes) for case in cases if case.flops and case.least_bytes}


@dataclass(frozen=True)
class _CaseTimes:
    """The times of a case, by provider."""

    own: dict[str, Timed] = field(default_factory=dict)
    others: dict[str, Timed] = field(default_factory=dict)
    in_cache: set[str] = field(default_factory=set)  # our providers whose data stay in the L2 cache


_HEAD = Measurement.role == Role.HEAD.value
_TIMES = select(
    Measurement.case,
    Measurement.role,
    Measurement.provider,
    Measurement.median,
    Measurement.gb_s,
    case((_HEAD, Measurement.facts["l2_resident"].as_boolean()), else_=null()).label("in_cache"),
).where(Measurement.run_id == bindparam("run_id"), Measurement.role.in_((Role.HEAD.value, *_OTHERS)))


def _times(session: Session, run_id: int) -> dict[str, _CaseTimes]:
    times = defaultdict[str, _CaseTimes](_CaseTimes)
    for name, role, provider, median, gb_s, in_cache in session.execute(_TIMES, {"run_id": run_id}):
        own_times = times[name]
        if in_cache:
            own_times.in_cache.add(provider)
        if median:
            (own_times.others if role in _OTHERS else own_times.own)[provider] = Timed(median, gb_s)
    return times


@dataclass(frozen=True)
class _ShownRun:
    """The run of a board, with the parts of its telemetry that a board needs."""

    id: int
    sha: str
    subject: str
    committed_at: float
    ordinal: int | None
    ceilings: object
    device_facts: object


_DONE_RUNS = (
    select(Run.id)
    .join(Revision, Revision.id == Run.revision_id)
    .where(Revision.target_id == bindparam("target_id"), Run.device == bindparam("device"))
    .where(Run.state == RunState.DONE, WATCHED)
    .where(_ended(bindparam("device", type_=String)))  # without a run all revisions would be looked through
    .order_by(Revision.ordinal.desc(), Run.id.desc())
    .limit(1)
)
_NEWEST_RUN = _DONE_RUNS.where(Revision.ordinal.is_not(None))
_RUN_AT_PLACE = _DONE_RUNS.where(Revision.ordinal <= bindparam("ordinal"))
_RUN_OF_REVISION = _DONE_RUNS.where(Revision.id == bindparam("revision_id"))
# By its id: in an ordered statement SQLite reads the telemetry of all runs before it sorts them.
_RUN = (
    select(
        Run.id,
        Revision.sha,
        Revision.subject,
        Revision.committed_at,
        Revision.ordinal,
        Run.telemetry["ceilings"].label("ceilings"),
        Run.telemetry["device"].label("device_facts"),
    )
    .join(Revision, Revision.id == Run.revision_id)
    .where(Run.id == bindparam("run_id"))
)


def _run(session: Session, target: Target, device: str, revision: str) -> tuple[_ShownRun, str]:
    """The run, and the revision that was asked for where the run is of an earlier one."""
    of_device = {"target_id": target.id, "device": device}
    if not revision:
        run_id, asked = session.scalar(_NEWEST_RUN, of_device), ""
    else:
        row = named(session, target, revision)
        asked = row.sha
        if row.ordinal is None:
            run_id = session.scalar(_RUN_OF_REVISION, of_device | {"revision_id": row.id})
        else:
            run_id = session.scalar(_RUN_AT_PLACE, of_device | {"ordinal": row.ordinal})
    if run_id is None:
        what = f"of {revision} or of an earlier revision " if revision else ""
        raise NotFound("finished run", f"{what}on {device} at {target.name}", "Choose another device or revision.")
    run = _ShownRun(*session.execute(_RUN, {"run_id": run_id}).one())
    return run, asked if asked != run.sha else ""


_VERDICTS = select(VerdictRow.provider, VerdictRow.case, VerdictRow.ratio, VerdictRow.behind_sota).where(
    VerdictRow.run_id == bindparam("run_id"), VerdictRow.baseline_kind == BaselineKind.SOTA
)


_GAPS = (
    select(
        Series.provider,
        Series.case,
        Revision.sha,
        Revision.committed_at,
        Revision.ordinal,
        Gap.ratio_then,
    )
    .join(Gap, Gap.series_id == Series.id)
    .join(Run, Run.id == Gap.since_run_id)
    .join(Revision, Revision.id == Run.revision_id)
    .where(Series.target_id == bindparam("target_id"), Series.device == bindparam("device"))
    .where(Gap.behind_sota, Series.metric == Metric.KERNEL)
)
_GAPS_UNTIL = _GAPS.where(Revision.ordinal <= bindparam("ordinal"))


def _behind_since(session: Session, target: Target, device: str, ordinal: int | None) -> dict[tuple[str, str], Since]:
    """Since when each series is behind: the open gaps that began at this place of the mainline or before."""
    of_device = {"target_id": target.id, "device": device}
    rows = (
        session.execute(_GAPS, of_device)
        if ordinal is None
        else session.execute(_GAPS_UNTIL, of_device | {"ordinal": ordinal})
    )
    return {(provider, name): Since(sha, at, place, then) for provider, name, sha, at, place, then in rows}


MAX_REVISIONS = 100  # of the mainline: the newest run is one of theirs


@dataclass(frozen=True)
class _NewestRun:
    id: int
    device: str
    state: RunState
    pull: int | None
    finished_at: float | None
    has_log: bool  # of a build that failed


def status(session: Session, target: Target, device: str | None) -> StatusFacts:
    """The open regressions of the mainline, and what became of the newest revision that was tried."""
    runs = _runs(session, target, device)
    last = _newest(runs, RunState.DONE)
    if last is None:
        return StatusFacts(target.name, device, clock(session), None)
    newest = _newest(runs, RunState.DONE, RunState.FAILED) or last
    counted = (
        select(RegressionRow.state, func.count())
        .join(RegressionRow.series)
        .where(Series.target_id == target.id, RegressionRow.state.in_(OPEN_REGRESSIONS))
        .where(*([] if device is None else [Series.device == device]))
        .group_by(RegressionRow.state)
    )
    invalid = (VerdictRow.baseline_kind == BaselineKind.PARENT, VerdictRow.outcome == Outcome.INVALID.value)
    wrong = session.scalar(select(func.count()).where(VerdictRow.run_id == last.id, *invalid))
    return StatusFacts(
        target=target.name,
        device=device,
        now=clock(session),
        measured_at=last.finished_at,
        by_state=dict(session.execute(counted).all()),
        build_failed=newest.state is RunState.FAILED and newest.has_log,
        wrong=wrong or 0,
    )


def sota(
    session: Session,
    target: Target,
    device: str | None,
    which: CaseFilter,
    *,
    dtype: str | None = None,
    direction: str | None = None,
) -> SotaFacts:
    """The ratios of the newest measured revision; of several devices, of the one that was measured last."""
    last = _newest(_runs(session, target, device), RunState.DONE)
    now = clock(session)
    asked: dict[str, Any] = {"dtype": dtype, "op": which.op, "direction": direction, "metric": which.metric}
    if last is None:
        return SotaFacts(target.name, device, now, **asked)
    rows = session.execute(
        select(VerdictRow.case, VerdictRow.ratio, VerdictRow.baseline)
        .where(VerdictRow.run_id == last.id, VerdictRow.baseline_kind == BaselineKind.SOTA)
        .where(*which.on(VerdictRow))
    ).all()
    chosen = [(ratio, baseline) for case, ratio, baseline in rows if ratio and _is_chosen(case, dtype, direction)]
    return SotaFacts(
        target=target.name,
        device=last.device,
        now=now,
        measured_at=last.finished_at,
        sota=chosen[0][1] if chosen else None,
        ratios=[ratio for ratio, _ in chosen],
        **asked,
    )


def _is_chosen(case: str, dtype: str | None, direction: str | None) -> bool:
    """Whether a case has this dtype of x and this direction; what another version stored may have neither."""
    parts = [*case.split("."), "", "", "", ""]
    return direction in (None, parts[1]) and (dtype is None or parts[3].partition("-")[0] == dtype)


def _runs(session: Session, target: Target, device: str | None) -> list[_NewestRun]:
    """The runs of the last mainline revisions, those of the newest revision first.

    Their state is no condition of the query: SQLite would read all finished runs of the database instead.
    """
    last = (
        select(Revision.id)
        .where(Revision.target_id == target.id, Revision.ordinal.is_not(None))
        .order_by(Revision.ordinal.desc())
        .limit(MAX_REVISIONS)
    )
    on: list[ColumnElement[bool]] = [] if device is None else [Run.device == device]
    rows = session.execute(
        select(Run.id, Run.device, Run.state, Run.pull, Run.finished_at, Run.log.is_not(None))
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.revision_id.in_(last), Run.purpose == Purpose.WATCH, *on)
        .order_by(Revision.ordinal.desc(), Run.id.desc())
    )
    return [_NewestRun(*row) for row in rows]


def _newest(runs: Sequence[_NewestRun], *states: RunState) -> _NewestRun | None:
    return next((run for run in runs if run.state in states and run.pull is None), None)
