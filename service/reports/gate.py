"""The gate: whether a revision may be merged.  Pure: the end of its run, its cases and the policy in, one value out.

Exit code, check run, commit status, the first line of the comment, page and JSON all read this value, so that none of
them is greener than another.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from service.domain.policy.policy import Policy
from service.domain.states import (
    CODES,
    NOT_MEASURED,
    REGRESSED,
    UNDECIDED,
    UNFIT,
    GateAction,
    GateKind,
    GateState,
    Outcome,
    Purpose,
    Repeatability,
    RunState,
)
from service.reports.rows import Row

_COUNTED = (Outcome.REGRESSION, Outcome.INCONCLUSIVE, Outcome.INVALID, Outcome.FAILED)
_WEIGHTIEST = tuple(GateAction)
_MOST_SEVERE_FIRST = (
    GateKind.INVALID,
    GateKind.REGRESSION,
    GateKind.FAILED,
    GateKind.SLOWER_THAN_WRONG,
    GateKind.INCONCLUSIVE,
    GateKind.UNREPEATABLE,
    GateKind.NEW_FAR_BEHIND,
    GateKind.BEHIND_SOTA,
)
_BY_TIMES = (GateKind.REGRESSION, GateKind.INCONCLUSIVE, GateKind.SLOWER_THAN_WRONG)  # against the parent
_EXIT_CODES = {  # of those that fail the gate; of the others REGRESSED
    GateKind.INVALID: UNFIT,
    GateKind.FAILED: UNFIT,
    GateKind.INCONCLUSIVE: UNDECIDED,
}


@dataclass(frozen=True)
class GateReason:
    """So many cases for which the policy has this action; `cases` is 0 where the run compared nothing at all."""

    kind: GateKind
    action: GateAction
    cases: int
    known_before: bool = False  # the baseline has it already: it never fails
    is_open: bool = False  # behind SOTA, perhaps: the session could neither show nor exclude it

    @property
    def undecided(self) -> bool:
        """An open distance to SOTA counts where a shown one would fail, and is a warning where that would be one."""
        return self.kind is GateKind.INCONCLUSIVE or (self.is_open and self.action is GateAction.FAIL)

    @property
    def exit_code(self) -> int:
        """0 unless it fails the gate: a check that passes stands beside a job that passes."""
        if self.known_before or self.action is not GateAction.FAIL:
            return 0
        return UNDECIDED if self.is_open else _EXIT_CODES.get(self.kind, REGRESSED)


# A commit status has no neutral.  What lets a required check pass is a success: a status that stays pending holds up a
# merge for ever, and on GitLab the whole pipeline.
_COMMIT_STATUSES = {
    None: "pending",
    "success": "success",
    "neutral": "success",
    "skipped": "success",
    "failure": "failure",
    "action_required": "error",
    "cancelled": "error",
}


@dataclass(frozen=True)
class GateResult:
    """`check_status`, `conclusion` and `commit_status` are GitHub's words; only what has ended has a conclusion."""

    state: GateState
    exit_code: int
    conclusion: str | None
    check_status: str = "completed"
    reasons: tuple[GateReason, ...] = field(default=())  # without those that pass, the weightiest first

    @property
    def commit_status(self) -> str:
        return _COMMIT_STATUSES[self.conclusion]


_NOT_DONE = {
    RunState.QUEUED: GateResult(GateState.UNDECIDED, NOT_MEASURED, None, "queued"),
    RunState.LEASED: GateResult(GateState.UNDECIDED, NOT_MEASURED, None, "in_progress"),
    RunState.HELD: GateResult(GateState.UNDECIDED, NOT_MEASURED, "action_required"),
    RunState.SKIPPED: GateResult(GateState.PASS, 0, "skipped"),
    # These are never measured: the check does not pass, and there is nothing to wait for.
    RunState.SUPERSEDED: GateResult(GateState.UNDECIDED, NOT_MEASURED, "cancelled"),
    RunState.CANCELLED: GateResult(GateState.UNDECIDED, NOT_MEASURED, "cancelled"),
    # Infrastructure: no fault of the revision, and no pass.
    RunState.FAILED: GateResult(GateState.UNDECIDED, NOT_MEASURED, "action_required"),
}
_BUILD_FAILED = GateResult(GateState.FAIL, UNFIT, "failure")


