"""The gate: what a run means for a merge, the same in exit code, check, commit status, comment, page and JSON."""

import itertools
from dataclasses import replace

import pytest

from kernelwatch.documents.runs import GateItem
from service.domain.policy.policy import Policy
from service.domain.states import CellState, GateKind, GateState, Outcome, Purpose, RunState, worst_exit_code
from service.reports import comment_head, markdown
from service.reports.comment_head import headline, title
from service.reports.report import Report
from service.reports.rows import BaselineRow, Row
from tests.service.reports.test_renderings import CASE, a_report, a_row, printed, repeating

STEADY, FAST, SLOW = a_row(Outcome.STEADY), a_row(Outcome.IMPROVEMENT, 0.9), a_row(Outcome.REGRESSION, 1.1)
WRONG, BROKEN, NEW = a_row(Outcome.INVALID), a_row(Outcome.FAILED), a_row(Outcome.NEW, None)
UNSURE, BEHIND = a_row(Outcome.INCONCLUSIVE, reason="too noisy"), a_row(Outcome.STEADY, behind=True)
REMOVED = a_row(Outcome.REMOVED, None)
WRONG_BEFORE = replace(WRONG, known_before=True)
QUARANTINED = replace(a_row(Outcome.INCONCLUSIVE, 1.1), quarantined=True)
assert STEADY.sota
PERHAPS_BEHIND = replace(STEADY, sota=replace(STEADY.sota, is_open=True))
UNREPEATABLE = repeating(head=False, parent=True)
assert NEW.parent
_AGAINST_WRONG = BaselineRow("beefbeefbe", Outcome.REGRESSION, 2.59, 2.5, 2.7, "slower", None, None)
SLOWER_THAN_WRONG = replace(
    NEW, parent=replace(NEW.parent, state=CellState.INVALID, median=None), wrong_parent=_AGAINST_WRONG
)
WRONG_AND_SLOWER = replace(
    WRONG_BEFORE, parent=SLOWER_THAN_WRONG.parent, wrong_parent=replace(_AGAINST_WRONG, outcome=Outcome.INCONCLUSIVE)
)
FAR_BEHIND = replace(a_row(Outcome.NEW, None, behind=True), far_behind=True)

ADVISORY, BLOCKING = (Policy.model_validate({"blocking": blocking}) for blocking in (False, True))
PASS, WARN, UNDECIDED, FAIL = GateState.PASS, GateState.WARN, GateState.UNDECIDED, GateState.FAIL
Forge = tuple[str | None, str]  # the conclusion of the check run, and the commit status
GREEN: Forge = ("success", "success")
WARNED: Forge = ("neutral", "success")
REFUSED: Forge = ("failure", "failure")
ASKED_AGAIN: Forge = ("action_required", "error")


def policy(blocking: bool = False, **gate: str) -> Policy:
    return Policy.model_validate(
        {"blocking": blocking, "gate": {key.replace("_", "-"): to for key, to in gate.items()}}
    )


@pytest.mark.parametrize(
    ("rows", "code", "advisory", "blocking"),
    [
        ([STEADY, FAST], 0, (PASS, GREEN), (PASS, GREEN)),
        ([SLOW, STEADY], 1, (WARN, WARNED), (FAIL, REFUSED)),
        ([SLOW, UNSURE], 1, (WARN, WARNED), (FAIL, REFUSED)),
        ([WRONG, STEADY], 125, (FAIL, REFUSED), (FAIL, REFUSED)),
        ([WRONG, FAST], 125, (FAIL, REFUSED), (FAIL, REFUSED)),
        ([BROKEN, STEADY], 125, (WARN, WARNED), (FAIL, REFUSED)),
        ([UNSURE], 3, (UNDECIDED, WARNED), (UNDECIDED, ASKED_AGAIN)),
        ([UNSURE, STEADY], 3, (UNDECIDED, WARNED), (UNDECIDED, ASKED_AGAIN)),
        ([WRONG_BEFORE, STEADY], 0, (WARN, WARNED), (WARN, WARNED)),
        ([WRONG_BEFORE, SLOW], 1, (WARN, WARNED), (FAIL, REFUSED)),
        ([UNREPEATABLE], 0, (WARN, WARNED), (WARN, WARNED)),
        ([SLOWER_THAN_WRONG, STEADY], 1, (WARN, WARNED), (FAIL, REFUSED)),
        ([WRONG_AND_SLOWER, STEADY], 1, (WARN, WARNED), (FAIL, REFUSED)),
        ([FAR_BEHIND], 1, (WARN, WARNED), (WARN, WARNED)),
        ([BEHIND, UNREPEATABLE], 0, (WARN, WARNED), (WARN, WARNED)),
        ([BEHIND], 0, (PASS, GREEN), (WARN, WARNED)),
        ([PERHAPS_BEHIND], 0, (PASS, GREEN), (WARN, WARNED)),
        ([QUARANTINED, STEADY], 0, (PASS, GREEN), (PASS, GREEN)),
        ([QUARANTINED, NEW], 0, (PASS, ("skipped", "success")), (PASS, ("skipped", "success"))),
        ([QUARANTINED], 3, (UNDECIDED, WARNED), (UNDECIDED, ASKED_AGAIN)),
        ([NEW], 0, (PASS, ("skipped", "success")), (PASS, ("skipped", "success"))),
        ([REMOVED], 3, (UNDECIDED, WARNED), (UNDECIDED, ASKED_AGAIN)),
        ([], 3, (UNDECIDED, WARNED), (UNDECIDED, ASKED_AGAIN)),
    ],
)
def test_the_states_of_a_measured_run(
    rows: list[Row], code: int, advisory: tuple[GateState, Forge], blocking: tuple[GateState, Forge]
) -> None:
    for policy, (state, forge) in ((ADVISORY, advisory), (BLOCKING, blocking)):
        found = a_report(*rows, policy=policy).gate
        assert found.state == state
        assert (found.conclusion, found.commit_status) == forge
        assert found.exit_code == (0 if forge[1] == "success" else code), "a job is red beside a check that is"


