"""The ceilings of this GPU, measured in the session: the speed of a large copy and of a large matrix product.

Published figures were off by up to a factor of two, so they are no reference for the share of the ceiling.
"""

from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

from ..metrics.clocks import event

COPIED = 1 << 30  # bytes; far more than any L2
PRODUCT = 8192  # rows and columns of the square matrices
WARM, TIMED = 3, 9
PROBES = 5


def measure(stream: torch.cuda.Stream) -> dict[str, float]:
    """`copy_gb_s`: bytes read plus bytes written; `matmul_tflop_s`: a bf16 product, a multiply-add counted as two."""
    with torch.cuda.stream(stream):
        copy_us = _copy_us(stream)
        product_us = _product_us(stream)
    torch.cuda.empty_cache()
    return {
        "copy_gb_s": round(2 * COPIED / copy_us / 1e3, 1),
        "matmul_tflop_s": round(2 * PRODUCT**3 / product_us / 1e6, 1),
    }


def waiting_us(stream: torch.cuda.Stream) -> float:
    """How long the smallest launch takes until the host knows its end, in us; the median of PROBES.

    Work of another process on this GPU makes it wait for a time slice.
    """
    taken = []
    with torch.cuda.stream(stream):
        tiny = torch.zeros(1, device="cuda")
        stream.synchronize()
        for _ in range(PROBES):
            began = perf_counter_ns()
            tiny.add_(1)
            stream.synchronize()
            taken.append((perf_counter_ns() - began) / 1e3)
    return median(taken)


def _copy_us(stream: torch.cuda.Stream) -> float:
    source = torch.randint(-(1 << 31), (1 << 31) - 1, (COPIED // 4,), dtype=torch.int32, device="cuda")
    copy = torch.empty_like(source)
    return _median_us(lambda: copy.copy_(source), stream)


def _product_us(stream: torch.cuda.Stream) -> float:
    # Random numbers: the same product ran 13 % faster on zeros (H200, November).
    left, right = (torch.randn(PRODUCT, PRODUCT, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = torch.empty_like(left)
    return _median_us(lambda: torch.mm(left, right, out=product), stream)


def _median_us(call: Any, stream: torch.cuda.Stream) -> float:
    for _ in range(WARM):
        call()
    pairs = []
    for _ in range(TIMED):
        began, ended = event(), event()
        began.record(stream)
        call()
        ended.record(stream)
        pairs.append((began, ended))
    stream.synchronize()
    return median(float(began.elapsed_time(ended)) * 1e3 for began, ended in pairs)
