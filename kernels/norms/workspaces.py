"""The words through which programs of a launch meet: per device and stream, zero at first, left ready by each launch.

A workspace is [epoch, programs that have left, counters …, slots …]: the epoch numbers the steps of all launches, so
that a slot's tag is none that it held within 2^32 steps; counters are zero again when a launch ends.  Two launches of
one stream follow each other, and so they can share.  A graph is replayed on streams that nobody knows yet, perhaps at
the same time as others: each capture gets a workspace of its own, from a store that was zeroed before.
"""

import ctypes
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

COUNTERS = 16  # words from here on count who has arrived
SLOTS = 8192  # and from here on hold tagged values
WORDS = 32768
# Steps whose values a team has at once.  A member that tells step s has heard of s - 2, and so nobody waits for s - 4.
RING = 4
STORE = 16  # workspaces made at once; what captures took is never given back, since graphs live on

_of_streams: dict[tuple[int, int, int], Tensor] = {}
_stores: dict[int, list[Tensor]] = {}


@contextmanager
def workspace(device: torch.device, *, wanted: bool = True) -> Iterator[Tensor | None]:
    """That of the current stream.  If its launch fails, nobody can say what it left behind: it is forgotten."""
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
    try:
        yield words
    except BaseException:
        _of_streams.pop(key, None)
        raise


def _made(device: torch.device) -> tuple[Tensor, ...]:
    """By another thread: where torch.compile warms up for a graph (mode="reduce-overhead"), this one's memory comes
    from the graph's pool, and torch raises an error for whatever stays there without being an output.

    What it makes is of this one's kind: torch's fake tensors are so within the thread that asked for them alone.
    """
    kind = torch.empty(0, dtype=torch.int64, device=device)
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(_zeroed, kind).result()


def _zeroed(kind: Tensor) -> tuple[Tensor, ...]:
    whole = kind.new_zeros(STORE, WORDS)
    torch.cuda.current_stream(kind.device).synchronize()  # other streams will use them
    return whole.unbind()


def _capture_of(stream: int) -> int:
    """The number of the capture that the stream is in; 0 where it is in none."""
    if not torch.cuda.is_current_stream_capturing():
        return 0
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    error = _driver().cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    if error:
        raise RuntimeError(f"cuStreamGetCaptureInfo answered {error}")
    return number.value


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