@pytest.mark.parametrize(
    ("report", "state", "code", "said"),
    [
        (a_report(state=RunState.QUEUED), UNDECIDED, 2, ("queued", None, "pending")),
        (a_report(state=RunState.LEASED), UNDECIDED, 2, ("in_progress", None, "pending")),
        (a_report(state=RunState.HELD), UNDECIDED, 2, ("completed", "action_required", "error")),
        (a_report(state=RunState.FAILED, reason="no disk"), UNDECIDED, 2, ("completed", "action_required", "error")),
        (a_report(state=RunState.FAILED, log="error"), FAIL, 125, ("completed", "failure", "failure")),
        (a_report(state=RunState.CANCELLED), UNDECIDED, 2, ("completed", "cancelled", "error")),
        (a_report(state=RunState.SUPERSEDED), UNDECIDED, 2, ("completed", "cancelled", "error")),
        (a_report(state=RunState.SKIPPED), PASS, 0, ("completed", "skipped", "success")),
    ],
)
def test_the_states_of_a_run_that_was_not_measured(
    report: Report, state: GateState, code: int, said: tuple[str, str | None, str]
) -> None:
    found = report.gate
    assert (found.state, found.exit_code) == (state, code)
    assert (found.check_status, found.conclusion, found.commit_status) == said


def test_what_a_case_does_to_the_gate() -> None:
    rows = (SLOW, UNSURE, WRONG, WRONG_BEFORE, QUARANTINED, STEADY)
    advisory, blocking = a_report(policy=ADVISORY), a_report(policy=BLOCKING)
    assert [advisory.gate_of(row) for row in rows] == [WARN, UNDECIDED, FAIL, WARN, PASS, PASS]
    assert [blocking.gate_of(row) for row in rows] == [FAIL, UNDECIDED, FAIL, WARN, PASS, PASS]
    assert a_report(policy=BLOCKING, purpose=Purpose.CALIBRATION).gate_of(SLOW) is PASS


KINDS = {
    "regression": SLOW,
    "inconclusive": UNSURE,
    "invalid": WRONG,
    "failed": BROKEN,
    "unrepeatable": UNREPEATABLE,
    "behind-sota": BEHIND,
    "perhaps behind": PERHAPS_BEHIND,
    "known before": WRONG_BEFORE,
    "quarantined": QUARANTINED,
    "improvement": FAST,
    "new": NEW,
}
GATES = [
    ADVISORY,
    BLOCKING,
    *(policy(**dict.fromkeys(list(GateKind), to)) for to in ("fail", "warn", "pass")),
]
ALL_PASS = ("No action needed", "No regression found")


@pytest.mark.parametrize("values", GATES, ids=["advisory", "blocking", "all fail", "all warn", "all pass"])
def test_no_surface_is_greener_than_another(values: Policy) -> None:
    """Every combination of findings: what a person reads first, what the forge shows, and what a script gets."""
    for n in range(1, len(KINDS) + 1):
        for names in itertools.combinations(KINDS, n):
            report = a_report(*(KINDS[name] for name in names), policy=values)
            found = report.gate
            quiet = report.verdict in ALL_PASS or report.verdict.endswith("which the policy allows")
            assert quiet == (found.state is PASS), (names, headline(report))
            of_cases = {report.gate_of(row) for row in report.rows}
            assert found.state in of_cases or names == ("quarantined",), "some case explains the gate"
            if n < 3:  # the comment's tables take a while
                calm = comment_head.symbol(report) == comment_head.GOOD
                only_older = all(one.kind == "behind-sota" or one.known_before for one in found.reasons)
                assert calm == (found.state is PASS or (found.state is WARN and only_older)), names
                assert markdown.comment(report).startswith(f"### {comment_head.symbol(report)} ")
            bad = {
                kind for kind in ("regression", "inconclusive", "invalid", "failed", "unrepeatable") if kind in names
            }
            acted = {kind for kind in bad if values.action(kind) != "pass"}  # type: ignore[arg-type]
            passes = found.conclusion in ("success", "neutral", "skipped")  # what GitHub's required check lets pass
            assert found.commit_status == "success" if passes else found.commit_status in ("failure", "error"), names
            assert passes == (found.exit_code == 0), names
            if acted:
                assert found.conclusion != "success", names
            if any(values.action(kind) == "fail" for kind in bad):  # type: ignore[arg-type]
                assert found.conclusion in ("failure", "action_required"), names
                assert found.commit_status in ("failure", "error"), names
            if bad & {"inconclusive"} or "perhaps behind" in names:
                assert report.verdict != "No action needed", names


