"""Which plan a row gets: a table by powers of two, and what follows from it."""

import pytest

from kernels.norms import plans


@pytest.mark.parametrize(("cols", "block", "warps"), [
    (1, 128, 4), (128, 128, 4), (129, 256, 4), (4096, 4096, 8), (3840, 4096, 8), (3584, 4096, 4), (2560, 4096, 4),
    (5120, 8192, 8), (8192, 8192, 16), (12288, 16384, 16), (16384, 16384, 32), (32768, 32768, 32),
])  # fmt: skip
def test_rmsnorm_forward_has_half_the_warps_where_an_eighth_of_the_block_is_empty(cols, block, warps):
    plan = plans.forward(cols, center=False)
    assert (plan.block, plan.warps, plan.team) == (block, warps, 1)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("choose", [plans.forward, plans.backward])
@pytest.mark.parametrize("cols", [1, 100, 1152, 5120, 16384, 16385, 40000, 100000, 262144, 1 << 20])
def test_a_plan_holds_its_row(choose, cols, center, size):
    plan = choose(cols, center=center, size=size)
    assert plan.block * (plan.team - 1) < cols <= plan.block * plan.team
    assert plan.team <= min(plans.MAX_TEAM, 32 * plan.warps)
    assert plan.rows == 1 or plan.team == 1
    assert plan.block & (plan.block - 1) == 0
    assert 32 * plan.warps * plan.programs * (plan.options.get("maxnreg") or 0) <= plans.REGISTERS
