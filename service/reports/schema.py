"""A Report as plain JSON: the same facts for programs.  Times are RFC 3339, infinities are null."""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from service.domain.codefacts.measured import Measured
from service.reports.report import Report
from service.reports.rows import Row

_TIMES = ("committed_at", "created_at", "started_at", "finished_at")


def document(report: Report) -> str:
    """The Report as JSON text."""
    return json.dumps(facts(report), indent=2, ensure_ascii=False, allow_nan=False)


def facts(report: Report) -> dict[str, Any]:
    """Everything a Report says, with the headline and the counts that people read first."""
    plain: dict[str, Any] = _plain(report)
    return {
        "headline": report.headline,
        "gate": _plain(report.gate),
        "counts": {outcome.value: n for outcome, n in report.counts.items()},
        "behind_sota": len(report.behind),
        "lost_repeatability": len(report.lost_repeatability),
        **plain,
        "rows": [_row(report, row) for row in report.rows],
        **{name: rfc3339(getattr(report, name)) for name in _TIMES},
    }


def _row(report: Report, row: Row) -> dict[str, Any]:
    """A row with its metric, its change in words, and what counts as a change in that metric."""
    limit = row.smallest or report.policy.at(row.case).smallest_change
    flags: dict[str, Any] = {
        "quarantined": row.quarantined,
        "slow_before": row.slow_before is not None,
        "leaks": row.leaks,
    }
    flags["repeatability"] = row.repeatability
    return {"metric": row.metric.value, "change": row.change, "smallest_change": limit, **flags, **_plain(row)}


def _without_tables(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is known kernel by kernel: of 200 cases that is megabytes, and it stands in the measurements."""
    return {name: fact for name, fact in facts.items() if not _is_table(fact)}


def _is_table(fact: Any) -> bool:
    return isinstance(fact, list) and any(isinstance(one, Mapping) for one in fact)


def rfc3339(seconds: float | None) -> str | None:
    return None if seconds is None else moment(seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(seconds: float) -> datetime:
    """Seconds since the epoch as a time; what no calendar can hold becomes the epoch."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Measured):
        value = dataclasses.replace(value, facts=_without_tables(value.facts))
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
