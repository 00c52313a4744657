"""A row over the CTAs of a cluster, where Triton can reduce across them: one program, so the kernels need no change.

Triton 3.6 and 3.7 cannot, 3.9 can; which one is installed is found out by compiling a sum for the current target.  The
CTAs of a cluster see each other's shared memory ("Distributed Shared Memory", CUDA Programming Guide) and start
together, so that nothing goes through the L2 cache and no cooperative launch is needed.
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import functools
import os
import subprocess
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from ..cases import Direction
from .plans import BackwardPlan, ForwardPlan

CAPABILITY = 90  # the first with clusters
MAX_CTAS = 8  # of a cluster, on every such device
# Columns of a CTA without spills in any variant, at 16 warps (Triton 3.9, sm_90 and sm_100).
FORWARD_COLS, BACKWARD_COLS = 16384, 8192
COLS = 1024  # of the sum that is compiled as a test
TIMEOUT_S = 60


def plan(direction: Direction, cols: int, size: int, weight_size: int) -> ForwardPlan | None:
    """For rows that are too wide for one CTA; None where a cluster would spill.  Sizes are bytes of an element.

    Backward, the partial sums are added up by a separate kernel: a cluster cannot ask who arrives last.
    """
    block = 1 << (cols - 1).bit_length()
    ctas = block // (FORWARD_COLS if direction is Direction.FWD else BACKWARD_COLS)
    if direction is Direction.BWD:
        return BackwardPlan(1, block, 16, stages=2, keep="packed", ctas=ctas) if ctas <= MAX_CTAS else None
    if ctas <= MAX_CTAS:
        return ForwardPlan(1, block, 16, weights="early", keep="fp32", ctas=ctas)
    if ctas <= 2 * MAX_CTAS and max(size, weight_size) == 2:
        return ForwardPlan(1, block, 32, ctas=MAX_CTAS, weights="late", keep="packed")
    return None


def are_supported() -> bool:
    """Whether this Triton can reduce a row over a cluster of the current device.  Compiles once, launches nothing."""
    if not isinstance(_sum, triton.JITFunction):
        return False  # interpreted
    active: Any = driver
    target = active.active.get_current_target()
    return target.backend == "cuda" and target.arch >= CAPABILITY and _compiles(int(target.arch))


@functools.cache
def _compiles(arch: int) -> bool:
    """In another process: a compiler that cannot may print a lot, or crash."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(arch)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


@triton.jit
def _sum(X, Y, COLS: tl.constexpr):
    rows, cols = tl.arange(0, 1), tl.arange(0, COLS)
    tl.store(Y + rows, tl.sum(tl.load(X + rows[:, None] * COLS + cols[None, :]), 1))


if __name__ == "__main__":
    source = ASTSource(_sum, {"X": "*fp32", "Y": "*fp32", "COLS": "constexpr"}, {(2,): COLS})
    compiled = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"num_ctas": 2})
    # without a barrier the sum would stay within each CTA, and would be wrong
    sys.exit("barrier.cluster" not in compiled.asm["ptx"])
