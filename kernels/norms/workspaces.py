"""Global memory through which the programs of a launch synchronise: one workspace per device and stream.

A workspace is an int64 tensor [epoch, programs that have arrived, counters …, slots …], zero at first.  The epoch
numbers the steps of all launches: it makes the tags of slots unique within 2^32 steps.  Counters are zero again when a
launch ends.  Launches of one stream run one after another and can share a workspace.  A graph may be replayed on any
stream, at the same time as others: each capture gets its own workspace, from a pool that was zeroed before.
"""

import ctypes
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from .calls import native

COUNTERS = 16  # the first counter: of arrivals, or of the rows that a rank has taken
COUNTER_STRIDE = 16  # words from the counter of a rank to the next: 128 bytes, so that atomics do not share a line
SLOTS = 8192  # the first slot: a 64-bit word with an fp32 value and a tag
WORDS, WORD = 32768, 8  # words, and the bytes of each
# Steps of a team with slots of their own.  A program that publishes step s has collected step s - 2 from all others, so
# none of them still waits for s - 4, which it overwrites.
RING = 4
STORE = 16  # workspaces allocated at once; those of captures are never reused, since graphs live on

_of_streams: dict[tuple[int, int, int], Tensor] = {}
_stores: dict[int, list[Tensor]] = {}


@contextmanager
def workspace(device: torch.device, *, wanted: bool = True) -> Iterator[Tensor | None]:
    """The workspace of the current stream, None if not `wanted`.  A failed launch drops it."""
    if not wanted:
        yield None
        return
    if device.type != "cuda":
        yield torch.zeros(WORDS, dtype=torch.int64, device=device)
        return
    stream, index = torch.cuda.current_stream(device).cuda_stream, device.index or 0
    key = (index, stream, _capture_of(stream))
    store = _stores.setdefault(index, [])
    if len(store) <= 1 and not key[2]:
        store += _made(device)
    if key not in _of_streams:
        if not store:
            yield torch.zeros(WORDS, dtype=torch.int64, device=device)  # zeroed again by each replay
            return
        _of_streams[key] = store.pop()
    words = _of_streams[key]
    if not key[2]:
        native.give_workspace(index, stream, words)
    try:
        yield words
    except BaseException:
        _of_streams.pop(key, None)
        if not key[2]:
            native.give_workspace(index, stream, None)
        raise


def slots_of_rows(words: Tensor, rows: int, team: int) -> Tensor:
    """Two slots of each rank for each row: in the workspace where they fit, otherwise new ones, which are zeroed.

    New ones take 16 bytes for each program of a team and row.
    """
    begin = slots_begin(rows, team)
    return words.new_zeros(rows * 2 * team) if begin is None else words[begin // WORD :]


def slots_begin(rows: int, team: int) -> int | None:
    """Bytes of the workspace before the slots of rows; None where they do not fit."""
    return SLOTS * WORD if rows * 2 * team <= WORDS - SLOTS else None


def _made(device: torch.device) -> tuple[Tensor, ...]:
    """Allocated by another thread: while torch.compile warms up for a graph (mode="reduce-overhead"), this thread's
    memory comes from the graph's pool, and torch raises an error for anything that stays there without being an output.

    `like` makes it a fake tensor if this thread makes fake tensors: that mode holds within one thread.
    """
    like = torch.empty(0, dtype=torch.int64, device=device)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_zeroed, like).result()


def _zeroed(like: Tensor) -> tuple[Tensor, ...]:
    whole = like.new_zeros(STORE, WORDS)
    torch.cuda.current_stream(like.device).synchronize()  # other streams will use them
    return whole.unbind()


def _capture_of(stream: int) -> int:
    """The id of the capture that the stream is in; 0 if it is in none."""
    if not torch.cuda.is_current_stream_capturing():
        return 0
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    error = driver().cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    if error:
        raise RuntimeError(f"cuStreamGetCaptureInfo failed with {error}")
    return number.value


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
