"""The oracle: float64 references and the allowed errors."""

import math
import re

import pytest
import torch

from kernels.cases import NORMS, OPS, Case, Direction
from kernels.checks import references
from kernels.checks.edge_inputs import EDGES, edge_inputs
from kernels.checks.inputs import EPS, Inputs, make
from kernels.checks.oracle import Oracle, WrongShape, named
from kernels.providers import forward_backward

CPU = torch.device("cpu")
KEYS = [f"{op}.{direction}" for op, flags in OPS.items() for direction in flags.directions]
DTYPES = ["fp32", "bf16", "fp16-fp32", "fp32-bf16"]
ORDINARY = ["512x1024", "2048x128", "64x4096"]


@pytest.fixture(autouse=True)
def one_thread():
    """As contenders on a CPU run; and threads that wait for each other took three times as long on busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def computed(case, inputs, function):
    """What the function returns of these inputs, by name; of fwdbwd, through autograd."""
    if case.direction is Direction.FWDBWD:
        return named(case, forward_backward(case, function)(inputs)())
    return named(case, function(*inputs.arguments))


def definition(case, inputs):
    return computed(case, inputs, references.BY_KEY[case.key])


# -- right ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_the_definition_rounded_once_is_right(key):
    for shape in ("40x96", "1x1", "2x3", "7x1152", "64x16s20", *("16x4x16s80",) * (key.partition(".")[0] in NORMS)):
        for dtypes in DTYPES:
            case = Case.parse(f"{key}.{shape}.{dtypes}")
            first, second = make(case, CPU, 1, 0), make(case, CPU, 1, 1)
            oracle = Oracle(first)
            for inputs in (first, second):
                finding = oracle.judge(inputs, definition(case, inputs))
                assert finding.reason is None, case
                assert set(finding.errors) == set(case.outputs)


@pytest.mark.parametrize("key", KEYS)
def test_at_the_edges_too(key):
    for shape in ("24x96", "1x8"):
        for dtypes in DTYPES:
            case = Case.parse(f"{key}.{shape}.{dtypes}")
            oracle = Oracle(make(case, CPU, 1))
            for seed in range(
                len(EDGES) if case.rows < len(EDGES) else 1
            ):  # of fewer rows than edges, the seed says which
                inputs = edge_inputs(case, CPU, seed)
                assert oracle.judge_edges(inputs, definition(case, inputs)).reason is None, (case, seed)


def keeps_the_sum_unrounded(x, residual, weight, eps):
    total = x.float() + residual.float()
    normal = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    return (normal * weight.float()).to(x.dtype), total.to(x.dtype)


def adds_first(x, residual, weight, eps):
    """Two autograd functions: the gradient of the norm is rounded before that of the residual is added."""
    total = x + residual
    return torch.nn.functional.rms_norm(total.float(), (x.shape[1],), weight.float(), eps).to(x.dtype), total


@pytest.mark.parametrize("function", [keeps_the_sum_unrounded, adds_first])
@pytest.mark.parametrize("direction", ["fwd", "fwdbwd"])
@pytest.mark.parametrize("dtypes", ["bf16", "fp16-fp32", "fp32"])
def test_the_new_residual_may_be_rounded_before_the_norm_or_not(function, direction, dtypes):
    for shape in ("40x96", "2x3", "3x1", "512x256"):
        case = Case.parse(f"rmsnorm_residual.{direction}.{shape}.{dtypes}")
        for seed in range(4 if case.rows < 100 else 1):
            inputs = make(case, CPU, seed, 1)
            assert Oracle(make(case, CPU, seed)).judge(inputs, computed(case, inputs, function)).reason is None


def torchs_own(inputs):
    """Backward passes in fp32 as torch has them, with other orders of summing than the definition."""
    x, dy, weight = (inputs[name].float() for name in ("x", "dy", "weight"))
    if "mean" in inputs.tensors:
        mean, rstd = inputs["mean"][:, None], inputs["rstd"][:, None]
        backward = torch.ops.aten.native_layer_norm_backward
        return backward(dy, x, [x.shape[1]], mean, rstd, weight, weight, [True, True, True])
    leaves = (x.requires_grad_(), weight.requires_grad_())
    return torch.autograd.grad(torch.nn.functional.rms_norm(leaves[0], (x.shape[1],), leaves[1], EPS), leaves, dy)


@pytest.mark.parametrize("dtypes", ["fp32", "bf16-fp32"])
@pytest.mark.parametrize("key", ["rmsnorm.bwd", "layernorm.bwd"])
@pytest.mark.parametrize("shape", ["64x128", "8x64", "512x512", "64x16", "512x8", "100x4", "40x2", "7x1", "1x5"])
def test_torchs_own_sums_are_right_whatever_the_numbers(key, shape, dtypes):
    """In rows of a few columns nearly everything cancels, and what is left is noise of the terms."""
    case = Case.parse(f"{key}.{shape}.{dtypes}")
    for seed in range(24 if case.rows < 100 else 4):
        inputs = make(case, CPU, seed)
        dx, *sums = torchs_own(inputs)
        assert Oracle(inputs).judge(inputs, named(case, (dx.to(inputs["x"].dtype), *sums))).reason is None, seed


def test_no_rows_are_right():
    for key in KEYS:
        op, direction = key.split(".")
        case = Case(op, Direction(direction), 0, 8, "bf16", "fp32")
        inputs = make(case, CPU, 1)
        assert Oracle(inputs).judge(inputs, definition(case, inputs)).reason is None, key


# -- wrong ------------------------------------------------------------------------------------------------------------


def normal_of(inputs, eps=EPS):
    op, x = OPS[inputs.case.op], inputs["x"].float()
    return references.normalised(op, x + inputs["residual"].float() if op.residual else x, eps)[0]


def out(inputs, normal):
    return references.weighted(OPS[inputs.case.op], normal, inputs.tensors).to(inputs["x"].dtype)


def other_eps(eps):
    return lambda inputs: out(inputs, normal_of(inputs, eps))


def a_mean_short_of_the_last_column(inputs):
    x = inputs["x"].float()
    return out(inputs, x * torch.rsqrt(x[:, :-1].square().sum(1, keepdim=True) / x.shape[1] + EPS))


def the_last_column_unwritten(inputs):
    return out(inputs, normal_of(inputs).index_fill(1, torch.tensor([inputs.case.cols - 1]), 0.0))


def the_variance_of_a_sample(inputs):
    x = inputs["x"].float()
    return out(inputs, (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True, correction=1) + EPS))


def no_mean(inputs):
    return out(inputs, references.normalised(OPS["rmsnorm"], inputs["x"].float(), EPS)[0])


def one_pass(inputs):
    x = inputs["x"].float()
    mean = x.mean(1, keepdim=True)
    variance = (x.square().mean(1, keepdim=True) - mean.square()).clamp_min(0.0)
    return out(inputs, (x - mean) * torch.rsqrt(variance + EPS))


def a_sum_in_fp16(inputs):
    total = torch.zeros(inputs.case.rows, dtype=torch.float16)
    for column in inputs["x"].half().square().unbind(1):
        total += column
    return out(inputs, inputs["x"].float() * torch.rsqrt(total[:, None].float() / inputs.case.cols + EPS))


def rounded_before_the_weight(inputs):
    narrow = inputs["x"].dtype
    return normal_of(inputs).to(narrow) * inputs["weight"].to(narrow)


def truncated(inputs):
    """bf16 by cutting off instead of rounding: twice the error of an honest rounding."""
    y = references.weighted(OPS["rmsnorm"], normal_of(inputs), inputs.tensors)
    return (y.view(torch.int32) & -65536).view(torch.float32).bfloat16()


def no_bias(inputs):
    return (normal_of(inputs) * inputs["weight"].float()).to(inputs["x"].dtype)


def the_norm_of_x_alone(inputs):
    x = inputs["x"]
    normal = references.normalised(OPS["rmsnorm"], x.float(), EPS)[0]
    return (normal * inputs["weight"].float()).to(x.dtype), x + inputs["residual"]


def x_as_the_new_residual(inputs):
    return out(inputs, normal_of(inputs)), inputs["x"].clone()


def backwards(inputs):
    return list(references.BY_KEY[inputs.case.key](*inputs.arguments))


def one_row_short(inputs):
    dx, *sums = backwards(inputs)
    fewer = {n: t[:-1] if t.shape[0] == inputs.case.rows and n != "weight" else t for n, t in inputs.tensors.items()}
    return dx, *backwards(Inputs(inputs.case, fewer))[1:][: len(sums)]


def no_dresidual(inputs):
    case, kept = Case.parse("rmsnorm.bwd.8x8.bf16"), inputs.tensors.copy()
    kept.pop("dresidual_out")
    return backwards(Inputs(case, kept))


def no_gradient_of_the_scale(inputs):
    _, *sums = backwards(inputs)
    slope = inputs["dy"].float() * inputs["weight"].float()
    return (slope * inputs["rstd"][:, None]).to(inputs["x"].dtype), *sums


def sums_in_bf16(inputs):
    dx, dweight = backwards(inputs)
    terms = (inputs["dy"].float() * inputs["x"].float() * inputs["rstd"][:, None]).bfloat16()
    total = torch.zeros(inputs.case.cols, dtype=torch.bfloat16)
    for term in terms:
        total += term
    return dx, total.to(dweight.dtype)


def a_gradient_rounded_to_bf16(inputs):
    dx, dweight = backwards(inputs)
    return dx, dweight.bfloat16().float()


# In bf16 what is wrong by less than a rounding can not be seen: a variance of N - 1 shows in fp32 only
WRONG = [
    ("rmsnorm.fwd", "bf16", other_eps(0.0)),
    ("rmsnorm.fwd", "fp32", other_eps(0.0)),
    ("rmsnorm.fwd", "bf16", other_eps(1e-5)),
    ("rmsnorm.fwd", "fp16-fp32", other_eps(1e-8)),
    ("layernorm.fwd", "bf16-fp32", other_eps(1e-5)),
    ("rmsnorm.fwd", "fp32", a_mean_short_of_the_last_column),
    ("rmsnorm.fwd", "bf16", the_last_column_unwritten),
    ("layernorm.fwd", "fp32", the_variance_of_a_sample),
    ("layernorm.fwd", "bf16", no_mean),
    ("rmsnorm.fwd", "fp16", a_sum_in_fp16),
    ("rmsnorm.fwd", "bf16", rounded_before_the_weight),
    ("rmsnorm.fwd", "fp16", rounded_before_the_weight),
    ("rmsnorm.fwd", "bf16", truncated),
    ("layernorm.fwd", "bf16", no_bias),
    ("rmsnorm_bias.fwd", "fp16", no_bias),
    ("rmsnorm_residual.fwd", "bf16", the_norm_of_x_alone),
    ("rmsnorm_residual.fwd", "bf16", x_as_the_new_residual),
    ("rmsnorm.bwd", "bf16-fp32", one_row_short),
    ("rmsnorm.bwd", "bf16", one_row_short),
    ("layernorm.bwd", "bf16-fp32", one_row_short),
    ("rmsnorm_residual.bwd", "bf16", no_dresidual),
    ("rmsnorm.bwd", "bf16", no_gradient_of_the_scale),
    ("rmsnorm.bwd", "bf16-fp32", sums_in_bf16),
    ("rmsnorm.bwd", "bf16", sums_in_bf16),
    ("rmsnorm.bwd", "bf16-fp32", a_gradient_rounded_to_bf16),
]


def told(key, shape, dtypes, wrong):
    case = Case.parse(f"{key}.{shape}.{dtypes}")
    inputs = make(case, CPU, 1)
    spoilt = wrong(inputs)
    if isinstance(spoilt, torch.Tensor):
        return Oracle(inputs).judge(inputs, named(case, spoilt)).reason
    return Oracle(inputs).judge(inputs, named(case, tuple(spoilt))).reason


@pytest.mark.parametrize("shape", ORDINARY)
@pytest.mark.parametrize(("key", "dtypes", "wrong"), WRONG)
def test_wrong_is_wrong(key, dtypes, wrong, shape):
    assert " is wrong by " in (told(key, shape, dtypes, wrong) or "nothing")


@pytest.mark.parametrize("shape", ["1x4096", "2x4096", "16x4096", "60x4096", "61x4096"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_eps_is_missed_however_few_rows_there_are(shape, dtype):
    case = Case.parse(f"rmsnorm.fwd.{shape}.{dtype}")
    sets = [make(case, CPU, 1, number) for number in range(2)]
    oracle = Oracle(sets[0])

    for eps in (0.0, 1e-5):
        reasons = [oracle.judge(inputs, {"y": other_eps(eps)(inputs)}).reason for inputs in sets]
        assert any(reasons), eps


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda y: y * 1.02, "is wrong by 2.* % of the largest value in row .*; 0.* % is allowed, 1.5 times"),
        (lambda y: y.index_fill(0, torch.tensor([199]), 0), "is wrong by 100 % of the largest value in row 199;"),
        (lambda y: y.index_fill(1, torch.tensor([0]), torch.inf), "y has 200 values that are not finite"),
        (
            lambda y: y.index_put((torch.tensor(7), torch.tensor(3)), torch.tensor(math.nan).bfloat16()),
            "y has 1 value that",
        ),
    ],
)
def test_the_reasons_of_wrong_outputs(spoil, complaint):
    case = Case.parse("rmsnorm.fwd.200x96.bf16")
    inputs = make(case, CPU, 1)

    finding = Oracle(inputs).judge(inputs, {"y": spoil(definition(case, inputs)["y"])})

    assert finding.reason is not None
    assert re.search(complaint, finding.reason)


def test_the_first_inputs_determine_the_allowed_errors():
    case = Case.parse("rmsnorm.bwd.200x96.bf16-fp32")
    first, second = make(case, CPU, 1, 0), make(case, CPU, 1, 1)
    one, other = Oracle(first), Oracle(first)

    one.judge(first, definition(case, first))
    other.judge(second, definition(case, second))

    assert one.limits == other.limits
    assert one.limits["dweight"] == pytest.approx(2 * math.sqrt(200) * 2.0**-24, rel=0.5)


def test_a_gradient_may_be_kept_more_exactly_than_its_weight():
    case = Case.parse("rmsnorm.bwd.200x96.bf16")
    inputs = make(case, CPU, 1)
    dx, dweight = references.BY_KEY["rmsnorm.bwd"](*(inputs[n].float() for n in ("dy", "x", "weight", "rstd")), EPS)

    assert Oracle(inputs).judge(inputs, named(case, (dx.bfloat16(), dweight))).reason is None


# -- at the edges -----------------------------------------------------------------------------------------------------


def zero_for_nan(inputs, outputs):
    return {name: tensor.nan_to_num(0.0) for name, tensor in outputs.items()}


def nan_in_every_row(inputs, outputs):
    return {name: tensor + inputs["x"].sum().to(tensor.dtype) for name, tensor in outputs.items()}


def the_tile_beside_it(inputs, outputs):
    """A reduction over two rows at once: what is in one reaches its neighbour."""
    y = outputs["y"]
    bad = ~y.isfinite().all(1)
    return {"y": torch.where((bad | bad.roll(1))[:, None], torch.nan, y)}


def nothing_for_zeros(inputs, outputs):
    """rsqrt without eps: zero times infinity."""
    zeros = (inputs["x"] == 0).all(1, keepdim=True)
    return {"y": torch.where(zeros, torch.nan, outputs["y"])}


@pytest.mark.parametrize(
    ("key", "spoil", "complaint"),
    [
        ("rmsnorm.fwd", zero_for_nan, "y is finite in a row with inf or nan"),
        ("rmsnorm.bwd", zero_for_nan, "dx is finite in a row with inf or nan"),
        ("rmsnorm.fwd", nan_in_every_row, "y is not finite in a row without inf or nan"),
        ("layernorm.fwd", the_tile_beside_it, "y is not finite in a row without inf or nan"),
        ("rmsnorm.fwd", nothing_for_zeros, "y is not finite in a row without inf or nan"),
        (
            "layernorm.fwd",
            lambda i, o: {"y": one_pass(i)},
            "with rows of zeros, with a mean of 1000.*y is wrong by",
        ),
    ],
)
@pytest.mark.parametrize("dtypes", ["bf16", "fp32"])
def test_wrong_at_the_edges(key, spoil, complaint, dtypes):
    case = Case.parse(f"{key}.24x512.{dtypes}")
    inputs = edge_inputs(case, CPU, 1)

    finding = Oracle(make(case, CPU, 1)).judge_edges(inputs, spoil(inputs, definition(case, inputs)))

    assert re.search(complaint, finding.reason or "nothing")


def without(columns):
    """A kernel that leaves these columns out of its sums."""

    def spoil(inputs, outputs):
        x = inputs["x"].float()
        kept = x.clone()
        kept[:, columns] = 0.0
        if inputs.case.direction is Direction.FWD:
            rstd = torch.rsqrt(kept.square().mean(-1, keepdim=True) + inputs.eps)
            return {"y": (x * rstd * inputs["weight"].float()).to(outputs["y"].dtype)}
        normal, slope = x * inputs["rstd"][:, None], inputs["dy"].float() * inputs["weight"].float()
        product = normal * slope
        product[:, columns] = 0.0
        dx = (slope - normal * product.mean(-1, keepdim=True)) * inputs["rstd"][:, None]
        return outputs | {"dx": dx.to(outputs["dx"].dtype)}

    return spoil


@pytest.mark.parametrize("key", ["rmsnorm.fwd", "rmsnorm.bwd"])
@pytest.mark.parametrize("columns", [slice(-3, None), slice(-1, None), slice(1)], ids=["last three", "last", "first"])
def test_columns_that_are_left_out_of_wide_rows_are_wrong_at_the_edges_only(key, columns):
    case = Case.parse(f"{key}.24x16384.bf16")
    inputs, edges = make(case, CPU, 1), edge_inputs(case, CPU, 1)
    spoil = without(columns)
    oracle = Oracle(inputs)

    assert oracle.judge(inputs, spoil(inputs, definition(case, inputs))).reason is None
    reason = oracle.judge_edges(edges, spoil(edges, definition(case, edges))).reason
    assert reason is not None
    assert "with a large first or last element" in reason


def test_an_inf_in_dy_spoils_one_column_and_one_row():
    case = Case.parse("layernorm.bwd.24x512.fp32")
    inputs = edge_inputs(case, CPU, 1)
    outputs = definition(case, inputs)

    assert (~outputs["dx"].isfinite()).any(1).sum() == 2
    assert (~outputs["dbias"].isfinite()).nonzero().tolist() == [[256]]
    outputs["dbias"][3] *= 1.001
    assert "dbias is wrong by" in Oracle(make(case, CPU, 1)).judge_edges(inputs, outputs).reason


# -- not even the right thing -----------------------------------------------------------------------------------------


class Lazy(torch.Tensor): ...


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (None, "returned nothing instead of [(]dx, dweight[)]"),
        (torch.zeros(4, 8), "returned a Tensor instead"),
        ((torch.zeros(4, 8),), "returned a tuple of 1 instead"),
        ((torch.zeros(4, 8), None), "dweight is nothing instead of a tensor"),
        ((torch.zeros(8, 4), torch.zeros(8)), "dx has the shape [(]8, 4[)]"),
        ((torch.zeros(4, 8), torch.zeros(1, 8)), "dweight has the shape"),
        ((torch.zeros(4, 8).double(), torch.zeros(8)), "dx is fp64 instead of fp32"),
        ((torch.zeros(4, 8).as_subclass(Lazy), torch.zeros(8)), "dx is a Lazy, not a plain tensor"),
    ],
)
def test_what_is_not_even_the_right_thing(returned, complaint):
    with pytest.raises(WrongShape, match=complaint):
        named(Case.parse("rmsnorm.bwd.4x8.fp32"), returned)


def test_the_new_residual_has_the_shape_of_x():
    with pytest.raises(WrongShape, match=r"residual_out has the shape \(8,\) instead of \(4, 8\)"):
        named(Case.parse("rmsnorm_residual.fwd.4x8.fp32"), (torch.zeros(4, 8), torch.zeros(8)))
