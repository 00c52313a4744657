"""Providers: supported cases, and the released operators of Liger and Quack."""

import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import kernels
from kernels.arena import protocol
from kernels.cases import BUILT_IN_PROVIDERS, NORMS, OPS, Case, Direction, Op
from kernels.checks import references
from kernels.checks.inputs import make
from kernels.checks.oracle import Oracle, named
from kernels.facts.graph_kernels import readable
from kernels.providers import Broken, Unsupported, eager, forward_backward, liger, open_provider, quack, quack_tuned
from kernels.providers.base import by_name, on_matrices
from kernels.providers.inplace import restored
from kernels.providers.pair import Pair, differentiable
from tests.pairwise import pairwise

CPU = torch.device("cpu")
ROOT = Path(kernels.__file__).parents[1]
# Importing the compiler warns of what torch itself does, for instance torch.jit.script_method.
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")
mixed = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def bound(provider, case, inputs):
    with torch.no_grad():
        if case.direction is Direction.FWDBWD:
            return forward_backward(case, provider.differentiable(case, CPU))(inputs)
        return provider.ready(case, CPU)(inputs)


def wrong(case, call, inputs):
    """Why the second call of two is wrong; None when it is right."""
    with torch.no_grad():
        call()
        return Oracle(inputs).judge(inputs, named(case, call())).reason


DTYPES = ("fp32", "bf16-fp32", "bf16", "fp16", "fp32-bf16")


@pytest.mark.parametrize(
    ("op", "dtypes"),
    [  # by day each op, and all dtypes of some
        (op, dtypes)
        if op in ("rmsnorm", "layernorm_residual") or (number + other) % len(DTYPES) == 0
        else pytest.param(op, dtypes, marks=pytest.mark.long)
        for (number, op), (other, dtypes) in product(enumerate(OPS), enumerate(DTYPES))
    ],
)
@mixed
def test_eager_is_right(op, dtypes):
    for direction in OPS[op].directions:
        for shape in ("65x96", *("13x5x96s500",) * (op in NORMS)):
            case = Case.parse(f"{op}.{direction}.{shape}.{dtypes}")
            inputs = make(case, CPU, 1)
            assert wrong(case, bound(open_provider(protocol.built_in("eager")), case, inputs), inputs) is None, case


@pytest.mark.parametrize("name", ["quack", "quack-tuned", "liger", "flashinfer", "vllm", "triton"])
@pytest.mark.parametrize("direction", Direction)
def test_gpu_providers_say_so(name, direction):
    provider, case = open_provider(protocol.built_in(name)), Case.parse(f"rmsnorm.{direction}.8x8.bf16")
    with pytest.raises(Unsupported, match="GPU"):
        bound(provider, case, make(case, CPU, 1))


@pytest.mark.parametrize("name", BUILT_IN_PROVIDERS)
def test_every_provider_that_a_recipe_may_name_is_there(name):
    assert open_provider(protocol.built_in(name)).name == name


def test_a_provider_that_nobody_knows_is_answered_with_those_that_are_known():
    with pytest.raises(Unsupported, match=f"known: {', '.join(BUILT_IN_PROVIDERS)}"):
        open_provider(protocol.built_in("quark"))


def test_those_that_time_candidates_say_so():
    tuning = [name for name in BUILT_IN_PROVIDERS if open_provider(protocol.built_in(name)).tunes]
    assert tuning == ["inductor-max-autotune", "inductor-coordinate-descent", "quack-tuned"]


# -- torch.compile ---------------------------------------------------------------------------------------------------

# By day each provider has a case; these are further ops and directions.
COMPILED_AT_NIGHT = [
    ("inductor", "rmsnorm_gelu_gate.fwd.65x96.bf16", {}),
    ("inductor-dynamic", "layernorm_residual_int8.fwd.64x96.fp32", {"graphs": 1, "dynamic_graphs": 1}),
    ("inductor-dynamic", "rmsnorm_linear.fwd.64x96.fp32", {"graphs": 1, "dynamic_graphs": 1}),
    ("inductor-automatic-dynamic", "rmsnorm_residual_dropout.fwd.64x96.bf16", {"graphs": 2, "dynamic_graphs": 1}),
    ("inductor-dynamic", "rmsnorm_residual.bwd.64x96.fp32", {"graphs": 1, "dynamic_graphs": 1}),
    ("inductor-automatic-dynamic", "layernorm.fwdbwd.2x96.fp32", {"graphs": 2, "dynamic_graphs": 1}),
]


