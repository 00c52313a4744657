"""Does a call give the same bits each time, while the device is busy with something else as well?

What depends on the order in which blocks finish (atomics, a missing barrier) often repeats on an idle GPU and does not
beside other work.  Not repeating is allowed; it is a fact, and whoever compares outputs with it should know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from .checks import differing, same, snapshot
from .clocks import event
from .oracle import named
from .words import Case

REPEATS = 50
FEWEST = 5
LONGEST_S = 50e-3  # for all repeats of a case: at 200 cases and three contenders half a minute, were all that long
# On a GPU a repeat is a call, a look at its outputs (about as many bytes), and both run beside other work.
COST = 4
BYTES_S = 4e12  # of other work: a copy at this speed takes as long as the call beside it
LEAST_WORK, MOST_WORK = 8 << 20, 1 << 29  # bytes


@dataclass(frozen=True)
class Repeats:
    same: bool
    calls: int


def repeat(case: Case, call: Callable[[], Any], stream: Any) -> Repeats:
    """Up to REPEATS calls on the same inputs.  `stream` is the current one, None on a CPU.

    On a CPU nothing runs beside it: the target has one thread, and no other order to run in.
    """
    return _on_cpu(case, call) if stream is None else _on_gpu(case, call, stream)


def _on_cpu(case: Case, call: Callable[[], Any]) -> Repeats:
    began = perf_counter()
    first, calls = snapshot(case, call()), 1
    while calls < REPEATS and (calls < FEWEST or perf_counter() - began < LONGEST_S):
        calls += 1
        if not same(first, named(case, call())):
            return Repeats(False, calls)
    return Repeats(True, calls)


def _on_gpu(case: Case, call: Callable[[], Any], stream: Any) -> Repeats:
    first = snapshot(case, call())
    began, ended = event(), event()
    began.record(stream)
    call()
    ended.record(stream)
    ended.synchronize()
    took_s = max(float(began.elapsed_time(ended)) / 1e3, 1e-6)
    calls = max(FEWEST, min(REPEATS, int(LONGEST_S / (COST * took_s))))
    work = torch.empty(max(LEAST_WORK, min(MOST_WORK, int(took_s * BYTES_S / 2))), dtype=torch.int8, device="cuda")
    into = torch.empty_like(work)
    cuda: Any = torch.cuda
    beside = cuda.Stream()
    beside.wait_stream(stream)
    different = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(calls - 1):
        with cuda.stream(beside):
            torch.neg(work, out=into)  # a kernel on the SMs and through L2; a plain copy may go another way
        different |= differing(first, named(case, call()))
    stream.wait_stream(beside)  # before the memory of `work` may become anybody's
    return Repeats(not bool(different), calls)
