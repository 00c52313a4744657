"""A board as values: what one run measured of a target and of other providers, case by case.  Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from service.domain.case_names import CaseName, case_name
from service.domain.roofline import Work, work
from service.domain.text import short
from service.reports.charts.trends import day

BEST = "best"  # of all other providers, case by case
# Upper ends of the steps of colour around 1, finer where decisions are made; the last step has none.
STEPS = (0.60, 0.80, 0.95, 0.98, 1.02, 1.05, 1.10, 1.25)


@dataclass(frozen=True)
class Timed:
    """A provider at a case: the median in µs, and GB/s."""

    median: float
    gb_s: float | None


@dataclass(frozen=True)
class Since:
    """The revision since which a case is behind SOTA."""

    revision: str
    committed_at: float
    ordinal: int | None  # place on the mainline
    ratio: float | None  # to SOTA, when it fell behind


@dataclass(frozen=True)
class BoardCase:
    """A case of a provider of the target, and what others needed for it in the same session."""

    provider: str
    case: str
    own: Timed
    others: Mapping[str, Timed] = field(default_factory=dict)
    in_cache: bool = False  # its data fit the L2 cache, so that the ceiling of memory says nothing
    ratio: float | None = None  # to SOTA, as it was judged
    behind: bool = False
    behind_since: Since | None = None


@dataclass(frozen=True)
class BoardRun:
    """The run that a board shows."""

    run_id: int
    revision: str
    subject: str
    committed_at: float
    ordinal: int | None  # place on the mainline
    copy_gb_s: float | None  # the ceilings of its session
    matmul_tflop_s: float | None
    l2_bytes: float | None  # of its device
    cases: Sequence[BoardCase]
    blocks: Sequence[BoardCase] = ()  # cases of the metric block
    instead_of: str = ""  # a later revision, which was not measured on this device
    of_functions: Mapping[str, Work] = field(default_factory=dict)  # by case, what the formulas of the recipe say

    def least_work(self, case: str) -> Work | None:
        """The least work of a case; None where it is not known."""
        return work(case) or self.of_functions.get(case)


@dataclass(frozen=True)
class BoardCell:
    """A case on the board."""

    case: BoardCase
    name: CaseName
    ratio: float | None  # our time over the other's
    share: float | None  # of the ceiling of a copy, in per cent; None in the L2 cache
    behind: bool  # as judged against SOTA; against others, by more than the limit of SOTA
    provider: str = ""  # with a comma before it, where the target has several
    other: str = ""  # whose time it is compared with: against the best of all, the fastest here

    @property
    def kind(self) -> str:
        """`RMSNorm forward, bf16`: what cases of one line of the map, and of one figure, have in common."""
        return f"{self.name.family}, {self.name.dtypes}{self.provider}"

    @property
    def step(self) -> int:
        """The step of colour."""
        return next((n for n, end in enumerate(STEPS) if (self.ratio or 1.0) <= end), len(STEPS))

    @property
    def at_stake(self) -> float:
        """µs of a call that the other provider does not need."""
        return self.case.own.median * (1 - 1 / self.ratio) if self.ratio else 0.0

    @property
    def tone(self) -> str:
        """The classes of the cell in a table: its step of colour, and whether it is behind."""
        return (f"s{self.step}" if self.ratio is not None else "plain") + (" behind" if self.behind else "")

    @property
    def ratio_text(self) -> str:
        return f"{self.ratio:.2f}" if self.ratio is not None else "–"

    def percent(self, *, shared: bool = False) -> str:
        """The share of the ceiling, as a cell shows it; in a shared line it has no room after a long number."""
        long = shared and (self.name.rows or 0) % 1024
        return f"{self.share:.0f}" if self.share and not long else ""

    def link_name(self, against: str, *, shared: bool = False) -> str:
        """The name of the link of the cell: it begins with the text that the cell shows."""
        percent, since = self.percent(shared=shared), self.case.behind_since
        rows = f"{short_number(self.name.rows or 0)} " if shared else ""
        what = f"{percent} % of a copy" if percent else f"× {self.other or against}"
        behind = f", behind since {day(since.committed_at)}" if since else ", behind"
        return f"{rows}{self.ratio_text} {what}, {self.name.shape}{behind if self.behind else ''}"

    def label(self, against: str) -> str:
        """What the cell says to somebody who hears it: ratio, shape, share of the ceiling, and since when behind."""
        name, since, own = self.name, self.case.behind_since, self.case.own.median
        parts = [
            f"{self.ratio:.2f} × {self.other or against}" if self.ratio else f"{against} was not measured",
            f"{name.family} {name.shape} {name.dtypes}",
            f"{own:,.{2 if own < 9.995 else 1}f} µs",
        ]
        if self.case.in_cache:
            parts.append("data in the L2 cache")
        elif self.share:
            parts.append(f"{self.share:.0f} % of a copy")
        if self.behind:
            parts.append(f"behind since {short(since.revision)}" if since else "behind")
        return ", ".join(parts)


def cells_of(
    cases: Iterable[BoardCase], against: str, sota: str, copy_gb_s: float | None, limit: float
) -> list[BoardCell]:
    """The cases against a provider, or against the best of all.

    The ratio to SOTA is the one that was judged; to others it is that of the medians of the session, and above `limit`
    it is behind.
    """
    found = list(cases)
    several = len({case.provider for case in found}) > 1
    return [_cell(case, against, sota, copy_gb_s, limit, named=several) for case in found]


def _cell(case: BoardCase, against: str, sota: str, copy_gb_s: float | None, limit: float, *, named: bool) -> BoardCell:
    share = 100 * case.own.gb_s / copy_gb_s if case.own.gb_s and copy_gb_s and not case.in_cache else None
    name = other_name(case, against)
    other = case.others.get(name)
    ratio = case.ratio if against == sota and case.ratio else case.own.median / other.median if other else None
    behind = case.behind if against == sota else ratio is not None and ratio > limit
    provider = f", {case.provider}" if named else ""
    return BoardCell(case, case_name(case.case), ratio, share, behind, provider, name if other else "")


def other_name(case: BoardCase, against: str) -> str:
    """The provider that the board compares with, or the fastest of all."""
    if against == BEST:
        return min(case.others, key=lambda name: case.others[name].median, default="")
    return against


def other_time(case: BoardCase, against: str) -> Timed | None:
    """The time of the provider that the board compares with, or of the fastest of all."""
    return case.others.get(other_name(case, against))


def short_number(value: int) -> str:
    """`4k` is 4,096; a number that is no multiple of 1,024 is written in full."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else f"{value:,}"
