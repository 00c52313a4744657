"""Which revision is a baseline at which case, how a run compares with it, and since when it is behind SOTA.

A revision that does not build is skipped; one that is wrong or failed at a case is skipped at that case alone.
A slow revision never becomes a reference automatically: one with an open regression, or with a suspicion that could
not be confirmed, is the baseline only for the question whether this commit changed the case.  Whether the case is as
fast as before is measured against the last good revision, until a measurement shows it, or a person accepts it.

SOTA and the best are other people's code: being behind them is a flag, and no regression.  The last good revision and
the pinned baseline are earlier revisions of the target.

Revisions may be measured in any order, and again: what counts is their place on the mainline.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import Row, Select, and_, func, select
from sqlalchemy.orm import Session, aliased, selectinload

from kernels.cases import Comparison, Role
from service.db.engine import clock
from service.db.models import (
    WATCHED,
    Gap,
    GapEvent,
    Measurement,
    RegressionRow,
    Revision,
    Run,
    Series,
    Stack,
    Target,
    VerdictRow,
)
from service.domain.attribution import collect
from service.domain.attribution.causes import Cause, Kind, replaced
from service.domain.attribution.collect import GapSide, Shift, gap_cause
from service.domain.metrics import SeriesKey
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, CellState, Outcome, Purpose, RegressionState, RunState
from service.domain.text import short
from service.domain.verdicts import totals
from service.domain.verdicts.baselines import OTHER_CODE, OWN_REVISIONS, BaselineVerdict, judge_baseline
from service.domain.verdicts.judge import CHANGES, Verdict
from service.domain.verdicts.reasons import Reason, ReasonCode, reason
from service.domain.verdicts.samples import Name
from service.domain.verdicts.session_result import SessionResult, baseline_cases
from service.domain.verdicts.totals import SotaDistance
from service.ledger.locking import lock
from service.ledger.notices import happenings
from service.ledger.targets import on_device, series_ids

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

    `wanted` was skipped as the baseline, there or everywhere.
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
    accepted, shas = dict[Name, int](), dict[Name, str]()
    for provider, case, state, good, ordinal in _recorded(session, target_id, device, place):
        if state not in UNACCEPTED:
            accepted[provider, case] = ordinal or 0  # the latest one
        elif good is not None:
            shas.setdefault((provider, case), good)  # the earliest open one: what came after it is no better
    return {**_suspected(session, target_id, device, sha, accepted), **shas}


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
    shas = dict[Name, str]()
    for name, baseline in unsettled:
        place = places.get(baseline)
        if name not in accepted or (place is not None and place >= accepted[name]):
            shas.setdefault(name, baseline)
    return shas


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


@dataclass(frozen=True)
class GapNote:
    """Since when a case is behind, and how far it was behind before."""

    reason: Reason
    before: SotaDistance | None


@dataclass(frozen=True)
class _Known:
    """A gap as another run left it, with the place of that run's revision on the mainline."""

    gap: Gap
    ordinal: int | None
    distance: SotaDistance


def note_gaps(
    session: Session, run: Run, revision: Revision, distances: Mapping[Name, SotaDistance], policy: Policy
) -> dict[Name, GapNote]:
    """Keep since when each case is behind.  Returns a note for each that is behind, or that perhaps still is.

    Only evidence closes a gap: a session that could not decide changes nothing.  From here on, another transaction
    that records a run of the same mainline waits, so that it sees what this one left.
    """
    lock(session, run.target_id)
    gaps = {(gap.gap.provider, gap.gap.case): gap for gap in _known(session, run, distances)}
    key_of = {name: SeriesKey.of(run.target_id, run.device, *name) for name in distances if name not in gaps}
    series = series_ids(session, key_of.values())
    at = clock(session)
    notes = {}
    for name, now in distances.items():
        last = gaps.get(name)
        if last is not None and _is_later(last.ordinal, revision.ordinal):
            continue  # the distance of an older revision is no news
        before = last.distance if last else None
        if now.is_open:
            if before is not None and before.behind:
                notes[name] = GapNote(totals.still_open(now, before), before)
            continue
        gap = last.gap if last else Gap(series_id=series[key_of[name]])
        if last is not None and last.gap.behind_sota is not now.behind:
            happenings.gap_changed(session, run, name, gap.series_id, now.ratio, behind=now.behind)
        if now.behind != (before is not None and before.behind):
            session.add(_event(gap, run, now, before, at))
        _update(gap, run, now)
        session.add(gap)
        if now.behind:
            smallest = policy.smallest_change_at(name[1], now.own)
            notes[name] = GapNote(totals.behind_since(now, before, smallest), before)
    return notes


