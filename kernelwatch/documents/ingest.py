"""Measurements made elsewhere, and messages to a forge as stored in the outbox."""

from typing import Any

from pydantic import Field

from .base import Document, Moment, Number


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


class IngestedItem(Document):
    """One measurement made elsewhere."""

    id: int
    batch_id: int
    revision: str = Field(description="As it was sent.")
    median: Number
    samples: list[float] = Field(description="In `unit`.")


class IngestedSeriesDocument(Document):
    """What was sent of one series, the newest first.  It is never mixed with what kernelwatch measures."""

    target: str
    device: str
    provider: str
    case: str
    unit: str = Field(description="Of `median` and `samples`: us, bytes or count.")
    items: list[IngestedItem]
    next: str | None
