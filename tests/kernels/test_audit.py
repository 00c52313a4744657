"""A contender's own clock beside the driver's: what is claimed, what was waited for, and what asking costs."""

import pytest

from kernels.audit import Turns, disagreement


def turns(claimed_ms: float, asking_ms: float, hidden_ms: float = 0.0, count: int = 8) -> Turns:
    found = Turns()
    for _ in range(count):
        found.add((claimed_ms + asking_ms + hidden_ms) / 1e3, claimed_ms / 1e3)
    return found


@pytest.mark.parametrize(
    ("device", "claimed_ms", "hidden_ms", "told"),
    [
        ("cuda", 15.0, 0.0, False),
        ("cuda", 15.0, 4.0, False),  # 15 % and two milliseconds of room
        ("cuda", 15.0, 5.0, True),
        ("cuda", 7.5, 7.5, True),  # half of the truth
        ("cuda", 0.1, 1.9, False),  # too short to say
        ("cpu", 8.0, 20.0, False),  # a processor has other things to do
        ("cpu", 8.0, 40.0, True),
        ("cpu", 1.0, 300.0, True),
    ],
)
def test_a_clock_that_leaves_time_out_is_told(device, claimed_ms, hidden_ms, told):
    honest, mine = turns(15.0, 1.0), turns(claimed_ms, 1.0, hidden_ms)

    assert disagreement(honest, [honest, mine], device) is None
    assert bool(disagreement(mine, [honest, mine], device)) is told


def test_it_says_both_times():
    honest, mine = turns(15.0, 1.0), turns(5.0, 1.0, 10.0)
    assert disagreement(mine, [honest, mine], "cuda") == (
        "its clock disagrees with the driver's: a turn of 5 ms by its own account took 15 ms"
    )


def test_a_slow_way_of_asking_is_nobodys_fault():
    both = [turns(10.0, 30.0), turns(12.0, 30.0)]
    assert [disagreement(one, both, "cuda") for one in both] == [None, None]


def test_whoever_took_no_turn_says_nothing():
    idle = Turns()
    assert disagreement(idle, [idle, turns(1.0, 1.0)], "cuda") is None
