"""Which plan a row gets: tables by width, and what follows from them."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch

from kernels.cases import Direction
from kernels.norms import plans, tuned_plans
from kernels.norms.calls.again import BACKWARD, FORWARD
from kernels.norms.plans import ForwardPlan
from kernelwatch.norms import set_batch_invariant

from .interpreted import ROOT

SMS = 132
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # an import of it raises an error
from itertools import product
import torch
from kernels.cases import Direction
from kernels.norms import plans, tuned_plans
from kernels.norms.calls.again import BACKWARD, FORWARD

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
    (1, 64, 4), (65, 16, 4), (81, 32, 4), (97, 128, 4), (128, 128, 4), (129, 256, 4), (513, 64, 4), (577, 128, 8),
    (768, 1024, 4), (1152, 512, 2), (1537, 2048, 4), (3000, 4096, 4), (3584, 4096, 8), (3585, 4096, 8), (5120, 8192, 8),
    (7169, 8192, 16), (14336, 16384, 8), (16384, 4096, 32), (20480, 4096, 32), (24576, 4096, 32), (32768, 16384, 32),
])  # fmt: skip
def test_a_width_has_the_plan_of_the_next_width_in_the_table(cols, block, warps):
    plan = plans.forward(cols, center=False)
    assert (plan.block, plan.warps, plan.team) == (block, warps, 1)


@pytest.mark.parametrize(("cols", "narrow", "wide"), [
    (8192, (16, "early", 1), (16, "early", 1)), (14336, (16, "early", 1), (8, "early", 1)),
    (20480, (32, "early", 1), (32, "early", 1)), (24576, (32, "early", 1), (32, "late", 1)),
    (28672, (32, "early", 1), (32, "late", 1)), (32768, (32, "early", 1), (32, "late", 1)),
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
    for cols in (4096, 8192):
        assert chosen(cols, True) == chosen(cols, False)
    assert chosen(16384, True).blocks < chosen(16384, False).blocks
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
    (24576, (4, 4), replace(plans.forward(24576, center=False, size=4), weights="late")),
    (20480, (2, 4), replace(plans.forward(20480, center=False), weights="late")),
    (24577, (4, 4), ForwardPlan(1, 16384, 32, blocks=2)),
    (40000, (4, 4), plans.forward(40000, center=False, size=4)),
    (65536, (4, 4), plans.forward(65536, center=True, size=4)),
])  # fmt: skip
def test_wide_rows_of_rmsnorm_with_a_bias_have_registers_for_both_vectors(cols, sizes, expected):
    options = dict(zip(("size", "weight_size"), sizes, strict=True))
    assert plans.forward(cols, center=False, bias=True, **options) == expected
    with_residual = partial(plans.forward, cols, center=False, residual=True, **options)
    assert with_residual(bias=True) == with_residual()


@pytest.mark.parametrize(("cols", "options", "keep", "weights"), [
    (1000, {}, "fp32", "early"), (4096, {}, "fp32", "early"), (12288, {}, "cached", "early"),
    (8192, {"size": 4}, "fp32", "early"), (14336, {"bias": True}, "fp32", "early"), (20000, {}, "cached", "early"),
    (16400, {}, "cached", "early"), (32768, {"weight_size": 2}, "cached", "early"),
    (240, {"residual": True}, "fp32", "early"),
    (20000, {"residual": True}, "packed", "late"), (30000, {"weight_size": 2, "residual": True}, "packed", "early"),
])  # fmt: skip
def test_rows_that_are_worked_on_at_once_stay_in_registers_as_far_as_there_are_enough(cols, options, keep, weights):
    choose = partial(plans.forward, cols, center=False, **options)
    assert choose(rows=100, processors=SMS) == replace(choose(), keep=keep, weights=weights)


@pytest.mark.parametrize(("cols", "options"), [
    (1600, {}), (2048, {"bias": True}), (8192, {}), (14000, {"residual": True}), (16384, {}),
])  # fmt: skip
def test_layernorm_prefetches_nothing_where_rows_are_worked_on_at_once(cols, options):
    choose = partial(plans.forward, cols, center=True, **options)
    at_once = choose(rows=100, processors=SMS)
    assert at_once == replace(choose(), programs=0, stages=1, keep="fp32", weights="early", registers=None)


def test_two_programs_on_an_sm_leave_a_thread_half_of_the_registers():
    choose = partial(plans.forward, 14000, center=False, processors=SMS)
    assert choose(rows=SMS).keep == choose(rows=SMS, bias=True).keep == "fp32"
    assert choose(rows=SMS + 1).keep == "packed"
    assert choose(rows=SMS + 1, bias=True) == choose(bias=True)
    with_residual = partial(plans.forward, 9824, center=False, residual=True, processors=SMS)
    assert with_residual(rows=SMS).keep == "fp32"
    assert with_residual(rows=SMS + 1) == replace(with_residual(), keep="packed")
    of_layernorm = partial(plans.forward, 8192, center=True, processors=SMS)
    assert of_layernorm(rows=2 * SMS) == of_layernorm(rows=SMS)


def test_few_narrow_rows_of_layernorm_have_more_than_a_warp():
    choose = partial(plans.forward, 1280, center=True, processors=SMS)
    few, more = choose(rows=SMS, batch_invariant=False), choose(rows=SMS + 1, batch_invariant=False)
    assert (few.block, few.blocks, few.warps, few.keep) == (256, 5, 4, "fp32")
    assert (more.block, more.blocks, more.warps) == (2048, 1, 1)


@pytest.mark.parametrize(("cols", "rows", "block", "keep"), [
    (8192, 4, 1024, "fp32"), (12288, 4, 1024, "fp32"), (8196, 4, 1024, "cached"), (32768, 33, 4096, "cached"),
    (12288, 64, 2048, "fp32"), (12292, 50, 2048, "cached"), (16384, 64, 2048, "cached"),
])  # fmt: skip
def test_many_columns_of_a_thread_or_narrow_accesses_are_read_again_backward(cols, rows, block, keep):
    plan = plans.backward(cols, center=True, rows=rows, processors=SMS, batch_invariant=False)
    assert (plan.block, plan.keep) == (block, keep)


def test_three_wide_blocks_of_few_rows_are_read_twice():
    assert plans.forward(12288, center=True, size=4, rows=100, processors=SMS).keep == "cached"


@pytest.mark.parametrize(("cols", "center", "rows"), [
    (4096, False, SMS * 4),  # 8 warps of 32 for each row
    (200, False, SMS * 64),  # 8 rows in 4 warps
    (1500, True, SMS * 6),  # the tiles of a persistent launch: 6 programs on an SM
])  # fmt: skip
def test_at_once_are_half_of_the_warps_of_each_sm_or_a_tile_of_each_persistent_program(cols, center, rows):
    choose = partial(plans.forward, cols, center=center, processors=SMS)
    assert choose(rows=rows) != choose()
    assert choose(rows=rows + 8) == choose()


@pytest.mark.parametrize("direction", [*Direction][:2])
@pytest.mark.parametrize("cols", [100, 1152, 5120, 8200, 12289, 20000, 40000, 60000, 131072, 262144])
def test_a_batch_invariant_plan_sums_a_row_in_the_same_order_for_all_numbers_of_rows(direction, cols):
    def order(plan):
        return plan.rows, plan.block, plan.blocks, plan.warps, plan.team

    bools = (False, True)
    for center, residual, bias, size, weight_size in product(bools, bools, bools, (2, 4), (2, 4)):
        choose = partial(
            plans.default, direction, cols, center=center, residual=residual, bias=bias, size=size,
            weight_size=weight_size, processors=SMS,
        )  # fmt: skip
        assert {order(choose(rows=rows)) for rows in (1, 7, 16, 66, SMS, SMS + 1, 1000, 4224, 100_000)} == {
            order(choose())
        }


@pytest.mark.parametrize(("cols", "rows", "options", "program", "team"), [
    (12288, 1, {}, None, 1),  # 24 KiB
    (12289, 1, {}, (1024, 2), 13), (6145, 1, {"size": 4}, (1024, 2), 7),
    (16384, 16, {}, (1024, 1), 16),  # fewer warps, so that the next launch starts at once
    (16384, 17, {}, None, 1),  # less than 8 SMs for each row
    (16384, 16, {"center": True}, (2048, 2), 8),  # two warps at least
    (32768, 16, {}, (2048, 4), 16), (65536, 2, {}, (1024, 2), 64), (65537, 2, {}, (2048, 4), 33),
    (262144, 2, {"center": True}, (8192, 8), 32), (1 << 20, 2, {}, None, 64),
])  # fmt: skip
def test_few_wide_rows_are_split_forward(cols, rows, options, program, team):
    choose = partial(plans.forward, cols, **{"center": False, **options})
    plan = choose(rows=rows, processors=SMS, batch_invariant=False)
    assert plan.team == team
    if program is None:
        alike = {"keep": "cached", "weights": "late", "programs": choose().programs}
        assert replace(plan, **alike) == replace(choose(), **alike)
    else:
        assert (plan.block, plan.warps) == program


@pytest.mark.parametrize(("cols", "rows", "program", "team"), [
    (4096, 1, None, 1), (4097, 1, (1024, 2), 5), (8192, 33, (1024, 2), 8), (8192, 34, (2048, 4), 4),
    (8192, 66, (2048, 4), 4), (8192, 67, None, 1), (8200, 34, (2048, 4), 5),
    (12288, 105, (2048, 4), 6), (12288, 106, None, 1), (32768, 33, (4096, 8), 8),
    (32768, 34, (2048, 4), 16), (32768, 67, None, 8), (65536, 4, (1024, 2), 64), (65536, 33, None, 16),
    (131072, 4, (2048, 4), 64), (1 << 20, 1, None, 64),
])  # fmt: skip
@pytest.mark.parametrize("center", [False, True])
def test_few_wide_rows_are_split_backward(cols, rows, program, team, center):
    plan = plans.backward(cols, center=center, rows=rows, processors=SMS, batch_invariant=False)
    if program is None:
        assert plan == plans.backward(cols, center=center)
    else:
        assert (plan.block, plan.warps, plan.team) == (*program, team)


def test_60000_columns_of_few_rows_have_a_team_where_others_have_one_program():
    choose = partial(plans.forward, 60000, center=False, weight_size=2)
    assert choose().team == choose(rows=SMS, processors=SMS).team == 1
    assert choose(rows=SMS, processors=SMS, batch_invariant=False) == plans.forward(60000, center=False)


@pytest.mark.parametrize(("cols", "rows", "options", "expected"), [
    (20480, SMS, {"center": True}, ForwardPlan(1, 4096, 32, blocks=5)), (20480, SMS + 1, {"center": True}, None),
    (20480, 92, {"center": True}, ForwardPlan(1, 2048, 4, team=10, programs=7, weights="held")),
    (20480, 52, {"center": True}, ForwardPlan(1, 2048, 4, team=10, programs=4, weights="held", keep="fp32")),
    (28672, 100, {"center": True}, ForwardPlan(1, 4096, 32, blocks=7)), (28680, 100, {"center": True}, None),
    (46320, 37, {"center": True}, ForwardPlan(1, 2048, 4, team=23, programs=7, weights="held")),
    (100000, 30, {"center": True}, None), (20480, 100, {"center": True, "size": 4}, None),
    (20484, 52, {"center": True}, None), (26000, 60, {"center": True, "residual": True}, None),
    (24576, 60, {"residual": True}, ForwardPlan(1, 4096, 4, team=6, programs=3, weights="held", keep="fp32")),
    (24576, 132, {"residual": True}, ForwardPlan(1, 4096, 4, team=6, programs=6)),
    (24576, 133, {"residual": True}, None), (26000, 113, {"residual": True, "weight_size": 2},
     ForwardPlan(1, 4096, 4, team=7, programs=6)), (26000, 114, {"residual": True, "weight_size": 2}, None),
    (24576, 150, {"residual": True, "weight_size": 2}, ForwardPlan(1, 4096, 4, team=6, programs=7)),
    (24576, 60, {"residual": True, "bias": True}, None), (24580, 60, {"residual": True}, None),
    (16384, 40, {"residual": True}, None), (24576, 150, {}, None),
])  # fmt: skip
def test_more_rows_of_layernorm_and_with_a_residual_have_plans_of_their_own(cols, rows, options, expected):
    choose = partial(plans.forward, cols, **{"center": False, **options})
    plan = choose(rows=rows, processors=SMS, batch_invariant=False)
    assert plan == (expected or choose(rows=rows, processors=SMS))


@pytest.mark.parametrize(("cols", "rows", "options", "programs", "keep"), [
    (12288, 64, {}, 3, "fp32"), (12288, 105, {"center": True}, 5, "cached"),
    (12288, 105, {"residual": True}, 5, "cached"), (13008, 105, {}, 6, "cached"),
    (13008, 105, {"residual": True}, None, None), (13008, 105, {"bias": True}, None, None),
    (16384, 105, {}, 7, "cached"), (16400, 100, {}, None, None), (12288, 64, {"size": 4}, None, None),
    (12288, 64, {"center": True, "residual": True}, None, None), (12292, 64, {}, None, None),
])  # fmt: skip
def test_more_rows_are_split_backward_as_far_as_registers_suffice(cols, rows, options, programs, keep):
    choose = partial(plans.default, Direction.BWD, cols, **{"center": False, **options})
    plan = choose(rows=rows, processors=SMS, batch_invariant=False)
    if programs is None:
        assert plan == choose()
    else:
        assert (plan.block, plan.warps, plan.programs, plan.keep) == (2048, 4, programs, keep)


@pytest.mark.parametrize(("cols", "rows", "options", "changed"), [
    (40960, 39, {}, {"programs": 3, "keep": "fp32"}), (40960, 40, {}, {}), (40960, 79, {}, {}),
    (40960, 80, {}, {"programs": 8, "weights": "late"}), (40960, 105, {}, {"programs": 8, "weights": "late"}),
    (40960, 106, {}, {}), (40964, 100, {}, {}), (65536, 50, {"size": 4, "bias": True}, {}),
    (40960, 64, {"residual": True}, {"programs": 5, "weights": "late"}), (40960, 67, {"residual": True}, {}),
    (40960, 100, {"center": True}, {}), (40960, 70, {"center": True, "residual": True}, {}),
    (131072, 40, {}, {}), (131072, 9, {}, {}),
])  # fmt: skip
def test_teams_that_take_rows_have_programs_for_all_of_them_at_once(cols, rows, options, changed):
    choose = partial(plans.forward, cols, **{"center": False, **options})
    assert choose(rows=rows, processors=SMS) == replace(choose(), **changed)


@pytest.mark.parametrize("direction", [*Direction][:2])
def test_rows_do_not_count_without_the_number_of_sms(direction):
    choose = partial(plans.default, direction, 40960, center=False, batch_invariant=False)
    assert choose(rows=5) == choose(rows=0, processors=SMS) == choose()


@pytest.mark.parametrize("cols", [80, 96, 560])
def test_narrow_tiles_that_were_measured_in_16_bits_are_for_these(cols):
    assert plans.forward(cols, center=False).blocks > plans.forward(cols, center=False, size=4).blocks


def test_131072_columns_of_few_rows_have_narrower_programs():
    choose = partial(plans.forward, 131072, center=False, processors=SMS, batch_invariant=False)
    assert (choose(rows=33).block, choose(rows=34).block) == (4096, 16384)


@pytest.mark.parametrize(("cols", "options"), [
    (40000, {"center": True}), (65536, {"weight_size": 2, "bias": True}),
    (30000, {"size": 4, "bias": True}),
])  # fmt: skip
def test_other_plans_do_not_depend_on_the_rows_forward(cols, options):
    choose = partial(plans.forward, cols, **{"center": False, **options})
    assert choose(rows=100, processors=SMS) == choose()


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


@pytest.mark.parametrize(
    "cols", [1, 100, 1152, 5120, 12289, 16384, 16385, 40000, 51264, 65544, 100000, 262144, 1 << 20]
)
def test_a_plan_holds_its_row(cols):
    bools = (False, True)
    for center, residual, rows, invariant, size, weight_size in product(
        bools, bools, (None, 1, 3, 16, 60, 500), bools, (2, 4), (2, 4)
    ):
        options = {
            "center": center, "size": size, "residual": residual,
            "rows": rows, "processors": SMS, "batch_invariant": invariant,
        }  # fmt: skip
        there = plans.forward(cols, weight_size=weight_size, **options)
        for plan in (there, plans.backward(cols, **options)):
            assert plans.problem(plan, cols) is None, plan
            assert plan.span * (plan.team - 1) < cols <= plan.span * plan.team
            assert plan.team <= min(plans.MAX_TEAM, 32 * plan.warps)
            assert plan.rows == 1 or plan.team == 1
            assert plan.block & (plan.block - 1) == 0
            assert 32 * plan.warps * plan.programs * (plan.options.get("maxnreg") or 0) <= plans.REGISTERS


@pytest.fixture
def switch():
    before = tuned_plans.batch_invariant
    yield set_batch_invariant
    set_batch_invariant(before)


def test_few_rows_are_split_unless_they_have_heads_or_the_switch_asks_for_the_bits_of_every_batch(switch):
    x = torch.empty(2, 25688, device="meta", dtype=torch.bfloat16)

    def teams(**more):
        choose = partial(tuned_plans.chosen_plan, x=x, weight=x[0], norm="rmsnorm", rows=2, processors=SMS, **more)
        return choose(Direction.FWD).team, choose(Direction.BWD).team

    changed = tuned_plans.choices
    switch(False)
    assert (teams(), teams(one_stride=False)) == ((26, 26), (1, 13))
    switch(True)
    assert teams() == (1, 13)
    switch(False)
    assert teams() == (26, 26)
    assert tuned_plans.choices == changed + 3


@pytest.mark.parametrize("change", [set_batch_invariant, lambda wanted: tuned_plans.use(None)])
def test_calls_that_were_made_before_are_forgotten_where_others_are_chosen(switch, change):
    tensors = (torch.ones(2, 4),)
    for calls in (FORWARD, BACKWARD):
        calls.keep(lambda: True, lambda x: x, tensors)
        assert calls.again(tensors) is tensors[0]
    change(True)
    assert FORWARD.again(tensors) is BACKWARD.again(tensors) is None


@pytest.mark.parametrize(("value", "expected"), [("1", "True"), ("0", "False"), ("", "False"), (None, "False")])
def test_the_environment_may_ask_for_the_bits_of_every_batch(value, expected):
    environment = {name: each for name, each in os.environ.items() if name != "KERNELWATCH_BATCH_INVARIANT"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if value is None else {"KERNELWATCH_BATCH_INVARIANT": value})
    command = [sys.executable, "-c", "from kernels.norms import tuned_plans; print(tuned_plans.batch_invariant)"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip() == expected


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
