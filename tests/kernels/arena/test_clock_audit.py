"""Comparison of a contender's clock with the driver's."""

import pytest

from kernels.arena.clock_audit import (
    Passes,
    Turns,
    believed_restoring,
    disagreement,
    ran_while_frozen,
    too_fast,
    too_few_sets,
)
from kernels.cases import Case


def turns(claimed_ms: float, asking_ms: float, hidden_ms: float = 0.0, *, late_ms: float = 0.0, trusted: bool = False):
    """Eight turns of a contender whose CPU time is unknown."""
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


# -- with the CPU time of all processes --------------------------------------------------------------------------------


def counted(claimed_ms: float, cpu_ms: float, waited_ms: float, *, trusted: bool = False):
    """Eight turns on a CPU."""
    found = Turns(trusted)
    for _ in range(8):
        found.add(waited_ms / 1e3, claimed_ms / 1e3, cpu_ms / 1e3)
    return found


IDLE, BUSY = counted(8.0, 8.3, 8.5, trusted=True), counted(20.0, 8.3, 20.5, trusted=True)


@pytest.mark.parametrize(
    ("mine", "reference", "complaint"),
    [
        (counted(8.0, 8.3, 8.5), IDLE, None),
        (counted(16.0, 16.5, 16.8), IDLE, None),
        (counted(4.4, 8.3, 8.5), IDLE, "its processes used 8 ms of CPU time in a turn of 4.4 ms by its own account"),
        (counted(4.4, 8.3, 20.5), BUSY, "its processes used"),  # a busy processor does not add to the CPU time
        (counted(8.0, 14.0, 8.5), IDLE, "its processes used 13.7 ms of CPU time"),  # another core worked for it
        (counted(5.0, 5.3, 30.0), IDLE, "its clock disagrees with the driver's: "),  # it slept
        (counted(40.0, 8.3, 8.5), IDLE, "its clock disagrees with the driver's: "),  # it claims more than there was
        (counted(18.0, 8.3, 22.0), BUSY, None),
        (counted(14.0, 8.3, 20.5), BUSY, None),  # others may have had the processor outside its timed samples
        (counted(8.0, 8.3, 20.5), BUSY, None),
        (counted(8.0, 8.3, 50.0), BUSY, "its clock disagrees with the driver's: "),  # but not for so long
    ],
)
def test_cpu_time_bounds_the_claims(mine, reference, complaint):
    found = disagreement(mine, [mine, reference], "cpu")
    assert found is None if complaint is None else found is not None and found.startswith(complaint)
    assert disagreement(reference, [mine, reference], "cpu") is None


def test_nothing_runs_during_the_turns_of_others():
    assert ran_while_frozen(5e-3, "cpu") is None
    assert ran_while_frozen(20.2e-3, "cpu") is not None
    assert ran_while_frozen(20.2e-3, "cuda") is None
    assert ran_while_frozen(70e-3, "cuda") == "it used 70 ms of CPU time while it was frozen for the turns of others"


# -- single passes, whose outputs are judged ---------------------------------------------------------------------------


def passes(cpu_ms: float, claimed_ms: float, us: float, *, trusted: bool = False):
    """Six passes over two sets; `us` of a call in the other turns."""
    found = Passes(trusted)
    for _ in range(6):
        found.add(cpu_ms / 1e3, claimed_ms / 1e3, cpu_ms / 1e3)
    found.expect([us, None, us], 2)
    return found


@pytest.mark.parametrize(
    ("mine", "reference", "found"),
    [
        (passes(2.3, 2.0, 1000), passes(2.3, 2.0, 1000), False),
        (passes(1.3, 1.0, 500), passes(2.3, 2.0, 1000), False),  # it is faster
        (passes(3.3, 3.0, 1000), passes(3.3, 3.0, 1000), False),  # the first pass is slower for both
        (passes(2.3, 2.0, 330), passes(2.3, 2.0, 1000), True),  # three times the calls that it made
        (passes(2.3, 0.7, 330), passes(2.3, 2.0, 1000), True),
        (passes(2.3, 2.0, 600), passes(2.3, 2.0, 1000), False),  # within the tolerance
        (passes(0.5, 0.2, 20), passes(0.5, 0.2, 100), True),
    ],
)
def test_a_wrong_number_of_calls_is_detected(mine, reference, found):
    assert bool(too_fast(mine, [mine, reference])) is found
    assert too_fast(reference, [passes(2.3, 2.0, 1000, trusted=True), reference]) is None


def test_a_sleeping_contender_does_not_make_the_host_busy():
    """Without a trusted contender, the least interrupted one shows how busy the host was."""
    sleeping, honest = counted(8.0, 8.3, 80.0), counted(8.0, 8.3, 8.5)
    assert disagreement(sleeping, [sleeping, honest], "cpu")
    assert disagreement(honest, [sleeping, honest], "cpu") is None


def test_cold_caches_excuse_a_kernel_that_is_five_times_faster():
    """A pass of its two sets takes 2 ms longer than its turns for both."""
    slow, fast = passes(12.3, 12.0, 5000), passes(4.3, 4.0, 1000)
    assert too_fast(fast, [fast, slow]) is None
    assert too_fast(passes(9.3, 9.0, 1000), [fast, slow]) is not None


@pytest.mark.parametrize(("sets", "us", "too_few"), [(2, 10, True), (2, 1000, False), (4096, 0.1, False)])
def test_a_fast_kernel_has_many_input_sets(sets, us, too_few):
    """Otherwise its pass would be too short to know its number of calls."""
    mine = passes(2.3, 2.0, us)
    mine.expect([us], sets)
    assert bool(too_few_sets(mine, Case.parse("rmsnorm.fwd.8x1024.fp32"))) is too_few


def test_a_pass_is_expected_to_take_as_long_as_its_sets_by_the_other_turns():
    passes = Passes()
    passes.expect([10.0, None, 30.0, 20.0], sets=4)
    assert passes.expected == pytest.approx(80e-6)


# -- functions that overwrite their inputs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claimed", "granted"),
    [
        (1e-6, pytest.approx(1e-6)),
        (0.5, pytest.approx(10 * (2 * 2 * 4096 * 1024 * 2 / 1.5e12 + 2e-6))),  # ten calls, x and the residual
        (-1.0, 0.0),
        (float("nan"), 0.0),
        ("0.5", 0.0),
        (None, 0.0),
    ],
)
def test_restoring_is_granted_what_it_can_take(claimed, granted):
    case = Case.parse("rmsnorm_residual.fwd.4096x1024.bf16")

    assert believed_restoring(claimed, case, "cuda", 10) == granted
