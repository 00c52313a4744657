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
    """What one pass over the cases of a target takes longer than a week before: each case is called once.

    It sums `slower` and `faster`, so that a case counts once for each revision that moved it.
    """

    target: str
    device: str
    metric: str
    slower_cases: int
    slower_us: float
    faster_cases: int
    faster_us: float = Field(description="Below 0.")
    net_us: float


class WeeklyMoverItem(Document):
    """Cases of a metric that one revision made slower, or faster, by confirmed changes against its parent."""

    target: str
    device: str
    metric: str
    cases: int
    stake_us: float = Field(
        description="Time at stake: how much longer one call of each case takes than before this revision, in us; "
        "below 0 it is faster."
    )
    provider: str = Field(description="Of the case with the most time at stake, as are the next three.")
    case: str
    case_stake_us: float
    ratio: float = Field(description="Of that case, by this revision alone; above 1 is slower.")
    run_id: int
    revision: str
    subject: str
    cause: str | None


class WeeklyDecisionItem(Document):
    """How cases of an incident ended in the week, for one reason."""

    state: RegressionState = Field(description="`fixed`, `dismissed` or `acknowledged`.")
    cases: int
    at: Moment = Field(description="Of the last of them.")
    who: str | None = Field(description="Who dismissed or accepted them.")
    reason: str | None = Field(description="Why they were dismissed or accepted.")
    revision: str | None = Field(description="The revision that fixed them.")


class WeeklyRegressionItem(Document):
    """Regressions with one cause: an incident, or a regression without one.  Each is listed once."""

    incident_id: int | None
    regression_ids: list[int]
    target: str
    device: str
    cases: int = Field(description="Those that were opened or decided in the week, or that are open at its end.")
    opened: int = Field(description="Of its cases, in the week.")
    open: int = Field(description="Of its cases, at the end of the week, with those that were accepted.")
    decisions: list[WeeklyDecisionItem]
    case: str = Field(description="The one with the most time at stake.")
    ratio: float = Field(description="Of that case, as it was opened.")
    stake_us: Number = Field(description=_STAKE)
    state: RegressionState = Field(description="At the end of the week, of the case that needs a person first.")
    revision: str = Field(description="Of the run that showed it.")
    subject: str
    run_id: int
    opened_at: Moment
    cause: str | None
    assignee: str | None = Field(description="Today's.")
    due_at: Moment | None


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

    slower: int = Field(description="A case counts once for each revision that made it slower.")
    faster: int = Field(description="A case counts once for each revision that made it faster.")
    regressions: int = Field(description="In the list of regressions.")
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
    regressions: list[WeeklyRegressionItem] = Field(description="Those of which something happened come first.")
    gaps_opened: list[WeeklyGapItem]
    gaps_closed: list[WeeklyGapItem]
    failed: list[WeeklyFailureItem]
    releases: list[WeeklyReleaseItem]
    drifts: list[WeeklyDriftItem] = Field(description="The newest first.")
    equal_code: WeeklyEqualCodeItem
    false_alarms: WeeklyDismissedItem
