"""Start bisections, also without being asked; advance, stop and list them.

A step is an ordinary run of low priority.  The state of a bisection is derived from its runs alone, so that it
continues after any restart.  To change a bisection, lock its target first, and then its row.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import structlog
from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlalchemy.orm import Session, selectinload

from service.db.engine import clock, reading, transaction, wake
from service.db.models import Bisection, RegressionEvent, RegressionRow, Revision, Run, Series, Target
from service.db.paging import ResultPage, paged
from service.db.wakeups import CONTROL
from service.domain.bisection.search import Aim, Progress, Question, moved
from service.domain.policy import recipes
from service.domain.policy.policy import Policy
from service.domain.regressions.lifecycle import KERNELWATCH, Action, Transition
from service.domain.states import OPEN_SEARCHES, OPEN_STATES, FoundBy, Purpose, RegressionState, SearchState
from service.domain.text import DAY_S, short
from service.errors import BadInput, Conflict, NotFound, ServiceError
from service.ledger import audit
from service.ledger.bisections import steps
from service.ledger.bisections import steps as lines
from service.ledger.locking import backoff, lock, within_budget
from service.ledger.policies import effective
from service.ledger.regressions import transitions
from service.ledger.runs import queue
from service.ledger.runs.internal_runs import internal_run
from service.ledger.runs.revisions import recipe_of
from service.reports.bisection_text import Merge, said
from service.reports.views import BisectionView
from service.sources.source import Found

_STATE = {
    Aim.VERIFY: SearchState.VERIFYING,
    Aim.SEARCH: SearchState.SEARCHING,
    Aim.AGAIN: SearchState.SEARCHING,
    Aim.PROVE: SearchState.PROVING,
}


# -- start


def start(
    session: Session,
    target: Target,
    device: str,
    good: str,
    bad: str,
    cases: Sequence[str],
    *,
    asked_by: str,
    suite: str | None = None,
    incident_id: int | None = None,
    max_runs: int | None = None,
    line: Sequence[Found] | None = None,
) -> Bisection:
    """Bisect between the full shas (or versions) `good` and `bad` for what made `cases` slower (none: the whole suite).

    An open bisection of the same is returned.  The revisions from `good` to `bad` are those of `line` or of the
    ledger; where the ledger has gaps, control reads them from the source later.  Raises BadInput, with a remedy.
    """
    lock(session, target.id)
    _, recipe = recipe_of(session, target)
    if device not in recipe.devices:
        devices = ", ".join(recipe.devices)
        raise BadInput(f"Target {target.name} is not measured on {device}; its recipe says {devices}.")
    if good == bad:
        raise BadInput(f"Both ends are {short(good)}; name an older fast revision and a newer slow one.")
    name = suite or recipe.suite_on(device)
    wanted = _wanted(recipe, name, cases)
    for row in session.execute(_open_ones(target.id).order_by(Bisection.id)).scalars():
        if (row.device, row.suite, row.good, row.bad) == (device, name, good, bad) and {*wanted} <= {*row.cases}:
            return row
    row = Bisection(
        target_id=target.id,
        device=device,
        suite=name,
        cases=wanted,
        good=good,
        bad=bad,
        line=lines.known_line(session, target, good, bad) if line is None else lines.sound(target, good, bad, line),
        state=SearchState.VERIFYING,
        asked_by=asked_by,
        incident_id=incident_id,
        max_runs=max_runs or effective(recipe, device).bisect.max_runs,
        created_at=clock(session),
    )
    if line is not None:
        lines.store(session, target, row, line)
    session.add(row)
    session.flush()
    transitions.search_began(session, row)
    wake(session, CONTROL)
    return row


def open_ids(session: Session, target_id: int) -> set[int]:
    """The bisections of a target that have not ended."""
    return {bisection.id for bisection in session.execute(_open_ones(target_id)).scalars()}


def may_start(session: Session, target: Target, policy: Policy) -> bool:
    """Whether the policy allows automatic bisections and today's budget is not spent."""
    return policy.bisect.automatic and _spent_today(session, target.id) < policy.bisect.max_runs_per_day


def store_line(session: Session, bisection_id: int, line: Sequence[Found]) -> None:
    """Store the revisions after the good end, oldest first, that a source listed."""
    if (row := _held(session, bisection_id)) is not None and not row.line:
        target = session.get_one(Target, row.target_id)
        row.line = lines.sound(target, row.good, row.bad, line)
        lines.store(session, target, row, line)
        transitions.search_began(session, row)


# -- advance


def advance(session: Session, bisection_id: int, merge: Merge | None = None) -> None:
    """Queue the next step of an open bisection, or end it.  Does nothing while a step is queued or measured."""
    row = _held(session, bisection_id)
    if row is None or not row.line:
        return
    search = steps.search(session, row)
    if search.pending is not None or search.progress is None:
        return
    progress = search.progress
    if progress.ending is not None:
        _end(session, row, progress.ending.state, said(progress, search.names, merge), progress)
    elif progress.question is not None:
        _ask(session, row, search, progress, progress.question)


