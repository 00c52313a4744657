"""Rows that one program can not hold: two passes in Triton's interpreter against float64.

The exchange of sums between programs needs a GPU: tests/kernels/gpu/test_gpu_norm_wide.py.
"""

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from kernels.norms import wide
from kernels.norms.backward import backward
from kernels.norms.forward import forward
from kernels.norms.plans import BackwardPlan, ForwardPlan, Sum
from tests.pairwise import pairwise

from .truth import EDGES, EPS, Trial, inputs, lone_rows_differ, ours, wrong_by

NORMS = ("rmsnorm", "layernorm")
ALL = "weight bias residual offset"
SHARED = {"block": 32, "warps": 1, "team": 4}
THERE, BACK = ForwardPlan(rows=1, **SHARED, programs=1), BackwardPlan(rows=1, **SHARED)
PLANS = {"forward": THERE, "backward": BACK}
# 4 programs of 32 columns: all full, and the last in part.
PAIRS = pairwise(
    (norm, dtypes, cols, layout, *given)
    for norm, dtypes, cols, layout, *given in product(
        NORMS, ("fp32", "bf16-fp32"), (128, 100), ("dense", "apart", "odd", "unaligned"),
        ("weight", ""), ("bias", ""), ("residual", ""), ("offset", ""),
    )
    if "weight" in given or "offset" not in given
)  # fmt: skip
RIGHT = [
    *(  # 9 rows with a residual are several slabs
        Trial(9 if "residual" in given else 3, cols, norm, dtypes, " ".join(filter(None, given)), layout, **PLANS)
        for norm, dtypes, cols, layout, *given in PAIRS
    ),
    *(
        Trial(9, 100, norm, dtypes, ALL, edges=(*EDGES,), **PLANS)
        for norm, dtypes in zip(NORMS, ("fp32", "bf16-fp32"), strict=True)
    ),
]
PLANNED = [
    *(
        Trial(9, 100, norm, "fp32", ALL, forward=there, backward=back)
        for norm, (there, back) in product(
            NORMS,
            (
                (
                    ForwardPlan(rows=1, **SHARED, programs=2, stages=2, weights="held", keep="packed"),
                    BackwardPlan(rows=1, **SHARED, stages=2, weights="held", keep="packed"),
                ),
                (
                    ForwardPlan(rows=1, **SHARED, weights="late", exchange=False),
                    BackwardPlan(rows=1, **SHARED, programs=8, sum=Sum.LAST, exchange=False),
                ),
                (
                    ForwardPlan(rows=1, block=16, warps=1, team=7, weights="early", keep="fp32", exchange=False),
                    BackwardPlan(rows=1, block=16, warps=1, team=7, programs=20, sum=Sum.TREE, group=2, keep="cached"),
                ),
            ),
        )
    ),
]
BY_DAY = [*RIGHT, *(PLANNED[at] for at in (0, 4, 2))]  # each plan, with one norm
SHIFTS = {0.0: (), 1e3: pytest.mark.long, 1e4: ()}
LONE = [Trial(1, 100, norm, "bf16-fp32", ALL, forward=THERE, backward=BACK) for norm in NORMS]
# Of 100 columns.
REFUSED = {
    "several rows at a time": ({**SHARED, "rows": 2}, "a team has one row at a time"),
    "a program without columns": ({**SHARED, "rows": 1, "team": 5}, "each program of a team has columns"),
    "more programs than threads": (
        {**SHARED, "rows": 1, "block": 2, "team": 50},
        "a thread for each program",
    ),
    "too few columns": ({**SHARED, "rows": 1, "team": 3}, "a plan needs 100 columns"),
    "more programs than words": (
        {**SHARED, "rows": 1, "programs": 2000},
        "launches 6000 programs; a workspace has slots for 3072",
    ),
}


def complaint(call: Callable[[], object]) -> str:
    try:
        return f"{call()}"
    except ValueError as error:
        return str(error)


def refused(fields: dict[str, int]) -> list[str]:
    """What forward says to a plan of these fields, and backward."""
    given = inputs(Trial(3, 100))
    return [
        complaint(lambda: forward(given["x"], eps=EPS, center=False, plan=ForwardPlan(**fields))),
        complaint(
            lambda: backward(
                given["dy"], given["x"], None, torch.ones(3), plan=BackwardPlan(**{"programs": 1, **fields})
            )
        ),
    ]


