"""Runs with what they measured and decided, their workers, and what is known of the code of revisions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernelwatch.documents.runs import (
    CompareDocument,
    CompareItem,
    CompareSideItem,
    FactsCheckItem,
    FactsDiffDocument,
    FactsPairItem,
    FactsSideItem,
    FindingsItem,
    GateItem,
    KernelTextItem,
    MeasurementItem,
    ProgressItem,
    QueueItem,
    RequestedRunsDocument,
    RunDocument,
    RunItem,
    SamplesDocument,
    SummaryItem,
    UnsupportedItem,
    UtilisationItem,
    VerdictItem,
    WorkerItem,
)
from service.db.models import FactsCheck, KernelTextRow, Measurement, Run, VerdictRow, Worker
from service.domain import roofline
from service.domain.codefacts.findings import Findings
from service.domain.metrics import metric_of, percent
from service.domain.states import Outcome, Rounds
from service.domain.stats import counts
from service.domain.text import WORKER_GONE_S, is_recent
from service.reports import words
from service.reports.comment_head import headline
from service.reports.notes import notes
from service.reports.report import Report
from service.reports.rows import ComparedCase, ComparedSide, FactsDiff, FactsPair, FactsSide, RevisionsCompared
from service.reports.schema.base import columns, document_of, without_tables


def run_item(run: Run, counts: Mapping[Outcome, int] | None = None, behind_sota: int | None = None) -> RunItem:
    return document_of(RunItem, _named(run) | {"counts": counts, "behind_sota": behind_sota})


def queue_item(run: Run, position: int | None, eta_s: float | None) -> QueueItem:
    return document_of(QueueItem, _named(run) | {"position": position, "eta_s": eta_s})


def progress_item(run: Run, position: int | None, eta_s: float | None) -> ProgressItem:
    return document_of(ProgressItem, columns(run) | {"position": position, "eta_s": eta_s})


def requested_runs_document(runs: Iterable[Run], created: Iterable[int]) -> RequestedRunsDocument:
    return RequestedRunsDocument(items=[run_item(one) for one in runs], created=list(created))


def measurement_items(
    rows: Iterable[Measurement], telemetry: Mapping[str, Any] | None, *, tables: bool = False
) -> list[MeasurementItem]:
    """Measurements of a run with this telemetry."""
    best_of = roofline.ceilings_by_case(telemetry)
    return [_measurement_item(row, best_of(row.case), tables=tables) for row in rows]


def _measurement_item(row: Measurement, best: Mapping[str, float], *, tables: bool) -> MeasurementItem:
    facts = row.facts or {}
    speed = roofline.speed(row.case, row.median, row.gb_s, facts, best)
    named = {
        "metric": metric_of(row.case).value,
        "unit": row.unit,
        "facts": facts if tables else without_tables(facts),
        "speed": UtilisationItem.model_validate(speed),
    }
    return document_of(MeasurementItem, columns(row) | named)


def verdict_item(verdict: VerdictRow, report: Report) -> VerdictItem:
    """A verdict of the run that was reported."""
    metric = metric_of(verdict.case)
    row = report.row_of(verdict)
    reason = row.reason if row else words.of_verdict(verdict)
    named = {
        "metric": metric.value,
        "change": percent(verdict.ratio, metric),
        "difference": counts.difference(verdict.ratio) if metric.counts and verdict.ratio else None,
        "smallest_change": verdict.smallest_change or report.policy.at(verdict.case).smallest_change,
        "control_ratio": verdict.control,
        "cause_text": words.cause_text(verdict),
        "reason": reason,
        "policy_version": verdict.policy.digest if verdict.policy else None,
        "quarantined": row is not None and row.quarantined,
        "known_before": row is not None and row.known_before,
        "slow_before": row is not None and row.slow_before is not None,
        "slower_than_pinned": row is not None and row.slower_than_pinned,
        "repeatability": row.repeatability if row else None,
        "source": row.source if row else None,
        "gate": report.gate_of(row) if row else None,
        "regression_id": row.regression if row else None,
        "incident_id": row.incident if row else None,
        "summary": row.summary if row else reason,
    }
    return document_of(VerdictItem, columns(verdict) | named)


def run_with_report(run: Run, report: Report, *, tables: bool = False) -> RunDocument:
    """`tables` adds the tables of the facts, megabytes for a large suite."""
    named = {
        "url": report.url,
        "author": report.author,
        "committed_at": report.committed_at,
        "headline": headline(report),
        "notes": notes(report),
        "gate": GateItem.model_validate(report.gate),
        "counts": report.counts,
        "behind_sota": len(report.behind),
        "lost_repeatability": len(report.lost_repeatability),
        "sota": report.sota,
        "log": report.log,
        "stack": report.stack,
        "stack_digest": report.stack_digest,
        "telemetry": report.telemetry,
        "ceilings": report.ceilings,
        "policy": report.policy.model_dump(mode="json"),
        "policy_version": report.policy_version,
        "summaries": [SummaryItem.model_validate(one) for one in report.summaries],
        "verdicts": [verdict_item(one, report) for one in run.verdicts],
        "measurements": measurement_items(run.measurements, report.telemetry, tables=tables),
        "unsupported": [UnsupportedItem.model_validate(one) for one in report.unsupported],
    }
    return document_of(RunDocument, _named(run) | named)


def samples_document(row: Measurement, **trials: Sequence[Rounds]) -> SamplesDocument:
    """`trials`: `screening`, `confirmation` and `apart`."""
    named = {"metric": metric_of(row.case).value, "unit": row.unit}
    return document_of(SamplesDocument, columns(row) | named | trials)


def worker_item(worker: Worker, now: float, seconds: Mapping[tuple[str, str], Mapping[str, float]]) -> WorkerItem:
    """`seconds`: the mean seconds of a run by phase, by worker and device."""
    named = {
        "sandbox_error": worker.sandbox,
        "online": is_recent(worker.seen_at, now, WORKER_GONE_S),
        "seconds": seconds.get((worker.name, worker.device), {}),
    }
    return document_of(WorkerItem, columns(worker) | named)


def _named(run: Run) -> dict[str, Any]:
    return columns(run) | {
        "target": run.target.name,
        "revision": run.revision.sha,
        "subject": run.revision.subject,
    }


def kernel_text_item(row: KernelTextRow) -> KernelTextItem:
    named = {"arch": row.arch or None, "kernel": row.kernel or None, "sha256": row.text.sha256, "bytes": row.text.bytes}
    return document_of(KernelTextItem, columns(row) | named)


def facts_check_item(row: FactsCheck) -> FactsCheckItem:
    findings = FindingsItem.model_validate(Findings.from_json(row.findings)) if row.findings else None
    return document_of(
        FactsCheckItem, columns(row) | {"revision": row.revision.sha, "base": row.base or None, "findings": findings}
    )


def facts_diff_document(
    found: FactsDiff, target: str, *, tables: bool = False, changed_only: bool = False
) -> FactsDiffDocument:
    return FactsDiffDocument(
        target=target,
        base=found.base.sha,
        head=found.head.sha,
        check=facts_check_item(found.check) if found.check else None,
        counts=found.counts,
        stack_changes=found.stack_changes,
        cases=[_pair(one, tables) for one in found.pairs if one.changed or not changed_only],
    )


def _pair(one: FactsPair, tables: bool) -> FactsPairItem:
    def side(facts: FactsSide | None) -> FactsSideItem | None:
        if facts is None:
            return None
        shown = dict(facts.facts) if tables else without_tables(facts.facts)
        return FactsSideItem(run_id=facts.run_id, state=facts.state, facts=shown)

    known = {name: getattr(one, name) for name in ("same_code", "differences", "repeatability")}
    return document_of(FactsPairItem, vars(one) | known | {"base": side(one.base), "head": side(one.head)})


def compare_side_item(side: ComparedSide) -> CompareSideItem:
    return document_of(CompareSideItem, columns(side.revision) | vars(side) | {"revision": side.revision.sha})


def compare_item(one: ComparedCase) -> CompareItem:
    metric = metric_of(one.case)
    ratio = vars(one.ratio) if one.ratio else dict.fromkeys(("ratio", "low", "high"))
    named = {"metric": metric.value, "unit": metric.unit, "change": percent(ratio["ratio"], metric)}
    return document_of(CompareItem, vars(one) | ratio | named | {"run_ids": one.runs})


def compare_document(found: RevisionsCompared, target: str) -> CompareDocument:
    return CompareDocument(
        target=target,
        device=found.device,
        base=compare_side_item(found.base),
        head=compare_side_item(found.head),
        counts=dict(Counter(one.direction for one in found.cases)),
        methods=dict(Counter(one.method for one in found.cases)),
        stack_changes=list(found.stack_changes),
        recipe_changed=found.base.recipe_id != found.head.recipe_id,
        cases=[compare_item(one) for one in found.cases],
    )
