"""The rows of the exported data (docs/publishing.md describes every field)."""

from pydantic import Field

from service.domain.metrics import split_metric
from service.ledger.reading.board import BoardCase, BoardRun
from service.reports.comparisons import ComparedCase, RevisionsCompared
from service.reports.schema.base import Document, Moment, Number, moment
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
        return [cls._of(target, device, run, case, other, sota) for other in names]

    @classmethod
    def _of(
        cls, target: str, device: str, run: BoardRun, case: BoardCase, other: str | None, sota: str
    ) -> "SiteBoardRow":
        timed = case.others[other] if other else None
        judged = other == sota
        ratio = case.own.median / timed.median if timed and timed.median else None
        return cls.model_construct(
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
