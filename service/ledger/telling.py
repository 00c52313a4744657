"""What people on the forge are told of runs: one comment per pull request, one check per commit and device."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from service import reports
from service.ledger import outbox, reading
from service.models import Run
from service.telling import markdown


def tell(session: Session, run_id: int) -> None:
    """Put the run's comment and check into the outbox."""
    run = reading.whole_run(session, run_id)
    report = reports.report(run)
    if run.pull is not None and _is_newest_head(session, run):
        # One comment for all devices of the pull request.
        payload = {"pull": run.pull, "body": markdown.comment(*reading.pull_reports(session, run))}
        outbox.say(session, f"comment:{run.target_id}:{run.pull}", "comment", run.target, run, payload)
    check = {**markdown.check(report), "sha": run.revision.sha}
    outbox.say(session, f"check:{run.target_id}:{run.revision.sha}:{run.device}", "check", run.target, run, check)


def _is_newest_head(session: Session, run: Run) -> bool:
    """An older head that was still being measured when a newer one came must not overwrite what is said of that."""
    same_pull = select(Run.revision_id).where(Run.target_id == run.target_id, Run.pull == run.pull)
    return session.execute(same_pull.order_by(Run.id.desc()).limit(1)).scalar_one() == run.revision_id
