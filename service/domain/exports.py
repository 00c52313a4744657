"""What can be exported, and as which files."""

from enum import StrEnum


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
