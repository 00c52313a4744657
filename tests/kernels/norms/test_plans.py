"""Which plan a row gets: tables by width, and what follows from them."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from kernels.norms import plans
from kernels.norms.plans import ForwardPlan

from .interpreted import ROOT

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # an import of it raises an error
from itertools import product
import torch
from kernels.cases import Direction
from kernels.norms import plans, tuned_plans

widths = [cols for power in range(21) for cols in (1 << power, 3 << power)]
norms = ("rmsnorm", "layernorm")
for direction, norm, dtype in product((Direction.FWD, Direction.BWD), norms, (torch.bfloat16, torch.float32)):
    for cols in widths:
        x = torch.empty(2, cols, dtype=dtype, device="meta")
        chosen = tuned_plans.chosen_plan(direction, x, x[0], norm=norm)
        size = dtype.itemsize
        expected = plans.default(direction, cols, center=norm == "layernorm", size=size, weight_size=size)
        assert chosen == expected, chosen
        assert "num_ctas" not in chosen.options
print(len(widths))
"""


@pytest.mark.parametrize(("cols", "block", "warps"), [
    (1, 64, 4), (65, 128, 4), (128, 128, 4), (129, 256, 4), (768, 1024, 4), (1152, 512, 2), (1537, 2048, 4),
    (3000, 4096, 4), (3584, 4096, 8), (3585, 4096, 8), (5120, 8192, 8), (7169, 8192, 16), (14336, 16384, 8),
    (16384, 16384, 32), (20480, 8192, 32), (32768, 16384, 32),
])  # fmt: skip
def test_a_width_has_the_plan_of_the_next_width_in_the_table(cols, block, warps):
    plan = plans.forward(cols, center=False)
    assert (plan.block, plan.warps, plan.team) == (block, warps, 1)


@pytest.mark.parametrize(("cols", "narrow", "wide"), [
    (8192, (16, "early", 1), (16, "early", 1)), (12288, (16, "early", 1), (16, "late", 1)),
    (16384, (16, "early", 1), (32, "early", 1)), (32768, (32, "late", 1), (32, "late", 1)),
    (57344, (4, "held", 14), (4, "held", 14)), (57345, (32, "late", 1), (4, "held", 15)),
    (65536, (32, "late", 1), (4, "held", 16)), (65537, (4, "held", 17), (4, "held", 17)),
    (131071, (4, "held", 32), (4, "held", 32)), (131072, (8, "held", 8), (8, "held", 8)),
])  # fmt: skip
def test_weights_of_16_bits_have_plans_of_their_own_forward(cols, narrow, wide):
    for weight_size, expected in ((2, narrow), (4, wide)):
        plan = plans.forward(cols, center=False, weight_size=weight_size)
        assert (plan.warps, plan.weights, plan.team) == expected
    assert plans.forward(cols, center=True, weight_size=2) == plans.forward(cols, center=True, weight_size=4)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("weight_size", [2, 4])
def test_a_residual_has_plans_of_its_own_for_narrow_and_for_wide_rows(size, weight_size):
    def chosen(cols, residual):
        return plans.forward(cols, center=False, size=size, weight_size=weight_size, residual=residual)

    def elements(plan):
        return plan.rows * plan.span // (32 * plan.warps)  # of a thread

    assert elements(chosen(1000, True)) < elements(chosen(1000, False)), "a residual is as many bytes again"
    for cols in (4096, 8192, 12288):
        assert chosen(cols, True) == chosen(cols, False)
    assert elements(plans.forward(100000, center=False, residual=True)) < elements(plans.forward(100000, center=False))


@pytest.mark.parametrize(("center", "size", "residual", "dynamic"), [
    (False, 2, False, True), (False, 2, True, True), (False, 4, False, True), (False, 4, True, False),
    (True, 2, False, False), (True, 2, True, True), (True, 4, False, True), (True, 4, True, False),
])  # fmt: skip
@pytest.mark.parametrize("cols", [40000, 100000, 262144])
def test_rows_are_scheduled_dynamically_where_none_is_prefetched(cols, center, size, residual, dynamic):
    plan = plans.forward(cols, center=center, size=size, residual=residual)
    assert (plan.dynamic, plan.stages == 1) == (dynamic, dynamic)
    assert not replace(plan, exchange=False).dynamic, "two passes have no team that waits"
    assert not plans.forward(1000, center=center).dynamic


@pytest.mark.parametrize(("cols", "sizes", "expected"), [
    (32768, (2, 4), plans.forward(32768, center=False)), (40000, (2, 4), plans.forward(40000, center=True)),
    (57344, (2, 2), plans.forward(57344, center=True)), (57345, (2, 2), ForwardPlan(1, 32768, 32, blocks=2)),
    (65536, (2, 4), plans.forward(65536, center=True)), (262144, (2, 2), plans.forward(262144, center=True)),
    (28672, (4, 4), plans.forward(28672, center=False, size=4)), (28673, (4, 4), ForwardPlan(1, 16384, 32, blocks=2)),
    (40000, (4, 4), plans.forward(40000, center=False, size=4)),
])  # fmt: skip
def test_wide_rows_of_rmsnorm_with_a_bias_have_registers_for_both_vectors(cols, sizes, expected):
    options = dict(zip(("size", "weight_size"), sizes, strict=True))
    assert plans.forward(cols, center=False, bias=True, **options) == expected
    with_residual = partial(plans.forward, cols, center=False, residual=True, **options)
    assert with_residual(bias=True) == with_residual()


