"""What an isolation found: in words, and as a document."""

from collections.abc import Iterator, Sequence
from math import exp
from typing import Self

from pydantic import Field

from kernels.cases import Metric
from kernelwatch.documents.base import Document, Number
from service.domain.isolation.components import OTHERS, Component, DistributionChange
from service.domain.isolation.evaluation import (
    MOVED,
    CaseIsolation,
    CaseVerdict,
    ComponentEffect,
    ComponentVerdict,
    Contrast,
    Isolation,
    StackSide,
    SwapCause,
)
from service.domain.metrics import metric_of, signed, words
from service.domain.stats import counts
from service.domain.stats.sequential import Zone
from service.domain.text import in_percent, listed, one_line, share_in_words, short
from service.reports.schema.base import document_of
from service.reports.words import of_cause

LEGEND = (
    "Of a component: the new version in the old stack / the new stack against itself with the old version. "
    "Left: what the first numbers do not add up to. A question mark: undecided."
)
SHOWN_CHANGES = 3  # of the distributions of a component
_TITLES = {"triton": "Triton", "quack": "Quack", "liger": "Liger", "cutlass": "CUTLASS DSL", OTHERS: "other packages"}


def title(component: str) -> str:
    return _TITLES.get(component, component)


def versions(component: Component) -> str:
    """`3.6.0 → 3.7.1`; of a component without a main distribution its packages with theirs."""
    if component.name == OTHERS:
        shown = [f"{one.name} {_change(one)}" for one in component.changes[:SHOWN_CHANGES]]
        rest = len(component.changes) - len(shown)
        return ", ".join(shown) + (f" and {rest} more" if rest else "")
    main, *others = component.changes
    name = "" if main.name in component.members[:1] else f"{main.name} "
    rest = len(others)
    return f"{name}{_change(main)}" + (f" with {rest} more package{'s' * (rest != 1)}" if rest else "")


def _change(one: DistributionChange) -> str:
    if one.before == one.after:
        return f"{one.before} with other files"
    return f"{one.before or 'none'} → {one.after or 'none'}"


def headline(result: Isolation) -> str:
    """Which component moved how many cases, by how much at most."""
    compared = [one for one in result.cases if one.verdict is not CaseVerdict.FAILED]
    said = [text for one in result.components if (text := _did(one, compared))]
    quiet = [one.name for one in result.components if _verdicts(one.name, compared) == {ComponentVerdict.NOT_MOVED}]
    if not said:
        said = [_nothing_moved(result, compared)]
    elif quiet:
        said.append(f"{_listed(quiet)} moved none")
    return f"{'; '.join([*said, *_rest(result, compared)])}."


def _did(component: Component, cases: Sequence[CaseIsolation]) -> str:
    """`Triton 3.6.0 → 3.7.1 made 5 of 6 cases slower, by 38 % at most`; empty if it moved nothing."""
    moved: dict[tuple[ComponentVerdict, str], list[ComponentEffect]] = {}
    metrics: dict[str, Metric] = {}
    for one in cases:
        effect = _effect(one, component.name)
        if effect.moved:
            said = _moved_words(effect.verdict, one.case)
            metrics[said] = metric_of(one.case)
            moved.setdefault((effect.verdict, said), []).append(effect)
    parts = list[str]()
    for (verdict, said), effects in sorted(moved.items(), key=lambda item: MOVED.index(item[0][0])):
        counted = f"{len(effects)}" if parts else f"{len(effects)} of {len(cases)} {_cases(len(cases))}"
        verb = "moved" if verdict is ComponentVerdict.DEPENDS else "made"
        size = _by(effects, metrics[said]) if verdict in (ComponentVerdict.SLOWER, ComponentVerdict.FASTER) else ""
        parts.append(f"{verb} {counted} {said}{size}")
    who = title(component.name)
    return f"{who[0].upper()}{who[1:]} {versions(component)} {listed(parts)}" if parts else ""


def _moved_words(verdict: ComponentVerdict, case: str) -> str:
    kind = words(case)
    metric = metric_of(case)
    take = "take " if metric is Metric.MEMORY else "have " if metric.counts else ""
    match verdict:
        case ComponentVerdict.SLOWER:
            return f"{take}{kind.more}"
        case ComponentVerdict.FASTER:
            return f"{take}{kind.less}"
        case ComponentVerdict.BREAKS:
            return "fail"
        case _:
            return "in one of the two stacks only"


def _by(moved: Sequence[ComponentEffect], metric: Metric) -> str:
    ratio = max((one.ratio or 1.0 for one in moved), key=lambda one: abs(one - 1))
    size = f"{abs(counts.difference(ratio))}" if metric.counts else share_in_words(abs(ratio - 1))
    return f", by {size}" if len(moved) == 1 else f", by {size} at most"


def _nothing_moved(result: Isolation, cases: Sequence[CaseIsolation]) -> str:
    names = f"{result.before.name} and {result.after.name}"
    verdicts = {one.verdict for one in cases}
    if CaseVerdict.UNDECIDED in verdicts:
        return f"No component was shown to move a case between {names}"
    if verdicts == {CaseVerdict.NOT_MOVED}:
        return f"Nothing moved: {_counted(len(cases))} equal with {names}"
    return "No single component moved a case"


