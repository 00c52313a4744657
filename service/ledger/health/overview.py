"""Everything that the health page shows, in about twenty queries whatever the size of the database."""

from sqlalchemy.orm import Session

from service.db.engine import clock
from service.ledger.health import changes, lately, queues, trouble, trust
from service.ledger.intake import samples
from service.ledger.regressions import grouped
from service.reports.health.facts import HealthFacts


def health_facts(session: Session) -> HealthFacts:
    """Read all of it."""
    now = clock(session)
    since = now - lately.DAY_S
    targets = lately.targets_lately(session, now)
    watched = [one for one in targets if one.row.location not in samples.ORIGINS]
    return HealthFacts(
        now=now,
        since=since,
        targets=targets,
        incidents=grouped.open_incidents(session, now),
        failed=trouble.failed_runs(session, [run.run_id for one in watched for run in one.failed]),
        given_up=trouble.given_up(session, since),
        unsent=trouble.unsent_messages(session, now, since),
        oldest_delivery=trouble.oldest_delivery(session, now),
        quarantined=trouble.quarantined(session, since),
        queues=queues.queues(session, now),
        nights=trust.by_night(session, now),
        fixed=changes.fixed_since(session, since),
        drifted=changes.drifted_since(session, since),
        stacks=changes.stack_changes(session, targets),
        samples={one.row.id for one in targets if one.row.location in samples.ORIGINS},
    )
