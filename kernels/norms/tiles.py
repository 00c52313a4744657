"""What the kernels are made of: tiles of rows in and out of memory, and sums of rows that several programs share."""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl

from . import workspaces

COUNTERS, SLOTS = tl.constexpr(workspaces.COUNTERS), tl.constexpr(workspaces.SLOTS)


@triton.constexpr_function
def _summing(team):
    """PTX: wait until the tag of every member's word is $2, then add up their lower halves, always in this order."""
    loads = "".join(
        f"ld.relaxed.gpu.global.b64 word, [$1 + {8 * member}];" + f"mov.b64 {{v{member}, tag{member}}}, word;"
        for member in range(team)
    )
    tags = "".join(f"setp.ne.or.b32 not_yet, tag{member}, $2, not_yet;" for member in range(1, team))
    adds = "".join(f"add.f32 $0, $0, v{member};" for member in range(1, team))
    return (
        f"{{ .reg .pred not_yet; .reg .b64 word; .reg .b32 tag<{team}>; .reg .f32 v<{team}>; again: {loads}"
        f"setp.ne.b32 not_yet, tag0, $2; {tags} @not_yet bra again; mov.f32 $0, v0; {adds} }}"
    )


@triton.jit
def load_rows(P, rows, stride, cols, M, COLS: tl.constexpr, PART: tl.constexpr):
    """[rows, columns] in their own dtype; zero outside."""
    at = P + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    if PART:
        values = tl.load(at, (rows < M)[:, None] & (cols < COLS)[None, :], other=0.0, eviction_policy="evict_first")
    else:
        values = tl.load(at, eviction_policy="evict_first")
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
def columns_of(P, cols, COLS: tl.constexpr, PART: tl.constexpr):
    """[columns] in their own dtype, zero outside and of nothing.  Every row needs them: keep them cached."""
    if P is None:
        values = tl.zeros_like(cols)
    elif PART:
        values = tl.load(P + cols, cols < COLS, other=0.0, eviction_policy="evict_last")
    else:
        values = tl.load(P + cols, eviction_policy="evict_last")
    return values


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
def team_sum(values, SLOTS, tag, member, TEAM: tl.constexpr):
    """[1]: the sum of the values [1] of all members of a team at one step, to the same bits for each of them.

    A value and the tag of its step are one 64-bit word, and so no fence is needed: who sees the tag has the value.
    SLOTS are the words of this step.  All members must be running at the same time.
    """
    words = (tag.to(tl.int64) << 32) | (values.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    tl.store(SLOTS + member + tl.arange(0, 1), words)
    at = (SLOTS + tl.arange(0, 1)).to(tl.int64)
    return tl.inline_asm_elementwise(_summing(TEAM), "=&f,l,r", [at, tag], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def leave(WORK, steps, programs):
    """The last program of a launch readies the workspace for the next one, whose tags begin where these end."""
    if tl.atomic_add(WORK + 1, 1) == programs - 1:
        tl.store(WORK + 1, 0)
        tl.store(WORK, tl.load(WORK) + steps)
