"""Which regressions a run shows to be fixed, from the verdicts on their cases since they were opened.

The caller holds the lock of the target, and settles the incidents.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session, aliased, contains_eager

from service.db.models import WATCHED, RegressionRow, Revision, Run, Series, VerdictRow
from service.domain.policy.policy import Policy
from service.domain.regressions.closing import CaseStep, fixed_by_run
from service.domain.regressions.lifecycle import Action, Transition
from service.domain.states import OPEN_REGRESSIONS, BaselineKind, FoundBy, RunState
from service.domain.text import short
from service.domain.verdicts.baselines import OWN_CODE
from service.domain.verdicts.judge import CHANGES, Outcome
from service.domain.verdicts.samples import Name
from service.ledger.regressions import transitions
from service.ledger.series import on_device

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
        news = [one for one in seen[row.name] if one.at > doubted.get(row.id, -inf)]
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
    steps = {one.step.ordinal: _with_direct(one, row) for one in seen if one.step.ordinal > ordinal}
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


def _with_direct(one: LaterRun, row: RegressionRow) -> CaseStep:
    """The step, with the comparison with the good revision that decides about this regression.

    Steady against the pinned baseline is within `leak`, which may be several times the smallest change: that ends a
    leak and nothing else.  What is slower by more than a leak has not ended, whatever found it.
    """
    last_good, pinned = (one.direct.get((kind, row.good), _UNDECIDED) for kind in OWN_CODE)
    if row.found_by is FoundBy.PINNED:
        first, other = pinned, last_good
    else:
        first, other = last_good, pinned if pinned[0] is Outcome.REGRESSION else _UNDECIDED
    outcome, ratio = first if first[0] in _DECIDED else other
    return replace(one.step, direct=outcome, direct_ratio=ratio)


def _seen_since(
    session: Session, run: Run, regressions: Sequence[tuple[RegressionRow, int | None]]
) -> dict[Name, list[LaterRun]]:
    """Results of the cases at later revisions, oldest revision first, the newest run of each last.

    A revision that is steady against the one just before it is left out unless it was measured more than once, so that
    little of a long history has to be read.
    """
    places = [ordinal for _, ordinal in regressions if ordinal is not None]
    found: dict[Name, dict[tuple[int, int], LaterRun]] = defaultdict(dict)
    if not places:
        return {}
    names = {row.name for row, _ in regressions}
    base = aliased(Revision)
    again = select(Run.revision_id).where(*_watched(run)).group_by(Run.revision_id).having(func.count() > 1)
    matters = or_(
        VerdictRow.outcome != Outcome.STEADY.value,
        base.ordinal.is_distinct_from(Revision.ordinal - 1),
        Run.revision_id.in_(again),
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
        found[provider, case][place, run_id] = LaterRun(step, at or 0.0)
    goods = {row.good for row, _ in regressions if row.good is not None}
    against = VerdictRow.baseline_kind, VerdictRow.baseline
    directs = _verdicts(run, min(places), select(*columns, VerdictRow.outcome, VerdictRow.ratio, *against))
    directs = directs.where(VerdictRow.baseline_kind.in_(OWN_CODE), VerdictRow.baseline.in_(goods))
    for provider, case, run_id, place, at, outcome, ratio, kind, good in session.execute(directs):
        alone = LaterRun(replace(_NOTHING_KNOWN, run_id=run_id, ordinal=place), at or 0.0)
        found[provider, case].setdefault((place, run_id), alone).direct[kind, good] = (Outcome(outcome), ratio)
    return {name: [seen for _, seen in sorted(found[name].items())] for name in names}


def _verdicts(run: Run, after: int, of_them: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return (
        of_them.join(Run, Run.id == VerdictRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(*_watched(run), Revision.ordinal > after)
    )


def _watched(run: Run) -> tuple[ColumnElement[bool], ...]:
    return (Run.target_id == run.target_id, Run.device == run.device, Run.state == RunState.DONE, WATCHED)
