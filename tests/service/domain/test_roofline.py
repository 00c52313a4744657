"""How near a time comes to what the device can do at best."""

import pytest

from kernels.blocks import Shape
from service.domain.roofline import Speed, attainable_tflop_s, ceilings, l2_bytes, speed, work

CASE = "rmsnorm.fwd.32768x1024.bf16-fp32"
BLOCK = "rmsnorm.fwdbwd.4096x1024.bf16.block"
BEST = {"copy_gb_s": 4258.0, "matmul_tflop_s": 790.0}


def test_a_kernel_beside_a_copy():
    found = speed(CASE, 35.0, 3835.0, {"sm_mhz": 1980.0}, BEST)
    assert found.copy_share == pytest.approx(0.9007, abs=1e-4)
    assert found.cycles == pytest.approx(69_300), "35 us of 1,980 MHz"
    assert (found.tokens_s, found.utilisation) == (None, None)


def test_what_stays_in_l2_has_no_share_of_the_memory():
    found = speed(CASE, 3.0, 9000.0, {"l2_resident": True}, BEST)
    assert (found.copy_share, found.l2_resident) == (None, True)


def test_a_linear_layer_is_compared_with_a_product():
    found = speed("rmsnorm_linear.fwd.4096x4096.bf16", 250.0, 400.0, {}, BEST)
    assert found == Speed(utilisation=pytest.approx(4096 * 4096 * (4 + 2 * 4096) / 250e-6 / 790e12))
    assert speed("rmsnorm_linear.fwd.4096x4096.fp32", 250.0, 400.0, {}, BEST).utilisation is None
    assert speed("rmsnorm_fp8.fwd.4096x4096.bf16", 25.0, 2129.0, {}, BEST).copy_share == pytest.approx(0.5)


def test_a_block_is_told_in_tokens_and_operations():
    found = speed(BLOCK, 1000.0, None, {"sm_mhz": 1980}, BEST)
    assert found == Speed(tokens_s=4_096_000.0, utilisation=pytest.approx(367.2e9 / 790e9, rel=1e-3))
    assert speed(BLOCK, 1000.0, None, {}, {}) == Speed(tokens_s=4_096_000.0)


def test_operations_are_not_a_matter_of_what_a_contender_says():
    assert speed(BLOCK, 1000.0, None, {"flops": 1e15}, BEST) == speed(BLOCK, 1000.0, None, {}, BEST)


@pytest.mark.parametrize(("dtype", "lit"), [("bf16", True), ("fp16-fp32", True), ("fp32", False), ("fp64", False)])
def test_only_what_a_bf16_product_is_the_ceiling_of_has_a_utilisation(dtype: str, lit: bool):
    found = speed(f"rmsnorm.fwdbwd.4096x1024.{dtype}.block", 1000.0, None, {}, BEST)
    assert (found.tokens_s, found.utilisation is not None) == (4_096_000.0, lit)


@pytest.mark.parametrize("metric", ["call", "compile", "memory"])
def test_other_metric_say_nothing_of_the_device(metric: str):
    assert (
        speed(f"{CASE}.{metric}", 1000.0, None, {"flops": 395e9, "sm_mhz": 1980, "l2_resident": True}, BEST) == Speed()
    )


def test_what_was_not_measured_is_not_made_up():
    assert speed(CASE, None, None, {"sm_mhz": 1980}, BEST) == Speed()
    assert speed(CASE, 35.0, 3835.0, {}, {}) == Speed()


@pytest.mark.parametrize("strange", [None, "fast", -1, 0, float("nan"), float("inf"), True, [1980]])
def test_facts_of_strangers_break_nothing(strange: object):
    assert speed(CASE, 35.0, 3835.0, {"sm_mhz": strange, "l2_resident": strange and "yes"}, {}) == Speed()
    assert ceilings({"ceilings": {"copy_gb_s": strange, "matmul_tflop_s": 790}}) == {"matmul_tflop_s": 790.0}


@pytest.mark.parametrize("telemetry", [None, {}, {"ceilings": None}, {"ceilings": "high"}])
def test_a_run_without_ceilings_has_none(telemetry: dict[str, object] | None):
    assert ceilings(telemetry) == {}


def test_the_work_of_a_case_is_that_of_its_definition():
    norm = work("layernorm.bwd.8192x4096.bf16-fp32")
    assert norm
    assert norm.flops == 13 * 8192 * 4096
    assert norm.intensity == pytest.approx(13 / 6, rel=1e-3), "x and dy in, dx out, 2 bytes each"
    block = work(BLOCK)
    shape = Shape(4096, 2048, 1024)
    assert block
    assert (block.flops, block.bytes) == (shape.flops, shape.least_bytes(2))
    assert block.intensity > 100 * norm.intensity
    others = ("rmsnorm.fwd.8x8.bf16.call", "softmax.fwd.8x8.bf16", "rmsnorm.fwdbwd.4096x1024.fp32.block")
    assert [work(one) for one in others] == [None, None, None]


@pytest.mark.parametrize(
    ("intensity", "product", "attainable"),
    [(2.0, 800.0, 8.0), (200.0, 800.0, 800.0), (1000.0, 800.0, 800.0), (1000.0, None, 4000.0)],
)
def test_memory_feeds_until_the_product_limits(intensity: float, product: float | None, attainable: float):
    assert attainable_tflop_s(intensity, 4000.0, product) == pytest.approx(attainable)


@pytest.mark.parametrize("device", [None, "H200", {}, {"l2_bytes": "60 MiB"}, {"l2_bytes": True}])
def test_a_cache_of_unknown_size(device: object):
    assert l2_bytes({"device": device}) is None
    assert l2_bytes({"device": {"l2_bytes": 62914560}}) == 62914560