def _event(gap: Gap, run: Run, now: SotaDistance, before: SotaDistance | None, at: float) -> GapEvent:
    return GapEvent(
        series_id=gap.series_id,
        run_id=run.id,
        at=at,
        behind_sota=now.behind,
        ratio=now.ratio,
        ratio_before=before.ratio if before else None,
        own=now.own,
        sota=now.sota,
    )


def _update(gap: Gap, run: Run, now: SotaDistance) -> None:
    if not (gap.behind_sota and now.behind):
        gap.since_run_id, gap.ratio_then = (run.id, now.ratio) if now.behind else (None, None)
    gap.behind_sota, gap.last_run_id, gap.ratio_now = now.behind, run.id, now.ratio
    gap.own, gap.sota, gap.stack_id = now.own, now.sota, now.stack


def _is_later(ordinal: int | None, than: int | None) -> bool:
    return ordinal is not None and than is not None and ordinal > than


def _known(session: Session, run: Run, distances: Mapping[Name, SotaDistance]) -> Iterator[_Known]:
    for gap, ordinal, sha, first in session.execute(_GAPS.where(on_device(run.target_id, run.device))):
        now = distances.get((gap.provider, gap.case))
        if now is not None:
            took = (gap.ratio_now, gap.own, gap.sota, gap.stack_id, gap.behind_sota)
            distance = SotaDistance(short(sha), now.provider, *took, since=short(first) if first else None)
            yield _Known(gap, ordinal, distance)


def _gaps() -> Select[Gap, int | None, str, str]:
    """The gaps with the revisions of the run that they were last seen in, and of the one in which they began."""
    last_run, last, since_run, since = aliased(Run), aliased(Revision), aliased(Run), aliased(Revision)
    return (
        select(Gap, last.ordinal, last.sha, since.sha)
        .join(last_run, last_run.id == Gap.last_run_id)
        .join(last, last.id == last_run.revision_id)
        .outerjoin(since_run, since_run.id == Gap.since_run_id)
        .outerjoin(since, since.id == since_run.revision_id)
        .join(Gap.series)
    )


_GAPS = _gaps()  # made once: making it takes longer than the database needs for it


@dataclass(frozen=True)
class _Sides:
    """All results of one session: the head by provider and case, and the baselines of other projects."""

    own: Mapping[Name, GapSide]
    baselines: Mapping[Name, GapSide]


@dataclass(frozen=True)
class Before:
    """A run of the mainline that a later one is compared with; `verdicts` are columns of its verdicts."""

    revision: str  # short
    stack: Stack | None
    verdicts: Sequence[Row[str, str, BaselineKind, str | None, str]]
    sides: _Sides


@dataclass(frozen=True)
class Decided:
    """The verdicts of a run against its parent; `before` is the mainline run that its gaps are compared with."""

    run: Run
    revision: Revision
    result: SessionResult
    policy: Policy
    judged: Mapping[Name, Verdict]
    causes: Mapping[Name, Cause]
    before: Before | None = None

    @cached_property
    def sides(self) -> _Sides:
        taken = self.result.taken
        return _sides((one.role, one.provider, str(one.case), one.median, one.facts) for one in taken)

    @property
    def mainline(self) -> bool:
        return self.revision.ordinal is not None and self.run.watched

    def moved(self, name: Name) -> float | None:
        """Head over parent, where that is a confirmed change."""
        verdict = self.judged.get(name)
        return verdict.comparison.ratio if verdict and verdict.comparison and verdict.outcome in CHANGES else None


