"""Record revisions once, in the transaction of the caller: their places on the mainline, and their runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Pull, PushRow, RecipeRow, Revision, Run, Target, Worker
from service.domain.forges import pull_name
from service.domain.policy import recipes
from service.domain.states import OPEN_STATES, Origin, Priority, Purpose, RunState, TargetKind
from service.domain.text import WORKER_GONE_S, is_recent
from service.errors import BadInput, Conflict, NotFound
from service.ledger import audit
from service.ledger.locking import insert_if_absent, lock
from service.ledger.regressions import transitions
from service.ledger.regressions.decisions import baseline_in_key, runs_of_head
from service.ledger.runs.queue import enqueue, locked_run, pull_of
from service.sources.source import Found

log = structlog.get_logger()

NO_RELEVANT_CHANGE = "no path of the recipe changed"
ATTEMPTS = 3
_KEY_BASELINE = 12  # characters of a baseline in the key of a run
STORED_PATHS, STORED_PATH_CHARACTERS = 200, 16_384  # of one revision, for its readers
UNDONE = (RunState.CANCELLED, RunState.SUPERSEDED)  # ended without an answer: appearing again queues them again


@dataclass(frozen=True)
class Push:
    """Revisions that a source has and the ledger did not know, oldest first along first parents.

    On the mainline every revision is measured against its parent: `later` names the known revisions that follow, and
    `gone` those that a rewrite removed.  Of a pull request only the newest is measured, against `baseline`, and runs of
    its older heads, or of another baseline, that were not started are superseded.  What is not `trusted` is held for
    approval.  With `refused`, its newest head could not be fetched, for this reason, and only the sha is known.
    `baselines` names the only revisions that are measured, each with what it is compared with: those of a sample, or
    the head of a merge queue's group.
    """

    origin: Origin
    found: tuple[Found, ...]
    mainline: bool = False
    later: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    pull: int | None = None
    baseline: str | None = None
    trusted: bool = True
    delivery_id: int | None = None
    refused: str | None = None
    baselines: Mapping[str, str] = field(default_factory=dict)

    @property
    def priority(self) -> Priority:
        if self.origin is Origin.BACKFILL:
            return Priority.BACKFILL
        person_waits = self.pull is not None or self.origin in (Origin.MANUAL, Origin.MERGE_GROUP)
        return Priority.PULL_REQUEST if person_waits else Priority.MAINLINE

    def between(self, commit: Found) -> Sequence[Found]:
        """The commits that a comparison of this one covers: itself, and with a baseline of its own those since that."""
        if commit.sha not in self.baselines:
            return (commit,)
        shas = [each.sha for each in self.found]
        before = self.baselines[commit.sha]
        return self.found[shas.index(before) + 1 if before in shas else 0 : shas.index(commit.sha) + 1]

    def state(self, *, matters: bool) -> RunState:
        """Of a new run."""
        if self.refused is not None:
            return RunState.FAILED
        if not matters:
            return RunState.SKIPPED
        return RunState.QUEUED if self.trusted else RunState.HELD


@dataclass(frozen=True)
class PushResult:
    """The result of a push: how many runs were created or queued again, by state."""

    push: PushRow
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


def record_push(session: Session, target: Target, push: Push) -> PushResult:
    """Give the revisions of a push their places on the mainline and their runs.  Recording it twice changes nothing."""
    lock(session, target.id)
    if push.gone:
        revisions_left(session, target, push.gone)
    row, recipe = recipe_of(session, target)
    head = push.found[-1].sha if push.found else mainline_of(session, target)[-1]
    kept = _push_row(session, target, push.origin, head, push.pull, push.delivery_id)
    rows = {commit.sha: _revision(session, target, commit) for commit in push.found}
    if push.mainline:
        _place(session, target, push.found, push.later)
        transitions.revisions_returned(session, target.id)
    earlier = runs_of_head(session, target.id, push.pull, head) if push.pull is not None else ()
    moved = bool(earlier) and push.refused is None and not _is_against(earlier[-1], push.baseline)
    approved = moved and any(map(_is_approved, earlier))  # the commit, whatever it is compared with
    base = baseline_in_key(earlier[-1]) if earlier and push.refused is not None else None  # a refusal knows none
    turns = _turns_of_pull(session, target, push.pull) if push.pull is not None else {}
    superseded = _new_head(session, target, push.pull, rows[head], moved=moved) if push.pull is not None else 0
    if push.origin is Origin.MERGE_GROUP:
        base = push.baselines[head][:_KEY_BASELINE]  # once merged it is measured again, as a revision of the mainline
    wanted = push.found if push.pull is None else push.found[-1:]
    if push.baselines:
        wanted = tuple(commit for commit in push.found if commit.sha in push.baselines)
    states = Counter[RunState]()
    for commit in wanted:
        changed = push.between(commit) if push.pull is None else push.found
        matters = target.kind is TargetKind.PACKAGE or any(
            each.more_paths or recipe.matters(each.paths) for each in changed
        )
        values = {
            "baseline": push.baselines.get(commit.sha, commit.parent) if push.pull is None else push.baseline,
            "push_id": kept.id,
            "pull": push.pull,
            "trusted": push.trusted,
            "priority": push.priority,
            "state": push.state(matters=matters),
            "reason": push.refused,
        }
        if approved and values["state"] is RunState.HELD:
            values["state"] = RunState.QUEUED
        for device in devices_of(session, target, commit.sha):
            suite = recipe.suite_on(device)
            run, fresh = _run(session, target, rows[commit.sha], row, device, suite, values, again=moved, base=base)
            if fresh and run.state is RunState.QUEUED and device in turns:
                run.turn = turns[device]
            if push.pull is not None:
                run.notified_state = ""  # a newer head may have been reported since, which is gone now
            states[run.state] += fresh
    return PushResult(
        push=kept,
        revisions=len(wanted),
        queued=states[RunState.QUEUED],
        held=states[RunState.HELD],
        skipped=states[RunState.SKIPPED],
        superseded=superseded,
    )


def group_dropped(session: Session, target: Target, head: str) -> int:
    """Cancel the runs of a merge queue's commit that was dropped.  Returns how many had not begun."""
    lock(session, target.id)
    of_group = (PushRow.target_id == target.id, PushRow.origin == Origin.MERGE_GROUP, PushRow.head == head)
    of_it = (Run.revision.has(sha=head, ordinal=None), Run.push_id.in_(select(PushRow.id).where(*of_group)))
    return _end(session, target, None, RunState.CANCELLED, "the merge queue dropped this commit", *of_it)


