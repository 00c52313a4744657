"""How a kernel is launched, by the width of a row: values measured on an H200, and what they mean.  No torch in here.

A plan depends on the columns and never on the rows, so that a row has the same bits in every batch.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, TypeVar

Weights = Literal["held", "early", "late"]  # in registers from the start; with each tile, before or after its sums
Keep = Literal["fp32", "packed", "cached"]  # in registers, in its own 16 bits, or not at all: it is read once more

REGISTERS, MOST_REGISTERS = 65536, 255  # of an SM, and of a thread


class Sum(StrEnum):
    """How the parts of dweight and dbias are added up.  Each has a fixed order."""

    SEPARATE = "separate"  # a kernel of its own
    LAST = "last"  # the last program to arrive
    TREE = "tree"  # the last of each group, then the last group


@dataclass(frozen=True)
class ForwardPlan:
    rows: int  # that a program has at once; one where a row has a team
    block: int  # columns of a program, a power of two
    warps: int
    team: int = 1  # programs that share a row
    programs: int = 0  # on an SM, each going through several tiles; 0: one for each tile
    stages: int = 1  # tiles on their way from memory, through shared memory from 2 on
    weights: Weights = "late"
    keep: Keep = "cached"  # how a tile is kept between its sums and their use
    registers: int | None = None  # at most, of a thread
    ctas: int = 1  # of the cluster that one program is, where Triton can (`clusters`)
    exchange: bool = True  # between the programs of a team, where the device can; else a pass before gives their sums

    def keep_of(self, size: int, compiled: bool) -> Keep:
        """As for elements of so many bytes: packing is for two, and its assembly is not for the interpreter."""
        return "fp32" if self.keep == "packed" and (size != 2 or not compiled) else self.keep

    @property
    def options(self) -> dict[str, Any]:
        """What Triton is told beside the kernel's own constants."""
        options: dict[str, Any] = {"num_warps": self.warps}
        if self.team > 1 and self.exchange:
            options["launch_cooperative_grid"] = True  # all at once, or not at all: so many registers fit
            options["maxnreg"] = min(MOST_REGISTERS, REGISTERS // (32 * self.warps * max(1, self.programs)) // 8 * 8)
        if self.ctas > 1:
            options["num_ctas"] = self.ctas
        if self.registers:
            options["maxnreg"] = self.registers
        return options


@dataclass(frozen=True)
class BackwardPlan(ForwardPlan):
    programs: int = 1
    stages: int = 3
    weights: Weights = "held"
    keep: Keep = "fp32"
    held: int = 1  # rows of sums that a program keeps: those that its threads share out, at most `rows`
    sum: Sum = Sum.SEPARATE
    group: int = 0  # parts of a group of the tree


# The values below are the best of some forty at each width (32768 rows, fewer from 131072 columns on; bf16 with an fp32
# weight; H200, November; docs/kernels.md has what they were chosen from).
# Forward, a row that is read a second time, out of the L1, leaves registers for all the warps that an SM can hold: 4252
# GB/s instead of 4040 at 8192 columns.
_RMSNORM_FORWARD = {
    128: ForwardPlan(8, 128, 4),
    256: ForwardPlan(8, 256, 4),
    512: ForwardPlan(4, 512, 4, weights="early"),
    1024: ForwardPlan(1, 1024, 2),
    2048: ForwardPlan(1, 2048, 4),
    4096: ForwardPlan(1, 4096, 8, weights="early"),
    8192: ForwardPlan(1, 8192, 16, weights="early"),
    16384: ForwardPlan(1, 16384, 32, weights="early"),
    32768: ForwardPlan(1, 32768, 32, weights="early"),
}
# From so many columns on, where an eighth of the block or more is empty, half the warps: of 4096 rows in bf16, 22.5 us
# instead of 26.2 at 5120 columns, 50.2 instead of 62.4 at 12288.
ROOMY = 4096
# Two sums of a row after each other: fewer warps wait for each other, and long rows are fetched ahead.
_LAYERNORM_FORWARD = {
    128: ForwardPlan(8, 128, 1, weights="early", keep="fp32"),
    256: ForwardPlan(4, 256, 1, weights="early", keep="fp32"),
    512: ForwardPlan(2, 512, 1),
    1024: ForwardPlan(1, 1024, 1),
    2048: ForwardPlan(1, 2048, 2),
    4096: ForwardPlan(1, 4096, 4),
    8192: ForwardPlan(1, 8192, 16, programs=2, stages=3, weights="held", keep="fp32", registers=64),
    16384: ForwardPlan(1, 16384, 32, programs=1, stages=3, weights="held", keep="fp32"),
}
# Wider: each member keeps its part of the weights, which would else be read with every row, twice the bytes of the row
# itself where they are fp32 and the row is not.  Many small members on an SM: some compute while others wait.
_WIDE_FORWARD = ForwardPlan(1, 4096, 4, programs=4, stages=3, weights="held")
# x in fp32: twice the bytes of a tile.  Without spills; not timed against others.
_FP32_WIDE_FORWARD = ForwardPlan(1, 8192, 16, programs=1, stages=2, weights="held")

# Backward, dweight and the weight stay in registers; x and dy come through shared memory, enough of them on their way.
_RMSNORM_BACKWARD = {
    128: BackwardPlan(64, 128, 8, held=16),
    256: BackwardPlan(32, 256, 8, held=8),
    512: BackwardPlan(4, 512, 4, programs=2, stages=4, held=2),
    1024: BackwardPlan(2, 1024, 4, programs=2, stages=4),
    2048: BackwardPlan(1, 2048, 4, programs=2, stages=4),
    4096: BackwardPlan(2, 4096, 16, keep="packed"),
    8192: BackwardPlan(1, 8192, 16, keep="packed"),
    16384: BackwardPlan(1, 16384, 16, stages=1, keep="cached"),
}
_LAYERNORM_BACKWARD = {
    128: BackwardPlan(16, 128, 4, programs=2, stages=4, held=8),
    256: BackwardPlan(8, 256, 4, programs=2, stages=4, held=4),
    512: BackwardPlan(4, 512, 4, programs=2, stages=4, held=2),
    1024: BackwardPlan(4, 1024, 4, programs=2),
    2048: BackwardPlan(2, 2048, 4, programs=2),
    4096: BackwardPlan(1, 4096, 8, programs=2, keep="packed"),
    8192: BackwardPlan(1, 8192, 16),
}
_RMSNORM_WIDE_BACKWARD = BackwardPlan(1, 4096, 4, programs=4, stages=2, keep="cached")
_LAYERNORM_WIDE_BACKWARD = BackwardPlan(1, 4096, 4, programs=3, stages=2, keep="cached")
_FP32_WIDE_BACKWARD = BackwardPlan(1, 2048, 4, programs=4, stages=2, keep="cached")
FP32_WIDE = 8192  # columns from which on rows of fp32 are wide
MOST_IN_TEAM = 64  # of whom each tells every other, and a thread waits for each

Plan = TypeVar("Plan", bound=ForwardPlan)


def forward(cols: int, *, center: bool, size: int = 2) -> ForwardPlan:
    """For rows of so many columns, of elements of `size` bytes; `center` is LayerNorm."""
    plan = _narrow(_LAYERNORM_FORWARD if center else _RMSNORM_FORWARD, cols)
    if plan and not center and plan.block >= ROOMY and 8 * cols <= 7 * plan.block:
        plan = replace(plan, warps=plan.warps // 2)
    if size == 2:
        return plan or _wide(_WIDE_FORWARD, cols)
    return replace(plan, stages=min(plan.stages, 2)) if plan else _wide(_FP32_WIDE_FORWARD, cols)


def backward(cols: int, *, center: bool, size: int = 2) -> BackwardPlan:
    """For rows of so many columns, of elements of `size` bytes; `center` is LayerNorm, and all with a bias."""
    if size > 2 and cols > FP32_WIDE:
        return _wide(_FP32_WIDE_BACKWARD, cols)
    if center:
        return _narrow(_LAYERNORM_BACKWARD, cols) or _wide(_LAYERNORM_WIDE_BACKWARD, cols)
    return _narrow(_RMSNORM_BACKWARD, cols) or _wide(_RMSNORM_WIDE_BACKWARD, cols)


def _narrow(table: dict[int, Plan], cols: int) -> Plan | None:
    """That of the next power of two, if it is there; the least one is for all narrower rows."""
    return table.get(max(1 << (cols - 1).bit_length(), min(table)))


def _wide(plan: Plan, cols: int) -> Plan:
    """With a team; members grow when there would be too many of them."""
    while -(-cols // plan.block) > MOST_IN_TEAM:
        plan = replace(plan, block=2 * plan.block, warps=min(2 * plan.warps, 32), programs=max(1, plan.programs // 2))
    return replace(plan, team=-(-cols // plan.block))