@pytest.mark.parametrize(
    ("name", "text", "facts"),
    [
        ("inductor", "rmsnorm.fwd.65x96.bf16-fp32", {}),
        ("inductor-coordinate-descent", "layernorm_nobias.fwd.65x96.fp32", {}),
        ("inductor", "rmsnorm_fp8.fwd.65x96.bf16-fp32", {}),
        ("inductor-dynamic", "rmsnorm.fwdbwd.65x96.bf16", {"graphs": 1, "dynamic_graphs": 1}),
        ("inductor-automatic-dynamic", "rmsnorm.fwd.65x96.bf16", {"graphs": 2, "dynamic_graphs": 1}),
        ("inductor", "layernorm_residual.bwd.13x5x96s500.fp32", {}),
        ("inductor-dynamic", "rmsnorm.bwd.16x4x96s500.fp32", {"graphs": 1, "dynamic_graphs": 1}),
        *(pytest.param(*other, marks=pytest.mark.long) for other in COMPILED_AT_NIGHT),
    ],
)
@compiles
def test_inductor_compiles_as_its_name_says(name, text, facts):
    provider, case = open_provider(protocol.built_in(name)), Case.parse(text)
    inputs = make(case, CPU, 1)

    assert wrong(case, bound(provider, case, inputs), inputs) is None
    assert provider.facts() == facts


@compiles
def test_a_graph_for_any_rows_serves_sets_that_were_never_marked():
    provider, case = open_provider(protocol.built_in("inductor-dynamic")), Case.parse("rmsnorm.fwd.64x96.fp32")
    bind = provider.ready(case, CPU)
    for rows, number in ((64, 0), (64, 1), (63, 2)):
        inputs = make(Case.parse(f"rmsnorm.fwd.{rows}x96.fp32"), CPU, 1, number)
        with torch.no_grad():
            bind(inputs)()
    assert provider.facts() == {"graphs": 1, "dynamic_graphs": 1}


def test_one_row_is_never_dynamic():
    for name in ("inductor-dynamic", "inductor-automatic-dynamic"):
        with pytest.raises(Unsupported, match="a single row"):
            open_provider(protocol.built_in(name)).ready(Case.parse("rmsnorm.fwd.1x96.fp32"), CPU)


@pytest.mark.parametrize(
    ("text", "tagged", "untagged"),
    [
        ("rmsnorm.fwd.65x96.bf16-fp32", "aten.rsqrt.default", []),
        ("rmsnorm.bwd.65x96.bf16-fp32", "aten._fused_rms_norm_backward.default", []),
        pytest.param("layernorm_residual.fwd.65x96.fp32", "aten.native_layer_norm.default", [], marks=pytest.mark.long),
        pytest.param("rmsnorm_int8.fwd.65x96.bf16-fp32", "aten.amax.default", [], marks=pytest.mark.long),
        # without the fused operator of a GPU, two gradients of x are added up, and that is never tagged
        ("rmsnorm.fwdbwd.65x96.fp32", "aten.sum.dim_IntList", ["aten.add.Tensor"]),
    ],
)
@compiles
@mixed
def test_tagged_norms_reach_inductor(text, tagged, untagged):
    provider, case = open_provider(protocol.built_in("inductor-regional")), Case.parse(text)
    inputs = make(case, CPU, 1)

    assert wrong(case, bound(provider, case, inputs), inputs) is None
    facts = provider.facts()
    assert tagged in facts["tagged"]
    assert facts["untagged"] == untagged


# -- Liger: its signatures as they were released; the bodies are the definition --------------------------------------


def forward_05(X, W, eps, offset, casting_mode):
    assert (offset, casting_mode) == (0.0, "gemma")
    return references.BY_KEY["rmsnorm.fwd"](X, W, eps), X, None, 1024, 4, 1


def forward_06(X, W, eps, offset, casting_mode, row_mode):
    assert row_mode is None
    return forward_05(X, W, eps, offset, casting_mode)


def backward_05(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place):
    assert (offset, casting_mode, BLOCK_SIZE, num_warps, in_place) == (0.0, 1, 128, 4, False)
    return references.BY_KEY["rmsnorm.bwd"](dY, X, W, RSTD, 0.0)


def backward_06(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode):
    assert row_mode is None
    return backward_05(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place)


