"""The oracle and regions: codes and scales, gates, linear layers, dropout; right ones and wrong ones."""

import math
import re

import pytest
import torch

from kernels.cases import Case
from kernels.checks import references
from kernels.checks.edge_inputs import edge_inputs
from kernels.checks.inputs import EPS, make
from kernels.checks.oracle import Oracle, WrongShape, named, require_rows
from kernels.checks.outputs import Wrong, digest, fill_with_nan, require_finite, require_working_oracle, same, snapshot

CPU = torch.device("cpu")


def given(text, number=0):
    return make(Case.parse(text), CPU, 1, number)


def judged(inputs, returned):
    return Oracle(inputs).judge(inputs, named(inputs.case, returned)).reason


def y_of(inputs):
    """The norm with its weights in fp32."""
    x = inputs["x"].float()
    if "residual" in inputs.tensors:
        x = (x + inputs["residual"].float()).to(inputs["x"].dtype).float()
    normal = x - x.mean(1, keepdim=True) if "bias" in inputs.tensors else x
    y = normal * torch.rsqrt(normal.square().mean(1, keepdim=True) + EPS) * inputs["weight"].float()
    return y + inputs["bias"].float() if "bias" in inputs.tensors else y


def coded(inputs, y, scale=None, rounded=torch.round):
    most = 448.0 if "fp8" in inputs.case.op else 127.0
    scale = y.abs().amax(1, keepdim=True) / most if scale is None else scale
    codes = (y / scale).clamp(-most, most)
    q = codes.to(torch.float8_e4m3fn) if most == 448.0 else rounded(codes).to(torch.int8)
    return q, scale[:, 0].float()


# -- right ------------------------------------------------------------------------------------------------------------


def as_the_definition(inputs):
    return coded(inputs, y_of(inputs))


def rounded_as_vllm_does(inputs):
    """The normalised row is rounded before the product with the weight, and after it."""
    x, narrow = inputs["x"].float(), inputs["x"].dtype
    y = (x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS)).to(narrow) * inputs["weight"].to(narrow)
    return coded(inputs, y.float())


def halves_away_from_zero(inputs):
    return coded(inputs, y_of(inputs), rounded=lambda codes: codes.sign() * (codes.abs() + 0.5).floor())


