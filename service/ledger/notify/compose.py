"""Compose what the forge shows, a comment and a check, while the GitHub App is installed.

A run is reported whenever its state differs from the one reported last, so no other code has to trigger it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import structlog
from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction, wake
from service.db.models import OutboxMessage, Pull, Run, Target
from service.db.wakeups import CONTROL
from service.domain.slash_commands import CommandName
from service.domain.states import (
    OPEN_STATES,
    ForgeKind,
    GateAction,
    GateKind,
    OutboxState,
    Outcome,
    Priority,
    Purpose,
    RunState,
)
from service.domain.text import escaped, one_line
from service.forge import github
from service.forge.events import InstallationChanged
from service.forge.forge import MAX_PAUSE_S, ForgeFailed
from service.ledger.locking import lock, within_budget
from service.ledger.notify import outbox
from service.ledger.reading.queries import pull_reports, report_on, whole_run
from service.ledger.regressions import decisions
from service.ledger.regressions.decisions import baseline_in_key
from service.ledger.runs import facts_checks, queue
from service.ledger.runs.revisions import UNDONE
from service.reports import comment_head, markdown, report
from service.reports.payloads import CheckAction, CheckPayload, CommentPayload, annotations
from service.reports.report import Report

log = structlog.get_logger()

_SOME = 1000  # runs that a statement names
_UNNOTIFIED = Run.notified_state != Run.state
# Pull requests are reported in every state, the mainline when a run ends, and a backfill where it was measured.
# Bisection steps and calibrations are not reported.
_NOT_REPORTED = or_(
    Run.purpose != Purpose.WATCH,
    Run.pull.is_(None)
    & or_(
        Run.state.in_(OPEN_STATES),
        (Run.priority == Priority.BACKFILL) & Run.state.in_([RunState.SKIPPED, *UNDONE]),
    ),
)


def notify_due() -> int:
    """Report the runs whose state changed since they were reported last.  Returns how many there were."""
    with reading() as session:
        found = session.execute(select(Run.id, _NOT_REPORTED).where(_UNNOTIFIED).order_by(Run.id)).all()
    passed = [run_id for run_id, not_reported in found if not_reported]
    for start in range(0, len(passed), _SOME):
        _mark_unreported(passed[start : start + _SOME])
    due = [run_id for run_id, not_reported in found if not not_reported]
    for run_id in within_budget(due):
        try:
            with transaction() as session:
                _notify(session, run_id)
        except Exception:  # one run must not hold up the others
            log.exception("run could not be reported", run=run_id)
    return len(due)


def _mark_unreported(ids: Sequence[int]) -> None:
    of_them = select(Run.id).where(Run.id.in_(ids), _UNNOTIFIED, _NOT_REPORTED)
    free = of_them.order_by(Run.id).with_for_update(skip_locked=True)
    with transaction() as session:
        passed = update(Run).where(Run.id.in_(free)).values(notified_state=Run.state)
        session.execute(passed.execution_options(synchronize_session=False))


def _notify(session: Session, run_id: int) -> None:
    """Put the comment and the check of a run into the outbox."""
    # Lock before reading: of two devices that end together the second must see what the first found.
    lock(session, session.get_one(Run, run_id).target_id)
    run = whole_run(session, run_id)
    if run.pull is not None:
        _comment(session, run, run.pull)
    if _represents_commit(session, run):
        key = f"check:{run.target_id}:{run.revision.sha}:{run.device}"
        report = report_on(session, run)
        compiled = facts_checks.findings_of(session, run)
        more = {"actions": _buttons(report), "annotations": annotations(report, compiled.kernels if compiled else ())}
        check = markdown.check(report).model_copy(update=more)
        pull = queue.pull_of(session, run.target_id, run.pull) if run.pull is not None else None
        if pull is not None and decisions.is_accepted(pull, run.revision.sha):
            check = _accepted(check, report, pull)
        outbox.enqueue(session, key, "check", run.target, run, check.model_dump())
    run.notified_state = run.state.value


def _accepted(check: CheckPayload, report: Report, pull: Pull) -> CheckPayload:
    """The check of a head whose slower cases somebody accepted: it is decided by everything else that was found."""
    if not report.regressions:
        return check
    rows = (replace(row, outcome=Outcome.STEADY) if row.outcome is Outcome.REGRESSION else row for row in report.rows)
    rest = replace(report, rows=tuple(rows))
    if any(one.kind is not GateKind.BEHIND_SOTA or one.action is GateAction.FAIL for one in rest.gate.reasons):
        found = markdown.check(rest).model_dump(include={"conclusion", "commit_status", "title"})
        return check.model_copy(update=found)
    title = one_line(f"Accepted by {pull.accepted_by}: {pull.accepted_why}", 140)
    return check.model_copy(update={"conclusion": "neutral", "commit_status": "success", "title": title})


def _buttons(report: Report) -> list[CheckAction]:
    """The buttons of a check, in the words of `service.domain.slash_commands`; none while its run is open."""
    if report.state in OPEN_STATES:
        return []
    again = CheckAction(label="Measure again", description="Queue another run", identifier=CommandName.RERUN)
    search = CheckAction(label="Bisect", description="Find the commit that is slower", identifier=CommandName.BISECT)
    accept = CheckAction(label="Accept", description="Pass although it is slower", identifier=CommandName.ACCEPT)
    return [again, search, accept] if report.regressions and report.pull is not None else [again]


def _comment(session: Session, run: Run, pull: int) -> None:
    """One comment for all devices of the newest head of a pull request.  Older heads are not reported any more."""
    pull_row = queue.pull_of(session, run.target_id, pull)
    if pull_row is not None and pull_row.head not in (None, run.revision.sha):
        return
    key = f"comment:{run.target_id}:{pull}"
    begun = session.execute(select(OutboxMessage.id).where(OutboxMessage.key == key)).first() is not None
    reports = pull_reports(session, run)
    # A forge notifies people only of the first version of a comment, so that version must say something.
    if begun or facts_checks.are_found(session, run) or any(map(comment_head.worth_a_comment, reports)):
        facts = "\n\n".join(filter(None, (facts_checks.in_words(session, run), _acceptance(pull_row, run))))
        comment = CommentPayload(pull=pull, body=markdown.comment(*reports, facts=facts))
        outbox.enqueue(session, key, "comment", run.target, run, comment.model_dump())


def _acceptance(pull: Pull | None, run: Run) -> str:
    """A line of the comment, where somebody accepted the head; empty elsewhere."""
    if pull is None or not decisions.is_accepted(pull, run.revision.sha):
        return ""
    return f"**Accepted** by {escaped(pull.accepted_by or '')}: {escaped(one_line(pull.accepted_why or '', 600))}"


def _represents_commit(session: Session, run: Run) -> bool:
    """Whether this is the run of the default suite, and not a duplicate of a pull request's run or outdated by one."""
    recipe = report.readable(run.recipe.text)
    if recipe is not None and run.suite != recipe.suite_on(run.device):
        return False
    of_device = (Run.revision_id == run.revision_id, Run.device == run.device)
    if run.pull is not None:
        newer = select(Run).where(*of_device, Run.pull == run.pull, Run.suite == run.suite, Run.id > run.id)
        # A run that was begun before the base changed may end after the run against the new one.
        return all(baseline_in_key(later) == baseline_in_key(run) for later in session.scalars(newer))
    theirs = select(Run.id).where(*of_device, Run.pull.is_not(None), Run.state.not_in(UNDONE)).limit(1)
    return session.execute(theirs).first() is None


