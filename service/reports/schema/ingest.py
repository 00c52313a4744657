"""Measurements made elsewhere."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field

from service.db.models import IngestBatch, IngestedMeasurement
from service.domain.ingest import unit_of, unpack_samples
from service.reports.schema.base import Document, Moment, Number, columns


class BatchItem(Document):
    """Measurements that somebody made elsewhere and sent in one request."""

    id: int
    target: str
    device: str
    tool: str
    machine: str
    measured_at: Moment | None
    stack: dict[str, Any]
    notes: dict[str, Any]
    sent_by: str
    received_at: Moment
    measurements: int
    samples: int

    @classmethod
    def of(cls, row: IngestBatch, target: str) -> Self:
        return cls.model_validate(columns(row) | {"target": target})


class IngestedItem(Document):
    """One measurement made elsewhere."""

    id: int
    batch_id: int
    revision: str = Field(description="As it was sent.")
    median: Number
    samples: list[float] = Field(description="In `unit`.")

    @classmethod
    def of(cls, row: IngestedMeasurement) -> Self:
        return cls.model_validate(columns(row) | {"samples": unpack_samples(row.samples)})


class IngestedSeriesDocument(Document):
    """What was sent of one series, the newest first.  It is never mixed with what kernelwatch measures."""

    target: str
    device: str
    provider: str
    case: str
    unit: str = Field(description="Of `median` and `samples`: us, bytes or count.")
    items: list[IngestedItem]
    next: str | None

    @classmethod
    def whole(cls, rows: Sequence[IngestedMeasurement], following: str | None, **key: str) -> Self:
        """`key` is target, device, provider and case."""
        items = [IngestedItem.of(row) for row in rows]
        named: dict[str, Any] = {**key, "unit": unit_of(key["case"]), "items": items, "next": following}
        return cls(**named)