def run_wanted(
    session: Session,
    target: Target,
    commit: Found,
    *,
    device: str,
    trusted: bool,
    baseline: str | None = None,
    suite: str | None = None,
    again: bool = False,
) -> Run:
    """The run of this revision on this device, requested by a person.  `again` repeats one that was measured.

    It is compared with `baseline`, by default its parent; a pull request's run of the same comparison serves as well.
    What is not `trusted` is held for approval.
    """
    lock(session, target.id)
    row, name = _recipe_and_suite(session, target, device, suite)
    revision = _revision(session, target, commit)
    push = _push_row(session, target, Origin.MANUAL, commit.sha, None, None)
    values = {
        "baseline": baseline or commit.parent,
        "push_id": push.id,
        "pull": None,
        "trusted": trusted,
        "priority": Priority.PULL_REQUEST,  # a person waits
        "state": RunState.QUEUED if trusted else RunState.HELD,
        "reason": None,
    }
    run = None if again else _run_of_pull(session, revision, row, device, name, values)
    fresh = False
    if run is None:
        run, fresh = _run(session, target, revision, row, device, name, values, again=again)
    if run.state is RunState.SKIPPED:
        _requeue(session, run, values)
    elif run.state is RunState.QUEUED and not fresh:
        run.not_before = 0.0
        if run.priority > Priority.PULL_REQUEST:
            run.priority = Priority.PULL_REQUEST
            enqueue(session, run)
    return run


