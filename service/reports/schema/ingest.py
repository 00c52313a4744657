"""Measurements made elsewhere, and messages to a forge as stored in the outbox."""

from collections.abc import Sequence
from enum import StrEnum
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


class CommentPayload(Document):
    """A comment on a pull request, in Markdown: the report, or the answer to a command."""

    pull: int
    body: str
    to_stranger: bool = Field(default=False, description="An answer to a person who may not command anything.")


class ReactionPayload(Document):
    """A reaction to a comment of a person, in GitHub's words: eyes, +1 or confused."""

    pull: int = 0  # missing in messages of an earlier version, which GitHub does not need
    comment: int
    content: str


class CheckAction(Document):
    """A button of a completed check; GitHub allows three of them, and these lengths."""

    label: str = Field(max_length=20)
    description: str = Field(max_length=40)
    identifier: str = Field(max_length=20)


class AnnotationLevel(StrEnum):
    """How grave an annotation is, in GitHub's words."""

    NOTICE = "notice"
    WARNING = "warning"
    FAILURE = "failure"


class CheckAnnotation(Document):
    """A remark at lines of a file of the commit, as plain text."""

    path: str
    start_line: int
    end_line: int
    annotation_level: AnnotationLevel
    title: str = Field(max_length=255)
    message: str = Field(max_length=16_000)  # GitHub takes 64 KB


class CheckPayload(Document):
    """A check run of a commit, or its status, in GitHub's words.

    Several targets may watch one repository, so the name contains the target.
    """

    name: str
    sha: str
    status: str
    conclusion: str | None
    commit_status: str = "pending"  # missing in messages of an earlier version
    title: str
    summary: str
    url: str | None
    actions: list[CheckAction] = Field(default_factory=list, max_length=3)
    annotations: list[CheckAnnotation] = Field(default_factory=list)
