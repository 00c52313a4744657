"""Rounding before the weight: as strictly checked as rounding once, against its own float64 reference."""

import pytest
import torch

from kernels.cases import OPS, Case, Direction, Rounding
from kernels.checks.edge_inputs import edge_inputs
from kernels.checks.error_bounds import rounds_in_between
from kernels.checks.inputs import make
from kernels.checks.oracle import Oracle, named
from kernels.providers import forward_backward

CPU = torch.device("cpu")
BEFORE, AFTER = Rounding.BEFORE_WEIGHT, Rounding.AFTER_WEIGHT
CASES = [
    "rmsnorm.fwd.512x4096.bf16",
    "rmsnorm.fwd.64x8192.fp16",
    "rmsnorm.fwd.300x513.bf16-fp32",
    "rmsnorm_residual.fwd.256x1024.bf16",
    "layernorm.fwd.512x768.bf16",
    "rmsnorm_silu_gate.fwd.256x1024.bf16",
    "rmsnorm.fwdbwd.1024x1024.bf16",
    "layernorm.fwdbwd.512x256.fp16",
    "rmsnorm_residual.fwdbwd.512x512.bf16",
]


def norm(case, convention):
    """A plain implementation of either convention."""
    names = OPS[case.op].inputs(Direction.FWD)

    def function(*arguments):
        *tensors, eps = arguments
        given = dict(zip(names, tensors, strict=True))
        narrow = given["x"].dtype
        rows = given["x"].float()
        if "residual" in given:
            rows = (rows + given["residual"].float()).to(narrow).float()
        centred = rows - rows.mean(-1, keepdim=True) if "bias" in given else rows
        normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        y = (normal.to(narrow) if convention is BEFORE else normal) * given["weight"].float()
        if "bias" in given:
            y = y + given["bias"].float()
        if "gate" in given:
            y = y * torch.nn.functional.silu(given["gate"].float())
        y = y.to(narrow)
        return (y, rows.to(narrow)) if "residual" in given else y

    return function


def outputs_of(case, inputs, function):
    if case.direction is Direction.FWDBWD:
        return named(case, forward_backward(case, function)(inputs)())
    return named(case, function(*inputs.arguments))


@pytest.mark.parametrize("text", CASES)
def test_an_implementation_is_right_by_its_own_convention(text):
    case = Case.parse(text)
    inputs = make(case, CPU, 3)

    for own, other in ((BEFORE, AFTER), (AFTER, BEFORE)):
        outputs = outputs_of(case, inputs, norm(case, own))
        right, otherwise = (Oracle(inputs, rounding).judge(inputs, outputs) for rounding in (own, other))
        assert right.reason is None
        assert otherwise.errors["y"] > 1.3 * right.errors["y"]


def test_the_reason_names_the_convention_by_which_the_result_is_right():
    case = Case.parse("rmsnorm.fwd.512x4096.bf16")
    inputs = make(case, CPU, 3)

    for own, other in ((BEFORE, AFTER), (AFTER, BEFORE)):
        finding = Oracle(inputs, other).judge(inputs, outputs_of(case, inputs, norm(case, own)))
        assert finding.reason is not None
        assert f'; it is right with rounding = "{own}" for this provider in the recipe' in finding.reason


@pytest.mark.parametrize("text", CASES)
def test_both_conventions_allow_the_same_error(text):
    """As large as that of an fp32 computation: what may differ by chance at a tie must not add to it."""
    case = Case.parse(text)
    inputs = make(case, CPU, 3)
    before, after = Oracle(inputs, BEFORE), Oracle(inputs, AFTER)

    for name, allowed in before.limits.items():
        assert allowed == pytest.approx(after.limits[name], rel=0.2), name
    outputs = outputs_of(case, inputs, norm(case, BEFORE))
    honest = Oracle(inputs, BEFORE).judge(inputs, outputs).errors
    assert all(honest[name] <= before.limits[name] / 1.4 for name in honest if name.startswith(("y", "dx")))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda y: y * 1.01, id="one percent off"),
        pytest.param(lambda y: y.index_fill(1, torch.tensor([5]), 0.0), id="a column left out"),
        pytest.param(lambda y: y.index_fill(0, torch.tensor([60]), 0.0), id="a row left out"),
        pytest.param(lambda y: (y.float() * (1 + 2**-8)).to(y.dtype), id="a rounding more"),
    ],
)
def test_what_is_wrong_is_wrong_by_either_convention(wrong):
    case = Case.parse("rmsnorm.fwd.512x1024.bf16")
    inputs = make(case, CPU, 1)
    outputs = {"y": wrong(norm(case, BEFORE)(*inputs.arguments))}

    for rounding in Rounding:
        reason = Oracle(inputs, rounding).judge(inputs, outputs).reason
        assert reason is not None
        assert "it is right with" not in reason


def test_a_forgotten_eps_and_arithmetic_in_bf16_are_wrong():
    case = Case.parse("rmsnorm.fwd.512x1024.bf16")
    inputs = make(case, CPU, 1)
    x, weight, eps = inputs.arguments
    oracle = Oracle(inputs, BEFORE)
    in_bf16 = weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))

    assert oracle.judge(inputs, {"y": norm(case, BEFORE)(x, weight, 0.0)}).reason
    assert oracle.judge(inputs, {"y": in_bf16}).reason


def test_inf_and_nan_stay_in_their_rows():
    case = Case.parse("rmsnorm.fwd.512x1024.bf16")
    inputs = edge_inputs(case, CPU, 1)
    outputs = {"y": norm(case, BEFORE)(*inputs.arguments)}

    assert Oracle(make(case, CPU, 1), BEFORE).judge_edges(inputs, outputs).reason is None


@pytest.mark.parametrize(
    "text", ["rmsnorm.fwd.64x512.fp32", "rmsnorm_noweight.fwd.64x512.bf16", "rmsnorm_fp8.fwd.64x512.bf16"]
)
def test_the_conventions_are_one_where_nothing_else_is_rounded_before_the_weight(text):
    assert not rounds_in_between(Case.parse(text), BEFORE)