def before(session: Session, run: Run, revision: Revision) -> Before | None:
    """The run of the nearest earlier revision of the mainline on this device and suite, with all that it found."""
    earlier = (
        select(Run)
        .join(Revision, Revision.id == Run.revision_id)
        # The target is asked of the revision alone: databases would else read all runs of the target, and sort them.
        .where(Revision.target_id == run.target_id, Run.device == run.device, Run.suite == run.suite)
        .where(WATCHED, Run.state == RunState.DONE, Run.id != run.id, Revision.ordinal < revision.ordinal)
        .order_by(Revision.ordinal.desc(), Run.id.desc())
        .limit(1)
        .options(selectinload(Run.revision), selectinload(Run.stack))
    )
    found = session.execute(earlier).scalar_one_or_none()
    if found is None:
        return None
    verdicts = (
        select(VerdictRow.provider, VerdictRow.case, VerdictRow.baseline_kind, VerdictRow.baseline, VerdictRow.outcome)
        .where(VerdictRow.run_id == found.id)
        .order_by(VerdictRow.id)
    )
    measured = (
        select(Measurement.role, Measurement.provider, Measurement.case, Measurement.median, Measurement.facts)
        .where(Measurement.run_id == found.id, Measurement.role.in_(_OF_SIDES))
        .order_by(Measurement.id)
    )
    rows = session.execute(verdicts).all()
    return Before(found.revision.short, found.stack, rows, _sides(session.execute(measured).all()))


AS_BEFORE = (BaselineKind.PINNED, *OTHER_CODE)  # what a comparison of the same code in an earlier session tells


@dataclass(frozen=True)
class Earlier:
    """The comparisons of a session that measured the parent: they hold for a head with the same code."""

    run_id: int
    rows: Mapping[BaselineKind, Mapping[Name, VerdictRow]]

    @property
    def names(self) -> frozenset[Name]:
        """The cases at which it compared the parent with every other baseline that supports them."""
        rows = [row for of_kind in self.rows.values() for row in of_kind.items()]
        missing = {name for name, row in rows if row.ratio is None and not _is_unsupported(row)}
        return frozenset(self.rows[BaselineKind.SOTA].keys() - missing)


def _is_unsupported(row: VerdictRow) -> bool:
    state = (row.reason_args or {}).get("state")
    return row.reason_code == ReasonCode.BASELINE_UNFIT and state == CellState.UNSUPPORTED


def earlier(
    session: Session, run: Run, parent: str | None, versions: Mapping[str, Any], pinned: str | None
) -> Earlier | None:
    """The newest session of the parent with the recipe of this run on its worker; None for a run that needs its own.

    So does one on another stack, of which `versions` are those of this run, or with another pinned revision.
    """
    if run.purpose is not Purpose.WATCH or run.repeated or parent is None:
        return None
    last = session.execute(
        select(Run)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Revision.target_id == run.target_id, Revision.sha == parent, Run.device == run.device)
        .where(Run.suite == run.suite, Run.recipe_id == run.recipe_id, Run.worker == run.worker)
        .where(WATCHED, Run.state == RunState.DONE, Run.id != run.id)
        .order_by(Run.id.desc())
        .limit(1)
        .options(selectinload(Run.stack), selectinload(Run.verdicts))
    ).scalar_one_or_none()
    if last is None or last.stack is None or (last.stack.versions, last.pinned) != (versions, pinned):
        return None
    rows: dict[BaselineKind, dict[Name, VerdictRow]] = {kind: {} for kind in AS_BEFORE}
    for row in last.verdicts:
        if row.baseline_kind in rows:
            rows[row.baseline_kind][row.provider, row.case] = row
    return Earlier(last.id, rows)


