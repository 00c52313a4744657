"""What swapping components of a stack showed: which moved which case, why, and what is left.  Pure.

All arms took turns in one session, so every effect is a log-ratio within a trial.  Of a component C there are two: C of
the new stack in the old one (forward), and C of the new stack against C of the old one in the rest of the new stack
(backward).  What the sum of all forward effects lacks of the total is left to their interaction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import exp, log1p

from service.domain.attribution.causes import CaseMove, Cause, CauseCode, cause
from service.domain.codefacts.comparison import differences
from service.domain.isolation.components import Component
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.states import REGRESSED, UNDECIDED, CellState
from service.domain.stats import counts
from service.domain.stats.estimates import Estimate, benjamini_hochberg, stops, trial_effects
from service.domain.stats.sequential import MIN_SHARE, Effects, Zone
from service.domain.stats.variance_prior import Prior
from service.domain.verdicts.samples import family, group_of, is_off, usual
from service.domain.verdicts.session_result import ContenderResult, same_kernels

FROM, TO, CONTROL = "from", "to", "control"  # the control is a second copy of `from`


def forward(component: str) -> str:
    """The arm that is the old stack with this component of the new one."""
    return f"{FROM}+{component}"


def backward(component: str) -> str:
    """The arm that is the new stack with this component of the old one."""
    return f"{TO}-{component}"


class ComponentVerdict(StrEnum):
    SLOWER = "slower"
    FASTER = "faster"
    NOT_MOVED = "not-moved"
    DEPENDS = "depends"  # it moves the case in one direction of the swap, and not, or the other way, in the other
    BREAKS = "breaks"  # with it the case fails or is wrong, without it not
    UNDECIDED = "undecided"
    MISSING = "missing"  # neither swap could be measured


class CaseVerdict(StrEnum):
    """Of the whole change of the stack."""

    SLOWER = "slower"
    FASTER = "faster"
    NOT_MOVED = "not-moved"
    BROKEN = "broken"  # fails or is wrong with the new stack alone
    UNDECIDED = "undecided"
    FAILED = "failed"  # the old stack has no times: nothing to compare with


@dataclass(frozen=True)
class IsolatedCase:
    """The results of all arms of one provider at one case."""

    provider: str
    case: str
    arms: Mapping[str, ContenderResult] = field(hash=False)

    @property
    def name(self) -> tuple[str, str]:
        return self.provider, self.case

    def measured(self, arm: str) -> bool:
        return arm in self.arms and self.arms[arm].state is CellState.MEASURED

    def effects(self, arm: str, than: str) -> Effects | None:
        """The log of `arm` over `than` for each trial, of counts `counts.effect`; None if an arm was not measured."""
        if not self.measured(arm) or not self.measured(than):
            return None
        trials = list(zip(self.arms[arm].screened, self.arms[than].screened, strict=False))
        if metric_of(self.case).counts:
            return [counts.trial_effect(*trial) for trial in trials]
        return trial_effects(trials)


@dataclass(frozen=True)
class Contrast:
    """One effect with its interval.  `p` is the larger-than-relevant change's, `q` the same among all of the session.

    `zone` is OPEN if the trials decide nothing, and None where the effect could not be measured.
    """

    estimate: Estimate | None = None
    zone: Zone | None = None
    p: float = 1.0
    q: float = 1.0

    @property
    def ratio(self) -> float | None:
        return exp(self.estimate.centre) if self.estimate else None

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Of the ratio, for this contrast alone."""
        if self.estimate is None:
            return None
        low, high = self.estimate.interval(confidence)
        return exp(low), exp(high)

    @property
    def open(self) -> bool:
        return self.zone is Zone.OPEN