def backward_085(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode, needs_dw=None):
    assert needs_dw is None
    return backward_06(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode)


@pytest.mark.parametrize(
    ("forward", "backward"), [(forward_05, backward_05), (forward_06, backward_06), (forward_06, backward_085)]
)
def test_liger_over_its_releases(forward, backward):
    operators = SimpleNamespace(
        rms_norm_forward=forward, rms_norm_backward=backward, calculate_settings=lambda cols: (128, 4)
    )
    for text, function in (
        ("rmsnorm.fwd.65x96.bf16-fp32", liger.forward(operators, OPS["rmsnorm"])),
        ("rmsnorm.bwd.65x96.bf16-fp32", liger.backward(operators, OPS["rmsnorm"])),
    ):
        case = Case.parse(text)
        inputs = make(case, CPU, 1)
        assert wrong(case, by_name(function)(inputs), inputs) is None


# -- Quack 0.6.5: its signatures; the bodies are the definition ------------------------------------------------------


def defined(op, direction, **given):
    op = next(one for one in NORMS.values() if (one.norm, one.weight, one.bias, one.residual) == op)
    names = op.inputs(Direction(direction))
    outputs = references.BY_KEY[f"{op.name}.{direction}"](*(given[name] for name in names), given["eps"])
    return outputs if isinstance(outputs, tuple) else (outputs,)


def rmsnorm_fwd(
    x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6, store_rstd=False,
    weight_offset=0.0,
):  # fmt: skip
    op = ("rmsnorm", weight is not None, bias is not None, residual is not None)
    y, *added = defined(op, "fwd", x=x, weight=weight, bias=bias, residual=residual, eps=eps)
    return y, (added or [x])[0], None


def rmsnorm_bwd(
    x, weight, dout, rstd, dresidual_out=None, has_bias=False, has_residual=False, weight_offset=0.0
):  # fmt: skip
    assert has_residual is (dresidual_out is not None)
    op = ("rmsnorm", weight is not None, has_bias, has_residual)
    given = {"x": x, "weight": weight, "dy": dout, "rstd": rstd, "dresidual_out": dresidual_out, "eps": 0.0}
    dx, *of_weights = defined(op, "bwd", **given)
    dweight = of_weights.pop(0) if weight is not None else None
    return dx, dweight, of_weights[0] if has_bias else None, dx if has_residual else None


def layernorm_fwd(x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False):
    [y] = defined(("layernorm", True, bias is not None, False), "fwd", x=x, weight=weight, bias=bias, eps=eps)
    mean = x.float().mean(1)
    rstd = (x.float().var(1, correction=0) + eps).rsqrt()
    return (y, rstd, mean) if return_rstd and return_mean else y


def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
    given = {"x": x, "weight": weight, "dy": dout, "rstd": rstd, "mean": mean, "eps": 0.0}
    dx, dweight, *dbias = defined(("layernorm", True, has_bias, False), "bwd", **given)
    return dx, dweight, dbias[0] if has_bias else None


QUACK = SimpleNamespace(
    rmsnorm_fwd=rmsnorm_fwd, rmsnorm_bwd=rmsnorm_bwd, layernorm_fwd=layernorm_fwd, layernorm_bwd=layernorm_bwd
)


@pytest.mark.parametrize("op", NORMS)
def test_quack_is_called_with_what_it_takes(op):
    for direction in (Direction.FWD, Direction.BWD):
        for shape in ("65x96", "13x5x96s500"):
            case = Case.parse(f"{op}.{direction}.{shape}.bf16-fp32")
            if quack.unsupported(case, OPS[op]) is None:
                inputs = make(case, CPU, 1)
                function = (quack.forward if direction is Direction.FWD else quack.backward)(QUACK, OPS[op])
                assert wrong(case, by_name(on_matrices(case, function))(inputs), inputs) is None, case


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rmsnorm_bias_residual.fwdbwd.8x8.bf16", None),
        ("layernorm_nobias.bwd.8x8.bf16-fp32", None),
        ("rmsnorm_noweight_bias.fwd.8x8.bf16", None),
        ("rmsnorm_noweight_bias.bwd.8x8.bf16", "only together with that of a weight"),
        ("rmsnorm_fp8.fwd.8x8.bf16", "no norm with fp8 codes"),
        ("rmsnorm_silu_gate.fwd.8x8.bf16", "no norm with a SiLU gate"),
        ("layernorm.fwd.8x8.bf16", "fp32 weights"),
        ("layernorm_residual.fwd.8x8.bf16-fp32", "no residual"),
        ("rmsnorm.fwd.8x8.fp64", "bf16, fp16, fp32"),
        ("rmsnorm.fwd.8x262144.fp32", None),
        ("rmsnorm.fwdbwd.8x262144.fp32", "131072 columns"),
        ("rmsnorm.fwd.8x3000s3008.bf16", None),
        ("rmsnorm.fwd.8x3000s3001.bf16", "a row stride that is a multiple of 16 bytes"),
        ("rmsnorm.fwd.8x1001s1003.bf16", None),
        ("rmsnorm.fwd.8x2x128s301.bf16", None),  # copied
    ],
)
def test_what_quack_does_not_do(text, reason):
    case = Case.parse(text)
    said = quack.unsupported(case, OPS[case.op])
    assert said is None if reason is None else reason in said