def _as_before(before: Earlier, row: VerdictRow) -> VerdictRow:
    """The earlier comparison of the same code, in the place of the one for which a single trial is too little."""
    was = before.rows[row.baseline_kind].get((row.provider, row.case))
    if was is None or was.ratio is None:
        return row
    origin = (
        (was.reason_args or {}).get("run", before.run_id) if was.reason_code == ReasonCode.AS_BEFORE else before.run_id
    )
    row.baseline, row.outcome, row.behind_sota = was.baseline, was.outcome, was.behind_sota
    row.ratio, row.low, row.high, row.p, row.q = was.ratio, was.low, was.high, was.p, was.q
    row.trials, row.rounds = was.trials, was.rounds
    explained(row, reason(ReasonCode.AS_BEFORE, run=origin, baseline=_called(row)))
    return row


def _called(row: VerdictRow) -> str:
    return short(row.baseline or "") if row.baseline_kind is BaselineKind.PINNED else row.baseline or ""


def compare(session: Session, decided: Decided) -> list[VerdictRow]:
    """A row for each case and each baseline that took part, other than the parent; and the gaps of a mainline run.

    Where the parent's session compared the same code, and this one ended a case after a single trial, that counts.
    """
    watched = decided.run.purpose is Purpose.WATCH  # bisections and calibrations do not compare with SOTA
    single = {
        name
        for name, verdict in decided.judged.items()
        if verdict.reason.code is ReasonCode.EQUAL_CODE and verdict.comparison is None
    }
    result = decided.result
    before = earlier(session, decided.run, result.baseline, result.stack, result.pinned) if single else None
    controls = {name: verdict.control for name, verdict in decided.judged.items()}
    offsets = {name: verdict.session_offset for name, verdict in decided.judged.items()}
    rows = list[VerdictRow]()
    for kind in (*OWN_REVISIONS, *(OTHER_CODE if watched else ())):
        verdicts = judge_baseline(kind, baseline_cases(kind, decided.result), decided.policy, controls, offsets)
        if kind in OWN_REVISIONS:
            causes = collect.against_baseline(decided.result, kind, verdicts)
        else:
            shifts = _shifts(decided, kind, verdicts)
            causes = {name: cause for name, shift in shifts.items() if (cause := gap_cause(shift)) is not None}
        of_kind = {name: _row(decided, kind, name, verdict, causes.get(name)) for name, verdict in verdicts.items()}
        if kind is BaselineKind.SOTA and decided.mainline:
            _note_gaps(session, decided, of_kind, verdicts)
        if before is not None and kind in AS_BEFORE:
            of_kind |= {name: _as_before(before, row) for name, row in of_kind.items() if name in single}
        rows += of_kind.values()
    return rows


def _row(decided: Decided, kind: BaselineKind, name: Name, verdict: BaselineVerdict, cause: Cause | None) -> VerdictRow:
    provider, case = name
    row = VerdictRow(run_id=decided.run.id, provider=provider, case=case, baseline_kind=kind)
    row.baseline = decided.result.revision(kind, name) or verdict.baseline
    row.outcome = verdict.outcome.value
    explained(row, verdict.reason)
    row.p, row.q = verdict.p, verdict.q
    row.behind_sota = kind in OTHER_CODE and verdict.slower
    measured(row, verdict.comparison, cause)
    return row


def explained(row: VerdictRow, why: Reason) -> None:
    """Store the reason of a verdict."""
    row.reason_code, row.reason_args = why.code.value, dict(why.args)


def measured(row: VerdictRow, comparison: Comparison | None, why: Cause | None) -> None:
    """Columns common to all verdicts: the size with its interval, and the cause."""
    if comparison is not None:
        row.ratio, row.low, row.high = comparison.ratio, comparison.low, comparison.high
        row.trials, row.rounds = comparison.trials, comparison.rounds
    if why is not None:
        row.cause_kind, row.cause_certain = why.kind.value, why.certain
        row.cause_code, row.cause_args = why.code.value, dict(why.args)
        row.cause_by = why.by.value if why.by else None


