"""What the ledger knows of a week, as values.  Times are seconds since the epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwatch.documents.weekly import WeeklyFailureItem, WeeklyMeasuredItem, WeeklyReleaseItem
from service.domain.regressions.lifecycle import Action
from service.domain.states import RegressionState
from service.domain.verdicts.calibration import Rate
from service.domain.weekly.weeks import ConfirmedChange, MovedSeries, Week
from service.reports.views import Drift


@dataclass(frozen=True)
class RegressionFact:
    """A regression, with its state at the end of the week; its assignee is today's."""

    id: int
    incident_id: int | None
    series: MovedSeries
    ratio: float
    median: float | None  # of the run that showed it
    state: RegressionState
    opened_at: float
    assignee: str | None
    due_at: float | None
    cause: str | None
    run_id: int
    revision: str
    subject: str


@dataclass(frozen=True)
class EventFact:
    """An event of a regression in the week."""

    regression_id: int
    at: float
    who: str
    what: Action
    state: RegressionState  # after it
    why: str | None
    revision: str | None  # of the run that showed it


@dataclass(frozen=True)
class GapFact:
    """A case that fell behind SOTA, or is no longer behind."""

    series: MovedSeries
    at: float
    behind: bool
    ratio: float
    ratio_before: float | None
    own: float
    sota: float
    run_id: int
    revision: str
    subject: str


@dataclass(frozen=True)
class WeekFacts:
    """A week of one target or of all that the reader may see, on one device or on all."""

    week: Week
    now: float
    target: str | None
    device: str | None
    measured: WeeklyMeasuredItem
    changes: Sequence[ConfirmedChange]
    regressions: Mapping[int, RegressionFact]
    events: Sequence[EventFact]  # the oldest first
    gaps: Sequence[GapFact]
    failed: Sequence[WeeklyFailureItem]  # the newest first
    releases: Sequence[WeeklyReleaseItem]
    drifts: Sequence[Drift]  # the newest first
    drift_count: int  # of all, also where `drifts` has the newest alone
    equal_code: Rate

    @property
    def finished(self) -> bool:
        return self.now >= self.week.end
