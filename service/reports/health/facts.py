"""What the database knows of the present state: the ledger returns it, the health page puts it in words."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from service.db.models import Target, Worker
from service.domain.health.overview import DeviceResult, RunKind, StripRevision, newest_means
from service.domain.states import FoundBy, OutboxState, RegressionState, RunState
from service.domain.verdicts.totals import SotaMean


class RecentRun(NamedTuple):
    """The newest run of a revision on a device, with its numbers once it was measured."""

    run_id: int
    device: str
    sha: str
    state: str
    at: float | None  # when it was judged
    stack_id: int | None
    result: DeviceResult
    cases: int = 0
    broken: int = 0  # wrong or failed cases
    behind: int = 0
    sota: str | None = None


@dataclass(frozen=True)
class EarlierRun:
    """The run that was the newest of its target and device at an earlier time."""

    stack_id: int | None
    behind: int
    mean: SotaMean | None


@dataclass(frozen=True)
class TargetLately:
    """A target with its last revisions, oldest first, and their runs in the same order."""

    row: Target
    revisions: tuple[StripRevision, ...] = ()
    runs: tuple[RecentRun, ...] = ()
    a_week_ago: Mapping[str, EarlierRun] = field(default_factory=dict)  # by device
    a_day_ago: Mapping[str, EarlierRun] = field(default_factory=dict)

    @cached_property
    def newest(self) -> dict[str, RecentRun]:
        """The newest measured run of each device."""
        return {run.device: run for run in self.runs if run.state == RunState.DONE}

    @cached_property
    def failed(self) -> list[RecentRun]:
        """The runs that failed where nothing newer was measured on their device."""
        ended = {run.device: run for run in self.runs if run.state in (RunState.DONE, RunState.FAILED)}
        return [run for run in ended.values() if run.state == RunState.FAILED]

    @cached_property
    def means(self) -> dict[str, SotaMean]:
        """The newest mean against SOTA of each device."""
        return newest_means(self.revisions)


@dataclass(frozen=True)
class WorstCase:
    """The largest regression of an incident."""

    regression_id: int
    case: str
    ratio: float
    cause: str | None
    accepted: bool = False
    run_id: int = 0  # that found it


@dataclass
class OpenIncident:
    """The open regressions of one target that one revision caused, on all devices."""

    target_id: int
    revision_id: int | None  # None where they belong to no incident; they are those of a run then
    run_id: int | None
    sample: bool = False
    devices: set[str] = field(default_factory=set)
    incidents: set[int] = field(default_factory=set)
    states: Counter[RegressionState] = field(default_factory=Counter)
    found_by: set[FoundBy] = field(default_factory=set)
    severity: float = 0.0  # by how much its cases are slower, added up; without the accepted ones
    low: float = float("inf")
    high: float = 0.0
    opened_at: float = float("inf")
    assigned: int = 0
    assignees: set[str] = field(default_factory=set)
    due_at: float | None = None
    stake_us: float | None = None  # what they cost together, of those that are compared with SOTA
    sha: str = ""
    subject: str = ""
    worst: WorstCase | None = None

    @property
    def count(self) -> int:
        """The number of cases that somebody must look at: those that are not accepted."""
        return self.states.total() - self.accepted

    @property
    def accepted(self) -> int:
        return self.states[RegressionState.ACKNOWLEDGED]


@dataclass(frozen=True)
class FailedHead:
    """A run of the mainline that failed, with nothing newer measured on its device."""

    run_id: int
    target: str
    device: str
    sha: str
    author: str
    reason: str
    finished_at: float | None
    in_build: bool  # with a log: its build failed


@dataclass(frozen=True)
class GivenUp:
    """Runs of pull requests that ended without a result, through no fault of a build."""

    count: int
    last_run_id: int
    last_at: float


@dataclass(frozen=True)
class UnsentMessages:
    """Messages of one target that wait for too long, or that were given up."""

    target_id: int
    state: OutboxState
    count: int
    since: float
    error: str | None
    run_id: int | None


@dataclass(frozen=True)
class LeasedRun:
    """A run that is being measured."""

    run_id: int
    target: str
    device: str
    worker: str | None
    stage: str | None
    kind: RunKind
    since: float


@dataclass(frozen=True)
class WorkerState:
    """A worker, and the run that it measures unless the reader may not know of it."""

    row: Worker
    online: bool
    run: LeasedRun | None

    def ahead_s(self, now: float) -> float:
        """By how much its last report is in the future: the clock of the database was set back since, by as much."""
        return 0.0 if self.online else max(0.0, self.row.seen_at - now)

    @property
    def takes_runs(self) -> bool:
        return self.online and self.row.paused_at is None


@dataclass
class DeviceQueue:
    """What waits for the workers of a device."""

    device: str
    queued: int = 0
    untrusted: int = 0  # of the queued ones: runs that no worker without a sandbox may take
    oldest_at: float = float("inf")
    waiting: list[tuple[RunKind, int]] = field(default_factory=list)  # of each kind so many
    current: list[tuple[RunKind, float]] = field(default_factory=list)  # since so many seconds
    workers: list[WorkerState] = field(default_factory=list)
    ends_in_s: float | None = None

    @property
    def taken(self) -> bool:
        """Whether some worker may take what waits."""
        able = [one for one in self.workers if one.takes_runs]
        return bool(able) and (not self.untrusted or any(one.row.sandbox is None for one in able))


@dataclass(frozen=True)
class HeldRuns:
    """Runs of a target that wait for approval."""

    target: str
    count: int
    first_run_id: int
    since: float
    pulls: int


@dataclass(frozen=True)
class Queues:
    """All that waits, by device."""

    devices: tuple[DeviceQueue, ...]
    held: tuple[HeldRuns, ...]  # those that wait longest first


@dataclass(frozen=True)
class EqualCodeSum:
    """Comparisons of equal code of a time, or their sum."""

    comparisons: int = 0
    alarmed: int = 0
    squares: float = 0.0

    @property
    def spread(self) -> float | None:
        """The root mean square of the logarithms of the ratios: by how much equal code differs."""
        return math.sqrt(self.squares / self.comparisons) if self.comparisons else None

    def __add__(self, other: "EqualCodeSum") -> "EqualCodeSum":
        return EqualCodeSum(
            self.comparisons + other.comparisons, self.alarmed + other.alarmed, self.squares + other.squares
        )


@dataclass(frozen=True)
class FixedCases:
    """Regressions of a target that one run showed to be fixed."""

    target_id: int
    devices: tuple[str, ...]
    count: int
    at: float
    run_id: int
    sha: str


@dataclass(frozen=True)
class DriftedCases:
    """Configurations that one session chose differently than the session before, without a commit."""

    target_id: int
    device: str
    count: int
    at: float


@dataclass(frozen=True)
class StackChange:
    """Another stack than a day ago, on a device."""

    device: str
    changes: tuple[str, ...]
    at: float
    run_id: int


@dataclass(frozen=True)
class DeviceReading:
    """What a device reported last."""

    temperature_c: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class WorkerLately:
    """What a worker did in the last days: runs that ended, those that failed, and its last measured run."""

    runs: int
    failed: int
    last_run_id: int | None
    stack: Mapping[str, object]
    reading: DeviceReading
    equal_code: EqualCodeSum


@dataclass(frozen=True)
class ServiceState:
    """When control polls next, messages that wait or were given up, and webhooks."""

    poll_at: float | None  # None where nothing is polled
    unsent: Sequence[UnsentMessages]
    oldest_delivery: float | None  # that has waited for too long
    last_delivery: float | None


@dataclass(frozen=True)
class HealthFacts:
    """What the database knows of the present state, as the reader may see it."""

    now: float
    since: float  # of what counts as news
    targets: Sequence[TargetLately]
    incidents: Sequence[OpenIncident]
    failed: Sequence[FailedHead]
    given_up: GivenUp | None
    unsent: Sequence[UnsentMessages]
    oldest_delivery: float | None
    quarantined: tuple[int, int]
    queues: Queues
    nights: Sequence[EqualCodeSum]
    fixed: Sequence[FixedCases]
    drifted: Sequence[DriftedCases]
    stacks: Sequence[StackChange]

    @cached_property
    def of_sample(self) -> "HealthFacts":
        """The targets and incidents of the sample, on which nobody has to act; what is not of a target is left out."""
        return self._of(sample=True)

    @cached_property
    def watched(self) -> "HealthFacts":
        """Without the sample."""
        return self._of(sample=False)

    def _of(self, *, sample: bool) -> "HealthFacts":
        targets = [one for one in self.targets if one.row.is_sample == sample]
        ids = {one.row.id for one in targets}
        return replace(self, targets=targets, incidents=[one for one in self.incidents if one.target_id in ids])