@dataclass(frozen=True)
class ComponentEffect:
    """What swapping one component did to a case."""

    component: str
    forward: Contrast
    backward: Contrast
    breaks: bool = False

    @property
    def verdict(self) -> ComponentVerdict:
        if self.breaks:
            return ComponentVerdict.BREAKS
        zones = {contrast.zone for contrast in (self.forward, self.backward) if contrast.zone is not None}
        if not zones:
            return ComponentVerdict.MISSING
        if Zone.OPEN in zones and zones <= {Zone.OPEN, Zone.SMALL}:
            return ComponentVerdict.UNDECIDED
        first, *others = zones - {Zone.OPEN}
        return ComponentVerdict.DEPENDS if others else _OF_ZONE[first]

    @property
    def moved(self) -> bool:
        return self.verdict in MOVED

    @property
    def ratio(self) -> float | None:
        """Of the swap into the old stack, else of that into the new one."""
        return self.forward.ratio if self.forward.ratio is not None else self.backward.ratio


MOVED = (ComponentVerdict.SLOWER, ComponentVerdict.FASTER, ComponentVerdict.DEPENDS, ComponentVerdict.BREAKS)
_OF_ZONE = {
    Zone.MORE: ComponentVerdict.SLOWER,
    Zone.LESS: ComponentVerdict.FASTER,
    Zone.SMALL: ComponentVerdict.NOT_MOVED,
}


@dataclass(frozen=True)
class CaseIsolation:
    """The result at one case.  `left` and `left_backward` are what the single swaps do not add up to.

    They include the components that could not be swapped, which are `unswapped`.
    """

    provider: str
    case: str
    smallest_change: float  # relative
    median: float | None  # of the old stack, in the unit of the metric
    total: Contrast
    components: tuple[ComponentEffect, ...]
    left: Contrast
    left_backward: Contrast
    control: Contrast
    control_off: bool  # a second copy of the old stack differs from it by more than the policy allows
    trials: int
    states: Mapping[str, tuple[CellState, str | None]] = field(hash=False)  # of the arms without times, with reasons

    @property
    def verdict(self) -> CaseVerdict:
        if FROM in self.states:
            return CaseVerdict.FAILED
        if TO in self.states:
            return CaseVerdict.BROKEN
        return _OF_TOTAL[self.total.zone or Zone.OPEN]

    @property
    def movers(self) -> tuple[ComponentEffect, ...]:
        return tuple(effect for effect in self.components if effect.moved)

    @property
    def unswapped(self) -> tuple[str, ...]:
        return tuple(effect.component for effect in self.components if effect.forward.zone is None)

    @property
    def only_together(self) -> bool:
        """The case moved, and no single swap that was measured moves it."""
        none = all(
            effect.verdict in (ComponentVerdict.NOT_MOVED, ComponentVerdict.MISSING) for effect in self.components
        )
        return self.verdict in (CaseVerdict.SLOWER, CaseVerdict.FASTER) and none

    @property
    def open(self) -> bool:
        """More trials could decide something."""
        swaps = [swap for effect in self.components for swap in (effect.forward, effect.backward)]
        return any(contrast.open for contrast in (self.total, *swaps))


_OF_TOTAL = {
    Zone.MORE: CaseVerdict.SLOWER,
    Zone.LESS: CaseVerdict.FASTER,
    Zone.SMALL: CaseVerdict.NOT_MOVED,
    Zone.OPEN: CaseVerdict.UNDECIDED,
}


def steps(trials: int, most: int) -> tuple[int, ...]:
    """After how many trials is tested: `trials`, its multiples, and `most`."""
    return (*range(trials, most, trials), most)


def evaluate(
    cases: Sequence[IsolatedCase], components: Sequence[str], policy: Policy, at: tuple[int, ...]
) -> tuple[CaseIsolation, ...]:
    """Judge every case.  `at` are the numbers of trials after which is tested (`steps`).

    The false discovery rate of all swaps of all cases together is that of the policy (Benjamini & Hochberg), after the
    error of each test is divided among the tests that were made with fewer trials (alpha spending).
    """
    priors = family([(case.case, total) for case in cases if (total := case.effects(TO, FROM))], policy)
    found = [_estimated(case, components, policy, at, priors.get(group_of(case.case))) for case in cases]
    contrasts = [contrast for case in found for contrast in _tested(case)]
    adjusted = iter(benjamini_hochberg([contrast.p for contrast in contrasts]))
    return tuple(_judged(case, adjusted, policy, at) for case in found)