class Tuner:
    """The parts of Quack's autotuner that are read."""

    fn = rmsnorm_fwd

    def tune(self, timings):
        self.configs_timings = timings
        self.best_config = min(timings, key=timings.get)


def test_candidates_are_told_with_the_case_that_they_were_timed_for():
    provider, tuner = quack_tuned.QuackTuned(), Tuner()
    provider._observe(tuner)
    assert provider.facts() == {}

    tuner.tune({"config: wide": [0.3, 0.2, 0.4], "config: narrow": [0.1, 0.1, 0.1], "config: huge": [float("inf")] * 3})
    assert provider.facts() == {
        "config": "narrow",
        "autotune": [
            {"kernel": "rmsnorm_fwd", "config": "narrow", "ms": 0.1},
            {"kernel": "rmsnorm_fwd", "config": "wide", "ms": 0.3},
        ],
    }
    provider._observe(tuner)  # the next case was tuned before
    assert provider.facts() == {"config": "narrow"}


# -- FlashInfer 0.7 and vLLM 0.33: their signatures; the bodies are the definition ------------------------------------


def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    return references.BY_KEY["rmsnorm.fwd"](input, weight, eps)


def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    y, total = references.BY_KEY["rmsnorm_residual.fwd"](input, residual, weight, eps)
    input.copy_(y)
    residual.copy_(total)


def layernorm(input, gemma, beta, eps=1e-6):
    assert (input.dtype, gemma.dtype, beta.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    return references.BY_KEY["layernorm.fwd"](input, gemma, beta, eps)


@pytest.fixture
def engines(monkeypatch):
    """Both packages, as far as they are called."""
    flashinfer = ModuleType("flashinfer.norm")
    flashinfer.__dict__.update(rmsnorm=rmsnorm, fused_add_rmsnorm=fused_add_rmsnorm, layernorm=layernorm)
    for module in (ModuleType("flashinfer"), flashinfer, ModuleType("vllm"), ModuleType("vllm._C_stable_libtorch")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    library = torch.library.Library("_C", "FRAGMENT")
    library.define("rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()")
    library.define("fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()")

    library.impl("rms_norm", lambda y, x, weight, eps: [y.copy_(rmsnorm(x, weight, eps)), None][1], "CPU")
    library.impl("fused_add_rms_norm", fused_add_rmsnorm, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flashinfer", "rmsnorm.fwd.65x96.bf16"),
        ("flashinfer", "rmsnorm.fwd.13x5x96s504.fp16"),
        ("vllm", "rmsnorm.fwd.13x5x96s504.bf16"),
        ("flashinfer", "rmsnorm_residual.fwd.65x96.bf16"),
        ("flashinfer", "layernorm.fwd.65x96.bf16-fp32"),
        ("vllm", "rmsnorm.fwd.65x96.bf16"),
        ("vllm", "rmsnorm_residual.fwd.65x96.fp16"),
    ],
)
def test_engines_are_called_with_what_they_take(engines, name, text):
    provider, case = open_provider(protocol.built_in(name)), Case.parse(text)
    inputs = make(case, CPU, 1)
    call = provider.ready(case, torch.device("cuda"))(inputs)
    judge = Oracle(inputs).judge
    with torch.no_grad():
        assert judge(inputs, named(case, call())).reason is None
        assert judge(inputs, named(case, restored(call)())).reason is None


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("vllm", "rmsnorm.bwd.8x8.bf16", "vLLM has no backward pass"),
        ("vllm", "rmsnorm.fwdbwd.8x8.bf16", "vLLM has no backward pass"),
        ("vllm", "rmsnorm.fwd.8x8.bf16-fp32", "weights in their dtype"),
        ("flashinfer", "rmsnorm.fwd.8x8.fp32", "rows of bf16 or fp16"),
        ("flashinfer", "rmsnorm_noweight.fwd.8x8.bf16", "RMSNorm with a weight and without a bias"),
        ("flashinfer", "rmsnorm_fp8.fwd.8x8.bf16", "does not use FlashInfer for norms with fp8 codes"),
        ("flashinfer", "rmsnorm_residual.fwd.8x8.bf16.memory", "overwrites its inputs"),
        ("flashinfer", "rmsnorm_residual.fwd.8x2x64s504.bf16", "rows with one stride only"),
        ("flashinfer", "layernorm.fwd.8x8.fp16-fp32", "bf16 rows"),
        ("flashinfer", "layernorm_residual.fwd.8x8.bf16-fp32", "no residual"),
        ("vllm", "layernorm.fwd.8x8.bf16-fp32", "of vLLM, this provider uses RMSNorm"),
        ("vllm", "rmsnorm.fwd.8x3000s3001.bf16", "multiples of 16 bytes"),
        ("vllm", "rmsnorm_residual.fwd.8x64s504.bf16", "without gaps between its rows"),
    ],
)
def test_what_engines_do_not_do(name, text, reason):
    provider = open_provider(protocol.built_in(name))
    assert reason in provider.supports(Case.parse(text), torch.device("cuda"))


