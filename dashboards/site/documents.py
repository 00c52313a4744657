"""The exported data as JSON and Parquet, and its rows (docs/publishing.md describes every field)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from pydantic import Field
from pydantic_core import to_json

from dashboards.site.folder import SiteFolder
from kernelwatch.documents.base import Document, Moment, Number, moment
from service.domain.exports import FileFormat
from service.domain.metrics import split_metric
from service.domain.verdicts.samples import Name
from service.errors import Unavailable
from service.ledger.reading.histories import MainlineRun
from service.reports.charts.board import BoardCase, BoardRun
from service.reports.encoders import Encoder, encoder
from service.reports.rows import ComparedCase, RevisionsCompared
from service.reports.schema.base import rfc3339
from service.reports.views import Point

SCHEMA = 1  # of the data; raised when a field is removed or means something else


class OfBoard(Document):
    """The board that a row belongs to."""

    target: str
    device: str


class SiteBoardRow(OfBoard):
    """A case of the newest run of a board, and one other provider in the same session."""

    revision: str = Field(description="The commit, or the version of a release.")
    committed_at: Moment
    provider: str = Field(description="Of the target.")
    case: str
    median_us: float
    gb_s: Number
    in_cache: bool = Field(description="The data fit the L2 cache.")
    other: str | None = Field(description="The other provider; null where none was measured.")
    other_median_us: Number
    other_gb_s: Number
    ratio: Number = Field(description="Time over the other's time; above 1 the target is slower.")
    sota: bool = Field(description="Whether the other provider is SOTA.")
    behind: bool = Field(description="Judged behind SOTA.")
    behind_since: str | None = Field(description="The revision.")

    @classmethod
    def all_of(cls, target: str, device: str, run: BoardRun, case: BoardCase, sota: str) -> "list[SiteBoardRow]":
        """A row for each other provider, or one without."""
        names: list[str | None] = [*sorted(case.others)] or [None]
        rows = []
        for other in names:
            timed = case.others[other] if other else None
            judged = other == sota
            ratio = case.own.median / timed.median if timed and timed.median else None
            row = cls.model_construct(
                target=target,
                device=device,
                revision=run.revision,
                committed_at=moment(run.committed_at),
                provider=case.provider,
                case=case.case,
                median_us=case.own.median,
                gb_s=case.own.gb_s,
                in_cache=case.in_cache,
                other=other,
                other_median_us=timed.median if timed else None,
                other_gb_s=timed.gb_s if timed else None,
                ratio=case.ratio if judged and case.ratio else ratio,
                sota=judged,
                behind=judged and case.behind,
                behind_since=case.behind_since.revision if judged and case.behind_since else None,
            )
            rows.append(row)
        return rows


class SitePointRow(OfBoard):
    """A revision of the mainline at one case."""

    provider: str
    case: str = Field(description="Without its metric.")
    metric: str
    unit: str = Field(description="Of the medians: us, bytes or count.")
    revision: str
    subject: str
    ordinal: int = Field(description="The place on the mainline, from 0.")
    committed_at: Moment
    median: Number
    gb_s: Number
    sota_median: Number = Field(description="Of SOTA in the same session.")
    outcome: str | None = Field(description="The verdict against the parent.")
    ratio: Number = Field(description="To the parent; above 1 is slower.")
    low: Number
    high: Number
    stack_changes: list[str] = Field(description="What changed in the stack since the revision before.")

    @classmethod
    def of(cls, target: str, device: str, provider: str, printed: str, point: Point) -> "SitePointRow":
        case, metric = split_metric(printed)
        return cls.model_construct(
            target=target,
            device=device,
            provider=provider,
            case=case,
            metric=metric.value,
            unit=metric.unit,
            revision=point.revision,
            subject=point.subject,
            ordinal=point.ordinal,
            committed_at=moment(point.committed_at),
            median=point.median,
            gb_s=point.gb_s,
            sota_median=point.sota_median,
            outcome=point.outcome,
            ratio=point.ratio,
            low=point.low,
            high=point.high,
            stack_changes=list(point.stack_changes),
        )


class SiteReleaseRow(OfBoard):
    """A case of a release, compared with the release before."""

    base: str
    head: str
    provider: str
    case: str
    direction: str = Field(description="slower, faster, same, or unknown.")
    method: str = Field(description="How the two were compared: see docs/verdicts.md.")
    base_median: Number
    head_median: Number
    ratio: Number
    low: Number
    high: Number

    @classmethod
    def of(cls, target: str, found: RevisionsCompared, case: ComparedCase) -> "SiteReleaseRow":
        ratio = case.ratio
        return cls.model_construct(
            target=target,
            device=found.device,
            base=found.base.revision.sha,
            head=found.head.revision.sha,
            provider=case.provider,
            case=case.case,
            direction=case.direction,
            method=case.method.value,
            base_median=case.base_median,
            head_median=case.head_median,
            ratio=ratio.ratio if ratio else None,
            low=ratio.low if ratio else None,
            high=ratio.high if ratio else None,
        )


def json_document(made: float, **values: Any) -> bytes:
    """A document with the version of its schema; numbers that are not finite become null."""
    return to_json({"schema": SCHEMA, "made": rfc3339(made)} | values, inf_nan_mode="null") + b"\n"


class SiteTable:
    """Rows of one kind in a file, written as they come: Parquet, or CSV without pyarrow; and JSON if that is wanted."""

    def __init__(self, folder: SiteFolder, name: str, kind: type[Document], made: float, *, json: bool) -> None:
        self.name, self.rows = name, 0
        self.form, self._encode = _columns_of(kind)
        self._made, self._open = made, ExitStack()
        self.files = [f"{name}.{self.form.suffix}", *([f"{name}.json"] if json else [])]
        try:
            self._columns, *self._json = (self._open.enter_context(folder.open(f"data/{one}")) for one in self.files)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        head = json_document(self._made, rows=[]).rstrip()
        for file in self._json:
            file.write(head.removesuffix(b"]}"))
        return self

    def add(self, rows: Sequence[Document]) -> None:
        self._columns.write(self._encode.rows(rows))
        for file in self._json:
            for number, row in enumerate(rows, self.rows):
                file.write((b",\n" if number else b"\n") + row.model_dump_json().encode())
        self.rows += len(rows)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._open:
            if kind is None:
                self._columns.write(self._encode.end())
                for file in self._json:
                    file.write(b"\n]}\n")


def _columns_of(kind: type[Document]) -> tuple[FileFormat, Encoder]:
    try:
        return FileFormat.PARQUET, encoder(FileFormat.PARQUET, kind)
    except Unavailable:
        return FileFormat.CSV, encoder(FileFormat.CSV, kind)


def history_parts(
    made: float,
    target: str,
    device: str,
    runs: Iterable[MainlineRun],
    series: Iterable[tuple[Name, Sequence[Point]]],
) -> Iterator[bytes]:
    """The document of a board's histories, series by series: columns, of which `at` are indexes of `revisions`."""
    revisions = {run.ordinal: run for run in runs}
    places = {ordinal: place for place, ordinal in enumerate(revisions)}
    listed = [
        {"revision": one.revision, "subject": one.subject, "committed_at": rfc3339(one.committed_at)}
        for one in revisions.values()
    ]
    head = json_document(made, target=target, device=device, revisions=listed, series=[])
    yield head.rstrip().removesuffix(b"]}")
    for number, ((provider, printed), points) in enumerate(series):
        case, metric = split_metric(printed)
        named = {"provider": provider, "case": case, "metric": metric.value, "unit": metric.unit}
        yield (b",\n" if number else b"\n") + to_json(named | _history_columns(points, places), inf_nan_mode="null")
    yield b"\n]}\n"


def _history_columns(points: Sequence[Point], places: Mapping[int, int]) -> dict[str, list[Any]]:
    columns = ("median", "gb_s", "sota_median", "outcome", "ratio", "low", "high")
    named = {name: [getattr(one, name) for one in points] for name in columns}
    return {"at": [places[one.ordinal] for one in points], **named}
