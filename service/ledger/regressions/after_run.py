"""Open and close the regressions of the mainline after each of its runs, also of cases that are removed.

Revisions may be measured in any order, and repeatedly: their place on the mainline counts.

The caller holds the lock of the target, and settles the incidents.

The evidence is a run of the mainline, at a later revision, by the recipe as it is now.  Without it a renamed case would
stay slow, and behind SOTA, for ever: no run can show it to be fixed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select
from sqlalchemy.orm import Session, aliased, contains_eager

from service.db.engine import clock
from service.db.models import WATCHED, Gap, RecipeRow, RegressionRow, Revision, Run, Series, Target, VerdictRow
from service.domain.policy.policy import Policy
from service.domain.policy.recipes import Recipe
from service.domain.regressions.lifecycle import Action, CaseStep, Transition, fixed_by_run, unexplained
from service.domain.states import (
    OPEN_REGRESSIONS,
    BaselineKind,
    CellState,
    FoundBy,
    GateAction,
    GateKind,
    Outcome,
    Purpose,
    RegressionState,
    RunState,
)
from service.domain.text import short
from service.domain.verdicts.baselines import OWN_CODE
from service.domain.verdicts.judge import CHANGES
from service.domain.verdicts.samples import Name
from service.ledger.locking import lock
from service.ledger.notices import happenings
from service.ledger.regressions import decisions, listing, transitions
from service.ledger.regressions.transitions import Opening
from service.ledger.targets import on_device
from service.reports import words
from service.reports.report import readable


def note_removed(
    session: Session, run: Run, revision: Revision, judged: Collection[Name], now: float
) -> list[RegressionRow]:
    """The regressions that this changes; a case that the run `judged` is measured, whatever the recipe says.

    The caller holds the lock, and settles their incidents.
    """
    recipe_id = session.get_one(Target, run.target_id).recipe_id
    if run.recipe_id != recipe_id or revision.ordinal is None:
        return []
    recipe = readable(session.get_one(RecipeRow, recipe_id).text)
    if recipe is None:  # another version of kernelwatch wrote it
        return []
    changed = []
    states = (*OPEN_REGRESSIONS, RegressionState.REMOVED)
    for row, ordinal in _since(session, run, states):
        if ordinal is not None and ordinal >= revision.ordinal:
            continue
        here = row.series.device == run.device and row.name in judged
        is_removed, measured = row.state is RegressionState.REMOVED, here or _measures(recipe, row.series)
        if is_removed is not measured:
            continue
        what = f"{row.series.printed} of {row.series.provider} on {row.series.device}"
        if measured:
            transition = Transition(Action.MEASURE_AGAIN, words=f"the recipe has {what} again", run_id=run.id)
        else:
            transition = Transition(Action.REMOVE, words=f"the recipe has no {what} any more", run_id=run.id)
        transitions.change(session, row, transition, now)
        changed.append(row)
    for gap in _gaps_before(session, run, revision.ordinal):
        if not _measures(recipe, gap.series):
            gap.behind_sota, gap.last_run_id, gap.since_run_id, gap.ratio_then = False, run.id, None, None
    return changed


def _since(session: Session, run: Run, states: Iterable[RegressionState]) -> Iterable[tuple[RegressionRow, int | None]]:
    """The regressions of the target in these states, each with the place of its revision on the mainline."""
    rows = (
        select(RegressionRow, Revision.ordinal)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .options(contains_eager(RegressionRow.series))
        .where(Series.target_id == run.target_id, RegressionRow.state.in_(states))
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    )
    return session.execute(rows).all()


def _gaps_before(session: Session, run: Run, ordinal: int) -> Iterable[Gap]:
    """The cases behind SOTA that were last measured at an earlier revision."""
    rows = (
        select(Gap)
        .join(Run, Run.id == Gap.last_run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(Gap.series)
        .options(contains_eager(Gap.series))
        .where(Series.target_id == run.target_id, Gap.behind_sota, Revision.ordinal < ordinal)
    )
    return session.scalars(rows).all()


def _measures(recipe: Recipe, series: Series) -> bool:
    """Whether the recipe has the case in any suite of the device, and a provider that offers it."""
    if series.device not in recipe.devices:
        return False
    provider = recipe.providers_on(series.device).get(series.provider)
    suites = {recipe.suite_on(series.device), *recipe.suites}
    return provider is not None and any(
        str(case) == series.printed and provider.offers(case) for suite in suites for case in recipe.cases(suite)
    )


_NOTHING_KNOWN = CaseStep(0, 0, None, Outcome.NEW, None)
_UNDECIDED = (Outcome.INCONCLUSIVE, None)
_DECIDED = (Outcome.STEADY, *CHANGES)


@dataclass(frozen=True)
class LaterRun:
    """A run of a later revision at a case: its step, when it ended, and its verdicts against older revisions."""

    step: CaseStep
    at: float
    # By the kind of baseline and the revision compared with, which may be the last good and the pinned one.
    direct: dict[tuple[BaselineKind, str | None], tuple[Outcome, float | None]] = field(default_factory=dict)


def close_fixed(
    session: Session, run: Run, judged: Collection[Name], policy: Policy, now: float
) -> list[RegressionRow]:
    """Close the open regressions of the `judged` cases that are fixed, and return them."""
    open_ones = session.execute(
        select(RegressionRow, Revision.ordinal)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .options(contains_eager(RegressionRow.series))
        .where(on_device(run.target_id, run.device), RegressionRow.state.in_(OPEN_REGRESSIONS))
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    ).all()
    here = [(row, ordinal) for row, ordinal in open_ones if row.name in judged]
    seen = _seen_since(session, run, here)
    ids = [row.id for row, _ in here if seen[row.name]]
    smallest_changes = _smallest_changes(session, ids)
    doubted = transitions.fixes_doubted_at(session, ids)
    fixes = dict[int, Revision]()  # by the run that showed it
    closed = []
    for row, ordinal in here:
        news = [run for run in seen[row.name] if run.at > doubted.get(row.id, -inf)]
        smallest_change = smallest_changes.get(row.id, policy.at(row.case).smallest_change)
        if ordinal is None:
            transitions.leave(session, row, now)
        elif (by := _fixed_by(row, ordinal, news, smallest_change)) is not None:
            if by not in fixes:
                fixes[by] = session.scalars(select(Revision).join(Run).where(Run.id == by)).one()
            name = fixes[by].short
            words = f"as fast at {name} as it was at {short(row.good)}" if row.good else f"by {name}"
            transitions.change(session, row, Transition(Action.FIX, words=words, run_id=by), now)
        else:
            continue
        closed.append(row)
    return closed


def _fixed_by(row: RegressionRow, ordinal: int, seen: Sequence[LaterRun], smallest_change: float) -> int | None:
    """The run that shows the regression to be fixed."""
    steps = {run.step.ordinal: _with_direct(run, row) for run in seen if run.step.ordinal > ordinal}
    before = row.ratio if row.found_by is FoundBy.PINNED else 1.0
    # Nothing is compared with a revision whose results were wrong.  Two noisy ratios hardly ever come back to 1, so the
    # least that it was slower counts.
    size = row.low if row.good is None and row.low is not None else row.ratio
    return fixed_by_run(list(steps.values()), ordinal, size, smallest_change, before=before)


def _smallest_changes(session: Session, ids: Sequence[int]) -> dict[int, float]:
    """The smallest relevant change that held when these regressions were opened, where it is known."""
    rows = (
        select(RegressionRow.id, VerdictRow.smallest_change)
        .join(RegressionRow.series)
        .join(
            VerdictRow,
            and_(
                VerdictRow.run_id == RegressionRow.run_id,
                VerdictRow.provider == Series.provider,
                VerdictRow.case == Series.printed,
            ),
        )
        .where(
            RegressionRow.id.in_(ids),
            VerdictRow.baseline_kind == BaselineKind.PARENT,
            VerdictRow.smallest_change.is_not(None),
        )
    )
    return {regression_id: change for regression_id, change in session.execute(rows) if change is not None}


def _with_direct(run: LaterRun, row: RegressionRow) -> CaseStep:
    """The step, with the comparison with the good revision that decides about this regression.

    Steady against the pinned baseline is within `leak`, which may be several times the smallest change: that ends a
    leak and nothing else.  What is slower by more than a leak has not ended, whatever found it.
    """
    last_good, pinned = (run.direct.get((kind, row.good), _UNDECIDED) for kind in OWN_CODE)
    if row.found_by is FoundBy.PINNED:
        first, other = pinned, last_good
    else:
        first, other = last_good, pinned if pinned[0] is Outcome.REGRESSION else _UNDECIDED
    outcome, ratio = first if first[0] in _DECIDED else other
    return replace(run.step, direct=outcome, direct_ratio=ratio)


def _seen_since(
    session: Session, run: Run, regressions: Sequence[tuple[RegressionRow, int | None]]
) -> dict[Name, list[LaterRun]]:
    """Results of the cases at later revisions, oldest revision first, the newest run of each last.

    A revision that is steady against the one just before it is left out unless it was measured more than once, so that
    little of a long history has to be read.
    """
    places = [ordinal for _, ordinal in regressions if ordinal is not None]
    runs_of: dict[Name, dict[tuple[int, int], LaterRun]] = defaultdict(dict)
    if not places:
        return {}
    names = {row.name for row, _ in regressions}
    base, other = aliased(Revision), aliased(Run)
    again = exists().where(other.revision_id == Run.revision_id, other.id != Run.id, *_watched(run, other))
    matters = or_(
        VerdictRow.outcome != Outcome.STEADY.value, base.ordinal.is_distinct_from(Revision.ordinal - 1), again
    )
    columns = (VerdictRow.provider, VerdictRow.case, Run.id, Revision.ordinal, Run.finished_at)
    pairs = (
        _verdicts(run, min(places), select(*columns, VerdictRow.outcome, VerdictRow.ratio, base.ordinal))
        .outerjoin(
            base, and_(base.target_id == Run.target_id, base.sha == func.coalesce(VerdictRow.baseline, Run.baseline))
        )
        .where(VerdictRow.baseline_kind == BaselineKind.PARENT, matters)
    )
    for provider, case, run_id, place, at, outcome, ratio, before in session.execute(pairs):
        step = CaseStep(run_id, place, before, Outcome(outcome), ratio)
        runs_of[provider, case][place, run_id] = LaterRun(step, at or 0.0)
    goods = {row.good for row, _ in regressions if row.good is not None}
    against = VerdictRow.baseline_kind, VerdictRow.baseline
    directs = _verdicts(run, min(places), select(*columns, VerdictRow.outcome, VerdictRow.ratio, *against))
    directs = directs.where(VerdictRow.baseline_kind.in_(OWN_CODE), VerdictRow.baseline.in_(goods))
    for provider, case, run_id, place, at, outcome, ratio, kind, good in session.execute(directs):
        alone = LaterRun(replace(_NOTHING_KNOWN, run_id=run_id, ordinal=place), at or 0.0)
        runs_of[provider, case].setdefault((place, run_id), alone).direct[kind, good] = (Outcome(outcome), ratio)
    return {name: [seen for _, seen in sorted(runs_of[name].items())] for name in names}


def _verdicts(run: Run, after: int, of_them: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return (
        of_them.join(Run, Run.id == VerdictRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        # The target is asked of the revision alone: SQLite would else read all runs of the target.
        .where(Revision.target_id == run.target_id, Revision.ordinal > after, *_watched(run))
    )


def _watched(run: Run, which: type[Run] = Run) -> tuple[ColumnElement[bool], ...]:
    done = which.device == run.device, which.state == RunState.DONE
    return *done, which.pull.is_(None), which.purpose == Purpose.WATCH


_ACCEPTED = (RegressionState.ACKNOWLEDGED, RegressionState.DISMISSED)


@dataclass(frozen=True)
class _Recorded:
    """A record of a case, with the revision of the run that opened it."""

    row: RegressionRow
    revision_id: int
    ordinal: int | None


@dataclass(frozen=True)
class _Case:
    """One slower case of the run, and the records that there are of it."""

    run: Run
    verdict: VerdictRow
    pair: VerdictRow | None  # the same case against the parent
    policy: Policy  # as it is at this case
    recorded: Sequence[_Recorded]

    @property
    def ratio(self) -> float:
        return self.verdict.ratio or 1.0

    @property
    def smallest_change(self) -> float:
        smallest = self.pair.smallest_change if self.pair else None
        return smallest if smallest is not None else self.policy.smallest_change


def open_found(
    session: Session, run: Run, verdicts: Sequence[VerdictRow], policy: Policy, now: float
) -> list[RegressionRow]:
    """Open records for the slow-downs among the verdicts of a run that have none yet."""
    slower = [verdict for verdict in verdicts if verdict.outcome == Outcome.REGRESSION and verdict.ratio is not None]
    pairs = {
        (verdict.provider, verdict.case): verdict
        for verdict in verdicts
        if verdict.baseline_kind == BaselineKind.PARENT
    }
    opened = list[RegressionRow]()
    # In this order, because each kind sees the records of the one before: a leak is what the others do not explain.
    openings = {
        BaselineKind.PARENT: _against_parent,
        BaselineKind.WRONG_PARENT: _against_wrong_parent,
        BaselineKind.LAST_GOOD: _against_last_good,
        BaselineKind.PINNED: _against_pinned,
    }
    for kind, opening_of in openings.items():
        these = [verdict for verdict in slower if verdict.baseline_kind == kind]
        recorded = _recorded(session, run, these) if these else {}
        wanted = list[Opening]()
        for verdict in these:
            name = (verdict.provider, verdict.case)
            case = _Case(run, verdict, pairs.get(name), policy.at(verdict.case), recorded.get(name, ()))
            if (opening := opening_of(session, case)) is not None:
                wanted.append(opening)
        opened += transitions.open_all(session, wanted, now)
    return opened


def _against_parent(session: Session, case: _Case) -> Opening | None:
    """Slower than its baseline.  A baseline other than the parent leaves open which revision between them did it."""
    run, baseline = case.run, case.verdict.baseline
    for record in case.recorded:
        if record.row.found_by is FoundBy.PINNED:
            continue
        # A dismissed one is not opened again by the next revision that is compared with the same baseline.
        placed = record.ordinal is not None and record.row.state is not RegressionState.FIXED
        same_baseline = placed and baseline is not None and record.row.good == baseline
        if record.revision_id == run.revision_id or (
            same_baseline and record.row.ratio * (1 + case.smallest_change) >= case.ratio
        ):
            return None
    return _opening(session, run, _slower(case.verdict), FoundBy.PAIR, baseline, words.of_verdict(case.verdict))


def _against_wrong_parent(session: Session, case: _Case) -> Opening | None:
    """Right now, and slower than its parent, whose results were wrong: else its time is everybody's baseline silently.

    There is no good revision to compare later ones with; a speed-up ends it.
    """
    run, verdict, pair = case.run, case.verdict, case.pair
    parent_was_wrong = pair is not None and (pair.reason_args or {}).get("state") == CellState.INVALID
    limit = (verdict.reason_args or {}).get("limit", case.smallest_change)
    if pair is None or pair.outcome != Outcome.NEW or not parent_was_wrong or case.ratio < 1 + limit:
        return None
    allowed = case.policy.action(GateKind.SLOWER_THAN_WRONG) is GateAction.PASS
    if allowed or any(record.revision_id == run.revision_id for record in case.recorded):
        return None
    revision = session.get_one(Revision, run.revision_id)
    culprit = revision.sha if verdict.baseline == revision.parent else None
    why = f"{words.of_verdict(verdict)}, whose results were wrong"
    return Opening(run, _slower(verdict), FoundBy.PAIR, None, culprit, why)


def _against_last_good(session: Session, case: _Case) -> Opening | None:
    """Slower than the last good revision, without a record: this session confirms the suspicion of an earlier one.

    That comparison had no part in the suspicion, but tests against a share of the smallest change only, so the size
    must be relevant as well.  The slow-down against the parent has a record of its own.
    """
    run, verdict, pair = case.run, case.verdict, case.pair
    if any(record.row.good == verdict.baseline for record in case.recorded):
        return None
    slower = _slower(verdict)
    if pair is not None and pair.outcome == Outcome.REGRESSION:
        left = unexplained(slower.ratio, [pair.ratio or 1.0])
        slower = transitions.Slower(slower.provider, slower.case, left)
    if slower.ratio < 1 + case.smallest_change:
        return None
    suspected = session.scalars(
        select(Run)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, WATCHED, Revision.ordinal.is_not(None))
        .where(VerdictRow.baseline == verdict.baseline, Run.revision_id != run.revision_id)
        .where(VerdictRow.provider == verdict.provider, VerdictRow.case == verdict.case)
        .where(VerdictRow.baseline_kind == BaselineKind.PARENT, VerdictRow.suspected)
        .order_by(Revision.ordinal, Run.id.desc())
        .limit(1)
    ).first()
    head = session.get_one(Revision, run.revision_id).short
    why = f"suspected before, and confirmed by the session of {head}: {words.of_verdict(verdict)}"
    return _opening(session, suspected or run, slower, FoundBy.PAIR, verdict.baseline, why)


def _against_pinned(session: Session, case: _Case) -> Opening | None:
    """Slower than the pinned baseline in sessions of two successive revisions, by more than the known regressions."""
    run, verdict, leak = case.run, case.verdict, case.policy.leak
    for record in case.recorded:
        same = record.row.found_by is FoundBy.PINNED and record.row.good == verdict.baseline
        grew = record.row.state in _ACCEPTED and case.ratio > record.row.ratio * (1 + leak)
        if same and record.row.state is not RegressionState.FIXED and not grew:
            return None
    place = session.get_one(Revision, run.revision_id).ordinal or 0
    if unexplained(case.ratio, _explaining(session, case, place)) <= 1 + leak:
        return None
    for neighbour, at, outcome in _neighbours(session, run, verdict, place):
        if outcome == Outcome.REGRESSION:
            first, why = neighbour if at < place else run, words.of_verdict(verdict)
            return _opening(session, first, _slower(verdict), FoundBy.PINNED, verdict.baseline, why)
    return None


def _neighbours(session: Session, run: Run, verdict: VerdictRow, place: int) -> list[tuple[Run, int, str]]:
    """The runs of the nearest revisions before and after that were compared with the same pinned baseline here."""
    theirs = (
        select(Run, Revision.ordinal, VerdictRow.outcome)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, WATCHED, Run.state == RunState.DONE)
        .where(VerdictRow.provider == verdict.provider, VerdictRow.case == verdict.case)
        .where(VerdictRow.baseline_kind == BaselineKind.PINNED, VerdictRow.baseline == verdict.baseline)
        .limit(1)
    )
    before = theirs.where(Revision.ordinal < place).order_by(Revision.ordinal.desc(), Run.id.desc())
    after = theirs.where(Revision.ordinal > place).order_by(Revision.ordinal, Run.id.desc())
    return [(run, at or 0, outcome) for which in (before, after) for run, at, outcome in session.execute(which)]


def _explaining(session: Session, case: _Case, place: int) -> Sequence[float]:
    """The ratios of the open regressions of the case that came between the pinned baseline and `place`."""
    since = session.scalar(
        select(Revision.ordinal).where(Revision.target_id == case.run.target_id, Revision.sha == case.verdict.baseline)
    )
    first = -1 if since is None else since
    return [
        record.row.ratio
        for record in case.recorded
        if record.row.found_by is not FoundBy.PINNED and record.row.state in OPEN_REGRESSIONS
        if record.ordinal is not None and first < record.ordinal <= place
    ]


def _recorded(session: Session, run: Run, verdicts: Sequence[VerdictRow]) -> Mapping[Name, list[_Recorded]]:
    """The records of the verdicts' cases."""
    rows = session.execute(
        select(RegressionRow, Run.revision_id, Revision.ordinal)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(on_device(run.target_id, run.device), Series.printed.in_(sorted({verdict.case for verdict in verdicts})))
        .order_by(RegressionRow.id)
    )
    records: dict[Name, list[_Recorded]] = defaultdict(list)
    for row, revision_id, ordinal in rows:
        records[row.name].append(_Recorded(row, revision_id, ordinal))
    return records


