"""The cases of a run as lines of one table: grouped by what the reader has to do about them.  Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any
from urllib.parse import quote

from service.domain.case_names import SMALL_ROWS, CaseName, case_name
from service.domain.states import Outcome, Repeatability
from service.domain.text import listed
from service.reports.report import Report
from service.reports.rows import CauseWords, Row

MAX_PLAIN = 10  # lines of what is fine that are not worth a fold
MAX_SHOWN = 40  # lines of a group, until the reader asks for the others
MAX_FIRST_ON_PHONE = 12  # lines of the most severe group
MAX_NEXT_ON_PHONE = 3  # lines of each other group, and folded groups


class LineKind(StrEnum):
    """What a line says, in the order in which people need it."""

    WRONG = "wrong"
    SLOWER = "slower"
    FAILED = "failed"
    SLOWER_THAN_WRONG = "slower-than-wrong"
    FAR_BEHIND = "far-behind"
    UNREPEATABLE = "unrepeatable"
    FASTER = "faster"
    UNDECIDED = "undecided"
    SLOW_BEFORE = "slow-before"
    BELOW_PINNED = "below-pinned"
    QUARANTINED = "quarantined"
    KNOWN_BEFORE = "known-before"
    STEADY = "steady"
    NEW = "new"
    REMOVED = "removed"


@dataclass(frozen=True)
class KindWords:
    """The heading of a kind, and the word, mark and tone of its lines."""

    heading: str
    word: str
    mark: str
    tone: str


KINDS = {
    LineKind.WRONG: KindWords("Wrong results", "wrong", "✕", "invalid"),
    LineKind.SLOWER: KindWords("Slower", "slower", "▲", "regression"),
    LineKind.FAILED: KindWords("Failed", "failed", "✕", "failed"),
    LineKind.SLOWER_THAN_WRONG: KindWords("Correct now, but slower", "correct, slower", "▲", "regression"),
    LineKind.FAR_BEHIND: KindWords("New and far behind SOTA", "new, far behind", "◣", "behind"),
    LineKind.UNREPEATABLE: KindWords("No longer repeatable", "not repeatable", "◆", "inconclusive"),
    LineKind.FASTER: KindWords("Faster", "faster", "▼", "improvement"),
    LineKind.UNDECIDED: KindWords("Undecided", "undecided", "◌", "inconclusive"),
    LineKind.SLOW_BEFORE: KindWords("Slow before", "slow before", "△", "failed"),
    LineKind.BELOW_PINNED: KindWords("Slower than the pinned baseline", "slower than pinned", "◣", "behind"),
    LineKind.QUARANTINED: KindWords("Quarantined", "quarantined", "⊘", "inconclusive"),
    LineKind.KNOWN_BEFORE: KindWords("Wrong or failed before", "wrong before", "✕", "steady"),
    LineKind.STEADY: KindWords("Steady", "steady", "●", "steady"),
    LineKind.NEW: KindWords("New", "new", "◇", "new"),
    LineKind.REMOVED: KindWords("Removed", "removed", "⊖", "steady"),
}
FOLDED = (LineKind.STEADY, LineKind.NEW, LineKind.REMOVED)
_BY_CAUSE = (LineKind.SLOWER, LineKind.FASTER)
_BY_OUTCOME = {
    Outcome.INVALID: LineKind.WRONG,
    Outcome.REGRESSION: LineKind.SLOWER,
    Outcome.FAILED: LineKind.FAILED,
    Outcome.IMPROVEMENT: LineKind.FASTER,
    Outcome.INCONCLUSIVE: LineKind.UNDECIDED,
    Outcome.STEADY: LineKind.STEADY,
    Outcome.NEW: LineKind.NEW,
    Outcome.REMOVED: LineKind.REMOVED,
}


class LineSort(StrEnum):
    """The order of the lines within their groups."""

    RELEVANCE = "relevance"
    RATIO = "ratio"
    LOST = "lost"
    SOTA = "sota"
    NAME = "name"


@dataclass(frozen=True)
class CaseLine:
    """One case of one provider."""

    row: Row
    name: CaseName
    kind: LineKind
    smallest_change: float

    @property
    def path(self) -> str:
        """The address of its own page, after the run's."""
        return f"cases/{quote(self.row.case, safe='')}?provider={quote(self.row.provider, safe='')}"

    @property
    def lost(self) -> float:
        """How much more the head takes, in the unit of the metric."""
        head, parent = (side.median if side else None for side in (self.row.head, self.row.parent))
        return head - parent if head is not None and parent is not None else 0.0

    @property
    def to_sota(self) -> float | None:
        return self.row.sota.ratio if self.row.sota else None

    @property
    def behind_before(self) -> bool:
        """Whether the baseline was behind SOTA by as much as a limit that the head exceeds now."""
        return bool(self.row.behind and self.to_sota and self.row.ratio and self.to_sota / self.row.ratio > 1.05)


