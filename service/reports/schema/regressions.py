"""Regressions with their incidents, change points, bisections, rates of equal code, and replays of policies."""

from collections.abc import Iterable

from kernelwatch.documents.regressions import (
    BisectionDocument,
    BisectionItem,
    CalibrationDocument,
    ChangePointItem,
    EqualCodeItem,
    EventItem,
    IncidentItem,
    IncidentMemberItem,
    QuarantineItem,
    RateItem,
    RegressionDocument,
    RegressionItem,
    ReplayDocument,
    ReplayedItem,
    ReplayGroupItem,
    ReplaySumItem,
    StepItem,
    StepVerdictItem,
)
from service.db.models import Bisection, Incident, Quarantine, RegressionEvent, RegressionRow
from service.reports.bisection_text import answer_in_words
from service.reports.schema.base import columns, document_of
from service.reports.views import (
    BisectionView,
    CaseRate,
    ChangePointView,
    IncidentView,
    MetricRate,
    RegressionHistory,
    RegressionView,
    Replay,
    ReplayedCase,
    StepView,
)
from service.reports.words import of_point_reason, of_replayed


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


def bisection_item(row: Bisection, target: str) -> BisectionItem:
    return document_of(BisectionItem, columns(row) | {"target": target, "requested_by": row.asked_by})


def step_item(found: StepView) -> StepItem:
    answered = found.answered
    verdicts = [
        document_of(StepVerdictItem, vars(one) | {"provider": provider, "case": case, "cause_text": one.why})
        for (provider, case), one in sorted(found.step.verdicts.items())
    ]
    return StepItem(
        run_id=found.run.id,
        revision=found.step.revision,
        baseline=found.step.against,
        aim=answered.question.aim.value if answered else None,
        answer=answered.answer.value if answered else None,
        summary=answer_in_words(answered) if answered else found.step.words,
        verdicts=verdicts,
    )


def bisection_document(found: BisectionView) -> BisectionDocument:
    return BisectionDocument(
        **bisection_item(found.row, found.target).model_dump(),
        revisions=found.row.line,
        suspects=list(found.progress.suspects) if found.progress else [],
        summary=found.words,
        ending=found.progress.ending if found.progress else None,
        pending_run_id=found.pending.id if found.pending else None,
        steps=[step_item(one) for one in found.steps],
    )


def rate_item(found: CaseRate | MetricRate) -> RateItem:
    rate, of_case = found.rate, dict.fromkeys(("target", "provider", "case"))  # null for a metric
    named = {"metric": found.metric.value, "rate": rate.share, "low": rate.low, "high": rate.high}
    return document_of(RateItem, of_case | vars(found) | vars(rate) | named | {"nominal_rate": found.nominal})


def quarantine_item(row: Quarantine, target: str) -> QuarantineItem:
    named = {"target": target, "quarantined_by": row.by, "release_reason": row.released_why}
    return document_of(QuarantineItem, columns(row) | named)


def calibration_document(
    metrics: Iterable[MetricRate],
    cases: Iterable[CaseRate],
    quarantines: Iterable[tuple[Quarantine, str]],
) -> CalibrationDocument:
    return CalibrationDocument(
        metrics=[rate_item(one) for one in metrics],
        cases=[rate_item(one) for one in cases],
        quarantines=[quarantine_item(*one) for one in quarantines],
    )


def replayed_item(found: ReplayedCase) -> ReplayedItem:
    one, verdict = found.replayed, found.replayed.verdict
    ratio = {name: getattr(verdict.comparison, name, None) for name in ("ratio", "low", "high")}
    named = {"outcome": verdict.outcome.value, "reason": of_replayed(one)}
    return document_of(ReplayedItem, vars(found) | vars(one) | ratio | named)


def replay_document(replay: Replay) -> ReplayDocument:
    groups = [
        document_of(ReplayGroupItem, vars(own) | {"device": device, "provider": provider, "metric": metric.value})
        for (device, provider, metric), own in sorted(replay.sums.items())
    ]
    equal, before = replay.equal, replay.equal_before
    named = {
        "total": document_of(ReplaySumItem, vars(replay.whole)),
        "groups": groups,
        "cases": [replayed_item(one) for one in replay.cases],
        "equal_code": document_of(EqualCodeItem, vars(equal) | {"alarmed_before": before.alarmed}),
    }
    return document_of(ReplayDocument, vars(replay) | named)
