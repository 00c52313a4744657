"""The norms' modules on a real GPU: compiled to one graph, captured in CUDA graphs, with mode="reduce-overhead"."""

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from triton import knobs

from kernels.norms import tuned_plans, workspaces
from kernels.norms.calls import again as calls
from kernels.norms.calls import native
from kernels.norms.forward import forward
from kernels.norms.modules import LayerNorm, RMSNorm, rms_norm
from tests import needs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # compilers in this process, with the warnings of their imports
]
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}
# One program a row, several, and a team; not a power of two; few rows, and enough for every program to loop.
SHAPES = [(2, 33, 256), (64, 128, 1024), (4096, 1152), (5, 7, 4096), (2048, 8192), (300, 65536)]


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()


@pytest.fixture
def no_workspaces(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(workspaces, "_of_streams", {})
    monkeypatch.setattr(workspaces, "_stores", {})


@pytest.fixture(params=["python", "native"])
def way(request, monkeypatch):
    """Calls as before are made in Python, and in C++."""
    native.build_calls()
    assert native.norm is not None
    if request.param == "python":
        monkeypatch.setattr(native, "norm", None)
    return request.param


def is_native(y):
    return type(y.grad_fn).__name__ == "CppFunction"


def close(found, right, bound=None):
    """As fractions of the largest value: an element may be small only because large ones took each other away."""
    assert (found.shape, found.dtype) == (right.shape, right.dtype)
    error = (found.double() - right.double()).abs().max() / right.double().abs().max().clamp(1e-3)
    assert float(error) < (bound or CLOSE[found.dtype])


def stepped(module, *given, through=None):
    """Outputs, and the gradients of inputs and parameters, for gradients that are given by the outputs' places."""
    inputs = [each.detach().clone().requires_grad_() for each in given]
    outputs = (module if through is None else through)(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    places = [torch.arange(each.numel(), device=each.device).view(each.shape) % 17 / 8 - 1 for each in outputs]
    return [
        *(each.detach().clone() for each in outputs),
        *torch.autograd.grad(
            outputs,
            [*inputs, *module.parameters()],
            [each.to(y.dtype) for each, y in zip(places, outputs, strict=True)],
        ),
    ]


def given(shape, dtype, count=1):
    torch.manual_seed(3)
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(count)]


def exact(module):
    """torch.nn's in fp64, with the same parameters."""
    kind = nn.LayerNorm if isinstance(module, LayerNorm) else nn.RMSNorm
    right = kind(module.normalized_shape, module.eps, module.elementwise_affine, device="cuda", dtype=torch.float64)
    right.load_state_dict(module.state_dict())
    return right


def module_of(kind, columns, dtype=torch.float32):
    module = kind(columns, eps=1e-5, device="cuda", dtype=dtype)
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=1.0)
    return module


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_a_step_is_right(kind, shape, dtype):
    module, (x,) = module_of(kind, shape[-1]), given(shape, dtype)
    right = stepped(exact(module), x.double())

    for found, expected in zip(stepped(module, x), right, strict=True):
        close(found, expected.to(found.dtype))


@pytest.mark.parametrize("columns", [1024, 65536])
def test_weight_and_bias_may_lie_apart(columns):
    module = module_of(LayerNorm, columns)
    (x,) = given((64, columns), torch.bfloat16)
    right = stepped(module, x)
    module.weight, module.bias = (
        nn.Parameter(each.detach()) for each in torch.stack([module.weight, module.bias], 1).unbind(1)
    )
    assert not module.weight.is_contiguous()

    for found, expected in zip(stepped(module, x), right, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("columns", [1024, 65536])
def test_what_is_frozen_changes_no_other_gradient(columns, frozen):
    module = module_of(LayerNorm, columns)
    (x,) = given((300, columns), torch.bfloat16)
    right = stepped(module, x)[:2]
    module.get_parameter(frozen).requires_grad_(False)
    x.requires_grad_()

    y = module(x)
    y.backward((torch.arange(y.numel(), device="cuda").view(y.shape) % 17 / 8 - 1).to(y.dtype))

    assert torch.equal(y, right[0])
    assert torch.equal(x.grad, right[1])
    assert [each.grad is None for each in (module.weight, module.bias)] == [frozen == "weight", frozen == "bias"]


@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_of_no_rows(kind):
    y, dx, *dweights = stepped(module_of(kind, 1024), torch.empty(2, 0, 1024, device="cuda"))

    assert y.shape == dx.shape == (2, 0, 1024)
    assert not any(each.any() for each in dweights)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(64, 128, 1024), (300, 65536)], ids=str)
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_compiled_it_is_one_graph_with_the_same_bits(kind, shape, dynamic):
    module = module_of(kind, shape[-1])
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic)
    for count in (1, 2):  # without a residual and with one
        for first in (shape[0], shape[0] - 7)[: 1 + dynamic]:
            inputs = given((first, *shape[1:]), torch.bfloat16, count)
            for found, right in zip(stepped(module, *inputs, through=compiled), stepped(module, *inputs), strict=True):
                assert torch.equal(found, right)


