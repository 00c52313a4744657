"""The result of a session, as the worker fills it, and whether its machine moved.  Pure values."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from kernels.cases import AnyCase, FunctionCase, Metric, Role
from service.domain.codefacts.measured import choices, same_compilers
from service.domain.codefacts.texts import KernelText
from service.domain.roofline import number
from service.domain.states import BaselineKind, CellState, Outcome, Rounds
from service.domain.text import short
from service.domain.verdicts.baselines import RULES, BaselineCase, best_of
from service.domain.verdicts.reasons import Quarantined, Reason, ReasonCode, reason
from service.domain.verdicts.samples import Cell, Name, Pairs, Trouble, usual


@dataclass(frozen=True)
class ContenderResult:
    """The values of one contender at one case, in the unit of its metric, over all trials of the session."""

    role: Role
    provider: str
    case: AnyCase
    state: CellState
    reason: str | None = None
    screened: tuple[Rounds, ...] = ()
    confirmed: tuple[Rounds, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    apart: tuple[Rounds, ...] = ()  # trial by trial, of rounds with contenders whose numbers are not exact enough

    @property
    def contender(self) -> str:
        return f"{self.role}:{self.provider}"

    @cached_property
    def median(self) -> float | None:
        """Median over trials of the median over rounds."""
        return usual((*self.screened, *self.confirmed)) if self.state is CellState.MEASURED else None

    @property
    def timed(self) -> tuple[Rounds, ...]:
        """The rounds of each trial, those apart where there are any, whether its results are right or not."""
        pairs = zip_longest(self.apart, (*self.screened, *self.confirmed), fillvalue=())
        return tuple(apart or rounds for apart, rounds in pairs)

    @property
    def inexact_median(self) -> float | None:
        """The same median of a contender that computes something else: nobody's baseline."""
        return usual(self.timed) if self.state is CellState.INVALID and any(self.apart) else None


@dataclass(frozen=True)
class SessionResult:
    """Everything one session has to say about its run."""

    taken: tuple[ContenderResult, ...]
    baseline: str | None  # the revision that the head was compared with
    notes: tuple[str, ...]  # e.g. why the baseline is not the parent
    stack: Mapping[str, Any]
    telemetry: Mapping[str, Any]
    sandboxed: bool
    last_good: Mapping[Name, str] = field(default_factory=dict)  # where the baseline is slow: the last that was not
    pinned: str | None = None  # the pinned baseline, where it took part
    earlier: Mapping[Name, str] = field(default_factory=dict)  # where `baseline` is broken: what takes its place
    build_log: str = ""  # of the head
    texts: tuple[KernelText, ...] = ()  # where the code of the head is not that of a baseline

    def baseline_at(self, name: Name) -> str | None:
        """The revision that the head was compared with at this case."""
        return self.earlier.get(name, self.baseline)

    def revision(self, kind: BaselineKind, name: Name) -> str | None:
        """The revision that is this baseline at this case; None where there is none, and of other people's code."""
        match kind:
            case BaselineKind.PARENT | BaselineKind.WRONG_PARENT:
                return self.baseline_at(name)
            case BaselineKind.LAST_GOOD:
                return self.last_good.get(name)
            case BaselineKind.PINNED:
                return self.pinned
            case _:
                return None


def cells(
    taken: Iterable[ContenderResult],
    baseline_note: str | None = None,
    broken_before: Mapping[Name, CellState] = MappingProxyType({}),
    quarantined: Mapping[Name, Quarantined] = MappingProxyType({}),
    *,
    code_decides: bool = True,
) -> list[Cell]:
    """One cell for each case of each of the head's providers.

    `broken_before` names those at which a revision that was skipped as the baseline was wrong or failed,
    `quarantined` has the cases that raise no alarm, with the reasons.  `code_decides` is false in a calibration: its
    code is the same on purpose, which must not excuse what the clock says.
    """
    by_contender: dict[tuple[Role, str], dict[AnyCase, ContenderResult]] = {}
    for result in taken:
        by_contender.setdefault((result.role, result.provider), {})[result.case] = result
    cells = []
    for (role, provider), heads in by_contender.items():
        if role is Role.HEAD:
            parents = by_contender.get((Role.PARENT, provider), {})
            cells += [
                _cell(head, parents.get(case), _control(by_contender, provider, case), baseline_note, broken_before)
                for case, head in heads.items()
                if head.state is not CellState.UNSUPPORTED or _measured(parents.get(case))
            ]
    return [
        replace(cell, quarantined=quarantined.get(cell.name), same_code=code_decides and cell.same_code)
        for cell in cells
    ]


def _measured(result: ContenderResult | None) -> bool:
    return result is not None and result.state is CellState.MEASURED


def _cell(
    head: ContenderResult,
    parent: ContenderResult | None,
    control: tuple[Pairs, str | None],
    baseline_note: str | None,
    broken_before: Mapping[Name, CellState],
) -> Cell:
    baseline = parent if _measured(parent) else None
    return Cell(
        head.provider,
        str(head.case),
        screened=Pairs(head.screened, baseline.screened if baseline else (), head.case.metric.counts),
        confirmed=Pairs(head.confirmed, baseline.confirmed if baseline else (), head.case.metric.counts),
        control=control[0],
        borrowed=control[1],
        trouble=_trouble(head, parent, broken_before),
        baseline_trouble=_baseline_trouble(parent, baseline_note),
        same_code=parent is not None and same_kernels(head, parent),
    )