def _slower(verdict: VerdictRow) -> transitions.Slower:
    ratio, name = verdict.ratio or 1.0, (verdict.provider, verdict.case)
    why = words.cause_text(verdict)
    return transitions.Slower(*name, ratio, verdict.low, verdict.high, verdict.cause_kind, why)


def _opening(
    session: Session, run: Run, slower: transitions.Slower, found_by: FoundBy, good: str | None, why: str
) -> Opening:
    revision = session.get_one(Revision, run.revision_id)
    itself = revision.sha if found_by is FoundBy.PAIR and good is not None and good == revision.parent else None
    return Opening(run, slower, found_by, good, itself, why)


def note_regressions(session: Session, run: Run, policy: Policy) -> None:
    """Open a record for each slow-down that this mainline run confirmed, and close those that it shows to be fixed.

    Its verdicts and their causes are stored already.
    """
    lock(session, run.target_id)
    now = clock(session)
    rows = select(VerdictRow).where(VerdictRow.run_id == run.id).order_by(VerdictRow.provider, VerdictRow.case)
    verdicts = session.scalars(rows).all()
    revision = session.get_one(Revision, run.revision_id)
    judged = {
        (verdict.provider, verdict.case)
        for verdict in verdicts
        if verdict.baseline_kind == BaselineKind.PARENT and verdict.outcome != Outcome.REMOVED  # it was not measured
    }
    touched = {row.incident_id for row in note_removed(session, run, revision, judged, now)}
    touched |= {row.incident_id for row in open_found(session, run, verdicts, policy, now)}
    touched |= {row.incident_id for row in close_fixed(session, run, judged, policy, now)}
    listing.settle(session, touched, now)
    happenings.results_invalid(session, run, verdicts, now)
    decisions.acknowledge_at(session, run)