def block(columns):
    """What a norm meets in a model: matrix products before and after, a residual, activations to be fused."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = RMSNorm(columns, eps=1e-6), LayerNorm(columns)
            self.into, self.out = nn.Linear(columns, columns), nn.Linear(columns, columns)

        def forward(self, x):
            y = self.out(nn.functional.silu(self.into(self.first(x))))
            y, x = self.second(y, x)
            return x + y

    torch.manual_seed(4)
    return Block().to("cuda", torch.bfloat16)


@pytest.mark.parametrize("columns", [1024, 32768])  # and a team
def test_with_reduced_overhead_from_the_first_call_on(columns, no_workspaces):
    """The warm-up and the recording both take their memory from the graph's pool: no workspace may come from there."""
    torch.manual_seed(4)
    narrow = nn.Linear(columns, 64, device="cuda", dtype=torch.bfloat16)
    module = nn.Sequential(module_of(RMSNorm, columns, torch.bfloat16), module_of(LayerNorm, columns), narrow)
    compiled = torch.compile(module, fullgraph=True, mode="reduce-overhead")
    skips = counters["inductor"]["cudagraph_skips"]
    for seed in range(6):  # a warm-up, a recording, and replays with new numbers
        torch.manual_seed(seed)
        x = torch.randn(512, columns, device="cuda", dtype=torch.bfloat16)
        torch.compiler.cudagraph_mark_step_begin()
        found = stepped(module, x, through=compiled)
        for each, right in zip(found, stepped(module, x), strict=True):
            close(each, right, 2**-5)  # Inductor may round between the layers where eager does not
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            close(compiled(x), module(x), 2**-5)
    assert counters["inductor"]["cudagraph_skips"] == skips


@pytest.mark.parametrize("columns", [1024, 4096])
def test_a_captured_training_step_replays_to_the_same_bits(columns):
    module = block(columns)
    x, target = given((4, 512, columns), torch.bfloat16, 2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, capturable=True)
    at_start = copy.deepcopy(module.state_dict())

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(module(x).float(), target.float())
        loss.backward()
        optimizer.step()
        return loss

    def from_the_start():
        with torch.no_grad():
            for name, parameter in module.state_dict().items():
                parameter.copy_(at_start[name])
            for state in optimizer.state.values():
                for each in state.values():
                    each.zero_()

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    from_the_start()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()

    runs = []
    for _ in range(3):
        from_the_start()
        losses = []
        for _ in range(5):
            graph.replay()
            losses.append(float(loss))
        runs.append((losses, {name: each.clone() for name, each in module.state_dict().items()}))
    losses, parameters = runs[0]
    assert losses[-1] < losses[0]
    for others, other_parameters in runs[1:]:
        assert others == losses
        assert all(torch.equal(each, other_parameters[name]) for name, each in parameters.items())

    from_the_start()
    eager = [float(step()) for _ in range(5)]
    assert eager == pytest.approx(losses, rel=1e-2)


def test_two_graphs_replayed_at_once_do_not_meet():
    """Teams exchange sums through a workspace: each capture has its own.

    Of two rows, so that the programs of both graphs have places at once; a replay is many launches, so that it lasts
    longer than the host takes to start the other one.
    """
    module = module_of(LayerNorm, 65536)
    inputs = given((2, 65536), torch.bfloat16, 2)
    right = [stepped(module, x) for x in inputs]
    graphs, found = [torch.cuda.CUDAGraph() for _ in inputs], []
    for graph, x in zip(graphs, inputs, strict=True):
        with torch.cuda.graph(graph):
            found.append([stepped(module, x) for _ in range(50)])
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(200):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()

    for steps, expected in zip(found, right, strict=True):
        for step in steps:
            assert all(torch.equal(one, other) for one, other in zip(step, expected, strict=True))


