"""RMSNorm and LayerNorm in Triton, forward and backward, against float64: in Triton's interpreter, at small shapes.

A process of its own goes through all that is listed here (`interpreted`), and each test looks at one of its findings.
By day trials have each pair of properties; the others are long tests.
"""

import math
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings as examples
from hypothesis import strategies as st

from kernels.norms import workspaces
from kernels.norms.backward import backward
from kernels.norms.forward import forward
from kernels.norms.launching import aligned
from kernels.norms.plans import BackwardPlan, ForwardPlan, Sum
from tests.pairwise import pairwise

from .truth import EDGES, EPS, POISON, Trial, excess, inputs, lone_rows_differ, ours, wrong_by

NORMS = ("rmsnorm", "layernorm")
DTYPES = ("fp32", "fp16", "bf16", "bf16-fp32", "fp16-fp32", "fp32-bf16")
ALL = "weight bias residual offset"
LAYOUTS = ("apart", "odd", "unaligned", "expanded")

LAID_OUT = [*product(NORMS, (24, 25), ("fp32", "bf16"), LAYOUTS)]  # 25: not copied

RIGHT = [
    *(
        Trial(5, 24, norm, dtypes, " ".join(filter(None, given)))
        for norm, dtypes, *given in pairwise(
            chosen
            for chosen in product(NORMS, DTYPES, ("weight", ""), ("bias", ""), ("residual", ""), ("offset", ""))
            if ("weight" in chosen or "offset" not in chosen)
            and ("-" not in chosen[1] or "weight" in chosen or "bias" in chosen)
        )
    ),
    *(
        Trial(rows, cols, norm, given="weight bias")
        for norm, rows, cols in pairwise(product(NORMS, (0, 1, 2, 7), (1, 2, 7, 17, 64, 72, 100)))
    ),
    *(Trial(3, cols, norm, "bf16-fp32", ALL) for norm, cols in zip(NORMS, (3000, 1152), strict=True)),
    *(  # several blocks: in registers, and read twice
        Trial(5, 100, norm, dtypes, ALL, forward=ForwardPlan(2, 32, 1, blocks=4, **more))
        for (norm, dtypes), more in product(
            zip(NORMS, ("fp32", "bf16-fp32"), strict=True), ({"weights": "early", "keep": "fp32"}, {"keep": "cached"})
        )
    ),
    *(Trial(5, cols, norm, dtypes, ALL, layout) for norm, cols, dtypes, layout in pairwise(LAID_OUT)),
    *(Trial(9, 100, norm, dtypes, ALL, edges=(*EDGES,)) for norm, dtypes in product(NORMS, ("fp32", "bf16-fp32"))),
    *(Trial(9, 100, norm, given="weight", edges=(*EDGES,)) for norm in NORMS),
    # the interpreter takes denormal numbers in bf16 for others
    *(Trial(9, 100, norm, "bf16", "weight", edges=(*sorted({*EDGES} - {"denormal"}),)) for norm in NORMS),
]

# Of 100 columns; the interpreter has three SMs, so that few programs go through many tiles.
BLOCK = {"block": 128, "warps": 1}
FORWARD_PLANS = [
    ForwardPlan(rows=1, **BLOCK),
    ForwardPlan(rows=4, **BLOCK),
    ForwardPlan(rows=4, **BLOCK, weights="early"),
    *(ForwardPlan(rows=4, **BLOCK, keep=way, registers=64) for way in ("fp32", "packed")),
    *(ForwardPlan(rows=2, **BLOCK, programs=2, stages=2, weights=way) for way in ("held", "early", "late")),
    ForwardPlan(rows=8, **BLOCK, programs=1, stages=3),
    ForwardPlan(rows=1, **BLOCK, programs=40),
]
BACKWARD_PLANS = [
    *(BackwardPlan(rows=rows, held=held, **BLOCK) for rows, held in ((1, 1), (4, 1), (4, 2), (4, 4), (16, 8))),
    *(BackwardPlan(rows=2, **BLOCK, weights=way, keep="cached") for way in ("held", "early", "late")),
    BackwardPlan(rows=1, **BLOCK, programs=40),
    *(BackwardPlan(rows=1, held=1, **BLOCK, programs=4, sum=way) for way in (Sum.SEPARATE, Sum.LAST)),
    *(BackwardPlan(rows=1, **BLOCK, programs=4, sum=Sum.TREE, group=group) for group in (1, 3, 5, 12, 32)),
    *(
        BackwardPlan(rows=2, held=2, **BLOCK, programs=1, sum=Sum.TREE, group=2, weights=way)
        for way in ("early", "late")
    ),
]
COMBINED = [
    (norm, what, back, FORWARD_PLANS[(number + shift) % len(FORWARD_PLANS)])
    for norm, what, (number, back), shift in product(
        NORMS, (("fp32", ALL), ("bf16-fp32", "bias")), enumerate(BACKWARD_PLANS), (0, 5)
    )
]


