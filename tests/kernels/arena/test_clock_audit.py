"""Comparison of a contender's clock with the driver's."""

import pytest

from kernels.arena.clock_audit import Turns, disagreement


def turns(claimed_ms: float, asking_ms: float, hidden_ms: float = 0.0, *, late_ms: float = 0.0, trusted: bool = False):
    found = Turns(trusted)
    for number in range(8):
        late = late_ms if number == 3 else 0.0
        found.add((claimed_ms + asking_ms + hidden_ms + late) / 1e3, claimed_ms / 1e3)
    return found


@pytest.mark.parametrize(
    ("device", "claimed_ms", "hidden_ms", "told"),
    [
        ("cuda", 15.0, 0.0, False),
        ("cuda", 15.0, 4.0, False),  # 15 % and two milliseconds of room
        ("cuda", 15.0, 5.0, True),
        ("cuda", 7.5, 7.5, True),  # half of the truth
        ("cuda", 2.4, 2.2, False),  # turns of many cases are short, and there a lie of less than twice is not seen
        ("cuda", 2.4, 3.0, True),
        ("cpu", 8.0, 20.0, False),  # a processor has other things to do
        ("cpu", 8.0, 40.0, True),
        ("cpu", 1.0, 300.0, True),
    ],
)
def test_a_clock_that_omits_time_is_detected(device, claimed_ms, hidden_ms, told):
    honest, mine = turns(15.0, 1.0), turns(claimed_ms, 1.0, hidden_ms)

    assert disagreement(honest, [honest, mine], device) is None
    assert bool(disagreement(mine, [honest, mine], device)) is told


def test_it_says_both_times():
    honest, mine = turns(15.0, 1.0), turns(5.0, 1.0, 10.0)
    assert disagreement(mine, [honest, mine], "cuda") == (
        "its clock disagrees with the driver's: a turn of 5 ms by its own account took 15 ms"
    )


def test_a_single_late_turn_is_no_disagreement():
    honest, mine = turns(2.4, 0.5), turns(2.4, 0.5, late_ms=30.0)
    assert disagreement(mine, [honest, mine], "cuda") is None


def test_a_common_overhead_is_no_disagreement():
    both = [turns(10.0, 8.0), turns(12.0, 8.0)]
    assert [disagreement(one, both, "cuda") for one in both] == [None, None]


def test_a_contender_that_claims_too_much_does_not_affect_others():
    honest, trusted, mad = turns(15.0, 3.0), turns(15.0, 3.0, trusted=True), turns(100.0, -97.0)

    everybody = [honest, trusted, mad]
    assert [bool(disagreement(one, everybody, "cuda")) for one in everybody] == [False, False, True]


def test_the_overhead_is_that_of_the_trusted_contender():
    """Head, parent and control share a lie; alone among themselves it would be what asking costs."""
    lying, trusted = [turns(5.0, 0.5, 8.0) for _ in range(3)], turns(15.0, 0.5, trusted=True)

    assert [disagreement(one, lying, "cuda") for one in lying] == [None] * 3
    assert all(disagreement(one, [*lying, trusted], "cuda") for one in lying)


def test_alone_at_its_case_asking_costs_no_more_than_it_can():
    mine = turns(2.0, 0.5, 1000.0)
    assert disagreement(mine, [mine], "cuda")


def test_a_contender_without_turns_is_ignored():
    idle = Turns()
    assert disagreement(idle, [idle, turns(1.0, 1.0)], "cuda") is None
