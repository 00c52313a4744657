"""How a kernel is launched, by the width of a row: values measured on an H200, and what they mean.  Imports no torch.

A plan depends on the direction, the norm, the columns, the dtypes, whether there are a residual and a bias, and on the
rows and SMs where there are few rows.  Where a launch has no more than half of the warps that the SMs have room for, a
forward plan keeps a row in registers as far as they suffice, and where a team's rows take little more than one wave,
there are programs for all of them at once; tiles, warps and teams, and so the order of a row's sums, stay the same.  A
few wide rows are split over more programs, or have one instead of a team, and those of a few widths have other tiles,
which changes that order: a row has the same bits in every batch only if that is not done (`batch_invariant`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeVar

from ..cases import Direction

# When weight and bias are loaded: once, into registers; with each tile, before its sums; or after its sums.
Weights = Literal["held", "early", "late"]
# Where a tile is between its sums and their use: in registers in fp32, in registers in 16 bits, or in the cache, from
# which it is read again.
Keep = Literal["fp32", "packed", "cached"]

REGISTERS, MAX_REGISTERS = 65536, 255  # of an SM, and of a thread


class Sum(StrEnum):
    """Who adds up the partial sums of dweight and dbias.  The order is fixed in each case."""

    SEPARATE = "separate"  # another kernel
    LAST = "last"  # the last program to arrive
    TREE = "tree"  # the last of each group, then the last of the groups


@dataclass(frozen=True)
class ForwardPlan:
    rows: int  # of a tile; one where a row has a team
    block: int  # columns of a tile, or of one of its blocks; a power of two
    warps: int
    team: int = 1  # programs that share a row
    programs: int = 0  # on an SM, persistent: each goes through several tiles; 0: one program for each tile
    # Of the software pipeline: tiles that are loaded at once, through shared memory from 2 on.  With one, the programs
    # of a forward team take rows when they are ready; with more, each has a fixed share of them.
    stages: int = 1
    weights: Weights = "late"
    keep: Keep = "cached"
    registers: int | None = None  # limit, of a thread
    blocks: int = 1  # side by side in a tile of whole rows: 3 of 256 are closer to 700 columns than 1024
    exchange: bool = True  # of sums between the programs of a team, where the device can; else two passes

    @property
    def span(self) -> int:
        """Columns of a tile."""
        return self.block * self.blocks

    @property
    def exchanged(self) -> bool:
        """Whether the programs of a team exchange their sums."""
        return self.team > 1 and self.exchange

    @property
    def dynamic(self) -> bool:
        """Whether rows are scheduled dynamically, forward: a program takes the next row when it is ready."""
        return self.exchanged and self.stages == 1

    def keep_of(self, size: int, compiled: bool) -> Keep:
        """For elements of `size` bytes: only 16-bit values are packed, and not in the interpreter."""
        return "fp32" if self.keep == "packed" and (size != 2 or not compiled) else self.keep

    @property
    def options(self) -> dict[str, Any]:
        """Launch options of Triton."""
        options: dict[str, Any] = {"num_warps": self.warps}
        if self.exchanged:
            options["launch_cooperative_grid"] = True  # all programs are resident, or the driver refuses
            options["maxnreg"] = min(MAX_REGISTERS, REGISTERS // (32 * self.warps * max(1, self.programs)) // 8 * 8)
        if self.registers:
            options["maxnreg"] = self.registers
        return options


@dataclass(frozen=True)
class BackwardPlan(ForwardPlan):
    programs: int = 1
    stages: int = 3
    weights: Weights = "held"
    keep: Keep = "fp32"
    held: int = 1  # rows of the accumulators of dweight and dbias, at most `rows`
    sum: Sum = Sum.SEPARATE
    group: int = 0  # teams of a group of the tree


# The values below are the best of some 10 to 50 at each width (H200, November, bf16; docs/kernels.md has what they were
# chosen from): a few thousand rows and tens of thousands, and most lose to the plan before at neither.  A width that is
# not in a table has the plan of the next one.
# Forward, a row that is read again from the L1 cache leaves registers for all the warps that an SM can hold: 4252 GB/s
# instead of 4040 at 8192 columns.
# A width between powers of two has several blocks: masked threads and registers cost up to 15 %.
_RMSNORM_FORWARD = {
    64: ForwardPlan(32, 64, 4),
    80: ForwardPlan(16, 16, 4, blocks=5, weights="early", keep="fp32"),
    96: ForwardPlan(16, 32, 4, blocks=3, weights="early", keep="fp32"),
    128: ForwardPlan(8, 128, 4),
    256: ForwardPlan(8, 256, 4),
    320: ForwardPlan(8, 64, 4, blocks=5, weights="early", keep="fp32"),
    384: ForwardPlan(2, 128, 1, blocks=3, weights="early", keep="packed"),
    512: ForwardPlan(4, 512, 4, weights="early"),
    576: ForwardPlan(4, 64, 4, blocks=9, weights="early", keep="fp32"),
    640: ForwardPlan(8, 128, 8, blocks=5, weights="early", keep="packed"),
    768: ForwardPlan(2, 1024, 4, weights="early"),
    896: ForwardPlan(1, 1024, 2, weights="early"),
    1024: ForwardPlan(2, 1024, 4, weights="early"),
    1536: ForwardPlan(1, 512, 2, blocks=3, weights="early"),
    2048: ForwardPlan(1, 2048, 4, weights="early"),
    3072: ForwardPlan(1, 4096, 4, weights="early"),
    3584: ForwardPlan(1, 4096, 8),
    4096: ForwardPlan(1, 4096, 8, weights="early"),
    5120: ForwardPlan(1, 8192, 8, weights="early"),
    6144: ForwardPlan(1, 2048, 8, blocks=3, weights="early"),
    7168: ForwardPlan(1, 8192, 8, weights="early"),
    8192: ForwardPlan(1, 8192, 16, weights="early"),
    12288: ForwardPlan(1, 4096, 16, blocks=3, weights="early"),
    14336: ForwardPlan(1, 16384, 8, weights="early"),
    16384: ForwardPlan(1, 4096, 32, blocks=4, weights="early"),
    20480: ForwardPlan(1, 4096, 32, blocks=5, weights="early"),
    24576: ForwardPlan(1, 4096, 32, blocks=6),
    32768: ForwardPlan(1, 16384, 32, blocks=2),
}
# With weights of 16 bits: half the registers for them if they are early, half the reads if they are late.
_RMSNORM_FORWARD_16 = dict(
    sorted(
        {
            **_RMSNORM_FORWARD,
            14336: ForwardPlan(1, 4096, 16, blocks=4, weights="early"),
            24576: ForwardPlan(1, 4096, 32, blocks=6, weights="early"),
            28672: ForwardPlan(1, 4096, 32, blocks=7, weights="early"),
            32768: ForwardPlan(1, 4096, 32, blocks=8, weights="early"),
        }.items()
    )
)
# 57345 to 65536 columns: the whole row in the L1, 98 % of the copy ceiling where a team has 87.  Without a residual.
_RMSNORM_FORWARD_65536 = ForwardPlan(1, 65536, 32)
# x in fp32: half as many elements make an access of 16 bytes, and smaller tiles are better.
_RMSNORM_FORWARD_FP32 = dict(
    sorted(
        {
            # These three were measured in 16 bits only.
            **{width: plan for width, plan in _RMSNORM_FORWARD.items() if width not in (80, 96, 576)},
            64: ForwardPlan(8, 64, 4),
            256: ForwardPlan(2, 256, 1),
            512: ForwardPlan(1, 512, 1),
            640: ForwardPlan(1, 128, 1, blocks=5, weights="early", keep="fp32"),
            1024: ForwardPlan(1, 1024, 4, weights="early"),
            1280: ForwardPlan(1, 2048, 4, weights="early"),
            2048: ForwardPlan(1, 2048, 8, weights="early"),
            3072: ForwardPlan(1, 1024, 8, blocks=3, weights="early"),
            24576: ForwardPlan(1, 4096, 32, blocks=6, weights="early"),
            28672: ForwardPlan(1, 4096, 32, blocks=7, weights="early"),
            32768: ForwardPlan(1, 32768, 32, weights="early"),  # a row fits the L1 once: several blocks take 1.04
        }.items()
    )
)
_RMSNORM_FORWARD_TABLES = {  # by whether x is wider than 16 bits, and whether the weights have 16
    (False, False): _RMSNORM_FORWARD,
    (False, True): _RMSNORM_FORWARD_16,
    (True, False): _RMSNORM_FORWARD_FP32,
    (True, True): _RMSNORM_FORWARD_FP32,
}
# With a residual, to 2048 columns: twice the loads of a row, so half the elements for each thread.
_NARROW_RESIDUAL = {
    64: _RMSNORM_FORWARD[64],
    80: ForwardPlan(4, 16, 1, blocks=5, weights="early", keep="fp32"),
    96: ForwardPlan(8, 32, 4, blocks=3, weights="early", keep="fp32"),
    128: ForwardPlan(8, 128, 8, weights="early"),
    192: ForwardPlan(2, 64, 1, blocks=3, weights="early", keep="fp32"),
    256: _RMSNORM_FORWARD[256],
    384: ForwardPlan(2, 128, 1, blocks=3, weights="early", keep="packed"),
    512: _RMSNORM_FORWARD[512],
    1024: ForwardPlan(1, 1024, 4, weights="early"),
    1536: ForwardPlan(1, 2048, 2, weights="early"),
    2048: ForwardPlan(1, 2048, 8, weights="early"),
}
_NARROW_RESIDUAL_FP32 = {
    64: ForwardPlan(8, 64, 4),
    128: _RMSNORM_FORWARD[128],
    256: ForwardPlan(2, 256, 1),
    512: ForwardPlan(1, 512, 4, weights="early"),
    640: ForwardPlan(1, 1024, 4, weights="early"),
    1024: ForwardPlan(1, 1024, 8, weights="early"),
    2048: ForwardPlan(1, 2048, 8, weights="early"),
}
# Wider: more blocks, which are faster without a residual, take 1.00 to 1.05 of the time for thousands of rows.
_WIDE_RESIDUAL = {
    12288: ForwardPlan(1, 4096, 16, blocks=3),
    14336: ForwardPlan(1, 16384, 8, weights="early"),
    16384: ForwardPlan(1, 16384, 32, weights="early"),
}
_RESIDUAL_FP32 = {
    **_NARROW_RESIDUAL_FP32,
    **{width: plan for width, plan in _RMSNORM_FORWARD_FP32.items() if 2048 < width < 12288},
    **_WIDE_RESIDUAL,
    24576: ForwardPlan(1, 32768, 16),  # a wider row does not fit the L1 twice
}
_RESIDUAL = {
    **_NARROW_RESIDUAL,
    **{width: plan for width, plan in _RMSNORM_FORWARD.items() if 2048 < width < 12288},
    3584: ForwardPlan(1, 2048, 8, blocks=2),
    7168: ForwardPlan(1, 8192, 16, weights="early"),
    **_WIDE_RESIDUAL,
    32768: ForwardPlan(1, 32768, 32),
}
_RESIDUAL_19456 = ForwardPlan(1, 8192, 32, blocks=3)  # weights in fp32: two programs read their rows again from the L1
_RESIDUAL_16 = {
    **_NARROW_RESIDUAL,
    512: ForwardPlan(4, 512, 4, weights="early", keep="fp32"),  # .8 of the time to 1000 rows, 1.05 from 100,000 on
    **{width: plan for width, plan in _RMSNORM_FORWARD_16.items() if 2048 < width < 12288},
    6144: ForwardPlan(1, 8192, 16, weights="early"),
    12288: ForwardPlan(1, 16384, 16, weights="early"),
    14336: _WIDE_RESIDUAL[14336],
    16384: ForwardPlan(1, 16384, 16, weights="early"),
    28672: ForwardPlan(1, 32768, 16, weights="early"),
    32768: ForwardPlan(1, 32768, 32),
}
_RMSNORM_FORWARD_RESIDUAL = {
    (False, False): _RESIDUAL,
    (False, True): _RESIDUAL_16,
    (True, False): _RESIDUAL_FP32,
    (True, True): _RESIDUAL_FP32,
}
# LayerNorm reduces a row twice, one after the other: fewer warps wait for each other, and rows are prefetched where
# they do not fill a power of two, or are long.
_LAYERNORM_FORWARD = {
    64: ForwardPlan(16, 64, 2),
    80: ForwardPlan(16, 16, 4, blocks=5, weights="early", keep="fp32"),
    96: ForwardPlan(8, 32, 4, blocks=3, weights="early", keep="fp32"),
    128: ForwardPlan(8, 128, 1, weights="early", keep="fp32"),
    160: ForwardPlan(8, 32, 4, blocks=5, weights="early", keep="fp32"),
    192: ForwardPlan(8, 64, 4, blocks=3, weights="early", keep="fp32"),
    256: ForwardPlan(4, 256, 1, weights="early", keep="fp32"),
    320: ForwardPlan(8, 64, 4, blocks=5, weights="early", keep="packed"),
    352: ForwardPlan(4, 64, 4, blocks=6, weights="early", keep="fp32"),
    384: ForwardPlan(8, 128, 8, blocks=3, weights="early", keep="packed"),
    448: ForwardPlan(4, 64, 4, blocks=7, weights="early", keep="fp32"),
    512: ForwardPlan(2, 512, 1),
    576: ForwardPlan(4, 64, 4, blocks=9, weights="early", keep="fp32"),
    640: ForwardPlan(1, 128, 1, blocks=5, weights="early", keep="fp32"),
    768: ForwardPlan(1, 128, 1, blocks=6, weights="early", keep="fp32"),
    896: ForwardPlan(1, 128, 1, blocks=7, weights="early", keep="fp32"),
    1024: ForwardPlan(1, 1024, 1),
    1280: ForwardPlan(1, 2048, 1, programs=12, stages=3, weights="held", keep="fp32"),
    1792: ForwardPlan(1, 2048, 4, programs=6, stages=3, weights="held", keep="fp32"),
    2048: ForwardPlan(1, 2048, 2),
    3072: ForwardPlan(1, 4096, 4, programs=4, stages=3, weights="held", keep="fp32"),
    4096: ForwardPlan(1, 4096, 4),
    5120: ForwardPlan(1, 8192, 4, programs=3, stages=3, weights="held", keep="fp32"),
    6144: ForwardPlan(1, 8192, 8, programs=2, stages=3, weights="held", keep="fp32"),
    8192: ForwardPlan(1, 8192, 16, programs=2, stages=3, weights="held", keep="fp32", registers=64),
    16384: ForwardPlan(1, 16384, 16, programs=1, stages=3, weights="held", keep="fp32"),
}
_LAYERNORM_FORWARD_FP32 = {
    64: ForwardPlan(16, 64, 4, weights="early", keep="fp32"),
    96: _LAYERNORM_FORWARD[96],
    127: ForwardPlan(8, 32, 4, blocks=4, weights="early", keep="fp32"),
    128: ForwardPlan(8, 128, 8),
    192: _LAYERNORM_FORWARD[192],
    256: ForwardPlan(2, 256, 1),
    384: ForwardPlan(2, 128, 1, blocks=3, weights="early", keep="fp32"),
    512: ForwardPlan(1, 512, 2, weights="early"),
    640: ForwardPlan(1, 1024, 2, weights="early"),
    760: ForwardPlan(2, 256, 2, blocks=3, weights="early", keep="fp32"),
    768: _LAYERNORM_FORWARD[768],
    896: ForwardPlan(1, 1024, 2, weights="early"),
    1024: ForwardPlan(1, 1024, 4, weights="early"),
    **{width: plan for width, plan in _LAYERNORM_FORWARD.items() if 1024 < width <= 8192},
    12288: ForwardPlan(1, 4096, 16, blocks=3),
    16384: ForwardPlan(1, 16384, 32, keep="fp32"),
}
# With a residual, prefetching would take twice the shared memory: .89 to .91 of the time with thousands of rows.
_LAYERNORM_RESIDUAL_FP32 = {
    **{width: plan for width, plan in _LAYERNORM_FORWARD_FP32.items() if width <= 1024},
    1792: ForwardPlan(1, 2048, 8),
    2048: _LAYERNORM_FORWARD_FP32[2048],
    3072: ForwardPlan(1, 4096, 8, weights="early"),
    4096: _LAYERNORM_FORWARD_FP32[4096],
    5120: ForwardPlan(1, 8192, 16, weights="early"),
    8192: ForwardPlan(1, 8192, 16),
    12288: _LAYERNORM_FORWARD_FP32[12288],
    16384: _LAYERNORM_FORWARD[16384],
}
# Wider: each program of the team holds its columns of the weights.  Read with every row, they would be twice its bytes
# if they are fp32 and the row is 16-bit.  Programs take rows when they are ready, and then need many loads in flight:
# 32 elements of a thread.  LayerNorm holds a bias too: in 16 bits and without a residual it prefetches rows instead.
_RMSNORM_TEAM_FORWARD = ForwardPlan(1, 4096, 4, programs=6, weights="held")
_RMSNORM_WIDE_FORWARD = ForwardPlan(1, 16384, 8, programs=2, weights="held")
_LAYERNORM_WIDE_FORWARD = ForwardPlan(1, 4096, 2, programs=4, stages=3, weights="held")
_RMSNORM_RESIDUAL_FORWARD = ForwardPlan(1, 4096, 8, programs=4, weights="held")
_LAYERNORM_RESIDUAL_FORWARD = ForwardPlan(1, 8192, 8, programs=2, weights="held")
# RMSNorm with a bias has no registers for both vectors in the plans above: these take .65 to .77 of the time.
_RMSNORM_BIAS_FORWARD_65536 = ForwardPlan(1, 32768, 32, blocks=2)
# x in fp32: the same bytes in half the columns.
_RMSNORM_FP32_TEAM_FORWARD = ForwardPlan(1, 4096, 8, programs=4, weights="held")
_RMSNORM_FP32_WIDE_FORWARD = ForwardPlan(1, 8192, 16, programs=2, weights="held")
_LAYERNORM_FP32_FORWARD = ForwardPlan(1, 4096, 4, programs=4, weights="held")
_LAYERNORM_FP32_32768_FORWARD = ForwardPlan(1, 2048, 2, programs=8, weights="held")
# With a residual as well: rows are prefetched.
_RMSNORM_FP32_RESIDUAL_FORWARD = ForwardPlan(1, 2048, 4, programs=4, stages=3, weights="held", keep="fp32")
_LAYERNORM_FP32_RESIDUAL_FORWARD = ForwardPlan(1, 2048, 4, programs=4, stages=3, weights="held")

# Backward, dweight and the weight stay in registers; x and dy are prefetched through shared memory.
_RMSNORM_BACKWARD = {
    128: BackwardPlan(64, 128, 8, held=16),
    256: BackwardPlan(32, 256, 8, held=8),
    512: BackwardPlan(2, 512, 2, programs=4, stages=4),
    768: BackwardPlan(2, 1024, 4, programs=3, stages=4),
    1024: BackwardPlan(2, 1024, 4, programs=2, stages=4),
    1280: BackwardPlan(2, 2048, 4, programs=2, stages=4, keep="packed"),
    1536: BackwardPlan(1, 2048, 4, programs=3, stages=4),
    2048: BackwardPlan(1, 2048, 4, programs=2, stages=4),
    2560: BackwardPlan(1, 4096, 4, programs=3, keep="packed"),
    3584: BackwardPlan(1, 4096, 4, programs=2, keep="packed"),
    4096: BackwardPlan(2, 4096, 8, keep="packed"),
    5120: BackwardPlan(1, 8192, 4, programs=3, stages=1, keep="cached", registers=168),
    8192: BackwardPlan(1, 8192, 8, keep="packed"),
    14336: BackwardPlan(1, 16384, 8, keep="packed"),
}
# With a residual, 4097 to 5120 columns take .76 to .98 of the time with the next plan, and in fp32 .70 to .99.
_RMSNORM_BACKWARD_RESIDUAL = {width: plan for width, plan in _RMSNORM_BACKWARD.items() if width != 5120}
_RMSNORM_BACKWARD_FP32 = {
    **{width: plan for width, plan in _RMSNORM_BACKWARD.items() if width <= 1024},
    1280: BackwardPlan(1, 2048, 4, programs=3, registers=128),  # without it, the compiler uses 80 and spills
    2048: BackwardPlan(1, 2048, 8, programs=2),
    2560: BackwardPlan(1, 4096, 4, programs=2),
    4096: BackwardPlan(1, 4096, 8, registers=128),
    8192: BackwardPlan(1, 8192, 8),
}
_LAYERNORM_BACKWARD = {
    128: BackwardPlan(16, 128, 4, programs=2, stages=4, held=8),
    256: BackwardPlan(8, 256, 2, programs=4, stages=4, held=2),
    512: BackwardPlan(2, 512, 2, programs=4, stages=4),
    768: BackwardPlan(2, 1024, 4, programs=3, stages=4),
    1024: BackwardPlan(4, 1024, 4, programs=2),
    1280: BackwardPlan(1, 2048, 2, programs=4, stages=4, keep="packed"),
    1536: BackwardPlan(1, 2048, 4, programs=3, stages=4),
    2048: BackwardPlan(1, 2048, 4, programs=3),
    2560: BackwardPlan(1, 4096, 4, programs=2, keep="packed"),
    4096: BackwardPlan(2, 4096, 8, keep="packed"),
    8192: BackwardPlan(1, 8192, 8, keep="packed"),
}
_LAYERNORM_BACKWARD_FP32 = {
    **_LAYERNORM_BACKWARD,
    1280: BackwardPlan(1, 2048, 4, programs=2, stages=4),
    2560: BackwardPlan(1, 4096, 8, stages=4),
}
_WIDE_BACKWARD = BackwardPlan(1, 4096, 4, programs=3, stages=3, keep="cached")
# RMSNorm with few programs to a row: narrower ones are 4 % faster at 16384 columns.
_RMSNORM_TEAM_BACKWARD = BackwardPlan(1, 2048, 2, programs=6, stages=3, keep="cached")
TEAM_COLS = 16384
# LayerNorm where the last program has fewer columns: there programs of 4096 spill, and on sm_100 six of 2048 on an SM.
_LAYERNORM_UNEVEN_BACKWARD = BackwardPlan(1, 2048, 2, programs=4, stages=3, keep="cached")
# RMSNorm where dense rows of 16-bit elements do not all begin on a boundary of a sector.  Nothing is prefetched: the
# copies to shared memory bypass the L1, so a sector that two accesses share is read twice.  LayerNorm spills without
# prefetching.
SECTOR = 32  # bytes
_RMSNORM_UNALIGNED_16384 = BackwardPlan(1, 16384, 16, stages=1, keep="cached")
_RMSNORM_UNALIGNED_BACKWARD = BackwardPlan(1, 2048, 4, programs=6, stages=1, keep="cached")
_RMSNORM_UNALIGNED_RESIDUAL = BackwardPlan(1, 2048, 2, programs=6, stages=1, keep="cached")
# x in fp32: the same bytes in half the columns, and for RMSNorm one program to 12288 columns.
_FP32_BACKWARD_12288 = BackwardPlan(1, 16384, 32, stages=1, keep="cached")
_FP32_BACKWARD_32768 = BackwardPlan(1, 1024, 2, programs=6, stages=2, keep="cached")
_FP32_WIDE_BACKWARD = BackwardPlan(1, 2048, 4, programs=4, stages=2, keep="cached")
_FP32_BACKWARD_65536 = BackwardPlan(1, 4096, 8, programs=2, stages=2, keep="cached")
_FP32_RESIDUAL_BACKWARD = BackwardPlan(1, 1024, 2, programs=8, stages=2, keep="cached")
MIN_65536 = 57345  # columns of a row that has a program of 65536: at 39216, it took a third longer than Quack
FP32_WIDE = 57345  # columns from which backward programs of fp32 have 4096 of them
RMSNORM_WIDE = 131072  # columns from which the programs of a team have more of them
VECTOR_BYTES = 16  # the widest access of a thread
MAX_TEAM = 64  # programs: each sends its sums to all others
LAYERNORM_MAX_TEAM = 32  # forward: 32 programs of 8192 columns take 6 % less than 64 of 4096
# Few rows.  A launch with at most so many warps for each SM lets the next one start before it ends (`forward._launch`).
AT_ONCE_WARPS = 2
FREE_WARPS = 32  # of an SM, half of its warps: each thread may have 64 registers
OTHER_REGISTERS = 32  # of a thread, for addresses and sums
IN_REGISTERS_COLS = 16384  # more of a row without a residual are faster read again from the cache
# Few wide rows are split over the programs of SPLIT_BLOCKS.  In one program, rows of fewer bytes forward, and of fewer
# columns backward, are as fast or faster: the exchange of sums takes about 1 us.
SPLIT_BYTES, SPLIT_BACKWARD_COLS = 24576, 4096
SPLIT_PROCESSORS, SPLIT_BACKWARD_PROCESSORS = 8, 4  # SMs that there are for each row, at least
SPLIT_BLOCKS = {1024: 2, 2048: 2, 4096: 2, 8192: 1}  # columns of a program, and programs of an SM
# With fewer SMs for each row, 16-bit rows are split over more programs of an SM.  Backward, this is only done beyond
# MORE_BACKWARD_COLS columns: up to there, one program for a row is as fast where rows are more than half of the SMs.
MORE_BACKWARD_COLS = 8192
MORE_BACKWARD_ROWS = 0.8  # for each SM, at most: the plan of many rows is as fast for more
WARPS_IN_REGISTERS = 12  # of an SM: with more, it is faster to read the rows of teams again from the cache
LAYERNORM_ALONE = 28672  # columns up to which a program of LayerNorm has a row to itself, if rows are not more than SMs

Plan = TypeVar("Plan", bound=ForwardPlan)


def problem(plan: ForwardPlan, cols: int) -> str | None:
    """Why the kernels do not accept the plan for rows of `cols` columns; None if they do.

    The compiler or the device may still refuse it.
    """
    numbers: tuple[Any, ...] = (plan.rows, plan.block, plan.warps, plan.team, plan.programs, plan.stages, plan.blocks)
    if isinstance(plan, BackwardPlan):
        numbers = (*numbers, plan.held, plan.group)
    if not all(type(number) is int for number in numbers) or type(plan.exchange) is not bool:
        return "sizes and counts are integers, and `exchange` is True or False"
    if not (plan.registers is None or (type(plan.registers) is int and 0 < plan.registers <= MAX_REGISTERS)):
        return f"a thread has 1 to {MAX_REGISTERS} registers"
    holds = {
        "rows, block and warps are powers of two": all(
            size > 0 and size & (size - 1) == 0 for size in (plan.rows, plan.block, plan.warps)
        ),
        "a program has at most 32 warps": plan.warps <= 32,
        "a tile has at least one block and one stage": plan.blocks >= 1 and plan.stages >= 1,
        f"a tile has at most {REGISTERS} elements in a block": plan.rows * plan.block <= REGISTERS,
        f"a team has 1 to {MAX_TEAM} programs": 1 <= plan.team <= MAX_TEAM,
        "a team has one row at a time": plan.rows == 1 or plan.team == 1,
        "a program has a thread for each program of its team": plan.team <= 32 * plan.warps,
        f"a plan needs {cols} columns": plan.span * plan.team >= cols,
        "each program of a team has columns": plan.span * (plan.team - 1) < cols,
        "programs of a team that exchanges its sums are persistent, and so are those of a backward pass": plan.programs
        >= (1 if plan.exchanged or isinstance(plan, BackwardPlan) else 0),
        "weights are held, early or late": plan.weights in ("held", "early", "late"),
        "a tile is kept in fp32, packed or cached": plan.keep in ("fp32", "packed", "cached"),
    }
    if isinstance(plan, BackwardPlan):
        holds |= {
            "a backward tile has one block": plan.blocks == 1,
            "accumulators have rows that divide those of a tile": plan.held >= 1 and plan.rows % plan.held == 0,
            "groups are for sums in a tree, and those need them": (plan.group > 0) is (plan.sum is Sum.TREE),
        }
    else:
        holds |= {
            "several blocks are for programs with one tile, whose weights are early or late": plan.blocks == 1
            or (plan.team == 1 and plan.programs == 0 and plan.weights != "held"),
            "the weights of a team that exchanges its sums are held or late": not (
                plan.exchanged and plan.weights == "early"
            ),
        }
    return next((rule for rule, followed in holds.items() if not followed), None)


class NormLaunch(NamedTuple):
    """What a plan is chosen for: rows with elements of `size` bytes, a weight of `weight_size`, and the device."""

    cols: int
    center: bool  # LayerNorm
    size: int = 2
    weight_size: int = 4
    bias: bool = False  # forward it counts for RMSNorm in wide rows, and where a row is kept in registers
    residual: bool = False  # backward: there is a gradient of residual_out
    rows: int | None = None  # None: more than a device can work on at once
    processors: int = 0  # SMs of the device; 0: unspecified, and `rows` is ignored
    batch_invariant: bool = True  # a row has the same bits whatever `rows` is

    @property
    def vectors(self) -> int:
        """Of a column: weight and bias.  LayerNorm has two."""
        return 2 if self.center or self.bias else 1

    @property
    def vectorised(self) -> bool:
        """Whether threads access 16 bytes at a time; narrower accesses take more registers."""
        return access(self.cols, self.size) * self.size == VECTOR_BYTES

    @property
    def few(self) -> bool:
        """Whether there are at most as many rows as SMs, and their bits may differ from those of more rows."""
        return not self.batch_invariant and self.rows is not None and self.rows <= self.processors


def default(direction: Direction, cols: int, *, center: bool, **others: Any) -> ForwardPlan:
    """`forward` or `backward`; `others` are fields of NormLaunch."""
    return (backward if direction is Direction.BWD else forward)(cols, center=center, **others)


def forward(cols: int, *, center: bool, **others: Any) -> ForwardPlan:
    """The plan of a forward launch; `others` are fields of NormLaunch."""
    launch = NormLaunch(cols, center, **others)
    rows, processors = launch.rows, launch.processors
    if not rows or not processors:
        return _forward_by_width(launch)
    if not launch.batch_invariant:
        split = _split_forward(launch, rows)
        if split := split or _split_more_forward(launch, rows):
            return split
    plan = _forward_by_width(launch)
    if plan.dynamic:
        return _in_one_wave(plan, launch, rows)
    return _in_registers(plan, launch, rows) if _at_once(plan, rows, processors) else plan


def _forward_by_width(launch: NormLaunch) -> ForwardPlan:
    """The plan of a width, for more rows than a device can work on at once; for few rows, some widths have another."""
    if launch.center:
        plan = _layernorm_forward(launch)
        if launch.few and plan.warps == 1 and plan.rows == 1:  # alone on an SM, a warp waits for itself
            plan = replace(plan, block=256, blocks=-(-launch.cols // 256), warps=4)
    else:
        plan = _rmsnorm_forward(launch)
        if launch.bias and not launch.residual:
            plan = _rmsnorm_with_bias(plan, launch)
    if launch.size > 2 and plan.team == 1:
        plan = replace(plan, stages=min(plan.stages, 2))
    return plan


def _split_forward(launch: NormLaunch, rows: int) -> ForwardPlan | None:
    """A few wide rows over as many programs as the device has room for; None where there are too many.

    The narrowest programs that let the next launch start at once, if there are any.
    """
    cols, center, processors = launch.cols, launch.center, launch.processors
    if cols * launch.size <= SPLIT_BYTES or rows * SPLIT_PROCESSORS > processors:
        return None
    fitting = [
        (rows * team * warps, ForwardPlan(1, block, warps, team=team, programs=programs, weights="held", keep="fp32"))
        for block, team, programs in _splits(cols, rows, processors, LAYERNORM_MAX_TEAM if center else MAX_TEAM)
        for warps in (min(8, block // 512), max(2 if center else 1, block // 1024))
        if team <= 32 * warps  # each thread reads the sum of a program
    ]
    at_once = [plan for warps, plan in fitting if warps <= AT_ONCE_WARPS * processors]
    others = [plan for _, plan in fitting]
    return next(iter(at_once or others), None)


def _split_more_forward(launch: NormLaunch, rows: int) -> ForwardPlan | None:
    """For more rows of 16-bit elements, forward, all of which run at once.  Limits of programs are those of registers.

    LayerNorm: split, or one program for a row instead of a team.  RMSNorm with a residual: split.  Others have plans by
    width that are as fast.
    """
    cols, processors = launch.cols, launch.processors
    if launch.size > 2 or cols <= TEAM_COLS or not launch.vectorised:
        return None
    if launch.center and not launch.residual:
        team, programs = _programs(cols, 2048, rows, processors)
        if programs <= 7 and team <= LAYERNORM_MAX_TEAM:
            keep: Keep = "fp32" if programs <= 4 else "cached"
            return ForwardPlan(1, 2048, 4, team=team, programs=programs, weights="held", keep=keep)
        if rows <= processors and cols <= LAYERNORM_ALONE:
            return ForwardPlan(1, 4096, 32, blocks=-(-cols // 4096))
    elif launch.residual and launch.vectors == 1 and cols <= 32768:
        team, programs = _programs(cols, 4096, rows, processors)
        if programs <= (6 if cols % 4096 or launch.weight_size > 2 else 7):  # masks and weights take registers
            split = ForwardPlan(1, 4096, 4, team=team, programs=programs, weights="late")
            return replace(split, weights="held", keep="fp32") if 4 * programs <= WARPS_IN_REGISTERS else split
    return None


def _programs(cols: int, block: int, rows: int, processors: int) -> tuple[int, int]:
    """(programs of a row, programs of an SM) with `block` columns each, where all rows run at once."""
    team = -(-cols // block)
    return team, -(-rows * team // processors)


def _in_one_wave(plan: ForwardPlan, launch: NormLaunch, rows: int) -> ForwardPlan:
    """The same tiles and teams, and so the same order of a row's sums, with programs for all rows at once.

    Few of them keep a row in registers.  More than the plan has do not hold the weight; where there are two vectors, or
    accesses of less than 16 bytes, they would spill.
    """
    _, programs = _programs(launch.cols, plan.block, rows, launch.processors)
    few, most = WARPS_IN_REGISTERS // plan.warps, _most_programs(plan)
    if programs <= few and plan.block <= 1024 * plan.warps:  # at most 32 elements of a thread
        return replace(plan, programs=few, keep="fp32")
    if plan.programs < programs <= most and launch.vectors == 1 and launch.vectorised:
        return replace(plan, programs=most, weights="late")
    return plan


def _most_programs(plan: ForwardPlan) -> int:
    """Programs on an SM whose threads have registers for their columns."""
    return REGISTERS // (32 * plan.warps * OTHER_REGISTERS + plan.block)


def _splits(cols: int, rows: int, processors: int, max_team: int) -> Iterator[tuple[int, int, int]]:
    """(columns of a program, programs of a row, programs of an SM) for a few rows, the narrowest programs first."""
    for block, programs in SPLIT_BLOCKS.items():
        team = -(-cols // block)
        if 1 < team <= max_team and rows * team <= programs * processors:
            yield block, team, programs


def _at_once(plan: ForwardPlan, rows: int, processors: int) -> bool:
    """Whether all tiles of a launch are worked on at the same time, by no more than half of the warps of an SM."""
    tiles = -(-rows // plan.rows)
    if plan.team > 1 or (plan.programs and tiles > plan.programs * processors):
        return False
    return tiles * plan.warps <= FREE_WARPS * processors


def _in_registers(plan: ForwardPlan, launch: NormLaunch, rows: int) -> ForwardPlan:
    """The same tile and warps, and so the same order of a row's sums, where registers are free and each wait counts.

    Nothing is prefetched.  A row stays in registers and weights are loaded before its sums, if a thread has enough of
    them; a wider row is read again from the cache, unless its sum with a residual would have to be.
    """
    center, residual = launch.center, launch.residual
    keeps: list[tuple[Keep, int]] = [("fp32", 4), ("packed", launch.size)]  # bytes of an element
    several = plan.blocks > 1 and plan.block >= 4096 and (center or not residual)
    if several or (not residual and plan.span > IN_REGISTERS_COLS):
        keeps = [("cached", 0)]
    vectors = launch.weight_size * launch.vectors  # bytes of a column of weight and bias
    elements = plan.rows * plan.span // (32 * plan.warps)
    # Programs of an SM.  LayerNorm, which reduces a row twice, is faster in registers even if fewer run at a time.
    programs = 1 if center else -(-rows // plan.rows // launch.processors)
    registers = min(MAX_REGISTERS, REGISTERS // (32 * plan.warps * programs))
    at_once = replace(plan, programs=0, stages=1, registers=None)
    for keep, kept in keeps:
        if elements * (kept + vectors) <= 4 * (registers - OTHER_REGISTERS):
            return replace(at_once, keep=keep, weights="early")
    return replace(at_once, keep="packed", weights="late") if residual else plan


def access(cols: int, size: int) -> int:
    """Elements: the widest access to dense rows, the largest power of two to 16 bytes that divides the columns."""
    return min(VECTOR_BYTES // size, cols & -cols)


def _rmsnorm_forward(launch: NormLaunch) -> ForwardPlan:
    cols, size, weight_size, residual = launch.cols, launch.size, launch.weight_size, launch.residual
    if not residual and weight_size == 2 and MIN_65536 <= cols <= 65536 and size == 2 and not launch.few:
        return _RMSNORM_FORWARD_65536
    if residual and weight_size > 2 and TEAM_COLS < cols <= 19456 and size == 2:
        return _RESIDUAL_19456
    tables = _RMSNORM_FORWARD_RESIDUAL if residual else _RMSNORM_FORWARD_TABLES
    if plan := _next(tables[size > 2, weight_size == 2], cols):
        return plan
    if size > 2:
        if residual:
            return _wide(_RMSNORM_FP32_RESIDUAL_FORWARD, cols)
        return _wide(_RMSNORM_FP32_TEAM_FORWARD if cols < MIN_65536 else _RMSNORM_FP32_WIDE_FORWARD, cols)
    if residual:
        return _wide(_RMSNORM_RESIDUAL_FORWARD, cols)
    narrow = cols < RMSNORM_WIDE or _narrow_team_at_once(launch)
    return _wide(_RMSNORM_TEAM_FORWARD if narrow else _RMSNORM_WIDE_FORWARD, cols)


def _narrow_team_at_once(launch: NormLaunch) -> bool:
    """Whether the narrowest programs of RMSNorm are enough for a row, and few rows run at once (`_in_one_wave`)."""
    if not launch.few or launch.rows is None:
        return False
    narrow = _RMSNORM_TEAM_FORWARD
    team, programs = _programs(launch.cols, narrow.block, launch.rows, launch.processors)
    return team <= MAX_TEAM and programs <= _most_programs(narrow)


def _rmsnorm_with_bias(plan: ForwardPlan, launch: NormLaunch) -> ForwardPlan:
    """For wide rows, those of LayerNorm, which has as many vectors; narrower ones keep the plan without a bias.

    Several blocks have no registers for both vectors.
    """
    cols = launch.cols
    if launch.size > 2 and 24576 < cols <= 32768:
        return _RMSNORM_FORWARD[32768]
    if cols <= 32768 or (launch.size > 2 and cols < MIN_65536):
        return replace(plan, weights="late") if plan.blocks > 1 and plan.block >= 4096 else plan
    if launch.size == launch.weight_size == 2 and MIN_65536 <= cols <= 65536:
        return _RMSNORM_BIAS_FORWARD_65536
    return _layernorm_forward(launch)


def _layernorm_forward(launch: NormLaunch) -> ForwardPlan:
    cols, size, residual = launch.cols, launch.size, launch.residual
    fp32 = _LAYERNORM_RESIDUAL_FP32 if residual else _LAYERNORM_FORWARD_FP32
    if plan := _next(fp32 if size > 2 else _LAYERNORM_FORWARD, cols):
        return plan
    if size > 2:
        if residual:
            return _wide(_LAYERNORM_FP32_RESIDUAL_FORWARD, cols)
        return _wide(_LAYERNORM_FP32_32768_FORWARD if cols <= 32768 else _LAYERNORM_FP32_FORWARD, cols)
    if residual:
        return _wide(_LAYERNORM_RESIDUAL_FORWARD, cols)
    return _wide(_LAYERNORM_WIDE_FORWARD, cols, LAYERNORM_MAX_TEAM)


def backward(cols: int, *, center: bool, **others: Any) -> BackwardPlan:
    """The plan of a backward launch; `others` are fields of NormLaunch, of which `weight_size` is ignored."""
    launch = NormLaunch(cols, center, **others)
    if not launch.batch_invariant and launch.rows and (split := _split_backward(launch, launch.rows)):
        return split
    center, residual = launch.vectors > 1, launch.residual  # a bias has a gradient as well, as in LayerNorm
    if launch.size > 2:
        return _fp32_backward(cols, center, residual)
    odd = access(cols, launch.size) == 1  # 5120 columns spill where each element is an access
    table = _LAYERNORM_BACKWARD if center else _RMSNORM_BACKWARD_RESIDUAL if residual or odd else _RMSNORM_BACKWARD
    if plan := _next(table, cols):
        return plan
    if not center and cols * launch.size % SECTOR:
        if cols <= TEAM_COLS:
            return _RMSNORM_UNALIGNED_16384
        return _wide(_RMSNORM_UNALIGNED_RESIDUAL if residual else _RMSNORM_UNALIGNED_BACKWARD, cols)
    if center and cols % _WIDE_BACKWARD.block:
        return _wide(_LAYERNORM_UNEVEN_BACKWARD, cols)
    return _wide(_WIDE_BACKWARD if center or cols > TEAM_COLS else _RMSNORM_TEAM_BACKWARD, cols)


def _split_backward(launch: NormLaunch, rows: int) -> BackwardPlan | None:
    """As `_split_forward`, to programs of at most 4096 columns; more rows, all at once, as `_split_more_forward`.

    A row is read again from the cache where a thread would need too many registers.
    """
    cols, processors, wide = launch.cols, launch.processors, launch.cols > MORE_BACKWARD_COLS
    if cols <= SPLIT_BACKWARD_COLS or rows > processors:
        return None
    few = rows * SPLIT_BACKWARD_PROCESSORS <= processors
    if few or (launch.size == 2 and not wide and 2 * rows <= processors):
        for block, team, programs in _splits(cols, rows, processors, MAX_TEAM):
            if block <= 4096:
                keep: Keep = "fp32" if block < 4096 and launch.vectorised else "cached"
                return BackwardPlan(1, block, block // 512, team=team, programs=programs, stages=1, keep=keep)
    two = launch.vectors > 1
    if launch.size > 2 or not wide or not launch.vectorised or (two and launch.residual):
        return None
    team, programs = _programs(cols, 2048, rows, processors)
    most = 5 if two or launch.residual else 6 if cols % 2048 else 7  # with registers; masks take some
    if rows > MORE_BACKWARD_ROWS * processors or team > MAX_TEAM or programs > most:
        return None
    keep = "fp32" if 4 * programs <= WARPS_IN_REGISTERS else "cached"
    return BackwardPlan(1, 2048, 4, team=team, programs=programs, stages=1, keep=keep)


def _fp32_backward(cols: int, center: bool, residual: bool) -> BackwardPlan:
    if plan := _next(_LAYERNORM_BACKWARD_FP32 if center else _RMSNORM_BACKWARD_FP32, cols):
        return replace(plan, programs=3) if center and residual and plan.block == 256 else plan  # as many as fit
    if center:
        return _wide(_FP32_WIDE_BACKWARD, cols)
    if residual and cols <= MAX_TEAM * _FP32_RESIDUAL_BACKWARD.block:
        return _wide(_FP32_RESIDUAL_BACKWARD, cols)
    if cols <= 12288:
        return _FP32_BACKWARD_12288
    if cols <= 32768 and cols % _FP32_BACKWARD_32768.block == 0:
        return _wide(_FP32_BACKWARD_32768, cols)
    return _wide(_FP32_WIDE_BACKWARD if cols < FP32_WIDE else _FP32_BACKWARD_65536, cols)


def _next(table: dict[int, Plan], cols: int) -> Plan | None:
    """The plan of the smallest width that is not less, if there is one.  Widths ascend."""
    return next((plan for width, plan in table.items() if width >= cols), None)


def _wide(plan: Plan, cols: int, max_team: int = MAX_TEAM) -> Plan:
    """With a team; blocks grow where there would be more than `max_team` programs."""
    while -(-cols // plan.block) > max_team:
        plan = replace(plan, block=2 * plan.block, warps=min(2 * plan.warps, 32), programs=max(1, plan.programs // 2))
    return replace(plan, team=-(-cols // plan.block))