def _estimated(
    case: IsolatedCase, components: Sequence[str], policy: Policy, at: tuple[int, ...], prior: Prior | None
) -> CaseIsolation:
    """Without zones: those need the p-values of all cases."""
    before = case.arms[FROM].screened if case.measured(FROM) else ()
    took = usual(before)
    change = policy.smallest_change_at(case.case, took or 0.0)
    control = Estimate.of(_whole(case.effects(CONTROL, FROM)), prior)
    off = control is not None and is_off(control, change, policy)
    doubt = abs(control.centre) if control is not None and off else 0.0

    def contrast(effects: Effects | None, prior: Prior | None = prior) -> Contrast:
        estimate = Estimate.of(_whole(effects), prior)
        if effects is None or estimate is None:
            return Contrast(zone=None if effects is None else Zone.OPEN)
        return Contrast(estimate, Zone.OPEN, _p_moved(estimate, MIN_SHARE * log1p(change) + doubt, at))

    total = case.effects(TO, FROM)
    ahead = {name: case.effects(forward(name), FROM) for name in components}
    back = {name: case.effects(TO, backward(name)) for name in components}
    effects = tuple(
        ComponentEffect(name, contrast(ahead[name]), contrast(back[name]), _breaks(case, name)) for name in components
    )
    return CaseIsolation(
        provider=case.provider,
        case=case.case,
        smallest_change=change,
        median=took,
        total=contrast(total),
        components=effects,
        left=contrast(_left(total, list(ahead.values())), None),
        left_backward=contrast(_left(total, list(back.values())), None),
        control=Contrast(control),
        control_off=off,
        trials=sum(map(bool, before)),  # those that this case was in: others went on after it was decided
        states={arm: (result.state, result.reason) for arm, result in case.arms.items() if not case.measured(arm)},
    )


def _breaks(case: IsolatedCase, component: str) -> bool:
    """Whether the case works in the old stack, fails with this component alone, and works without it in the new one."""
    wrong = (CellState.INVALID, CellState.FAILED, CellState.UNSUPPORTED)
    swapped = case.arms.get(forward(component))
    broken = TO in case.arms and case.arms[TO].state in wrong
    fails_alone = swapped is not None and swapped.state in wrong
    return broken and case.measured(FROM) and fails_alone and case.measured(backward(component))


def _left(total: Effects | None, swaps: Sequence[Effects | None]) -> Effects | None:
    """The total without the effects of the swaps that were measured, trial by trial; None without any of these."""
    measured = [swap for swap in swaps if swap is not None]
    if total is None or not measured:
        return None
    whole = (trial for trial in zip(total, *measured, strict=False) if None not in trial)
    return [2 * trial[0] - sum(trial) for trial in whole]


def _p_moved(estimate: Estimate, limit: float, at: tuple[int, ...]) -> float:
    """Two-sided p of a change of at most `limit`, after the tests with fewer trials took their share."""
    share = stops(at, estimate.trials)[-1].share
    return min(1.0, 2 * min(estimate.p_above(limit), estimate.p_below(-limit)) / share)


def _tested(case: CaseIsolation) -> Iterator[Contrast]:
    """The contrasts that were measured."""
    swaps = (swap for effect in case.components for swap in (effect.forward, effect.backward))
    yield from (
        contrast for contrast in (case.total, case.left, case.left_backward, *swaps) if contrast.estimate is not None
    )


