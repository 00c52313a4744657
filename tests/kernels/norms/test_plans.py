"""Which plan a row gets: a table by powers of two, and what follows from it."""

import os
import subprocess
import sys

import pytest

from kernels.norms import plans

from .truth import ROOT

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # an import of it raises an error
from itertools import product
import torch
from kernels.cases import Direction
from kernels.norms import choosing, plans

widths = [cols for power in range(21) for cols in (1 << power, 3 << power)]
for direction, center, dtype in product((Direction.FWD, Direction.BWD), (False, True), (torch.bfloat16, torch.float32)):
    for cols in widths:
        x = torch.empty(2, cols, dtype=dtype, device="meta")
        chosen = choosing.chosen_plan(direction, x, x[0], center=center)
        assert chosen == plans.default(direction, cols, center=center, size=dtype.itemsize), chosen
        assert "num_ctas" not in chosen.options
print(len(widths))
"""


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