def _baseline_trouble(parent: ContenderResult | None, note: str | None) -> Reason | None:
    if parent is None:
        return reason(ReasonCode.NO_BASELINE, note=note)
    if parent.state is CellState.MEASURED:
        return None
    return reason(ReasonCode.BASELINE_UNFIT, state=parent.state.value, said=parent.reason)


def _trouble(
    head: ContenderResult, parent: ContenderResult | None, broken_before: Mapping[Name, CellState]
) -> Trouble | None:
    """Why the head has no times here, and whether that is new with it."""
    if head.state is CellState.MEASURED:
        return None
    said = head.reason or head.state.value
    if head.state is CellState.UNSUPPORTED:
        return Trouble(Outcome.FAILED, reason(ReasonCode.UNSUPPORTED, said=said))
    same_trouble = parent is not None and parent.state is head.state
    known_before = same_trouble or broken_before.get((head.provider, str(head.case))) is head.state
    return Trouble(Outcome(head.state.value), reason(ReasonCode(head.state.value), said=said), known_before)


def _control(
    by_contender: Mapping[tuple[Role, str], Mapping[AnyCase, ContenderResult]], provider: str, case: AnyCase
) -> tuple[Pairs, str | None]:
    """The provider's own control at a case; else another's, which shares the session and the machine, and whose it is.

    All trials of both: those that confirm a change are controlled as well.
    """
    copies = [copied for role, copied in by_contender if role is Role.CONTROL]
    for copied in sorted(copies, key=lambda name: name != provider):
        copy = by_contender[Role.CONTROL, copied].get(case)
        role = Role.PARENT if (Role.PARENT, copied) in by_contender else Role.HEAD
        original = by_contender.get((role, copied), {}).get(case)
        if copy is not None and original is not None and _measured(copy) and _measured(original):
            trials = (*copy.screened, *copy.confirmed), (*original.screened, *original.confirmed)
            pairs = Pairs(*trials, case.metric.counts)
            return pairs, None if copied == provider else copied
    return Pairs(), None


def same_kernels(head: ContenderResult, other: ContenderResult) -> bool:
    """Whether the measured kernels depend on equal code only.

    A call, a compilation and the memory of a call are Python's doing as much as the kernels'.
    """
    return head.case.metric is Metric.KERNEL and same_code(head.facts, other.facts)


