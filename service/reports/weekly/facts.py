"""What the ledger knows of a week, as values.  Times are seconds since the epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.domain.regressions.lifecycle import Action
from service.domain.states import RegressionState
from service.domain.verdicts.calibration import NONE, Rate
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
class FailedRun:
    """A run of the mainline without a result."""

    run_id: int
    target: str
    device: str
    revision: str
    subject: str
    at: float
    build: bool  # the build of the revision failed; else the run was given up
    why: str | None


@dataclass(frozen=True)
class ReleaseFact:
    """A version of a package that was released in the week, or measured in it for the first time."""

    target: str
    version: str
    at: float
    run_id: int | None  # that measured it first, where it ended in the week


@dataclass(frozen=True)
class MeasuredRuns:
    """What was measured in the week, for any purpose."""

    runs: int = 0
    revisions: int = 0
    pulls: int = 0
    failed: int = 0


@dataclass(frozen=True)
class WeekFacts:
    """A week of one target or of all that the reader may see, on one device or on all."""

    week: Week
    now: float
    target: str | None = None
    device: str | None = None
    measured: MeasuredRuns = MeasuredRuns()
    changes: Sequence[ConfirmedChange] = ()
    regressions: Mapping[int, RegressionFact] = field(default_factory=dict)
    events: Sequence[EventFact] = ()  # the oldest first
    gaps: Sequence[GapFact] = ()
    failed: Sequence[FailedRun] = ()  # the newest first
    releases: Sequence[ReleaseFact] = ()
    drifts: Sequence[Drift] = ()  # the newest first
    drift_count: int = 0  # of all, also where `drifts` has the newest alone
    equal_code: Rate = NONE

    @property
    def finished(self) -> bool:
        return self.now >= self.week.end
