"""Files of measurements: in the format of the ingest endpoint, or written by `kernelwatch export samples`."""

import csv
import gzip
import io
import json
from collections.abc import Collection, Generator, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

from service.domain.exports import SampleBatch, SampleRow, batches
from service.errors import BadInput
from service.reports.encoders import text_of_cell

_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_ROWS = 5_000  # of Parquet that are read together


def batches_of(path: Path, roles: Collection[str]) -> Generator[SampleBatch]:
    """The batches of a file; `roles` choose contenders among exported samples.

    Raises:
        BadInput: If the file cannot be read, or has something else.
    """
    try:
        with path.open("rb") as file:
            yield from _batches(file, roles)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _batches(file: IO[bytes], roles: Collection[str]) -> Iterator[SampleBatch]:
    magic = file.read(4)
    file.seek(0)
    if magic == _PARQUET:
        yield from batches(_parquet_rows(file), roles)
        return
    plain = gzip.open(file) if magic.startswith(_GZIP) else file  # noqa: SIM115  # closed with the text
    with io.TextIOWrapper(plain, "utf-8", newline="") as lines:
        try:
            yield from _text_batches(lines, roles)
        except UnicodeDecodeError:
            raise BadInput("It is not UTF-8: only JSON lines, CSV and Parquet can be imported.") from None


def _text_batches(lines: IO[str], roles: Collection[str]) -> Iterator[SampleBatch]:
    first = lines.readline()
    if not first.startswith("{"):
        yield from batches(_csv_rows(chain([first], lines)), roles)
        return
    whole = _parsed(1, first)
    rest = (_parsed(number, line) for number, line in enumerate(lines, 2) if line.strip())
    if "batch" in whole:
        yield SampleBatch(whole["batch"], rest)
    else:
        yield from batches(chain([whole], rest), roles)


def _parsed(number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        if number == 1:  # the beginning of a JSON file with line breaks, or text
            raise BadInput(
                "Line 1 is no JSON object by itself, so these are no JSON lines. If another tool wrote the file, say "
                "which with --from."
            ) from None
        raise BadInput(f"Line {number} is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise BadInput(f"Line {number} is not a JSON object.")
    return found


def _csv_rows(lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    table = csv.DictReader(lines)
    _check_columns(table.fieldnames or ())
    for row in table:
        found: dict[str, Any] = {name: text_of_cell(row[name] or "") or None for name in SampleRow.model_fields}
        yield found | {"stack": _stack(found["stack"])}


def _parquet_rows(file: IO[bytes]) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"Parquet needs the module {missing.name}: install it with pip install 'kernelwatch[server]', or from "
            "requirements.txt; or import CSV or JSON lines."
        ) from None
    try:
        table = parquet.ParquetFile(file)
        _check_columns(table.schema_arrow.names)
        for part in table.iter_batches(batch_size=_ROWS, columns=list(SampleRow.model_fields)):
            for row in part.to_pylist():
                yield row | {"stack": _stack(row["stack"])}
    except ArrowException as error:
        raise BadInput(f"It is damaged: {error}.") from None


def _check_columns(names: Collection[str]) -> None:
    missing = [name for name in SampleRow.model_fields if name not in names]
    if missing:
        raise BadInput(
            f"It has no column {missing[0]}: only JSON lines as the ingest endpoint takes them can be imported, and "
            "samples as `kernelwatch export samples` writes them; of another tool, say which with --from."
        )


def _stack(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text  # the check of the row says what is wrong