@dataclass(frozen=True)
class CaseGroup:
    """Lines of one kind and one incident or cause; those that are fine by op and direction."""

    key: str
    kind: LineKind
    title: str
    lines: tuple[CaseLine, ...]
    foldable: bool
    folded: bool
    limit: int  # of the lines that are shown
    whole: bool = False  # the reader asked for all of them
    incident: int | None = None
    regression: int | None = None  # the first of the incident
    several_ops: bool = False  # then a line names its op
    on_phone: int = MAX_FIRST_ON_PHONE  # lines that are shown on a phone

    @property
    def size(self) -> int:
        return len(self.lines)

    @property
    def cause(self) -> CauseWords | None:
        """The cause that all lines share; None where they have none, or one that is stored as a text alone."""
        found = [line.row.cause for line in self.lines]
        kinds = {(cause.kind, cause.code, cause.by) if cause and cause.code else None for cause in found}
        return found[0] if len(kinds) == 1 and None not in kinds else None

    @property
    def late_from(self) -> int:
        """The lines after this one are hidden on a phone."""
        return self.size if self.whole else self.on_phone

    @property
    def late(self) -> int:
        return max(0, len(self.shown) - self.late_from)

    @property
    def shown(self) -> tuple[CaseLine, ...]:
        return () if self.folded else self.lines[: self.limit]

    @property
    def hidden(self) -> tuple[CaseLine, ...]:
        return () if self.folded else self.lines[self.limit :]

    @cached_property
    def ratios(self) -> list[float]:
        return [line.row.ratio for line in self.lines if line.row.ratio]

    @property
    def geomean(self) -> float | None:
        return _geomean(self.ratios)

    @property
    def worst(self) -> float | None:
        """The ratio furthest in the direction of the group."""
        if not self.ratios:
            return None
        return min(self.ratios) if self.kind is LineKind.FASTER else max(self.ratios)

    @property
    def behind(self) -> int:
        return sum(line.row.behind for line in self.lines)

    @property
    def to_sota(self) -> float | None:
        return _geomean([ratio for line in self.lines if (ratio := line.to_sota)])

    @property
    def copy_share(self) -> float | None:
        """The mean share of the ceiling, where it means something."""
        shares = [share for line in self.lines if line.row.head and (share := line.row.head.speed.copy_share)]
        return sum(shares) / len(shares) if shares else None

    @property
    def in_cache(self) -> bool:
        return any(line.row.head and line.row.head.speed.l2_resident for line in self.lines)


def late_groups(groups: Sequence[CaseGroup]) -> set[str]:
    """The keys of the folded groups of a kind that are hidden on a phone."""
    folded = [group.key for group in groups if group.folded]
    return set(folded[MAX_NEXT_ON_PHONE:]) if len(folded) > MAX_NEXT_ON_PHONE + 1 else set()


def lines_of(report: Report) -> tuple[CaseLine, ...]:
    """All cases, in the order of the report."""
    changes: dict[str, float] = {}
    found = []
    for row in report.rows:
        change = row.smallest_change
        if change is None:
            # Resolving a policy for a case costs more than drawing its line: once for a case.
            change = changes.get(row.case) or changes.setdefault(row.case, report.policy.at(row.case).smallest_change)
        found.append(CaseLine(row, case_name(row.case), kind_of(row), change))
    return tuple(found)


def kind_of(row: Row) -> LineKind:
    """What a reader has to know of a case first."""
    if row.quarantined:
        return LineKind.QUARANTINED
    if row.known_before and row.outcome in (Outcome.INVALID, Outcome.FAILED):
        return LineKind.SLOWER_THAN_WRONG if row.slower_than_wrong else LineKind.KNOWN_BEFORE
    if row.outcome is Outcome.NEW and row.slower_than_wrong:
        return LineKind.SLOWER_THAN_WRONG
    if row.far_behind:
        return LineKind.FAR_BEHIND
    if row.outcome in (Outcome.STEADY, Outcome.INCONCLUSIVE, Outcome.IMPROVEMENT, Outcome.NEW):
        if row.repeatability is Repeatability.LOST:
            return LineKind.UNREPEATABLE
        if row.outcome is Outcome.STEADY and row.as_before():
            return LineKind.SLOW_BEFORE
        if row.outcome is Outcome.STEADY and row.slower_than_pinned:
            return LineKind.BELOW_PINNED
    return _BY_OUTCOME[row.outcome]