def test_json_and_terminal_say_the_same() -> None:
    report = a_report(UNSURE, STEADY, policy=BLOCKING)
    gate = GateItem.model_validate(report.gate).model_dump(mode="json")
    assert (gate["state"], gate["exit_code"], gate["conclusion"]) == ("undecided", 3, "action_required")
    assert gate["reasons"] == [
        {"kind": "inconclusive", "action": "fail", "cases": 1, "known_before": False, "undecided": True}
    ]
    assert "1 of 2 cases undecided" in printed(report)


def test_each_kind_has_an_action_of_its_own() -> None:
    assert a_report(UNSURE, policy=policy(True, inconclusive="warn")).gate.conclusion == "neutral"
    assert a_report(UNSURE, STEADY, policy=policy(inconclusive="pass")).verdict == "No regression found"
    assert a_report(BEHIND, policy=policy(behind_sota="fail")).gate.exit_code == 1
    assert a_report(BEHIND, policy=policy(behind_sota="warn")).verdict == "1 behind quack"
    assert a_report(SLOW, policy=policy(regression="pass")).gate.exit_code == 0
    assert (
        title(a_report(SLOW, policy=policy(regression="pass")))
        == "its only case 10.0 % slower, which the policy allows"
    )


def test_a_distance_to_sota_that_is_open_counts_as_much_as_one_that_is_shown() -> None:
    assert a_report(PERHAPS_BEHIND, policy=policy(behind_sota="fail")).gate.state is UNDECIDED
    assert a_report(PERHAPS_BEHIND, policy=policy(behind_sota="warn")).verdict == "1 perhaps behind quack"
    assert headline(a_report(PERHAPS_BEHIND)).endswith(
        "1 steady; 1 perhaps behind quack, which this session could not decide."
    )


def test_a_new_case_far_behind_sota_is_behind_it_as_well() -> None:
    assert a_report(FAR_BEHIND, policy=policy(behind_sota="fail")).gate.state is FAIL


def test_a_case_and_a_device_may_have_actions_of_their_own() -> None:
    other = "layernorm.fwd.8x512.bf16"
    values = Policy.model_validate({"blocking": True, "cases": {"layernorm.*": {"gate": {"inconclusive": "warn"}}}})
    unsure = replace(UNSURE, case=other)
    assert a_report(unsure, policy=values).gate.conclusion == "neutral"
    assert a_report(unsure, UNSURE, policy=values).gate.conclusion == "action_required"
    assert (values.at(other).action("regression"), values.at(CASE).action("inconclusive")) == ("fail", "fail")  # type: ignore[arg-type]


def test_of_a_calibration_nothing_counts() -> None:
    """Its code is equal on both sides: whatever differs is false."""
    assert a_report(SLOW, UNSURE, purpose=Purpose.CALIBRATION).gate.exit_code == 0


def test_of_several_devices_a_regression_counts_first() -> None:
    slow, wrong, lost, unsure, steady = (
        report.gate.exit_code
        for report in (
            a_report(SLOW, policy=BLOCKING),
            a_report(WRONG),
            a_report(state=RunState.FAILED),
            a_report(UNSURE, policy=BLOCKING),
            a_report(STEADY),
        )
    )
    assert worst_exit_code([steady, unsure, lost, wrong, slow]) == 1
    assert worst_exit_code([steady, unsure, lost, wrong]) == 125
    assert worst_exit_code([steady, unsure, lost]) == 2
    assert worst_exit_code([steady, unsure]) == 3
    assert worst_exit_code([steady]) == 0


@pytest.mark.parametrize(
    ("rows", "code", "conclusion"),
    [
        ([SLOW, STEADY], 0, "neutral"),
        ([UNSURE, STEADY], 0, "neutral"),
        ([SLOWER_THAN_WRONG, STEADY], 0, "neutral"),
        ([replace(SLOW, case=f"{SLOW.case}.recompiles"), STEADY], 1, "failure"),  # a count needs no calibration
        ([WRONG, SLOW], 125, "failure"),
        ([BROKEN, STEADY], 125, "failure"),
        ([STEADY], 0, "success"),
    ],
)
def test_times_of_a_worker_that_was_not_calibrated_block_nothing(rows, code, conclusion):
    report = a_report(*rows, policy=BLOCKING, provisional=True)
    assert (report.gate.exit_code, report.gate.conclusion) == (code, conclusion)
    assert "Provisional: times block nothing until the worker has" in markdown.comment(report)
    settled = replace(report, provisional=False)
    assert "Provisional" not in markdown.comment(settled)
    assert (settled.gate.exit_code > 0) is (rows != [STEADY])