@pytest.mark.parametrize("shape", ["64x512", "7x1152", "3x1", "40x8s9", "1x4096"])
@pytest.mark.parametrize("dtypes", ["bf16", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("function", [as_the_definition, rounded_as_vllm_does, halves_away_from_zero])
def test_honest_codes_are_right(function, codes, dtypes, shape):
    for number in (0, 1):
        inputs = given(f"rmsnorm_{codes}.fwd.{shape}.{dtypes}", number)
        q, scale = function(inputs)
        assert judged(inputs, (q, scale)) is None
        assert require_rows(inputs, {"q": q, "scale": scale}, [0, inputs.case.rows - 1]) is None


def test_a_scale_of_zeros_may_be_any_number():
    inputs = given("rmsnorm_int8.fwd.4x96.bf16")
    inputs["x"][2] = 0.0
    q, scale = references.BY_KEY[inputs.case.key](*inputs.arguments)
    for of_zeros in (0.0, 1e-7, 1.0):
        scale[2] = of_zeros
        assert judged(inputs, (q, scale)) is None
    for not_a_number in (math.inf, math.nan):
        scale[2] = not_a_number
        assert "not finite" in judged(inputs, (q, scale))


# -- wrong ------------------------------------------------------------------------------------------------------------


def truncates(inputs):
    return coded(inputs, y_of(inputs), rounded=torch.trunc)


def a_code_too_far(inputs):
    q, scale = as_the_definition(inputs)
    q[3, 5] += 1 if q[3, 5] < 100 else -1
    return q, scale


def a_scale_of_the_tensor(inputs):
    y = y_of(inputs)
    return coded(inputs, y, y.abs().amax().expand(y.shape[0], 1) / (448.0 if "fp8" in inputs.case.op else 127.0))


def the_inverse_of_the_scale(inputs):
    q, scale = as_the_definition(inputs)
    return q, 1 / scale


def for_another_largest_code(inputs):
    q, scale = as_the_definition(inputs)
    return q, scale * (448 / 240 if "fp8" in inputs.case.op else 127 / 120)


def a_scale_of_half_the_row(inputs):
    y = y_of(inputs)
    return coded(inputs, y, y[:, : y.shape[1] // 2].abs().amax(1, keepdim=True) / 127.0)


def no_weight(inputs):
    return coded(inputs, y_of(inputs) / inputs["weight"].float())


def flushes_small_codes(inputs):
    q, scale = as_the_definition(inputs)
    return torch.where(q.float().abs() < 2**-6, 0.0, q.float()).to(q.dtype), scale


def through_two_mantissa_bits(inputs):
    q, scale = as_the_definition(inputs)
    return q.float().to(torch.float8_e5m2).float().to(q.dtype), scale


def the_last_row_unwritten(inputs):
    q, scale = as_the_definition(inputs)
    q[-1] = math.nan if "fp8" in inputs.case.op else -128
    return q, scale


def the_last_scale_unwritten(inputs):
    q, scale = as_the_definition(inputs)
    scale[-1] = math.nan
    return q, scale


TOO_FAR = "q . scale is [0-9.e+]+ times as far from y as a rounded code can be"


@pytest.mark.parametrize(
    ("function", "codes", "complaint"),
    [
        (truncates, "int8", TOO_FAR),
        (a_code_too_far, "int8", TOO_FAR),
        (a_scale_of_the_tensor, "int8", TOO_FAR),
        (a_scale_of_the_tensor, "fp8", TOO_FAR),
        (the_inverse_of_the_scale, "int8", TOO_FAR),
        (for_another_largest_code, "int8", TOO_FAR),
        (for_another_largest_code, "fp8", TOO_FAR),
        (a_scale_of_half_the_row, "int8", TOO_FAR),
        (no_weight, "fp8", TOO_FAR),
        (flushes_small_codes, "fp8", TOO_FAR),
        (through_two_mantissa_bits, "fp8", TOO_FAR),
        (the_last_row_unwritten, "int8", TOO_FAR),
        (the_last_row_unwritten, "fp8", "q has 512 values that are not finite"),
        (the_last_scale_unwritten, "int8", "not finite"),
    ],
)
@pytest.mark.parametrize("dtypes", ["bf16", "fp32"])
def test_wrong_codes_and_scales_are_found(function, codes, complaint, dtypes):
    inputs = given(f"rmsnorm_{codes}.fwd.64x512.{dtypes}")
    returned = function(inputs)
    assert re.search(complaint, judged(inputs, returned) or "nothing")
    if function is not a_code_too_far:  # which is in a row that is not drawn
        assert require_rows(inputs, named(inputs.case, returned), range(64)) is not None


def x_as_the_new_residual(inputs):
    return *as_the_definition(inputs), inputs["x"].clone()


def test_the_new_residual_is_judged_with_the_codes():
    inputs = given("layernorm_residual_int8.fwd.64x512.bf16")
    assert judged(inputs, (*as_the_definition(inputs), inputs["x"] + inputs["residual"])) is None
    assert "residual_out is wrong by" in judged(inputs, x_as_the_new_residual(inputs))


def gate_of(inputs, activation):
    return (y_of(inputs) * activation(inputs["gate"].float())).to(inputs["x"].dtype)


@pytest.mark.parametrize(
    ("op", "activation", "right"),
    [
        ("silu", torch.nn.functional.silu, True),
        ("gelu", torch.nn.functional.gelu, True),
        ("silu", torch.sigmoid, False),
        ("silu", torch.nn.functional.gelu, False),
        ("gelu", lambda gate: torch.nn.functional.gelu(gate, approximate="tanh"), False),
        ("gelu", torch.nn.functional.silu, False),
    ],
)
def test_the_activation_of_a_gate_matters(op, activation, right):
    inputs = given(f"rmsnorm_{op}_gate.fwd.64x512.fp32")
    assert (judged(inputs, gate_of(inputs, activation)) is None) is right


def test_a_gate_times_a_shifted_norm_is_wrong():
    inputs = given("rmsnorm_silu_gate.fwd.512x1024.bf16")
    y = gate_of(inputs, torch.nn.functional.silu)
    assert judged(inputs, y) is None
    assert "y is wrong by" in judged(inputs, (y.float() * 1.01).bfloat16())


@pytest.mark.parametrize("dtypes", ["bf16", "fp32"])
def test_a_linear_layer_takes_the_normalised_rows(dtypes):
    inputs = given(f"rmsnorm_linear.fwd.64x512.{dtypes}")
    x, matrix = inputs["x"], inputs["matrix"]
    y = y_of(inputs).to(x.dtype)
    assert judged(inputs, torch.nn.functional.linear(y, matrix)) is None
    assert "y is wrong by" in judged(inputs, torch.nn.functional.linear(y, matrix.T))
    assert "y is wrong by" in judged(inputs, torch.nn.functional.linear(y[:, :-1], matrix[:, :-1]))
    assert "y is wrong by" in judged(inputs, torch.nn.functional.linear(x, matrix))


@pytest.mark.parametrize("dtypes", ["bf16", "fp32"])
def test_dropout_keeps_what_its_mask_says(dtypes):
    inputs = given(f"rmsnorm_residual_dropout.fwd.64x512.{dtypes}")
    x, residual, mask = (inputs[name].float() for name in ("x", "residual", "mask"))
    assert 0.88 < mask.mean() < 0.92

    def normed(total):
        total = total.to(inputs["x"].dtype)
        wide = total.float()
        y = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPS) * inputs["weight"].float()
        return y.to(total.dtype), total

    assert judged(inputs, normed(residual + x * mask / 0.9)) is None
    for wrong in (
        residual + x * mask,
        residual + x / 0.9,
        residual + x * (1 - mask) / 0.9,
        (residual + x) * mask / 0.9,
    ):
        assert "y is wrong by" in judged(inputs, normed(wrong))


# -- at the edges -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_nan_stays_in_its_rows(codes):
    case = Case.parse(f"rmsnorm_{codes}.fwd.24x512.bf16")
    inputs = edge_inputs(case, CPU, 1)
    oracle = Oracle(make(case, CPU, 1))
    q, scale = references.BY_KEY[case.key](*inputs.arguments)
    bad = ~inputs["x"].isfinite().all(1)
    assert bad.sum() == 2

    assert oracle.judge_edges(inputs, {"q": q, "scale": scale}).reason is None
    spread = torch.where(bad | bad.roll(1), math.nan, scale)
    assert "not finite in a row without" in oracle.judge_edges(inputs, {"q": q, "scale": spread}).reason
    hidden = torch.where(bad, 1.0, scale)
    codes_hidden = torch.where(bad[:, None], 0.0, q.float()).to(q.dtype)
    reason = oracle.judge_edges(inputs, {"q": codes_hidden, "scale": hidden}).reason
    assert reason == (None if codes == "int8" else "q is finite in a row with inf or nan in its inputs")


# -- the checks around the numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_the_checks_know_codes(codes):
    case = Case.parse(f"rmsnorm_{codes}.fwd.64x96.bf16")
    inputs = make(case, CPU, 1)
    outputs = snapshot(case, references.BY_KEY[case.key](*inputs.arguments))
    again = snapshot(case, tuple(outputs.values()))

    fill_with_nan(case, CPU, 2)
    require_working_oracle(case, CPU, 1)
    require_finite(outputs, "")
    assert same(outputs, again)
    again["q"].view(torch.int8)[3, 7] ^= 1
    assert not same(outputs, again)
    assert digest(outputs["q"]) != digest(again["q"])
    again["q"][0, 0] = math.nan if codes == "fp8" else -128
    with pytest.raises(Wrong, match="q has values that are not finite"):
        require_finite(again, "")


@pytest.mark.parametrize(
    ("q", "scale", "complaint"),
    [
        (torch.zeros(4, 8, dtype=torch.int8), torch.zeros(4), "q is int8 instead of fp8"),
        (torch.zeros(4, 8).to(torch.float8_e5m2), torch.zeros(4), "q is torch.float8_e5m2 instead of fp8"),
        (torch.zeros(4, 8).to(torch.float8_e4m3fn), torch.zeros(4, 1), "scale has the shape (4, 1) instead of (4,)"),
        (torch.zeros(4, 8).to(torch.float8_e4m3fn), torch.zeros(4).bfloat16(), "scale is bf16 instead of fp32"),
    ],
)
def test_codes_of_another_type_are_refused(q, scale, complaint):
    with pytest.raises(WrongShape, match=re.escape(complaint)):
        named(Case.parse("rmsnorm_fp8.fwd.4x8.bf16"), (q, scale))
