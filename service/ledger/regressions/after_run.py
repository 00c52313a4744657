"""Open and close the regressions of the mainline after each of its runs.

Revisions may be measured in any order, and repeatedly: their place on the mainline counts.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Revision, Run, VerdictRow
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind
from service.domain.verdicts.judge import Outcome
from service.ledger.locking import lock
from service.ledger.notices import happenings
from service.ledger.regressions import accepting, closing, incidents, opening, removed


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
    touched = {row.incident_id for row in removed.note_removed(session, run, revision, judged, now)}
    touched |= {row.incident_id for row in opening.open_found(session, run, verdicts, policy, now)}
    touched |= {row.incident_id for row in closing.close_fixed(session, run, judged, policy, now)}
    incidents.settle(session, touched, now)
    happenings.results_invalid(session, run, verdicts, now)
    accepting.acknowledge_at(session, run)
