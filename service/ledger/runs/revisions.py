"""Revisions appeared: they get their place on the mainline and their runs, in the caller's one transaction, once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, wake
from service.db.models import Push, Recipe, Revision, Run, Target
from service.domain.policy import recipes
from service.domain.states import OPEN_STATES, Origin, Priority, RunState, TargetKind
from service.errors import BadInput, Conflict, NotFound
from service.ledger.locking import lock
from service.ledger.regressions import transitions
from service.ledger.runs.queue import newest_push
from service.sources.source import Found

log = structlog.get_logger()

NOTHING_THAT_MATTERS = "none of the paths that matter changed"
ATTEMPTS = 3
UNDONE = (RunState.CANCELLED, RunState.SUPERSEDED)  # ended without an answer: appearing again queues them again


@dataclass(frozen=True)
class Appeared:
    """What became of revisions that appeared: how many runs were made, or made again, in which state."""

    push: Push
    revisions: int
    queued: int
    held: int
    skipped: int
    superseded: int

    def __str__(self) -> str:
        counts = {"queued": self.queued, "held for approval": self.held, "skipped": self.skipped}
        runs = [_number(count, "run", state) for state, count in counts.items() if count]
        if self.superseded:
            runs.append(_number(self.superseded, "older run", "superseded"))
        return f"{_number(self.revisions, 'revision', 'at')} {self.push.head[:10]}: {', '.join(runs) or 'nothing new'}"


def revisions_appeared(
    session: Session,
    target: Target,
    origin: Origin,
    found: Sequence[Found],
    head: str,
    *,
    pull: int | None = None,
    baseline: str | None = None,
    trusted: bool = True,
    devices: Sequence[str] | None = None,
    suite: str | None = None,
    mainline: bool = False,
    later: Sequence[str] = (),
    delivery_id: int | None = None,
) -> Appeared:
    """`found`, oldest first along first parents, appeared and `head` is the newest.  Saying it twice changes nothing.

    On the mainline every revision gets a run against its parent, and `later` names those that follow there; of a pull
    request only the head gets one, against `baseline`, and older heads that nobody has begun to measure are
    superseded.  What is not `trusted` is held.
    """
    lock(session, target.id)
    row, recipe = recipe_of(session, target)
    push = _push(session, target, origin, head, pull, delivery_id)
    rows = {one.sha: _revision(session, target, one) for one in found}
    if mainline:
        _place(session, target, found, later)
        transitions.revisions_returned(session, target.id)
    superseded = _supersede(session, target, pull, rows[head], head) if pull is not None else 0
    wanted = [one for one in found if pull is None or one.sha == head]
    changed = sorted({path for one in found for path in one.paths}) if pull is not None else None
    states = []
    for one in wanted:
        matters = target.kind is TargetKind.PACKAGE or recipe.matters(one.paths if changed is None else changed)
        for device in devices or recipe.devices:
            values = {
                "baseline": one.parent if pull is None else baseline,
                "push_id": push.id,
                "pull": pull,
                "trusted": trusted,
                "priority": _priority(origin, pull),
                "state": _first_state(matters, trusted),
            }
            name = suite or recipe.suite_on(device)
            run, fresh = _run(session, target, rows[one.sha], row, device, name, values)
            if pull is not None:
                run.notified_state = ""  # it may have been told of, and then a newer head, which is gone now
            if fresh:
                states.append(run.state)
    count = {state: states.count(state) for state in set(states)}
    return Appeared(
        push,
        len(wanted),
        count.get(RunState.QUEUED, 0),
        count.get(RunState.HELD, 0),
        count.get(RunState.SKIPPED, 0),
        superseded,
    )


def run_wanted(
    session: Session, target: Target, found: Found, *, device: str, suite: str | None = None, again: bool = False
) -> Run:
    """Somebody asked for this revision on this device.  What was measured is measured `again` only if they say so."""
    lock(session, target.id)
    row, recipe = recipe_of(session, target)
    if device not in recipe.devices:
        devices = ", ".join(recipe.devices)
        raise BadInput(f"Target {target.name} is not measured on {device}; its recipe says {devices}.")
    name = suite or recipe.suite_on(device)
    recipe.cases(name)
    revision = _revision(session, target, found)
    push = _push(session, target, Origin.MANUAL, found.sha, None, None)
    values = {
        "baseline": found.parent,
        "push_id": push.id,
        "pull": None,
        "trusted": True,
        "priority": Priority.PULL_REQUEST,  # a person waits
        "state": RunState.QUEUED,
    }
    run, fresh = _run(session, target, revision, row, device, name, values, again=again)
    if run.state is RunState.SKIPPED:
        _requeue(session, run, values)
    elif run.state is RunState.QUEUED and not fresh:
        run.priority, run.not_before = min(run.priority, Priority.PULL_REQUEST), 0.0
    return run


def approve(session: Session, run_id: int) -> list[Run]:
    """Let exactly this commit of a stranger run, on every device that waits for it.  A later push is held again."""
    run = session.get(Run, run_id)
    if run is None:
        raise NotFound("run", run_id)
    if run.state is not RunState.HELD:
        raise Conflict(f"Run {run_id} is {run.state}; only a held run can be approved.")
    same = (Run.target_id == run.target_id, Run.revision_id == run.revision_id, Run.pull == run.pull)
    approved = list(session.execute(select(Run).where(*same, Run.state == RunState.HELD).with_for_update()).scalars())
    for one in approved:
        one.state, one.reason = RunState.QUEUED, None
        wake(session, one.device)
        log.info("run approved", run=one.id, pull=one.pull)
    return approved


def pull_closed(session: Session, target: Target, pull: int) -> int:
    """Nobody waits for this pull request any more: what has not begun is cancelled."""
    lock(session, target.id)
    if push := newest_push(session, target.id, pull):
        push.closed_at = clock(session)
    return _end(session, target, pull, RunState.CANCELLED, f"pull request {pull} was closed")


def revisions_known(session: Session, target: Target, found: Sequence[Found], *, mainline: bool) -> list[Revision]:
    """Rows for revisions that a search passes through and that nobody asked to be measured: none gets a run."""
    lock(session, target.id)
    rows = [_revision(session, target, one) for one in found]
    if mainline:
        _place(session, target, found, ())
    return rows


def revisions_left(session: Session, target: Target, shas: Iterable[str]) -> None:
    """The mainline was rewritten without these: they keep what was measured, and lose their place."""
    lock(session, target.id)
    gone = [revision for revision in _by_sha(session, target, shas) if revision.ordinal is not None]
    for revision in gone:
        revision.ordinal = None
    session.flush()
    left = (Run.revision_id.in_([one.id for one in gone]), Run.priority != Priority.PULL_REQUEST)  # unless asked for
    _end(session, target, None, RunState.SUPERSEDED, "the mainline was rewritten without this revision", *left)
    transitions.revisions_left(session, [one.id for one in gone])


def mainline_of(session: Session, target: Target) -> list[str]:
    """The shas of the revisions known to be on the mainline, oldest first."""
    on_it = (Revision.target_id == target.id, Revision.ordinal.is_not(None))
    return list(session.execute(select(Revision.sha).where(*on_it).order_by(Revision.ordinal)).scalars())


def recipe_of(session: Session, target: Target) -> tuple[Recipe, recipes.Recipe]:
    """The target's recipe as it is now: the stored version, and what it says."""
    if target.recipe_id is None:
        raise BadInput(f"Target {target.name} has no recipe yet.")
    row = session.get_one(Recipe, target.recipe_id)
    return row, recipes.parse(row.text)


