"""Add, edit, rename, pause and remove targets, and the mirrors of their repositories on this machine.

A refused change leaves no row and no folder behind.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Table, delete, func, inspect, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import Base, Bisection, Pull, RecipeRow, Revision, Run, Target, Worker
from service.domain.states import OPEN_SEARCHES, OPEN_STATES, Origin, RunState, TargetKind
from service.domain.text import DAY_S, without_credentials
from service.errors import BadInput, Conflict, LaterChange, NotFound, ServiceError, Stale
from service.ledger import audit, targets
from service.ledger.locking import lock, lock_to_remove
from service.ledger.runs import revisions
from service.ledger.runs.revisions import Push, record_push
from service.ledger.targets import RecipeFiles, branch_recipe
from service.settings import settings
from service.sources import forget, open_source
from service.sources.git import GitSource
from service.sources.source import Found, Source

log = structlog.get_logger()


def add(
    name: str,
    *,
    location: str,
    package: str | None = None,
    branch: str | None = None,
    forge: str | None = None,
    trusted: bool = False,
    private: bool | None = None,
    recipe: RecipeFiles | None = None,
    backfill: int = 1,
    only_new: bool = False,
    dry_run: bool = False,
) -> int:
    """Watch a repository or a package, and queue its newest `backfill` revisions.  Returns how many runs were queued.

    Without a `recipe` it is read from the head of the mainline, then and later.  A target of this name and location
    gets what is named here, unless it must be `only_new`; where `private` is None, that stays, and a new target is
    public.  A `dry_run` stops before the source is asked, and changes nothing.  Raises ServiceError for
    whatever would keep its revisions from being measured: a mistake in the recipe, a source that does not answer, no
    revision on the branch.
    """
    wanted: dict[str, Any] = {
        "location": location,
        "kind": TargetKind.PACKAGE if package else TargetKind.GIT,
        "package": package,
        "branch": branch,
        "forge": forge,
        "trusted": trusted,
        "private": private,
        "recipe_from_branch": recipe is None,
        "recipe_text": recipe[0] if recipe else None,
        "adapters": recipe[1] if recipe else None,
    }

    def register(session: Session) -> Target:
        if only_new and targets.find(session, name) is not None:
            raise Conflict(f"There is a target {name} already: choose another name, or change it on its page.")
        try:
            return targets.register(session, name, **wanted)
        except IntegrityError:  # PostgreSQL: somebody else added it at the same moment
            raise Conflict(f"Somebody else adds the target {name} at this moment. Try again.") from None

    target = _rehearsed(register)
    source = open_source(target)
    if dry_run:
        return 0
    with _kept_only_if_done(target, source):
        source.refresh()
        commits = _newest(source, target, max(1, backfill))
        from_branch = branch_recipe(target, source)
        with transaction() as session:
            registered = register(session)
            if from_branch is not None:
                targets.adopt_recipe(session, registered, from_branch.text, from_branch.adapters)
            _record(session, "add", registered)
            if not backfill:
                return 0
            push = Push(Origin.BACKFILL, tuple(commits), mainline=True)
            return record_push(session, registered, push).queued


def edit(
    name: str,
    *,
    location: str | None = None,
    branch: str | None = None,
    forge: str | None = None,
    trusted: bool | None = None,
    private: bool | None = None,
    recipe: RecipeFiles | None = None,
    recipe_from_branch: bool = False,
    seen_recipe: int | None = None,
) -> None:
    """Change how a target is watched.  What is None stays; an empty branch or forge is taken away.

    Raises ServiceError for whatever `add` would refuse, and for a location that does not have the newest revision that
    is known: its history would be continued with other revisions.  Raises Stale where the target has another recipe
    than `seen_recipe`; 0 is none.
    """
    if recipe is not None and recipe_from_branch:
        raise BadInput("Name a recipe, or take it from the branch, not both.")

    def change(session: Session) -> Target:
        row = targets.target_named(session, name)
        lock(session, row.id)  # the mainline may bring another recipe at this moment
        session.refresh(row, ["recipe_id", "recipe_from_branch", "recipe"])
        if seen_recipe is not None and (row.recipe_id or 0) != seen_recipe:
            raise Stale(f"The recipe of {name}", _recipe_changes(session, row, seen_recipe))
        text, adapters = recipe or ((row.recipe.text, row.recipe.adapters) if row.recipe else (None, {}))
        from_branch = recipe_from_branch or (row.recipe_from_branch and recipe is None)
        row.location = location or row.location
        return targets.register(
            session,
            name,
            location=row.location,
            kind=row.kind,
            package=row.package,
            branch=branch,
            forge=forge,
            trusted=row.trusted if trusted is None else trusted,
            private=private,
            recipe_from_branch=from_branch,
            recipe_text=None if from_branch else text,
            adapters=adapters,
        )

    with reading() as session:
        before = targets.target_named(session, name)
        newest = revisions.newest_of(session, before)
    target = _rehearsed(change)
    if recipe_from_branch:
        target.recipe_id = None  # the branch must bring one
    if (target.location, target.branch, target.recipe_from_branch) == (
        before.location,
        before.branch,
        before.recipe_from_branch,
    ):
        with transaction() as session:
            _record(session, "edit", change(session), before)
        return
    source = open_source(target)
    with _kept_only_if_done(target, source):
        source.refresh()
        _newest(source, target, 1)
        if newest and target.location != before.location:
            _check_same_history(source, target, newest)
        from_branch = branch_recipe(target, source)
        with transaction() as session:
            row = change(session)
            row.poll_at = clock(session)
            if from_branch is not None:
                targets.adopt_recipe(session, row, from_branch.text, from_branch.adapters)
            _record(session, "edit", row, before)
    if target.location != before.location:
        forget(before)


def rename(name: str, new: str) -> None:
    """Give a target another name.  Its history, its runs and its comments stay."""
    with transaction() as session:
        target = _in_turn(session, name)
        targets.check_name(new)
        if targets.find(session, new) is not None:
            raise Conflict(f"There is a target {new} already: choose another name.")
        old = _copy(target)
        target.name = new
        audit.record(session, "target.rename", target=name, of=f"target {name}", details={"name": new})
    forget(old)  # the copy of the origin has the old name; the next poll makes another


def pause(name: str) -> None:
    """Take no new revisions of a target, until `resume`.  What is queued is still measured, and all history stays."""
    with transaction() as session:
        target = _in_turn(session, name)
        if target.paused_at is not None:
            raise Conflict(f"Target {name} is paused already.")
        target.paused_at = clock(session)
        audit.record(session, "target.pause", target=name, of=f"target {name}")


def resume(name: str) -> None:
    """Take new revisions again: the next poll brings those that the mainline got meanwhile."""
    with transaction() as session:
        target = _in_turn(session, name)
        if target.paused_at is None:
            raise Conflict(f"Target {name} is not paused.")
        target.paused_at, target.poll_at = None, clock(session)
        audit.record(session, "target.resume", target=name, of=f"target {name}")


def allow_unsandboxed(name: str, allow: bool) -> None:
    """Whether a trusted target may run on workers without a sandbox.  Raises BadInput for one that is not trusted."""
    with transaction() as session:
        target = targets.target_named(session, name)
        if allow and not target.trusted:
            raise BadInput(f"Target {name} is not trusted; only trusted targets may run without a sandbox.")
        target.allow_unsandboxed = allow
        details = {"allow_unsandboxed": allow}
        audit.record(session, "target.edit", target=name, of=f"target {name}", details=details)


@dataclass(frozen=True)
class Holdings:
    """Numbers of rows stored for a target."""

    revisions: int
    runs: int
    measurements: int
    regressions: int


def holdings(session: Session, target: Target) -> Holdings:
    """Count the rows that removing a target would delete."""

    def count(table: str) -> int:
        rows = Base.metadata.tables[table]
        whose = _of(rows, target.id)
        return session.scalar(select(func.count()).select_from(rows).where(whose)) or 0 if whose is not None else 0

    return Holdings(count("revisions"), count("runs"), count("measurements"), count("regressions"))


def remove(name: str) -> None:
    """Delete a target with everything that was measured of it.  Its name is free afterwards.

    Raises Conflict while a run of it is being measured.
    """
    with transaction() as session:
        target = _in_turn(session, name, lock_to_remove)
        runs = select(Run.id).where(Run.target_id == target.id).order_by(Run.id)
        session.execute(runs.where(Run.state == RunState.QUEUED).with_for_update())  # from here on nobody leases one
        # Without a lock: a worker that records such a run holds its row, and waits for the target.
        if busy := session.scalars(runs.where(Run.state == RunState.LEASED)).all():
            named = ", ".join(f"`kernelwatch run cancel {run_id}`" for run_id in busy)
            raise Conflict(f"Target {name} is being measured: wait, or {named}; then remove it.")
        old = _copy(target)
        _delete(session, target.id)
        audit.record(session, "target.remove", target=name, of=f"target {name}")
    forget(old)


def _in_turn(session: Session, name: str, take_turn: Callable[[Session, int], None] = lock) -> Target:
    """The target as it is once nobody else changes it.  Raises NotFound, also where its name was changed meanwhile."""
    take_turn(session, targets.target_named(session, name).id)
    session.expire_all()
    return targets.target_named(session, name)


def _recipe_changes(session: Session, target: Target, seen: int) -> list[LaterChange]:
    """Who gave the target another recipe than the one that was seen, the oldest first."""
    before = session.get(RecipeRow, seen)
    since = before.created_at if before else 0.0
    entries = audit.listed(session, target=target.name, action="target", limit=20).items
    changes = [
        LaterChange(entry.at, entry.actor, f"saved version {recipe.digest[:10]} of the recipe")
        for entry in reversed(entries)
        if entry.at >= since
        and entry.details.get("recipe_id") != seen
        and (recipe := session.get(RecipeRow, entry.details.get("recipe_id") or 0)) is not None
    ]
    if not changes and target.recipe is not None:
        what = f"brought version {target.recipe.digest[:10]} of the recipe"
        changes.append(LaterChange(target.recipe.created_at, "The mainline", what))
    return changes


_RECORDED = ("branch", "forge", "trusted", "private", "allow_unsandboxed", "recipe_from_branch", "recipe_id")


def _record(session: Session, verb: str, target: Target, before: Target | None = None) -> None:
    """Record what a target is like now; after a change of it, only what differs."""
    now = {name: getattr(target, name) for name in _RECORDED} | {"location": without_credentials(target.location)}
    if before is not None:
        was = {name: getattr(before, name) for name in _RECORDED} | {"location": without_credentials(before.location)}
        now = {name: value for name, value in now.items() if value != was[name]}
    audit.record(session, f"target.{verb}", target=target.name, of=f"target {target.name}", details=now)


def _of(table: Table, target_id: int) -> ColumnElement[bool] | None:
    """Condition for the rows of a table that belong to the target, directly or through a parent row."""
    if "target_id" in table.c:
        return table.c.target_id == target_id
    for key in table.foreign_keys:
        whose = _of(key.column.table, target_id) if not key.parent.nullable else None
        if whose is not None:
            return key.parent.in_(select(key.column).where(whose))
    return None


def _delete(session: Session, target_id: int) -> None:
    """Delete the target's rows, those that name others first; links that go in circles are cut before."""
    runs = select(Run.id).where(Run.target_id == target_id)
    session.execute(update(Worker).where(Worker.run_id.in_(runs)).values(run_id=None))
    session.execute(update(Run).where(Run.target_id == target_id).values(bisection_id=None))
    session.execute(update(Target).where(Target.id == target_id).values(recipe_id=None))
    for table in reversed(Base.metadata.sorted_tables):
        if (whose := _of(table, target_id)) is not None:
            session.execute(delete(table).where(whose))
    session.execute(delete(Target).where(Target.id == target_id))
    session.expunge_all()


