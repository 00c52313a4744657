"""Searches for the revision that made a case slower; how often equal code differs, and quarantined cases."""

from collections.abc import Iterable

from kernelwatch.documents.regressions import (
    BisectionDocument,
    BisectionItem,
    CalibrationDocument,
    QuarantineItem,
    RateItem,
    StepItem,
    StepVerdictItem,
)
from service.db.models import Bisection, Quarantine
from service.reports.bisection_text import answer_in_words
from service.reports.schema.base import columns, document_of
from service.reports.views import BisectionView, CaseRate, MetricRate, StepView


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
