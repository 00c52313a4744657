"""Wide rows on a real GPU: two passes give what a team gives."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from kernels.norms import plans, wide
from kernels.norms.forward import forward
from kernels.norms.plans import BackwardPlan, ForwardPlan

from ..norms.truth import EPS, Trial, inputs, ours, wrong_by

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of torch's imports
]
NORMS = ("rmsnorm", "layernorm")
ALL = "weight bias residual offset"
# 200 rows are several slabs of half an L2 at 262144.
TRIALS = [
    Trial(200, cols, norm, *what)
    for cols, norm, what in product((65536, 262144), NORMS, (("bf16-fp32", "weight"), ("fp32", ALL)))
] + [Trial(60, 100000, norm, "bf16", ALL) for norm in NORMS]


def in_a_team(trial: Trial) -> Trial:
    """With the default plans."""
    size = 4 if trial.dtypes == "fp32" else 2
    there, back = (choose(trial.cols, center=trial.center, size=size) for choose in (plans.forward, plans.backward))
    assert there.team > 1 < back.team
    return replace(trial, forward=there, backward=back)


def without_exchange(trial: Trial) -> Trial:
    assert trial.forward is not None
    assert trial.backward is not None
    return replace(
        trial, forward=replace(trial.forward, exchange=False), backward=replace(trial.backward, exchange=False)
    )


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, float]:
    """How far apart, in units of the output's own rounding, or for fp32 of a sum over a row."""
    assert one.keys() == other.keys()
    apart = {}
    for name, here in one.items():
        there = other[name].double()
        unit = max(torch.finfo(here.dtype).eps, 2.0**-20)
        apart[name] = (
            float(((here.double() - there).abs() / (there.abs() + there.square().mean().sqrt())).amax()) / unit
        )
    return apart


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_two_passes_give_what_a_team_gives(trial):
    given, trial = inputs(trial, "cuda"), in_a_team(trial)
    team, passes = ours(trial, given), ours(without_exchange(trial), given)

    assert not wide._refused
    assert {name: by for name, by in close(team, passes).items() if not by <= 2} == {}
    assert {name: by for name, by in wrong_by(trial, given, passes).items() if not by <= 1} == {}


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_two_passes_give_the_same_bits_again_and_in_a_graph(trial):
    given, trial = inputs(trial, "cuda"), without_exchange(in_a_team(trial))
    first = ours(trial, given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ours(trial, given)
    graph.replay()

    assert all(torch.equal(first[name], captured[name]) for name in first)


@pytest.mark.parametrize("norm", NORMS)
def test_slabs_change_no_bits(norm):
    """Of a row, whatever rows are beside it."""
    trial = without_exchange(in_a_team(Trial(200, 262144, norm, "bf16-fp32")))
    given = inputs(trial, "cuda")
    assert len(list(wide.slabs(given["x"], None))) > 1

    def y(rows: slice) -> torch.Tensor:
        return forward(given["x"][rows], given["weight"], eps=EPS, center=trial.center, plan=trial.forward).y

    whole = y(slice(None))
    for rows in (slice(0, 1), slice(100, 133), slice(199, 200)):
        assert torch.equal(y(rows), whole[rows])


def test_a_device_that_refuses_gets_two_passes():
    """More programs on an SM than can be there: the driver says no, and the answer is right all the same."""
    wide._refused.clear()
    plan = ForwardPlan(1, 16384, 32, team=4, programs=4, registers=64)
    trial = Trial(300, 65536, "rmsnorm", "bf16", forward=plan, backward=BackwardPlan(1, 16384, 16, team=4))
    given = inputs(trial, "cuda")
    with pytest.warns(UserWarning, match="refused a cooperative launch"):
        outputs = ours(trial, given)
    wide._refused.clear()

    assert {name: by for name, by in wrong_by(trial, given, outputs).items() if not by <= 1} == {}
