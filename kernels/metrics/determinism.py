"""Does a call give the same bits each time, also while the device runs other work?

A result that depends on the order in which blocks finish (atomics, a missing barrier) often repeats on an idle GPU and
differs while other work runs.  Differing is allowed; it is a fact that any comparison of outputs has to know.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..arena.repeatability import FULL_REPEATS, MIN_REPEATS, Repeats
from ..cases import Case
from ..checks.oracle import named
from ..checks.outputs import digest
from .clocks import event

MAX_S = 0.25  # for all calls of a case: 45 calls of a kernel of 1.4 ms
REPLAYS = 8  # of a graph whose bits are not those of a call
COST = 4  # calls that a repeat on a GPU costs: the call and a pass over its outputs, both while other work runs
BYTES_S = 4e12  # of the other work: a copy at this speed takes as long as the call
MIN_WORK_BYTES = 8 << 20
MAX_WORK_BYTES = 1 << 29


class GraphBits(StrEnum):
    """How the bits of a CUDA graph compare with those of plain calls on the same inputs."""

    SAME = "same"
    OTHER = "other"  # all replays agree, all calls agree, and the two differ
    VARYING = "varying"  # replays, or calls, differ among each other


def repeat(case: Case, call: Callable[[], Any], stream: Any, calls: int = FULL_REPEATS) -> Repeats:
    """Compare up to `calls` calls on the same inputs, at least MIN_REPEATS and for about MAX_S.

    `stream` is the current one, None on a CPU.  No other work runs on a CPU: the target has one thread, so that its
    order cannot change.
    """
    return _on_cpu(case, call, calls) if stream is None else _on_gpu(case, call, stream, calls)


def graph_bits(case: Case, replay: Callable[[], Any], call: Callable[[], Any]) -> GraphBits:
    """Compare the outputs of a graph for an input set with those of plain calls; REPLAYS times each if they differ."""
    if _digest(case, replay) == _digest(case, call):
        return GraphBits.SAME
    replays = {_digest(case, replay) for _ in range(REPLAYS)}
    calls = {_digest(case, call) for _ in range(REPLAYS)}
    # Bits that differed once and agree now vary as well.
    return GraphBits.OTHER if len(replays) == len(calls) == 1 and replays != calls else GraphBits.VARYING


def _digest(case: Case, call: Callable[[], Any]) -> tuple[int, ...]:
    return tuple(_digests(named(case, call())).tolist())


def _digests(outputs: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([digest(tensor) for tensor in outputs.values()])


def _on_cpu(case: Case, call: Callable[[], Any], limit: int) -> Repeats:
    began = perf_counter()
    seen: list[tuple[int, ...]] = []
    while len(seen) < limit and (len(seen) < MIN_REPEATS or perf_counter() - began < MAX_S):
        seen.append(_digest(case, call))
    return Repeats(len(seen), len(set(seen)))


def _on_gpu(case: Case, call: Callable[[], Any], stream: Any, limit: int) -> Repeats:
    began = event()
    ended = event()
    call()
    began.record(stream)
    call()
    ended.record(stream)
    ended.synchronize()
    call_s = max(float(began.elapsed_time(ended)) / 1e3, 1e-6)
    calls = max(MIN_REPEATS, min(limit, int(MAX_S / (COST * call_s))))
    work = torch.empty(
        max(MIN_WORK_BYTES, min(MAX_WORK_BYTES, int(call_s * BYTES_S / 2))), dtype=torch.int8, device="cuda"
    )
    into = torch.empty_like(work)
    cuda: Any = torch.cuda
    other_stream = cuda.Stream()
    other_stream.wait_stream(stream)
    seen: list[Tensor] = []
    for _ in range(calls):
        with cuda.stream(other_stream):
            torch.neg(work, out=into)  # a kernel that uses the SMs and the L2; a copy may use the copy engine
        seen.append(_digests(named(case, call())))
    stream.wait_stream(other_stream)  # before the memory of `work` can be allocated again
    return Repeats(calls, len(set(map(tuple, torch.stack(seen).tolist()))))
