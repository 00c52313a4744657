"""The evidence of siblings: a small step that all have, and a step that only one has."""

from dataclasses import replace

import numpy as np
import pytest

from service.domain.changepoints import HistoryLimits, changes
from service.domain.changepoints.detector import epochs_of
from service.domain.changepoints.scan import any_near, family_of, refuted_by_siblings, scan_series, shared_steps
from service.domain.changepoints.series_table import Histories
from tests.service.domain.changepoints.test_noise import correlated

LIMITS = HistoryLimits(notify=0.01, block=0.02)
COUNT, AT = 30, 20


def cases(count: int, op: str = "rmsnorm.fwd") -> list[tuple[str, str]]:
    return [("norms", f"{op}.{64 * number}x4096.bf16") for number in range(1, count + 1)]


def histories(own: np.ndarray, machine: np.ndarray | None = None, sota: bool = True) -> Histories:
    random = np.random.default_rng(99)
    shared = np.zeros(COUNT) if machine is None else machine
    references = np.exp(random.normal(0, 0.002, own.shape) + shared) if sota else np.full(own.shape, np.nan)
    ones = np.ones(own.shape, dtype=np.int64)
    return Histories(tuple(cases(len(own))), 0, np.exp(own + shared), references, ones, ones)


def noisy(moving: int, size: float, sigma: float = 0.015, count: int = 20, seed: int = 0) -> np.ndarray:
    """Series of which the first `moving` have a step."""
    own = np.random.default_rng(seed).normal(0, sigma, (count, COUNT))
    own[:moving, AT:] += size
    return own


def found(table: Histories) -> dict[tuple[str, str], list[int]]:
    steps = shared_steps(table, dict.fromkeys(table.names, LIMITS))
    return {name: [change.ordinal for change in of_name] for name, of_name in steps.items()}


@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_is_too_small_for_each_is_found_in_all(seed):
    table = histories(noisy(20, 0.02, seed=seed))
    together = found(table)
    assert len(together) >= 12
    assert {place for places in together.values() for place in places} <= {AT - 1, AT, AT + 1}
    alone = [row for row in range(20) if changes(table.seen(row), LIMITS)]
    assert len(alone) < 0.6 * len(together)
    scanned = scan_series(table, table, {}, dict.fromkeys(table.names, LIMITS))
    assert set(together) <= {name for name, one in scanned.items() if one.matched.new}


@pytest.mark.parametrize(
    "table",
    [
        histories(noisy(0, 0.0)),
        histories(noisy(1, 0.2)),  # a single series has no siblings
        histories(noisy(20, 0.004)),  # less than anybody acts on
        histories(noisy(20, 0.025), sota=False),  # it may be the machine's
        histories(noisy(4, 0.025, count=4)),  # too few
    ],
)
def test_what_siblings_do_not_show(table):
    assert found(table) == {}


def test_a_step_of_the_machine_is_nobodys():
    machine = 0.03 * (np.arange(COUNT) >= AT) + 0.01 * np.sin(np.arange(COUNT))
    assert found(histories(noisy(0, 0.0), machine)) == {}


@pytest.mark.parametrize("moves", ["own", "sota"])
def test_a_step_of_siblings_is_compared_with_that_of_sota(moves):
    """Only their siblings show the step; cases of another op are scanned closely."""
    machine = 0.03 * np.sin(np.arange(COUNT))
    table = histories(noisy(20 if moves == "own" else 0, 0.025), machine)
    if moves == "sota":
        table.references[:, AT:] *= np.exp(-0.025)
    close = replace(histories(noisy(0, 0.0, sigma=0.002), machine), names=tuple(cases(20, "layernorm.fwd")))
    limits = dict.fromkeys((*table.names, *close.names), LIMITS)
    scanned = scan_series(close, table, {}, limits)
    steps = [change.ordinal in scanned[name].baseline for name in scanned for change in scanned[name].matched.new]
    assert len(steps) >= 10 or moves == "sota", "SOTA alone is hardly followed, and moves no series"
    assert steps.count(moves == "sota") >= 0.9 * len(steps)


