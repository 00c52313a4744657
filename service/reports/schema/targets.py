"""Targets, their revisions, the history of one case, and the distance to SOTA."""

from collections.abc import Sequence
from typing import Self

from pydantic import Field

from service.db.models import Target
from service.domain.metrics import metric_of
from service.domain.states import CellState, TargetKind
from service.domain.text import without_credentials
from service.reports.report import readable
from service.reports.schema.base import Document, Moment, Number, columns
from service.reports.views import GapView, Point


class TargetItem(Document):
    """A watched repository or package."""

    name: str
    kind: TargetKind
    location: str = Field(description="URL or folder of the repository or index, without credentials.")
    package: str | None
    branch: str | None
    forge: str | None = Field(description="`owner/name` on GitHub.")
    trusted: bool
    allow_unsandboxed: bool
    created_at: Moment
    poll_at: Moment = Field(description="When the remote is polled next.")
    poll_failures: int
    poll_error: str | None
    paused_at: Moment | None = Field(description="No new revisions are taken since this time.")
    devices: list[str] = Field(description="The devices of its recipe.")

    @classmethod
    def of(cls, target: Target) -> Self:
        recipe = readable(target.recipe.text) if target.recipe else None
        named = {
            "location": without_credentials(target.location),
            "devices": list(recipe.devices) if recipe else [],
        }
        return cls.model_validate(columns(target) | named)


class TargetDocument(TargetItem):
    """A target with its recipe."""

    recipe: str | None
    open_regressions: int
    behind_sota: int = Field(description="Mainline cases that are slower than SOTA.")

    @classmethod
    def whole(cls, target: Target, *, open_regressions: int, behind_sota: int) -> Self:
        return cls(
            **TargetItem.of(target).model_dump(),
            recipe=target.recipe.text if target.recipe else None,
            open_regressions=open_regressions,
            behind_sota=behind_sota,
        )


class RevisionItem(Document):
    """One commit, or one release."""

    sha: str
    short: str
    parent: str | None
    ordinal: int | None = Field(description="Position on the mainline, the oldest 0; null off it.")
    subject: str
    author: str
    committed_at: Moment
    paths: list[str] = Field(description="Files changed since the first parent.")


class PointItem(Document):
    """One mainline revision of a series."""

    run_id: int
    revision: str
    subject: str
    ordinal: int
    committed_at: Moment
    state: CellState
    median: Number
    gb_s: Number
    sota_median: Number = Field(description="The median of SOTA in the same run.")
    outcome: str | None
    ratio: Number
    low: Number
    high: Number
    stack_id: int | None
    stack_changes: list[str] = Field(
        description="What changed in the stack since the previous point.", examples=[["torch 2.11.0 → 2.13.0"]]
    )


class SeriesDocument(Document):
    """One case over the mainline, oldest revision first."""

    target: str
    case: str
    provider: str
    device: str
    metric: str
    unit: str = Field(description="Of `median` and `sota_median`: us or bytes.")
    points: list[PointItem]

    @classmethod
    def of(cls, points: Sequence[Point], *, target: str, case: str, provider: str, device: str) -> Self:
        metric = metric_of(case)
        shown = [PointItem.model_validate(point) for point in points]
        return cls(
            target=target,
            case=case,
            provider=provider,
            device=device,
            metric=metric.value,
            unit=metric.unit,
            points=shown,
        )


class GapItem(Document):
    """A mainline case that is slower than SOTA."""

    target: str
    device: str
    provider: str
    case: str
    ratio: Number = Field(description="Of the latest run: head over SOTA.")
    ratio_at_start: Number = Field(description="The same, in the run that first found it.")
    median: Number
    sota_median: Number
    unit: str = Field(description="Of both medians: us or bytes.")
    since: str | None = Field(description="The revision from which it is behind.")
    run_id: int = Field(description="The latest mainline run that measured it.")

    @classmethod
    def of(cls, found: GapView) -> Self:
        gap = found.gap
        return cls(
            target=found.target,
            device=gap.device,
            provider=gap.provider,
            case=gap.case,
            ratio=gap.ratio_now,
            ratio_at_start=gap.ratio_then,
            median=gap.own,
            sota_median=gap.sota,
            unit=gap.metric.unit,
            since=found.since.sha if found.since else None,
            run_id=gap.last_run_id,
        )
