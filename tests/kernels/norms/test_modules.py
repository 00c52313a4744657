"""The norms as ops and modules of torch: in place of torch.nn's, differentiated, compiled, and through the kernels."""

import copy
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels.norms import implementations
from kernels.norms.calls import again as calls
from kernels.norms.modules import LayerNorm, RMSNorm, layer_norm, rms_norm
from kernels.norms.operators import norm
from tests.pairwise import pairwise

ROOT = Path(kernels.__file__).parents[1]
OPS = torch.ops.kernelwatch
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture(autouse=True)
def compiled_anew():
    """Graphs of one test are not those of another."""
    torch._dynamo.reset()


def close(found, expected, dtype=None):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    bound = CLOSE[dtype or found.dtype]
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound * max(1.0, float(expected.detach().abs().max())))


def stepped(module, x, *residual, through=None):
    """What a training step yields: outputs, and the gradients of inputs and parameters."""
    inputs = [each.detach().clone().requires_grad_() for each in (x, *residual)]
    outputs = (module if through is None else through)(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    seen = sum((each.float() * torch.linspace(-1, 2, each.numel()).view(each.shape)).sum() for each in outputs)
    return [*outputs, *torch.autograd.grad(seen, [*inputs, *module.parameters()])]


@pytest.mark.parametrize(
    ("name", "arguments", "options", "shape"),
    [
        ("RMSNorm", (24,), {}, (3, 5, 24)),
        ("RMSNorm", (24, 1e-3), {}, (24,)),
        ("RMSNorm", ([4, 6],), {"eps": 1e-4}, (3, 4, 6)),
        ("RMSNorm", (24,), {"elementwise_affine": False}, (7, 24)),
        ("RMSNorm", (24,), {"dtype": torch.bfloat16, "device": "cpu"}, (7, 24)),
        ("LayerNorm", (24,), {}, (3, 5, 24)),
        ("LayerNorm", (24, 1e-3, True, False), {}, (2, 24)),
        ("LayerNorm", (torch.Size([2, 3, 4]),), {}, (5, 2, 3, 4)),
        ("LayerNorm", ((2, 12),), {"bias": False}, (5, 2, 12)),
        ("LayerNorm", (24,), {"elementwise_affine": False}, (7, 24)),
        ("LayerNorm", (24,), {"dtype": torch.float64}, (7, 24)),
    ],
)
def test_a_module_drops_in_for_torchs(name, arguments, options, shape):
    torch.manual_seed(1)
    theirs = getattr(nn, name)(*arguments, **options)
    ours = {"RMSNorm": RMSNorm, "LayerNorm": LayerNorm}[name](*arguments, **options)
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, type(theirs))
    for key, parameter in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], parameter)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict(), strict=True)

    x = torch.randn(shape, dtype=options.get("dtype"))
    for found, expected in zip(stepped(ours, x), stepped(theirs, x), strict=True):
        close(found, expected)


def test_what_is_normalised_has_torchs_name():
    x = torch.randn(3, 8)
    for ours, theirs, name in ((RMSNorm(8), nn.RMSNorm(8), "x"), (LayerNorm(8), nn.LayerNorm(8), "input")):
        close(ours(**{name: x}), theirs(**{name: x}))


@pytest.mark.parametrize("dtype", CLOSE)
def test_without_an_eps_the_smallest_step_is_torchs(dtype):
    x = torch.randn(4, 16, dtype=torch.float64).mul(1e-4).to(dtype)  # where eps is most of the denominator

    close(RMSNorm(16, dtype=dtype)(x), nn.RMSNorm(16, dtype=dtype)(x))


@pytest.mark.parametrize("module", [RMSNorm, LayerNorm])
def test_an_offset_is_added_to_the_weight(module):
    x = torch.randn(5, 16)
    offset, plain = module(16, offset=1.0, eps=1e-5), module(16, eps=1e-5)

    assert repr(offset) == repr(plain).removesuffix(")") + ", offset=1.0)"
    assert not offset.weight.any()
    assert torch.equal(offset(x), plain(x))


