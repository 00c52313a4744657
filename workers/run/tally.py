"""Collect trials into the results of each contender.  Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import Any

from kernels.arena.session import Cell as Turned
from kernels.arena.session import Contender, Trial
from kernels.cases import Case
from service.domain.codefacts.texts import KernelText
from service.domain.roofline import number
from service.domain.states import CellState, Rounds
from service.domain.text import one_line
from service.domain.verdicts.session_result import ContenderResult

_MAX_REPLACED = 16  # packages of the stack that a contender says its revision replaced
_MAX_VERSION = 80  # characters of their names and versions
# One wrong or failed trial decides the state of the whole case.
_WORST_FIRST = (CellState.INVALID, CellState.FAILED, CellState.UNSUPPORTED, CellState.MEASURED)


class Tally:
    """Every trial of one session, in order.  A contender that took no part in a trial has no rounds in it."""

    def __init__(self, contenders: Iterable[Contender], cases: Iterable[Case]) -> None:
        self._contenders = tuple(contenders)
        self._cases = tuple(cases)
        self._trials: list[tuple[bool, Trial]] = []

    def add(self, trial: Trial, *, confirming: bool) -> None:
        self._trials.append((confirming, trial))

    @property
    def stacks(self) -> Mapping[str, Mapping[str, Any]]:
        """The stack of each contender of the first trial, by label."""
        return self._trials[0][1].stacks if self._trials else {}

    @property
    def telemetry(self) -> Sequence[Mapping[str, Any]]:
        """The telemetry of the first trial: device and host."""
        return self._trials[0][1].telemetry if self._trials else ()

    def taken(self) -> tuple[ContenderResult, ...]:
        """Values of each contender at each case so far."""
        return tuple(
            self._taken(contender, case)
            for contender in self._contenders
            for case in self._cases
            if any((contender.label, case) in trial.cells for _, trial in self._trials)
        )

    def texts(self) -> tuple[KernelText, ...]:
        """The texts of compiled code that the trials read."""
        return tuple(
            KernelText(f"{one.role}:{one.provider['name']}", str(case), text.number, text.kernel, text.kind, text.text)
            for _, trial in self._trials
            for one in self._contenders
            for case in self._cases
            if (cell := trial.cells.get((one.label, case))) is not None
            for text in cell.texts
        )

    def _taken(self, contender: Contender, case: Case) -> ContenderResult:
        turned = [(confirming, trial.cells.get((contender.label, case))) for confirming, trial in self._trials]
        seen = [cell for _, cell in turned if cell is not None]
        worst = min(seen, key=lambda cell: _WORST_FIRST.index(CellState(cell.state)))

        def rounds(confirming: bool) -> tuple[Rounds, ...]:
            return tuple(_samples(cell) for when, cell in turned if when is confirming)

        return ContenderResult(
            contender.role,
            str(contender.provider["name"]),
            case,
            CellState(worst.state),
            worst.reason,
            rounds(False),
            rounds(True),
            _known(seen) | _tuned(cell for _, cell in turned) | self._replaced(contender),
            apart=tuple(tuple(cell.apart) if cell is not None else () for _, cell in turned),
        )

    def inexact(self) -> dict[tuple[str, Case], str]:
        """The contenders that a trial called invalid for their numbers alone, by label and case, with the reason."""
        return {
            at: cell.reason or cell.state
            for _, trial in self._trials
            for at, cell in trial.cells.items()
            if cell.inexact
        }

    def _replaced(self, contender: Contender) -> dict[str, Any]:
        """The versions of the packages of the stack that the contender's revision replaced, if it did."""
        stacks = (trial.stacks.get(contender.label, {}) for _, trial in self._trials)
        found = next((named for stack in stacks if isinstance(named := stack.get("replaced"), dict)), {})
        kept = {one_line(name, _MAX_VERSION): one_line(str(version), _MAX_VERSION) for name, version in found.items()}
        return {"replaced": dict(islice(kept.items(), _MAX_REPLACED))} if kept else {}


def _known(seen: Sequence[Turned]) -> dict[str, Any]:
    """The facts of the code over all trials: the first value of each, because only the first trial gathers them all.

    One trial that did not repeat its bits makes the case unrepeatable; the clock is the median over trials.
    """
    known: dict[str, Any] = {}
    for cell in reversed(seen):
        known |= {**cell.facts, **cell.extra}
    if any(cell.facts.get("repeatable") is False for cell in seen):
        known["repeatable"] = False
    if clocks := [mhz for cell in seen if (mhz := number(cell.extra.get("sm_mhz")))]:
        known["sm_mhz"] = median(clocks)
    return known


def _tuned(trials: Iterable[Turned | None]) -> dict[str, Any]:
    """The configurations that autotuners chose in each trial, with their medians; empty without an autotuner."""
    chosen = [
        {"trial": number, "configuration": choices, "median": median(samples) if samples else None}
        for number, cell in enumerate(trials, 1)
        if cell is not None and (choices := "; ".join(f"{name} {one}" for name, one in sorted(cell.tuned.items())))
        for samples in [[one for one in _samples(cell) if one is not None]]
    ]
    return {"tuned": chosen} if chosen else {}


def _samples(cell: Turned | None) -> Rounds:
    return tuple(cell.samples) if cell is not None and CellState(cell.state) is CellState.MEASURED else ()
