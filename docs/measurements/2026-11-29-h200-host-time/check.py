"""Calls that are launched as before against the ops, bit by bit, on a GPU: without pytest."""

import itertools

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs

from kernels.norms import launching
from kernels.norms.modules import LayerNorm, RMSNorm, rms_norm


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def step(module, *given):
    leaves = [each.detach().clone().requires_grad_() for each in given]
    outputs = module(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [(torch.arange(y.numel(), device="cuda").view(y.shape) % 17 / 8 - 1).to(y.dtype) for y in outputs]
    return [*outputs, *torch.autograd.grad(outputs, [*leaves, *module.parameters()], gradients)]


made, again = [], launching.Relaunch.again
launching.Relaunch.again = lambda launch, *tensors: (made.append(launch), again(launch, *tensors))[1]
torch.manual_seed(0)
calls = 0
for kind, shape, dtype, stream in itertools.product(
    (RMSNorm, LayerNorm),
    ((8, 4096), (3, 5, 1000), (1, 128), (300, 12288), (4, 65536)),
    (torch.bfloat16, torch.float32),
    (None, torch.bfloat16, torch.float32),
):
    module = kind(shape[-1], eps=1e-5, device="cuda")
    for _ in range(3):
        given = [torch.randn(shape, device="cuda").to(each) for each in (dtype, stream) if each is not None]
        found = step(module, *given)
        launching.FORWARD.clear()
        launching.BACKWARD.clear()
        with Seen():
            right = step(module, *given)
        bad = [number for number, (a, b) in enumerate(zip(found, right, strict=True)) if not torch.equal(a, b)]
        assert not bad, (kind, shape, dtype, stream, bad)
        calls += 1
print(f"{calls} steps have the bits of the ops; {len(made)} kernels were launched as before")
assert made

# A weight that is not aligned, after one that is.
x, weight = torch.randn(8, 4096, device="cuda").bfloat16(), torch.randn(4097, device="cuda").bfloat16()
for begin in (0, 0, 1, 1, 0):
    there = weight[begin:][:4096]
    assert torch.equal(rms_norm(x, there, eps=1e-5), rms_norm(x, there.clone(), eps=1e-5)), begin

# Streams and a graph.
module = RMSNorm(4096, eps=1e-5, device="cuda", dtype=torch.bfloat16)
with torch.no_grad():
    for columns in (4096, 65536):
        x = torch.randn(8, columns, device="cuda").bfloat16()
        module = LayerNorm(columns, eps=1e-5, device="cuda")
        right = [module(x) for _ in range(3)][-1]
        beside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            there = [module(x) for _ in range(3)][-1]
        beside.synchronize()
        with torch.cuda.graph(graph):
            captured = module(x)
        captured.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(there, right), columns
        assert torch.equal(captured, right), columns

# Whoever looks at launches or ops sees them.
hooked = []
knobs.runtime.launch_enter_hook.add(hooked.append)
rms_norm(x, None, eps=1e-5)
rms_norm(x, None, eps=1e-5)
knobs.runtime.launch_enter_hook.remove(hooked.append)
assert len(hooked) == 2, len(hooked)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    rms_norm(x, None, eps=1e-5)
assert "kernelwatch::norm_forward" in {event.key for event in profile.key_averages()}

# A device that is not the current one, where there are two.
if torch.cuda.device_count() > 1:
    module, there = module.to("cuda:1"), x.to("cuda:1")
    for _ in range(3):
        assert torch.equal(module(there).to(0), right)
try:
    RMSNorm(16, device="meta")(torch.ones(2, 16, device="cuda"))
    raise AssertionError("garbage")
except ValueError as error:
    print(error)
print("right")
