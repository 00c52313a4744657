"""Inputs and the oracle on a real GPU: equal sets, honest kernels right at the edges, and the cost of judging."""

import time
import warnings
from itertools import product

import pytest
import torch

from kernels.arena import protocol
from kernels.cases import OPS, Case, Direction
from kernels.checks import references
from kernels.checks.edge_inputs import edge_inputs
from kernels.checks.inputs import changed, fingerprint, make, make_sets
from kernels.checks.oracle import Oracle, named
from kernels.providers import Unsupported, forward_backward, open_provider
from tests import needs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # compilers in this process, with the warnings of their imports
]
GPU = torch.device("cuda", 0)


def definition(case, inputs):
    function = references.BY_KEY[case.key]
    if case.direction is Direction.FWDBWD:
        return named(case, forward_backward(case, function)(inputs)())
    return named(case, function(*inputs.arguments))


@pytest.mark.parametrize("key", [f"{op}.{direction}" for op, flags in OPS.items() for direction in flags.directions])
def test_the_definition_is_right_at_the_edges_as_well(key):
    for shape in ("40x96", "2048x1152", "64x16s20"):
        for dtypes in ("bf16", "fp16-fp32", "fp32"):
            case = Case.parse(f"{key}.{shape}.{dtypes}")
            first, second, edges = make(case, GPU, 1, 0), make(case, GPU, 1, 1), edge_inputs(case, GPU, 1)
            oracle = Oracle(first)
            assert oracle.judge(first, definition(case, first)).reason is None, case
            assert oracle.judge(second, definition(case, second)).reason is None, case
            assert oracle.judge_edges(edges, definition(case, edges)).reason is None, case


NORM_KEYS = ("rmsnorm.fwd", "rmsnorm.bwd", "layernorm.fwd", "layernorm.bwd")
REGION_KEYS = (
    "rmsnorm_fp8.fwd",
    "layernorm_residual_int8.fwd",
    "rmsnorm_gelu_gate.fwd",
    "rmsnorm_linear.fwd",
    "layernorm_linear.fwd",
    "layernorm_residual_dropout.fwd",
)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *product(("eager", "inductor", "triton", "quack", "liger"), NORM_KEYS),
        *product(("eager", "inductor", "triton"), REGION_KEYS),  # the others have none
    ],
)
@pytest.mark.parametrize("shape", ["64x1152", "1024x4096"])
def test_real_kernels_are_right_at_the_edges(name, key, shape):
    case = Case.parse(f"{key}.{shape}.bf16-fp32")
    first, edges = make(case, GPU, 1), edge_inputs(case, GPU, 1)
    try:
        bind = open_provider(protocol.built_in(name)).ready(case, GPU)
        returned, at_edges = bind(first)(), bind(edges)()
    except Unsupported as why:
        needs.skip("providers", str(why))
    oracle = Oracle(first)
    assert oracle.judge(first, named(case, returned)).reason is None
    assert oracle.judge_edges(edges, named(case, at_edges)).reason is None


@pytest.mark.parametrize("op", ["rmsnorm_linear", "layernorm_linear"])
@pytest.mark.parametrize(
    "shape_and_dtypes",
    [
        "4096x4096.bf16",  # each tile of `linear.TILES`, full and cut off
        "2048x2048.bf16-fp32",
        "1000x1000.fp16-fp32",
        "64x4096.bf16",
        "1x128.bf16",
        "2048x2048.fp32",
        "1000x1000.fp32-bf16",
        "64x4096.fp32",
        "1000x100s101.fp16",  # narrow accesses
        "300x1001.fp32",
    ],
)
def test_every_tile_of_our_linear_layers_is_right_at_the_edges(op, shape_and_dtypes):
    case = Case.parse(f"{op}.fwd.{shape_and_dtypes}")
    bind = open_provider(protocol.built_in("triton")).ready(case, GPU)
    oracle = Oracle(make(case, GPU, 1))
    for number in (0, 1):
        inputs = make(case, GPU, 1, number)
        assert oracle.judge(inputs, named(case, bind(inputs)())).reason is None
    edges = edge_inputs(case, GPU, 1)
    assert oracle.judge_edges(edges, named(case, bind(edges)())).reason is None


def test_sets_made_together_are_those_made_alone():
    case = Case.parse("layernorm_residual.bwd.100x1000s1001.bf16-fp32")
    sets = make_sets(case, GPU, 1, 200)

    for number in (0, 1, 99, 199):
        alone = make(case, GPU, 1, number)
        for name, tensor in sets[number].tensors.items():
            assert torch.equal(tensor, alone[name])
            assert tensor.stride() == alone[name].stride()
            assert tensor.storage_offset() == 0
            assert tensor.data_ptr() % 256 == 0
    before = fingerprint(sets[7])
    sets[7]["x"].as_strided((100, 1001), (1001, 1))[-1, -1] = 0.0
    assert changed(sets[7], before) == ["x"]


def took_ms(function):
    function()
    torch.cuda.synchronize()
    began = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def test_two_hundred_small_sets_cost_little(capsys):
    case = Case.parse("rmsnorm.bwd.1024x512.bf16-fp32")
    spent = took_ms(lambda: make_sets(case, GPU, 1, 200))
    with capsys.disabled():
        print(f"\n200 sets of {case}: {spent:.1f} ms")
    assert spent < 100


@pytest.mark.parametrize("key", ["rmsnorm.fwd", "rmsnorm.bwd"])
def test_judging_a_large_case_costs_milliseconds_and_waits_once(key, capsys):
    case = Case.parse(f"{key}.32768x4096.bf16-fp32")
    inputs = make(case, GPU, 1)
    outputs, oracle = definition(case, inputs), Oracle(inputs)
    assert oracle.judge(inputs, outputs).reason is None

    spent = took_ms(lambda: oracle.judge(inputs, outputs))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            oracle.judge(inputs, outputs)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    with capsys.disabled():
        print(f"\njudging {case}: {spent:.1f} ms")
    waits = [each for each in seen if "called a synchronizing" in str(each.message)]  # and not that this is a prototype
    assert len(waits) == 1
    assert spent < 40