def planned(norm: str, what: tuple[str, str], back: BackwardPlan, there: ForwardPlan) -> Trial:
    return Trial(9, 100, norm, *what, forward=there, backward=back)


BARE = [Trial(9, 100, norm, "bf16-fp32", "", forward=plan) for norm, plan in product(NORMS, FORWARD_PLANS)]
PLANNED = [
    *(planned(*chosen) for chosen in pairwise(COMBINED)),
    *(trial for number, trial in enumerate(BARE) if (number + (trial.norm == NORMS[0])) % 2),
]
AT_NIGHT = [
    trial
    for trial in (
        *(Trial(3, cols, norm, "bf16-fp32", ALL) for norm, cols in product(NORMS, (1152, 3000))),
        Trial(2, 12288),
        *(Trial(5, cols, norm, dtypes, ALL, layout) for norm, cols, dtypes, layout in LAID_OUT),
        *(planned(*chosen) for chosen in COMBINED),
        *BARE,
    )
    if trial not in (*RIGHT, *PLANNED)
]
# The ways to add up, at one plan; and where there are fewer tiles than programs.
SUMS = {
    way: BackwardPlan(rows=2, held=2, **BLOCK, programs=4, sum=way, group=4 if way is Sum.TREE else 0) for way in Sum
}
SUMMED = [Trial(rows, 100, norm, "fp32", ALL) for rows, norm in product((5, 21, 1), NORMS)]
FROZEN = [
    Trial(5, 100, norm, "bf16-fp32", what, backward=plan)
    for norm, what, plan in product(NORMS, ("weight", "weight bias"), SUMS.values())
]
LONE = [Trial(1, 100, norm, dtypes, ALL) for norm, dtypes in product(NORMS, ("fp32", "bf16-fp32"))]
ROWS = ("x", "dy", "residual", "dresidual_out")
HEADS = [
    *(Trial(6, 24, *chosen) for chosen in product(NORMS, ("fp32", "bf16-fp32"), (ALL, "weight"))),
    Trial(9, 100, "layernorm", "fp32", ALL, forward=ForwardPlan(2, 32, 1, blocks=4, weights="early", keep="cached")),
    Trial(9, 100, "rmsnorm", "fp32", ALL, backward=BackwardPlan(rows=2, **BLOCK, keep="cached")),
    *(Trial(6, 320, norm, "bf16-fp32", ALL) for norm in NORMS),  # wider than heads are
]
POISONED = [
    Trial(8, 40, norm, dtypes, ALL, forward=ForwardPlan(4, 64, 1, programs=1), backward=BackwardPlan(4, 64, 1, held=2))
    for norm, dtypes in product(NORMS, ("fp32", "bf16"))
]

# By day each norm once, and each of the other values.
BY_DAY = [
    *(SUMMED[at] for at in (1, 2, 4)),
    *(FROZEN[at] for at in (0, 4, 5, 7, 9, 11)),
    *(LONE[at] for at in (0, 3)),
    *(POISONED[at] for at in (1, 2)),
]