def _run_of_pull(
    session: Session, revision: Revision, recipe: RecipeRow, device: str, suite: str, values: dict[str, Any]
) -> Run | None:
    """The newest run of a pull request that answers a request of the same comparison.

    Not one that was cancelled, superseded or skipped, nor one that is held although its commit is trusted now.
    """
    same = (Run.revision_id == revision.id, Run.device == device, Run.suite == suite, Run.recipe_id == recipe.id)
    theirs = select(Run).where(*same, Run.pull.is_not(None), Run.purpose == Purpose.WATCH).order_by(Run.id.desc())
    no_answer = {*UNDONE, RunState.SKIPPED, *([RunState.HELD] if values["trusted"] else [])}
    alike = (run for run in session.scalars(theirs) if _is_against(run, values["baseline"]))
    return next((run for run in alike if run.state not in no_answer), None)


def run_of_revision(
    session: Session,
    target: Target,
    sha: str | None,
    pull: int | None,
    device: str,
    *,
    suite: str | None = None,
    again: bool = False,
) -> Run:
    """The run of a known revision on this device, as a head of `pull` or of the mainline, requested by a person.

    `again` repeats a measurement, and a run that ended without one; one that waits or is measured stays as it is.  The
    head of a stranger is held until somebody approves it; its approval holds for all of its runs.  Raises NotFound
    where the revision has no run yet.
    """
    lock(session, target.id)
    row, name = _recipe_and_suite(session, target, device, suite)
    revision = session.scalar(select(Revision).where(Revision.target_id == target.id, Revision.sha == sha))
    if revision is None:
        raise NotFound("revision", sha)
    same = (Run.target_id == target.id, Run.pull == pull, Run.purpose == Purpose.WATCH, Run.revision_id == revision.id)
    runs = session.scalars(select(Run).where(*same).order_by(Run.id)).all()
    if not runs:
        raise NotFound("run", f"of {revision.short}")
    alike = [run for run in runs if (run.device, run.suite) == (device, name)]
    if again and alike and alike[-1].state in OPEN_STATES:
        return alike[-1]
    newest = runs[-1]
    values = {
        "baseline": newest.baseline,
        "push_id": newest.push_id,
        "pull": pull,
        "trusted": newest.trusted,
        "priority": Priority.PULL_REQUEST,  # a person waits
        "state": RunState.QUEUED if any(map(_is_approved, runs)) else RunState.HELD,
        "reason": None,
    }
    measured = bool(alike) and alike[-1].state is RunState.DONE
    base = baseline_in_key(newest)
    run, fresh = _run(session, target, revision, row, device, name, values, again=again and measured, base=base)
    if not fresh and (run.state is RunState.SKIPPED or (again and run.state is RunState.FAILED)):
        _requeue(session, run, values)
    details = {"revision": revision.sha, "device": device, "suite": name, "again": again}
    audit.record(session, "run.start", target=target.name, of=f"run {run.id}", details=details)
    return run


def second_session(session: Session, first: Run) -> Run:
    """Queue the second session of a run that was measured, behind what people wait for."""
    run = Run(
        dedupe=_one_more(session, first.dedupe.partition("+")[0]),
        target_id=first.target_id,
        revision_id=first.revision_id,
        recipe_id=first.recipe_id,
        baseline=first.baseline,
        push_id=first.push_id,
        pull=first.pull,
        device=first.device,
        suite=first.suite,
        only_cases=first.only_cases,
        trusted=first.trusted,
        second_of=first.id,
        priority=Priority.BISECTION,
        state=RunState.QUEUED,
        attempt=0,
        max_attempts=ATTEMPTS,
        created_at=clock(session),
    )
    session.add(run)
    enqueue(session, run)
    return run


def _is_approved(run: Run) -> bool:
    """Whether the code of its revision may run: it is trusted, or somebody approved it."""
    return run.trusted or run.attempt > 0 or run.state in (RunState.QUEUED, RunState.LEASED, RunState.DONE)


