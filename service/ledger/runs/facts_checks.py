"""The queue of facts checks: revisions to compile without a GPU, planned from the runs and reported with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, or_, select, true, update
from sqlalchemy.orm import Session, selectinload

from service.db.engine import clock, database_now, wake
from service.db.models import FactsCheck, Run, Target
from service.domain.codefacts.findings import Findings
from service.domain.codefacts.texts import KernelText
from service.domain.states import FactsState, Priority, Purpose, RunState
from service.domain.text import is_due
from service.errors import LeaseLost
from service.ledger import stored_texts
from service.ledger.locking import insert_if_absent, lock
from service.reports import facts_markdown

FACTS = "facts"  # the queue of the facts workers
NEWEST = 200  # runs for which checks are planned; older ones get none
RECENT_S = 86_400.0
ATTEMPTS = 3
RETRY_S = 60.0
# Not held runs: untrusted code is not run before it is approved.
_WANTED = (RunState.QUEUED, RunState.LEASED, RunState.DONE, RunState.FAILED)


@dataclass(frozen=True)
class FactsLease:
    check_id: int
    attempt: int


def plan(session: Session) -> int:
    """Queue a check for each pushed head of a pull request or of the mainline that has none.  Returns how many."""
    same = exists().where(
        FactsCheck.revision_id == Run.revision_id,
        FactsCheck.recipe_id == Run.recipe_id,
        FactsCheck.base == func.coalesce(Run.baseline, ""),
    )
    newest = select(func.coalesce(func.max(Run.id), 0) - NEWEST).scalar_subquery()
    wanted = select(Run).where(
        Run.id > newest,
        Run.created_at > database_now(session) - RECENT_S,
        Run.purpose == Purpose.WATCH,
        Run.priority < Priority.BACKFILL,
        Run.state.in_(_WANTED),
        ~same,
    )
    made = 0
    for run in session.scalars(wanted.order_by(Run.id)).all():
        values: dict[str, Any] = {
            "target_id": run.target_id,
            "revision_id": run.revision_id,
            "recipe_id": run.recipe_id,
        }
        values |= {"base": run.baseline or "", "trusted": run.trusted, "created_at": clock(session)}
        values |= {"state": FactsState.QUEUED, "attempt": 0, "not_before": 0.0}
        made += insert_if_absent(session, FactsCheck, ("revision_id", "recipe_id", "base"), values) is not None
    if made:
        wake(session, FACTS)
    return made


def claim(session: Session, lease_s: float, *, has_sandbox: bool = True) -> FactsLease | None:
    """Claim the newest check that waits, or whose lease has expired.

    A worker without a sandbox may take trusted checks of targets that are allowed to run without one.
    """
    now = database_now(session)
    left = (FactsCheck.state == FactsState.LEASED) & is_due(FactsCheck.lease_until, now, lease_s)
    waits = (FactsCheck.state == FactsState.QUEUED) & is_due(FactsCheck.not_before, now, RETRY_S * ATTEMPTS)
    allowed = select(Target.id).where(Target.allow_unsandboxed)
    may_take = true() if has_sandbox else FactsCheck.trusted & FactsCheck.target_id.in_(allowed)
    first = select(FactsCheck.id).where(or_(waits, left), may_take).order_by(FactsCheck.id.desc()).limit(1)
    claimed = session.execute(
        update(FactsCheck)
        .where(FactsCheck.id == first.with_for_update(skip_locked=True).scalar_subquery(), or_(waits, left))
        .values(state=FactsState.LEASED, attempt=FactsCheck.attempt + 1, lease_until=now + lease_s)
        .returning(FactsCheck.id, FactsCheck.attempt)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    return None if claimed is None else FactsLease(claimed.id, claimed.attempt)


def claimed(session: Session, lease: FactsLease) -> FactsCheck:
    """The row of a lease, with what compiling needs.  Raises LeaseLost when it is no longer ours."""
    loads = (selectinload(FactsCheck.target), selectinload(FactsCheck.revision), selectinload(FactsCheck.recipe))
    held = (FactsCheck.id == lease.check_id, FactsCheck.attempt == lease.attempt)
    row = session.execute(
        select(FactsCheck).where(*held, FactsCheck.state == FactsState.LEASED).options(*loads)
    ).scalar_one_or_none()
    if row is None:
        raise LeaseLost(f"Check {lease.check_id} is no longer leased in attempt {lease.attempt}.")
    return row


def renew(session: Session, lease: FactsLease, lease_s: float) -> None:
    claimed(session, lease).lease_until = clock(session) + lease_s


def end(
    session: Session, lease: FactsLease, state: FactsState, reason: str | None = None, findings: Findings | None = None
) -> None:
    """Store the findings, and have the runs of the revision reported again.  Raises LeaseLost."""
    # Who reports a run holds this lock from before it reads the findings until its state counts as reported.
    lock(session, claimed(session, lease).target_id)
    row = claimed(session, lease)  # again: the lease may have been lost while this waited
    row.state, row.reason, row.lease_until = state, reason, None
    row.findings, row.finished_at = findings.as_json() if findings else None, clock(session)
    if state is not FactsState.SKIPPED:
        session.execute(
            update(Run)
            .where(Run.revision_id == row.revision_id, Run.purpose == Purpose.WATCH, Run.pull.is_not(None))
            .values(notified_state="")
            .execution_options(synchronize_session=False)
        )


def keep_texts(session: Session, lease: FactsLease, texts: Sequence[KernelText]) -> None:
    """Store the texts of the kernels that changed, in the transaction that ended the check."""
    target_id = session.get_one(FactsCheck, lease.check_id).target_id
    stored_texts.keep_code(session, target_id, texts, check_id=lease.check_id)


def retry(session: Session, lease: FactsLease, reason: str) -> bool:
    """Queue a check for later, or end it after the last attempt.  Returns whether it is retried."""
    row = claimed(session, lease)
    if row.attempt >= ATTEMPTS:
        end(session, lease, FactsState.UNAVAILABLE, reason)
        return False
    row.state, row.reason, row.lease_until = FactsState.QUEUED, reason, None
    row.not_before = clock(session) + RETRY_S * row.attempt
    return True


def check_of(session: Session, run: Run) -> FactsCheck | None:
    """The check of a run's revision against its baseline, where there is one."""
    same: tuple[Any, ...] = (FactsCheck.revision_id == run.revision_id, FactsCheck.recipe_id == run.recipe_id)
    return session.execute(
        select(FactsCheck).where(*same, FactsCheck.base == (run.baseline or ""))
    ).scalar_one_or_none()


def findings_of(session: Session, run: Run) -> Findings | None:
    """What the check of a run's revision found; None while it waits, and where it found nothing."""
    row = check_of(session, run)
    return Findings.from_json(row.findings) if row is not None and row.findings is not None else None


def are_found(session: Session, run: Run) -> bool:
    """Whether there are findings that justify a comment before anything is measured."""
    findings = findings_of(session, run)
    return findings is not None and bool(findings.broken or findings.changes or findings.uncompiled)


def in_words(session: Session, run: Run) -> str:
    """The section of a comment; empty while the check waits, and where it was skipped."""
    row = check_of(session, run)
    if row is None or row.state in (FactsState.QUEUED, FactsState.LEASED, FactsState.SKIPPED):
        return ""
    if row.findings is None:
        return facts_markdown.without(row.reason or "nothing was compiled")
    return facts_markdown.part(Findings.from_json(row.findings))


def give_back(session: Session, lease: FactsLease, reason: str) -> None:
    """Queue a check again because its worker stops, or has no sandbox any more; the attempt does not count."""
    row = claimed(session, lease)
    row.state, row.reason, row.lease_until, row.attempt = FactsState.QUEUED, reason, None, row.attempt - 1
