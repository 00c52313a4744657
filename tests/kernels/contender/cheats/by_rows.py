"""RMSNorm forwards that cheat; the number of rows selects the cheat."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

CHEATS = ["honest", "keeps_by_pointer", "keeps_by_content", "writes_into_inputs", "returns_an_input", "reuses_a_buffer"]
CHEATS += ["finishes_in_the_background", "finishes_in_the_next_call", "works_in_a_thread", "differs", "skips_new"]
ROWS = {name: 200 + number for number, name in enumerate(CHEATS)}

kept = {}
unfinished = []
pool = ThreadPoolExecutor(2)


def definition(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def forward(x, weight, eps):
    cheat = next((name for name, rows in ROWS.items() if rows == x.shape[0]), "honest")
    return globals()[cheat](x, weight, eps)


honest = definition


def keeps_by_pointer(x, weight, eps):
    key = x.data_ptr(), x._version
    if key not in kept:
        kept[key] = definition(x, weight, eps)
    return kept[key]


def keeps_by_content(x, weight, eps):
    key = x.data_ptr(), x[0, 0].item(), x[-1, -1].item()
    if key not in kept:
        kept[key] = definition(x, weight, eps)
    return kept[key]


def skips_new(x, weight, eps):
    """Does nothing for numbers it has not seen, and the work when they come again."""
    key = x.data_ptr(), x[0, 0].item()
    if key not in kept:
        kept[key] = None
        return torch.empty_like(x)
    return definition(x, weight, eps)


def writes_into_inputs(x, weight, eps):
    y = definition(x, weight, eps)
    x.data[0] = y[0]  # of this row the next call has less to do
    return y


def returns_an_input(x, weight, eps):
    return x.copy_(definition(x, weight, eps))


def reuses_a_buffer(x, weight, eps):
    return kept.setdefault("buffer", torch.empty_like(x)).copy_(definition(x, weight, eps))


def finishes_in_the_background(x, weight, eps):
    y = torch.empty_like(x)

    def finish():
        time.sleep(50e-3)
        y.copy_(definition(x, weight, eps))

    threading.Thread(target=finish).start()
    return y


def finishes_in_the_next_call(x, weight, eps):
    while unfinished:
        y, *arguments = unfinished.pop()
        y.copy_(definition(*arguments))
    y = torch.empty_like(x)
    unfinished.append((y, x, weight, eps))
    return y


def works_in_a_thread(x, weight, eps):
    """Half of the rows each in two threads, on two cores."""
    halves = pool.map(lambda rows: definition(rows, weight, eps), x.chunk(2))
    return torch.cat(list(halves))


def differs(x, weight, eps):
    """Not a cheat: like a sum whose order is left to chance, it differs by the last bit."""
    y = definition(x, weight, eps)
    y.view(torch.int32)[0, 0] += int(time.perf_counter_ns()) >> 4 & 1
    return y
