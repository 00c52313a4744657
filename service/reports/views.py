"""Values that the ledger returns, and that pages, API and command line render."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kernels.cases import Metric
from service.db.models import (
    Bisection,
    ChangePoint,
    Gap,
    Incident,
    RegressionEvent,
    RegressionRow,
    Revision,
    Run,
    Subscription,
)
from service.domain.bisection.search import Answered, BisectionStep, Progress
from service.domain.metrics import metric_of
from service.domain.states import OPEN_SEARCHES, Equal, MovedBy
from service.domain.verdicts.calibration import NONE, Rate
from service.domain.verdicts.replay import Replayed, Sum
from service.reports.bisection_text import Names


@dataclass(frozen=True)
class RegressionView:
    """A regression with the names of its target and its runs."""

    row: RegressionRow
    target: str
    run: Run
    fixed_by: Run | None


@dataclass(frozen=True)
class IncidentView:
    """An incident with its regressions, the largest first."""

    row: Incident
    target: str
    regressions: tuple[RegressionRow, ...]


@dataclass(frozen=True)
class RegressionHistory:
    """A regression with its events, its incident and its bisections."""

    regressed: RegressionView
    events: tuple[RegressionEvent, ...]  # the oldest first
    incident: Incident | None
    siblings: tuple[RegressionRow, ...]  # of the incident, without this one
    bisections: tuple[Bisection, ...]  # the newest first


@dataclass(frozen=True)
class SubscriptionView:
    """A subscription with what waits for it, and when it got its last message."""

    row: Subscription
    target: str | None
    waiting: int
    sent_at: float | None


@dataclass(frozen=True)
class BisectionView:
    """A bisection with its progress, its steps and their runs, and its result in words."""

    row: Bisection
    target: str
    progress: Progress | None  # None until the line was read from the source
    steps: tuple["StepView", ...]
    words: str
    pending: Run | None = None  # the step that is queued or measured now

    @property
    def names(self) -> Names:
        """The names for a command that continues the search."""
        return Names(self.target, self.row.device)

    @property
    def done(self) -> bool:
        return self.row.state not in OPEN_SEARCHES


@dataclass(frozen=True)
class StepView:
    """A finished step and its run; it has no answer if the search no longer counts it."""

    run: Run
    step: BisectionStep
    answered: Answered | None


@dataclass(frozen=True)
class ReplayedCase:
    """A case that this policy decides differently, or that the stored trials cannot decide."""

    run_id: int
    target: str
    revision: str  # short
    device: str
    pull: int | None
    replayed: Replayed


@dataclass
class Replay:
    """The result of a replay.  Versions are by device, sums by device, provider and metric."""

    policy_versions: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    since: float | None = None  # when the first run ended
    until: float | None = None
    sums: dict[tuple[str, str, Metric], Sum] = field(default_factory=dict)
    cases: list[ReplayedCase] = field(default_factory=list)
    equal_before: Rate = NONE  # of the nightly calibrations, as they were judged
    equal: Rate = NONE  # and as this policy would have

    @property
    def whole(self) -> Sum:
        return sum(self.sums.values(), Sum())


@dataclass(frozen=True)
class GapView:
    """A case that runs behind SOTA on the mainline."""

    gap: Gap
    target: str
    since: Revision | None


@dataclass(frozen=True)
class Drift:
    """A configuration that changed, with the session that shows it and the one before."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    run_id: int
    earlier_run_id: int
    revision: str  # that of `earlier_run_id`: both sessions measured it, or it changed the configuration
    at: float
    before: str
    now: str
    by: MovedBy


class Point(NamedTuple):
    """One mainline revision of a series; a tuple, because a page reads a thousand."""

    run_id: int
    revision: str
    subject: str
    ordinal: int
    committed_at: float
    state: str
    median: float | None  # in the unit of the case's metric
    gb_s: float | None
    sota_median: float | None
    outcome: str | None
    ratio: float | None
    low: float | None
    high: float | None
    stack_id: int | None
    author: str = ""
    stack_changes: tuple[str, ...] = ()  # since the point before: "torch 2.11.0 → 2.13.0"


@dataclass(frozen=True)
class ChangePointView:
    """A change point with the revisions on both its sides."""

    row: ChangePoint
    target: str
    revision: Revision  # the first after the step
    before: Revision


@dataclass(frozen=True)
class CaseRate:
    """How often equal code differed at one case of one target on one worker; `nominal` is how often it may."""

    target: str
    worker: str
    device: str
    provider: str
    case: str
    metric: Metric
    rate: Rate
    nominal: float
    last_at: float
    kind: Equal


@dataclass(frozen=True)
class MetricRate:
    """The rate over all cases of a metric on one worker.  Cases of a session share their machine: the interval does not
    know that, and is narrower than it should be."""

    worker: str
    device: str
    metric: Metric
    rate: Rate
    nominal: float
    cases: int
    kind: Equal


@dataclass(frozen=True, order=True)
class MeasuredSeries:
    """A case that a provider of the target was measured at, on one device."""

    device: str
    provider: str
    case: str  # as it is printed
    last_run_id: int

    @property
    def metric(self) -> Metric:
        return metric_of(self.case)


@dataclass(frozen=True)
class MeasuredCase:
    """A case without its metric."""

    case: str
    devices: tuple[str, ...]
    providers: tuple[str, ...]
    metrics: tuple[Metric, ...]