def shifted_variance(shift: float) -> float:
    """How far rstd is off, at worst and relatively, where the mean is far from zero and the slabs are several."""
    x = (torch.randn(21, 100, generator=torch.Generator().manual_seed(1)) * 64).round() / 64 + shift
    truth = torch.rsqrt(x.double().var(1, correction=0) + EPS)
    got = forward(x, eps=EPS, center=True, statistics=True, plan=THERE).rstd
    assert got is not None
    return float(((got - truth) / truth).abs().amax())


def findings(all_trials: bool) -> dict[str, Any]:
    right = {}
    for trial in (*RIGHT, *PLANNED) if all_trials else BY_DAY:
        given = inputs(trial)
        right[str(trial)] = wrong_by(trial, given, ours(trial, given), cuts_off=True)
    x = torch.ones(41, 100)
    return {
        "right": right,
        "off": {shift: shifted_variance(shift) for shift, mark in SHIFTS.items() if all_trials or not mark},
        "slabs": [len(list(wide.slabs(x, residual))) for residual in (None, x)],
        "refused": {name: refused(fields) for name, (fields, _) in REFUSED.items()},
        "lone": [lone_rows_differ(trial) for trial in LONE],
    }


@pytest.mark.parametrize(
    "trial",
    [trial if trial in BY_DAY else pytest.param(trial, marks=pytest.mark.long) for trial in (*RIGHT, *PLANNED)],
    ids=str,
)
def test_two_passes_are_right(interpreted, trial):
    over = {name: by for name, by in interpreted["right"][str(trial)].items() if not by <= 1}
    assert over == {}, "times what is allowed"


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, (_, said) in REFUSED.items()])
def test_a_plan_that_no_team_can_follow_is_refused(interpreted, name, said):
    for complaint in interpreted["refused"][name]:
        assert re.search(said, complaint)


def test_the_stride_of_a_lone_row_changes_nothing(interpreted):
    assert interpreted["lone"] == [[]] * len(LONE)


def test_what_is_tried_goes_through_several_slabs_and_fewer_rows_with_a_residual(interpreted):
    alone, with_residual = interpreted["slabs"]
    assert 2 < alone < with_residual


@pytest.mark.parametrize("shift", [pytest.param(str(shift), marks=mark) for shift, mark in SHIFTS.items()])
def test_the_variance_is_exact_wherever_the_mean_is(interpreted, shift):
    """As far as a mean in fp32 goes; of E[x^2] - E[x]^2 nothing would be left at 1e4."""
    assert interpreted["off"][shift] < max(1e-6, float(shift) * 2.0**-24)


def test_without_exchange_no_launch_is_cooperative():
    shared = {"rows": 1, "block": 32, "warps": 4, "team": 4}
    assert ForwardPlan(**shared, programs=1).options["launch_cooperative_grid"] is True
    assert ForwardPlan(**shared, exchange=False).options == {"num_warps": 4}


def test_a_refusal_is_told_once_and_kept(monkeypatch):
    monkeypatch.setattr(wide, "_refused", set())
    monkeypatch.setattr(wide, "processors", lambda device: 132)
    device, launches = torch.device("cuda", 0), []

    def refuse() -> None:
        launches.append(1)
        raise RuntimeError("Triton Error [CUDA]: too many blocks in cooperative launch")

    with pytest.warns(UserWarning, match="refused a cooperative launch .* two passes instead"):
        assert not wide.in_one_pass(refuse, device, THERE)
    assert not wide.in_one_pass(refuse, device, THERE)
    assert len(launches) == 1


@pytest.mark.parametrize("plan", [THERE, ForwardPlan(rows=1, block=128, warps=4)])
def test_other_errors_are_raised(monkeypatch, plan):
    monkeypatch.setattr(wide, "processors", lambda device: 132)
    message = "an illegal memory access was encountered" if plan is THERE else wide.REFUSALS[0]

    def fail() -> None:
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match=message):
        wide.in_one_pass(fail, torch.device("cuda", 0), plan)


def test_a_device_with_fewer_places_than_members_is_not_asked(monkeypatch):
    monkeypatch.setattr(wide, "processors", lambda device: 2)
    assert not wide.in_one_pass(lambda: pytest.fail("launched"), torch.device("cuda", 0), THERE)


def test_a_team_that_exchanges_its_sums_cannot_load_its_weights_before_them():
    x = torch.ones(3, 8192)
    with pytest.raises(ValueError, match="held or late"):
        forward(x, x[0], eps=1e-6, center=False, plan=ForwardPlan(1, 4096, 4, team=2, programs=1, weights="early"))
