"""A regression and its life as JSON for programs.  Times are RFC 3339, ratios in times of what the case took."""

from typing import Any

from service.db.models import RegressionEvent
from service.reports.schema import rfc3339
from service.reports.views import Life, Regressed


def entry(found: Regressed) -> dict[str, Any]:
    """What a list says of one."""
    row = found.row
    return {
        "id": row.id,
        "incident": row.incident_id,
        "target": found.target,
        "device": row.device,
        "provider": row.provider,
        "case": row.case,
        "state": row.state.value,
        "ratio": row.ratio,
        "interval": None if row.low is None else [row.low, row.high],
        "found_by": row.found_by.value,
        "run": row.run_id,
        "revision": found.run.revision.sha,
        "good": row.good,
        "culprit": row.culprit,
        "cause": row.cause_kind,
        "why": row.cause_text,
        "assignee": row.assignee,
        "due_at": rfc3339(row.due_at),
        "reason": row.reason,
        "until": rfc3339(row.until),
        "opened_at": rfc3339(row.opened_at),
        "fixed_at": rfc3339(row.fixed_at),
        "fixed_by": found.fixed_by.revision.sha if found.fixed_by else None,
    }


def document(life: Life) -> dict[str, Any]:
    """The whole life: who did what, and what else the same event made."""
    return {
        **entry(life.regressed),
        "events": [_event(one) for one in life.events],
        "siblings": [row.id for row in life.siblings],
        "bisections": [search.id for search in life.bisections],
    }


def _event(event: RegressionEvent) -> dict[str, Any]:
    return {
        "at": rfc3339(event.at),
        "who": event.who,
        "what": event.what,
        "state": event.state.value,
        "words": event.words,
        "run": event.run_id,
    }
