"""The document of an isolation."""

from collections.abc import Iterator
from typing import Self

from pydantic import Field

from kernelwatch.documents.base import Document, Number
from service.domain.isolation.evaluation import CaseIsolation, Contrast, Isolation
from service.reports.isolation import words
from service.reports.schema.base import document_of


class IsolatedStackItem(Document):
    name: str
    python: str = Field(description="Version of its interpreter, which is not swapped.")
    versions: dict[str, str] = Field(description="As a contender reported them.")


class DistributionChangeItem(Document):
    name: str
    before: str | None
    after: str | None


class StackComponentItem(Document):
    """Distributions that are swapped together."""

    name: str
    changes: list[DistributionChangeItem]
    obstacle: str | None = Field(description="Why it cannot be swapped.")


class EffectItem(Document):
    """A ratio: 1.05 is 5 % slower; of counts 1.01 for each one more.  All are null where it was not measured."""

    ratio: Number
    low: Number = Field(description="Of the interval of this effect alone.")
    high: Number
    verdict: str | None = Field(description="`more`, `less`, `small` or `open`; all effects are tested together.")

    @classmethod
    def of(cls, contrast: Contrast, confidence: float) -> Self:
        low, high = contrast.interval(confidence) or (None, None)
        verdict = contrast.zone.value if contrast.zone is not None and contrast.estimate is not None else None
        return cls(ratio=contrast.ratio, low=low, high=high, verdict=verdict)


class ComponentEffectItem(Document):
    """What one component did to a case."""

    component: str
    verdict: str
    forward: EffectItem = Field(description="The new component in the old stack.")
    backward: EffectItem = Field(description="The new stack over itself with the old component.")
    why: str | None


class IsolatedCaseItem(Document):
    provider: str
    case: str
    verdict: str
    median: Number = Field(description="With the old stack, in the unit of the metric.")
    smallest_change: float
    total: EffectItem = Field(description="The new stack over the old one.")
    components: list[ComponentEffectItem]
    left: EffectItem = Field(description="The total without all forward effects: the interaction.")
    left_backward: EffectItem = Field(description="The total without all backward effects.")
    unswapped: list[str] = Field(description="Components that `left` includes, because they were not measured.")
    only_together: bool
    control: Number = Field(description="A second copy of the old stack over it.")
    control_off: bool
    trials: int
    troubles: dict[str, str] = Field(description="Arms without times, with states and reasons.")

    @classmethod
    def of(cls, one: CaseIsolation, result: Isolation) -> Self:
        def effect(contrast: Contrast) -> EffectItem:
            return EffectItem.of(contrast, result.confidence)

        components = [
            ComponentEffectItem(
                component=swap.component,
                verdict=swap.verdict.value,
                forward=effect(swap.forward),
                backward=effect(swap.backward),
                why=words.why(result, one, swap.component),
            )
            for swap in one.components
        ]
        named = {
            "verdict": one.verdict.value,
            "total": effect(one.total),
            "components": components,
            "left": effect(one.left),
            "left_backward": effect(one.left_backward),
            "unswapped": one.unswapped,
            "only_together": one.only_together,
            "control": one.control.ratio,
            "troubles": {arm: f"{state.value}: {why or ''}" for arm, (state, why) in one.states.items()},
        }
        return document_of(cls, vars(one) | named)


class IsolationDocument(Document):
    """Which component of a stack moved which case."""

    headline: str
    target: str
    revision: str
    device: str
    suite: str
    before: IsolatedStackItem
    after: IsolatedStackItem
    components: list[StackComponentItem]
    cases: list[IsolatedCaseItem]
    confidence: float
    missing: dict[str, str] = Field(description="Arms that did not run, with reasons.")
    notes: list[str]
    trials: int
    seconds: float

    @classmethod
    def of(cls, result: Isolation) -> Self:
        named = {
            "headline": words.headline(result),
            "cases": [IsolatedCaseItem.of(one, result) for one in result.cases],
        }
        return document_of(cls, vars(result) | named)


class IsolationRow(Document):
    """One component at one case, as a line of CSV."""

    provider: str
    case: str
    case_verdict: str
    total: EffectItem
    component: str
    verdict: str
    forward: EffectItem
    backward: EffectItem
    left: EffectItem
    left_backward: EffectItem
    trials: int

    @classmethod
    def all_of(cls, document: IsolationDocument) -> Iterator[Self]:
        for one in document.cases:
            for swap in one.components:
                yield document_of(cls, vars(one) | vars(swap) | {"case_verdict": one.verdict})
