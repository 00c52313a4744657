"""Annotations of a check: at which lines, how grave, and what they say."""

from dataclasses import replace
from typing import Any

import pytest

from service.domain.attribution.causes import Kind
from service.domain.codefacts.findings import Finding, Findings, KernelFindings
from service.domain.codefacts.texts import SourceLines
from service.domain.policy.policy import Policy
from service.domain.states import Outcome
from service.reports.payloads import annotations
from service.reports.rows import CauseWords, Row
from tests.service.reports.test_renderings import a_report, a_row

SPILLS = CauseWords(Kind.CODE, "slower because the kernel now spills 12 registers", True, " because …")
KERNEL = SourceLines("norms/rms.py", 12, 10, 40)
COMPILED = KernelFindings(
    KERNEL,
    "_forward",
    "sm_90",
    (
        Finding("spills none → 12", "rmsnorm.fwd.4096x1024.bf16 on sm_90", 1, worse=True),
        Finding("registers 40 → 255", "rmsnorm.fwd.4096x1024.bf16 on sm_90", 1),
    ),
)


def slower(
    ratio: float = 1.102,
    case: str = "rmsnorm.fwd.4096x1024.bf16",
    cause: CauseWords | None = SPILLS,
    source: SourceLines | None = KERNEL,
    **more: Any,
) -> Row:
    row = a_row(Outcome.REGRESSION, ratio, case)
    assert row.head is not None
    facts = {"source": source.as_json()} if source else {}
    return replace(row, cause=cause, head=replace(row.head, facts=facts), **more)


def test_a_slower_case_is_annotated_with_its_size_and_cause() -> None:
    row = slower(cause=replace(SPILLS, after=" because the kernel now spills 12 registers"))
    [one] = annotations(a_report(row))
    assert (one.path, one.start_line, one.end_line) == ("norms/rms.py", 12, 12)
    assert one.annotation_level == "warning"
    assert one.title == "10.2 % slower at rmsnorm.fwd.4096x1024.bf16 (H200)"
    assert one.message == (
        "rmsnorm.fwd.4096x1024.bf16: 10.0 → 11.0 µs (+9.2 to +11.2 %), "
        "10.2 % slower because the kernel now spills 12 registers"
    )


def test_changed_lines_are_preferred_to_the_definition() -> None:
    [one] = annotations(a_report(slower(source=replace(KERNEL, changed=(30, 31)))))
    assert (one.start_line, one.end_line) == (30, 31)


def test_cases_of_one_kernel_share_an_annotation() -> None:
    rows = [slower(1 + n / 100, f"rmsnorm.fwd.{n}x1024.bf16") for n in range(10, 20)]
    other = slower(1.3, "rmsnorm.bwd.8x1024.bf16", source=replace(KERNEL, line=30, first=30))
    first, second = annotations(a_report(*rows, other))
    assert first.start_line == 30
    assert second.title == "19.0 % slower at rmsnorm.fwd.19x1024.bf16, and 9 more cases (H200)"
    assert len(second.message.splitlines()) == 9
    assert second.message.endswith("2 more cases are on https://watch.example/runs/7")


@pytest.mark.parametrize(("action", "level"), [("fail", "failure"), ("warn", "warning"), ("pass", "notice")])
def test_the_policy_decides_how_grave_a_slower_case_is(action: str, level: str) -> None:
    policy = Policy.model_validate({"gate": {"regression": action}})
    [one] = annotations(a_report(slower(), policy=policy))
    assert one.annotation_level == level


@pytest.mark.parametrize(
    "row",
    [
        slower(source=None),
        slower(cause=CauseWords(Kind.MACHINE, "slower on this machine")),
        slower(cause=CauseWords(Kind.NOISE, "not repeated")),
        slower(known_before=True),
        slower(quarantined=True),
        replace(slower(), outcome=Outcome.STEADY),
        replace(slower(), outcome=Outcome.IMPROVEMENT),
    ],
)
def test_nothing_is_said_of_code_that_is_not_the_cause(row: Row) -> None:
    assert annotations(a_report(row)) == []


def test_compiled_code_is_annotated_for_the_architecture_of_the_device() -> None:
    b200 = replace(COMPILED, arch="sm_100")
    [one] = annotations(a_report(), [COMPILED, b200])
    assert one.title == "spills none → 12 on sm_90 in _forward"
    assert one.message.splitlines() == [
        "rmsnorm.fwd.4096x1024.bf16 on sm_90, compiled without a GPU:",
        "- spills none → 12",
        "- registers 40 → 255",
    ]
    assert annotations(a_report(device="cpu"), [COMPILED, b200]) == []


def test_the_title_names_what_is_worse() -> None:
    quiet = Finding("configuration: num_warps 16 → 4", "a case on sm_90", 1)
    worse = Finding("occupancy 50 % → 12 %", "two cases on sm_90", 2, worse=True)
    [one] = annotations(a_report(), [replace(COMPILED, kernel="", changes=(quiet, worse))])
    assert one.title == "occupancy 50 % → 12 % on sm_90"
    assert one.message.splitlines() == [
        "a case on sm_90, compiled without a GPU:",
        "- configuration: num_warps 16 → 4",
        "two cases on sm_90, compiled without a GPU:",
        "- occupancy 50 % → 12 %",
    ]


@pytest.mark.parametrize(
    ("changes", "broken", "level"),
    [
        (COMPILED.changes, True, "warning"),
        (COMPILED.changes, False, "warning"),
        (COMPILED.changes[1:], False, "notice"),
        (COMPILED.changes[1:], True, "warning"),
    ],
)
def test_compiled_code_never_fails_a_check(changes: tuple[Finding, ...], broken: bool, level: str) -> None:
    [one] = annotations(a_report(), [replace(COMPILED, changes=changes, broken=broken)])
    assert one.annotation_level == level


def test_findings_of_earlier_versions_have_no_places() -> None:
    kept = Findings("other machine code at the one case", "abc", kernels=(COMPILED,)).as_json()
    assert Findings.from_json(kept).kernels == (COMPILED,)
    del kept["kernels"]
    assert Findings.from_json(kept).kernels == ()
