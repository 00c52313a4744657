"""How a run compares with the baselines other than its parent, and how far and since when it is behind SOTA.

SOTA and the best are other people's code: being behind them is a flag, and no regression.  The last good revision and
the pinned baseline are earlier revisions of the target.

Revisions may be measured in any order, and again: what counts is their place on the mainline.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased, selectinload

from kernels.cases import Comparison, Role
from service.db.engine import clock
from service.db.models import WATCHED, Gap, GapEvent, Measurement, Revision, Run, Stack, VerdictRow
from service.domain.attribution import collect
from service.domain.attribution.causes import Cause, replaced
from service.domain.attribution.collect import GapSide, Shift, gap_cause
from service.domain.metrics import SeriesKey
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, Outcome, Purpose, RunState
from service.domain.text import short
from service.domain.verdicts import totals
from service.domain.verdicts.baselines import OTHER_CODE, OWN_REVISIONS, BaselineVerdict, judge_baseline
from service.domain.verdicts.judge import CHANGES, Verdict
from service.domain.verdicts.reasons import Reason
from service.domain.verdicts.samples import Name
from service.domain.verdicts.session_result import ContenderResult, SessionResult, baseline_cases
from service.domain.verdicts.totals import SotaDistance
from service.ledger.locking import lock
from service.ledger.notices import happenings
from service.ledger.renames import on_device, series_ids


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
    session: Session, run: Run, revision: Revision, found: Mapping[Name, SotaDistance], policy: Policy
) -> dict[Name, GapNote]:
    """Keep since when each case is behind.  Returns a note for each that is behind, or that perhaps still is.

    Only evidence closes a gap: a session that could not decide changes nothing.  From here on, another transaction
    that records a run of the same mainline waits, so that it sees what this one left.
    """
    lock(session, run.target_id)
    known = {(one.gap.provider, one.gap.case): one for one in _known(session, run, found)}
    key_of = {name: SeriesKey.of(run.target_id, run.device, *name) for name in found if name not in known}
    series = series_ids(session, key_of.values())
    at = clock(session)
    notes = {}
    for name, now in found.items():
        last = known.get(name)
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


def _known(session: Session, run: Run, found: Mapping[Name, SotaDistance]) -> Iterator[_Known]:
    last_run, last, since_run, since = aliased(Run), aliased(Revision), aliased(Run), aliased(Revision)
    rows = (
        select(Gap, last.ordinal, last.sha, since.sha)
        .join(last_run, last_run.id == Gap.last_run_id)
        .join(last, last.id == last_run.revision_id)
        .outerjoin(since_run, since_run.id == Gap.since_run_id)
        .outerjoin(since, since.id == since_run.revision_id)
        .join(Gap.series)
        .where(on_device(run.target_id, run.device))
    )
    for gap, ordinal, sha, first in session.execute(rows):
        now = found.get((gap.provider, gap.case))
        if now is not None:
            took = (gap.ratio_now, gap.own, gap.sota, gap.stack_id, gap.behind_sota)
            distance = SotaDistance(short(sha), now.provider, *took, since=short(first) if first else None)
            yield _Known(gap, ordinal, distance)


@dataclass(frozen=True)
class Decided:
    """The verdicts of a run against its parent; `before` is the mainline run that its gaps are compared with."""

    run: Run
    revision: Revision
    result: SessionResult
    policy: Policy
    judged: Mapping[Name, Verdict]
    causes: Mapping[Name, Cause]
    before: Run | None = None

    @property
    def mainline(self) -> bool:
        return self.revision.ordinal is not None and self.run.watched

    def moved(self, name: Name) -> float | None:
        """Head over parent, where that is a confirmed change."""
        verdict = self.judged.get(name)
        return verdict.comparison.ratio if verdict and verdict.comparison and verdict.outcome in CHANGES else None


def before(session: Session, run: Run, revision: Revision) -> Run | None:
    """The run of the nearest earlier revision of the mainline on this device and suite, with all that it found."""
    earlier = (
        select(Run)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, Run.suite == run.suite)
        .where(WATCHED, Run.state == RunState.DONE, Run.id != run.id, Revision.ordinal < revision.ordinal)
        .order_by(Revision.ordinal.desc(), Run.id.desc())
        .limit(1)
        .options(selectinload(Run.revision), selectinload(Run.stack), selectinload(Run.verdicts))
        .options(selectinload(Run.measurements))
    )
    return session.execute(earlier).scalar_one_or_none()


def compare(session: Session, decided: Decided) -> list[VerdictRow]:
    """A row for each case and each baseline that took part, other than the parent; and the gaps of a mainline run."""
    watched = decided.run.purpose is Purpose.WATCH  # bisections and calibrations do not compare with SOTA
    controls = {name: verdict.control for name, verdict in decided.judged.items()}
    offsets = {name: verdict.session_offset for name, verdict in decided.judged.items()}
    rows = list[VerdictRow]()
    for kind in (*OWN_REVISIONS, *(OTHER_CODE if watched else ())):
        verdicts = judge_baseline(kind, baseline_cases(kind, decided.result), decided.policy, controls, offsets)
        if kind in OWN_REVISIONS:
            causes = collect.against_baseline(decided.result, kind, verdicts)
        else:
            shifts = _shifts(decided, kind, verdicts)
            causes = {name: found for name, shift in shifts.items() if (found := gap_cause(shift)) is not None}
        of_kind = {name: _row(decided, kind, name, one, causes.get(name)) for name, one in verdicts.items()}
        if kind is BaselineKind.SOTA and decided.mainline:
            _note_gaps(session, decided, of_kind, verdicts)
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
    sides, run = _sides(decided.result.taken), decided.run
    found = dict[Name, SotaDistance]()
    for name, row in rows.items():
        own, best = sides.own.get(name), sides.baselines.get((row.baseline or "", row.case))
        if row.ratio is not None and own is not None and best is not None:
            now = SotaDistance(decided.revision.short, best.name, row.ratio, own.took, best.took, run.stack_id)
            found[name] = replace(now, behind=row.behind_sota, is_open=verdicts[name].is_open)
    for name, note in note_gaps(session, run, decided.revision, found, decided.policy).items():
        row = rows[name]
        explained(row, note.reason)
        if not row.behind_sota:
            row.outcome = Outcome.INCONCLUSIVE.value  # the gap was known, and this session could not close it
        elif row.cause_kind is None and note.before is not None:
            measured(row, None, _cause_since(session, decided, name, found[name], note.before))


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


@dataclass(frozen=True)
class _Sides:
    """All results of one session: the head by provider and case, and the baselines of other projects."""

    own: Mapping[Name, GapSide]
    baselines: Mapping[Name, GapSide]


def _sides(measured: Iterable[ContenderResult | Measurement]) -> _Sides:
    own, baselines = dict[Name, GapSide](), dict[Name, GapSide]()
    for one in measured:
        kind = own if one.role == Role.HEAD else baselines if one.role in (Role.SOTA, Role.RIVAL) else None
        if kind is not None and one.median is not None:
            kind[one.provider, str(one.case)] = GapSide(one.provider, one.median, one.facts)
    return _Sides(own, baselines)


def _shifts(decided: Decided, kind: BaselineKind, verdicts: Mapping[Name, BaselineVerdict]) -> dict[Name, Shift]:
    """This run and the one before it on the mainline, at each case that both compared with this kind of baseline."""
    if (before := decided.before) is None:
        return {}
    was = {(row.provider, row.case): row.baseline for row in before.verdicts if row.baseline_kind == kind}
    then, now = _sides(before.measurements), _sides(decided.result.taken)
    stack = replaced(before.stack.versions, decided.result.stack) if before.stack else {}
    found = {}
    for name, verdict in verdicts.items():
        case = name[1]
        own = then.own.get(name), now.own.get(name)
        last = was.get(name) or verdict.baseline
        theirs = then.baselines.get((last, case)), now.baselines.get((verdict.baseline, case))
        if own[0] and own[1] and theirs[0] and theirs[1]:
            found[name] = Shift(
                case=case,
                before=before.revision.short,
                own=(own[0], own[1]),
                baseline=(theirs[0], theirs[1]),
                smallest_change=decided.policy.smallest_change_at(case, own[1].took),
                stack=stack,
                confirmed=decided.moved(name),
                why=decided.causes.get(name),
            )
    return found
