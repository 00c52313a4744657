"""Weeks of the calendar (ISO 8601, UTC), and the time that a difference costs or saves.  Pure; docs/glossary.md."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self

from kernels.cases import Metric
from service.domain.metrics import metric_of
from service.errors import BadInput

_NAME = re.compile(r"(\d{4})-W(\d{2})", re.ASCII)
FIRST_YEAR = 1971  # the week before it and all later ones have times after 1970


@dataclass(frozen=True, order=True)
class Week:
    """A week of an ISO year, which begins up to three days before or after the year itself."""

    year: int
    number: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """`2026-W47`.  Raises BadInput for anything else, and for a week that the year does not have."""
        match = _NAME.fullmatch(name)
        if match is None or not FIRST_YEAR <= int(match[1]) < 9999:
            raise BadInput(f"{name[:20]!r} is no week: write year and ISO week, as in 2026-W47.")
        year, number = int(match[1]), int(match[2])
        if not 1 <= number <= weeks_in(year):
            raise BadInput(f"There is no week {number} in {year}: it has the weeks 1 to {weeks_in(year)}.")
        return cls(year, number)

    @classmethod
    def at(cls, seconds: float) -> Self:
        """The week of a time in seconds since the epoch."""
        date = datetime.fromtimestamp(seconds, UTC).isocalendar()
        return cls(date.year, date.week)

    def __str__(self) -> str:
        return f"{self.year}-W{self.number:02}"

    @property
    def monday(self) -> date:
        return date.fromisocalendar(self.year, self.number, 1)

    @property
    def sunday(self) -> date:
        return self.monday + timedelta(days=6)

    @property
    def start(self) -> float:
        """Its first moment, in seconds since the epoch."""
        return datetime(self.monday.year, self.monday.month, self.monday.day, tzinfo=UTC).timestamp()

    @property
    def end(self) -> float:
        """The first moment of the next week."""
        return self.start + 7 * 86_400.0

    @property
    def previous(self) -> "Week":
        return Week.at(self.start - 1)

    @property
    def next(self) -> "Week":
        return Week.at(self.end)


def weeks_in(year: int) -> int:
    """52 or 53: the last week of an ISO year is that of 28 December."""
    return date(year, 12, 28).isocalendar().week


TIMES = tuple(metric for metric in Metric if metric.unit == "us")


def time_at_stake(median: float | None, ratio: float | None) -> float | None:
    """How much longer one call takes than at its baseline: `median` minus `median / ratio`; below 0 it saves time.

    The ratio is paired, so that the difference does not include what separates two sessions.
    """
    return None if median is None or not ratio else median - median / ratio


@dataclass(frozen=True, order=True)
class MovedSeries:
    """A case of a provider on a device.  Targets are by name."""

    target: str
    device: str
    provider: str
    case: str  # with its metric

    @property
    def metric(self) -> Metric:
        return metric_of(self.case)


@dataclass(frozen=True)
class ConfirmedChange:
    """A confirmed change of one series at one revision, against its parent."""

    series: MovedSeries
    run_id: int
    revision: str
    subject: str
    ratio: float
    median: float | None  # in the unit of the metric
    why: str | None = None  # its cause, in words

    @property
    def stake_us(self) -> float:
        """How much longer one call takes than before this revision; 0 where nothing was timed."""
        return (time_at_stake(self.median, self.ratio) or 0.0) if self.series.metric in TIMES else 0.0


def movers(changes: Iterable[ConfirmedChange]) -> list[ConfirmedChange]:
    """Those that cost or save time, the most first.  A series that several revisions moved has one for each."""
    timed = [change for change in changes if change.stake_us]
    return sorted(timed, key=lambda change: (-abs(change.stake_us), change.series, change.run_id))


@dataclass(frozen=True)
class Total:
    """What one pass over the cases of a target takes longer on a device, in one metric: each case is called once.

    A case counts once for each revision that moved it.
    """

    target: str
    device: str
    metric: Metric
    slower_cases: int
    slower_us: float
    faster_cases: int
    faster_us: float  # below 0

    @property
    def net_us(self) -> float:
        return self.slower_us + self.faster_us


def totals(movers: Iterable[ConfirmedChange]) -> list[Total]:
    """Sum changes by target, device and metric."""
    groups = defaultdict[tuple[str, str, Metric], list[float]](list)
    for change in movers:
        groups[change.series.target, change.series.device, change.series.metric].append(change.stake_us)
    order = list(Metric)
    return [
        _total(target, device, metric, groups[target, device, metric])
        for target, device, metric in sorted(groups, key=lambda key: (key[0], key[1], order.index(key[2])))
    ]


def _total(target: str, device: str, metric: Metric, stakes: list[float]) -> Total:
    slower = [stake for stake in stakes if stake > 0]
    faster = [stake for stake in stakes if stake < 0]
    return Total(target, device, metric, len(slower), sum(slower), len(faster), sum(faster))