@pytest.mark.parametrize("shape", [(16,), (2, 8)])
@pytest.mark.parametrize("ours", [RMSNorm(16, eps=1e-5), LayerNorm(16)])
def test_the_norm_of_a_residual_is_that_of_the_sum_handed_on(ours, shape):
    ours = type(ours)(shape, eps=1e-5)
    x, residual = torch.randn(3, *shape).bfloat16(), torch.randn(3, *shape).bfloat16()

    y, residual_out = ours(x, residual)

    assert torch.equal(residual_out, x + residual)
    assert torch.equal(y, ours(residual_out))


@pytest.mark.parametrize("given", range(8))
@pytest.mark.parametrize("center", [False, True])
def test_gradients_are_those_of_differences(center, given):
    """In fp64, which the definition takes: what it says of gradients, with and without weight, bias and residual."""
    torch.manual_seed(given)
    rows, columns = (2, 3, 6), (6,)
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in (rows, columns, columns, rows)]
    tensors = [each if number == 0 or given >> (number - 1) & 1 else None for number, each in enumerate(tensors)]

    offset = 0.0 if tensors[1] is None else 0.5
    assert torch.autograd.gradcheck(lambda *tensors: norm(*tensors, 1e-5, center, offset), tensors)


def expected(x, weight, bias, residual, center, offset):
    """By torch's own functions, in fp64."""
    x = x if residual is None else x + residual
    function = nn.functional.layer_norm if center else nn.functional.rms_norm
    y = function(x, x.shape[-1:], eps=1e-5)
    y = y if weight is None else y * (weight + offset)
    y = y if bias is None else y + bias
    return (y,) if residual is None else (y, x)


def errors(dtype, weight_dtype, center, options, layout):
    """Of each output and gradient, the largest error against fp64, in units of the largest value or of one."""
    torch.manual_seed(2)
    rows, cols = (3, 5, 40), (40,)
    x, dy, dresidual_out, residual = (torch.randn(rows, dtype=dtype) for _ in range(4))
    weight, bias = torch.randn(cols, dtype=weight_dtype), torch.randn(cols, dtype=weight_dtype)
    if layout == "expanded":
        dy, dresidual_out = torch.ones((), dtype=dtype).expand(rows), dresidual_out[:, :1].expand(rows)
    elif layout == "turned":
        x, residual, dy = (each.mT.contiguous().mT for each in (x, residual, dy))
        dresidual_out = dresidual_out.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "apart":
        x, residual = (torch.cat([each] * 2, -1)[..., :40] for each in (x, residual))
        weight, bias = torch.stack([weight, bias], 1).unbind(1)  # every second value
    offset = 0.5 if options else 0.0
    tensors = [x, *((weight, bias, residual) if options else (None, None, None))]
    leaves = [each if each is None else each.detach().requires_grad_() for each in tensors]
    exact = [each if each is None else each.detach().double().requires_grad_() for each in tensors]
    gradients = (dy, dresidual_out)[: 1 + options]
    found, right = norm(*leaves, 1e-5, center, offset), expected(*exact, center, offset)
    found += torch.autograd.grad(found, [each for each in leaves if each is not None], gradients)
    right += torch.autograd.grad(
        right, [each for each in exact if each is not None], [each.double() for each in gradients]
    )
    assert all(each.is_contiguous() for each in found)
    return [
        float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max().clamp(1.0))
        for a, b in zip(found, right, strict=True)
    ]


WAYS = [
    (dtype, weight_dtype, center, options, layout)
    for dtype, weight_dtype in ((torch.float32, torch.float32), (torch.float16, torch.float32))
    for center in (False, True)
    for options in (False, True)
    for layout in ("dense", "expanded", "turned", "apart")
]


BY_DAY = pairwise(WAYS)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_is_right_by_the_definition(way):
    assert max(errors(*way)) < CLOSE[way[0]]


