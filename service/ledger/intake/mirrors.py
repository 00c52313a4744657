"""The mirrors of repositories on this machine: their size, and what is deleted from them."""

from collections.abc import Collection

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import Bisection, Pull, Revision, Run, Target
from service.domain.states import OPEN_SEARCHES, OPEN_STATES, TargetKind
from service.errors import NotFound, ServiceError
from service.ledger.intake import targets
from service.settings import settings
from service.sources.git import GitSource

log = structlog.get_logger()

_DAY_S = 86_400.0


def clean_due() -> int:
    """Clean the mirrors of control, and keep their sizes for status, API and metrics.  Returns how many there are."""
    return _clean_all(keep_size=True)


def clean_own() -> int:
    """Clean the mirrors of a worker, which may be another machine than that of control.  Returns how many there are."""
    return _clean_all(keep_size=False)


def _clean_all(*, keep_size: bool) -> int:
    """One that is too large to take pull requests is repacked, so that it may take them again."""
    with reading() as session:
        found = [one for one in targets.all_targets(session) if one.kind is TargetKind.GIT]
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
    since = clock(session) - settings().pulls_days * _DAY_S
    rows = select(Pull.number).where(Pull.target_id == target.id, Pull.closed_at.is_(None) | (Pull.closed_at > since))
    return set(session.execute(rows).scalars())


def _needed(session: Session, target: Target) -> Collection[str]:
    """Commits that no branch may have any more, and that are or will be measured."""
    runs = select(Revision.sha, Run.baseline, Run.last_good, Run.pinned).join(Run, Run.revision_id == Revision.id)
    waiting = session.execute(runs.where(Run.target_id == target.id, Run.state.in_(OPEN_STATES)))
    needed = {sha for row in waiting for sha in row if sha}
    searches = select(Bisection.line).where(Bisection.target_id == target.id, Bisection.state.in_(OPEN_SEARCHES))
    return needed.union(*session.execute(searches).scalars())
