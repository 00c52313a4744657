"""The documents of studies."""

from collections.abc import Mapping
from datetime import datetime
from statistics import median
from typing import Any

from kernels.studies.records import Record
from kernels.studies.results import Results
from kernels.studies.study import Study, StudyReport
from kernelwatch.documents.studies import (
    StudyConclusionItem,
    StudyFigureItem,
    StudyItem,
    StudyLimitItem,
    StudyRecordItem,
    StudySessionDocument,
    StudySessionItem,
    StudyStackItem,
    StudyTableItem,
)
from service.db.models import StudySession
from service.domain.studies.sessions import Claims, StudyProgress, control, stacks
from service.reports.schema.base import document_of


def study_session_item(row: StudySession, progress: StudyProgress) -> StudySessionItem:
    return StudySessionItem(**session_fields(row, progress))


def session_fields(row: StudySession, progress: StudyProgress) -> dict[str, Any]:
    """The fields of a session without its results."""
    return {
        **{name: getattr(row, name) for name in ("id", "study", "device", "quick", "updated_at")},
        "began_at": datetime.fromisoformat(row.began),
        "revision": row.code.get("revision"),
        "kernels": row.code.get("kernels"),
        "done": progress.done,
        "total": progress.total,
    }


def study_item(study: Study, sessions: Mapping[str, int], shown: int | None, claims: Claims | None) -> StudyItem:
    return document_of(StudyItem, vars(study) | {"sessions": sessions, "shown": shown, "claims": claims})


def study_record_item(one: Record) -> StudyRecordItem:
    kept = [value for value in one.samples if value]
    return document_of(StudyRecordItem, vars(one) | {"median": median(kept) if kept else None})


def study_session_document(
    row: StudySession, progress: StudyProgress, study: Study, results: Results, report: StudyReport
) -> StudySessionDocument:
    return StudySessionDocument(
        **session_fields(row, progress),
        title=study.title,
        machine=row.machine,
        stacks=[StudyStackItem.model_validate(one) for one in stacks(results)],
        control=control(results),
        findings=[StudyConclusionItem.model_validate(one) for one in report.findings],
        tables=[StudyTableItem.model_validate(one) for one in report.tables],
        figures=[_figure(one) for one in report.figures],
        records=[study_record_item(one) for one in results.records],
    )


def _figure(one: Any) -> StudyFigureItem:
    limit = StudyLimitItem(name=one.limit[0], value=one.limit[1]) if one.limit else None
    return document_of(StudyFigureItem, vars(one) | {"limit": limit})