def groups_of(
    lines: Sequence[CaseLine],
    every: Sequence[CaseLine],
    sort: LineSort = LineSort.RELEVANCE,
    unfolded: Iterable[str] = (),
) -> tuple[CaseGroup, ...]:
    """The lines in groups, the most serious first.

    Args:
        every: All lines of the run, among which a group is named: `RMSNorm forward from 8,192 columns`.
        unfolded: Keys of groups that show all of their lines, or `all`.
    """
    open_ = set(unfolded)
    sizes = Counter(line.kind for line in lines)
    foldable = {kind for kind in FOLDED if sizes[kind] > MAX_PLAIN}
    found: dict[tuple[LineKind, Any], list[CaseLine]] = defaultdict(list)
    for line in lines:
        plain = line.kind in FOLDED and line.kind not in foldable
        found[line.kind, None if plain else _group_within(line)].append(line)
    counts: Counter[LineKind] = Counter()
    groups: list[CaseGroup] = []
    for (kind, common), members in sorted(found.items(), key=lambda one: _gravity(*one)):
        counts[kind] += 1
        key = f"{kind.value}-{'-'.join(common) if kind in foldable else counts[kind]}"
        whole = key in open_ or "all" in open_
        records = [line.row for line in members if line.row.regression is not None]
        incident = records[0].incident if records and kind in _BY_CAUSE else None
        groups.append(
            CaseGroup(
                key=key,
                kind=kind,
                title="" if kind in FOLDED and kind not in foldable else _title(kind, members, every),
                lines=tuple(sorted(members, key=_ORDERS[sort])),
                foldable=kind in foldable,
                folded=kind in foldable and not whole,
                limit=len(members) if whole else MAX_SHOWN,
                whole=whole,
                incident=incident,
                regression=records[0].regression if incident or len(records) == 1 else None,
                on_phone=MAX_NEXT_ON_PHONE if groups else MAX_FIRST_ON_PHONE,
                several_ops=kind not in foldable and len({line.name.family for line in members}) > 1,
            )
        )
    return tuple(groups)


def _group_within(line: CaseLine) -> Any:
    """What the lines of a group of this kind have in common."""
    name, row = line.name, line.row
    if line.kind in FOLDED:
        return name.metric.value, name.op, name.direction, "small" if name.small else "large"
    if line.kind not in _BY_CAUSE:
        return None
    if row.incident is not None:
        return row.incident
    cause = row.cause
    return (cause.kind, cause.code, cause.by) if cause and cause.code else None


def _gravity(of: tuple[LineKind, Any], members: Sequence[CaseLine]) -> tuple[int, float, int]:
    kind, _ = of
    folded_names = min(line.name.family for line in members) if kind in FOLDED else ""
    worst = max(_size(line) for line in members)
    return list(LineKind).index(kind), 0.0 if folded_names else -worst, -len(members)


def _size(line: CaseLine) -> float:
    """The change in units of what matters in its metric: 10 % of a kernel is more than 25 % of a compilation."""
    ratio = line.row.ratio or 1.0
    return (max(ratio, 1 / ratio) - 1) / line.smallest_change


_ORDERS: dict[LineSort, Callable[[CaseLine], Any]] = {
    LineSort.RELEVANCE: lambda line: (-_size(line), line.row.key),
    LineSort.RATIO: lambda line: (-(line.row.ratio or 0.0), line.row.key),
    LineSort.LOST: lambda line: (-line.lost, line.row.key),
    LineSort.SOTA: lambda line: (-(line.to_sota or 0.0), line.row.key),
    LineSort.NAME: lambda line: (
        line.name.op,
        line.name.direction,
        line.name.columns or 0,
        line.name.rows or 0,
        line.row.key,
    ),
}


def _title(kind: LineKind, members: Sequence[CaseLine], every: Sequence[CaseLine]) -> str:
    """`RMSNorm forward from 8,192 columns`, `RMSNorm and LayerNorm backward`, `LayerNorm forward, up to 256 rows`."""
    first = members[0].name
    if kind in FOLDED:
        both = {line.name.small for line in every if line.kind is kind and line.name.family == first.family}
        size = f", up to {SMALL_ROWS} rows" if first.small and len(both) > 1 else ""
        return f"{first.family or 'Other cases'}{size}"
    families = list(dict.fromkeys(line.name.family for line in members))
    if not all(families):
        return ""
    ops = list(dict.fromkeys(line.name.op_words for line in members))
    ways = list(dict.fromkeys(line.name.direction_words for line in members))
    metrics = {line.name.metric for line in members}
    if len(families) > 3 or len(metrics) > 1:
        return f"{len(families)} kinds of cases" if len(families) > 1 else families[0]
    if len(families) == 1:
        said = families[0]
    elif len(ways) == 1:
        said = f"{listed(ops)} {ways[0]}".rstrip()
    elif len(ops) == 1:
        said = f"{ops[0]} {listed(ways)}"
    else:
        said = listed(families)
    return said + _from_columns(members, every, families)


def _from_columns(members: Sequence[CaseLine], every: Sequence[CaseLine], families: Sequence[str]) -> str:
    """` from 8,192 columns` where exactly the wide cases of these ops are in the group; else empty."""
    keys = {line.row.key for line in members}
    same = [line for line in every if line.name.family in families]
    rest = [line.name.columns for line in same if line.row.key not in keys]
    own = [line.name.columns for line in members]
    if len(own) < 2 or not rest or None in own or None in rest:
        return ""
    least, most = min(filter(None, own)), max(filter(None, rest))
    return f" from {least:,} columns" if least > most else ""


def _geomean(ratios: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def geomean_of(lines: Sequence[CaseLine]) -> float | None:
    """The geometric mean of the ratios."""
    return _geomean([line.row.ratio for line in lines if line.row.ratio])
