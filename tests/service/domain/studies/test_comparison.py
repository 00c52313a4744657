"""Two sessions of a study: ratios of their times with intervals, and what else differs."""

from dataclasses import replace

import pytest

from kernels.studies.records import Note
from kernels.studies.results import Results
from service.domain.studies.sessions import ArmChange, compared, differences, stacks
from tests.service.ledger.studies.literal import NARROW, STACK, session_file

A = session_file()


def changes(a: Results, b: Results) -> dict[tuple[str, str], ArmChange]:
    return {(one.case, one.arm): one for one in compared(a, b)}


def test_a_time_that_halved_halves_its_ratio_to_the_baseline() -> None:
    found = changes(Results.of([A]), Results.of([session_file(speed=2.0)]))
    last, separate = found[NARROW, "last"], found[NARROW, "separate"]
    assert (last.time.ratio, last.relative and last.relative.ratio) == pytest.approx((0.5, 0.5), rel=1e-4)
    assert last.time.differs
    assert (separate.time.ratio, separate.relative) == (1.0, None)
    assert not separate.time.differs


def test_the_interval_is_welchs() -> None:
    """Two trials 1 % apart in each: a standard error of 0.5 % in both, and two degrees of freedom."""
    time = changes(Results.of([A]), Results.of([A]))[NARROW, "separate"].time
    assert time.high == pytest.approx(1 + 4.3027 * 0.00995 / 2**0.5, rel=1e-3)
    assert time.trials == 2


def test_a_single_trial_has_no_interval() -> None:
    time = changes(Results.of([A]), Results.of([session_file(trials=1)]))[NARROW, "separate"].time
    assert (time.low, time.high, time.differs) == (None, None, None)


def test_what_was_not_measured_in_both_is_left_out() -> None:
    partly = replace(A, records=tuple(one for one in A.records if one.arm != "tree"))
    assert {arm for _, arm in changes(Results.of([A]), Results.of([partly]))} == {"separate", "last", "triton", "quack"}


def test_differences_are_device_form_code_and_versions() -> None:
    about = replace(A.session, device="b200", quick=True, code={"kernels": "fedc", "revision": "v1"})
    other = replace(A, session=about, notes=(Note("stack", {"arm": "separate", **STACK, "triton": "3.7.1"}),))
    assert differences(Results.of([A]), Results.of([A])) == []
    assert differences(Results.of([A]), Results.of([other])) == [
        "device: h200 in A, b200 in B",
        "form: full in A, quick in B",
        "code of the kernels: 0123456789ab in A, fedc in B",
        "triton: 3.6.0 in A, 3.7.1 in B",
    ]


@pytest.mark.parametrize(
    ("in_a", "in_b", "found"),
    [
        ({"graph": True}, {"graph": True}, []),
        ({"graph": False}, {}, []),
        ({"graph": True}, {}, ["2 in A, 0 in B"]),
        ({"graph": False}, {"graph": True}, ["0 in A, 2 in B"]),
    ],
)
def test_replays_and_launches_are_a_difference(in_a: dict[str, bool], in_b: dict[str, bool], found: list[str]) -> None:
    a, b = (
        Results.of([replace(A, records=tuple(replace(one, facts=facts) for one in A.records))])
        for facts in (in_a, in_b)
    )
    what = "cases replayed as CUDA graphs in one session and launched in the other"
    assert differences(a, b) == [f"{what}: {one}" for one in found]


def test_arms_with_equal_versions_are_listed_together() -> None:
    notes = tuple(Note("stack", {"arm": arm, **STACK}) for arm in ("separate", "last"))
    [found] = stacks(Results.of([replace(A, notes=notes)]))
    assert found.arms == ("separate", "last")
    assert found.device == "NVIDIA H200"
    assert found.versions == {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0"}