def _check_same_history(source: Source, target: Target, newest: str) -> None:
    try:
        source.resolve(newest)
    except (BadInput, NotFound):
        raise Conflict(
            f"{target.location} does not have {newest[:10]}, the newest known revision of {target.name}: its history "
            "would be continued with other revisions. Add it as a target of its own."
        ) from None


def _rehearsed(change: Callable[[Session], Target]) -> Target:
    """The target as `change` would make it, without making it.  Raises what it raises."""
    with transaction() as session:
        target = _copy(change(session))
        session.rollback()
    return target


def _copy(target: Target) -> Target:
    """The same values, in no session."""
    return Target(**{column.key: getattr(target, column.key) for column in inspect(Target).column_attrs})


@contextmanager
def _kept_only_if_done(target: Target, source: Source) -> Iterator[None]:
    """Delete what was fetched of a source that was not here before when the block raises."""
    kept = source.is_kept()
    try:
        yield
    except BaseException:
        with reading() as session:
            watched = targets.find(session, target.name)  # somebody else may have added it meanwhile
        if not kept and (watched is None or watched.location != target.location):
            forget(target)
        raise


def _newest(source: Source, target: Target, limit: int) -> list[Found]:
    commits = source.mainline(target.branch, limit)
    if not commits:
        raise NotFound("revision", f"on the mainline of {target.location}", "There is nothing to measure yet.")
    return commits


