"""The states and kinds of everything that is stored, as plain values."""

import enum
from collections.abc import Iterable, Sequence

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
    CLOSED = "closed"  # explained or not repeated: it does not reopen by itself


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
