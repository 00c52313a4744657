"""Studies of published results in the process of the tests, which other tests share."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _fused_norm_only_in_this_module() -> Iterator[None]:
    """End the registration of CPU kernels: with it, torch compiles other operators in the tests that follow."""
    yield
    fused_norm = sys.modules.get("benchmarks.kernels.published.arms.fused_norm")
    if fused_norm is None:  # nor does this module need torch
        return
    enable_on_cpu = fused_norm.enable_on_cpu
    if enable_on_cpu.cache_info().currsize:
        enable_on_cpu()._destroy()
        enable_on_cpu.cache_clear()
        # Operators remember where they were dispatched.
        for name in ("_fused_rms_norm", "_fused_rms_norm_backward"):
            getattr(fused_norm.torch.ops.aten, name).default._dispatch_cache.clear()
