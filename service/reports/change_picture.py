"""The picture of a comment: which cases changed, as bars around no change, with their intervals.  Pure.

The dashboard draws it, and the comment of a public target shows it: a forge's image proxy has no key.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.metrics import WORDS, in_range, signed
from service.domain.states import Outcome
from service.domain.text import escaped, one_line
from service.reports.report import Report
from service.reports.rows import Row

MAX_BARS = 6
MAX_ALT = 900  # characters: of ten devices, all pictures take a seventh of a comment


@dataclass(frozen=True)
class ChangeBar:
    """One case that changed; `ratio` and its interval are as in the verdict, above 1 slower."""

    name: str  # its case, and its provider where there are several
    ratio: float
    low: float
    high: float
    size: str  # `+10.2 %`
    words: str  # `10.2 % slower (+9.6 to +10.8 %)`

    @property
    def slower(self) -> bool:
        return self.ratio > 1


@dataclass(frozen=True)
class ChangePicture:
    """The largest changes of a run, slower cases first."""

    device: str
    bars: Sequence[ChangeBar]
    changed: int  # how many cases changed, with those that have no bar
    worse: str = "slower"  # the words for both directions
    better: str = "faster"

    @property
    def more(self) -> str:
        """`2 more changed`; empty where each has its bar."""
        rest = self.changed - len(self.bars)
        return f"{rest} more changed" if rest else ""

    @property
    def alt(self) -> str:
        """All that the picture shows, as one line of text."""
        bars = [f"{bar.name} {bar.words}" for bar in self.bars]
        return f"{self.device}: {'; '.join([*bars, *([self.more] if self.more else [])])}"

    @property
    def version(self) -> str:
        """What the address names, so that a proxy never keeps an older picture for a newer one."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


def change_picture(report: Report) -> ChangePicture | None:
    """The picture of a run; None where no time or memory changed.  Counts have no ratio that could be drawn."""
    rows = [
        row
        for outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT)
        for row in report.of(outcome)
        if row.news and row.ratio and not row.metric.counts
    ]
    if not rows:
        return None
    several = len({row.provider for row in rows}) > 1
    shown = tuple(_bar(row, named=several) for row in rows[:MAX_BARS])
    words = {(WORDS[row.metric].more, WORDS[row.metric].less) for row in rows[:MAX_BARS]}
    return ChangePicture(report.device, shown, len(rows), *(words.pop() if len(words) == 1 else ("worse", "better")))


def in_comment(report: Report) -> str:
    """The picture as Markdown that leads to the run; empty for a single change, and where a proxy cannot fetch it."""
    picture = change_picture(report) if report.public else None
    if picture is None or picture.changed == 1:
        return ""
    alt = escaped(one_line(picture.alt, MAX_ALT))
    return f"[![{alt}]({report.url}/changes.svg?v={picture.version})]({report.url})"


def _bar(row: Row, *, named: bool) -> ChangeBar:
    ratio = row.ratio or 1.0
    between = in_range(row.low, row.high, row.metric)
    return ChangeBar(
        f"{row.case} {row.provider}" if named else row.case,
        ratio,
        row.low or ratio,
        row.high or ratio,
        signed(ratio, row.metric),
        f"{row.change} ({between})" if between else row.change,
    )