def _recipe_and_suite(session: Session, target: Target, device: str, suite: str | None) -> tuple[RecipeRow, str]:
    """The recipe of a run, and its suite.  Raises BadInput for a device or a suite that the recipe does not have."""
    row, recipe = recipe_of(session, target)
    if device not in recipe.devices:
        devices = ", ".join(recipe.devices)
        raise BadInput(f"Target {target.name} is not measured on {device}; its recipe says {devices}.")
    name = suite or recipe.suite_on(device)
    recipe.cases(name)
    return row, name


def approve(session: Session, run_id: int) -> list[Run]:
    """Release the held runs of exactly this commit, on every device.  A later push is held again."""
    run = session.get(Run, run_id)
    if run is None:
        raise NotFound("run", run_id)
    if run.state is not RunState.HELD:
        raise Conflict(f"Run {run_id} is {run.state}; only a held run can be approved.")
    same = (Run.target_id == run.target_id, Run.revision_id == run.revision_id, Run.pull == run.pull)
    approved = list(session.execute(select(Run).where(*same, Run.state == RunState.HELD).with_for_update()).scalars())
    for other in approved:
        other.reason = None
        enqueue(session, other)
        log.info("run approved", run=other.id, pull=other.pull)
        _recorded(session, "approve", other)
    return approved


def retry(session: Session, run_id: int) -> Run:
    """Queue a run again that ended without a result, with new attempts.  Raises Conflict for any other.

    A stranger's commit that was never approved is held again.
    """
    run = locked_run(session, run_id)
    if run.purpose is not Purpose.WATCH:
        raise Conflict(f"Run {run_id} is part of a {run.purpose}, which decides about it: start another {run.purpose}.")
    if run.state is RunState.DONE:
        raise Conflict(f"Run {run_id} was measured: start another run of its revision, with `again`.")
    if run.state in OPEN_STATES:
        raise Conflict(f"Run {run_id} is {run.state}; only a run that ended without a result can be retried.")
    state = RunState.QUEUED if _is_approved(run) else RunState.HELD
    _requeue(session, run, {"state": state, "reason": None, "priority": Priority.PULL_REQUEST})  # a person waits
    _recorded(session, "retry", run)
    return run


def _recorded(session: Session, verb: str, run: Run) -> None:
    name = session.get_one(Target, run.target_id).name
    revision = session.get_one(Revision, run.revision_id).sha
    details = {"revision": revision, "device": run.device}
    audit.record(session, f"run.{verb}", target=name, of=f"run {run.id}", details=details)


def pull_closed(session: Session, target: Target, pull: int) -> int:
    """Cancel the runs of a closed pull request that were not started."""
    row = locked_pull(session, target.id, pull)
    row.closed_at, row.version = clock(session), row.version + 1
    return _end(session, target, pull, RunState.CANCELLED, f"{pull_name(target.forge_kind, pull)} was closed")


def locked_pull(session: Session, target_id: int, number: int) -> Pull:
    """The row of a pull request, made if it is new.  The target is locked, so that writers take turns."""
    lock(session, target_id)
    insert_if_absent(session, Pull, ("target_id", "number"), {"target_id": target_id, "number": number, "version": 0})
    row = pull_of(session, target_id, number)
    if row is None:
        raise NotFound("pull request", number)
    return row


def revisions_known(session: Session, target: Target, commits: Sequence[Found], *, mainline: bool) -> list[Revision]:
    """Rows for revisions that a bisection passes through; none of them gets a run."""
    lock(session, target.id)
    rows = [_revision(session, target, commit) for commit in commits]
    if mainline:
        _place(session, target, commits, ())
    return rows


