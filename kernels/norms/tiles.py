"""Shared by both kernels: loads and stores of a tile, and exchange of sums between programs that share a row.

CONFIG is the kernel's configuration (`launching.Config`) in all of them.
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN201
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl

from . import plans, workspaces

COUNTERS, SLOTS = tl.constexpr(workspaces.COUNTERS), tl.constexpr(workspaces.SLOTS)
VECTOR_BYTES = tl.constexpr(plans.VECTOR_BYTES)
COUNTER_STRIDE, RING = tl.constexpr(workspaces.COUNTER_STRIDE), tl.constexpr(workspaces.RING)
# Thread $2 loads the 64-bit word at $1.  Threads from number $3 on take zero.
_PEEK = tl.constexpr(
    "{ .reg .pred mine; .reg .b64 word; mov.b64 word, 0; setp.lt.s32 mine, $2, $3;"
    " @mine ld.relaxed.gpu.global.b64 word, [$1]; mov.b64 $0, word; }"
)
# Thread $3 polls the 64-bit word at $1 until its upper half is the tag $2, then takes its lower half; $5 is what it was
# before.  Threads from number $4 on take zero.
_POLL = tl.constexpr(
    "{ .reg .pred others, not_yet; .reg .b64 word; .reg .b32 tag; .reg .b32 value; mov.b32 value, 0;"
    " setp.ge.s32 others, $3, $4; @others bra done; mov.b64 word, $5; bra check;"
    " again: ld.relaxed.gpu.global.b64 word, [$1]; check: mov.b64 {value, tag}, word; setp.ne.b32 not_yet, tag, $2;"
    " @not_yet bra again; done: mov.b32 $0, value; }"
)
# Thread 0, whose number is $2, adds 1 to the 32-bit counter at $1 and gets its old value; the others get zero.
_COUNT = tl.constexpr(
    "{ .reg .pred mine; setp.eq.s32 mine, $2, 0; mov.b32 $0, 0; @mine atom.relaxed.gpu.global.add.u32 $0, [$1], 1; }"
)


@triton.jit
def load(
    P, rows, stride, cols, M, CONFIG: tl.constexpr, REUSED: tl.constexpr, TOKENS: tl.constexpr = 0, heads=None,
    tokens=None,
):  # fmt: skip
    """[rows, columns] in their own dtype, zero out of bounds.  REUSED: ask the cache to keep them.

    TOKENS: the stride of every HEADS rows, where rows have two; a constant, since a model has a few of them.  Longer
    sequences have `heads` rows and the stride `tokens`, divided by UNIT.
    """
    POLICY: tl.constexpr = "evict_last" if REUSED else "evict_first"
    if tokens is not None:
        begin = (rows // heads).to(tl.int64) * (tokens * CONFIG.UNIT) + (rows % heads).to(tl.int64) * stride
        at = P + begin[:, None] + cols[None, :]
    elif TOKENS == 0:
        at = P + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    else:
        begin = (rows // CONFIG.HEADS).to(tl.int64) * TOKENS + rows % CONFIG.HEADS * stride
        at = P + begin[:, None] + cols[None, :]
    if CONFIG.MASKED:
        values = tl.load(at, (rows < M)[:, None] & (cols < CONFIG.COLS)[None, :], other=0.0, eviction_policy=POLICY)
    else:
        values = tl.load(at, eviction_policy=POLICY)
    return values


@triton.jit
def store(P, values, rows, cols, M, CONFIG: tl.constexpr):
    """Store [rows, columns] into a contiguous tensor, rounded to its dtype."""
    at = P + rows.to(tl.int64)[:, None] * CONFIG.COLS + cols[None, :]
    values = values.to(P.dtype.element_ty)
    if CONFIG.MASKED:
        tl.store(at, values, (rows < M)[:, None] & (cols < CONFIG.COLS)[None, :])
    else:
        tl.store(at, values)


@triton.jit
def load_columns(P, cols, CONFIG: tl.constexpr):
    """[1, columns] of a weight or bias in its own dtype, zero out of bounds and where there is none (P is None).

    For grids of one dimension only.
    """
    if P is not None and CONFIG.UNIT * P.dtype.element_ty.primitive_bitwidth < 8 * VECTOR_BYTES:
        # Wider accesses than those to the rows would give a kernel two layouts, and the compiler would choose for each
        # kernel in which one a row is summed: a row would not have the same bits in every batch.  As the grid has one
        # dimension, this adds zero, of which the compiler only knows that it is a multiple of UNIT.
        cols += tl.program_id(1) * CONFIG.UNIT
    # A tile of one row loads them in two dimensions: each thread then gets the columns that it has of the row.
    at = cols[None, :] if CONFIG.ROWS == 1 else cols
    if P is None:
        values = tl.zeros_like(at)
    elif CONFIG.MASKED:
        values = tl.load(P + at, at < CONFIG.COLS, other=0.0, eviction_policy="evict_last")
    else:
        values = tl.load(P + at, eviction_policy="evict_last")
    return values if CONFIG.ROWS == 1 else values[None, :]


@triton.jit
def load_statistic(P, rows, M, CONFIG: tl.constexpr):
    """[rows] in fp32: the mean or rstd of each row."""
    return tl.load(P + rows, rows < M, other=0.0) if CONFIG.MASKED else tl.load(P + rows)


@triton.jit
def optimization_barrier(values):
    """The same bits, but the compiler does not know that.  For 16-bit dtypes only, two values in a register.

    Without it, the compiler keeps the fp32 copy of a row between its sums and their use, in twice the registers.
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [values], dtype=values.dtype, is_pure=False, pack=2)