class Asked(TorchDispatchMode):
    """Record whether each forward pass requested statistics, and the number of gradients of each backward pass."""

    def __init__(self):
        super().__init__()
        self.statistics, self.gradients = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is OPS.norm_forward.default:
            self.statistics.append(args[-1])
        outputs = function(*args, **(kwargs or {}))
        if function is OPS.norm_backward.default:
            self.gradients.append(len(outputs))
        return outputs


def frozen_in_part(name):
    """The gradients of what is left are the same bits; that of the frozen parameter is not computed."""
    torch.manual_seed(3)
    layer, x, dy = LayerNorm(40), torch.randn(9, 40), torch.randn(9, 40)
    nn.init.normal_(layer.weight)
    layer(x).backward(dy)
    whole, layer.weight.grad, layer.bias.grad = {"weight": layer.weight.grad, "bias": layer.bias.grad}, None, None
    layer.get_parameter(name).requires_grad_(False)
    with Asked() as asked:
        layer(x).backward(dy)
    assert asked.gradients == [2]
    for each, parameter in layer.named_parameters():
        assert (parameter.grad is None) if each == name else torch.equal(parameter.grad, whole[each])


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_what_is_frozen_costs_nothing(name):
    frozen_in_part(name)


MIXED = [
    (center, shape, dtype, stream)
    for center in (False, True)
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
    for stream in (torch.bfloat16, torch.float16, torch.float32)
    for shape in ((3, 5, 40), (3, 16640))
    if dtype is not stream
]


MIXED_BY_DAY = pairwise(MIXED)


def mixed_errors(center, shape, dtype, stream):
    """Of a branch in `dtype` that joins a stream in another one, as `errors`, each bounded by its own dtype.

    As under autocast: torch's module gets the sum, and its y is rounded to the dtype of the branch.
    """
    torch.manual_seed(6)
    ours, theirs = (LayerNorm, nn.LayerNorm) if center else (RMSNorm, nn.RMSNorm)
    module, exact = ours(shape[-1], eps=1e-5), theirs(shape[-1], eps=1e-5, dtype=torch.float64)
    nn.init.normal_(module.weight)
    exact.load_state_dict(module.state_dict())
    branch, residual = (torch.randn(shape).to(each).requires_grad_() for each in (dtype, stream))
    exact_branch, exact_residual = (each.detach().double().requires_grad_() for each in (branch, residual))
    y, residual_out = module(branch, residual)
    right = exact_residual + exact_branch
    gradients = [torch.randn(shape).to(each.dtype) for each in (y, residual_out)]
    found = [
        y,
        residual_out,
        *torch.autograd.grad((y, residual_out), (branch, residual, *module.parameters()), gradients),
    ]
    expected = [exact(right), right]
    expected += torch.autograd.grad(
        expected, (exact_branch, exact_residual, *exact.parameters()), [each.double() for each in gradients]
    )
    dtypes = [dtype, (branch + residual).dtype, dtype, stream, *[torch.float32] * (1 + center)]
    assert [each.dtype for each in found] == dtypes
    return [
        float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max().clamp(1.0)) / CLOSE[each]
        for a, b, each in zip(found, expected, dtypes, strict=True)
    ]


AGAIN = [(6, 40), (2, 3, 40), (2, 0, 40), (3, 16640)]  # the last has a team, which exchanges nothing here


def as_before(center, shape):
    """[launches that were made as before, whether all bits are those of the ops] of three steps with new tensors."""
    torch.manual_seed(7)
    made, real = [], calls.Relaunch.again
    calls.Relaunch.again = lambda launch, *tensors: (made.append(launch), real(launch, *tensors))
    bits = []
    for residual in (False, True):
        module = (LayerNorm if center else RMSNorm)(shape[-1], eps=1e-5)
        for _ in range(3):
            given = torch.randn(1 + residual, *shape).unbind()
            found = stepped(module, *given)
            calls.FORWARD.clear()
            calls.BACKWARD.clear()
            with Asked():  # a mode sees the ops
                right = stepped(module, *given)
            bits.append(all(torch.equal(one, other) for one, other in zip(found, right, strict=True)))
    calls.Relaunch.again = real
    return [len(made), all(bits)]


