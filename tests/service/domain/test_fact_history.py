"""Facts over revisions: what a commit moved, what a stack moved, and what nothing explains."""

from typing import Any

import pytest

from service.domain.codefacts.history import FactsAt, configuration_spans, drifted, moves, tracks
from service.domain.states import MovedBy


def facts(warps: int = 4, registers: int = 40, code: str = "c0de", **more: Any) -> dict[str, Any]:
    kernel = {"name": "_forward", "warps": warps, "stages": 1, "occupancy": 0.5, "instructions": 100}
    return {"code": code, "kernels": 1, "registers": registers, "spills": 0, "triton": [kernel], **more}


def tuned(*configurations: str) -> list[dict[str, Any]]:
    return [{"configuration": one, "median": 10.0} for one in configurations]


def at(place: int, head: dict[str, Any], parent: dict[str, Any] | None = None, stack: int = 1) -> FactsAt:
    before = f"c{place - 1}" if place else None
    return FactsAt(100 + place, f"c{place}", place, float(place), stack, head, before, parent)


CONFIGURED = "configuration num_warps=4 → num_warps=8"


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param([at(0, facts()), at(1, facts(), facts())], [], id="nothing"),
        pytest.param(
            [at(0, facts()), at(1, facts(registers=64, code="beef"), facts())],
            [(MovedBy.COMMIT, ("code changed", "registers 40 → 64"))],
            id="the commit, since head and parent differ in one session",
        ),
        pytest.param(
            [at(0, facts()), at(1, facts(warps=8, code="beef"), facts(warps=8, code="beef"))],
            [(MovedBy.NOTHING, ("code changed", CONFIGURED))],
            id="neither, since the parent differs from its own session",
        ),
        pytest.param(
            [at(0, facts()), at(1, facts(warps=8), facts(warps=8), stack=2)],
            [(MovedBy.STACK, (CONFIGURED,))],
            id="the stack",
        ),
        pytest.param(
            [at(0, facts()), at(1, facts(warps=8, registers=64), facts(warps=8))],
            [(MovedBy.NOTHING, (CONFIGURED,)), (MovedBy.COMMIT, ("registers 40 → 64",))],
            id="both",
        ),
        pytest.param(
            [at(0, facts()), at(1, facts(registers=64))],
            [(MovedBy.COMMIT, ("registers 40 → 64",))],
            id="without the parent in the session",
        ),
        pytest.param(
            [at(0, facts()), at(3, facts(registers=64), facts())],
            [(MovedBy.COMMIT, ("registers 40 → 64",))],
            id="with revisions between that were not measured",
        ),
    ],
)
def test_a_difference_has_one_explanation(
    history: list[FactsAt], expected: list[tuple[MovedBy, tuple[str, ...]]]
) -> None:
    assert [(one.by, one.differences) for one in moves(history)] == expected


@pytest.mark.parametrize("nonsense", [{}, {"registers": "many", "config": 7, "triton": "no"}, {"triton": [None]}])
def test_nonsense_of_a_stranger_is_in_no_track_and_no_drift(nonsense: dict[str, Any]) -> None:
    history = [at(0, facts()), at(1, nonsense, nonsense), at(2, facts())]
    moves(history)
    assert {one.name: one.values for one in tracks(history)}["registers"] == ((0, 40), (2, 40))
    assert drifted(nonsense, facts()) is None


@pytest.mark.parametrize(
    ("earlier", "now", "found"),
    [
        pytest.param(facts(4), facts(8), True, id="another configuration"),
        pytest.param(facts(4), facts(4, registers=64), False, id="the same configuration"),
        pytest.param(facts(4), {}, False, id="nothing known of this session"),
        pytest.param(
            facts(4, tuned=tuned("A", "B")), facts(8, tuned=tuned("B")), False, id="both ran one in some trial"
        ),
        pytest.param(facts(4, tuned=tuned("A")), facts(8, tuned=tuned("B")), True, id="each sure of another"),
    ],
)
def test_a_drift_is_another_configuration_of_equal_code(
    earlier: dict[str, Any], now: dict[str, Any], found: bool
) -> None:
    assert (drifted(earlier, now) is not None) is found


def test_each_fact_is_followed_over_the_revisions_that_have_it() -> None:
    history = [at(0, facts()), at(1, {"kernels": 1}), at(2, facts(registers=64))]
    by_name = {one.name: one for one in tracks(history)}
    assert by_name["registers"].values == ((0, 40), (2, 64))
    assert by_name["registers"].moves == 1
    assert by_name["kernels"].values == ((0, 1), (1, 1), (2, 1))
    assert by_name["occupancy"].values == ((0, 50.0), (2, 50.0))
    assert "graph_breaks" not in by_name


@pytest.mark.parametrize(
    ("second", "by"),
    [
        pytest.param(at(1, facts(8), facts(4)), (MovedBy.COMMIT,), id="head and parent differ"),
        pytest.param(at(1, facts(8), facts(8)), (MovedBy.NOTHING,), id="an autotuner chose again"),
        pytest.param(at(1, facts(8), facts(8), stack=2), (MovedBy.STACK,), id="another stack"),
        pytest.param(
            at(1, facts(8), facts(16), stack=2), (MovedBy.STACK, MovedBy.COMMIT), id="the stack, then the commit"
        ),
        pytest.param(at(1, facts(8)), (MovedBy.COMMIT,), id="without the parent in the session"),
        pytest.param(at(1, facts(8), stack=2), (MovedBy.STACK,), id="without the parent, on another stack"),
    ],
)
def test_the_configurations_of_a_case_are_a_series(second: FactsAt, by: tuple[MovedBy, ...]) -> None:
    history = [at(0, facts(4)), second, at(2, facts(8), facts(8), second.stack_id or 1), at(3, {})]

    old, new = configuration_spans(history)

    assert (old.configuration, old.revisions, old.by) == ("_forward num_warps=4 num_stages=1", 1, ())
    assert (new.configuration, new.revisions, new.by) == ("_forward num_warps=8 num_stages=1", 2, by)
    assert new.first is second


def test_a_choice_that_wavers_is_no_other_configuration() -> None:
    one, other = facts(4, tuned=tuned("A", "B")), facts(8, tuned=tuned("B", "A"))
    assert [span.revisions for span in configuration_spans([at(0, one), at(1, other, one)])] == [2]