def gate(
    state: RunState,
    rows: Sequence[Row],
    policy: Policy,
    *,
    build_failed: bool = False,
    purpose: Purpose,
    provisional: bool = False,
) -> GateResult:
    """The answer for one run.

    A build that failed always fails.  Of a calibration nothing counts: its code is equal on both sides.  What times of
    a `provisional` run show is at most a warning.
    """
    if state is not RunState.DONE:
        return _BUILD_FAILED if build_failed else _NOT_DONE[state]
    if purpose is Purpose.CALIBRATION:
        return GateResult(GateState.PASS, 0, "success")
    return _done(rows, _reasons(rows, policy, provisional=provisional))


def gate_of_case(row: Row, policy: Policy, purpose: Purpose, *, provisional: bool = False) -> GateState:
    """What a case of a run that is done does to its gate."""
    if purpose is Purpose.CALIBRATION:
        return GateState.PASS
    return _state(_weightiest_first(_of_row(row, policy, provisional=provisional)))


def _done(rows: Sequence[Row], reasons: Sequence[GateReason]) -> GateResult:
    if not reasons:
        # Measured for the first time: right, and without anything to be slower than.
        compared = any(row.outcome not in (Outcome.NEW, Outcome.REMOVED) and not row.quarantined for row in rows)
        return GateResult(GateState.PASS, 0, "success" if compared else "skipped")
    found = {one.exit_code for one in reasons}
    code = next(code for code in CODES if code in found)
    state = _state(reasons)
    if state is GateState.FAIL:
        conclusion = "failure"
    else:
        # `neutral` passes a required check, so what blocks must be another.
        conclusion = "action_required" if reasons[0].action is GateAction.FAIL else "neutral"
    return GateResult(state, code, conclusion, reasons=tuple(reasons))


def _reasons(rows: Sequence[Row], policy: Policy, *, provisional: bool) -> list[GateReason]:
    found = Counter(one for row in rows for one in _of_row(row, policy, provisional=provisional))
    reasons = [replace(one, cases=cases) for one, cases in found.items()]
    if all(row.quarantined or row.outcome is Outcome.REMOVED for row in rows):
        reasons.append(GateReason(GateKind.INCONCLUSIVE, policy.action(GateKind.INCONCLUSIVE), 0))
    return _weightiest_first(reasons)


def _of_row(row: Row, policy: Policy, *, provisional: bool) -> Iterator[GateReason]:
    timed = provisional and row.metric.varies
    if row.repeatability is Repeatability.LOST:
        yield GateReason(GateKind.UNREPEATABLE, policy.action_at(row.case, GateKind.UNREPEATABLE), 1)
    if row.quarantined:  # for its times alone
        return
    if row.outcome in _COUNTED:
        kind = GateKind(row.outcome.value)
        action = policy.action_at(row.case, kind)
        softened = row.known_before or (timed and kind in _BY_TIMES)
        yield GateReason(kind, _softened(action, softened), 1, row.known_before)
    flags = {GateKind.SLOWER_THAN_WRONG: row.slower_than_wrong, GateKind.NEW_FAR_BEHIND: row.far_behind}
    for kind in (kind for kind, is_set in flags.items() if is_set):
        yield GateReason(kind, _softened(policy.action_at(row.case, kind), timed and kind in _BY_TIMES), 1)
    if row.behind or row.behind_is_open:
        action = policy.action_at(row.case, GateKind.BEHIND_SOTA)
        yield GateReason(GateKind.BEHIND_SOTA, action, 1, is_open=not row.behind)


def _softened(action: GateAction, softened: bool) -> GateAction:
    return GateAction.WARN if softened and action is GateAction.FAIL else action


def _weightiest_first(reasons: Iterable[GateReason]) -> list[GateReason]:
    """Without those that pass."""
    return sorted((one for one in reasons if one.action is not GateAction.PASS), key=_weight)


def _state(reasons: Sequence[GateReason]) -> GateState:
    if not reasons:
        return GateState.PASS
    if reasons[0].undecided:
        return GateState.UNDECIDED
    return GateState.FAIL if reasons[0].action is GateAction.FAIL else GateState.WARN


def _weight(one: GateReason) -> tuple[int, int, bool, bool]:
    return _WEIGHTIEST.index(one.action), _MOST_SEVERE_FIRST.index(one.kind), one.known_before, one.is_open