@pytest.mark.parametrize(("cols", "weight_size", "residual", "keep", "weights"), [
    (4096, 4, False, "cached", "early"), (12288, 4, False, "cached", "early"), (32768, 2, False, "cached", "early"),
    (4096, 4, True, "packed", "early"), (12288, 4, True, "packed", "early"), (20000, 4, True, "packed", "late"),
    (20000, 2, True, "packed", "early"),
])  # fmt: skip
def test_wide_rows_of_rmsnorm_load_their_weights_earlier_where_there_are_few(
    cols, weight_size, residual, keep, weights
):
    choose = partial(plans.forward, cols, center=False, weight_size=weight_size, residual=residual)
    assert choose(few=True) == replace(choose(), keep=keep, weights=weights)


@pytest.mark.parametrize(("cols", "options"), [
    (1600, {}), (2048, {"bias": True}), (8192, {}), (14000, {"size": 4}), (16384, {"residual": True}),
])  # fmt: skip
def test_few_rows_of_layernorm_are_kept_in_registers_and_nothing_is_prefetched(cols, options):
    choose = partial(plans.forward, cols, center=True, **options)
    assert choose(few=True) == replace(choose(), programs=0, stages=1, keep="fp32", weights="early")


def test_three_wide_blocks_of_few_rows_are_read_twice():
    assert plans.forward(12288, center=True, size=4, few=True).keep == "cached"


@pytest.mark.parametrize(("cols", "options"), [
    (2048, {}), (1280, {"center": True}), (40000, {}), (40000, {"center": True}), (65536, {"weight_size": 2}),
    (8192, {"size": 4}), (8192, {"bias": True}),
])  # fmt: skip
def test_other_plans_do_not_depend_on_how_few_rows_there_are(cols, options):
    choose = partial(plans.forward, cols, **{"center": False, **options})
    assert choose(few=True) == choose()


@pytest.mark.parametrize(
    ("cols", "size", "elements"), [(1024, 2, 8), (1024, 4, 4), (3500, 2, 4), (1002, 2, 2), (1001, 4, 1)]
)
def test_the_widest_access_to_dense_rows(cols, size, elements):
    assert plans.access(cols, size) == elements


@pytest.mark.parametrize(("cols", "residual", "stages", "team"), [
    (14336, False, 3, 1), (15000, False, 1, 1), (15008, False, 3, 8), (16384, False, 3, 8), (30648, False, 1, 15),
    (30656, False, 3, 8), (30648, True, 1, 15), (30656, True, 3, 8),
])  # fmt: skip
def test_backward_unaligned_rows_are_not_prefetched(cols, residual, stages, team):
    """Rows of 16-bit elements begin at a sector of memory if their width is a multiple of 16."""
    plan = plans.backward(cols, center=False, residual=residual)
    assert (plan.stages, plan.team) == (stages, team)
    assert plans.backward(cols, center=True).stages == 3, "LayerNorm would spill"


@pytest.mark.parametrize("table", [
    *plans._RMSNORM_FORWARD_TABLES.values(), *plans._RMSNORM_FORWARD_RESIDUAL.values(),
    plans._LAYERNORM_FORWARD, plans._LAYERNORM_FORWARD_FP32, plans._LAYERNORM_RESIDUAL_FP32,
    plans._RMSNORM_BACKWARD, plans._RMSNORM_BACKWARD_RESIDUAL, plans._RMSNORM_BACKWARD_FP32,
    plans._LAYERNORM_BACKWARD, plans._LAYERNORM_BACKWARD_FP32,
])  # fmt: skip
def test_widths_of_a_table_ascend_and_fit_their_blocks(table):
    assert [*table] == sorted(table)
    assert all(plan.span >= cols > plan.span // 2 for cols, plan in table.items() if cols > min(table))


@pytest.mark.parametrize("cols", [1, 100, 1152, 5120, 12289, 16384, 16385, 40000, 65544, 100000, 262144, 1 << 20])
def test_a_plan_holds_its_row(cols):
    bools = (False, True)
    for center, residual, few, size, weight_size in product(bools, bools, bools, (2, 4), (2, 4)):
        options = {"center": center, "size": size, "residual": residual}
        there = plans.forward(cols, weight_size=weight_size, few=few, **options)
        for plan in (there, plans.backward(cols, **options)):
            assert plans.problem(plan, cols) is None, plan
            assert plan.span * (plan.team - 1) < cols <= plan.span * plan.team
            assert plan.team <= min(plans.MAX_TEAM, 32 * plan.warps)
            assert plan.rows == 1 or plan.team == 1
            assert plan.block & (plan.block - 1) == 0
            assert 32 * plan.warps * plan.programs * (plan.options.get("maxnreg") or 0) <= plans.REGISTERS


def test_an_upgrade_of_triton_changes_no_plan():
    """Plans are chosen where there is no Triton at all.  With Triton 3.9 wide rows once became clusters, which took 1.3
    to 3.2 times as long on an H200."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON],
        env={name: value for name, value in os.environ.items() if name != "KERNELWATCH_TUNED"}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr[-2000:]
