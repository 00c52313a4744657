"""The compiled code of head and baseline at a case, kernel by kernel, for the page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from kernels.cases import Role
from service.db.models import KernelTextRow
from service.domain.codefacts.comparison import MAX_SHOWN, TextComparison, compared
from service.domain.codefacts.measured import comparable, mix, normalised
from service.domain.codefacts.texts import BASELINES, NAMES, TRACE, paired

MAX_KERNELS = 6  # that differ, on one page

Texts = Callable[[Sequence[int]], Mapping[int, str]]


@dataclass(frozen=True)
class CodeSides:
    """The stored texts of a provider at a case; `baseline` is the role with which the head is compared."""

    baseline: Role | None
    before: tuple[KernelTextRow, ...]
    after: tuple[KernelTextRow, ...]

    @property
    def arch(self) -> str:
        """The architecture that a facts check compiled for; empty where the device compiled for itself."""
        return next((one.arch for one in (*self.after, *self.before)), "")

    @property
    def kinds(self) -> list["KindOfCode"]:
        """The kinds of which there are texts."""
        found = (KindOfCode(kind, name, *self._counted(kind)) for kind, name in NAMES.items())
        return [one for one in found if one.kernels]

    @property
    def traces(self) -> list[tuple[str, str]]:
        """The traces that are stored, by side: `baseline` or `head`, and the hash of the text."""
        sides = (("baseline", self.before), ("head", self.after))
        return [(side, one.text.sha256) for side, texts in sides for one in texts if one.kind == TRACE]

    def pairs(self, kind: str) -> list[tuple[KernelTextRow | None, KernelTextRow | None]]:
        sides = ([one for one in side if one.kind == kind] for side in (self.before, self.after))
        before, after = (sorted(side, key=lambda one: one.number) for side in sides)
        return list(paired(before, after, attrgetter("kernel")))

    def _counted(self, kind: str) -> tuple[int, int]:
        pairs = self.pairs(kind)
        return len(pairs), sum(not _same(*pair) for pair in pairs)


@dataclass(frozen=True)
class KindOfCode:
    """How many kernels have texts of a kind, and how many of them differ."""

    kind: str
    name: str
    kernels: int
    different: int


@dataclass(frozen=True)
class KernelDifference:
    """The texts of one kind of one kernel, before and after."""

    name: str
    before: KernelTextRow | None
    after: KernelTextRow | None
    found: TextComparison | None  # None where the texts are the same, or are not shown
    summary: str = ""  # of machine code: the instructions of which there are more or fewer

    @property
    def same(self) -> bool:
        return _same(self.before, self.after)


def sides_of(rows: Sequence[KernelTextRow], provider: str) -> CodeSides:
    """The head and the first baseline of a provider that have texts."""

    def of(role: Role) -> tuple[KernelTextRow, ...]:
        return tuple(one for one in rows if one.contender == f"{role}:{provider}")

    baseline = next((role for role in BASELINES if of(role)), None)
    return CodeSides(baseline, of(baseline) if baseline else (), of(Role.HEAD))


def differences(sides: CodeSides, kind: str, texts: Texts) -> tuple[list[KernelDifference], int]:
    """The kernels of a call in one kind of text, and how many that differ are left out."""
    pairs = sides.pairs(kind)
    shown = [pair for pair in pairs if not _same(*pair)][:MAX_KERNELS]
    read = texts([one.text_id for pair in shown for one in pair if one is not None])
    found, lines = list[KernelDifference](), MAX_SHOWN
    for before, after in pairs:
        name = " and ".join(dict.fromkeys(one.kernel for one in (before, after) if one and one.kernel))
        if (before, after) not in shown:
            if _same(before, after):
                found.append(KernelDifference(name, before, after, None))
            continue
        old, new = (read.get(one.text_id, "") if one else "" for one in (before, after))
        comparison = _compared(kind, old, new, lines)
        lines -= min(lines, sum(map(len, comparison.hunks)))
        found.append(KernelDifference(name, before, after, comparison, mix(old, new) if kind == "sass" else ""))
    return found, sum(not _same(*pair) for pair in pairs) - len(shown)


def _same(before: KernelTextRow | None, after: KernelTextRow | None) -> bool:
    return before is not None and after is not None and before.text_id == after.text_id


@lru_cache(8)  # texts have up to a megabyte
def _compared(kind: str, before: str, after: str, shown: int) -> TextComparison:
    old, new = normalised(kind, before), normalised(kind, after)
    return compared(old, new, comparable(kind, old), comparable(kind, new), shown)
