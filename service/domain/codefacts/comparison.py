"""Which facts of two sides differ, in words, and two texts next to each other.  Pure; the one table of labels.

Facts come from strangers' processes: a value of the wrong type counts as missing.

The texts come from strangers.  difflib takes time that is cubic in the lines of a hostile text; the greedy algorithm
of Myers (An O(ND) difference algorithm, 1986) ends after a fixed number of differences.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kernels.cases import Case
from service.domain.codefacts.compiled import whole
from service.domain.codefacts.measured import interchangeable, releases
from service.domain.roofline import number
from service.domain.states import Repeatability
from service.domain.text import apart

LABELS = {
    "kernels": "number of kernels",
    "registers": "registers",
    "spills": "spills",
    "shared": "bytes of shared memory",
    "stack": "bytes of stack",
    "occupancy": "occupancy",
    "candidates": "configurations to choose from",
    "instructions": "instructions",
    "config": "configuration",
    "graphs": "graphs",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
}
_COMPARED = ("kernels", "registers", "spills", "shared", "config", "graphs", "graph_breaks", "recompiles")
_OF_CONFIGURATION = ("registers", "spills", "shared", "config")  # of the first trial alone
_NAMED_WHERE_SAME = ("spills", "registers", "shared", "kernels")


# An error grew by this factor, and by this part of what one rounding of the output adds.
MIN_GROWTH, MIN_GROWN = 1.25, 0.25
MANTISSA_BITS = {"bf16": 8, "fp16": 11, "fp32": 24}  # with the hidden one


def repeatability(head: Mapping[str, Any], parent: Mapping[str, Any]) -> Repeatability | None:
    """None where it stayed, or where the calls of a side were too few to know."""
    match parent.get("repeatable"), head.get("repeatable"):
        case True, False:
            return Repeatability.LOST
        case False, True:
            return Repeatability.GAINED
    return None


def grown_errors(head: Mapping[str, Any], parent: Mapping[str, Any], case: str) -> dict[str, tuple[float, float]]:
    """The outputs whose measured error grew, although both sides are exact enough: before, and now.

    An error is relative, as `kernels.checks.error_bounds` defines it.  Sums in another order differ by less than a part
    of what rounding the output does.
    """
    sides = [errors if isinstance(errors := facts.get("errors"), Mapping) else {} for facts in (parent, head)]
    found = {}
    for name in sides[1]:
        before, now = (number(side.get(name)) for side in sides)
        if before and now and now >= MIN_GROWTH * before and now - before >= MIN_GROWN * _rounding(case, name):
            found[str(name)] = before, now
    return found


def _rounding(case: str, output: str) -> float:
    """The error of rounding an output once, relative."""
    try:
        [dtype, *_] = Case.parse(case).dtypes(output)
    except (ValueError, KeyError):
        return math.inf
    return 2.0 ** -MANTISSA_BITS[dtype] if dtype in MANTISSA_BITS else math.inf


def differences(head: Mapping[str, Any], parent: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences between two sets of compile-time facts; releases and equality of the code come first."""
    replaced = [f"{name} {before} → {now}" for name, before, now in releases(head, parent)]
    if head.get("code") and parent.get("code"):
        # Of what was not compiled only the operators that ran are known, and not the Python between them.
        what = "operators" if head.get("kind") == "operators" else "code"
        replaced.append(f"same {what}" if head["code"] == parent["code"] else f"{what} changed")
    if moved := repeatability(head, parent):
        replaced.append("no longer bitwise repeatable" if moved is Repeatability.LOST else "now bitwise repeatable")
    if noise := interchangeable(head, parent):
        replaced.append("both sides ran the same configurations in some trials")
    in_full = [configurations(facts) for facts in (parent, head)]
    for fact in _COMPARED:
        if noise and fact in _OF_CONFIGURATION:
            continue
        before, now = in_full if fact == "config" and all(in_full) else (parent.get(fact), head.get(fact))
        if before != now and before is not None and now is not None:
            replaced.append(f"{LABELS[fact]} {' → '.join(apart(before, now))}")
    return tuple(replaced)


