"""A row over the CTAs of a cluster, where Triton can sum across them: one program, and so the kernels as they are.

Triton 3.6 and 3.7 cannot, 3.9 can; which of these is there is found out by compiling a sum for the current target.  The
CTAs of a cluster see each other's shared memory ("Distributed Shared Memory", CUDA Programming Guide) and are started
together, so that nothing goes through the L2 and no cooperative launch is needed.
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

from .plans import BackwardPlan, ForwardPlan

CAPABILITY = 90  # the first with clusters
MOST = 8  # CTAs of a cluster that every such device can have
# Columns of a CTA without spills in any variant, at 16 warps (Triton 3.9, sm_90 and sm_100).
FORWARD_COLS, BACKWARD_COLS = 16384, 8192
COLS = 1024  # of the sum that is tried
WAITED_S = 60


def forward_plan(cols: int, size: int, weight_size: int) -> ForwardPlan | None:
    """For rows that one program can not hold; None where a cluster would spill."""
    block = 1 << (cols - 1).bit_length()
    ctas = block // FORWARD_COLS
    if ctas <= MOST:
        return ForwardPlan(1, block, 16, weights="early", keep="fp32", ctas=ctas)
    if ctas <= 2 * MOST and max(size, weight_size) == 2:
        return ForwardPlan(1, block, 32, ctas=MOST, weights="late", keep="packed")
    return None


def backward_plan(cols: int) -> BackwardPlan | None:
    """Likewise.  Its parts are added up separately: who is the last to arrive can not be asked by several CTAs."""
    block = 1 << (cols - 1).bit_length()
    ctas = block // BACKWARD_COLS
    return BackwardPlan(1, block, 16, stages=2, keep="packed", ctas=ctas) if ctas <= MOST else None


def are_there() -> bool:
    """Can this Triton sum a row over a cluster of the current device?  Asked once a process, launching nothing."""
    if not isinstance(_sum, triton.JITFunction):
        return False  # interpreted
    active: Any = driver
    target = active.active.get_current_target()
    return target.backend == "cuda" and target.arch >= CAPABILITY and _compiles(int(target.arch))


@functools.cache
def _compiles(arch: int) -> bool:
    """In a process of its own: a compiler that cannot may say so at length, or crash."""
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(arch)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            capture_output=True,
            timeout=WAITED_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0


@triton.jit
def _sum(X, Y, COLS: tl.constexpr):
    rows, cols = tl.arange(0, 1), tl.arange(0, COLS)
    tl.store(Y + rows, tl.sum(tl.load(X + rows[:, None] * COLS + cols[None, :]), 1))


if __name__ == "__main__":
    source = ASTSource(_sum, {"X": "*fp32", "Y": "*fp32", "COLS": "constexpr"}, {(2,): COLS})
    compiled = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"num_ctas": 2})
    # a sum that stayed within each CTA would be wrong; one of both waits for the other
    sys.exit("barrier.cluster" not in compiled.asm["ptx"])