def revisions_left(session: Session, target: Target, shas: Iterable[str]) -> None:
    """Take revisions off the mainline after a rewrite.  They keep what was measured, and lose their place."""
    lock(session, target.id)
    gone = [revision for revision in _by_sha(session, target, shas) if revision.ordinal is not None]
    for revision in gone:
        revision.ordinal = None
    session.flush()
    left = (
        Run.revision_id.in_([revision.id for revision in gone]),
        Run.priority != Priority.PULL_REQUEST,
    )  # unless requested
    _end(session, target, None, RunState.SUPERSEDED, "the mainline was rewritten without this revision", *left)
    transitions.revisions_left(session, [revision.id for revision in gone])


def mainline_of(session: Session, target: Target) -> list[str]:
    """The shas of the revisions known to be on the mainline, oldest first."""
    on_it = (Revision.target_id == target.id, Revision.ordinal.is_not(None))
    return list(session.execute(select(Revision.sha).where(*on_it).order_by(Revision.ordinal)).scalars())


def newest_of(session: Session, target: Target) -> str | None:
    """The sha of the newest of them: a long mainline is not read for it."""
    on_it = (Revision.target_id == target.id, Revision.ordinal.is_not(None))
    return session.scalar(select(Revision.sha).where(*on_it).order_by(Revision.ordinal.desc()).limit(1))


def recipe_of(session: Session, target: Target) -> tuple[RecipeRow, recipes.Recipe]:
    """The target's recipe as it is now: the stored version, and what it says."""
    if target.recipe_id is None:
        raise BadInput(f"Target {target.name} has no recipe yet.")
    row = session.get_one(RecipeRow, target.recipe_id)
    return row, recipes.parse(row.text)


def devices_of(session: Session, target: Target, sha: str | None) -> tuple[str, ...]:
    """The devices that a revision is measured on: of those among which the recipe leaves the choice, one.

    It is that on which the revision has a run already, else one with a worker that takes runs; among several of them
    that on which the target was measured last, and at first the first of the list.
    """
    _, recipe = recipe_of(session, target)
    return tuple(among[0] if len(among) == 1 else _chosen(session, target, among, sha) for among in recipe.places)


def _chosen(session: Session, target: Target, among: Sequence[str], sha: str | None) -> str:
    watched = select(Run.device).where(Run.target_id == target.id, Run.device.in_(among), Run.purpose == Purpose.WATCH)
    newest = watched.order_by(Run.id.desc()).limit(1)
    if (here := session.scalar(newest.where(Run.revision.has(sha=sha)))) is not None:
        return here
    recent = is_recent(Worker.seen_at, clock(session), WORKER_GONE_S)
    online = set(
        session.scalars(select(Worker.device).where(Worker.device.in_(among), Worker.paused_at.is_(None), recent))
    )
    able = [device for device in among if device in online] or among
    last = session.scalar(newest.where(Run.state == RunState.DONE, Run.device.in_(able)))
    return last or able[0]


def _push_row(
    session: Session, target: Target, origin: Origin, head: str, pull: int | None, delivery_id: int | None
) -> PushRow:
    """The newest push of this kind where its head is the same; otherwise a new one."""
    last = session.execute(
        select(PushRow)
        .where(PushRow.target_id == target.id, PushRow.origin == origin, PushRow.pull == pull)
        .order_by(PushRow.id.desc())
        .limit(1)
    ).scalar_one_or_none()
    if last is not None and last.head == head:
        if delivery_id is not None:
            last.delivery_id = max(last.delivery_id or 0, delivery_id)
        return last
    push = PushRow(
        target_id=target.id, origin=origin, head=head, pull=pull, delivery_id=delivery_id, created_at=clock(session)
    )
    session.add(push)
    session.flush()
    return push


def _revision(session: Session, target: Target, commit: Found) -> Revision:
    revision = session.execute(
        select(Revision).where(Revision.target_id == target.id, Revision.sha == commit.sha)
    ).scalar_one_or_none()
    if revision is None:
        revision = Revision(
            target_id=target.id,
            sha=commit.sha,
            parent=commit.parent,
            subject=commit.subject,
            author=commit.author,
            committed_at=_seen_at_latest(session, commit),
            paths=_first_paths(commit),
        )
        session.add(revision)
        session.flush()
    elif not revision.committed_at and commit.committed_at:  # could not be fetched before
        revision.parent, revision.subject, revision.author = commit.parent, commit.subject, commit.author
        revision.committed_at, revision.paths = _seen_at_latest(session, commit), _first_paths(commit)
    return revision