def waits(session: Session, bisection_id: int) -> bool:
    """Whether this bisection waits for its daily budget, and that is still spent.  A cheap check."""
    row = session.get_one(Bisection, bisection_id)
    if not row.waits_for_budget:
        return False
    _, recipe = recipe_of(session, session.get_one(Target, row.target_id))
    return row.device in recipe.devices and _has_to_wait(session, row, effective(recipe, row.device))


def give_up(session: Session, bisection_id: int, why: str) -> None:
    """End a bisection that cannot continue, for example because its ends are not on one line."""
    if (row := _held(session, bisection_id)) is not None:
        _end(session, row, SearchState.STOPPED, why)


def stop(session: Session, bisection_id: int, who: str) -> Bisection:
    """Stop a bisection for a person.  Its queued step is cancelled, and its findings so far are kept."""
    bisection = session.get(Bisection, bisection_id)
    if bisection is None:
        raise NotFound("bisection", bisection_id, "`kernelwatch bisection list` lists them.")
    row = _held(session, bisection_id)
    if row is None:
        session.refresh(bisection)
        raise Conflict(f"Bisection {bisection_id} has ended already: {bisection.state}.")
    search = steps.search(session, row)
    if search.pending is not None:
        queue.cancel(session, search.pending.id, who)
    words = said(search.progress, search.names) if search.steps and search.progress else ""
    so_far = f" {words[:1].upper()}{words[1:]}." if words else ""
    _end(session, row, SearchState.STOPPED, f"Stopped by {who}.{so_far}")
    name = session.get_one(Target, row.target_id).name
    audit.record(session, "bisection.stop", target=name, of=f"bisection {bisection_id}")
    return row


def _ask(session: Session, row: Bisection, search: BisectionView, progress: Progress, question: Question) -> None:
    words = said(progress, search.names)
    target = session.get_one(Target, row.target_id)
    _, recipe = recipe_of(session, target)
    if why := _no_longer(recipe, row):
        _end(
            session,
            row,
            SearchState.STOPPED,
            f"The recipe changed: {why} Start a new bisection.",
        )
        return
    policy = effective(recipe, row.device)
    row.waits_for_budget = _has_to_wait(session, row, policy)
    if row.waits_for_budget:
        row.reason = f"waits for tomorrow's budget ({policy.bisect.max_runs_per_day} steps a day); {words}"
        return
    of_moved = sorted({case for _, case in progress.sizes})
    revision = session.execute(
        select(Revision).where(Revision.target_id == row.target_id, Revision.sha == question.revision)
    ).scalar_one()
    internal_run(
        session,
        target,
        revision,
        Purpose.BISECTION,
        key=f"{row.id}:{len(search.steps) + 1}",
        device=row.device,
        suite=row.suite,
        baseline=question.against,
        cases=row.cases if question.aim is Aim.VERIFY else of_moved,
        bisection_id=row.id,
    )
    row.state, row.reason = _STATE[question.aim], words


def _no_longer(recipe: recipes.Recipe, row: Bisection) -> str | None:
    """Why a bisection cannot continue with the current recipe; None where it can."""
    if row.device not in recipe.devices:
        return f"{row.device} is no longer among its devices."
    try:
        gone = sorted({*row.cases} - {str(case) for case in recipe.cases(row.suite)})
    except BadInput as error:
        return str(error)
    return f"suite {row.suite} no longer has {gone[0]}." if gone else None


def _end(session: Session, row: Bisection, state: SearchState, why: str, progress: Progress | None = None) -> None:
    row.state, row.reason, row.finished_at = state, why, clock(session)
    row.waits_for_budget = False
    row.culprit = progress.culprit if progress else None
    slower = moved(progress.of(Aim.PROVE)[-1].step) if progress and row.culprit else {}
    last = next((run.id for run in reversed(steps.steps_of(session, row.id))), None)
    session.flush()
    transitions.search_ended(session, row, last, slower.keys())


# -- read


def one(session: Session, bisection_id: int) -> BisectionView:
    """A bisection with its steps."""
    row = session.get(Bisection, bisection_id)
    if row is None:
        raise NotFound("bisection", bisection_id, "`kernelwatch bisection list` lists them.")
    return steps.search(session, row)


def of_incident(session: Session, incident_id: int, limit: int = 5) -> list[int]:
    """The newest bisections that were started for an incident, the newest first."""
    ours = select(Bisection.id).where(Bisection.incident_id == incident_id)
    return list(session.scalars(ours.order_by(Bisection.id.desc()).limit(limit)))


def listed(
    session: Session,
    target: Target | None = None,
    *,
    open_only: bool = False,
    where: Collection[ColumnElement[bool]] = (),
    cursor: str | None = None,
    limit: int = 50,
) -> ResultPage[Bisection]:
    """The newest bisections, each with its target; `reason` holds their progress or their result."""
    rows = select(Bisection).options(selectinload(Bisection.target)).where(*where)
    if target is not None:
        rows = rows.where(Bisection.target_id == target.id)
    if open_only:
        rows = rows.where(Bisection.state.in_(OPEN_SEARCHES))
    return paged(session, rows, (Bisection.id,), cursor, limit)


