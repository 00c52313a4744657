"""Utilisation: times as shares of the device's ceilings.  Pure: medians and ceilings in, shares out.

The ceilings are those of the same session, never of a datasheet: a plain copy in GB/s (bytes read plus written), and a
bf16 matrix product in TFLOP/s.  On a CPU, and in runs from before they were measured, there are none.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kernels.blocks import Shape
from kernels.cases import DTYPE_BYTES, OPS, Case, Metric, Region
from service.domain.metrics import metric_of

_OF_A_PRODUCT = ("bf16", "fp16")  # dtypes whose ceiling is that of the matrix product that is measured


@dataclass(frozen=True)
class Speed:
    """Of one contender at one case; None where it says nothing, or is not known."""

    copy_share: float | None = None  # of the copy ceiling: 1 moves bytes as fast as a copy does
    l2_resident: bool = False  # the inputs stay in L2: then the GB/s are not memory's, and there is no share
    cycles: float | None = None  # of the SM clock that was read in its rounds
    tokens_s: float | None = None  # of a block
    utilisation: float | None = None  # of a bf16 or fp16 block or linear layer: its operations over those of a product

    @property
    def of_ceiling(self) -> str:
        """`90 % of a copy`, `50 % of a product`, or `in L2`; empty where nothing is known."""
        if self.copy_share:
            return f"{self.copy_share * 100:.0f} % of a copy"
        if self.utilisation:
            return f"{self.utilisation * 100:.0f} % of a product"
        return "in L2" if self.l2_resident else ""


def gpu_of(telemetry: Mapping[str, Any] | None, case: str) -> Mapping[str, Any] | None:
    """What the telemetry says of the GPU that measured this case; None where a session had one device."""
    return next((gpu for gpu in (telemetry or {}).get("gpus") or () if case in gpu["cases"]), None)


def ceilings(telemetry: Mapping[str, Any] | None, case: str | None = None) -> dict[str, float]:
    """`copy_gb_s` and `matmul_tflop_s` of a run, as far as they were measured.

    Of several GPUs those of the one that measured the `case`; without a case the means.
    """
    kept = ((case and gpu_of(telemetry, case)) or telemetry or {}).get("ceilings")
    sound = {name: number(value) for name, value in kept.items()} if isinstance(kept, Mapping) else {}
    return {name: value for name, value in sound.items() if value}


def ceilings_by_case(telemetry: Mapping[str, Any] | None) -> Callable[[str], Mapping[str, float]]:
    """The ceilings of the device that measured a case; of a session with one device they are read once."""
    if (telemetry or {}).get("gpus"):
        return lambda case: ceilings(telemetry, case)
    of_all = ceilings(telemetry)
    return lambda _: of_all


def l2_bytes(telemetry: Mapping[str, Any] | None) -> float | None:
    """The size of the L2 cache of a run's device, as far as it is known."""
    device = (telemetry or {}).get("device")
    return number(device.get("l2_bytes")) if isinstance(device, Mapping) else None


@dataclass(frozen=True)
class Work:
    """The least work of a call: what its definition computes, and what it must read and write."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


@lru_cache(8192)
def work(text: str) -> Work | None:
    """The least work of a printed case of the metric kernel or block; None of others and of unknown cases."""
    try:
        case = Case.parse(text)
        shape = Shape.of(case)
    except ValueError:  # written by another version
        return None
    match case.metric:
        case Metric.KERNEL:
            return Work(case.flops, case.least_bytes)
        case Metric.BLOCK if shape and case.dtype in _OF_A_PRODUCT:
            return Work(shape.flops, shape.least_bytes(DTYPE_BYTES[case.dtype]))
        case _:
            return None


def attainable_tflop_s(intensity: float, copy_gb_s: float, matmul_tflop_s: float | None) -> float:
    """The roofline (Williams et al., CACM 52, 2009): what memory can feed, and at most what the device computes."""
    fed = intensity * copy_gb_s / 1e3
    return min(fed, matmul_tflop_s) if matmul_tflop_s else fed


def speed(
    case: str, median: float | None, gb_s: float | None, facts: Mapping[str, Any], best: Mapping[str, float]
) -> Speed:
    """How fast a median is, in the unit of the case's metric: cycles, and its share of the `best` that was measured."""
    if not median:
        return Speed()
    match metric_of(case):
        case Metric.KERNEL:
            in_cache = facts.get("l2_resident") is True
            share = None if in_cache else _over(gb_s, best.get("copy_gb_s"))
            mhz = number(facts.get("sm_mhz"))
            cycles = mhz and median * mhz  # µs × MHz = cycles
            if flops := _of_a_product(case):
                return Speed(cycles=cycles, utilisation=_over(flops / median / 1e6, best.get("matmul_tflop_s")))
            return Speed(share, in_cache, cycles=cycles)
        case Metric.BLOCK:
            rows, flops = _block(case)
            tflop_s = flops and flops / median / 1e6
            return Speed(tokens_s=rows and rows / median * 1e6, utilisation=_over(tflop_s, best.get("matmul_tflop_s")))
        case _:
            return Speed()


def number(value: Any) -> float | None:
    """A figure that can be reckoned with, or None: facts come from strangers."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if sound else None


def _over(value: float | None, best: float | None) -> float | None:
    return value / best if value and best else None


@lru_cache(8192)
def _of_a_product(text: str) -> int | None:
    """The operations of a case that is mostly a matrix product; None of other cases."""
    try:
        case = Case.parse(text)
    except ValueError:  # written by another version
        return None
    is_product = OPS[case.op].region is Region.LINEAR and case.dtype in _OF_A_PRODUCT
    return case.flops if is_product else None


@lru_cache(8192)
def _block(text: str) -> tuple[int | None, int | None]:
    """Tokens of a block, and its model's operations: by its case, for what a contender says of itself is no measure.

    No operations where the dtype has another ceiling than a bf16 product.
    """
    try:
        case = Case.parse(text)
        shape = Shape.of(case)
    except ValueError:  # written by another version
        return None, None
    return case.rows, shape.flops if shape and case.dtype in _OF_A_PRODUCT else None
