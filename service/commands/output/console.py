"""Where commands print: stdout and stderr, as terminals or as pipes, and progress while something is waited for."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import rich.progress
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from service.domain.text import lasted, printable

UNBOUNDED = 100_000  # columns: wider than anything printed here


class Output(Console):
    """As wide as the terminal; without one, as wide as the longest line, for files and pipes."""

    @property
    def size(self) -> ConsoleDimensions:
        bounded = self.is_terminal or self._width is not None  # set by COLUMNS
        return super().size if bounded else ConsoleDimensions(UNBOUNDED, super().size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


out = Output(highlight=False)
err = Output(highlight=False, stderr=True)


def line(*parts: str | tuple[str, str], to: Console = out) -> None:
    """Print one line of untrusted text, which can neither style nor break it; a part may be `(text, style)`."""
    plain = (printable(part) if isinstance(part, str) else (printable(part[0]), part[1]) for part in parts)
    to.print(Text.assemble(*plain), soft_wrap=True)


class ProgressDisplay(Protocol):
    """Shows how far things are that are waited for."""

    def show(self, key: int, said: str, left_s: float | None) -> None:
        """What happens to the thing with this key, and how long it will probably take; None if that is unknown."""


class ProgressLines:
    """A line for each change."""

    def __init__(self) -> None:
        self._last = dict[int, str]()

    def show(self, key: int, said: str, left_s: float | None) -> None:
        """Print what happens if it is new."""
        if self._last.get(key) != said:
            self._last[key] = said
            left = f", about {lasted(left_s)} left" if left_s else ""
            line(f"{said}{left}", to=err)


class NoProgress:
    """Shows nothing."""

    def show(self, key: int, said: str, left_s: float | None) -> None:
        """Do nothing."""


class ProgressBars:
    """A bar for each thing, with the elapsed time and, if it is known, the time that is left."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._tasks = dict[int, rich.progress.TaskID]()
        self._began = time.monotonic()

    def show(self, key: int, said: str, left_s: float | None) -> None:
        """Move its bar."""
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(said, total=None, left="")
        took = time.monotonic() - self._began
        total = None if left_s is None else took + left_s
        left = f"about {lasted(left_s)} left" if left_s else ""
        self._bars.update(self._tasks[key], description=printable(said), total=total, completed=took, left=left)


@contextmanager
def progress(*, lines: bool = True) -> Iterator[ProgressDisplay]:
    """Show progress in the block; where stderr is no terminal only if `lines`."""
    if not err.is_terminal:
        yield ProgressLines() if lines else NoProgress()
        return
    columns = (
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(bar_width=20),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("{task.fields[left]}", markup=False),
    )
    with rich.progress.Progress(*columns, console=err, transient=True) as bars:
        yield ProgressBars(bars)