class Seen(TorchDispatchMode):
    """The ops are dispatched."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", [(8, 4096), (3, 5, 1000), (4, 65536), (40, 65536), (2, 25688)], ids=str)
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_a_call_as_before_has_the_bits_of_the_ops(kind, shape, dtype):
    module = module_of(kind, shape[-1])
    for count, _ in product((1, 2), range(3)):
        inputs = [torch.randn(shape, device="cuda").to(dtype) for _ in range(count)]
        found = stepped(module, *inputs)
        calls.FORWARD.clear()
        calls.BACKWARD.clear()
        with Seen():
            right = stepped(module, *inputs)
        assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))


@pytest.mark.usefixtures("way")
def test_a_weight_elsewhere_is_another_call():
    """After calls with an aligned one: the compiler knew that it was."""
    (x,) = given((8, 4096), torch.bfloat16)
    weight = torch.randn(4097, device="cuda").bfloat16()
    for begin in (0, 0, 1, 1, 0):
        there = weight[begin:][:4096]
        close(rms_norm(x, there, eps=1e-5), rms_norm(x, there.clone(), eps=1e-5))


@pytest.mark.usefixtures("way")
def test_who_looks_at_launches_sees_each():
    module, (x,) = module_of(RMSNorm, 1024), given((8, 1024), torch.bfloat16)
    seen, chain = [], knobs.runtime.launch_enter_hook
    for _ in range(2):
        module(x)
    chain.add(seen.append)
    try:
        module(x)
    finally:
        chain.remove(seen.append)
    assert len(seen) == 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.no_grad():
        module(x)
    assert "kernelwatch::norm_forward" in {event.key for event in profile.key_averages()}


def test_on_another_stream_it_is_launched_there():
    module, (x,) = module_of(RMSNorm, 4096), given((8, 4096), torch.bfloat16)
    with torch.no_grad():
        right = [module(x) for _ in range(2)][-1]
        graph, beside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            y = module(x)
        beside.synchronize()
        with torch.cuda.graph(graph):
            captured = module(x)
        captured.zero_()
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, right)
    assert torch.equal(captured, right)


# -- calls in C++ -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["x", "weight", "bias", "residual", "x weight", "bias residual", "x bias"])
@pytest.mark.parametrize("shape", [(8, 4096), (2, 3, 1000), (4, 65536)], ids=str)
def test_gradients_are_of_what_wants_them(shape, wanted, way):
    module, tensors = module_of(LayerNorm, shape[-1]), given(shape, torch.bfloat16, 2)
    named = {"x": tensors[0], "residual": tensors[1].float(), "weight": module.weight, "bias": module.bias}
    for name, tensor in named.items():
        tensor.requires_grad_(name in wanted.split())
    taken = []
    for _ in range(3):
        y, total = module(named["x"], named["residual"])
        inputs = [named[name] for name in wanted.split()]
        taken.append(torch.autograd.grad([y, total], inputs, [torch.ones_like(y), torch.ones_like(total)]))
    assert is_native(y) is (way == "native")
    for first, last in zip(taken[0], taken[-1], strict=True):
        assert torch.equal(first, last)


@pytest.mark.parametrize("output", [0, 1])
def test_an_output_may_have_no_gradient(output, way):
    module, (x, residual) = module_of(RMSNorm, 4096), given((8, 4096), torch.bfloat16, 2)
    x.requires_grad_()
    taken = []
    for _ in range(3):
        outputs = module(x, residual)
        taken.append(torch.autograd.grad(outputs[output], x, torch.ones_like(outputs[output]))[0])
    assert is_native(outputs[0]) is (way == "native")
    assert torch.equal(taken[0], taken[-1])


@pytest.mark.usefixtures("way")
def test_it_is_differentiable_once():
    module, (x,) = module_of(RMSNorm, 4096), given((8, 4096), torch.float32)
    x.requires_grad_()
    for _ in range(3):
        (dx,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="differentiated once"):
            dx.sum().backward()


@pytest.mark.usefixtures("way")
def test_a_changed_input_has_no_gradient():
    module, (x,) = module_of(RMSNorm, 4096), given((8, 4096), torch.float32)
    for _ in range(3):
        changed = x.clone().requires_grad_() * 1
        y = module(changed)
        changed.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_saved_tensors_pass_through_hooks(way):
    module, (x,) = module_of(RMSNorm, 4096), given((8, 4096), torch.bfloat16)
    right, packed = stepped(module, x), []
    for _ in range(2):
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: packed.append(tensor) or tensor.cpu(), torch.Tensor.cuda
        ):
            found = stepped(module, x)
        assert len(packed) == 3  # x, the weight and rstd
    again = stepped(module, x, through=lambda x: checkpoint(module, x, use_reentrant=False))
    for step in (found, again):
        assert all(torch.equal(one, other) for one, other in zip(step, right, strict=True))
    assert is_native(module(x)) is (way == "native")


@pytest.mark.usefixtures("way")
def test_its_gradients_are_compiled_by_compiled_autograd():
    module, (x,) = module_of(RMSNorm, 4096), given((8, 4096), torch.bfloat16)
    right = stepped(module, x)
    for _ in range(2):
        inputs = x.clone().requires_grad_()
        y = module(inputs)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            y.backward(torch.arange(y.numel(), device="cuda").view(y.shape) % 17 / 8 - 1)
        assert torch.equal(inputs.grad, right[1])


@pytest.mark.usefixtures("way")
def test_threads_make_calls_at_the_same_time():
    module, (x,) = module_of(LayerNorm, 65536), given((8, 65536), torch.bfloat16)
    right = stepped(module, x)

    def steps(_):
        with torch.cuda.stream(torch.cuda.Stream()):
            taken = [stepped(module, x) for _ in range(30)]
            torch.cuda.current_stream().synchronize()
        return all(torch.equal(one, other) for step in taken for one, other in zip(step, right, strict=True))

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(steps, range(4)))


def test_a_new_thread_takes_no_call_from_others(way):
    """Its first launch finds no context of the driver."""
    module, (x,) = module_of(RMSNorm, 4096), given((8, 4096), torch.bfloat16)
    x.requires_grad_()
    right = [module(x) for _ in range(2)][-1]
    with ThreadPoolExecutor(1) as pool:
        found = [pool.submit(module, x).result() for _ in range(2)]
    assert [is_native(y) for y in (found[1], module(x))] == [way == "native"] * 2
    assert all(torch.equal(y, right) for y in found)


@pytest.mark.usefixtures("way")
def test_a_call_without_memory_says_so():
    module, x = module_of(RMSNorm, 4096), torch.ones(1 << 17, 4096, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(2):
            module(x)
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(x.device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 28)) / total)
        try:
            with pytest.raises(torch.OutOfMemoryError):
                module(x)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert torch.isfinite(module(x)).all()


def test_other_plans_are_launched_anew(way):
    module, (x,) = module_of(RMSNorm, 4096), given((8, 4096), torch.bfloat16)
    x.requires_grad_()
    taken = [is_native(module(x)) for _ in range(3)]
    tuned_plans.use(None)
    anew = [is_native(module(x)) for _ in range(2)]
    assert (taken[-1], anew) == ((True, [False, True]) if way == "native" else (False, [False, False]))


@needs.skip_unless(torch.cuda.device_count() > 1, "two-gpus")
def test_on_a_device_that_is_not_the_current_one():
    module = module_of(LayerNorm, 1024)
    (x,) = given((128, 1024), torch.bfloat16)
    right = stepped(module, x)

    elsewhere, there = module.to("cuda:1"), x.to("cuda:1")
    for _ in range(3):
        for found, expected in zip(stepped(elsewhere, there), right, strict=True):
            assert torch.equal(found.to(0), expected)


@needs.skip_unless(torch.cuda.device_count() > 1, "two-gpus")
def test_the_kernels_are_launched_on_the_current_device_alone():
    x = torch.ones(4, 1024, device="cuda:1")
    with pytest.raises(ValueError, match=r"x is on cuda:1 and the current device is cuda:0"):
        forward(x, eps=1e-6, center=False)
    with torch.cuda.device_of(x):
        assert forward(x, eps=1e-6, center=False).y.device == x.device


def test_autocast_casts_nothing():
    module = module_of(LayerNorm, 1024)
    for dtype in CLOSE:
        (x,) = given((64, 1024), dtype)
        right = stepped(module, x)
        with torch.autocast("cuda", torch.bfloat16):
            found = stepped(module, x)
        for each, expected in zip(found, right, strict=True):
            assert each.dtype is expected.dtype
            assert torch.equal(each, expected)


def test_what_the_kernels_do_not_take_is_told():
    with pytest.raises(
        ValueError, match=r"x is torch\.float64; the kernels take bfloat16, float16, float32: convert x"
    ):
        rms_norm(torch.ones(3, 8, device="cuda", dtype=torch.float64), eps=1e-5)
    with pytest.raises(ValueError, match=r"weight is torch\.float64; the kernels take bfloat16, float16, float32"):
        rms_norm(torch.ones(3, 8, device="cuda"), torch.ones(8, device="cuda", dtype=torch.float64), eps=1e-5)
    with pytest.raises(ValueError, match="weight is on cpu and x on cuda:0"):
        rms_norm(torch.ones(3, 8, device="cuda"), torch.ones(8), eps=1e-5)