def same_code(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Do the facts prove that both ran the same machine code, launched alike?

    Only hashes of compiled kernels prove it: the same sequence of operators can still be called from slower Python.
    They are those of the first trial, which prove nothing where an autotuner chose otherwise in a later one, nor where
    two releases of a compiler made machine code of them.
    """
    if choices(mine).waver or choices(theirs).waver or not same_compilers(mine, theirs):
        return False
    compiled = mine.get("kind") == theirs.get("kind") == "triton"
    return compiled and (mine.get("code"), mine.get("ops")) == (theirs.get("code"), theirs.get("ops"))


def baseline_cases(kind: BaselineKind, result: SessionResult) -> list[BaselineCase]:
    """Every case that the head was measured at, with the trials of the baseline of this kind at it.

    None where nobody asked for that baseline: there is a best only among several, and a last good revision only where
    the parent is slow.
    """
    if kind is BaselineKind.WRONG_PARENT:
        return inexact_cases(result.taken, result.baseline_at)
    heads, others = _sides(result.taken)
    if kind is BaselineKind.BEST and not any(role is Role.RIVAL for role, _ in others):
        return []
    cases = []
    for head in heads:
        name = head.provider, str(head.case)
        theirs = [result for role in RULES[kind].roles for result in others[role, head.case]]
        if kind is BaselineKind.BEST:
            nobody = BaselineCase(*name, "the best", trouble=reason(ReasonCode.NO_TIMES))
            cases.append(best_of([_paired(head, [result], result.provider) for result in theirs]) or nobody)
        elif kind is BaselineKind.SOTA:
            if not isinstance(head.case, FunctionCase):  # nobody else has the function
                cases.append(_paired(head, theirs, "SOTA"))
        elif (sha := result.revision(kind, name)) is not None:
            cases.append(_paired(head, [result for result in theirs if result.provider == head.provider], short(sha)))
    return cases


def inexact_cases(
    taken: Sequence[ContenderResult], baseline_at: Callable[[Name], str | None] = lambda _: None
) -> list[BaselineCase]:
    """The cases at which the head or its parent is not exact enough, and both were timed apart from what is."""
    parents = {
        (result.provider, result.case): result for result in taken if result.role is Role.PARENT and any(result.timed)
    }
    cases = []
    for head in sorted((result for result in taken if result.role is Role.HEAD), key=lambda result: str(result.case)):
        parent, name = parents.get((head.provider, head.case)), (head.provider, str(head.case))
        if parent is None or not any(result.inexact_median is not None for result in (head, parent)):
            continue
        both = [(mine, other) for mine, other in zip(head.timed, parent.timed, strict=False) if mine and other]
        pairs = Pairs(tuple(mine for mine, _ in both), tuple(other for _, other in both), head.case.metric.counts)
        cases.append(BaselineCase(*name, short(baseline_at(name) or ""), pairs))
    return cases


def _sides(
    taken: Iterable[ContenderResult],
) -> tuple[list[ContenderResult], Mapping[tuple[Role, AnyCase], list[ContenderResult]]]:
    """The heads that have times, in one order so that two workers never wait for each other's rows, and all others."""
    heads, others = list[ContenderResult](), defaultdict[tuple[Role, AnyCase], list[ContenderResult]](list)
    for result in taken:
        others[result.role, result.case].append(result)
        if result.role is Role.HEAD and result.state is CellState.MEASURED:
            heads.append(result)
    return sorted(heads, key=lambda result: (result.provider, str(result.case))), others


def _paired(head: ContenderResult, results: Sequence[ContenderResult], unnamed: str) -> BaselineCase:
    """The trials that both took part in; in the others only those that were undecided ran."""
    provider, case = head.provider, str(head.case)
    if not results:
        return BaselineCase(provider, case, unnamed, trouble=reason(ReasonCode.BASELINE_ABSENT, baseline=unnamed))
    [theirs, *_] = results
    builtin = theirs.role in (Role.SOTA, Role.RIVAL)
    name = theirs.provider if builtin else unnamed
    if theirs.state is not CellState.MEASURED:
        trouble = reason(ReasonCode.BASELINE_UNFIT, baseline=name, state=theirs.state.value, said=theirs.reason)
        return BaselineCase(provider, case, name, trouble=trouble)
    both = [(mine, other) for mine, other in zip(head.screened, theirs.screened, strict=False) if mine and other]
    sides = tuple(mine for mine, _ in both), tuple(other for _, other in both)
    return BaselineCase(provider, case, name, Pairs(*sides, head.case.metric.counts))


MIN_CASES = 4  # of which most moving one way is no accident
MOST = 0.5  # of what was compared: a commit slows down a few cases, a machine nearly all
SAME_CODE_MOVED = 2  # cases with the same code that moved alike: one may be chance
CLOCK_DIFFERS = 0.02  # of an SM clock between two sides; an H200 steps by 15 MHz, which is 0.8 %


class Sign(StrEnum):
    """Evidence against the code as the cause, each with its arguments."""

    CONTROL = "control"  # size: by how much the A/A control was off
    CLOCK = "clock"  # ratio: of the SM clocks
    THROTTLED = "throttled"  # share: of the rounds that were lost, reasons
    SAME_CODE = "same_code"  # cases: how many others moved this way although their code is the same
    ELSEWHERE = "elsewhere"  # targets: those that moved this way at that time


@dataclass(frozen=True)
class MachineReadings:
    """Readings of the machine while a case moved."""

    control: float | None = None  # by how much the A/A control was off, where that is more than the policy allows
    lost: float = 0.0  # share of the rounds that throttling spoiled
    throttled: tuple[str, ...] = ()  # for which reasons
    equal_code_moved: bool = False  # most cases of the run moved this way, and equal code with them
    same_code_moved: int = 0  # other cases of the session that moved this way although their code is the same
    elsewhere: tuple[str, ...] = ()  # other targets of which most cases moved this way on this machine at that time

    def against_the_code(self, clock: float | None, *, confirmed: bool) -> Iterator[dict[str, Any]]:
        """Each reading that speaks against the code, the most certain first: a `Sign` with its arguments, plain values.

        `clock`: the SM clock of the head over that of the other side, where it may explain the move.
        """
        if self.control is not None:
            yield {"sign": Sign.CONTROL.value, "size": abs(self.control)}
        if clock is not None:
            yield {"sign": Sign.CLOCK.value, "ratio": clock}
        if not confirmed and self.lost > 0:
            yield {"sign": Sign.THROTTLED.value, "share": self.lost, "reasons": list(self.throttled)}
        if self.same_code_moved >= SAME_CODE_MOVED:
            yield {"sign": Sign.SAME_CODE.value, "cases": self.same_code_moved}
        if self.elsewhere:
            yield {"sign": Sign.ELSEWHERE.value, "targets": list(self.elsewhere)}


def most_moved(moved: int, compared: int) -> bool:
    """Did most of enough cases move one way?"""
    return compared >= MIN_CASES and moved >= MOST * compared


def clock_ratio(facts: Mapping[str, Any], other: Mapping[str, Any], *, slower: bool) -> float | None:
    """The SM clock of a side over that of the other, where it differs by enough, and the slower side had the lower."""
    mine, theirs = number(facts.get("sm_mhz")), number(other.get("sm_mhz"))
    if mine is None or theirs is None or abs(mine / theirs - 1) < CLOCK_DIFFERS or (mine < theirs) is not slower:
        return None
    return mine / theirs
