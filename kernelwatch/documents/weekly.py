"""The document of a week."""

from datetime import date

from pydantic import Field

from .base import Document, Moment, Number, RegressionState

_STAKE = "Time at stake in us, summed over the cases: how much longer one call of each takes.  null without a time."


class WeeklyMeasuredItem(Document):
    """What was measured."""

    runs: int = Field(description="Finished runs, for any purpose.")
    revisions: int
    pulls: int = Field(description="Pull requests.")
    failed: int = Field(description="Runs that failed.")


class WeeklyTotalItem(Document):
    """What one pass over the cases of a target takes longer than a week before: each case is called once."""

    target: str
    device: str
    metric: str
    slower_cases: int
    slower_us: float
    faster_cases: int
    faster_us: float = Field(description="Below 0.")
    net_us: float


class WeeklyMoverItem(Document):
    """Cases of a metric that one revision moved: confirmed changes against the parent revisions of the week."""

    target: str
    device: str
    metric: str
    cases: int
    stake_us: float = Field(
        description="Time at stake: how much longer one call of each case takes, in us; below 0 it is faster."
    )
    provider: str = Field(description="Of the case with the most time at stake, as are the next three.")
    case: str
    case_stake_us: float
    ratio: float = Field(description="Of all its changes of the week, one after the other; above 1 is slower.")
    run_id: int
    revision: str = Field(description="Of its largest change, if several revisions moved it.")
    subject: str
    cause: str | None


class WeeklyRegressionItem(Document):
    """Regressions with one cause: an incident, or a regression without one."""

    incident_id: int | None
    regression_ids: list[int]
    target: str
    device: str
    cases: int
    case: str = Field(description="The one with the most time at stake.")
    ratio: float = Field(description="Of that case, as it was opened.")
    stake_us: Number = Field(description=_STAKE)
    state: RegressionState = Field(description="At the end of the week.")
    revision: str = Field(description="Of the run that showed it.")
    subject: str
    run_id: int
    opened_at: Moment
    cause: str | None
    assignee: str | None = Field(description="Today's.")
    due_at: Moment | None
    at: Moment | None = Field(description="When it was fixed, dismissed or accepted.")
    who: str | None = Field(description="Who dismissed or accepted it.")
    reason: str | None = Field(description="Why it was dismissed or accepted.")
    fixed_by: str | None = Field(description="The revision that fixed it.")


class WeeklyGapItem(Document):
    """A case that fell behind SOTA, or is no longer behind."""

    target: str
    device: str
    provider: str
    case: str
    at: Moment
    ratio: float = Field(description="Times SOTA then; above 1 is slower.")
    ratio_before: Number = Field(description="When the gap was last recorded before.")
    stake_us: Number = Field(description="How much longer one call takes than SOTA's, in us.")
    run_id: int
    revision: str
    subject: str


class WeeklyFailureItem(Document):
    """A run of the mainline that failed."""

    run_id: int
    target: str
    device: str
    revision: str
    subject: str
    at: Moment
    build: bool = Field(description="The build of the revision failed; else the run was given up.")
    reason: str | None


class WeeklyReleaseItem(Document):
    """A version of a package that was released in the week, or measured in it for the first time."""

    target: str
    version: str
    at: Moment = Field(description="When it was released.")
    run_id: int | None = Field(description="The run of the week that measured it first; null if there was none.")


class WeeklyDriftItem(Document):
    """A configuration that changed without a commit: two sessions of one revision and one stack chose differently."""

    target: str
    device: str
    provider: str
    case: str
    run_id: int = Field(description="The run whose session chose differently.")
    earlier_run_id: int = Field(description="The run before, of the same revision and stack.")
    revision: str = Field(description="That both runs measured.")
    at: Moment
    before: str
    now: str


class WeeklyEqualCodeItem(Document):
    """Comparisons of equal code: every alarm is a false one."""

    comparisons: int
    alarmed: int = Field(description="Would have been reported as a change.")
    rate: Number
    low: Number = Field(description="Of the exact 95 % interval of the rate.")
    high: Number
    summary: str


class WeeklyDismissedItem(Document):
    """Regressions that a person dismissed: each was a false alarm."""

    decided: int = Field(description="Regressions that were fixed, accepted or dismissed in the week.")
    dismissed: int
    rate: Number
    low: Number = Field(description="Of the exact 95 % interval of the rate.")
    high: Number
    summary: str


class WeeklyCountItem(Document):
    """Numbers of cases, not limited as the lists are."""

    slower: int
    faster: int
    opened: int
    fixed: int
    dismissed: int
    accepted: int
    open: int
    unassigned: int = Field(description="Of the open ones.")
    gaps_opened: int
    gaps_closed: int
    drifts: int = Field(description="Configurations that changed without a commit.")


class WeeklyDocument(Document):
    """What happened in a week.  Lists have at most 20 entries, the most time at stake first."""

    week: str = Field(examples=["2026-W47"])
    first_day: date
    last_day: date
    finished: bool = Field(description="A week that is not finished goes on until Sunday, 24:00 UTC.")
    target: str | None
    device: str | None
    title: str = Field(examples=["Week 47 of 2026, norms on h200"])
    headline: str = Field(examples=["2 regressions opened, 1 fixed"])
    summary: str = Field(description="The days, what was measured, and whether the week is over.")
    counts: WeeklyCountItem
    measured: WeeklyMeasuredItem
    totals: list[WeeklyTotalItem]
    slower: list[WeeklyMoverItem]
    faster: list[WeeklyMoverItem]
    opened: list[WeeklyRegressionItem]
    fixed: list[WeeklyRegressionItem]
    dismissed: list[WeeklyRegressionItem]
    accepted: list[WeeklyRegressionItem]
    open: list[WeeklyRegressionItem] = Field(description="At the end of the week, with those that were accepted.")
    gaps_opened: list[WeeklyGapItem]
    gaps_closed: list[WeeklyGapItem]
    failed: list[WeeklyFailureItem]
    releases: list[WeeklyReleaseItem]
    drifts: list[WeeklyDriftItem] = Field(description="The newest first.")
    equal_code: WeeklyEqualCodeItem
    false_alarms: WeeklyDismissedItem