def changed(event: InstallationChanged) -> str:
    """Pause or resume what is sent to the repositories of an installation; one sentence on what was done.

    A pause ends automatically: the next message then finds out whether the App is back, so that a lost delivery does
    not silence a target for ever.
    """
    with suppress(ForgeFailed):  # without credentials there is no token to forget
        github.connect().forget(event.account)
    where = func.lower(Target.forge).startswith(f"{event.account.lower()}/", autoescape=True)
    if event.repositories is not None:
        where = func.lower(Target.forge).in_([repository.lower() for repository in event.repositories])
    with transaction() as session:
        names = []
        there = select(Target).where(Target.forge_kind == ForgeKind.GITHUB, where).order_by(Target.id)
        for target in session.scalars(there.with_for_update(key_share=True)):
            names.append(target.name)
            target.forge_paused_until = clock(session) + MAX_PAUSE_S if event.why_gone else 0.0
            target.forge_error = event.why_gone
            if event.why_gone is None:
                waiting = (OutboxMessage.target_id == target.id, OutboxMessage.state == OutboxState.WAITING)
                for kind in session.scalars(select(OutboxMessage.kind).where(*waiting).distinct()).all():
                    of_kind = update(OutboxMessage).where(*waiting, OutboxMessage.kind == kind)
                    session.execute(of_kind.values(next_at=outbox.at_once(kind)))
        if names and event.why_gone is None:
            wake(session, CONTROL)
    if not names:
        return "Nothing to do: no target is on these repositories."
    return f"{'Sending is paused' if event.why_gone else 'Sending goes on'} for {', '.join(names)}."