@pytest.mark.parametrize("name", ["flashinfer", "vllm"])
def test_an_engine_that_is_not_installed_is_named(name):
    provider = open_provider(protocol.built_in(name))
    with pytest.raises(Unsupported, match=f"{provider.title} is not installed in this environment"):
        provider.ready(Case.parse("rmsnorm.fwd.8x8.bf16"), torch.device("cuda"))


# -- the manual --------------------------------------------------------------------------------------------------------


def test_the_provider_of_the_manual_works(monkeypatch):
    page = (Path(kernels.__file__).parents[1] / "docs" / "providers.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    module = ModuleType("kernels.providers.swift")
    module.__package__ = "kernels.providers"
    exec(compile(code, "providers.md", "exec"), module.__dict__)

    def rms_norm(x, weight, epsilon):
        return references.BY_KEY["rmsnorm.fwd"](x, weight, epsilon)

    def rms_norm_grad(dy, x, weight, rstd):
        return references.BY_KEY["rmsnorm.bwd"](dy, x, weight, rstd, 0.0)

    swift, gpu = module.Swift(), torch.device("cuda")
    with pytest.raises(Unsupported, match="Swift has no layernorm"):
        swift.ready(Case.parse("layernorm.fwd.8x8.bf16"), gpu)
    with pytest.raises(Unsupported, match="not installed"):
        swift.ready(Case.parse("rmsnorm.fwd.8x8.bf16"), gpu)
    installed = SimpleNamespace(rms_norm=rms_norm, rms_norm_grad=rms_norm_grad)
    monkeypatch.setitem(sys.modules, "swift_norms", installed)
    for direction in Direction:
        case = Case.parse(f"rmsnorm.{direction}.65x96.bf16")
        inputs = make(case, CPU, 1)
        if direction is Direction.FWDBWD:
            call = forward_backward(case, swift.differentiable(case, gpu))(inputs)
        else:
            call = swift.ready(case, gpu)(inputs)
        assert wrong(case, call, inputs) is None


# -- our own kernels, in Triton's interpreter: set before Triton is imported, so in a process of its own --------------

INTERPRETED = """
import json, sys, tomllib
import torch
from kernels.arena import protocol as messages
from kernels.checks import oracle
from kernels.checks.inputs import make
from kernels.providers import forward_backward, open_provider, ours
from kernels.cases import Case
from tests.kernels.norms.interpreted import patch_once

patch_once()
recipe = tomllib.load(open("examples/own/recipe.toml", "rb"))["providers"]["triton"]
calls = {f"{op}.{direction}": call for op, calls in recipe.items() for direction, call in calls.items()}
own, bind_of = open_provider(messages.targets_own("own", calls)), {"fwd": ours.forward, "bwd": ours.backward}


def bound(case, inputs, of_recipe):
    if case.direction == "fwdbwd":
        function = own.differentiable(case, inputs["x"].device) if of_recipe else ours.differentiable(case)
        return forward_backward(case, function)(inputs)
    return (own.ready(case, inputs["x"].device) if of_recipe else bind_of[case.direction](case))(inputs)


found = {}
for text in sys.argv[1:]:
    case = Case.parse(text)
    inputs = make(case, torch.device("cpu"), 1)
    for who, of_recipe in (("provider", False), ("recipe", True)):
        if of_recipe and case.key not in calls:
            continue
        with torch.no_grad():
            call = bound(case, inputs, of_recipe)
            call()
            found[f"{who} {text}"] = oracle.Oracle(inputs).judge(inputs, oracle.named(case, call())).reason
print(json.dumps(found))
"""
# the interpreter cuts off where a GPU rounds to bf16
OURS = [
    f"{op}.{direction}.{shape}.{dtypes}"
    for op, direction, shape, dtypes in pairwise(
        product(NORMS, Direction, ("9x100s128", "9x4x24s128"), ("fp32", "fp16-fp32"))
    )
]


def test_ours_is_right_in_every_op_and_direction_as_provider_and_as_target():
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, *OURS],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == len(OURS) + 6
    assert {key: reason for key, reason in found.items() if reason} == {}


