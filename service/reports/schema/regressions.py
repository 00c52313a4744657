"""Regressions, the incidents that group them, and change points."""

from collections.abc import Iterable

from kernelwatch.documents.regressions import (
    ChangePointItem,
    EventItem,
    IncidentItem,
    IncidentMemberItem,
    RegressionDocument,
    RegressionItem,
)
from service.db.models import Incident, RegressionEvent, RegressionRow
from service.reports.schema.base import columns, document_of
from service.reports.schema.bisections import bisection_item
from service.reports.views import ChangePointView, IncidentView, RegressionHistory, RegressionView
from service.reports.words import of_point_reason


def regression_item(found: RegressionView, events: Iterable[RegressionEvent] | None = None) -> RegressionItem:
    row = found.row
    named = {
        "target": found.target,
        "revision": found.run.revision.sha,
        "last_good": row.good,
        "fixed_by": found.fixed_by.revision.sha if found.fixed_by else None,
        "acknowledged_until": row.until,
        "events": None if events is None else [event_item(event) for event in events],
    }
    return document_of(RegressionItem, columns(row) | named)


def event_item(event: RegressionEvent) -> EventItem:
    named = {"actor": event.who, "action": event.what, "text": event.words}
    return document_of(EventItem, columns(event) | named)


def incident_item(found: IncidentView) -> IncidentItem:
    return _incident(found.row, found.target, found.regressions)


def _incident(row: Incident, target: str, members: Iterable[RegressionRow]) -> IncidentItem:
    named = {
        "target": target,
        "revision": row.revision.sha,
        "regressions": [IncidentMemberItem.model_validate(one) for one in members],
    }
    return document_of(IncidentItem, columns(row) | named)


def regression_document(life: RegressionHistory) -> RegressionDocument:
    of, row = life.regressed, life.incident
    members = sorted((of.row, *life.siblings), key=lambda one: (-one.ratio, one.id))
    return RegressionDocument(
        **regression_item(of, life.events).model_dump(),
        incident=_incident(row, of.target, members) if row else None,
        bisections=[bisection_item(search, of.target) for search in life.bisections],
    )


def change_point_item(found: ChangePointView) -> ChangePointItem:
    named = {"target": found.target, "revision": found.revision.sha, "previous_revision": found.before.sha}
    reason = {"reason": of_point_reason(found.row)}
    return document_of(ChangePointItem, columns(found.row) | named | reason)
