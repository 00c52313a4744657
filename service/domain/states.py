"""The states and kinds of everything that is stored, as plain values."""

import enum
from collections.abc import Iterable, Sequence
from typing import Literal

# Exit codes of commands that report verdicts, other than 0.
REGRESSED, NOT_MEASURED, UNDECIDED, UNFIT = 1, 2, 3, 125
CODES = (REGRESSED, UNFIT, NOT_MEASURED, UNDECIDED, 0)  # of several devices the first that occurs counts


def worst_exit_code(codes: Iterable[int]) -> int:
    """Of several devices: a regression first, then what cannot be measured, what was not, and what is undecided."""
    found = set(codes)
    return next((code for code in CODES if code in found), 0)


class TargetKind(enum.StrEnum):
    GIT = "git"
    PACKAGE = "package"


class ForgeKind(enum.StrEnum):
    GITHUB = "github"
    GITLAB = "gitlab"


class Origin(enum.StrEnum):
    """The origin of a report of new revisions."""

    PUSH = "push"
    PULL_REQUEST = "pull_request"
    MERGE_GROUP = "merge_group"  # of a merge queue
    POLL = "poll"
    MANUAL = "manual"
    BACKFILL = "backfill"


class RunState(enum.StrEnum):
    HELD = "held"  # a stranger's revision, waiting for approval of exactly this commit
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"  # no path that matters changed
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"


OPEN_STATES = (RunState.HELD, RunState.QUEUED, RunState.LEASED)


class Priority(enum.IntEnum):
    """Smaller goes first."""

    PULL_REQUEST = 10
    MAINLINE = 20
    BACKFILL = 30
    BISECTION = 40
    CALIBRATION = 50


class Equal(enum.StrEnum):
    """What two copies of equal code share: the build, or only the source."""

    COPY = "copy"  # two processes of one build
    BUILD = "build"  # two builds of one source: other path, other hash seed, cold caches


class Purpose(enum.StrEnum):
    """The purpose of a run.  Only `watch` runs make series, regressions and gaps, and are reported."""

    WATCH = "watch"
    BISECTION = "bisection"  # one step of a search: a revision against the good end, at the cases that moved
    CALIBRATION = "calibration"  # a revision against itself: whatever is found is false


class CellState(enum.StrEnum):
    """The result of one contender at one case."""

    MEASURED = "measured"
    INVALID = "invalid"  # a wrong result: never fast
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


class BaselineKind(enum.StrEnum):
    """Kinds of baselines; docs/baselines.md explains the question that each answers."""

    PARENT = "parent"
    WRONG_PARENT = "wrong_parent"  # the parent where it or the head is not exact enough: a comparison of times alone
    LAST_GOOD = "last_good"  # the last revision at which the case was not slow
    PINNED = "pinned"  # the last release, or what the recipe pins
    SOTA = "sota"
    BEST = "best"  # the fastest of SOTA and its rivals, case by case