def _push(
    session: Session, target: Target, origin: Origin, head: str, pull: int | None, delivery_id: int | None
) -> Push:
    """The newest push of this kind when it said the same; otherwise a new one."""
    last = session.execute(
        select(Push)
        .where(Push.target_id == target.id, Push.origin == origin, Push.pull == pull)
        .order_by(Push.id.desc())
        .limit(1)
    ).scalar_one_or_none()
    if last is not None and last.head == head:
        last.closed_at = None
        if delivery_id is not None:
            last.delivery_id = max(last.delivery_id or 0, delivery_id)
        return last
    push = Push(
        target_id=target.id, origin=origin, head=head, pull=pull, delivery_id=delivery_id, created_at=clock(session)
    )
    session.add(push)
    session.flush()
    return push


def _revision(session: Session, target: Target, found: Found) -> Revision:
    revision = session.execute(
        select(Revision).where(Revision.target_id == target.id, Revision.sha == found.sha)
    ).scalar_one_or_none()
    if revision is None:
        revision = Revision(
            target_id=target.id,
            sha=found.sha,
            parent=found.parent,
            subject=found.subject,
            author=found.author,
            committed_at=found.committed_at,
            paths=list(found.paths),
        )
        session.add(revision)
        session.flush()
    return revision


def _place(session: Session, target: Target, found: Sequence[Found], later: Sequence[str]) -> None:
    """Give the found revisions their ordinals: after their parent, else before what follows on the mainline, else last.

    A backfill reaches behind what is known, so everything after it moves up.  Numbers change; the order does not.
    """
    on_it = (Revision.target_id == target.id, Revision.ordinal.is_not(None))
    before = dict(
        session.execute(select(Revision.sha, Revision.ordinal).where(*on_it).order_by(Revision.ordinal)).all()
    )
    line, placed = list(before), set(before)
    for place, one in enumerate(found):
        if one.sha in placed:
            continue
        follows = next((sha for sha in (*(after.sha for after in found[place + 1 :]), *later) if sha in placed), None)
        if one.parent in placed:
            line.insert(line.index(one.parent) + 1, one.sha)
        else:
            line.insert(line.index(follows) if follows else len(line), one.sha)
        placed.add(one.sha)
    moved = {sha: ordinal for ordinal, sha in enumerate(line) if before.get(sha) != ordinal}
    for revision in _by_sha(session, target, moved):
        revision.ordinal = moved[revision.sha]
    session.flush()


