"""Two texts next to each other: only the parts that differ, line by line.  Pure."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

CONTEXT = 3  # equal lines around a difference
MAX_COMPARED = 4000  # lines of a text; difflib takes more than their number for each
MAX_SHOWN = 400  # lines of all hunks
MAX_WIDTH = 240  # characters of a line


@dataclass(frozen=True)
class Pair:
    """A line of each side with its number; a side without this line has None."""

    before: str | None
    after: str | None
    before_number: int | None
    after_number: int | None

    @property
    def same(self) -> bool:
        return self.before_number is not None and self.after_number is not None and self.before == self.after


@dataclass(frozen=True)
class Hunk:
    """Lines that differ, with a few equal ones around them."""

    pairs: tuple[Pair, ...]


def hunks(before: str, after: str) -> tuple[Hunk, ...]:
    """What differs between two texts, at most `MAX_SHOWN` lines of it."""
    old, new = (text.splitlines()[:MAX_COMPARED] for text in (before, after))
    found, left = list[Hunk](), MAX_SHOWN
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        pairs = [pair for _, i1, i2, j1, j2 in group for pair in _pairs(old, new, (i1, i2), (j1, j2))][:left]
        left -= len(pairs)
        if pairs:
            found.append(Hunk(tuple(pairs)))
    return tuple(found)


def _pairs(old: Sequence[str], new: Sequence[str], was: tuple[int, int], now: tuple[int, int]) -> list[Pair]:
    rows = max(was[1] - was[0], now[1] - now[0])
    pairs = []
    for n in range(rows):
        i = was[0] + n if was[0] + n < was[1] else None
        j = now[0] + n if now[0] + n < now[1] else None
        pairs.append(Pair(_cut(old, i), _cut(new, j), None if i is None else i + 1, None if j is None else j + 1))
    return pairs


def _cut(lines: Sequence[str], place: int | None) -> str | None:
    return None if place is None else lines[place][:MAX_WIDTH]
