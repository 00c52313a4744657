"""Regions in Triton: in the interpreter against the oracle, and compiled without a GPU."""

import re
from functools import cache
from itertools import product

import pytest
import torch

from kernels.arena import protocol
from kernels.cases import OPS, Case, Region
from kernels.checks import oracle, references
from kernels.checks.edge_inputs import edge_inputs
from kernels.checks.inputs import EPS, make
from kernels.norms.linear import TILES, norm_linear, parts_of
from kernels.norms.regions import dropped, gated, quantised
from kernels.providers import open_provider, ours
from tests.pairwise import pairwise

OURS = [name for name, op in OPS.items() if op.region not in (Region.NONE, Region.LINEAR)]
LINEAR = [name for name, op in OPS.items() if op.region is Region.LINEAR]

CPU = torch.device("cpu")
SHAPES, DTYPES = ("9x100s128", "3x17000", "70x16"), ("fp32", "fp16-fp32")
# The interpreter cuts off where a GPU rounds to bf16.
CASES = [
    f"{op}.fwd.{shape}.{dtypes}"
    for op, shape, dtypes in [
        *pairwise(product(OURS, SHAPES, DTYPES)),
        # of products the interpreter (3.7) has none in bf16
        *product(LINEAR, ("1x1", "1x101", "9x100s128", "70x300"), DTYPES),
    ]
]
AT_NIGHT = [
    text for op, shape, dtypes in product(OURS, SHAPES, DTYPES) if (text := f"{op}.fwd.{shape}.{dtypes}") not in CASES
]


def outputs_of(case, inputs):
    """Of fp8 the interpreter (3.7) loses the carry of a mantissa that is rounded up to the next power of two."""
    outputs = oracle.named(case, ours.forward(case)(inputs)())
    if "fp8" in case.op:
        exact = oracle.named(case, references.BY_KEY[case.key](*inputs.arguments))["q"].float()
        q = outputs["q"].float()
        lost = (torch.frexp(q)[0].abs() == 0.5) & ((2 * q - exact).abs() < (q - exact).abs())
        outputs["q"] = torch.where(lost, 2 * q, q).to(outputs["q"].dtype)
    return outputs


def reasons(text):
    """Why the oracle does not accept the outputs of ordinary numbers, and of those at the edges."""
    case = Case.parse(text)
    first, edges = make(case, CPU, 1), edge_inputs(case, CPU, 1)
    judge = oracle.Oracle(first)
    return [
        judge.judge(first, outputs_of(case, first)).reason,
        judge.judge_edges(edges, outputs_of(case, edges)).reason,
    ]


def of_a_constant_row():
    """Are the product of its norm and its gated norm zero?"""
    x = torch.full((3, 100), 100.0, dtype=torch.float16)
    product_of = norm_linear(x, torch.ones(5, 100, dtype=torch.float16), eps=EPS, center=True)
    return [not product_of.any(), not gated(x, x, eps=EPS, center=True).any()]


def findings(all_trials):
    torch.set_num_threads(1)
    return {
        "reasons": {text: reasons(text) for text in (*CASES, *(AT_NIGHT if all_trials else ()))},
        "constant": of_a_constant_row(),
    }


@pytest.mark.parametrize("text", [*CASES, *(pytest.param(text, marks=pytest.mark.long) for text in AT_NIGHT)])
def test_a_region_is_right_in_the_interpreter_and_at_the_edges(interpreted, text):
    assert interpreted["reasons"][text] == [None, None]


def test_a_constant_row_is_zero_without_its_mean(interpreted):
    """100 columns do not fill a block: minus the mean times rstd, 1e5, is inf in fp16 beyond them."""
    assert interpreted["constant"] == [True, True]


@pytest.fixture(scope="module")
def compiling(open_contender, tmp_path_factory):
    @cache
    def opened(architecture):
        channel = open_contender(TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("regions")))
        assert channel.ask(protocol.start(protocol.built_in("triton"), architecture, 1, None), 120)["ready"]
        return channel

    return opened


