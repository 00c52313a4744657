"""How often equal code differs from itself, and the cases that are quarantined for it."""

from collections.abc import Iterable
from typing import Self

from pydantic import Field

from service.db.models import Quarantine
from service.domain.states import Equal
from service.reports.schema.base import Document, Moment, Number, columns
from service.reports.views import CaseRate, MetricRate


class RateItem(Document):
    """The measured false-alarm rate of equal code, next to the nominal one."""

    worker: str
    device: str
    metric: str
    kind: Equal = Field(description="Two processes of one build (copy), or two builds of one source (build).")
    target: str | None = Field(description="null for a sum over cases, like the next two.")
    provider: str | None
    case: str | None
    comparisons: int
    differed: int = Field(description="Comparisons that differed at the nominal level.")
    alarmed: int = Field(description="Comparisons that would have been reported as a change.")
    rate: Number = Field(description="`differed` over `comparisons`.")
    low: Number = Field(description="Of the exact 95 % interval of the rate.")
    high: Number
    nominal_rate: float

    @classmethod
    def of(cls, found: CaseRate | MetricRate) -> Self:
        rate = found.rate
        return cls(
            worker=found.worker,
            device=found.device,
            metric=found.metric.value,
            kind=found.kind,
            target=found.target if isinstance(found, CaseRate) else None,
            provider=found.provider if isinstance(found, CaseRate) else None,
            case=found.case if isinstance(found, CaseRate) else None,
            comparisons=rate.comparisons,
            differed=rate.differed,
            alarmed=rate.alarmed,
            rate=rate.share,
            low=rate.low,
            high=rate.high,
            nominal_rate=found.nominal,
        )


class QuarantineItem(Document):
    """A case that is measured and shown, and never reported."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    since: Moment
    quarantined_by: str = Field(description="A person, or kernelwatch.")
    reason: str = Field(examples=["9 of the last 60 comparisons of equal code speak against it"])
    released_at: Moment | None
    released_by: str | None
    release_reason: str | None

    @classmethod
    def of(cls, row: Quarantine, target: str) -> Self:
        named = {"target": target, "quarantined_by": row.by, "release_reason": row.released_why}
        return cls.model_validate(columns(row) | named)


class CalibrationDocument(Document):
    """Rates by worker, device and metric, the cases with the highest rates, and the quarantined cases."""

    metrics: list[RateItem]
    cases: list[RateItem] = Field(description="The highest rate first.")
    quarantines: list[QuarantineItem]

    @classmethod
    def of(
        cls,
        metrics: Iterable[MetricRate],
        cases: Iterable[CaseRate],
        quarantines: Iterable[tuple[Quarantine, str]],
    ) -> Self:
        return cls(
            metrics=[RateItem.of(one) for one in metrics],
            cases=[RateItem.of(one) for one in cases],
            quarantines=[QuarantineItem.of(*one) for one in quarantines],
        )
