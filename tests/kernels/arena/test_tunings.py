"""A choice of an autotuner is stable once two tunings of the same revision, provider and case all made it."""

import pytest

from kernels.arena.pool import Contender
from kernels.arena.tunings import MAX_TEXT, Tunings
from kernels.cases import Case, Role

CASE, OTHER = Case.parse("rmsnorm.fwd.8x8.fp32"), Case.parse("rmsnorm.fwd.16x8.fp32")
SMALL, LARGE = {"norm": "BLOCK=64"}, {"norm": "BLOCK=128"}


def never() -> None:
    raise AssertionError("nothing is started here")


def contender(role: Role, name: str = "norms") -> Contender:
    return Contender(f"{role}:{name}", role, {"name": name}, never)


HEAD, PARENT, CONTROL = map(contender, (Role.HEAD, Role.PARENT, Role.CONTROL))


@pytest.mark.parametrize(
    ("choices", "stable"),
    [
        ([], {}),
        ([SMALL], {}),
        ([SMALL, SMALL], SMALL),
        ([SMALL, LARGE], {}),
        ([SMALL, LARGE, SMALL], {}),  # it varies
        ([{**SMALL, "sum": "BLOCK=2"}] * 2, {**SMALL, "sum": "BLOCK=2"}),
        ([{**SMALL, "sum": "BLOCK=2"}, {**SMALL, "sum": "BLOCK=4"}], {}),
        ([{"norm": "BLOCK=64 | BLOCK=128"}] * 2, {}),
        ([{"norm": "B" * MAX_TEXT}] * 2, {}),  # it may have been cut
    ],
)
def test_a_choice_is_stable_if_all_tunings_agree(choices, stable):
    tunings = Tunings()
    for choice in choices:
        tunings.add(HEAD, CASE, choice)
    assert tunings.stable(HEAD, CASE) == stable


def test_the_control_is_a_second_tuning_of_the_parent_and_nobody_elses():
    tunings = Tunings()
    tunings.add(PARENT, CASE, SMALL)
    tunings.add(CONTROL, CASE, SMALL)
    tunings.add(HEAD, CASE, SMALL)

    assert tunings.stable(PARENT, CASE) == tunings.stable(CONTROL, CASE) == SMALL
    assert tunings.stable(HEAD, CASE) == {}
    assert tunings.stable(PARENT, OTHER) == {}
    assert tunings.stable(contender(Role.PARENT, "others"), CASE) == {}


@pytest.mark.parametrize(
    ("metric", "reused"),
    [("", True), (".call", True), (".compile", False), (".recompiles", False), (".kernels", False), (".memory", False)],
)
def test_what_measures_compilations_or_counts_them_tunes_anew(metric, reused):
    case = Case.parse(f"rmsnorm.fwd.8x8.fp32{metric}")
    tunings = Tunings()
    for _ in range(2):
        tunings.add(HEAD, case, SMALL)
    assert bool(tunings.stable(HEAD, case)) is reused
