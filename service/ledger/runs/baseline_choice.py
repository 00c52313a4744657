"""Which revision is a baseline at which case.

A revision that does not build is passed over; one that is wrong or failed at a case is passed over at that case alone.
A slow revision never becomes a reference by itself: one with an open regression, or with a suspicion that could not be
confirmed, is the baseline only for the question whether this commit changed the case.  Whether the case is as fast as
before is measured against the last good revision, until a measurement shows it, or a person accepts the regression.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Row, and_, func, select
from sqlalchemy.orm import Session, aliased

from kernels.cases import Role
from service.db.models import WATCHED, Measurement, RegressionRow, Revision, Run, Series, Target, VerdictRow
from service.domain.attribution.causes import Kind
from service.domain.states import BaselineKind, CellState, Outcome, Purpose, RegressionState, RunState
from service.domain.verdicts.samples import Name
from service.ledger.renames import on_device

MAX_BASELINE_DISTANCE = 20  # parents back to a usable baseline
LATELY = 100  # runs among which it is looked up when a last good revision had its turn
BROKEN = (CellState.INVALID, CellState.FAILED)
_UNSETTLED = (Outcome.REGRESSION, Outcome.INCONCLUSIVE)
UNACCEPTED = (RegressionState.OPEN, RegressionState.BISECTING, RegressionState.BLAMED)


@dataclass(frozen=True)
class Fitness:
    """Suitability of a revision as a baseline, by its watched runs on one device."""

    builds: bool = True
    broken: frozenset[Name] = frozenset()  # wrong or failed when last measured, by the recipe of today
    measured: frozenset[Name] = frozenset()  # right when last measured, by whichever recipe


def fitness(session: Session, target: Target, sha: str, device: str) -> Fitness:
    """At which cases a revision can be a baseline on this device; the newest run of each case decides.

    A revision that was not measured, or only with an earlier recipe, counts as fit.
    """
    runs = session.execute(
        select(Run.id, Run.recipe_id, Run.state, Run.log.is_not(None))
        .join(Revision)
        .where(Revision.target_id == target.id, Revision.sha == sha, Run.device == device)
        .where(Run.purpose == Purpose.WATCH, Run.state.in_((RunState.DONE, RunState.FAILED)))
        .order_by(Run.id)
    ).all()
    # A run that failed without a log was given up because of the machine.
    answered = [
        state for _, recipe, state, log in runs if recipe == target.recipe_id and (log or state is RunState.DONE)
    ]
    today = {run_id for run_id, recipe, *_ in runs if recipe == target.recipe_id}
    rows = session.execute(
        select(Measurement.run_id, Measurement.provider, Measurement.case, Measurement.state)
        .where(Measurement.run_id.in_([run_id for run_id, *_ in runs]), Measurement.role == Role.HEAD.value)
        .order_by(Measurement.run_id)
    )
    newest = {(provider, case): (run_id in today, state) for run_id, provider, case, state in rows}
    return Fitness(
        builds=not answered or answered[-1] is RunState.DONE,
        broken=frozenset(name for name, (now, state) in newest.items() if now and state in BROKEN),
        measured=frozenset(name for name, (_, state) in newest.items() if state is CellState.MEASURED),
    )


def broken_before(session: Session, run: Run, wanted: str | None, names: Collection[Name]) -> dict[Name, CellState]:
    """At which of these cases the newest measured revision up to `wanted` was broken, and how.

    `wanted` was passed over as the baseline, there or everywhere.
    """
    place = select(Revision.ordinal).where(Revision.target_id == run.target_id, Revision.sha == wanted)
    last = session.scalar(place)
    if last is None or not names:
        return {}
    rows = session.execute(
        select(Measurement.provider, Measurement.case, Measurement.state)
        .join(Run, Run.id == Measurement.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, Run.state == RunState.DONE)
        .where(Run.purpose == Purpose.WATCH, Revision.ordinal.between(last - MAX_BASELINE_DISTANCE, last))
        .where(Measurement.role == Role.HEAD.value, Measurement.case.in_({case for _, case in names}))
        .order_by(Revision.ordinal, Run.id)
    )
    newest: Mapping[Name, CellState] = {(provider, case): state for provider, case, state in rows}
    return {name: state for name in names if (state := newest.get(name)) in BROKEN}


def last_good(session: Session, target_id: int, device: str, sha: str) -> dict[Name, str]:
    """The cases at which the mainline revision `sha` is slow, each with its last good revision."""
    place = session.execute(
        select(Revision.ordinal).where(Revision.target_id == target_id, Revision.sha == sha)
    ).scalar_one_or_none()
    if place is None:
        return {}
    accepted, found = dict[Name, int](), dict[Name, str]()
    for provider, case, state, good, ordinal in _recorded(session, target_id, device, place):
        if state not in UNACCEPTED:
            accepted[provider, case] = ordinal or 0  # the latest one
        elif good is not None:
            found.setdefault((provider, case), good)  # the earliest open one: what came after it is no better
    return {**_suspected(session, target_id, device, sha, accepted), **found}


def in_turn(session: Session, run: Run, wanted: Mapping[Name, str]) -> list[tuple[str, frozenset[Name]]]:
    """The last good revisions with their cases, in the order in which sessions measure them.

    First those of suspicions without a record, because nothing else would measure them again.  Then those whose last
    comparison is the longest ago.
    """
    cases: dict[str, set[Name]] = defaultdict(set)
    for name, sha in wanted.items():
        cases[sha].add(name)
    if not cases:
        return []
    records = session.execute(
        select(Series.provider, Series.printed)
        .join(RegressionRow.series)
        .where(on_device(run.target_id, run.device))
        .where(RegressionRow.state.in_(UNACCEPTED), RegressionRow.good.in_(cases))
    )
    recorded = {(provider, case) for provider, case in records}
    lately = (
        select(Run.id)
        .where(Run.target_id == run.target_id, Run.device == run.device, Run.state == RunState.DONE)
        .order_by(Run.id.desc())
        .limit(LATELY)
    )
    compared = session.execute(
        select(VerdictRow.baseline, func.max(VerdictRow.run_id))
        .where(
            VerdictRow.run_id.in_(lately),
            VerdictRow.baseline_kind == BaselineKind.LAST_GOOD,
            VerdictRow.baseline.in_(cases),
        )
        .group_by(VerdictRow.baseline)
    )
    last = {sha or "": run_id for sha, run_id in compared}
    order = sorted(cases, key=lambda sha: (cases[sha] <= recorded, last.get(sha, 0), -len(cases[sha]), sha))
    return [(sha, frozenset(cases[sha])) for sha in order]


def _recorded(
    session: Session, target_id: int, device: str, place: int
) -> Sequence[Row[str, str, RegressionState, str | None, int | None]]:
    """The regressions up to a place on the mainline, the earliest first, each with the revision before it."""
    rows = (
        select(Series.provider, Series.printed, RegressionRow.state, RegressionRow.good, Revision.ordinal)
        .select_from(RegressionRow)
        .join(RegressionRow.series)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(on_device(target_id, device), Revision.ordinal <= place)
        .where(RegressionRow.state != RegressionState.FIXED)
        .order_by(Revision.ordinal, RegressionRow.id)
    )
    return session.execute(rows).all()


def _suspected(
    session: Session, target_id: int, device: str, sha: str, accepted: Mapping[Name, int]
) -> dict[Name, str]:
    """The cases that looked slower at `sha` and could be neither confirmed nor cleared.

    They are compared with that last good revision until they are seen to be as fast.  Where a person accepted a
    regression (`accepted`: its ordinal), its revision is good: a comparison with an earlier one is over, because the
    accepted slow-down is a part of it.
    """
    good = aliased(VerdictRow)
    same = (good.run_id == VerdictRow.run_id, good.provider == VerdictRow.provider, good.case == VerdictRow.case)
    rows = session.execute(
        select(VerdictRow, good)
        .join(Run, Run.id == VerdictRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .outerjoin(good, and_(*same, good.baseline_kind == BaselineKind.LAST_GOOD))
        .where(Run.target_id == target_id, Run.device == device, Revision.sha == sha, Revision.target_id == target_id)
        .where(WATCHED, Run.state == RunState.DONE, VerdictRow.baseline_kind == BaselineKind.PARENT)
        .order_by(Run.id)
    )
    newest = {(row.provider, row.case): (row, beside) for row, beside in rows}  # not every run has every case
    unsettled = [(name, baseline) for name, both in newest.items() for baseline in _unsettled(*both)]
    those = Revision.target_id == target_id, Revision.sha.in_({baseline for _, baseline in unsettled})
    places = dict(session.execute(select(Revision.sha, Revision.ordinal).where(*those)).all())
    found = dict[Name, str]()
    for name, baseline in unsettled:
        place = places.get(baseline)
        if name not in accepted or (place is not None and place >= accepted[name]):
            found.setdefault(name, baseline)
    return found


def _unsettled(against_parent: VerdictRow, against_good: VerdictRow | None) -> Iterator[str]:
    """The baselines of the open questions at a case: first the one that an earlier revision raised."""
    if against_good is not None and against_good.baseline is not None and against_good.outcome in _UNSETTLED:
        yield against_good.baseline
    if against_parent.baseline is not None and _slower_perhaps(against_parent):
        yield against_parent.baseline


def _slower_perhaps(row: VerdictRow) -> bool:
    """Whether this is still a suspicion: not if the machine explains it, nor if the case is quarantined."""
    slower = row.suspected and row.outcome == Outcome.INCONCLUSIVE and row.ratio is not None and row.ratio > 1
    return slower and row.cause_kind not in (Kind.MACHINE, Kind.NOISE) and row.quarantined_by is None
