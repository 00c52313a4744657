"""Why a verdict has its outcome: a code with its arguments.  `service.reports.words` makes the sentences.

Codes and arguments are stored with the verdict.  A code keeps its meaning for ever; a new meaning gets a new code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ReasonCode(StrEnum):
    """Each with its arguments.  Shares and sizes are relative: 0.02 is 2 %; a ratio is head over baseline."""

    # There was nothing to compare.
    NO_BASELINE = "no_baseline"  # note: what the session says about that, or nothing
    BASELINE_UNFIT = "baseline_unfit"  # state, said: by its own process, or nothing; baseline, nothing for the parent
    BASELINE_ABSENT = "baseline_absent"  # baseline
    NO_TIMES = "no_times"  # baseline, or nothing where none of several has times
    REMOVED = "removed"  # last: the revision that was measured last, short
    # The head has no times.
    INVALID = "invalid"  # said: by its own process
    FAILED = "failed"  # said
    UNSUPPORTED = "unsupported"  # said
    # Decided.
    WITHIN = "within"  # smallest_change: the smallest relevant change
    NOT_REPEATED = "not_repeated"  # smallest_change, trials: of the confirmation
    EQUAL_CODE = "equal_code"  # trials: too few or too noisy for an answer, and the compiled code is the same
    CONFIRMED = "confirmed"  # ratio, trials, control: whose it is where it is another provider's, or False for none
    # Undecided.
    MACHINE = "machine"
    CONTROL_OFF = "control_off"  # size: of the control's difference, smallest_change
    COPIES_DIFFER = "copies_differ"  # spread: of the copies, or nothing; smallest
    COPIES_DIFFERED = "copies_differed"  # the same of earlier sessions
    BUILDS_DIFFERED = "builds_differed"  # the same of two builds of one source in earlier calibrations
    SESSION_ENDED = "session_ended"  # suspected
    ROUNDS_LOST = "rounds_lost"  # suspected, lost, trials
    TOO_WIDE = "too_wide"  # trials
    UNCONFIRMED = "unconfirmed"
    SAME_CODE = "same_code"
    QUARANTINED = "quarantined"  # why
    # Of counts, against any baseline.
    COUNTED = "counted"  # now, before, smallest: the smallest change that matters; baseline, nothing for the parent
    COUNTS_VARY = "counts_vary"  # now, before: the counts of the trials; baseline, nothing for the parent
    # Against an earlier revision other than the parent: `baseline` names it.
    CHANGED = "changed"  # ratio, baseline, limit
    NOT_SLOWER = "not_slower"  # limit, baseline
    UNDECIDED = "undecided"  # limit, baseline
    # Against any baseline other than the parent.
    AS_BEFORE = "as_before"  # run: its number, which compared the same code, baseline
    # Against other people's code.
    TAKES = "takes"  # ratio, baseline, faster: its interval is below 1
    WITHIN_LIMIT = "within_limit"  # limit, baseline
    NOT_CLEARLY_BEHIND = "not_clearly_behind"  # baseline
    PERHAPS_BEHIND = "perhaps_behind"  # baseline, low, high: ends of the interval of the ratio
    BEHIND_SINCE = "behind_since"  # baseline, since, first, then: the ratio before, or nothing, now, changed: the gap
    BEHIND_OPEN = "behind_open"  # baseline, since, then, at: the revision of then, now


@dataclass(frozen=True)
class Reason:
    """A code with its arguments, which are plain values: they are stored as JSON."""

    code: ReasonCode
    args: Mapping[str, Any] = field(default_factory=dict)


def reason(code: ReasonCode, **args: Any) -> Reason:
    return Reason(code, args)


@dataclass(frozen=True)
class Quarantined:
    """Why a case is quarantined, and by whom: a person, kernelwatch itself, or the recipe."""

    by: str
    why: str


RECIPE = "recipe"  # `Quarantined.by` where the recipe quarantines a case
