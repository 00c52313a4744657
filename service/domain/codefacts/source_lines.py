"""Where a kernel or a function is defined in the files of its revision.  Pure; it comes from untrusted processes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

MAX_FILE = 300  # characters of a path
MAX_LINE = 10_000_000


@dataclass(frozen=True)
class SourceLines:
    """A definition in a file, relative to the top of the checkout, with `/`."""

    file: str
    line: int  # of the `def`
    first: int  # of its decorators
    last: int
    changed: tuple[int, int] | None = None  # the first and the last of the first lines in it that the revision changed

    @property
    def at(self) -> str:
        """`norms/rms.py:41`, the place to read first: the first changed line, else that of the definition."""
        return f"{self.file}:{self.shown[0]}"

    @property
    def short(self) -> str:
        """`rms.py:41`, for people who see the whole path elsewhere."""
        return self.at.rpartition("/")[2]

    @property
    def shown(self) -> tuple[int, int]:
        """The first and the last line to point at."""
        return self.changed or (self.line, self.line)

    def as_json(self) -> dict[str, Any]:
        said = {"file": self.file, "line": self.line, "first": self.first, "last": self.last}
        return said | ({"changed": list(self.changed)} if self.changed else {})

    @classmethod
    def read(cls, said: Any) -> Self | None:
        """None for everything that is not the place of a definition within a checkout."""
        if not isinstance(said, Mapping):
            return None
        file, (first, line, last) = said.get("file"), (_line(said.get(name)) for name in ("first", "line", "last"))
        if not isinstance(file, str) or not _is_relative(file) or not 1 <= first <= line <= last:
            return None
        changed = said.get("changed")
        pair = tuple(map(_line, changed)) if isinstance(changed, list | tuple) else ()
        inside = len(pair) == 2 and first <= pair[0] <= pair[1] <= last
        return cls(file, line, first, last, (pair[0], pair[1]) if inside else None)


def _is_relative(file: str) -> bool:
    parts = file.split("/")
    return 0 < len(file) <= MAX_FILE and file.isprintable() and not any(part in ("", ".", "..") for part in parts)


def _line(value: Any) -> int:
    """The number of a line; 0 for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_LINE else 0


def first_changed(source: SourceLines, hunks: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """The part of the first changed range of a file that is inside of a definition; ranges have both ends.

    None also where the whole definition is new.
    """
    inside = ((max(first, source.first), min(last, source.last)) for first, last in sorted(hunks))
    found = next(((first, last) for first, last in inside if first <= last), None)
    return None if found == (source.first, source.last) else found