@triton.jit
def columns_of(rank, CONFIG: tl.constexpr):
    """How many columns of a row the program with this rank in its team has; 0 if the team is wider than the row."""
    return tl.minimum(tl.maximum(CONFIG.COLS - rank * CONFIG.BLOCK, 0), CONFIG.BLOCK)


@triton.jit
def open_exchange(WORKSPACE, team, CONFIG: tl.constexpr):
    """(slots, first_tag) of a team: two slots of each rank for each of RING steps, and the tag of step 0."""
    return WORKSPACE + SLOTS + team * (RING * 2 * CONFIG.TEAM), tl.load(WORKSPACE).to(tl.int32) + 1


@triton.jit
def slots_of(step, slots, CONFIG: tl.constexpr):
    """The first slot of each rank at this step; the second ones follow TEAM slots later."""
    return slots + (step % RING) * (2 * CONFIG.TEAM)


@triton.jit
def publish(value, slots, tag, rank):
    """Store the `value` [1] of this rank, in fp32, together with the tag of its step.

    Value and tag are one aligned 64-bit word, which a GPU stores and loads in one access: who reads the tag has the
    value, without a fence.
    """
    words = (tag.to(tl.int64) << 32) | (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    tl.store(slots + rank + tl.arange(0, 1), words)


@triton.jit
def peek(slots, CONFIG: tl.constexpr):
    """[THREADS]: the word in the slot of each rank, whatever its tag yet, for `collect`.

    A load from the L2 that other work hides, if it begins before that work.
    """
    thread = tl.arange(0, CONFIG.THREADS)
    at = (slots + thread % CONFIG.TEAM).to(tl.int64)
    return tl.inline_asm_elementwise(_PEEK, "=l,l,r,r", [at, thread, CONFIG.TEAM], tl.int64, is_pure=False, pack=1)


@triton.jit
def peek_both(slots, CONFIG: tl.constexpr):
    """The words of the sums in these slots: of both for LayerNorm, of the only one for RMSNorm."""
    first = peek(slots, CONFIG)
    second = first
    if CONFIG.CENTER:
        second = peek(slots + CONFIG.TEAM, CONFIG)
    return first, second


@triton.jit
def collect(slots, tag, words, CONFIG: tl.constexpr):
    """[THREADS] in fp32: the value of each rank, in order, then zeros.  Blocks until all ranks have published it.

    words: from `peek`.

    Each of the first TEAM threads polls one slot, and the other warps wait at a barrier: polling by all warps slows
    down the stores that they wait for.  All programs of the team must run at the same time.
    """
    thread = tl.arange(0, CONFIG.THREADS)
    at = (slots + thread % CONFIG.TEAM).to(tl.int64)
    return tl.inline_asm_elementwise(
        _POLL, "=f,l,r,r,r,l", [at, tag, thread, CONFIG.TEAM, words], dtype=tl.float32, is_pure=False, pack=1
    )


@triton.jit
def slots_of_row(row, slots, CONFIG: tl.constexpr):
    """The first slot of each rank, where each row has slots of its own."""
    return slots + row.to(tl.int64) * (2 * CONFIG.TEAM)


@triton.jit
def take_row(WORKSPACE, rank, first, M):
    """A row from `first` on that no other program of this rank has taken, in order; at least M if none is left."""
    some = first < M  # otherwise there is nothing to wait for
    taken = tl.atomic_add(WORKSPACE + COUNTERS + rank * COUNTER_STRIDE, 1, mask=some, sem="relaxed").to(tl.int32)
    return first + tl.where(some, taken, 0)


@triton.jit
def arrive(WORKSPACE, CONFIG: tl.constexpr):
    """Count this program, which takes no more rows, before its last exchange: [THREADS], for `release_workspace`.

    Nothing waits for the result until then: an atomic with a fence at the end of a program would wait for its stores.
    A relaxed one suffices.  Before it, this program has read the epoch, because its tags need it and a barrier follows,
    and has the answers of all its `take_row`, because its loop ends by the last one.
    """
    thread = tl.arange(0, CONFIG.THREADS)
    at = (WORKSPACE + 1).to(tl.int64) + thread * 0
    return tl.inline_asm_elementwise(_COUNT, "=r,l,r", [at, thread], tl.int32, is_pure=False, pack=1)


@triton.jit
def release_workspace(WORKSPACE, arrived, epoch, programs, ranks: tl.constexpr = 0):
    """The last program to arrive makes the workspace ready for the next launch, which begins with `epoch`.

    arrived: from `arrive`.  ranks: how many have taken rows.
    """
    if tl.sum(arrived, 0) == programs - 1:
        tl.store(WORKSPACE, epoch.to(tl.int64))
        tl.store(WORKSPACE + 1, 0)
        for rank in range(ranks):
            tl.store(WORKSPACE + COUNTERS + rank * COUNTER_STRIDE, 0)