def _rest(result: Isolation, cases: Sequence[CaseIsolation]) -> Iterator[str]:
    """What the single components do not account for."""
    after = result.after.name
    if together := [one for one in cases if one.only_together]:
        names = _listed([*dict.fromkeys(name for one in together for name in one.unswapped)])
        what = f"several components together, or of {names}" if names else "several components together"
        yield f"{_counted(len(together))} moved by an effect of {what}"
    if unexplained := [one for one in cases if one.verdict is CaseVerdict.BROKEN and not one.movers]:
        yield f"{_counted(len(unexplained))} not measured with {after}, and no single component does it"
    if missing := [one.name for one in result.components if _verdicts(one.name, cases) == {ComponentVerdict.MISSING}]:
        yield f"{_listed(missing)} could not be swapped"
    if undecided := sum(one.verdict is CaseVerdict.UNDECIDED for one in cases):
        yield f"{_counted(undecided)} undecided"
    for component in result.components:
        verdicts = [_effect(one, component.name).verdict for one in cases if one.verdict is not CaseVerdict.UNDECIDED]
        if open_at := verdicts.count(ComponentVerdict.UNDECIDED):
            yield f"{title(component.name)} undecided at {_counted(open_at)}"
    if failed := len(result.cases) - len(cases):
        yield f"{_counted(failed)} not measured with {result.before.name}"


def _effect(case: CaseIsolation, component: str) -> ComponentEffect:
    return next(one for one in case.components if one.component == component)


def _verdicts(component: str, cases: Sequence[CaseIsolation]) -> set[ComponentVerdict]:
    return {_effect(one, component).verdict for one in cases}


def _listed(names: Sequence[str]) -> str:
    return listed(map(title, names)) if names else ""


def _cases(count: int) -> str:
    return "case" if count == 1 else "cases"


def _counted(count: int) -> str:
    return f"{count} {_cases(count)}"


def subject(result: Isolation) -> str:
    """What was held and what was changed."""
    return (
        f"{result.target} at {short(result.revision)} on {result.device}, suite {result.suite}: "
        f"stack {result.before.name} → {result.after.name}, {result.trials} trials in {result.seconds:.0f} s"
    )


def change(contrast: Contrast, case: str) -> str:
    """`+38.0 %`, of counts `+1`; with a question mark while undecided, and a dash where it was not measured."""
    if contrast.ratio is None:
        return "–"
    return f"{signed(contrast.ratio, metric_of(case))}{' ?' if contrast.zone is Zone.OPEN else ''}"


def both_ways(effect: ComponentEffect, case: str) -> str:
    """The swap into the old stack and that into the new one."""
    if effect.verdict is ComponentVerdict.MISSING:
        return "–"
    return f"{change(effect.forward, case)} / {change(effect.backward, case)}"


def verdict(case: CaseIsolation) -> str:
    """Of the case, with the components that moved it."""
    names = [f"{title(one.component)}{_ADDED.get(one.verdict, '')}" for one in case.movers]
    if case.only_together:
        names = ["only together"]
    if case.verdict is CaseVerdict.NOT_MOVED and names:
        return f"not moved: {listed(names)} cancel out"
    kind = words(case.case)
    said = {CaseVerdict.SLOWER: kind.more, CaseVerdict.FASTER: kind.less}.get(case.verdict, case.verdict.value)
    return ": ".join([said.replace("-", " "), *([listed(names)] if names else [])])


_ADDED = {
    ComponentVerdict.BREAKS: " (fails)",
    ComponentVerdict.DEPENDS: " (in one stack only)",
}


def explanations(result: Isolation) -> Iterator[str]:
    """Why each component moved its cases; those with the same words share a line."""
    places: dict[tuple[str, str], list[str]] = {}
    for (provider, case, component), found in result.causes.items():
        where = f"{case}" if len({one.provider for one in result.cases}) == 1 else f"{case} of {provider}"
        places.setdefault((component, _why(found, case)), []).append(where)
    for (component, said), at in places.items():
        shown = f"{at[0]} and {len(at) - 1} more" if len(at) > 2 else listed(at)
        yield f"{title(component)} at {shown}: {said}."


def why(result: Isolation, case: CaseIsolation, component: str) -> str | None:
    """Why the component moved the case; None if it did not."""
    found = result.causes.get((case.provider, case.case, component))
    return None if found is None else _why(found, case.case)


def _why(found: SwapCause, case: str) -> str:
    facts = f"facts of the code: {listed(map(one_line, found.differences))}" if found.differences else ""
    if found.cause is None:
        return facts or "no recorded fact of the code differs"
    return "; ".join(filter(None, (of_cause(found.cause, case).words, facts)))


def troubles(result: Isolation) -> Iterator[str]:
    """The arms that did not run, cases that are off, and notes."""
    for reason in dict.fromkeys(result.missing.values()):
        arms = listed(arm for arm, why_missing in result.missing.items() if why_missing is reason)
        yield f"Not measured: {arms}: {one_line(reason)}."
    for one in result.cases:
        if one.control_off and one.control.estimate is not None:
            size = signed(exp(one.control.estimate.centre), metric_of(one.case))
            off = f"a second copy of {result.before.name} differs by {size}"
            exact = metric_of(one.case).counts
            limit = f"{counts.smallest(one.smallest_change)}" if exact else in_percent(one.smallest_change)
            yield f"{one.case}: {off}, too much to decide a change of {limit}; only larger effects count."
        for arm, (state, said) in one.states.items():
            yield f"{one.case}: {arm} is {state.value}: {one_line(said or 'no reason given')}."
    yield from result.notes


class StackComponentItem(Document):
    """Distributions that are swapped together."""

    name: str
    changes: list[DistributionChange]
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
                why=why(result, one, swap.component),
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
    before: StackSide
    after: StackSide
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
            "headline": headline(result),
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
