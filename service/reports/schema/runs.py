"""Runs with what they measured and decided, their workers, and what is known of the code of revisions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernelwatch.documents.base import SourceItem
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
    VerdictItem,
    WorkerItem,
)
from service.db.models import FactsCheck, KernelTextRow, Measurement, Run, Worker
from service.domain import roofline
from service.domain.codefacts.findings import Findings
from service.domain.metrics import metric_of, percent
from service.domain.states import Outcome, Rounds
from service.domain.stats import counts
from service.domain.text import WORKER_GONE_S, is_recent
from service.reports import words
from service.reports.comment_head import headline
from service.reports.notes import notes
from service.reports.report import Report, RunContents
from service.reports.rows import ComparedCase, ComparedSide, FactsDiff, FactsPair, FactsSide, RevisionsCompared, Row
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
    return [MeasurementItem.model_validate(one) for one in _measurements(rows, telemetry, tables=tables)]


def _measurements(
    rows: Iterable[Measurement], telemetry: Mapping[str, Any] | None, *, tables: bool
) -> Iterator[dict[str, Any]]:
    """The values of MeasurementItems."""
    best_of = roofline.ceilings_by_case(telemetry)
    for row in rows:
        case, median, gb_s, facts = row.case, row.median, row.gb_s, row.facts or {}
        metric = metric_of(case)
        yield {
            "contender": row.contender,
            "role": row.role,
            "provider": row.provider,
            "case": case,
            "metric": metric.value,
            "state": row.state.value,
            "reason": row.reason,
            "median": median,
            "unit": metric.unit,
            "gb_s": gb_s,
            "trials": row.trials,
            "rounds": row.rounds,
            "facts": facts if tables else without_tables(facts),
            "speed": vars(roofline.speed(case, median, gb_s, facts, best_of(case))),
        }


def verdict_item(verdict: Any, report: Report) -> VerdictItem:
    """A verdict of the run that was reported: its columns, and the `policy_version`."""
    return VerdictItem.model_validate(_verdict(verdict, report))


def _verdict(verdict: Any, report: Report) -> dict[str, Any]:
    """The values of a VerdictItem."""
    case, ratio = verdict.case, verdict.ratio
    metric = metric_of(case)
    against = report.row_of(verdict)
    row = against if isinstance(against, Row) else None
    reason, cause = (against.reason, against.cause) if against else (words.of_verdict(verdict), words.cause_of(verdict))
    return {
        "provider": verdict.provider,
        "case": case,
        "metric": metric.value,
        "baseline_kind": verdict.baseline_kind,
        "baseline": verdict.baseline,
        "outcome": verdict.outcome,
        "change": percent(ratio, metric),
        "ratio": ratio,
        "difference": counts.difference(ratio) if metric.counts and ratio else None,
        "low": verdict.low,
        "high": verdict.high,
        "trials": verdict.trials,
        "rounds": verdict.rounds,
        "suspected": verdict.suspected,
        "confirmed": verdict.confirmed,
        "p": verdict.p,
        "q": verdict.q,
        "smallest_change": verdict.smallest_change or report.policy.smallest_change_of(case),
        "control_ratio": verdict.control,
        "doubt": verdict.doubt,
        "behind_sota": verdict.behind_sota,
        "quarantined": row is not None and row.quarantined,
        "known_before": row is not None and row.known_before,
        "slow_before": row is not None and row.slow_before is not None,
        "slower_than_pinned": row is not None and row.slower_than_pinned,
        "repeatability": row.repeatability if row else None,
        "cause_kind": verdict.cause_kind,
        "cause_text": cause.words if cause else None,
        "cause_certain": verdict.cause_certain,
        "cause_by": verdict.cause_by,
        "source": SourceItem.model_validate(row.source) if row and row.source else None,
        "policy_version": verdict.policy_version,
        "cause_code": verdict.cause_code,
        "reason": reason,
        "reason_code": verdict.reason_code,
        "gate": report.gate_of(row) if row else None,
        "regression_id": row.regression if row else None,
        "incident_id": row.incident if row else None,
        "summary": row.summary if row else reason,
    }


def run_values(run: Run, report: Report, found: RunContents, *, tables: bool = False) -> dict[str, Any]:
    """The values of a RunDocument; `tables` adds the tables of the facts, megabytes for a large suite.

    Its verdicts and measurements are mostly columns of the database.  To validate those of 206 cases took longer than
    to write all of them as JSON.
    """
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
        "verdicts": (),
        "measurements": (),
        "unsupported": [UnsupportedItem.model_validate(one) for one in report.unsupported],
    }
    return dict(document_of(RunDocument, _named(run) | named)) | {
        "verdicts": [_verdict(one, report) for one in found.verdicts],
        "measurements": list(_measurements(found.measurements, report.telemetry, tables=tables)),
    }


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