class RegressionState(enum.StrEnum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"  # accepted with a reason: its revision may be a baseline again
    BISECTING = "bisecting"
    BLAMED = "blamed"  # a bisection, or the pair itself, named the revision
    FIXED = "fixed"  # confirmed by measurement
    DISMISSED = "dismissed"  # it is none, with a reason
    REMOVED = "removed"  # the recipe does not name its case or its provider any more


# Open states: the case is slower than it was, and this is neither fixed nor dismissed.
OPEN_REGRESSIONS = (
    RegressionState.OPEN,
    RegressionState.ACKNOWLEDGED,
    RegressionState.BISECTING,
    RegressionState.BLAMED,
)
CLOSED_REGRESSIONS = (RegressionState.FIXED, RegressionState.DISMISSED, RegressionState.REMOVED)


class FoundBy(enum.StrEnum):
    """Which comparison found a regression."""

    PAIR = "pair"  # the revision against its parent, in one session
    PINNED = "pinned"  # against the pinned baseline: a leak of steps that were too small by themselves
    HISTORY = "history"  # a change point of the series, confirmed by a bisection


class SearchState(enum.StrEnum):
    """The state of a bisection."""

    VERIFYING = "verifying"  # is the bad end slower than the good one at all?
    SEARCHING = "searching"
    PROVING = "proving"  # the culprit against its own parent
    FOUND = "found"
    RANGE = "range"  # several revisions are left that could not be distinguished
    NOT_REPRODUCED = "not reproduced"
    STOPPED = "stopped"  # by a person, or because the budget was spent


OPEN_SEARCHES = (SearchState.VERIFYING, SearchState.SEARCHING, SearchState.PROVING)


class PointState(enum.StrEnum):
    """The state of a change point of a series."""

    OPEN = "open"
    CHECKING = "checking"  # a bisection of its two sides was requested
    CONFIRMED = "confirmed"
    CLOSED = "closed"  # explained or not repeated: it does not reopen automatically


class PointReason(enum.StrEnum):
    """Why a change point is in its state.  Its arguments are stored with it."""

    # Confirmed.
    REGRESSION = "regression"  # regression; bisection: that confirmed it, if one did
    IMPROVEMENT = "improvement"  # run: whose pair was faster
    HELD = "held"  # revisions: for more than so many it stayed faster
    # Closed.
    BASELINE = "baseline"  # ratio: SOTA's
    SAME_CODE = "same_code"
    PART = "part"  # leak: the change point of the leak
    CONTRADICTED = "contradicted"  # ratio, low, high, p, revisions: what its place shows; reported: its ratio
    LOST = "lost"  # next to another change, so that no values can contradict it
    NOT_REPEATED = "not_repeated"  # bisection, sessions
    DISMISSED = "dismissed"  # regression; why: the words of the person who dismissed it, if there are any
    MACHINE = "machine"  # targets: the others that changed on the same machine at the same time
    REWRITTEN = "rewritten"  # the mainline does not have its revision any more
    # Checking.
    BISECTION = "bisection"  # bisection
    # Open: no bisection is started for it any more.
    INCONCLUSIVE = "inconclusive"  # bisection; said: how that ended
    NOT_BISECTABLE = "not_bisectable"  # said: why it could not be started
    # Any: of a version that stored sentences.  Its `text` may be the argument of another code, too.
    TEXT = "text"  # text


RETRACTED = (PointReason.CONTRADICTED, PointReason.LOST, PointReason.NOT_REPEATED)


class OutboxState(enum.StrEnum):
    WAITING = "waiting"
    SENT = "sent"
    PREVIEW = "preview"  # the target has no forge: kept for display
    FAILED = "failed"


class NoticeState(enum.StrEnum):
    """The state of an event that a subscription is notified of."""

    WAITING = "waiting"
    SENT = "sent"  # it is in a message
    CANCELLED = "cancelled"  # it was over before it was sent, or its reader may not know of it any more
    DROPPED = "dropped"  # too old; a message counts it


class FactsState(enum.StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"  # the revision does not build, or compiles at no case
    UNAVAILABLE = "unavailable"  # what it needs is not on the machine that took it
    SKIPPED = "skipped"  # there is no GPU among the recipe's devices


Rounds = Sequence[float | None]  # in the unit of the metric, one a round; None where the round was lost


class MovedBy(enum.StrEnum):
    """What explains that compiled code or its configuration differs between two sessions, or within one."""

    COMMIT = "commit"
    STACK = "stack"
    NOTHING = "nothing"  # the same revision with the same stack: an autotuner chose again


class Outcome(enum.StrEnum):
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    STEADY = "steady"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"  # the revision computes something wrong, or not the same thing twice
    FAILED = "failed"  # it could not be measured
    NEW = "new"  # there is nothing to compare with
    REMOVED = "removed"  # measured on the mainline before, but no longer in the recipe


class GateKind(enum.StrEnum):
    """Kinds of findings for which the gate has an action."""

    REGRESSION = "regression"
    BEHIND_SOTA = "behind-sota"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    FAILED = "failed"
    UNREPEATABLE = "unrepeatable"
    SLOWER_THAN_WRONG = "slower-than-wrong"  # right, and slower than its parent, which computes something else
    NEW_FAR_BEHIND = "new-far-behind"  # nothing to compare with but SOTA, and far behind that


class GateAction(enum.StrEnum):
    FAIL = "fail"  # not to be merged
    WARN = "warn"  # never green, and no failure
    PASS = "pass"  # noqa: S105


class GateState(enum.StrEnum):
    PASS = "pass"  # noqa: S105
    WARN = "warn"
    UNDECIDED = "undecided"
    FAIL = "fail"


class Repeatability(enum.StrEnum):
    """Whether the head lost or gained repeatability: the same bits for the same inputs."""

    LOST = "lost"
    GAINED = "gained"


class ComparisonMethod(enum.StrEnum):
    """How the two revisions were compared at a case."""

    PAIRED = "paired"  # in turns, in one session
    BASELINE = "baseline"  # each in a session with the same third revision
    SOTA = "sota"  # each in a session with the same SOTA provider
    CHAIN = "chain"  # through the sessions of the revisions between them
    UNPAIRED = "unpaired"  # two medians of different sessions, without a ratio


class Ending(enum.StrEnum):
    """How a bisection ended; finer than its states."""

    PROVED = "proved"
    UNTESTED = "untested"  # an end cannot be measured
    STEADY = "steady"  # the bad end is not slower
    UNDECIDED = "undecided"  # whether the bad end is slower stayed open
    ONCE = "once"  # the bad end was slow in one session, and not in the next
    UNPROVED = "unproved"  # one revision is left, and its proof was undecided
    SKIPPED = "skipped"  # revisions between the last good and the first bad one could not be tested
    CONTRADICTED = "contradicted"  # a good one after a bad one, repeatedly
    SMALL_STEPS = "small steps"  # no revision is slower than its parent: the slow-down came gradually
    SPENT = "spent"  # of the budget

    @property
    def state(self) -> SearchState:
        match self:
            case Ending.PROVED:
                return SearchState.FOUND
            case Ending.UNTESTED | Ending.STEADY | Ending.UNDECIDED | Ending.ONCE:
                return SearchState.NOT_REPRODUCED
            case Ending.SPENT:
                return SearchState.STOPPED
            case _:
                return SearchState.RANGE


class ActorKind(enum.StrEnum):
    ANONYMOUS = "anonymous"
    KEY = "key"
    PERSON = "person"
    LOCAL = "local"  # a command on the machine that holds the database
    SERVICE = "service"  # kernelwatch itself


class Better(enum.StrEnum):
    """Which values of a series from elsewhere are better."""

    SMALLER = "smaller"
    LARGER = "larger"


class Missing(enum.StrEnum):
    """Why a measurement from elsewhere has no number."""

    NULL = "null"
    NOT_A_NUMBER = "not_a_number"
    BELOW_CLOCK = "below_clock"  # a time of 0
    NEGATIVE = "negative"
    OUT_OF_MEMORY = "oom"
    FAILED = "failed"


Direction = Literal["slower", "faster", "same", "unknown"]
