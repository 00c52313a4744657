"""A run in a few lines: geometric means, with the trial as what is counted."""

import json

import pytest

from kernels.cases import Metric
from service.domain.policy.policy import Policy
from service.domain.states import Outcome
from service.domain.verdicts.samples import Cell, Pairs
from service.domain.verdicts.totals import Summary, summaries

POLICY = Policy(screening=(3, 5))


def cell(case: str, *ratios: float | None, provider: str = "norms", **more: object) -> Cell:
    """One ratio a trial; None where its rounds were lost."""
    trials = tuple((None,) * 4 if ratio is None else (100.0 * ratio,) * 4 for ratio in ratios)
    return Cell(provider, case, Pairs(trials, ((100.0,) * 4,) * len(ratios)), **more)


def test_the_mean_of_logs_over_cases_and_the_interval_over_launches():
    [fwd] = summaries(
        [
            cell("rmsnorm.fwd.4096x1024.bf16", 1.02, 1.03, 1.01),
            cell("rmsnorm.fwd.8192x1024.bf16", 0.98, 0.99, 0.97),
        ],
        POLICY,
    )
    # sqrt(1.02 * .98), sqrt(1.03 * .99), sqrt(1.01 * .97): their logs have the mean -.0003 and sd .0100, and t is 4.303
    assert (fwd.cases, fwd.trials, fwd.ratio) == (2, 3, pytest.approx(0.9997, abs=1e-4))
    assert (fwd.low, fwd.high) == (pytest.approx(0.9752, abs=2e-4), pytest.approx(1.0249, abs=2e-4))


def test_many_cases_of_one_launch_are_one_sample():
    """A hundred cases that the machine moved together are no surer than one of them."""
    alone, many = (
        summaries([cell(f"rmsnorm.fwd.{n}x8.bf16", 1.0, 1.01, 1.02) for n in range(1, count + 1)], POLICY)[0]
        for count in (1, 100)
    )
    assert (many.low, many.high) == pytest.approx((alone.low, alone.high))


def test_one_for_each_metric_provider_op_and_direction_and_kernels_first():
    cells = [
        cell(f"{op}.{direction}.4096x1024.bf16{metric}", 1.0, 1.0, 1.0, provider=provider)
        for metric in (".call", "")
        for provider in ("norms", "compiled")
        for op in ("rmsnorm", "layernorm")
        for direction in ("fwd", "bwd")
    ]
    found = summaries(cells, POLICY)
    assert [one.metric for one in found] == [Metric.KERNEL] * 8 + [Metric.CALL] * 8
    assert (found[0].provider, found[0].op, found[0].direction) == ("compiled", "layernorm", "bwd")


@pytest.mark.parametrize(
    ("odd", "cases", "trials"),
    [
        (cell("rmsnorm.fwd.2x8.bf16", 9.0, None, 9.0), 1, 3),  # a trial of its own is lost: it would lean the others
        (cell("rmsnorm.fwd.2x8.bf16", 9.0, 9.0), 1, 3),  # the session ended before its third trial
        (cell("rmsnorm.fwd.2x8.bf16", 9.0, 9.0, 9.0, trouble=(Outcome.INVALID, "y is wrong")), 1, 3),
        (cell("rmsnorm.fwd.2x8.bf16", 9.0, 9.0, 9.0, baseline_trouble="it is invalid here"), 1, 3),
    ],
)
def test_what_is_not_whole_is_left_out(odd, cases, trials):
    [one] = summaries([cell("rmsnorm.fwd.1x8.bf16", 1.0, 1.0, 1.0), odd], POLICY)
    assert (one.cases, one.trials, one.ratio) == (cases, trials, pytest.approx(1.0))


def test_a_launch_that_all_lost_is_no_launch():
    [one] = summaries([cell(f"rmsnorm.fwd.{n}x8.bf16", 1.0, None, 1.1) for n in (1, 2)], POLICY)
    assert (one.cases, one.trials) == (2, 2)
    assert summaries([cell("rmsnorm.fwd.1x8.bf16", None, None, 1.0)], POLICY) == [], "one trial has no interval"


def test_a_launch_that_all_but_one_lost_counts_for_nobody():
    lost = [cell(f"rmsnorm.fwd.{n}x8.bf16", 1.0, None, 1.02) for n in range(1, 10)]
    [one] = summaries([*lost, cell("rmsnorm.fwd.10x8.bf16", 1.0, 9.0, 1.02)], POLICY)
    assert (one.cases, one.trials, one.ratio) == (10, 2, pytest.approx(1.01, abs=1e-3))


def test_it_is_stored_as_it_was():
    [one] = summaries([cell("rmsnorm.fwd.1x8.bf16.call", 1.0, 1.01, 1.1)], POLICY)
    assert Summary.from_json(json.loads(json.dumps(one.as_json()))) == one