def same_facts(head: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The labels of the facts that both sides have, and that are the same."""
    same = [
        LABELS[fact]
        for fact in _NAMED_WHERE_SAME
        if (now := whole(head.get(fact))) is not None and now == whole(other.get(fact))
    ]
    in_full = configurations(head)
    return [*same, LABELS["config"]] if in_full and in_full == configurations(other) else same


def configurations(facts: Mapping[str, Any]) -> str:
    """The settings of every kernel, where they are known: the fact `config` is cut to 400 characters."""
    kernels = facts.get("triton")
    valid = isinstance(kernels, list) and all(isinstance(kernel, Mapping) for kernel in kernels)
    return " ".join(_configuration(kernel) for kernel in kernels or ()) if valid else ""


def _configuration(kernel: Mapping[str, Any]) -> str:
    settings = kernel.get("settings")
    known = {"num_warps": kernel.get("warps"), "num_stages": kernel.get("stages")}
    known |= settings if isinstance(settings, Mapping) else {}
    return " ".join([str(kernel.get("name")), *(f"{key}={value}" for key, value in known.items() if value is not None)])


def changed_settings(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of the settings of a kernel that differ, in the order of the tables."""
    return [name for name in dict.fromkeys((*was, *now)) if was.get(name) != now.get(name)]


CONTEXT = 3  # equal lines around a difference
MAX_COMPARED = 6000  # lines of a text
MAX_EDITS = 500  # lines that came or went; the time grows with their square
MAX_SHOWN = 400  # lines of all hunks
MAX_WIDTH = 240  # characters of a line

Block = tuple[int, int, int, int]  # lines that differ: from and to before, from and to after


@dataclass(frozen=True)
class Pair:
    """A line of each side with its number; a side without this line has None."""

    before: str | None
    after: str | None
    before_number: int | None
    after_number: int | None
    same: bool = False


Hunk = tuple[Pair, ...]  # lines that differ, with a few equal ones around them


@dataclass(frozen=True)
class TextComparison:
    """What differs between two texts, as far as it is shown."""

    hunks: tuple[Hunk, ...]
    added: int = 0  # lines, of all that were compared
    removed: int = 0
    hidden: int = 0  # lines of hunks that are not shown
    too_long: bool = False  # only the first `MAX_COMPARED` lines were compared
    unaligned: bool = False  # more than `MAX_EDITS` lines differ: those between the first and the last are in one hunk

    @property
    def equal(self) -> bool:
        return not (self.added or self.removed)


def hunks(before: str, after: str) -> tuple[Hunk, ...]:
    """What differs between two texts, at most `MAX_SHOWN` lines of it."""
    lines = before.splitlines(), after.splitlines()
    return compared(*lines, *lines).hunks


def compared(
    before: Sequence[str], after: Sequence[str], old: Sequence[str], new: Sequence[str], shown: int = MAX_SHOWN
) -> TextComparison:
    """Compare two texts by `old` and `new`, which have a line for each of theirs, and show at most `shown` lines."""
    too_long = max(len(before), len(after)) > MAX_COMPARED
    blocks, aligned = _blocks(old[:MAX_COMPARED], new[:MAX_COMPARED])
    hunks, left, hidden = list[Hunk](), shown, 0
    sizes = min(len(before), MAX_COMPARED), min(len(after), MAX_COMPARED)
    for group in _grouped(blocks):
        pairs = list(_pairs(before, after, group, sizes))
        if left:
            hunks.append(tuple(pairs[:left]))
        hidden += max(0, len(pairs) - left)
        left = max(0, left - len(pairs))
    added, removed = sum(j2 - j1 for _, _, j1, j2 in blocks), sum(i2 - i1 for i1, i2, _, _ in blocks)
    return TextComparison(tuple(hunks), added, removed, hidden, too_long, not aligned)


def _blocks(old: Sequence[str], new: Sequence[str]) -> tuple[list[Block], bool]:
    """The blocks that differ, and whether they are aligned."""
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    a, b = old[first : len(old) - last], new[first : len(new) - last]
    if not a and not b:
        return [], True
    matches = _matches(a, b)
    if matches is None:
        return [(first, first + len(a), first, first + len(b))], False
    ends = [(-1, -1), *matches, (len(a), len(b))]
    gaps = ((x1 + 1, x2, y1 + 1, y2) for (x1, y1), (x2, y2) in pairwise(ends))
    moved = ((i1 + first, i2 + first, j1 + first, j2 + first) for i1, i2, j1, j2 in gaps if i2 > i1 or j2 > j1)
    return list(moved), True


def _matches(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]] | None:
    """Pairs of equal lines in order, as many as possible; None where more than `MAX_EDITS` lines differ."""
    furthest = {1: 0}  # by diagonal x - y: the furthest x that is reached with so many edits
    trace = list[dict[int, int]]()
    for edits in range(min(MAX_EDITS, len(a) + len(b)) + 1):
        trace.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            x = _step(furthest, diagonal, edits)
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(a) and y >= len(b):
                return _walked_back(trace, len(a), len(b))
    return None


def _step(furthest: dict[int, int], diagonal: int, edits: int) -> int:
    """Where a diagonal begins: a line of `after` more, or one of `before` less."""
    down = diagonal == -edits
    if not down and diagonal != edits:
        down = furthest[diagonal - 1] < furthest[diagonal + 1]
    return furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1


def _walked_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    ranges = list[tuple[int, int]]()
    for edits in range(len(trace) - 1, -1, -1):
        furthest, diagonal = trace[edits], x - y
        start = _step(furthest, diagonal, edits)
        while x > start and y > start - diagonal:
            x, y = x - 1, y - 1
            ranges.append((x, y))
        if edits:
            down = start == furthest.get(diagonal + 1) and (
                diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
            )
            x, y = (start, start - diagonal - 1) if down else (start - 1, start - diagonal)
    return ranges[::-1]


def _grouped(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks that are close enough to share their context."""
    group = list[Block]()
    for block in blocks:
        if group and block[0] - group[-1][1] > 2 * CONTEXT:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _pairs(before: Sequence[str], after: Sequence[str], group: list[Block], sizes: tuple[int, int]) -> Iterator[Pair]:
    """The lines of a hunk: its blocks, and the equal lines around and between them."""
    i, j = group[0][0], group[0][2]
    lead = min(CONTEXT, i, j)
    i, j = i - lead, j - lead
    for i1, i2, j1, j2 in group:
        yield from _equal(before, after, i, j, i1 - i)
        for n in range(max(i2 - i1, j2 - j1)):
            was, now = (i1 + n if i1 + n < i2 else None), (j1 + n if j1 + n < j2 else None)
            yield Pair(_cut(before, was), _cut(after, now), _number(was), _number(now))
        i, j = i2, j2
    yield from _equal(before, after, i, j, min(CONTEXT, sizes[0] - i, sizes[1] - j))


def _equal(before: Sequence[str], after: Sequence[str], i: int, j: int, count: int) -> Iterator[Pair]:
    for n in range(count):
        yield Pair(_cut(before, i + n), _cut(after, j + n), i + n + 1, j + n + 1, same=True)


def _number(place: int | None) -> int | None:
    return None if place is None else place + 1


def _cut(lines: Sequence[str], place: int | None) -> str | None:
    return None if place is None else lines[place][:MAX_WIDTH]
