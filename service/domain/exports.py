"""What can be exported, as which files, and exported samples as batches of measurements made elsewhere.  Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from kernels.cases import Role
from service.errors import BadInput

# What a run measured first.  The others repeat the code of other revisions, which have runs of their own.
IMPORTED_ROLES = (Role.HEAD, Role.SOTA, Role.RIVAL)
TOOL = "kernelwatch"


class Exportable(StrEnum):
    """What can be exported."""

    TARGETS = "targets"
    REVISIONS = "revisions"
    RUNS = "runs"
    MEASUREMENTS = "measurements"
    SAMPLES = "samples"
    VERDICTS = "verdicts"
    REGRESSIONS = "regressions"
    INCIDENTS = "incidents"
    CHANGE_POINTS = "change-points"
    BISECTIONS = "bisections"
    GAPS = "gaps"
    DRIFTS = "drifts"
    FACTS_CHECKS = "facts-checks"
    INGESTED = "ingested"
    WORKERS = "workers"
    CALIBRATIONS = "calibrations"
    QUARANTINES = "quarantines"
    POLICIES = "policies"
    PEOPLE = "people"
    AUDIT = "audit"


class FileFormat(StrEnum):
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"

    @property
    def media_type(self) -> str:
        return _MEDIA_TYPES[self]

    @property
    def suffix(self) -> str:
        """Of the name of a file."""
        return "ndjson" if self is FileFormat.JSON else self.value


_MEDIA_TYPES = {
    FileFormat.CSV: "text/csv",
    FileFormat.JSON: "application/x-ndjson",
    FileFormat.PARQUET: "application/vnd.apache.parquet",
}


class HistoryFormat(StrEnum):
    """Of the history of a target, by the tool that reads it."""

    GITHUB_ACTION_BENCHMARK = "github-action-benchmark"
    BENCHER = "bencher"


class SampleRow(BaseModel):
    """What an import reads of a row of exported samples."""

    model_config = ConfigDict(extra="ignore")

    run_id: int
    target: str
    revision: str
    device: str
    measured_at: AwareDatetime | None
    worker: str | None
    stack: dict[str, Any] | None
    contender: str
    role: str
    provider: str
    measured_revision: str | None
    case: str
    value: float | None


@dataclass(frozen=True)
class SampleBatch:
    """What is sent of one run: its provenance, and its measurements."""

    provenance: Mapping[str, Any]
    measurements: Iterable[Mapping[str, Any]]
    left_out: int = 0  # measurements of other roles, and without samples


def batches(rows: Iterable[Mapping[str, Any]], roles: Collection[str] = IMPORTED_ROLES) -> Iterator[SampleBatch]:
    """A batch for each run, with the measurements of contenders in these roles.

    Raises:
        BadInput: For a row that is no exported sample, or if rows of one measurement are in several places.
    """
    seen = set[int]()
    for run_id, of_run in groupby(_read(rows), lambda row: row.run_id):
        if run_id in seen:
            raise _scattered(f"run {run_id}")
        seen.add(run_id)
        yield _batch(run_id, of_run, roles)


def _read(rows: Iterable[Mapping[str, Any]]) -> Iterator[SampleRow]:
    for number, row in enumerate(rows, 1):
        try:
            yield SampleRow.model_validate(row)
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(str(part) for part in fault["loc"])
            why = f"{place}: {fault['msg']}"
            raise BadInput(
                f"Row {number} is no exported sample ({why}); `kernelwatch export samples` writes them."
            ) from None


def _batch(run_id: int, rows: Iterator[SampleRow], roles: Collection[str]) -> SampleBatch:
    measurements = list[Mapping[str, Any]]()
    seen = set[tuple[str, str]]()
    provenance: Mapping[str, Any] = {}
    left_out = 0
    for name, group in groupby(rows, lambda row: (row.contender, row.case)):
        if name in seen:
            raise _scattered(f"{name[0]} at {name[1]} in run {run_id}")
        seen.add(name)
        first = next(group)
        provenance = provenance or _provenance(first)
        samples = [row.value for row in (first, *group) if row.value is not None]
        if first.role in roles and samples:
            revision = first.revision if first.measured_revision is None else first.measured_revision
            of = {"revision": revision, "provider": first.provider, "case": first.case}
            measurements.append({**of, "samples": samples})
        else:
            left_out += 1
    return SampleBatch(provenance, measurements, left_out)


def _provenance(row: SampleRow) -> Mapping[str, Any]:
    return {
        "tool": TOOL,
        "machine": row.worker or "unknown",
        "device": row.device,
        "measured_at": row.measured_at,
        "stack": row.stack or {},
        "notes": {"target": row.target, "run_id": row.run_id},
    }


def _scattered(what: str) -> BadInput:
    return BadInput(f"The rows of {what} are in several places: sort the file by run_id, contender and case.")