def _seen_at_latest(session: Session, commit: Found) -> float:
    """The date of a commit, or now where it lies in the future."""
    return min(commit.committed_at, clock(session))


def _first_paths(commit: Found) -> list[str]:
    """The paths that are stored: a stranger's pull request may have thousands in each of its commits."""
    room, first = STORED_PATH_CHARACTERS, list[str]()
    for path in commit.paths[:STORED_PATHS]:
        if (room := room - len(path)) < 0:
            break
        first.append(path)
    return first


def _place(session: Session, target: Target, commits: Sequence[Found], later: Sequence[str]) -> None:
    """Give the found revisions their ordinals: after their parent, else before what follows on the mainline, else last.

    A backfill reaches behind what is known, so everything after it moves up.  Numbers change; the order does not.
    """
    on_it = (Revision.target_id == target.id, Revision.ordinal.is_not(None))
    before = dict(
        session.execute(select(Revision.sha, Revision.ordinal).where(*on_it).order_by(Revision.ordinal)).all()
    )
    line, placed = list(before), set(before)
    for place, commit in enumerate(commits):
        if commit.sha in placed:
            continue
        follows = next((sha for sha in (*(after.sha for after in commits[place + 1 :]), *later) if sha in placed), None)
        if commit.parent in placed:
            line.insert(line.index(commit.parent) + 1, commit.sha)
        else:
            line.insert(line.index(follows) if follows else len(line), commit.sha)
        placed.add(commit.sha)
    moved = {sha: ordinal for ordinal, sha in enumerate(line) if before.get(sha) != ordinal}
    for revision in _by_sha(session, target, moved):
        revision.ordinal = moved[revision.sha]
    session.flush()
    if moved and target.kind is not TargetKind.PACKAGE:  # the order of releases is that of their versions
        _date_in_order(session, target)


def _date_in_order(session: Session, target: Target) -> None:
    """Let no revision of the mainline be older than the one before.

    What sorts or selects by date then follows the line: a rebased commit keeps an old date, clocks of authors differ,
    and a date outside of the calendar is read as 1970.
    """
    latest, wrong = 0.0, dict[str, float]()
    rows = select(Revision.sha, Revision.committed_at, Revision.subject)
    on_it = (Revision.target_id == target.id, Revision.ordinal.is_not(None))
    for sha, at, subject in session.execute(rows.where(*on_it).order_by(Revision.ordinal)):
        if at < latest and (at or subject):  # neither a date nor a subject: it could not be fetched yet
            wrong[sha] = latest
        latest = max(latest, at)
    for revision in _by_sha(session, target, wrong):
        revision.committed_at = wrong[revision.sha]
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
    recipe: RecipeRow,
    device: str,
    suite: str,
    values: dict[str, Any],
    *,
    again: bool = False,
    base: str | None = None,
) -> tuple[Run, bool]:
    """The run of this revision, device, suite, recipe and baseline, and whether it is new or queued anew.

    `base` is the baseline as another run has it in its key.
    """
    pull, baseline = values["pull"], values["baseline"]
    unbased = f"{target.id}:{revision.sha}:{device}:{suite}:{pull or ''}:{recipe.digest[:12]}"
    if base is None:
        base = "" if baseline is None or (pull is None and baseline == revision.parent) else baseline[:_KEY_BASELINE]
    dedupe = f"{unbased}^{base}" if base else unbased
    if again:
        dedupe = _one_more(session, dedupe)
    run = session.execute(select(Run).where(Run.dedupe == dedupe)).scalar_one_or_none()
    if run is None and pull is not None and not again:
        # Of a head that could not be fetched, or older than baselines in keys.
        run = session.execute(select(Run).where(Run.dedupe == unbased)).scalar_one_or_none()
        run = run if run is not None and _is_against(run, baseline) else None
    if run is not None:
        approvable = run.state is RunState.HELD and values["trusted"]  # its commit came onto a branch meanwhile
        never_fetched = run.state is RunState.FAILED and not run.attempt and values["state"] is not RunState.FAILED
        if not (run.state in UNDONE or approvable or never_fetched):
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