def clean_due() -> int:
    """Clean the mirrors of control, and keep their sizes for status, API and metrics.  Returns how many there are."""
    return _clean_all(keep_size=True)


def clean_own() -> int:
    """Clean the mirrors of a worker, which may be another machine than that of control.  Returns how many there are."""
    return _clean_all(keep_size=False)


def _clean_all(*, keep_size: bool) -> int:
    """One that is too large to take pull requests is repacked, so that it may take them again."""
    with reading() as session:
        found = [target for target in targets.all_targets(session) if target.kind is TargetKind.GIT]
    cleaned = 0
    for target in found:
        try:
            source = GitSource(target.name, target.location)
            if not source.is_kept():
                continue
            size = _clean(target, source, thoroughly=source.is_tight())
            if keep_size:
                _note_size(target, size)
            cleaned += 1
        except (ServiceError, OSError) as failure:  # one mirror must not hold up the others
            log.warning("mirror could not be cleaned", target=target.name, error=str(failure))
    return cleaned


def clean(name: str) -> tuple[int, int]:
    """Clean and repack the mirror of a target.  Returns its size in bytes before and after."""
    with reading() as session:
        target = targets.target_named(session, name)
    source = GitSource(target.name, target.location) if target.kind is TargetKind.GIT else None
    if source is None or not source.is_kept():
        raise NotFound("mirror", f"of {name} on this machine")
    before = source.size()
    after = _clean(target, source, thoroughly=True)
    _note_size(target, after)
    return before, after


