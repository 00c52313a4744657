"""What a cause rests on, without what differs from session to session, and in digits that people read."""

from dataclasses import replace
from typing import Any

import pytest

from dashboards.runs.evidence import MAX_EVIDENCE, Evidence, evidence
from dashboards.runs.facts import sides
from service.domain.attribution.causes import Kind
from service.domain.attribution.explanations import By
from service.domain.states import Outcome
from service.reports.rows import CauseWords, Row
from tests.service.reports.test_renderings import a_row

SPILLS = CauseWords(Kind.CODE, "slower because the kernel now spills 40 registers", by=By.SPILLS)
KERNEL = {"name": "_forward", "sass": "a", "registers": 40, "spills": 0, "warps": 4}
WORSE = KERNEL | {"sass": "b", "registers": 255, "spills": 1040}
OF_THE_SESSION = {
    "prepare_s": 0.211, "spent": {"bind": 8e-05, "inputs": 0.02324}, "repeats": 113, "distinct": 1, "sets": 2,
    "calls": 40, "sm_mhz": 1980,
}  # fmt: skip


def compared(before: dict[str, Any], now: dict[str, Any], cause: CauseWords | None = SPILLS) -> Row:
    row = a_row(Outcome.REGRESSION, 1.4)
    assert row.head
    assert row.parent
    head, parent = (replace(side, facts=facts) for side, facts in ((row.head, now), (row.parent, before)))
    return replace(row, head=head, parent=parent, cause=cause)


def shown(row: Row) -> list[Evidence]:
    return evidence(row, sides(row))


def test_what_the_cause_names_comes_first() -> None:
    found = shown(compared({"code": "1", "triton": [KERNEL]}, {"code": "2", "triton": [WORSE]}))
    assert found == [
        Evidence("spills", "", "0", "1,040", named=True),
        Evidence("registers", "", "40", "255", named=False),
        Evidence("hash of the code", "", "1", "2", named=False),
    ]


def test_a_kernel_among_several_has_its_name() -> None:
    other = KERNEL | {"name": "_sum"}
    found = shown(compared({"triton": [other, KERNEL]}, {"triton": [other, WORSE]}))
    assert {one.kernel for one in found} == {"_forward"}


def test_facts_of_the_call_are_evidence_where_no_kernel_is_known() -> None:
    found = shown(compared({"registers": 122, "spills": 0}, {"registers": 110, "spills": 40}))
    assert [(one.name, one.before, one.now, one.named) for one in found] == [
        ("spills", "0", "40", True),
        ("registers", "122", "110", False),
    ]
    both = shown(compared({"registers": 40, "triton": [KERNEL]}, {"registers": 255, "triton": [WORSE]}))
    assert [one.name for one in both].count("registers") == 1, "once, and not also as the fact of the call"


def test_more_operators_are_the_evidence_of_more_kernels() -> None:
    cause = replace(SPILLS, by=By.TRAFFIC)
    found = shown(
        compared({"kernels": 1, "ran": ["f"], "registers": 4}, {"kernels": 2, "ran": ["f", "g"], "registers": 5}, cause)
    )
    assert [(one.name, one.named) for one in found] == [
        ("kernels", True),
        ("kernels that ran", True),
        ("registers", False),
    ]


def test_the_work_that_the_cause_names_is_counted() -> None:
    before, now = (KERNEL | {"sass": str(n), "work": {"atomic": n, "special": 7}} for n in (1, 65_536))
    found = shown(compared({"triton": [before]}, {"triton": [now]}, replace(SPILLS, by=By.ATOMICS)))
    assert found == [Evidence("atomic operations", "_forward", "1", "65,536", named=True)]


def test_what_differs_between_sessions_of_equal_code_is_no_difference() -> None:
    later = {
        name: 2 * value if isinstance(value, int | float) else {"bind": 9e-05} for name, value in OF_THE_SESSION.items()
    }
    row = compared(OF_THE_SESSION, later)
    assert [line for line in sides(row).lines if line.differs] == []
    assert len(sides(row).lines) == len(OF_THE_SESSION), "the page of the case shows them"
    assert shown(row) == []


@pytest.mark.parametrize("wrong", [None, 3, "none", [3], [{"registers": "many", "work": 7, "reads": [1]}]])
def test_facts_of_strangers_break_nothing(wrong: object) -> None:
    assert all(isinstance(one, Evidence) for one in shown(compared({"triton": [KERNEL]}, {"triton": wrong})))
    many = {f"fact {n}": n for n in range(200)}
    assert len(shown(compared(many, {name: -n for name, n in many.items()}))) <= MAX_EVIDENCE


def test_numbers_have_the_digits_that_people_read() -> None:
    before = {"errors": {"dx": 0.0038599835946818185, "dweight": 1.8103683203893504e-07}}
    row = compared(before, {"errors": before["errors"] | {"dweight": 2.775932384614073e-07}})
    [line] = sides(row).lines
    assert (line.before, line.now, line.differs) == ("dx=0.00386 dweight=1.81e-07", "dx=0.00386 dweight=2.78e-07", True)
    [same] = sides(compared(before, {"errors": before["errors"] | {"dx": 0.00385998359468}})).lines
    assert not same.differs, "nobody sees a difference"
