"""What a session measured, arranged for deciding.  Pure values: the worker fills them, the ledger stores them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kernels.words import Case, Lane, Role
from service.models import CellState, Rounds
from service.verdicts import KNOWN_BEFORE, Cell, Outcome, Pairs


@dataclass(frozen=True)
class Taken:
    """What one contender took at one case, in the unit of its lane, over all launches of the session."""

    role: Role
    provider: str
    case: Case
    state: CellState
    reason: str | None = None
    looked: tuple[Rounds, ...] = ()
    confirmed: tuple[Rounds, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def contender(self) -> str:
        return f"{self.role}:{self.provider}"

    @property
    def median(self) -> float | None:
        """Median over launches of the median over rounds."""
        launches = [[taken for taken in rounds if taken is not None] for rounds in (*self.looked, *self.confirmed)]
        medians = [median(rounds) for rounds in launches if rounds]
        return median(medians) if medians and self.state is CellState.MEASURED else None


@dataclass(frozen=True)
class Evidence:
    """Everything one session has to say about its run."""

    taken: tuple[Taken, ...]
    baseline: str | None  # the revision that the head was compared with
    notes: tuple[str, ...]  # e.g. why the baseline is not the parent
    stack: Mapping[str, Any]
    telemetry: Mapping[str, Any]
    sandboxed: bool
    good: Mapping[tuple[str, str], str] = field(
        default_factory=dict
    )  # where the baseline is slow: the last that was not
    slow: str | None = None  # the slow baseline, where it took part


def cells(
    taken: Iterable[Taken], baseline_note: str | None = None, wrong_before: Collection[tuple[str, str]] = ()
) -> list[Cell]:
    """One cell for each case of each of the head's providers.

    `wrong_before` names those at which a revision was wrong that was passed over as baseline.
    """
    by_contender: dict[tuple[Role, str], dict[Case, Taken]] = {}
    for one in taken:
        by_contender.setdefault((one.role, one.provider), {})[one.case] = one
    control = {
        case: one for (role, _), cases in by_contender.items() if role is Role.CONTROL for case, one in cases.items()
    }
    found = []
    for (role, provider), heads in by_contender.items():
        if role is Role.HEAD:
            parents = by_contender.get((Role.PARENT, provider), {})
            copied = next((p for r, p in by_contender if r is Role.CONTROL), None)
            original = by_contender.get((Role.PARENT if parents else Role.HEAD, copied or provider), {})
            found += [
                _cell(head, parents.get(case), _aa(original.get(case), control.get(case)), baseline_note, wrong_before)
                for case, head in heads.items()
                if head.state is not CellState.UNSUPPORTED or _measured(parents.get(case))
            ]
    return found


def _measured(one: Taken | None) -> bool:
    return one is not None and one.state is CellState.MEASURED


def _cell(
    head: Taken,
    parent: Taken | None,
    control: Pairs,
    baseline_note: str | None,
    wrong_before: Collection[tuple[str, str]],
) -> Cell:
    baseline_trouble = None
    if parent is None:
        baseline_trouble = baseline_note or "there is no earlier revision to compare with"
    elif parent.state is not CellState.MEASURED:
        baseline_trouble = f"the baseline is {parent.state} here: {parent.reason or 'no reason given'}"
    beside = parent if _measured(parent) else None
    return Cell(
        head.provider,
        str(head.case),
        looked=Pairs(head.looked, beside.looked if beside else ()),
        confirmed=Pairs(head.confirmed, beside.confirmed if beside else ()),
        control=control,
        trouble=_trouble(head, parent, wrong_before),
        baseline_trouble=baseline_trouble,
        # A call, a compilation and the memory of a call are Python's doing as much as the kernels'.
        same_code=parent is not None and head.case.lane is Lane.KERNEL and same_code(head.facts, parent.facts),
    )


def _trouble(
    head: Taken, parent: Taken | None, wrong_before: Collection[tuple[str, str]]
) -> tuple[Outcome, str] | None:
    """Why the head has no times here, and whether that is new with it."""
    if head.state is CellState.MEASURED:
        return None
    reason = head.reason or head.state.value
    if head.state is CellState.UNSUPPORTED:
        return Outcome.FAILED, f"its baseline does this case, and it does not: {reason}"
    same_trouble = parent is not None and parent.state is head.state
    if same_trouble or (head.state is CellState.INVALID and (head.provider, str(head.case)) in wrong_before):
        reason = KNOWN_BEFORE + reason
    elif reason.startswith(KNOWN_BEFORE):  # it comes from the revision's own process, which would excuse itself
        reason = f"it says: {reason}"
    return Outcome(head.state.value), reason


def _aa(original: Taken | None, copy: Taken | None) -> Pairs:
    """All launches of both: those that confirm a change are controlled as well."""
    if original is None or copy is None:
        return Pairs()
    return Pairs((*copy.looked, *copy.confirmed), (*original.looked, *original.confirmed))


def same_code(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Do the facts prove that both ran the same machine code, launched alike?

    Only hashes of compiled kernels prove it: the same sequence of operators can still be called from slower Python.
    """
    compiled = mine.get("kind") == theirs.get("kind") == "triton"
    return compiled and (mine.get("code"), mine.get("ops")) == (theirs.get("code"), theirs.get("ops"))


def against_sota(taken: Sequence[Taken], head: Taken) -> tuple[Pairs, str, str | None]:
    """The head's launches beside SOTA's at the same case, SOTA's name, and why it has none when it has none."""
    for one in taken:
        if one.role is Role.SOTA and one.case == head.case:
            if one.state is not CellState.MEASURED:
                return Pairs(), one.provider, f"{one.provider} is {one.state} here: {one.reason or 'no reason given'}"
            return Pairs(head.looked, one.looked), one.provider, None
    return Pairs(), "SOTA", "no SOTA contender took part"