def _by_sha(session: Session, target: Target, shas: Iterable[str]) -> Iterable[Revision]:
    every, most = list(shas), 500  # databases limit how many parameters a statement may have
    for start in range(0, len(every), most):
        some = every[start : start + most]
        yield from session.execute(
            select(Revision).where(Revision.target_id == target.id, Revision.sha.in_(some))
        ).scalars()


def _run(
    session: Session,
    target: Target,
    revision: Revision,
    recipe: Recipe,
    device: str,
    suite: str,
    values: dict[str, Any],
    *,
    again: bool = False,
) -> tuple[Run, bool]:
    """The run of this revision, device, suite and recipe, and whether it is new or queued anew."""
    dedupe = f"{target.id}:{revision.sha}:{device}:{suite}:{values['pull'] or ''}:{recipe.digest[:12]}"
    if again:
        dedupe = _one_more(session, dedupe)
    run = session.execute(select(Run).where(Run.dedupe == dedupe)).scalar_one_or_none()
    if run is not None:
        if run.state not in UNDONE:
            return run, False
        _requeue(session, run, values)
        return run, True
    run = Run(
        dedupe=dedupe,
        target_id=target.id,
        revision_id=revision.id,
        recipe_id=recipe.id,
        device=device,
        suite=suite,
        attempt=0,
        max_attempts=ATTEMPTS,
        created_at=clock(session),
        **values,
    )
    session.add(run)
    session.flush()
    _settle(session, run)
    return run, True


def _one_more(session: Session, dedupe: str) -> str:
    """A key that no run has: the first measurement's, or one with the next number."""
    same = (Run.dedupe == dedupe) | Run.dedupe.startswith(f"{dedupe}+", autoescape=True)
    taken = session.execute(select(func.count()).select_from(Run).where(same)).scalar_one()
    return f"{dedupe}+{taken}" if taken else dedupe


def _requeue(session: Session, run: Run, values: dict[str, Any]) -> None:
    """As if it were new, but for its attempts: they are the fence against whoever held it before."""
    for name, value in values.items():
        setattr(run, name, value)
    run.max_attempts = run.attempt + ATTEMPTS
    run.started_at = run.finished_at = run.reason = run.log = None
    run.not_before = 0.0
    _settle(session, run)


def _settle(session: Session, run: Run) -> None:
    """Say why a run does not wait in the queue, or wake those who take from it."""
    if run.state is RunState.SKIPPED:
        run.finished_at, run.reason = clock(session), NOTHING_THAT_MATTERS
    elif run.state is RunState.HELD:
        run.reason = f"a stranger's revision: approve exactly this commit with `kernelwatch approve {run.id}`"
    else:
        wake(session, run.device)
    session.flush()


def _first_state(matters: bool, trusted: bool) -> RunState:
    if not matters:
        return RunState.SKIPPED
    return RunState.QUEUED if trusted else RunState.HELD


def _priority(origin: Origin, pull: int | None) -> Priority:
    if origin is Origin.BACKFILL:
        return Priority.BACKFILL
    return Priority.MAINLINE if pull is None and origin is not Origin.MANUAL else Priority.PULL_REQUEST


def _supersede(session: Session, target: Target, pull: int, newest: Revision, head: str) -> int:
    why = f"{head[:10]} is a newer head of pull request {pull}"
    return _end(session, target, pull, RunState.SUPERSEDED, why, Run.revision_id != newest.id)


def _end(session: Session, target: Target, pull: int | None, state: RunState, why: str, *which: Any) -> int:
    """End runs of a pull request (None: of the mainline) that nobody has begun; a leased one is left to finish."""
    waiting = [one for one in OPEN_STATES if one is not RunState.LEASED]
    ended = session.execute(
        update(Run)
        .where(Run.target_id == target.id, Run.pull == pull, Run.state.in_(waiting), *which)
        .values(state=state, reason=why, finished_at=clock(session))
        .returning(Run.id)
    ).all()
    return len(ended)


def _number(count: int, noun: str, rest: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'} {rest}"