def some_at_night(trials: list[Trial]) -> list[Any]:
    return [trial if trial in BY_DAY else pytest.param(trial, marks=pytest.mark.long) for trial in trials]


def cells_of(check: Callable[[Any], Any], trials: list[Trial]) -> dict[str, Any]:
    return {str(trial): check(trial) for trial in trials}


def right(trial: Trial) -> dict[str, float]:
    given = inputs(trial)
    before = {name: tensor.clone() for name, tensor in given.items()}
    found = wrong_by(trial, given, ours(trial, given), cuts_off=True)
    changed = [name for name in given if not torch.equal(given[name].nan_to_num(), before[name].nan_to_num())]
    return found | dict.fromkeys(changed, float("inf"))


def same_without_statistics(trial: Trial) -> bool:
    given = inputs(trial)
    tensors = [given.get(name) for name in ("x", "weight", "bias", "residual")]
    asked, unasked = (
        forward(*tensors, eps=EPS, center=trial.center, offset=trial.offset, statistics=way) for way in (True, False)
    )
    return unasked.rstd is None and unasked.mean is None and torch.equal(asked.y, unasked.y)


def summed(trial: Trial) -> dict[str, Any]:
    """Of each way to add up: do its bits come again, are its counters left at zero, how far is it from the first?"""
    given, found, first = inputs(trial), {}, {}
    for way, plan in SUMS.items():
        with workspaces_seen() as seen:
            once, again = (ours(replace(trial, backward=plan), given) for _ in range(2))
        first = first or once
        found[way] = {
            "repeats": all(torch.equal(once[name], again[name]) for name in once),
            "words": len(seen),
            "left": sum(int(words.count_nonzero()) for words in seen),
            "same dx": torch.equal(once["dx"], first["dx"]),
            "off": max(float((once[name] - first[name]).abs().amax()) for name in ("dweight", "dbias")),
        }
    return found


def changed_by_a_frozen_weight(trial: Trial) -> list[str]:
    """Gradients that are other bits, or are there or not, where that of the weight is not wanted."""
    given = inputs(trial)
    weight, bias = given["weight"], given.get("bias")
    there = forward(given["x"], weight, bias, eps=EPS, center=trial.center, statistics=True)
    asked, unasked = (
        backward(
            given["dy"], given["x"], weight, there.rstd, there.mean,
            bias_dtype=None if bias is None else bias.dtype, weight_wanted=way, plan=trial.backward,
        )._asdict()
        for way in (True, False)
    )  # fmt: skip
    asked["dweight"] = None
    return [
        name
        for name, wanted in asked.items()
        if (wanted is None) != (unasked[name] is None)
        or (wanted is not None and not torch.equal(wanted, unasked[name]))
    ]


@contextmanager
def workspaces_seen() -> Iterator[list[torch.Tensor]]:
    module: Any = sys.modules[backward.__module__]
    real, seen = module.workspace, []

    @contextmanager
    def noting(*arguments: Any, **named: Any) -> Iterator[torch.Tensor | None]:
        with real(*arguments, **named) as words:
            yield words
            seen.extend([] if words is None else [words])

    module.workspace = noting
    yield seen
    module.workspace = real