def findings(all_trials):
    launches = []
    for name in ("forward", "backward"):
        module = importlib.import_module(f"kernels.norms.{name}")
        getattr(module, f"_{name}").pre_run_hooks.append(lambda *_, name=name, **__: launches.append(name))
    ways = {}
    for way in WAYS if all_trials else BY_DAY:
        launches.clear()
        ways[str(way)] = [max(errors(*way)), [*launches]]

    for frozen in ("weight", "bias"):
        frozen_in_part(frozen)
    again = {str((center, *shape)): as_before(center, shape) for center in (False, True) for shape in AGAIN}
    mixed = {str(way): max(mixed_errors(*way)) for way in (MIXED if all_trials else MIXED_BY_DAY)}

    empty = torch.empty(2, 0, 40, requires_grad=True)
    layer = LayerNorm(40)
    layer(empty).sum().backward()
    x, columns = torch.randn(3, 40), torch.rand(3, 2)
    dx = OPS.norm_backward
    strided, dense = (
        dx(x, x, None, rstd, None, None, None, 0.0) for rstd in (columns[:, 0], columns[:, 0].contiguous())
    )
    compiled = stepped(layer, x, through=torch.compile(layer, fullgraph=True, backend="aot_eager"))
    with pytest.raises(ValueError, match="x is torch") as refused:
        layer(x.double())
    return {
        "ways": ways,
        "again": again,
        "mixed": mixed,
        "no rows": [list(empty.grad.shape), bool(layer.weight.grad.any())],
        "strided statistics": torch.equal(strided[0], dense[0]),
        "compiled": [torch.equal(found, right) for found, right in zip(compiled, stepped(layer, x), strict=True)],
        "fp64": str(refused.value),
    }


@pytest.mark.parametrize(
    "way", [way if way in BY_DAY else pytest.param(way, marks=pytest.mark.long) for way in WAYS], ids=str
)
def test_it_is_right_through_the_kernels(interpreted, way):
    error, launches = interpreted["ways"][str(way)]
    assert error < CLOSE[way[0]]
    assert launches == ["forward", "backward"]


@pytest.mark.parametrize(
    "way", [way if way in MIXED_BY_DAY else pytest.param(way, marks=pytest.mark.long) for way in MIXED], ids=str
)
def test_the_kernels_join_a_branch_and_a_stream_of_another_dtype(interpreted, way):
    assert interpreted["mixed"][str(way)] < 1


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("shape", AGAIN, ids=str)
def test_a_call_as_before_is_launched_as_before_and_has_the_same_bits(interpreted, center, shape):
    launches, same_bits = interpreted["again"][str((center, *shape))]
    assert same_bits
    # Without a residual and with one, two steps of three: forward, backward and the sums of its gradients.
    assert launches == {(6, 40): 12, (2, 3, 40): 12, (2, 0, 40): 0}.get(shape, launches)


def test_the_kernels_take_what_modules_give_them(interpreted):
    assert interpreted["no rows"] == [[2, 0, 40], False]
    assert interpreted["strided statistics"]
    assert interpreted["compiled"] == [True] * 4  # an output, and gradients of x, weight and bias
    assert interpreted["fp64"].startswith("x is torch.float64; the kernels take bfloat16, float16, float32: convert x")


def some(dtype=torch.float32, *, grad=False):
    shapes = ((2, 3, 8), (8,), (8,), (2, 3, 8))
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes]


