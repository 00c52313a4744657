"""Units of other tools."""

import pytest

from service.domain.imports.units import unit_named
from service.domain.states import Better


@pytest.mark.parametrize(
    ("written", "name", "one", "better"),
    [
        ("ns", "us", 1e-3, Better.SMALLER),
        ("µs", "us", 1.0, Better.SMALLER),
        ("ms/iter", "us", 1e3, Better.SMALLER),
        ("ns/op", "us", 1e-3, Better.SMALLER),
        ("seconds", "us", 1e6, Better.SMALLER),
        ("MiB", "bytes", 2.0**20, Better.SMALLER),
        ("kB", "bytes", 1e3, Better.SMALLER),
        ("gbps", "GB/s", 1.0, Better.LARGER),
        ("TB/s", "GB/s", 1e3, Better.LARGER),
        ("bytes/sec", "GB/s", 1e-9, Better.LARGER),
        ("TFLOPS", "TFLOP/s", 1.0, Better.LARGER),
        ("gflop/s", "TFLOP/s", 1e-3, Better.LARGER),
        ("GFLOPs/s", "TFLOP/s", 1e-3, Better.LARGER),
        ("iter/sec", "iter/sec", 1.0, Better.LARGER),
        ("ops/ms", "ops/ms", 1.0, Better.LARGER),
        ("frames/second", "frames/second", 1.0, Better.LARGER),
        ("ms/token", "ms/token", 1.0, None),
        ("fps", "fps", 1.0, Better.LARGER),
        ("x", "ratio", 1.0, None),
        ("", "count", 1.0, None),
        ("tokens", "tokens", 1.0, None),
    ],
)
def test_a_unit_is_converted_once(written: str, name: str, one: float, better: Better | None) -> None:
    unit = unit_named(written)
    assert (unit.name, unit.better) == (name, better)
    assert unit.factor == pytest.approx(one)