@pytest.mark.parametrize("moves", ["own", "sota"])
def test_a_leak_is_compared_with_the_movement_of_sota(moves):
    random = np.random.default_rng(0)
    places = np.arange(120)
    machine = 0.01 * correlated(random, 120, 0.9)
    rise = 0.10 * np.clip((places - 30) / 80, 0, 1)
    own, sota = random.normal(0, 0.004, (2, 10, 120)) + machine
    if moves == "own":
        own += rise
    else:
        sota -= rise
    ones = np.ones(own.shape, dtype=np.int64)
    table = Histories(tuple(cases(10)), 0, np.exp(own), np.exp(sota), ones, ones)
    scanned = scan_series(table, table, {}, dict.fromkeys(table.names, LIMITS))
    leaks = [(one, change) for one in scanned.values() for change in one.matched.new if change.is_leak]
    assert len(leaks) >= 8
    assert {change.ordinal in one.baseline for one, change in leaks} == {moves == "sota"}


def test_a_gap_in_a_series_does_not_hide_its_step():
    own = noisy(20, 0.04)
    own[3, AT : AT + 2] = np.nan
    table = histories(own)
    steps = shared_steps(table, dict.fromkeys(table.names, LIMITS))
    [change] = steps[table.names[3]]
    assert (change.before, change.ordinal) == (AT - 1, AT + 2)


def test_a_family_has_one_op_direction_and_metric():
    assert family_of(("norms", "rmsnorm.fwd.64x4096.bf16")) == family_of(("norms", "rmsnorm.fwd.512x128.fp32"))
    others = [("triton", "rmsnorm.fwd.64x4096.bf16"), ("norms", "rmsnorm.bwd.64x4096.bf16")]
    others.append(("norms", "rmsnorm.fwd.64x4096.bf16.call"))
    assert len({family_of(one) for one in (*others, ("norms", "rmsnorm.fwd.64x4096.bf16"))}) == 4


@pytest.mark.parametrize(
    ("moved", "near"),
    [
        ([], False),
        ([(22, cases(4)[3])], True),
        ([(18, cases(4)[3]), (20, cases(4)[0])], True),
        ([(17, cases(4)[3]), (23, cases(4)[3])], False),  # other events
        ([(20, cases(4)[0])], False),  # its own
    ],
)
def test_which_changes_of_siblings_are_near(moved, near):
    assert any_near(cases(4)[0], 20, moved) == near


@pytest.mark.parametrize(
    ("siblings", "sigma", "moving", "alone"),
    [
        (5, 0.002, 0, True),
        (4, 0.002, 0, False),  # too few
        (8, 0.02, 0, False),  # their noise hides such a step
        (8, 0.002, 8, False),
        (8, 0.02, 8, False),  # they have the step, and none was found in them
        (8, 0.002, 3, True),
        (8, 0.002, 4, False),  # only four of eight refute it
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_a_single_case_is_refuted_only_by_most_of_its_siblings(siblings, sigma, moving, alone, seed):
    others = noisy(moving, 0.02, sigma, count=siblings, seed=seed)
    table = histories(np.vstack([noisy(1, 0.02, 0.002, count=1, seed=10 + seed), others]), sota=False)
    [step] = changes(table.seen(0), LIMITS)
    epochs = {name: epochs_of(table.seen(row), LIMITS) for name, row in table.row_of.items()}
    assert refuted_by_siblings(step, table.names[1:], epochs.__getitem__) == alone


def test_a_step_that_noisy_siblings_share_is_not_called_alone():
    """Only the first series is scanned closely; a step in the others has no point yet."""
    table = histories(np.vstack([noisy(1, 0.02, 0.002, count=1), noisy(7, 0.02, 0.02, count=7)]), sota=False)
    close = Histories(
        table.names[:1],
        0,
        *(one[:1] for one in (table.values, table.references)),
        *(one[:1] for one in (table.stacks, table.runs)),
    )
    scanned = scan_series(close, table, {}, dict.fromkeys(table.names, LIMITS))[table.names[0]]
    assert [change.ordinal for change in scanned.matched.new] == [AT]
    assert scanned.alone == frozenset()


def test_correlated_noise_of_a_sibling_is_hardly_ever_its_step():
    moved = still = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        own = np.vstack([0.012 * correlated(random, COUNT, 0.6) for _ in range(20)])
        own[:8, AT:] += 0.04
        names = found(histories(own, 0.01 * correlated(random, COUNT, 0.9)))
        moved += len(names.keys() & set(cases(8)))
        still += len(names.keys() - set(cases(8)))
    assert moved >= 150
    assert still <= 0.07 * moved