@pytest.mark.filterwarnings("ignore")  # torch compiles
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ops_keep_what_torch_asks_of_them(dtype, center):
    x, weight, bias, residual = some(dtype)
    turned = x.mT.contiguous().mT
    for grad in (False, True):
        tensors = some(torch.float32, grad=grad)
        torch.library.opcheck(OPS.norm.default, (*tensors, 1e-5, center, 0.5))
        torch.library.opcheck(OPS.norm.default, (tensors[0], None, None, None, 1e-5, center, 0.0))
    for statistics in (False, True):
        for tensors in ((x, weight, bias, residual), (turned, None, bias, None), (x[:0], weight, None, None)):
            torch.library.opcheck(OPS.norm_forward.default, (*tensors, 1e-5, center, 0.0, statistics))
    rstd, mean = torch.rand(6), torch.rand(6) if center else None
    flat = torch.ones((), dtype=dtype).expand(x.shape)
    for given in (
        (x, x, weight.float(), rstd, mean, residual, torch.float32, 0.5, True),
        (x, x, weight, rstd, mean, None, torch.float32, 0.5, False),
        (flat, turned, None, rstd, mean, turned, torch.bfloat16, 0.0, False),
        (flat, x, None, rstd, mean, None, None, 0.0),
    ):
        torch.library.opcheck(OPS.norm_backward.default, given)


@pytest.mark.filterwarnings("ignore")  # torch compiles
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "module",
    [RMSNorm(16), RMSNorm((2, 8), elementwise_affine=False), LayerNorm(16, offset=0.5), LayerNorm((2, 8), bias=False)],
    ids=repr,
)
def test_compiled_it_is_one_graph_with_the_same_results(module, dynamic):
    module, graphs = copy.deepcopy(module), counters["stats"]["unique_graphs"]
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic)
    for rows in (3, 5, 8)[: 3 if dynamic else 1]:
        for residual in (False, True):
            given = torch.randn(1 + residual, 4, rows, *module.normalized_shape).unbind()
            for found, right in zip(stepped(module, *given, through=compiled), stepped(module, *given), strict=True):
                close(found, right)
    assert counters["stats"]["unique_graphs"] - graphs == 2  # with a residual and without


@pytest.mark.filterwarnings("ignore")  # torch compiles
def test_compiled_in_place_of_torchs():
    theirs = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.RMSNorm(16), nn.Linear(16, 4))
    ours = copy.deepcopy(theirs)
    ours[1], ours[3] = LayerNorm(16), RMSNorm(16)
    x = torch.randn(6, 8)

    compiled = torch.compile(ours, fullgraph=True)

    for found, right in zip(stepped(ours, x, through=compiled), stepped(theirs, x), strict=True):
        close(found, right)


def test_statistics_are_asked_for_where_there_will_be_gradients():
    layer, x = LayerNorm(8), torch.randn(3, 8)
    with Asked() as asked:
        layer(x)
        with torch.no_grad():
            layer(x)
        with torch.inference_mode():
            layer(x)
        layer.requires_grad_(False)(x)
        layer(x.requires_grad_())
    assert asked.statistics == [True, False, False, False, True]


@pytest.mark.filterwarnings("ignore")  # torch compiles
def test_compiled_statistics_are_asked_for_where_there_will_be_gradients():
    found = []

    def kept(graph, _):
        found.extend(node for node in graph.graph.nodes if node.target is OPS.norm_forward.default)
        return graph

    layer, x = LayerNorm(8), torch.randn(3, 8)
    compiled = torch.compile(layer, fullgraph=True, backend=aot_autograd(fw_compiler=kept))
    compiled(x).sum().backward()
    with torch.no_grad():
        compiled(x)
    layer.requires_grad_(False)
    compiled(x)
    assert [node.args[-1] for node in found] == [True, False, False]


@pytest.mark.parametrize("used", [0, 1])
def test_an_output_that_nobody_used_has_no_gradient(used):
    x, weight, _, residual = some(grad=True)
    output = layer_norm(x, weight, None, residual, eps=1e-5)[used]
    found = torch.autograd.grad(output.square().sum(), (x, weight, residual))

    exact = [each.detach().double().requires_grad_() for each in (x, weight, residual)]
    output = expected(exact[0], exact[1], None, exact[2], True, 0.0)[used]
    right = torch.autograd.grad(output.square().sum(), exact, materialize_grads=True)
    for each, expected_one in zip(found, right, strict=True):
        close(each, expected_one.float())


