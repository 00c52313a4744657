"""Two revisions side by side on one device."""

from collections import Counter
from typing import Self

from pydantic import Field

from service.domain.metrics import metric_of, percent
from service.domain.verdicts.indirect import Direction
from service.reports.comparisons import ComparedCase, ComparedSide, ComparisonMethod, RevisionsCompared
from service.reports.schema.base import Document, Moment, Number, moment


class CompareSideItem(Document):
    """One of the two revisions."""

    revision: str
    subject: str
    author: str
    committed_at: Moment
    pull: int | None
    run_id: int = Field(description="The run whose medians are shown where no session measured both.")
    worker: str | None

    @classmethod
    def of(cls, side: ComparedSide) -> Self:
        row = side.revision
        return cls(
            revision=row.sha,
            subject=row.subject,
            author=row.author,
            committed_at=moment(row.committed_at),
            pull=side.pull,
            run_id=side.run_id,
            worker=side.worker,
        )


class CompareItem(Document):
    """Head over base at one case; a ratio of 1.05 is 5 % more time or bytes."""

    provider: str
    case: str
    metric: str
    unit: str = Field(description="Of both medians: us, bytes or count.")
    method: ComparisonMethod = Field(
        description=(
            "`paired`: in turns, in one session.  `baseline` and `sota`: each in a session with the same third "
            "revision or provider.  `chain`: through the revisions between.  `unpaired`: two medians, no ratio."
        )
    )
    direction: Direction = Field(description="`unknown` where the interval does not decide it.")
    outcome: str | None = Field(description="The stored verdict, of a pair.")
    change: str = Field(examples=["10.2 % slower"])
    ratio: Number
    low: Number = Field(description="Of the interval, which is wider for several sessions.")
    high: Number
    base_median: Number
    head_median: Number
    via: str | None = Field(description="The third revision or provider.")
    run_ids: list[int] = Field(description="The runs on whose sessions it rests.")
    reason: str | None = Field(description="Why it is not paired.")

    @classmethod
    def of(cls, one: ComparedCase) -> Self:
        metric = metric_of(one.case)
        ratio = one.ratio.ratio if one.ratio else None
        return cls(
            provider=one.provider,
            case=one.case,
            metric=metric.value,
            unit=metric.unit,
            method=one.method,
            direction=one.direction,
            outcome=one.outcome,
            change=percent(ratio, metric),
            ratio=ratio,
            low=one.ratio.low if one.ratio else None,
            high=one.ratio.high if one.ratio else None,
            base_median=one.base_median,
            head_median=one.head_median,
            via=one.via,
            run_ids=list(one.runs),
            reason=one.reason,
        )


class CompareDocument(Document):
    """Two revisions on one device, case by case."""

    target: str
    device: str
    base: CompareSideItem
    head: CompareSideItem
    counts: dict[Direction, int] = Field(description="Cases by direction.")
    methods: dict[ComparisonMethod, int] = Field(description="Cases by method.")
    stack_changes: list[str] = Field(description="Between the two runs whose medians are shown.")
    recipe_changed: bool = Field(description="Those two runs were measured by different versions of the recipe.")
    cases: list[CompareItem]

    @classmethod
    def of(cls, found: RevisionsCompared, target: str) -> Self:
        return cls(
            target=target,
            device=found.device,
            base=CompareSideItem.of(found.base),
            head=CompareSideItem.of(found.head),
            counts=dict(Counter(one.direction for one in found.cases)),
            methods=dict(Counter(one.method for one in found.cases)),
            stack_changes=list(found.stack_changes),
            recipe_changed=found.base.recipe_id != found.head.recipe_id,
            cases=[CompareItem.of(one) for one in found.cases],
        )
