"""Trials become evidence: aligned trial by trial, and no worse state is ever forgotten."""

from dataclasses import replace

import pytest

from kernels.arena.session import Cell, Contender, Trial
from kernels.cases import Case, Role
from service.domain.states import CellState
from workers.run.trials import Tally

CASE = Case.parse("rmsnorm.fwd.512x512.fp32")


def never() -> None:
    raise AssertionError("nothing is started here")


HEAD = Contender("head:norms", Role.HEAD, {"name": "norms"}, never)
PARENT = Contender("parent:norms", Role.PARENT, {"name": "norms"}, never)


def trial(**cells: Cell) -> Trial:
    return Trial({(f"{role}:norms", CASE): cell for role, cell in cells.items()})


def test_who_sat_out_a_launch_has_no_rounds_in_it():
    tally = Tally([HEAD, PARENT], [CASE])
    tally.add(
        trial(head=Cell("measured", samples=[1.0, 2.0]), parent=Cell("measured", samples=[3.0, 4.0])), confirming=False
    )
    tally.add(trial(head=Cell("measured", samples=[5.0])), confirming=False)
    tally.add(trial(head=Cell("measured", samples=[6.0]), parent=Cell("measured", samples=[7.0])), confirming=True)
    head, parent = tally.taken()
    assert (head.screened, head.confirmed) == (((1.0, 2.0), (5.0,)), ((6.0,),))
    assert (parent.screened, parent.confirmed) == (((3.0, 4.0), ()), ((7.0,),))


@pytest.mark.parametrize("worse", ["invalid", "failed"])
def test_wrong_or_failed_in_one_launch_is_wrong_or_failed(worse):
    tally = Tally([HEAD], [CASE])
    tally.add(trial(head=Cell("measured", samples=[1.0])), confirming=False)
    tally.add(trial(head=Cell(worse, "y is wrong")), confirming=False)
    [head] = tally.taken()
    assert (head.state, head.reason, head.median) == (CellState(worse), "y is wrong", None)


def test_a_contender_that_never_took_part_has_no_entry():
    tally = Tally([HEAD, PARENT], [CASE])
    tally.add(trial(head=Cell("measured", samples=[1.0])), confirming=False)
    assert [one.role for one in tally.taken()] == [Role.HEAD]


def test_facts_are_those_of_the_launch_that_looked_and_the_clock_is_that_of_all():
    tally = Tally([HEAD], [CASE])
    screened = {"code": "abc", "repeatable": True, "kernels": 2}
    tally.add(trial(head=Cell("measured", samples=[1.0], facts=screened, extra={"sm_mhz": 1980})), confirming=False)
    tally.add(trial(head=Cell("measured", samples=[1.0], extra={"sm_mhz": 1800})), confirming=False)
    tally.add(trial(head=Cell("measured", samples=[1.0], extra={"sm_mhz": 1965})), confirming=True)
    [head] = tally.taken()
    assert head.facts == {**screened, "sm_mhz": 1965}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"triton": "3.7.1"}, {"replaced": {"triton": "3.7.1"}}),
        ({"triton": ["3.7.1\n"]}, {"replaced": {"triton": "['3.7.1\\n']"}}),
        ("3.7.1", {}),
        (None, {}),
    ],
)
def test_versions_that_a_contender_says_its_revision_replaced_are_bounded_texts(said, kept):
    tally = Tally([HEAD], [CASE])
    spoken = replace(trial(head=Cell("measured", samples=[1.0])), stacks={"head:norms": {"replaced": said}})
    tally.add(spoken, confirming=False)
    [head] = tally.taken()
    assert head.facts == kept


def test_who_once_did_not_repeat_itself_does_not():
    tally = Tally([HEAD], [CASE])
    for repeats in (True, False):
        tally.add(trial(head=Cell("measured", samples=[1.0], facts={"repeatable": repeats})), confirming=False)
    [head] = tally.taken()
    assert head.facts["repeatable"] is False


def test_the_configuration_of_each_launch_is_kept_and_not_the_first_alone():
    tally = Tally([HEAD], [CASE])
    for us, config, reused in ((3.0, "BLOCK=64", False), (4.0, "BLOCK=128", False), (3.1, "BLOCK=64", True)):
        cell = Cell("measured", samples=[us, None, us], tuned={"norm": config}, reused=reused)
        tally.add(trial(head=cell), confirming=False)
    tally.add(trial(head=Cell("measured", samples=[5.0])), confirming=True)
    [head] = tally.taken()
    assert head.facts["tuned"] == [
        {"trial": 1, "configuration": "norm BLOCK=64", "median": 3.0},
        {"trial": 2, "configuration": "norm BLOCK=128", "median": 4.0},
        {"trial": 3, "configuration": "norm BLOCK=64", "median": 3.1, "reused": True},
    ]