def test_what_was_normalised_must_not_change_before_the_backward_pass():
    x, weight, _, residual = some(grad=True)
    y, residual_out = rms_norm(x, weight, None, residual, eps=1e-5)
    residual_out.mul_(2)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_cannot_be_differentiated_again():
    x, weight, *_ = some(grad=True)
    (dx,) = torch.autograd.grad(rms_norm(x, weight, eps=1e-5).sum(), x, create_graph=True)

    with pytest.raises(NotImplementedError, match=r"differentiated once; for second derivatives use torch\.nn"):
        dx.square().sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself calls it
@pytest.mark.parametrize(
    "transform",
    [
        lambda function, x: torch.func.jvp(function, (x,), (x,)),
        lambda function, x: torch.func.jacfwd(function)(x),
        lambda function, x: torch.func.grad(lambda x: function(x).sum())(x),
        lambda function, x: torch.func.vmap(function)(x),
    ],
    ids=["jvp", "jacfwd", "grad", "vmap"],
)
def test_transforms_of_functions_are_refused(transform):
    with pytest.raises(RuntimeError, match=r"functorch transforms|Batching rule not implemented"):
        transform(lambda x: rms_norm(x, torch.ones(8), eps=1e-5), torch.randn(2, 3, 8))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself calls it
def test_forward_mode_derivatives_are_refused():
    x = torch.randn(3, 8)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        rms_norm(torch.autograd.forward_ad.make_dual(x, x), torch.ones(8), eps=1e-5)


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
@pytest.mark.parametrize("module", [RMSNorm(8), LayerNorm(8)])
def test_of_no_rows(module, shape):
    y, dx, *dweights = stepped(module, torch.empty(shape))

    assert y.shape == dx.shape == shape
    assert not any(each.any() for each in dweights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_casts_nothing(dtype):
    x = torch.randn(3, 8, dtype=dtype)
    for module in (RMSNorm(8), LayerNorm(8)):
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        assert y.dtype is dtype
        assert torch.equal(y, module(x))


@pytest.mark.parametrize(("ours", "theirs"), [(RMSNorm, nn.RMSNorm), (LayerNorm, nn.LayerNorm)])
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_of_no_columns(ours, theirs, shape):
    x = torch.empty(2, *shape)
    for found, right in zip(stepped(ours(shape), x), stepped(theirs(shape), x), strict=True):
        assert (found.shape, found.dtype) == (right.shape, right.dtype)
    y, residual_out = ours(shape)(x, x)
    assert (y.shape, residual_out.shape) == (x.shape, x.shape)


@pytest.mark.parametrize("way", MIXED, ids=str)
def test_a_branch_may_join_a_stream_of_another_dtype(way):
    assert max(mixed_errors(*way)) < 1


@pytest.mark.parametrize(("ours", "theirs"), [(RMSNorm, nn.RMSNorm), (LayerNorm, nn.LayerNorm)])
@pytest.mark.parametrize("shape", [(8,), (2, 4)])
@pytest.mark.parametrize("compiled", [False, True])
def test_of_a_jagged_tensor(ours, theirs, shape, compiled):
    torch.manual_seed(5)
    ours, theirs = ours(shape, eps=1e-5), theirs(shape, eps=1e-5)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    rows, results = [torch.randn(rows, *shape) for rows in (3, 0, 5)], []
    for module in (ours, theirs):
        x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        call = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled and module is ours else module
        y = call(x)
        seen = (y * x).values().sin().sum()  # it multiplies what it came from: they share offsets
        results.append(
            [
                y.values(),
                *(
                    each.values() if each.is_nested else each
                    for each in torch.autograd.grad(seen, [x, *module.parameters()])
                ),
            ]
        )
    for found, right in zip(*results, strict=True):
        close(found, right)
    y, residual_out = ours(x, x)
    assert y.shape == residual_out.shape == x.shape
    assert torch.equal(y.values(), ours(x.values(), x.values())[0])


def test_on_the_meta_device():
    y, residual_out = LayerNorm((2, 4), device="meta")(*torch.empty(2, 5, 2, 4, device="meta").unbind())

    assert (y.shape, residual_out.shape, y.device.type) == ((5, 2, 4), (5, 2, 4), "meta")


ROWS, COLS = torch.ones(3, 8), torch.ones(8)


def jagged(columns=8, scale=1.0):
    rows = [scale * torch.randn(rows, columns) for rows in (3, 0, 5)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def backward(dy=ROWS, rstd=ROWS[:, 0], mean=None, dresidual_out=None, bias_dtype=None):
    return OPS.norm_backward(dy, ROWS, COLS, rstd, mean, dresidual_out, bias_dtype, 0.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RMSNorm(8)(torch.ones(3, 7)), r"the input must be \[\.\.\., 8\], not \(3, 7\)"),
        (lambda: LayerNorm((2, 8))(ROWS), r"the input must be \[\.\.\., 2, 8\], not \(3, 8\)"),
        (
            lambda: RMSNorm((2, 3))(torch.ones(4, 2, 3), torch.ones(4, 3, 2)),
            r"the residual must be like the input, \(4, 2, 3\), not \(4, 3, 2\)",
        ),
        (lambda: rms_norm(ROWS, COLS[:1], eps=1e-5), r"weight must have .* x's 8 columns, not \(1,\)"),
        (lambda: rms_norm(ROWS, None, ROWS, eps=1e-5), r"bias must have .* x's 8 columns, not \(3, 8\)"),
        (
            lambda: rms_norm(ROWS, residual=ROWS[:1], eps=1e-5),
            r"residual must be like x, \(3, 8\), not \(1, 8\)",
        ),
        (lambda: rms_norm(ROWS, residual=ROWS.int(), eps=1e-5), "residual is torch.int32; the definition takes"),
        (lambda: rms_norm(ROWS.int(), eps=1e-5), "x is torch.int32; the definition takes .*, float64: convert x"),
        (lambda: rms_norm(ROWS, COLS.int(), eps=1e-5), "weight is torch.int32; the definition takes"),
        (lambda: rms_norm(ROWS, None, COLS.to(torch.float8_e5m2), eps=1e-5), "bias is torch.float8_e5m2"),
        (lambda: rms_norm(ROWS[0, 0], eps=1e-5), r"must be \[\.\.\., columns\]"),
        (lambda: rms_norm(ROWS, None, COLS, eps=1e-5, offset=1.0), "without a weight it must be 0"),
        (lambda: layer_norm(ROWS, eps=1e-5, offset=1.0), "without a weight it must be 0"),
        (lambda: RMSNorm(8, elementwise_affine=False, offset=1.0), "with elementwise_affine=False it must be 0"),
        (lambda: LayerNorm(8, elementwise_affine=False, offset=1.0), "with elementwise_affine=False it must be 0"),
        (lambda: backward(dy=ROWS[:2]), r"dy must be like x, .* not \(2, 8\)"),
        (lambda: backward(dy=ROWS.double()), "dy must be like x, torch.float32, or narrower, not torch.float64"),
        (lambda: backward(dresidual_out=ROWS.half()), "dresidual_out must be like x"),
        (lambda: rms_norm(torch.nested.nested_tensor([ROWS]), COLS, eps=1e-5), "make it with layout=torch.jagged"),
        (lambda: rms_norm(jagged(), COLS, residual=jagged(), eps=1e-5), "residual must .* have its offsets"),
        (lambda: rms_norm(jagged(), COLS, residual=ROWS, eps=1e-5), "residual must .* have its offsets"),
        (lambda: rms_norm(jagged().transpose(1, 2), eps=1e-5), "the columns of x are ragged"),
        (lambda: backward(rstd=ROWS), r"rstd must be torch.float32, one value for each of 3 rows, not \(3, 8\)"),
        (lambda: backward(mean=ROWS[:, 0].half()), "mean must be .* not .* in torch.float16"),
        (lambda: backward(bias_dtype=torch.int8), "bias is torch.int8; the definition takes"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


META = {name: torch.empty(shape, device="meta") for name, shape in (("rows", (3, 8)), ("row", 3), ("columns", 8))}


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["x", "weight", "bias", "residual"])
def test_an_argument_on_another_device_is_refused(name, grad, center):
    given = {"x": ROWS, "weight": COLS, "bias": COLS, "residual": ROWS}
    given[name] = META["rows" if name in ("x", "residual") else "columns"]
    given = {key: tensor.clone().requires_grad_(grad) for key, tensor in given.items()}
    other, there = ("weight", "cpu") if name == "x" else (name, "meta")

    with pytest.raises(ValueError, match=f"{'residual' if name == 'x' else other} is on {there} and x on"):
        norm(*given.values(), 1e-5, center, 0.0)


@pytest.mark.parametrize("name", ["dy", "x", "weight", "rstd", "mean", "dresidual_out"])
def test_an_argument_of_the_backward_pass_on_another_device_is_refused(name):
    row, columns = torch.ones(3), {"weight": "columns", "rstd": "row", "mean": "row"}
    given = {"dy": ROWS, "x": ROWS, "weight": COLS, "rstd": row, "mean": row, "dresidual_out": ROWS}
    given[name] = META[columns.get(name, "rows")]

    with pytest.raises(ValueError, match="dy is on cpu and x on meta" if name == "x" else f"{name} is on meta and x"):
        OPS.norm_backward(*given.values(), torch.float32, 0.0)


def test_a_module_on_another_device_is_refused_as_by_torch():
    for theirs, ours in ((nn.RMSNorm, RMSNorm), (nn.LayerNorm, LayerNorm)):
        for grad in (False, True):
            x = torch.randn(3, 16, requires_grad=grad)
            with pytest.raises(RuntimeError):
                theirs(16, device="meta")(x)
            with pytest.raises(ValueError, match="weight is on meta and x on cpu"):
                ours(16, device="meta")(x)


def test_a_compiler_is_told_what_the_gpus_kernels_do_not_take():
    with FakeTensorMode():
        rows, columns = torch.empty(3, 8, device="cuda"), torch.empty(8, device="cuda", dtype=torch.float64)
        assert rms_norm(rows, columns.float(), eps=1e-5).device.type == "cuda"
        with pytest.raises(ValueError, match=r"weight is torch\.float64; the kernels take bfloat16, float16, float32"):
            rms_norm(rows, columns, eps=1e-5)


def test_an_old_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")

    with pytest.raises(ValueError, match=r"Tesla T4 has compute capability 7\.5, and the kernels need 8\.0: use torch"):
        implementations._kernels(torch.device("cuda", 7))


ON_AMD = """
import torch
torch.version.hip = "7.0"
from kernels.norms import operators
for name in ("kernelwatch::norm_forward", "kernelwatch::norm_backward"):
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has(name, "CompositeExplicitAutograd") and not has(name, "CUDA")
"""


def test_amds_gpus_take_the_definition():
    done = subprocess.run([sys.executable, "-c", ON_AMD], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_whole_norm_is_differentiable():
    x, weight, bias, residual = some(grad=True)
    y, *_ = OPS.norm_forward(x, weight, bias, residual, 1e-5, True, 0.0, True)

    with pytest.warns(UserWarning, match="norm_forward: an autograd kernel was not registered"):
        y.sum().backward()
    assert x.grad is None


LOADED_TWICE = """
import importlib, importlib.util, sys
import kernels.norms.plans
assert "torch" not in sys.modules
import torch
from kernels.norms import modules
assert "triton" not in sys.modules

sys.modules["elsewhere"] = importlib.util.module_from_spec(
    importlib.util.spec_from_file_location("elsewhere", kernels.__file__, submodule_search_locations=kernels.__path__)
)
other = importlib.import_module("elsewhere.norms.modules")
x = torch.randn(3, 8)
assert torch.equal(other.LayerNorm(8)(x), modules.LayerNorm(8)(x))
assert hasattr(torch.ops.elsewhere, "norm_forward")
"""


def test_the_package_may_be_loaded_twice_and_needs_neither_torch_for_plans_nor_triton_on_a_cpu():
    done = subprocess.run([sys.executable, "-c", LOADED_TWICE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