def due(session: Session) -> list[int]:
    """The open bisections without a queued or running step, oldest first."""
    under_way = exists().where(Run.bisection_id == Bisection.id, Run.state.in_(OPEN_STATES))
    waiting = select(Bisection.id).where(Bisection.state.in_(OPEN_SEARCHES), ~under_way)
    return list(session.execute(waiting.order_by(Bisection.id)).scalars())


def _wanted(recipe: recipes.Recipe, suite: str, cases: Sequence[str]) -> list[str]:
    names = [str(case) for case in recipe.cases(suite)]
    unknown = sorted({*cases} - {*names})
    if unknown:
        raise BadInput(f"Suite {suite} has no case {unknown[0]}; it has {len(names)}, the first is {names[0]}.")
    return sorted({*cases}) or sorted(names)


def _held(session: Session, bisection_id: int) -> Bisection | None:
    """The row of an open bisection, locked after its target; None once it has ended."""
    target_id = session.scalar(select(Bisection.target_id).where(Bisection.id == bisection_id))
    if target_id is None:
        return None
    lock(session, target_id)
    rows = _open_ones(target_id).where(Bisection.id == bisection_id).with_for_update()
    return session.execute(rows.execution_options(populate_existing=True)).scalar_one_or_none()


def _open_ones(target_id: int) -> Select[Bisection]:
    return select(Bisection).where(Bisection.target_id == target_id, Bisection.state.in_(OPEN_SEARCHES))


def _has_to_wait(session: Session, row: Bisection, policy: Policy) -> bool:
    return row.asked_by == KERNELWATCH and _spent_today(session, row.target_id) >= policy.bisect.max_runs_per_day


def _spent_today(session: Session, target_id: int) -> int:
    """Number of steps of automatic bisections queued in the last 24 hours."""
    now = clock(session)
    steps = (
        select(func.count(Run.id))
        .join(Bisection, Bisection.id == Run.bisection_id)
        .where(Bisection.target_id == target_id, Bisection.asked_by == KERNELWATCH)
        .where(Run.created_at.between(now - DAY_S, now))
    )
    return session.execute(steps).scalar_one()


log = structlog.get_logger()


def start_due() -> int:
    """Start bisections within the budget of the policy.  Returns how many were started.

    Each regression is bisected once automatically; a person may start another with `kernelwatch bisection start`.
    """
    started = 0
    for target_id in within_budget(_targets()):
        key = "auto start", target_id
        if backoff.should_skip(key):
            continue
        try:
            with transaction() as session:
                started += _start(session, target_id)
            backoff.succeeded(key)
        except Exception:  # one target must not hold up the others
            backoff.failed(key)
            log.exception("bisection could not be started", target=target_id)
    return started


def _targets() -> list[int]:
    """The targets with a regression to bisect and budget left.  Only these are locked afterwards."""
    with reading() as session:
        rows = select(Series.target_id, Series.device).join(RegressionRow.series).where(*_WITHOUT_CULPRIT).distinct()
        allowed = {target_id for target_id, device in session.execute(rows).all() if _may(session, target_id, device)}
    return sorted(allowed)


def _may(session: Session, target_id: int, device: str) -> bool:
    target = session.get_one(Target, target_id)
    try:
        _, recipe = recipe_of(session, target)
    except BadInput:  # written for another version of this program
        return False
    return may_start(session, target, effective(recipe, device))


_searched = (
    exists()
    .where(RegressionEvent.regression_id == RegressionRow.id)
    .where(RegressionEvent.what.in_([Action.SEARCH.value, Action.GIVE_UP.value]))
)
# A leak consists of steps too small for a bisection, and a change point has its own bisection.
_WITHOUT_CULPRIT = (
    RegressionRow.state == RegressionState.OPEN,
    RegressionRow.found_by == FoundBy.PAIR,
    RegressionRow.culprit.is_(None),
    RegressionRow.good.is_not(None),
    ~_searched,
)


def _start(session: Session, target_id: int) -> int:
    """Start one bisection for all cases of an incident that have the same two ends."""
    lock(session, target_id)
    target = session.get_one(Target, target_id)
    rows = session.execute(
        select(RegressionRow, Run.suite, Revision.sha)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(Series.target_id == target_id, Revision.ordinal.is_not(None), *_WITHOUT_CULPRIT)
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    )
    together = defaultdict[tuple[str, str, str, str, int | None], list[RegressionRow]](list)
    for row, suite, sha in rows:
        together[row.device, suite, row.good or "", sha, row.incident_id].append(row)
    _, recipe = recipe_of(session, target)
    started = 0
    for (device, suite, good, bad, incident_id), alike in together.items():
        if not may_start(session, target, effective(recipe, device)):
            continue
        cases = sorted({row.case for row in alike})
        try:
            start(
                session,
                target,
                device,
                good,
                bad,
                cases,
                asked_by=KERNELWATCH,
                suite=suite,
                incident_id=incident_id,
            )
            started += 1
        except ServiceError as refusal:
            for row in alike:
                words = f"no bisection was started: {refusal}"
                transitions.change(session, row, Transition(Action.GIVE_UP, words=words), clock(session))
    return started