def _judged(case: CaseIsolation, adjusted: Iterator[float], policy: Policy, at: tuple[int, ...]) -> CaseIsolation:
    """With the zone of every contrast; `adjusted` has their q in the order of `_tested`."""
    limit = log1p(case.smallest_change)
    own = policy.at(case.case)

    def judged(contrast: Contrast) -> Contrast:
        estimate = contrast.estimate
        if estimate is None:
            return contrast
        q = next(adjusted)
        small = not case.control_off and estimate.p_within(limit) <= own.beta * stops(at, estimate.trials)[-1].share
        zone = Zone.SMALL if small else Zone.OPEN
        if zone is Zone.OPEN and q <= own.fdr:
            zone = Zone.MORE if estimate.centre > 0 else Zone.LESS
        return replace(contrast, zone=zone, q=q)

    total, left, left_backward = judged(case.total), judged(case.left), judged(case.left_backward)
    effects = tuple(
        replace(effect, forward=judged(effect.forward), backward=judged(effect.backward)) for effect in case.components
    )
    return replace(case, total=total, left=left, left_backward=left_backward, components=effects)


def _whole(effects: Effects | None) -> list[float]:
    return [effect for effect in effects or () if effect is not None]


# The others explain a change of the repository, which all arms have in common.
OF_THE_CODE = (CauseCode.EXPLAINED, CauseCode.CODE_CHANGED, CauseCode.CONFIGURATION, CauseCode.WAVERING)


@dataclass(frozen=True)
class SwapCause:
    """`cause` is None where no recorded fact explains the move; `differences` are those of the facts, in words."""

    cause: Cause | None
    differences: tuple[str, ...]


Moved = tuple[str, str, str]  # provider, case and component


def causes(cases: Iterable[IsolatedCase], judged: Iterable[CaseIsolation]) -> dict[Moved, SwapCause]:
    """Of every component that moved a case, from the facts of the swap that moved it more clearly."""
    arms = {case.name: case.arms for case in cases}
    return {
        (case.provider, case.case, effect.component): _why(arms[case.provider, case.case], *swap)
        for case in judged
        for effect in case.components
        if effect.moved and (swap := _swap(effect)) is not None
    }


def _swap(effect: ComponentEffect) -> tuple[str, str, float] | None:
    """The arm with the new component, that with the old one, and the ratio of their times."""
    ahead = (forward(effect.component), FROM, effect.forward)
    back = (TO, backward(effect.component), effect.backward)
    measured = [arm_contrast for arm_contrast in (ahead, back) if arm_contrast[2].ratio is not None]
    if not measured:
        return None
    arm, than, contrast = min(measured, key=lambda arm_contrast: arm_contrast[2].q)
    return arm, than, contrast.ratio or 1.0


def _why(arms: Mapping[str, ContenderResult], arm: str, than: str, ratio: float) -> SwapCause:
    head, base = arms[arm], arms[than]
    move = CaseMove(
        str(head.case),
        ratio,
        confirmed=True,
        head=head.facts,
        baseline=base.facts,
        same_code=same_kernels(head, base),
        us=base.median,
    )
    why = cause(move)
    return SwapCause(why if why.code in OF_THE_CODE else None, differences(head.facts, base.facts))


@dataclass(frozen=True)
class StackSide:
    """One of the two stacks; `versions` are those that its contenders reported."""

    name: str
    python: str  # version
    versions: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Isolation:
    """Everything that one session says about the change from one stack to another."""

    target: str
    revision: str
    device: str
    suite: str
    before: StackSide
    after: StackSide
    components: tuple[Component, ...]
    cases: tuple[CaseIsolation, ...]
    confidence: float
    causes: Mapping[Moved, SwapCause] = field(default_factory=dict, hash=False)
    missing: Mapping[str, str] = field(default_factory=dict, hash=False)  # arms that did not run, with reasons
    notes: tuple[str, ...] = ()
    trials: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        verdicts = {case.verdict for case in self.cases}
        if verdicts & {CaseVerdict.SLOWER, CaseVerdict.BROKEN}:
            return REGRESSED
        swaps = {effect.verdict for case in self.cases for effect in case.components}
        return UNDECIDED if CaseVerdict.UNDECIDED in verdicts or ComponentVerdict.UNDECIDED in swaps else 0
