"""How a kernel is launched, chosen from the width of a row and the bytes of its elements.  Torch-free values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

Weights = Literal["held", "early", "late"]  # in registers from the start; with each tile, before or after its sum


class Sum(StrEnum):
    """How the parts of dweight and dbias are added up.  Each has a fixed order."""

    SEPARATE = "separate"  # a kernel of its own
    LAST = "last"  # the last program to arrive
    TREE = "tree"  # the last of each group, then the last group


@dataclass(frozen=True)
class ForwardPlan:
    rows: int  # that a program has at once
    block: int  # columns of a program, a power of two
    warps: int
    team: int = 1  # programs that share a row
    programs: int = 0  # on an SM, each going through several tiles; 0: one for each tile
    stages: int = 1  # tiles on their way from memory, through shared memory from 2 on
    weights: Weights = "early"
    forget: bool = False  # keep a row in 16 bits between its sum and its use
    registers: int | None = None  # at most, of a thread
    ctas: int = 1  # of the cluster that one program is, where Triton can (`clusters`)
    exchange: bool = True  # between the programs of a team, where the device can; else a pass before gives their sums

    @property
    def options(self) -> dict[str, Any]:
        """What Triton is told beside the kernel's own constants."""
        options: dict[str, Any] = {"num_warps": self.warps}
        if self.team > 1 and self.exchange:
            options["launch_cooperative_grid"] = True
        if self.ctas > 1:
            options["num_ctas"] = self.ctas
        if self.registers:
            options["maxnreg"] = self.registers
        return options


@dataclass(frozen=True)
class BackwardPlan(ForwardPlan):
    programs: int = 1
    held: int = 1  # rows of sums that a program keeps: those that its threads share out, at most `rows`
    sum: Sum = Sum.SEPARATE
    group: int = 0  # parts of a group of the tree


def forward(cols: int, size: int, weight_size: int) -> ForwardPlan:  # noqa: ARG001
    block = 1 << max(0, cols - 1).bit_length()
    if block > 16384:
        return ForwardPlan(1, 16384, 16, team=block // 16384, programs=1, stages=2, weights="held", forget=size == 2)
    return ForwardPlan(max(1, 4096 // block), max(16, block), 4 if block < 4096 else 8)


def backward(cols: int, size: int, weight_size: int) -> BackwardPlan:  # noqa: ARG001
    block = 1 << max(0, cols - 1).bit_length()
    if block > 16384:
        return BackwardPlan(1, 16384, 16, team=block // 16384, stages=2, weights="held", forget=size == 2)
    rows = max(1, 4096 // block)
    return BackwardPlan(
        rows,
        max(16, block),
        4 if block < 4096 else 8,
        programs=2,
        stages=2,
        weights="held",
        held=min(rows, max(1, 1024 // block)),
    )