@pytest.mark.parametrize(
    ("architecture", "text", "name", "store_bytes"),
    [
        ("sm_90", "rmsnorm_residual_int8.fwd.4096x16384.fp32", "_region", "4"),
        ("sm_90", "layernorm_fp8.fwd.4096x20480.bf16-fp32", "_region", "4"),
        ("sm_90", "rmsnorm_silu_gate.fwd.131072x128.bf16", "_region", "16"),
        ("sm_90", "layernorm_residual_dropout.fwd.16384x1024.bf16-fp32", "_region", "16"),
        ("sm_100", "rmsnorm_fp8.fwd.4096x8192.bf16", "_region", "4"),
        ("sm_100", "rmsnorm_gelu_gate.fwd.4096x5120.bf16", "_region", "16"),
        ("sm_90", "rmsnorm_linear.fwd.4096x4096.bf16", "_linear", "16"),
        ("sm_90", "rmsnorm_linear.fwd.64x4096.bf16", "_linear", "16"),
        ("sm_90", "layernorm_linear.fwd.4096x4096.fp16-fp32", "_linear", "16"),
        ("sm_90", "layernorm_linear.fwd.1000x2048.fp32", "_linear", "16"),
        ("sm_90", "layernorm_linear.fwd.4096x4099.fp32", "_linear", "4"),
        ("sm_100", "rmsnorm_linear.fwd.64x4096.bf16", "_linear", "16"),
        ("sm_100", "layernorm_linear.fwd.4096x4096.bf16-fp32", "_linear", "16"),
        ("sm_100", "rmsnorm_linear.fwd.1000x100s101.bf16", "_linear", "2"),
    ],
)
def test_a_region_is_one_kernel_without_spills(compiling, architecture, text, name, store_bytes):
    answer = compiling(architecture).ask(protocol.compile(Case.parse(text)), 120)

    assert (answer["state"], answer["reason"]) == ("compiled", None)
    [kernel] = answer["facts"]["kernels"]
    assert (kernel["name"], kernel["spills"]) == (name, 0)
    assert store_bytes in kernel["stores"]


X = torch.ones(4, 8)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: quantised(X, eps=1e-6, center=False, dtype=torch.float8_e5m2), "quantise to torch.float8_e4m3fn or"),
        (lambda: quantised(torch.ones(()), eps=1e-6, center=False), "x must be [rows, columns]"),
        (lambda: quantised(X, residual=X[:2], eps=1e-6, center=False), "residual must be like x"),
        (lambda: gated(X, X, eps=1e-6, center=False, activation="relu"), "silu or gelu, not 'relu'"),
        (lambda: gated(X, X.half(), eps=1e-6, center=False), "gate must be like x"),
        (lambda: dropped(X, X, X, eps=1e-6, center=False, p=0.1), "mask must be contiguous, (4, 8) in uint8"),
        (lambda: dropped(X, X, X.byte(), eps=1e-6, center=False, p=1.0), "at least 0 and less than 1, not 1.0"),
        (lambda: norm_linear(X, X[:, :4], eps=1e-6, center=False), "matrix must be contiguous, [outputs, 8]"),
        (lambda: norm_linear(X, X.half(), eps=1e-6, center=False), "in torch.float32, not (4, 8) in torch.float16"),
        (lambda: norm_linear(X, torch.ones(8, 4).T, eps=1e-6, center=False), "with strides (1, 4)"),
        (lambda: norm_linear(X, X, X, eps=1e-6, center=False), "weight must be contiguous in bfloat16"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(call, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        call()


def test_no_rows_give_no_codes():
    q, scale, residual_out = quantised(X[:0], eps=1e-6, center=False, dtype=torch.int8)
    assert (q.shape, q.dtype, scale.shape, residual_out) == ((0, 8), torch.int8, (0,), None)


@pytest.mark.parametrize(("rows", "outputs"), [(0, 5), (4, 0)])
def test_no_rows_or_no_outputs_give_an_empty_product(rows, outputs):
    y = norm_linear(X[:rows], torch.ones(outputs, 8), eps=1e-6, center=True)
    assert (y.shape, y.dtype) == ((rows, outputs), torch.float32)


@pytest.mark.parametrize(
    ("row_tiles", "out_tiles", "parts"),
    [
        (32, 16, 4),  # 128 programs of four tiles on 132 SMs
        (1, 128, 128),
        (132, 16, 1),
        (70, 16, 8),  # one program for each tile of rows would leave 62 SMs without work
        (1, 1, 1),
    ],
)
def test_programs_share_the_outputs_so_that_all_sms_work(row_tiles, out_tiles, parts):
    assert parts_of(row_tiles, out_tiles, 132) == parts


def test_tiles_are_larger_first():
    for tiles in TILES.values():
        sizes = [tile.rows * tile.out for tile in tiles]
        assert sizes == sorted(sizes, reverse=True)


def test_what_our_provider_does_not_have(monkeypatch):
    gpu, provider = torch.device("cuda"), open_provider(protocol.built_in("triton"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))

    assert provider.supports(Case.parse("rmsnorm_linear.fwd.8x8.bf16"), gpu) is None
    assert provider.supports(Case.parse("rmsnorm_fp8.fwd.8x8.bf16"), gpu) == "fp8 codes need compute capability 8.9"
    assert provider.supports(Case.parse("rmsnorm_int8.fwd.8x8.bf16"), gpu) is None
