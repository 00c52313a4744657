"""Which findings make a command fail."""

from typing import Any

import pytest

from kernelwatch.client.models import GateItem, GateReasonItem, RunDocument
from service.commands.measure.fail_on import EXIT_CODES, NAMES, GateFinding, exit_code, read_findings
from service.domain.states import GateKind
from service.errors import BadInput


def run(state: str = "done", code: int = 0, *reasons: dict[str, Any], behind: int = 0) -> RunDocument:
    """A run with this gate; the other fields do not matter here."""
    usual = {"action": "warn", "cases": 1, "known_before": False, "undecided": False}
    found = [GateReasonItem.model_validate(usual | one) for one in reasons]
    gate = GateItem.model_construct(state="warn", exit_code=code, reasons=found)
    return RunDocument.model_construct(state=state, purpose="watch", gate=gate, behind_sota=behind)


REGRESSION = run("done", 1, {"kind": "regression"})
INVALID = run("done", 125, {"kind": "invalid", "action": "fail"})
FAILED = run("done", 125, {"kind": "failed"})
UNDECIDED = run("done", 3, {"kind": "inconclusive", "undecided": True})
KNOWN = run("done", 0, {"kind": "invalid", "known_before": True})
LOST = run("done", 0, {"kind": "unrepeatable"})
BEHIND = run("done", 0, behind=2)
PERHAPS_BEHIND = run("done", 3, {"kind": "behind-sota", "action": "fail", "undecided": True})
BOTH = run("done", 1, {"kind": "regression"}, {"kind": "inconclusive", "undecided": True})
BROKEN = run("failed", 125)
NO_MACHINE, HELD, CANCELLED, QUEUED = (run(state, 2) for state in ("failed", "held", "cancelled", "queued"))
SKIPPED, FINE = run("skipped"), run()
OF_NEWER_SERVER = run("done", 1, {"kind": "slower-than-light", "action": "fail"})


@pytest.mark.parametrize(
    ("runs", "fail_on", "expected"),
    [
        ([FINE], NAMES, 0),
        ([SKIPPED], NAMES, 0),
        ([REGRESSION], "regression", 1),
        ([REGRESSION], "inconclusive,failed", 0),
        ([INVALID], "invalid", 125),
        ([INVALID], "failed", 0),
        ([FAILED], "failed", 125),
        ([UNDECIDED], "inconclusive", 3),
        ([UNDECIDED], "regression", 0),
        ([KNOWN], NAMES, 0),
        ([LOST], "unrepeatable", 1),
        ([BEHIND], "behind-sota", 1),
        ([BEHIND], "regression", 0),
        ([PERHAPS_BEHIND], "behind-sota", 3),
        ([PERHAPS_BEHIND], "inconclusive", 0),
        ([BROKEN], "build-failed", 125),
        ([BROKEN], "failed", 0),
        ([NO_MACHINE], "not-measured", 2),
        ([NO_MACHINE], "build-failed", 0),
        ([HELD], "held", 2),
        ([HELD], "not-measured", 0),
        ([CANCELLED], "not-measured", 2),
        ([QUEUED], "not-measured", 2),
        ([BOTH], NAMES, 1),
        ([BOTH], "inconclusive", 3),
        ([UNDECIDED, REGRESSION], NAMES, 1),
        ([UNDECIDED, REGRESSION], "inconclusive", 3),
        ([OF_NEWER_SERVER], NAMES, 0),
        ([REGRESSION, INVALID, UNDECIDED, BROKEN, HELD, BEHIND], "never", 0),
    ],
)
def test_only_the_named_findings_count(runs: list[RunDocument], fail_on: str, expected: int) -> None:
    assert exit_code(runs, read_findings([fail_on])) == expected


@pytest.mark.parametrize("runs", [[REGRESSION], [INVALID], [UNDECIDED], [KNOWN], [LOST], [BEHIND], [BROKEN], [HELD]])
def test_by_default_the_exit_code_is_that_of_the_gate(runs: list[RunDocument]) -> None:
    assert exit_code(runs, read_findings(None)) == runs[0].gate.exit_code
    assert exit_code([*runs, REGRESSION], read_findings([])) == 1


def test_findings_are_given_once_or_several_times() -> None:
    assert read_findings(["regression, failed", "held"]) == {
        GateFinding.REGRESSION,
        GateFinding.FAILED,
        GateFinding.HELD,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("slow", "--fail-on takes regression, invalid, .* or never; not 'slow'"),
        ("", "not ''"),
        ("never,held", "--fail-on takes never alone"),
    ],
)
def test_a_wrong_finding_is_named(given: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_findings([given])


def test_every_kind_of_the_gate_is_a_finding_with_an_exit_code() -> None:
    assert {kind.value for kind in GateKind} < {finding.value for finding in GateFinding}
    assert EXIT_CODES.keys() == {*GateFinding}
