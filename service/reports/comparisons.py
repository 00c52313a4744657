"""Two revisions side by side, as values that the ledger returns and the API renders."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.db.models import FactsCheck, Revision
from service.domain.codefacts.comparison import Repeatability, differences, repeatability
from service.domain.states import CellState
from service.domain.verdicts.indirect import Direction, PairedRatio

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class FactsSide:
    """One contender at one case, as one of two revisions."""

    run_id: int
    state: CellState
    facts: Facts


@dataclass(frozen=True)
class FactsPair:
    """What is known of both revisions at a case of a provider on a device; a side is None where it was not measured."""

    device: str
    provider: str
    case: str
    base: FactsSide | None
    head: FactsSide | None

    @property
    def same_code(self) -> bool | None:
        """None where the code of a side is not known."""
        codes = [side.facts.get("code") for side in (self.base, self.head) if side]
        return codes[0] == codes[1] if len(codes) == 2 and all(codes) else None

    @property
    def differences(self) -> tuple[str, ...]:
        return differences(self.head.facts, self.base.facts) if self.head and self.base else ()

    @property
    def repeatability(self) -> Repeatability | None:
        return repeatability(self.head.facts, self.base.facts) if self.head and self.base else None

    @property
    def changed(self) -> bool:
        """Whether anything is known to differ, or a side is missing."""
        return None in (self.base, self.head) or any(one != "same code" for one in self.differences)


@dataclass(frozen=True)
class FactsDiff:
    """Two revisions without their times."""

    base: Revision
    head: Revision
    check: FactsCheck | None  # of exactly these two
    pairs: Sequence[FactsPair]
    stack_changes: Mapping[str, tuple[str, ...]]  # by device, where the two were measured on different stacks

    @property
    def counts(self) -> Counter[str]:
        """Pairs by what is known of their code: same, changed or unknown."""
        names = {True: "same", False: "changed", None: "unknown"}
        return Counter(names[pair.same_code] for pair in self.pairs)


class ComparisonMethod(StrEnum):
    """How the two revisions were compared at a case."""

    PAIRED = "paired"  # in turns, in one session
    BASELINE = "baseline"  # each in a session with the same third revision
    SOTA = "sota"  # each in a session with the same SOTA provider
    CHAIN = "chain"  # through the sessions of the revisions between them
    UNPAIRED = "unpaired"  # two medians of different sessions, without a ratio


@dataclass(frozen=True)
class ComparedCase:
    """Two revisions at one case of a provider; no ratio where they were not paired."""

    provider: str
    case: str
    method: ComparisonMethod
    direction: Direction
    base_median: float | None
    head_median: float | None
    ratio: PairedRatio | None
    runs: tuple[int, ...]  # whose sessions it rests on
    via: str | None = None  # the third revision or provider
    outcome: str | None = None  # the stored verdict, of a pair
    reason: str | None = None  # why it is not paired


@dataclass(frozen=True)
class ComparedSide:
    """One of the two revisions, with the run whose medians are shown."""

    revision: Revision
    pull: int | None
    run_id: int
    worker: str | None
    recipe_id: int


@dataclass(frozen=True)
class RevisionsCompared:
    """Two revisions on one device."""

    device: str
    base: ComparedSide
    head: ComparedSide
    stack_changes: tuple[str, ...]
    cases: Sequence[ComparedCase]