@pytest.mark.parametrize("direction", Direction)
def test_what_ours_does_not_do(direction, monkeypatch):
    gpu, provider = torch.device("cuda"), open_provider(protocol.built_in("triton"))
    case = Case.parse(f"layernorm_residual.{direction}.8x1048576s1048577.fp16-fp32")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert provider.supports(case, gpu) is None
    assert "bf16, fp16, fp32" in provider.supports(Case.parse(f"rmsnorm.{direction}.8x8.fp64"), gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    assert "Tesla T4 has compute capability 7.5" in provider.supports(case, gpu)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert "this torch is for AMD GPUs" in provider.supports(case, gpu)


IMPORTED = """
import sys
import kernels.norms.adapters
for name, module in sys.modules.items():
    if name == "kernels" or name.startswith("kernels."):
        print(module.__file__)
"""


def test_what_ours_imports_as_a_target_matters_to_its_recipe():
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {Path(file).relative_to(ROOT).as_posix() for file in done.stdout.split()}
    norms = {file for file in imported if file.startswith("kernels/norms/")}

    matter = tomllib.loads((ROOT / "examples/own/recipe.toml").read_text())["paths"]["matter"]
    assert norms
    assert {"kernels/norms/**", *imported - norms} == {*matter}


# -- together ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["layernorm", "layernorm_nobias", "rmsnorm_bias_residual", "rmsnorm_noweight_residual"])
def test_a_forward_and_a_backward_make_a_differentiable_function(op):
    case, flags = Case.parse(f"{op}.fwdbwd.65x96.bf16-fp32"), OPS[op]

    def forward(*, eps, **given):
        outputs = defined((flags.norm, flags.weight, flags.bias, flags.residual), "fwd", **given, eps=eps)
        x = (outputs[1] if flags.residual else given["x"]).float()
        mean = x.mean(1)
        spread = x - mean[:, None] if flags.norm == "layernorm" else x
        statistics = {"mean": mean, "rstd": (spread.square().mean(1) + eps).rsqrt()}
        return outputs, tuple(statistics[name] for name in flags.statistics)

    def backward(**given):
        outputs = defined((flags.norm, flags.weight, flags.bias, flags.residual), "bwd", **given)
        return outputs if len(outputs) > 1 else outputs[0]

    inputs = make(case, CPU, 1)
    call = forward_backward(case, differentiable(Pair(flags, forward, backward)))(inputs)
    assert wrong(case, call, inputs) is None


def test_a_recipe_may_name_a_differentiable_function(tmp_path, monkeypatch):
    (tmp_path / "their_norms.py").write_text(
        "import torch\n\n\ndef norm(x, weight, eps):\n    return torch.rms_norm(x, x.shape[1:], weight, eps)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    case = Case.parse("rmsnorm.fwdbwd.65x96.fp32")
    inputs = make(case, CPU, 1)
    calls = {"rmsnorm.fwdbwd": "their_norms:norm", "layernorm.fwdbwd": "their_norms:absent"}
    provider = open_provider(protocol.targets_own("norms", calls))

    assert wrong(case, bound(provider, case, inputs), inputs) is None
    with pytest.raises(Broken, match="their_norms has no function absent"):
        provider.differentiable(Case.parse("layernorm.fwdbwd.65x96.fp32"), CPU)
    with pytest.raises(Unsupported, match=r"has no function for rmsnorm\.bwd"):
        provider.ready(Case.parse("rmsnorm.bwd.65x96.fp32"), CPU)


@pytest.mark.parametrize("metric", ["", ".block"])
def test_a_set_up_of_its_own_is_not_left_out_unsaid(tmp_path, monkeypatch, metric):
    (tmp_path / "norms_with_set_up.py").write_text(
        "def norm(x, weight, eps): ...\n\n\ndef norm_prepare(case_text, inputs): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    provider = open_provider(protocol.targets_own("norms", {"rmsnorm.fwdbwd": "norms_with_set_up:norm"}))

    with pytest.raises(
        Broken, match=r"norm_prepare cannot be used for rmsnorm\.fwdbwd, .*; name one without a _prepare"
    ):
        provider.differentiable(Case.parse(f"rmsnorm.fwdbwd.128x128.fp32{metric}"), CPU)


@pytest.mark.parametrize("trouble", eager.DEVICE_ERRORS)
def test_trouble_of_the_device_is_no_refusal_of_eager(trouble):
    def fails(**given):
        raise trouble("of the device")

    with pytest.raises(trouble, match="of the device"):
        eager._first_that_runs(fails, torch.add)(input=1, other=2)
    with pytest.raises(trouble, match="of the device"):
        eager._first_that_binds(lambda _: fails, lambda _: torch.ones)(make(Case.parse("rmsnorm.fwd.8x8.fp32"), CPU, 1))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("name", ["eager", "inductor-regional", "liger", "inductor", "triton"])
def test_another_norm_is_refused_until_somebody_says_otherwise(monkeypatch, name, direction):
    monkeypatch.setitem(OPS, "maxnorm", Op("maxnorm", "maxnorm", weight=True, bias=False, residual=False))
    provider, case = open_provider(protocol.built_in(name)), Case("maxnorm", direction, 8, 8, "fp32", "fp32")

    with pytest.raises(Unsupported):
        provider.differentiable(case, CPU) if direction is Direction.FWDBWD else provider.ready(case, CPU)
    assert quack.unsupported(case, OPS["maxnorm"]) == "this provider does not use Quack for maxnorm"
    assert liger.Liger().supports(case, torch.device("cuda")) == "this provider does not use Liger for maxnorm"


# -- the manual ------------------------------------------------------------------------------------------------------

OF_THE_MANUAL = """
import torch


def fused_rms_norm(x, weight, epsilon):
    return torch.rms_norm(x, x.shape[-1:], weight, epsilon), None


def fused_rms_norm_backward(dy, x, weight, rstd):
    raise NotImplementedError
"""


def test_what_the_manual_says_of_trying_it_by_hand_works(tmp_path):
    text = (ROOT / "docs" / "adapters.md").read_text()
    adapter = re.search(r"```python\n(# watch_norms\.py\n.*?)```", text, re.DOTALL)[1]
    command, *lines = re.search(r"## Try it by hand.*?```console\n(.*?)```", text, re.DOTALL)[1].splitlines()
    (tmp_path / "norms").mkdir()
    (tmp_path / "norms" / "ops.py").write_text(OF_THE_MANUAL)
    (tmp_path / "watch_norms.py").write_text(adapter)
    assert command == "$ PYTHONPATH=my/tree python -P kernels/contender/__main__.py"

    done = subprocess.run(
        [sys.executable, "-P", "kernels/contender/__main__.py"],
        input="\n".join(lines),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    started, prepared, turn, checked = (json.loads(line) for line in done.stdout.splitlines())
    assert started["ready"] is True
    assert (prepared["state"], prepared["reason"]) == ("measured", None)
    assert len(turn["samples"]) == 5
    assert checked["state"] == "measured", checked


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_forward", "_forward"),
        (
            "_ZN2at6native23fused_layer_norm_kernelIfLb1EEEvPKT_i",
            "at::native::fused_layer_norm_kernel<float, true>",
        ),
    ],
)
def test_kernels_are_told_as_they_were_written(name, plain):
    assert readable(name) == plain
