"""Does a call give the same bits each time, while the device is busy with something else as well?

What depends on the order in which blocks finish (atomics, a missing barrier) often repeats on an idle GPU and does not
beside other work.  Not repeating is allowed; it is a fact, and whoever compares outputs with it should know.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..arena.repeatability import ENOUGH, FEWEST, Repeats
from ..cases import Case
from ..contender.clocks import event
from .oracle import named
from .outputs import digest

MAX_S = 0.25  # for all calls of a case: 45 calls of a kernel of 1.4 ms
REPLAYS = 8  # of a graph whose bits are not those of a call
# On a GPU a repeat is a call, a pass over its outputs (about as many bytes), and both run beside other work.
COST = 4
BYTES_S = 4e12  # of other work: a copy at this speed takes as long as the call beside it
MIN_WORK, MAX_WORK = 8 << 20, 1 << 29  # bytes


class GraphBits(StrEnum):
    """How the bits that a CUDA graph computes compare with those of plain calls on the same inputs."""

    SAME = "same"
    OTHER = "other"  # each replay gives the same, and so does each call, and the two differ
    VARYING = "varying"  # the replays, or the calls, differ among themselves


def repeat(case: Case, call: Callable[[], Any], stream: Any, calls: int = ENOUGH) -> Repeats:
    """Compare up to `calls` calls on the same inputs, at least FEWEST and for about MAX_S.

    `stream` is the current one, None on a CPU.  On a CPU nothing runs beside it: the target has one thread, and no
    other order to run in.
    """
    return _on_cpu(case, call, calls) if stream is None else _on_gpu(case, call, stream, calls)


def graph_bits(case: Case, replay: Callable[[], Any], call: Callable[[], Any]) -> GraphBits:
    """Compare what a graph leaves for an input set with plain calls on it, REPLAYS times each where they differ."""
    if _digest(case, replay) == _digest(case, call):
        return GraphBits.SAME
    replays = {_digest(case, replay) for _ in range(REPLAYS)}
    calls = {_digest(case, call) for _ in range(REPLAYS)}
    # What differed once and agrees now varies as well.
    return GraphBits.OTHER if len(replays) == len(calls) == 1 and replays != calls else GraphBits.VARYING


def _digest(case: Case, call: Callable[[], Any]) -> tuple[int, ...]:
    return tuple(_digests(named(case, call())).tolist())


def _digests(outputs: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([digest(tensor) for tensor in outputs.values()])


def _on_cpu(case: Case, call: Callable[[], Any], most: int) -> Repeats:
    began = perf_counter()
    seen: list[tuple[int, ...]] = []
    while len(seen) < most and (len(seen) < FEWEST or perf_counter() - began < MAX_S):
        seen.append(_digest(case, call))
    return Repeats(len(seen), len(set(seen)))


def _on_gpu(case: Case, call: Callable[[], Any], stream: Any, most: int) -> Repeats:
    began, ended = event(), event()
    call()
    began.record(stream)
    call()
    ended.record(stream)
    ended.synchronize()
    took_s = max(float(began.elapsed_time(ended)) / 1e3, 1e-6)
    calls = max(FEWEST, min(most, int(MAX_S / (COST * took_s))))
    work = torch.empty(max(MIN_WORK, min(MAX_WORK, int(took_s * BYTES_S / 2))), dtype=torch.int8, device="cuda")
    into = torch.empty_like(work)
    cuda: Any = torch.cuda
    beside = cuda.Stream()
    beside.wait_stream(stream)
    seen: list[Tensor] = []
    for _ in range(calls):
        with cuda.stream(beside):
            torch.neg(work, out=into)  # a kernel on the SMs and through L2; a plain copy may go another way
        seen.append(_digests(named(case, call())))
    stream.wait_stream(beside)  # before the memory of `work` may become anybody's
    return Repeats(calls, len(set(map(tuple, torch.stack(seen).tolist()))))
