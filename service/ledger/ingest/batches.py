"""Store and read measurements made elsewhere.

They are rows of their own tables: no history, baseline, verdict or gate of what was measured here can see them.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import IO

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, insert_rows, transaction
from service.db.models import IngestBatch, IngestedMeasurement, Target
from service.db.paging import ResultPage, paged
from service.domain.ingest import MAX_LINE, Provenance, Sent, pack_samples, read_first, read_lines
from service.errors import BadInput, NotFound, TooLarge
from service.ledger import audit
from service.ledger.acting import acting

MAX_BYTES = 1 << 30  # of a body that was compressed
# How many times larger than its gzip file a batch may be.  Lines with one sample each are 66 times larger, with thirty
# 6 times; a file of 118 kB with equal lines was 300,000 measurements and 4 s of CPU time (November 2026).
_MAX_RATIO = 100
_ANY_RATIO = 8 << 20  # bytes, up to which the ratio does not count
_PART = 2_000  # rows of one transaction: on SQLite nobody else writes meanwhile
_CHUNK = 1 << 16
_COLUMNS = (
    *("batch_id", "target_id", "device", "provider", "case", "revision"),
    *("median", "samples", "unit", "better", "missing"),
)
_ABANDONED_S = 86_400.0


def receive(target: Target, body: IO[bytes], *, compressed: bool) -> IngestBatch:
    """Store the batch in a file of JSON lines.  Either all of it is stored, or nothing.

    Rows are written in parts, so that other writers get their turn.  Nobody reads them before the last is written, and
    they are deleted if a line has a mistake.

    Raises BadInput that names the line with a mistake, and TooLarge.
    """
    lines = _split(_decompressed(body) if compressed else iter(lambda: body.read(_CHUNK), b""))
    batch = _begin(target.id, read_first(next(lines, b"")))
    measurements = samples = 0
    try:
        for part in _parts(read_lines(lines)):
            _store(batch, part)
            measurements += len(part)
            samples += sum(len(measurement.samples) for measurement in part)
        if not measurements:
            raise BadInput("The batch has no measurements: send one JSON object a line after the first.")
        return _complete(batch, target.name, measurements, samples)
    except BaseException:
        with suppress(Exception):  # what is left is deleted with the next batch
            _delete([batch.id])
        raise


def _decompressed(body: IO[bytes]) -> Iterator[bytes]:
    """The parts of a gzip file.  A part is at most as long as asked for, however well it was compressed."""
    gunzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    size = taken = 0
    try:
        while not gunzip.eof:
            data = gunzip.unconsumed_tail
            if not data:
                data = body.read(_CHUNK)
                taken += len(data)
            part = gunzip.decompress(data, _CHUNK)
            if not data and not part and not gunzip.eof:
                raise BadInput("The gzip file ends too early; send all of it.")
            size += len(part)
            if size > MAX_BYTES:
                raise TooLarge(MAX_BYTES)
            if size > max(_ANY_RATIO, taken * _MAX_RATIO):
                raise BadInput(
                    f"The batch is more than {_MAX_RATIO} times as large as its gzip file: send it in parts of at "
                    f"most {_ANY_RATIO >> 20} MiB, or without Content-Encoding."
                )
            yield part
        if gunzip.unused_data or body.read(1):
            raise BadInput("The gzip file has bytes after its end; compress the batch as one file.")
    except zlib.error as error:
        raise BadInput(f"The body is not a gzip file, as Content-Encoding says: {error}.") from None


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in (*whole, rest):
            if len(line) > MAX_LINE:
                raise BadInput(f"A line is longer than {MAX_LINE} bytes. Send one measurement a line.")
        yield from whole
    if rest:
        yield rest


def _parts(rows: Iterator[Sent]) -> Iterator[list[Sent]]:
    while part := list(islice(rows, _PART)):
        yield part


def _begin(target_id: int, provenance: Provenance) -> IngestBatch:
    with transaction() as session:
        now = clock(session)
        abandoned = IngestBatch.complete.is_(False) & (IngestBatch.received_at < now - _ABANDONED_S)
        old = session.scalars(select(IngestBatch.id).where(abandoned)).all()
        batch = IngestBatch(
            target_id=target_id,
            received_at=now,
            sent_by=acting().actor.name,
            measured_at=provenance.measured_at.timestamp() if provenance.measured_at else None,
            **provenance.model_dump(exclude={"measured_at"}),
        )
        session.add(batch)
        session.flush()
        session.refresh(batch)
    if old:
        _delete(old)
    return batch


def _store(batch: IngestBatch, part: Sequence[Sent]) -> None:
    rows = [
        (
            batch.id,
            batch.target_id,
            batch.device,
            measurement.provider,
            measurement.case,
            measurement.revision,
            measurement.median,
            pack_samples(measurement.samples),
            measurement.unit,
            measurement.better and measurement.better.value,
            measurement.missing and measurement.missing.value,
        )
        for measurement in part
    ]
    with transaction() as session:
        insert_rows(session, IngestedMeasurement, _COLUMNS, rows)


def _complete(batch: IngestBatch, target: str, measurements: int, samples: int) -> IngestBatch:
    with transaction() as session:
        values = {"complete": True, "measurements": measurements, "samples": samples}
        session.execute(update(IngestBatch).where(IngestBatch.id == batch.id).values(values))
        details = {"measurements": measurements, "samples": samples, "tool": batch.tool}
        audit.record(session, "ingest.create", target=target, of=f"batch {batch.id}", details=details)
        return one(session, batch.id)


def one(session: Session, batch_id: int) -> IngestBatch:
    """A batch that is complete.  Raises NotFound."""
    batch = session.scalar(select(IngestBatch).where(IngestBatch.id == batch_id, IngestBatch.complete))
    if batch is None:
        raise NotFound("batch", batch_id)
    return batch


def listed(session: Session, target: Target, cursor: str | None = None, limit: int = 50) -> ResultPage[IngestBatch]:
    """The batches of a target, the newest first."""
    query = select(IngestBatch).where(IngestBatch.target_id == target.id, IngestBatch.complete)
    return paged(session, query, (IngestBatch.id,), cursor, limit)


def series(
    session: Session,
    target: Target,
    *,
    device: str,
    provider: str,
    case: str,
    cursor: str | None = None,
    limit: int = 50,
) -> ResultPage[IngestedMeasurement]:
    """What was sent of one series, the newest first."""
    row = IngestedMeasurement
    query = (
        select(row)
        .where(row.target_id == target.id, row.device == device, row.provider == provider, row.case == case)
        .where(row.batch_id.in_(select(IngestBatch.id).where(IngestBatch.complete)))
    )
    return paged(session, query, (row.id,), cursor, limit)


def remove(batch_id: int) -> None:
    """Delete a batch with its measurements.  Raises NotFound."""
    with transaction() as session:
        batch = one(session, batch_id)
        name = session.get_one(Target, batch.target_id).name
        audit.record(session, "ingest.delete", target=name, of=f"batch {batch_id}")
    _delete([batch_id])


def _delete(ids: Sequence[int]) -> None:
    """Delete batches, in parts, after hiding them from readers."""
    rows = IngestedMeasurement
    with transaction() as session:
        session.execute(update(IngestBatch).where(IngestBatch.id.in_(ids)).values(complete=False))
    while True:
        with transaction() as session:
            part = session.scalars(select(rows.id).where(rows.batch_id.in_(ids)).limit(_PART)).all()
            session.execute(delete(rows).where(rows.id.in_(part)))
            if len(part) < _PART:
                session.execute(delete(IngestBatch).where(IngestBatch.id.in_(ids)))
                return
