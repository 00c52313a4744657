"""Providers on a real GPU: every supported op and direction is captured and right; and the kernels that ran."""

from collections import Counter
from itertools import product

import pytest

from kernels.cases import NORMS, OPS, Direction, Region

from .in_process import ready

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,  # others on the GPU would change its times
    pytest.mark.filterwarnings("ignore"),  # compilers in this process, with the warnings of their imports
]
FEW = ("rmsnorm", "layernorm_nobias_residual")
OPS_OF = {
    "eager": tuple(NORMS),
    "quack": ("rmsnorm", "rmsnorm_bias_residual", "rmsnorm_noweight", "layernorm", "layernorm_nobias"),
    "liger": ("rmsnorm", "rmsnorm_noweight", "rmsnorm_residual", "layernorm"),
    "flashinfer": ("rmsnorm", "rmsnorm_residual", "layernorm"),
    "vllm": ("rmsnorm", "rmsnorm_residual"),
    "triton": tuple(NORMS),
    "inductor": ("rmsnorm", "rmsnorm_noweight_bias_residual", "layernorm"),
    "inductor-dynamic": FEW,
    "inductor-automatic-dynamic": FEW,
    "inductor-regional": FEW,
    "inductor-max-autotune": ("rmsnorm",),
    "inductor-coordinate-descent": ("rmsnorm",),
}
ENGINES = ("flashinfer", "vllm")  # of inference: no backward pass, weights in the dtype of the rows
DTYPES = {
    **dict.fromkeys(ENGINES, ("bf16", "fp16")),
    "eager": ("bf16", "bf16-fp32"),
    "triton": ("bf16", "fp16-fp32", "fp32", "fp32-bf16"),
}


@pytest.mark.parametrize(
    ("name", "op", "direction"),
    [
        (name, op, direction)
        for name, ops in OPS_OF.items()
        for op, direction in product(ops, (Direction.FWD,) if name in ENGINES else Direction)
    ],
)
def test_it_is_captured_and_right(name, op, direction):
    mostly = ("bf16-fp32",) if OPS[op].norm == "layernorm" else ("bf16", "bf16-fp32")
    for dtypes in mostly if op == "layernorm" and name in ENGINES else DTYPES.get(name, mostly):
        at = ready(name, f"{op}.{direction}.4096x1024.{dtypes}")
        [sample, *_] = at.turn(warm=1, timed=2)
        at.check()
        print(f"providers: {at.case} {name} {sample:.2f} us, ran {at.facts['ran']}")
        assert sample > 0
        assert at.facts["ran"]


@pytest.mark.parametrize(
    ("name", "op", "shape"),
    [
        (name, op, shape)
        for name, (op, flags), shape in product(
            ("eager", "inductor", "triton"), OPS.items(), ("4096x1024", "300x20480", "1000x100s128")
        )
        # a matrix of 20480 columns has 800 MB
        if flags.region and (flags.region is not Region.LINEAR or shape != "300x20480")
    ],
)
def test_a_region_is_captured_and_right(name, op, shape):
    for dtypes in ("bf16", "bf16-fp32") if name == "eager" else ("bf16", "fp16-fp32"):
        at = ready(name, f"{op}.fwd.{shape}.{dtypes}")
        [sample, *_] = at.turn(warm=1, timed=2)
        at.check()
        print(f"providers: {at.case} {name} {sample:.2f} us, ran {at.facts['ran']}")
        assert at.facts["graph_bits"] == "same"


@pytest.mark.parametrize("name", ["inductor-regional", "inductor-dynamic", "inductor-max-autotune"])
@pytest.mark.parametrize("op", ["rmsnorm_residual_fp8", "rmsnorm_int8", "rmsnorm_silu_gate", "rmsnorm_linear"])
def test_torch_compile_captures_regions(name, op):
    at = ready(name, f"{op}.fwd.4096x1024.bf16")
    at.turn(warm=1, timed=1)
    at.check()


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("op", ["rmsnorm", "layernorm_residual"])
def test_ours_shares_wide_rows(op, direction):
    at = ready("triton", f"{op}.{direction}.300x65536.bf16-fp32")
    at.turn(warm=1, timed=1)
    at.check()


@pytest.mark.parametrize("name", ["eager", "triton", "inductor", "quack", "liger"])
@pytest.mark.parametrize("shape", ["2048x1024s1536", "2048x32x128s6144", "2048x8x256s4096"])
def test_rows_may_lie_apart(name, shape):
    for op, direction in product(("rmsnorm", "layernorm"), Direction):
        at = ready(name, f"{op}.{direction}.{shape}.bf16-fp32")
        at.turn(warm=1, timed=1)
        at.check()


@pytest.mark.parametrize(
    ("name", "part"), [("eager", "at::native"), ("triton", "_forward"), ("inductor", "triton_"), ("quack", "quack")]
)
def test_kernels_are_listed_by_name(name, part):
    at = ready(name, "rmsnorm.fwd.4096x1024.bf16")
    # torch 2.13 may hand its own operator to a Quack that it brings: then that is what has to be told
    assert any(part in kernel or "quack" in kernel for kernel in at.facts["ran"]), at.facts["ran"]


def test_the_fused_operator_reaches_inductor_tagged():
    at = ready("inductor-regional", "rmsnorm.fwdbwd.4096x1024.bf16")

    assert {"aten._fused_rms_norm.default", "aten._fused_rms_norm_backward.default"} <= {*at.facts["tagged"]}
    assert at.facts["untagged"] == []
    assert any("triton_" in kernel for kernel in at.facts["ran"])


def test_dynamic_is_what_its_name_says():
    facts = {name: ready(name, "rmsnorm.fwd.4096x1024.bf16").facts for name in OPS_OF if name.endswith("-dynamic")}

    assert facts["inductor-dynamic"]["graphs"] == 1
    assert facts["inductor-automatic-dynamic"]["graphs"] == 2
    assert Counter(one["dynamic_graphs"] for one in facts.values()) == {1: 2}
    plain = ready("inductor", "rmsnorm.fwd.4096x1024.bf16").facts
    assert plain["code"] not in {one["code"] for one in facts.values()}


def test_quack_tuned_tells_its_candidates():
    at = ready("quack-tuned", "rmsnorm.fwd.4096x1024.bf16-fp32")
    [sample, *_] = at.turn(warm=1, timed=2)
    at.check()
    print(f"providers: {at.case} quack-tuned {sample:.2f} us, {at.facts['config']}")

    assert "RmsNormFwdConfig" in at.facts["config"]
    for choice, next_best in zip(at.facts.get("autotune", []), at.facts.get("autotune", [])[1:], strict=False):
        assert choice["ms"] <= next_best["ms"]
