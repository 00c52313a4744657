"""What a study is: arms that take turns at cases, in steps, and the report that follows.  Torch-free."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..arena.session import Pace
from .records import CONTROL
from .results import Results

PACE = Pace(rounds=6)  # six rounds of three samples repeat as well between trials as twenty of five


@dataclass(frozen=True)
class Arm:
    """One way to compute a case, which a process of its own runs.

    `spec` is the provider of a contender (`arena.protocol`), or what the server of the models takes.
    """

    name: str
    title: str
    spec: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class StudyStep:
    """Arms that take turns at the same cases, in `trials` sets of fresh processes.  The first arm is the baseline.

    `cases` are texts of cases, or of models for a step with `models`.  Arms of models that `prepare_together` do so at
    the same time: none of them may time candidates then, except behind a lock of its own.
    """

    name: str
    arms: tuple[Arm, ...]
    cases: tuple[str, ...]
    trials: int = 3
    pace: Pace = PACE
    models: bool = False
    prepare_together: bool = False

    @property
    def contestants(self) -> tuple[Arm, ...]:
        """The arms and the A/A control: a second copy of the first arm."""
        first = self.arms[0]
        return (*self.arms, Arm(CONTROL, f"{first.title}, second copy", first.spec))


def missing(
    steps: Sequence[StudyStep], done: Collection[tuple[str, int, str]]
) -> list[tuple[StudyStep, int, tuple[str, ...]]]:
    """The cases of each step and trial that are not done; `done` has keys of records (`Record.key`).

    First one trial of every step, then the second ones: a study that is cut off has all of its table.
    """
    found = []
    for trial in range(max((step.trials for step in steps), default=0)):
        for step in steps:
            left = tuple(case for case in step.cases if (step.name, trial, case) not in done)
            if trial < step.trials and left:
                found.append((step, trial, left))
    return found


@dataclass(frozen=True)
class Source:
    """Where the result was published."""

    title: str
    url: str
    hardware: str


@dataclass(frozen=True)
class Conclusion:
    """A claim of the source, and what these measurements say of it.

    `holds` is None where the measurements cannot decide it.
    """

    claim: str
    found: str
    holds: bool | None


@dataclass(frozen=True)
class StudyTable:
    """A table of texts; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class StudyFigure:
    """Lines over a logarithmic x axis; None interrupts a line.  `limit` is a horizontal line with its name."""

    title: str
    x_label: str
    y_label: str
    xs: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]] = field(hash=False)
    limit: tuple[str, float] | None = None


@dataclass(frozen=True)
class StudyReport:
    findings: tuple[Conclusion, ...]
    tables: tuple[StudyTable, ...]
    figures: tuple[StudyFigure, ...] = ()


@dataclass(frozen=True)
class Study:
    """A published result as a program.  `steps(device, quick)` are in the order of their importance."""

    name: str
    title: str
    question: str
    source: Source
    steps: Callable[[str, bool], Sequence[StudyStep]] = field(hash=False)
    report: Callable[[Results], StudyReport] = field(hash=False)