def other_with_heads(trial: Trial) -> list[str]:
    """Outputs that have other bits, or another shape, where rows are heads of tokens that lie apart."""
    given, heads, differ = inputs(trial), 3, []
    dense = ours(trial, given)
    for some in (("x", "residual"), ("dy",), ("x", "dy", "residual", "dresidual_out")):
        apart = dict(given)
        for name in {*some} & {*given}:
            memory = torch.full((trial.rows // heads, heads * trial.cols + 16), float("nan"), dtype=given[name].dtype)
            apart[name] = memory[:, : heads * trial.cols].view(-1, heads, trial.cols)
        for name in {*ROWS} & {*given}:
            rows = given[name].view(-1, heads, trial.cols)
            apart[name] = apart[name].copy_(rows) if name in some else rows
        outputs = ours(trial, apart)
        for name, output in outputs.items():
            shape = apart["x"].shape if name in ("y", "residual_out", "dx") else dense[name].shape
            if output.shape != shape or not torch.equal(output.view_as(dense[name]), dense[name]):
                differ.append(f"{name}, {some}")
    return differ


def touched_by_poison(trial: Trial) -> list[str]:
    """Outputs of rows that differ in bits because another row has nan or inf, and what hides this."""
    clean, faults = ours(trial, inputs(trial)), []
    row, others = 2, [0, 1, 3, 4, 5, 6, 7]
    for poison, where in product(POISON, ("x", "dy")):
        given = inputs(trial)
        given[where][row] = EDGES[poison](given[where][row])
        outputs = ours(trial, given)
        faults += [
            f"{name} beside {poison} in {where}"
            for name in ("y", "residual_out", "mean", "rstd", "dx")
            if name in outputs and not torch.equal(outputs[name][others], clean[name][others])
        ]
        shown = ("dx", "dweight", "dbias") if where == "dy" else ("y", "dx", "dweight")
        faults += [f"{name} hides {poison} in {where}" for name in shown if outputs[name].isfinite().all()]
    return faults


anything = {"rows": st.integers(1, 5), "cols": st.integers(2, 40), "seed": st.integers(0, 1 << 20)}


@drawn(**anything, power=st.integers(-20, 20))
def scaling_x_changes_nothing(rows: int, cols: int, seed: int, power: int) -> None:
    """To the bit, by powers of two and as long as eps does not count."""
    given = inputs(Trial(rows, cols), seed=seed)
    plain, scaled = (
        forward(given["x"] * factor, given["weight"], eps=1e-37, center=False).y for factor in (1.0, 2.0**power)
    )
    assert torch.equal(plain, scaled)


@drawn(**anything, shift=st.sampled_from((0.5, -8.0, 256.0, 1024.0)))
def shifting_x_changes_nothing_in_a_layernorm(rows: int, cols: int, seed: int, shift: float) -> None:
    given = inputs(Trial(rows, cols, given="weight bias"), seed=seed)
    x = (given["x"] * 64).round() / 64  # so that the sum is exact
    plain, shifted = (
        forward(at, given["weight"], given["bias"], eps=1e-2, center=True, statistics=True) for at in (x, x + shift)
    )
    lost = 2.0**-22 * (abs(shift) + 8) * plain.rstd.amax() * (1 + plain.y.abs().amax())
    assert (plain.y - shifted.y).abs().amax() <= lost


@drawn(**anything, norm=st.sampled_from(NORMS), power=st.integers(-20, 20))
def dx_is_linear_in_dy(rows: int, cols: int, seed: int, norm: str, power: int) -> None:
    trial = Trial(rows, cols, norm)
    given, other = inputs(trial, seed=seed), inputs(trial, seed=seed + 1)["dy"]

    def dx(dy: torch.Tensor) -> torch.Tensor:
        return ours(trial, {**given, "dy": dy})["dx"]

    here = dx(given["dy"])
    assert torch.equal(dx(given["dy"] * 2.0**power), here * 2.0**power)
    total, parts = dx(given["dy"] + other), here + dx(other)
    assert (total - parts).abs().amax() <= 1e-5 * (1 + ours(trial, given)["rstd"].amax())


@drawn(**anything)
def dx_of_a_layernorm_sums_to_zero(rows: int, cols: int, seed: int) -> None:
    trial = Trial(rows, cols, "layernorm")
    outputs = ours(trial, inputs(trial, seed=seed))
    assert (outputs["dx"].sum(1).abs() <= 1e-6 * cols * (1 + outputs["dx"].abs().amax(1)) * (1 + outputs["rstd"])).all()


PROPERTIES = {
    check.__name__: check
    for check in (
        scaling_x_changes_nothing,
        shifting_x_changes_nothing_in_a_layernorm,
        dx_is_linear_in_dy,
        dx_of_a_layernorm_sums_to_zero,
    )
}


def findings(all_trials: bool) -> dict[str, Any]:
    def chosen(trials: list[Trial]) -> list[Trial]:
        return [trial for trial in trials if all_trials or trial in BY_DAY]

    some = examples(max_examples=24 if all_trials else 6, deadline=None, database=None, derandomize=True)
    held: dict[str, str | None] = {}
    for name, check in PROPERTIES.items():
        try:
            held[name] = some(check)()
        except AssertionError:
            held[name] = traceback.format_exc(limit=-3)
    return {
        "right": cells_of(right, [*RIGHT, *PLANNED, *(AT_NIGHT if all_trials else ())]),
        "statistics": cells_of(same_without_statistics, [Trial(5, 24, norm, "bf16-fp32", ALL) for norm in NORMS]),
        "summed": cells_of(summed, chosen(SUMMED)),
        "poisoned": cells_of(touched_by_poison, chosen(POISONED)),
        "frozen": cells_of(changed_by_a_frozen_weight, chosen(FROZEN)),
        "heads": cells_of(other_with_heads, HEADS),
        "lone": cells_of(lone_rows_differ, chosen(LONE)),
        "properties": held,
    }


@pytest.mark.parametrize(
    "trial", [*RIGHT, *PLANNED, *(pytest.param(trial, marks=pytest.mark.long) for trial in AT_NIGHT)], ids=str
)
def test_it_is_right(interpreted, trial):
    over = {name: by for name, by in interpreted["right"][str(trial)].items() if not by <= 1}
    assert over == {}, "times what is allowed"


@pytest.mark.parametrize("norm", NORMS)
def test_statistics_are_asked_for_and_change_nothing(interpreted, norm):
    assert interpreted["statistics"][str(Trial(5, 24, norm, "bf16-fp32", ALL))]


@pytest.mark.parametrize("trial", some_at_night(SUMMED), ids=str)
def test_all_ways_to_add_up_give_the_same_gradients(interpreted, trial):
    for way, found in interpreted["summed"][str(trial)].items():
        assert found["repeats"], way
        assert found["words"] == (0 if way == Sum.SEPARATE else 2)  # one launch, twice
        assert found["left"] == 0, f"{way}: counters"
        assert found["same dx"], way
        assert found["off"] < 1e-5, way


@pytest.mark.parametrize("trial", some_at_night(POISONED), ids=lambda trial: f"{trial.norm} {trial.dtypes}")
def test_a_row_with_nan_or_inf_shows_and_touches_no_other(interpreted, trial):
    assert interpreted["poisoned"][str(trial)] == []


@pytest.mark.parametrize("trial", some_at_night(FROZEN), ids=str)
def test_a_frozen_weight_has_no_gradient_and_changes_no_other_one(interpreted, trial):
    assert interpreted["frozen"][str(trial)] == []


@pytest.mark.parametrize("trial", some_at_night(LONE), ids=str)
def test_the_stride_of_a_lone_row_changes_nothing(interpreted, trial):
    assert interpreted["lone"][str(trial)] == []


@pytest.mark.parametrize(("cols", "first", "stride", "copied"), [
    (4096, 0, 4096, False), (4096, 8, 4104, False), (4096, 4, 4104, True), (4096, 0, 4100, True),
    (3500, 0, 3500, False), (3500, 0, 3504, False), (3500, 0, 3502, True), (3500, 4, 3504, True),
    (1001, 0, 1001, False), (1001, 0, 1008, False), (1001, 1, 1008, False),
])  # fmt: skip
def test_rows_with_narrower_accesses_than_dense_ones_are_copied(cols, first, stride, copied):
    """Otherwise a row would have another layout in a padded batch than alone, and so other bits."""
    x = torch.randn(6 * stride).bfloat16()[first:].as_strided((5, cols), (stride, 1))
    [got] = aligned(x)
    assert (got is not x) == copied
    assert got.is_contiguous() or not copied
    assert torch.equal(got, x)


@pytest.mark.parametrize("stride", [4096, 4097])
def test_the_stride_of_a_lone_row_does_not_count(stride):
    x = torch.zeros(1, stride, dtype=torch.bfloat16)[:, :4096]
    assert aligned(x)[0] is x


@pytest.mark.parametrize(("shape", "strides", "seen"), [
    ((5, 4, 128), (1024, 128, 1), (5, 4, 128)),  # a slice of a packed projection
    ((5, 4, 128), (1024, 136, 1), (5, 4, 128)),
    ((5, 4, 128), (512, 128, 1), (20, 128)),
    ((2, 5, 4, 128), (5120, 1024, 128, 1), (10, 4, 128)),
    ((2, 5, 4, 128), (6144, 1024, 128, 1), None),  # three strides
    ((5, 1, 128), (1024, 7, 1), (5, 128)),
    ((1, 4, 128), (7, 136, 1), (4, 128)),
    ((5, 4, 128), (1020, 128, 1), None),  # narrower accesses than to dense rows
    ((5, 4, 128), (128, 640, 1), None),  # the heads of one token beside those of another
    ((2, 200, 128), (32768, 128, 1), (2, 200, 128)),  # sequences with a gap between them, and no heads
    ((2, 4, 512), (4096, 512, 1), (2, 4, 512)),
    ((2, 2, 9000), (27000, 9000, 1), None),  # so wide that rows may have a team
    ((5, 4, 128), (0, 128, 1), None),
])  # fmt: skip
def test_rows_with_two_strides_are_copied_where_they_are_wide_or_overlap(shape, strides, seen):
    x = torch.randn(60000).bfloat16().as_strided(shape, strides)
    [got] = aligned(x)

    assert got.shape == (seen or (math.prod(shape[:-1]), shape[-1]))
    assert (got.data_ptr() == x.data_ptr()) == (seen is not None)
    assert torch.equal(got.reshape(shape), x)


def test_tensors_with_other_heads_than_those_before_are_copied():
    x, dy = torch.randn(2, 4, 8, 16)[:, :, :4], torch.randn(2, 5, 4, 16)[:, :4]

    seen, copied = aligned(x, dy)

    assert (seen.shape, seen.data_ptr()) == ((8, 4, 16), x.data_ptr())
    assert (copied.shape, copied.is_contiguous()) == ((32, 16), True)
    assert torch.equal(copied, dy.reshape(32, 16))


@pytest.mark.parametrize("trial", HEADS, ids=str)
def test_heads_with_two_strides_have_the_bits_of_dense_rows(interpreted, trial):
    assert interpreted["heads"][str(trial)] == []


def test_a_team_takes_no_rows_with_two_strides():
    x = torch.randn(3, 4, 2, 100)[:, :2]
    for exchange in (True, False):
        plan = ForwardPlan(1, 64, 1, team=2, programs=1, weights="held", exchange=exchange)
        with pytest.raises(ValueError, match="has a team, whose rows have one stride"):
            forward(x, eps=EPS, center=False, plan=plan)


@pytest.mark.parametrize("name", PROPERTIES)
def test_whatever_the_numbers(interpreted, name):
    assert interpreted["properties"][name] is None, interpreted["properties"][name]


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("output", "truth", "over"),
    [
        (1.25, 1.0, 0.5),
        (INF, INF, 0.0),
        (-INF, -INF, 0.0),
        (NAN, NAN, 0.0),
        (-INF, INF, INF),
        (NAN, INF, INF),
        (INF, NAN, INF),
        (1.0, INF, INF),
        (INF, 1.0, INF),
        (NAN, 1.0, INF),
    ],
)
def test_what_is_not_finite_is_right_where_it_is_the_same(output, truth, over):
    assert excess(torch.tensor([output]), torch.tensor([truth]).double(), torch.tensor([0.5])) == over


def matrix(rows: int = 4, cols: int = 8, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.ones(rows, cols, dtype=dtype, device=device)


X, STATISTIC = matrix(), torch.ones(4)
MANY = torch.empty(1 << 31, 1, device="meta")
FAR = torch.empty_strided((2, 8), (1 << 31, 1), device="meta")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"x": torch.ones(())}, r"x must be \[..., columns\] in bfloat16, float16, float32, .* not \(\)"),
        ({"x": matrix(4, 0)}, r"x must be .* not \(4, 0\)"),
        ({"x": matrix(dtype=torch.float64)}, "x must be .* in torch.float64"),
        ({"x": matrix(dtype=torch.int32)}, "x must be .* in torch.int32"),
        ({"x": matrix(8, 4).T}, r"a row of x must be contiguous, .* strides \(1, 4\): call .contiguous\(\)"),
        ({"residual": torch.ones(2, 2, 8)}, r"residual must be like x, \(4, 8\) .* not \(2, 2, 8\)"),
        ({"residual": matrix(5)}, r"residual must be like x, \(4, 8\) in bfloat16, float16, float32 .* not \(5, 8\)"),
        ({"residual": matrix(dtype=torch.float64)}, "residual must be like x, .* not .* in torch.float64"),
        ({"residual": matrix(8, 4).T}, r"residual must be like x, .* strides \(1, 4\)"),
        ({"residual": matrix(device="meta")}, "residual is on meta and x on cpu"),
        ({"weight": torch.ones(4)}, r"weight must be contiguous in .*, one value for each of 8 columns, not \(4,\)"),
        ({"weight": matrix(1)}, r"weight must be contiguous .* not \(1, 8\)"),
        ({"weight": torch.ones(16)[::2]}, r"weight must be contiguous .* strides \(2,\)"),
        ({"weight": torch.ones(8).double()}, "weight must be contiguous in bfloat16, .* in torch.float64"),
        ({"bias": torch.ones(9)}, r"bias must be contiguous .* not \(9,\)"),
        ({"bias": torch.ones(8, device="meta")}, "bias is on meta and x on cpu"),
        ({"offset": 1.0}, "an offset is added to the weight: without a weight it must be 0"),
        ({"x": FAR}, r"the stride of x's rows must be less than 2\^31 elements, not 2147483648"),
        ({"x": MANY}, "x has 2147483648 rows; the kernels take at most 2147418112"),
    ],
)
def test_forward_says_what_does_not_fit(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        forward(**{"x": X, "eps": EPS, "center": True, **arguments})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"dy": matrix(4, 9)}, r"dy must be like x, \(4, 8\) .* not \(4, 9\)"),
        ({"dy": matrix(dtype=torch.float64)}, "dy must be like x, .* in torch.float64"),
        ({"dresidual_out": matrix(dtype=torch.float16)}, "dresidual_out must be like x, .* not torch.float16"),
        ({"narrow_dx": matrix(dtype=torch.float16)}, "narrow_dx must be contiguous and like dy, .* in torch.float32"),
        ({"dy": torch.ones(()).expand(4, 8)}, r"dy must be like x, .* strides \(0, 0\)"),
        ({"dresidual_out": matrix(3)}, r"dresidual_out must be like x, .* not \(3, 8\)"),
        ({"weight": torch.ones(7)}, "weight must be contiguous in .*, one value for each of 8 columns"),
        ({"dy": matrix(device="meta")}, "dy is on meta and x on cpu"),
        ({"weight": None, "offset": 1.0}, "an offset is added to the weight: without a weight it must be 0"),
        ({"bias_dtype": torch.int32}, r"bias_dtype must be torch.bfloat16, .* or None, not torch.int32"),
        *(
            ({name: value}, f"{name} must be contiguous in float32, one value for each of 4 rows, not {but}")
            for name in ("rstd", "mean")
            for value, but in (
                (torch.ones(5), r"\(5,\)"),
                (torch.ones(4, 1), r"\(4, 1\)"),
                (torch.ones(4, dtype=torch.bfloat16), ".* in torch.bfloat16"),
                (torch.ones(4, dtype=torch.float64), ".* in torch.float64"),
                (torch.ones(8)[::2], r".* strides \(2,\)"),
            )
        ),
        *(({name: torch.ones(4, device="meta")}, f"{name} is on meta and x on cpu") for name in ("rstd", "mean")),
    ],
)
def test_backward_says_what_does_not_fit(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        backward(**{"dy": X, "x": X, "weight": torch.ones(8), "rstd": STATISTIC, **arguments})


def test_without_rows_there_are_gradients_of_zero():
    given = inputs(Trial(0, 8, given="weight bias"))
    found = backward(given["dy"], given["x"], given["weight"], torch.ones(0), bias_dtype=torch.bfloat16)

    assert found.dx.shape == (0, 8)
    assert found.dweight.tolist() == [0] * 8
    assert (found.dbias.tolist(), found.dbias.dtype) == ([0] * 8, torch.bfloat16)
    frozen = backward(given["dy"], given["x"], given["weight"], torch.ones(0), weight_wanted=False)
    assert frozen.dweight is None


class Streams:
    """Streams and captures by their numbers, of a GPU that is not there; what lies on it lies in the CPU's memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.capture, made = 1, 0, workspaces._made
        monkeypatch.setattr(workspaces, "_of_streams", {})
        monkeypatch.setattr(workspaces, "_stores", {})
        monkeypatch.setattr(workspaces, "_capture_of", lambda stream: self.capture)
        monkeypatch.setattr(workspaces, "_made", lambda device: made(torch.device("cpu")))
        monkeypatch.setattr(torch.cuda, "current_stream", self._current)

    def words(self, device: int = 0) -> torch.Tensor:
        with workspaces.workspace(torch.device("cuda", device)) as words:
            return words

    def _current(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(cuda_stream=self.stream, synchronize=lambda: None)


@pytest.fixture
def streams(monkeypatch):
    return Streams(monkeypatch)


def test_each_stream_and_capture_of_each_device_has_its_own_words(streams):
    first = streams.words()
    assert not first.any()
    assert streams.words() is first

    found = [first, streams.words(device=1)]
    for streams.stream, streams.capture in ((2, 0), (1, 7), (1, 8), (2, 7)):
        found.append(streams.words())
        assert streams.words() is found[-1]
    assert len({words.data_ptr() for words in found}) == len(found)


def test_a_capture_takes_from_a_store_that_was_zeroed_before(streams):
    """Nothing may be zeroed while it is being captured: that would be replayed."""
    outside = streams.words()
    outside += 1
    found = []
    for streams.capture in range(1, workspaces.STORE):
        found.append(streams.words())
        assert not found[-1].any()
        found[-1] += 1
    assert len({words.data_ptr() for words in [outside, *found]}) == workspaces.STORE


def test_a_call_outside_of_captures_fills_the_store_that_they_emptied(streams):
    first = streams.words()
    for streams.capture in range(1, workspaces.STORE):
        streams.words()
    assert workspaces._stores == {0: []}

    streams.capture = 0
    assert streams.words() is first
    assert len(workspaces._stores[0]) == workspaces.STORE
    streams.capture = workspaces.STORE
    assert streams.words() is streams.words()


def test_words_of_a_launch_that_failed_are_forgotten(streams):
    def launch() -> None:
        with workspaces.workspace(torch.device("cuda", 0)) as words:
            words += 1
            raise RuntimeError("out of resource")

    first = streams.words()
    with pytest.raises(RuntimeError, match="out of resource"):
        launch()

    assert streams.words() is not first
    assert not streams.words().any()


def test_rows_have_slots_of_the_workspace_or_new_ones(streams):
    words = streams.words()
    words += 1
    most = (workspaces.WORDS - workspaces.SLOTS) // (2 * 16)
    inside = workspaces.slots_of_rows(words, most, team=16)
    assert inside.data_ptr() == words[workspaces.SLOTS :].data_ptr()
    assert inside.numel() == most * 2 * 16

    new = workspaces.slots_of_rows(words, most + 1, team=16)
    assert new.numel() == (most + 1) * 2 * 16
    assert not new.any(), "no tag of an earlier launch"


def test_no_words_where_none_are_wanted():
    with workspaces.workspace(torch.device("cpu"), wanted=False) as words:
        assert words is None