# -- since when, and who moved ----------------------------------------------------------------------------------------


def _note_gaps(
    session: Session, decided: Decided, rows: Mapping[Name, VerdictRow], verdicts: Mapping[Name, BaselineVerdict]
) -> None:
    sides, run = decided.sides, decided.run
    distances = dict[Name, SotaDistance]()
    for name, row in rows.items():
        own, best = sides.own.get(name), sides.baselines.get((row.baseline or "", row.case))
        if row.ratio is not None and own is not None and best is not None:
            now = SotaDistance(decided.revision.short, best.name, row.ratio, own.took, best.took, run.stack_id)
            distances[name] = replace(now, behind=row.behind_sota, is_open=verdicts[name].is_open)
    for name, note in note_gaps(session, run, decided.revision, distances, decided.policy).items():
        row = rows[name]
        explained(row, note.reason)
        if not row.behind_sota:
            row.outcome = Outcome.INCONCLUSIVE.value  # the gap was known, and this session could not close it
        elif row.cause_kind is None and note.before is not None:
            measured(row, None, _cause_since(session, decided, name, distances[name], note.before))


def _cause_since(
    session: Session, decided: Decided, name: Name, now: SotaDistance, before: SotaDistance
) -> Cause | None:
    """Which side moved since the gap was last recorded, if the previous mainline run did not measure the case."""
    was = session.get(Stack, before.stack) if before.stack != now.stack else None
    shift = Shift(
        case=name[1],
        before=before.revision,
        own=(GapSide(name[0], before.own), GapSide(name[0], now.own)),
        baseline=(GapSide(now.provider, before.sota), GapSide(now.provider, now.sota)),
        smallest_change=decided.policy.smallest_change_at(name[1], now.own),
        stack=replaced(was.versions, decided.result.stack) if was else {},
        confirmed=decided.moved(name),
        why=decided.causes.get(name),
    )
    return gap_cause(shift)


_OF_SIDES = (Role.HEAD.value, Role.SOTA.value, Role.RIVAL.value)


def _sides(measured: Iterable[tuple[str, str, str, float | None, Mapping[str, Any]]]) -> _Sides:
    """Of role, provider, case, median and facts."""
    own, baselines = dict[Name, GapSide](), dict[Name, GapSide]()
    for role, provider, case, median, facts in measured:
        if median is not None and role in _OF_SIDES:
            (own if role == Role.HEAD else baselines)[provider, case] = GapSide(provider, median, facts)
    return _Sides(own, baselines)


def _shifts(decided: Decided, kind: BaselineKind, verdicts: Mapping[Name, BaselineVerdict]) -> dict[Name, Shift]:
    """This run and the one before it on the mainline, at each case that both compared with this kind of baseline."""
    if (before := decided.before) is None:
        return {}
    was = {(row.provider, row.case): row.baseline for row in before.verdicts if row.baseline_kind == kind}
    then, now = before.sides, decided.sides
    stack = replaced(before.stack.versions, decided.result.stack) if before.stack else {}
    shifts = {}
    for name, verdict in verdicts.items():
        case = name[1]
        own = then.own.get(name), now.own.get(name)
        last = was.get(name) or verdict.baseline
        theirs = then.baselines.get((last, case)), now.baselines.get((verdict.baseline, case))
        if own[0] and own[1] and theirs[0] and theirs[1]:
            shifts[name] = Shift(
                case=case,
                before=before.revision,
                own=(own[0], own[1]),
                baseline=(theirs[0], theirs[1]),
                smallest_change=decided.policy.smallest_change_at(case, own[1].took),
                stack=stack,
                confirmed=decided.moved(name),
                why=decided.causes.get(name),
            )
    return shifts