def _note_size(target: Target, size: int) -> None:
    with transaction() as session:
        session.execute(update(Target).where(Target.id == target.id).values(mirror_bytes=size))


def _clean(target: Target, source: GitSource, *, thoroughly: bool) -> int:
    with reading() as session:
        pulls, keep = _pulls(session, target), _needed(session, target)
    return source.clean(pulls, keep, thoroughly=thoroughly)


def _pulls(session: Session, target: Target) -> Collection[int]:
    """The pull requests that are open, or were closed less than `KERNELWATCH_PULLS_DAYS` ago."""
    since = clock(session) - settings().pulls_days * DAY_S
    rows = select(Pull.number).where(Pull.target_id == target.id, Pull.closed_at.is_(None) | (Pull.closed_at > since))
    return set(session.execute(rows).scalars())


def _needed(session: Session, target: Target) -> Collection[str]:
    """Commits that no branch may have any more, and that are or will be measured."""
    runs = select(Revision.sha, Run.baseline, Run.last_good, Run.pinned).join(Run, Run.revision_id == Revision.id)
    waiting = session.execute(runs.where(Run.target_id == target.id, Run.state.in_(OPEN_STATES)))
    needed = {sha for row in waiting for sha in row if sha}
    searches = select(Bisection.line).where(Bisection.target_id == target.id, Bisection.state.in_(OPEN_SEARCHES))
    return needed.union(*session.execute(searches).scalars())