def _is_against(run: Run, baseline: str | None) -> bool:
    """Whether a run was to be compared with this revision.

    Its `baseline` says so only until it is measured: then it is an earlier revision where this one does not build.
    """
    base = baseline_in_key(run)
    return base == (baseline or "")[:_KEY_BASELINE] if base else run.baseline in (baseline, None)


def _one_more(session: Session, dedupe: str) -> str:
    """A key that no run has: the first measurement's, or one with the next number."""
    same = (Run.dedupe == dedupe) | Run.dedupe.startswith(f"{dedupe}+", autoescape=True)
    taken = session.execute(select(func.count()).select_from(Run).where(same)).scalar_one()
    return f"{dedupe}+{taken}" if taken else dedupe


def _requeue(session: Session, run: Run, values: dict[str, Any]) -> None:
    """Queue a run as if it were new.  Its attempts stay: they fence off earlier lease holders."""
    for name, value in values.items():
        setattr(run, name, value)
    run.max_attempts, run.losses = run.attempt + ATTEMPTS, 0
    run.started_at = run.finished_at = run.log = None
    run.not_before = 0.0
    _settle(session, run)


def _settle(session: Session, run: Run) -> None:
    """Queue a run, or say why it does not wait in the queue."""
    if run.state is RunState.SKIPPED:
        run.finished_at, run.reason = clock(session), NO_RELEVANT_CHANGE
    elif run.state is RunState.FAILED:
        run.finished_at = clock(session)
    elif run.state is RunState.HELD:
        run.reason = f"untrusted revision: approve exactly this commit with `kernelwatch run approve {run.id}`"
    else:
        enqueue(session, run)
    session.flush()


def _turns_of_pull(session: Session, target: Target, pull: int) -> dict[str, float]:
    """By device, the turn of the first queued run of a pull request, which the run of its next head takes over."""
    same = (Run.target_id == target.id, Run.pull == pull, Run.state == RunState.QUEUED)
    return dict(session.execute(select(Run.device, func.min(Run.turn)).where(*same).group_by(Run.device)).all())


def _new_head(session: Session, target: Target, pull: int, newest: Revision, *, moved: bool) -> int:
    """Make this the head of a pull request; its base `moved` if the head is known with another one.

    Returns how many runs of older heads, or of the other base, it superseded.
    """
    row = locked_pull(session, target.id, pull)
    row.head, row.version = newest.sha, row.version + 1
    name = pull_name(target.forge_kind, pull)
    ended = 0
    if moved:
        row.accepted_head = None  # as by a new head: other cases may be slower than this base
        why = f"{name} has another base"
        ended = _end(session, target, pull, RunState.SUPERSEDED, why, Run.revision_id == newest.id)
    session.flush()
    why = f"{newest.short} is a newer head of {name}"
    return ended + _end(session, target, pull, RunState.SUPERSEDED, why, Run.revision_id != newest.id)


def _end(session: Session, target: Target, pull: int | None, state: RunState, why: str, *which: Any) -> int:
    """End runs of a pull request (None: of the mainline) that were not started; a leased one is left to finish."""
    waiting = [state for state in OPEN_STATES if state is not RunState.LEASED]
    ended = session.execute(
        update(Run)
        .where(Run.target_id == target.id, Run.pull == pull, Run.state.in_(waiting), *which)
        .values(state=state, reason=why, finished_at=clock(session))
        .returning(Run.id)
    ).all()
    return len(ended)


def _number(count: int, noun: str, rest: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'} {rest}"
