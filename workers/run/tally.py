"""Collects launches into evidence.  Pure: launches in, what each contender took out."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from kernels.arena.session import Cell as Turned
from kernels.arena.session import Contender, Launch
from kernels.cases import Case
from service.domain.roofline import number
from service.domain.states import CellState, Rounds
from service.domain.verdicts.session_result import Taken

# Whoever was wrong once is wrong; whoever failed once cannot be trusted to have been measured.
_WORST_FIRST = (CellState.INVALID, CellState.FAILED, CellState.UNSUPPORTED, CellState.MEASURED)


class Tally:
    """Every launch of one session, in order.  A contender that sat out a launch has no rounds in it."""

    def __init__(self, contenders: Iterable[Contender], cases: Iterable[Case]) -> None:
        self._contenders = tuple(contenders)
        self._cases = tuple(cases)
        self._launches: list[tuple[bool, Launch]] = []

    def add(self, launch: Launch, *, confirming: bool) -> None:
        self._launches.append((confirming, launch))

    @property
    def stacks(self) -> Mapping[str, Mapping[str, Any]]:
        """What the first launch's contenders run on, by label."""
        return self._launches[0][1].stacks if self._launches else {}

    @property
    def telemetry(self) -> Sequence[Mapping[str, Any]]:
        """What the first launch read of its device and host."""
        return self._launches[0][1].telemetry if self._launches else ()

    def taken(self) -> tuple[Taken, ...]:
        """What each contender took at each case so far."""
        return tuple(
            self._taken(contender, case)
            for contender in self._contenders
            for case in self._cases
            if any((contender.label, case) in launch.cells for _, launch in self._launches)
        )

    def _taken(self, contender: Contender, case: Case) -> Taken:
        turned = [(confirming, launch.cells.get((contender.label, case))) for confirming, launch in self._launches]
        seen = [cell for _, cell in turned if cell is not None]
        worst = min(seen, key=lambda cell: _WORST_FIRST.index(CellState(cell.state)))

        def rounds(confirming: bool) -> tuple[Rounds, ...]:
            return tuple(_samples(cell) for when, cell in turned if when is confirming)

        return Taken(
            contender.role,
            str(contender.provider["name"]),
            case,
            CellState(worst.state),
            worst.reason,
            rounds(False),
            rounds(True),
            _known(seen) | _tuned(cell for _, cell in turned),
        )


def _known(seen: Sequence[Turned]) -> dict[str, Any]:
    """What all launches say of the code: of each fact the first, for only the first launch looks at everything.

    Who was once seen not to repeat itself does not; the clock is the middle one of the launches.
    """
    known: dict[str, Any] = {}
    for cell in reversed(seen):
        known |= {**cell.facts, **cell.extra}
    if any(cell.facts.get("repeatable") is False for cell in seen):
        known["repeatable"] = False
    if clocks := [mhz for cell in seen if (mhz := number(cell.extra.get("sm_mhz")))]:
        known["sm_mhz"] = median(clocks)
    return known


def _tuned(launches: Iterable[Turned | None]) -> dict[str, Any]:
    """The configurations that autotuners chose, launch by launch, with the median of each; nothing where none chose."""
    chosen = [
        {"launch": number, "configuration": choices, "median": median(samples) if samples else None}
        for number, cell in enumerate(launches, 1)
        if cell is not None and (choices := "; ".join(f"{name} {one}" for name, one in sorted(cell.tuned.items())))
        for samples in [[one for one in _samples(cell) if one is not None]]
    ]
    return {"tuned": chosen} if chosen else {}


def _samples(cell: Turned | None) -> Rounds:
    return tuple(cell.samples) if cell is not None and CellState(cell.state) is CellState.MEASURED else ()
