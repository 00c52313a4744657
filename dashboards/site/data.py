"""The exported data: tables as JSON and Parquet, and the histories of a board as one JSON document."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from pydantic_core import to_json

from dashboards.site.documents import SCHEMA
from dashboards.site.folder import SiteFolder
from service.domain.exports import FileFormat
from service.domain.metrics import split_metric
from service.domain.verdicts.samples import Name
from service.errors import Unavailable
from service.ledger.reading.histories import MainlineRun
from service.reports.encoders import Encoder, encoder
from service.reports.schema.base import Document, rfc3339
from service.reports.views import Point


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
    return {
        "at": [places[one.ordinal] for one in points],
        "median": [one.median for one in points],
        "gb_s": [one.gb_s for one in points],
        "sota_median": [one.sota_median for one in points],
        "outcome": [one.outcome for one in points],
        "ratio": [one.ratio for one in points],
        "low": [one.low for one in points],
        "high": [one.high for one in points],
    }
