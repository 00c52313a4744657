"""What the kernels are made of: tiles of rows in and out of memory, and sums of rows that several programs share."""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN201
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl

from . import workspaces

COUNTERS, SLOTS = tl.constexpr(workspaces.COUNTERS), tl.constexpr(workspaces.SLOTS)
RING = tl.constexpr(workspaces.RING)
# Thread $3 waits until the upper half of its word is the tag $2 and has its lower half; from $4 on they have zero.
_WAIT = tl.constexpr(
    "{ .reg .pred others, not_yet; .reg .b64 word; .reg .b32 tag; .reg .b32 value; mov.b32 value, 0;"
    " setp.ge.s32 others, $3, $4; @others bra done;"
    " again: ld.relaxed.gpu.global.b64 word, [$1]; mov.b64 {value, tag}, word; setp.ne.b32 not_yet, tag, $2;"
    " @not_yet bra again; done: mov.b32 $0, value; }"
)


@triton.jit
def load_rows(P, rows, stride, cols, M, COLS: tl.constexpr, PART: tl.constexpr, KEEP: tl.constexpr):
    """[rows, columns] in their own dtype; zero outside.  KEEP them in the cache if they are read again."""
    POLICY: tl.constexpr = "evict_last" if KEEP else "evict_first"
    at = P + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    if PART:
        values = tl.load(at, (rows < M)[:, None] & (cols < COLS)[None, :], other=0.0, eviction_policy=POLICY)
    else:
        values = tl.load(at, eviction_policy=POLICY)
    return values


@triton.jit
def store_rows(P, values, rows, stride, cols, M, COLS: tl.constexpr, PART: tl.constexpr):
    at = P + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    values = values.to(P.dtype.element_ty)
    if PART:
        tl.store(at, values, (rows < M)[:, None] & (cols < COLS)[None, :])
    else:
        tl.store(at, values)


@triton.jit
def columns_of(P, cols, COLS: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr):
    """[1, columns] in their own dtype, zero outside and of nothing.  Every row needs them: keep them cached."""
    # With two dimensions they come to the threads that have these columns of a lone row.
    at = cols[None, :] if ROWS == 1 else cols
    if P is None:
        values = tl.zeros_like(at)
    elif PART:
        values = tl.load(P + at, at < COLS, other=0.0, eviction_policy="evict_last")
    else:
        values = tl.load(P + at, eviction_policy="evict_last")
    return values if ROWS == 1 else values[None, :]


@triton.jit
def load_each(P, rows, M, PART: tl.constexpr):
    """One fp32 a row."""
    return tl.load(P + rows, rows < M, other=0.0) if PART else tl.load(P + rows)


@triton.jit
def forget(values):
    """The same bits, of which the compiler does not know that it has them already.

    Between the sum over a row and its use it would keep the row in fp32, in twice the registers.  For 16-bit values
    alone, packed by two.
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [values], dtype=values.dtype, is_pure=False, pack=2)


@triton.jit
def tell_team(value, SLOTS, tag, member):
    """Put this member's value [1] of a step where the others look for it.

    A value and the tag of its step are one aligned 64-bit word, which GPUs store in one access: no fence is needed, who
    sees the tag has the value.
    """
    words = (tag.to(tl.int64) << 32) | (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    tl.store(SLOTS + member + tl.arange(0, 1), words)


@triton.jit
def of_team(SLOTS, tag, TEAM: tl.constexpr, THREADS: tl.constexpr):
    """[threads]: the value of each member at one step, in their order, then zeros.  All must run at the same time.

    A warp or two wait, and the others for them: were all asking, what they wait for could hardly get through.
    """
    thread = tl.arange(0, THREADS)
    at = (SLOTS + thread % TEAM).to(tl.int64)
    return tl.inline_asm_elementwise(
        _WAIT, "=f,l,r,r,r", [at, tag, thread, TEAM], dtype=tl.float32, is_pure=False, pack=1
    )


@triton.jit
def leave(WORK, steps, programs):
    """The last program of a launch readies the workspace for the next one, whose tags begin where these end."""
    if tl.atomic_add(WORK + 1, 1) == programs - 1:
        tl.store(WORK + 1, 0)
        tl.store(WORK, tl.load(WORK) + steps)
