"""A training step of a block, forward and backward, eager or through torch.compile with changed settings."""

import copy
import fcntl
import functools
import importlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.kernels.published.arms import blocks
from benchmarks.kernels.published.arms.blocks_common import Block, Given, Size
from benchmarks.kernels.published.arms.replay import CannotReplay, Step, StepGraph, relative_error, side_stream, unlike
from benchmarks.kernels.published.arms.server import NotSupported
from kernels.errors import MAX_REASON
from kernels.providers.base import compiled

STEPS = {"cuda": 5, "cpu": 50}  # that are launched in a sample; on a CPU the sizes are tiny
OTHER_NUMBERS = 1 << 20  # added to the seed of the numbers for the check after the timing
ALLOWANCE = 1.5  # of eager's own error, as for the kernels
SUM_NOISE = 8 * 2.0**-24  # of sums in fp32 in another order, as in checks.error_bounds
_COMPUTED = {"amp": torch.bfloat16, "bf16": torch.bfloat16, "fp32": torch.float32}


def unsupported(patches: Mapping[str, Any], known: Mapping[str, Any], device: str) -> str | None:
    """Why Inductor's settings cannot be changed so; None if they can."""
    if missing := [name for name in patches if name not in known]:
        return f"torch {torch.__version__} has no setting {', '.join(missing)}"
    if device == "cpu" and patches and all(name.startswith("triton.") for name in patches):
        return f"{', '.join(patches)} changes only Triton's kernels; a CPU has none"
    return None


class TrainingStep:
    """The workload of an arm.

    `spec` has `compile`, `dynamic` (any batch and sequence) and `patches` of Inductor's configuration.  The case is
    `SUITE.BLOCK.PRECISION`: "amp" has fp32 weights under autocast to bf16, "bf16" and "fp32" have one dtype.

    On a GPU the step is replayed as a CUDA graph, unless it cannot be captured or `spec` has a reason not to, as
    `launched_because`.  The facts `graph` and `graph_reason` say so.

    Raises ValueError for an unknown case, NotSupported for a setting that this torch does not have, and
    metrics.clocks.NotCaptured, after which the process is unusable.
    """

    unit = "us"

    def __init__(self, case: str, spec: Mapping[str, Any], device: str, seed: int) -> None:
        block, self._precision = blocks.find(case)
        size = block.tiny if device == "cpu" else block.full
        if self._precision not in _COMPUTED:
            raise ValueError(f"{case} has none of the precisions {', '.join(_COMPUTED)}")
        self._device, self._seed = device, seed
        self._patches = dict(spec.get("patches", {}))
        known = importlib.import_module("torch._inductor.config").get_config_copy()
        if reason := unsupported(self._patches, known, device):
            raise NotSupported(reason)
        self._graph: StepGraph | None = None
        with self._working():
            self._prepare(block, size, spec)

    def turn(self, warm: int, timed: int) -> list[float]:
        """Microseconds of a step, each sample over several."""
        with self._working():
            if self._graph is not None:
                return self._graph.turn(warm, timed)
            take = self._on_cpu if self._device == "cpu" else self._on_gpu
            return [take() for _ in range(warm + timed)][warm:]

    def launch(self) -> None:
        """From now on launch the kernels of a step one by one."""
        self._graph = None
        self._free_memory()

    def check(self) -> str | None:
        """Compare outputs and gradients with eager in a wider dtype, relative to eager's error in the same dtype.

        The inputs get other numbers first, so that a step which does not read them is wrong.
        """
        with self._working(), using_gpu(fcntl.LOCK_SH):
            self._renew_numbers()
            found = self._step() if self._graph is None else tuple(one.clone() for one in self._graph.outputs())
            self.launch()  # the references need the memory of the graph
            eager = self._bind(self._module, self._inputs, self._gradient)
            wrong = compare(self._names(), found, eager(), self._exact(), self._rounding)
        self._free_memory()  # the other arms need it for their references
        return wrong

    @contextmanager
    def _working(self) -> Iterator[None]:
        """On a GPU, use the stream that can be captured."""
        if self._device == "cpu":
            yield
            return
        stream = side_stream()
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def _free_memory(self) -> None:
        if self._device != "cpu":
            torch.cuda.empty_cache()

    # -- preparation -------------------------------------------------------------------------------------------------

    def _prepare(self, block: Block, size: Size, spec: Mapping[str, Any]) -> None:
        self._module = self._built(block, size)
        self._given = size.inputs
        self._inputs = self._drawn(self._given)
        self.facts: dict[str, Any] = {
            "about": block.about,
            "tiny": self._device == "cpu",
            "inputs": [list(one.shape) for one in self._given],
            "parameters": sum(one.numel() for one in self._module.parameters()),
        }
        self._forward: Callable[..., Tensor] = self._module
        self._gradient = self._gradient_for(self._inputs)
        if spec["compile"]:
            self._compile(block, bool(spec.get("dynamic")))
        self._step = self._bind(self._forward, self._inputs, self._gradient)
        self._step()
        if self._device != "cpu":
            with using_gpu(fcntl.LOCK_SH):
                self.facts |= self._capture(spec.get("launched_because"))
                self._synchronize()

    def _built(self, block: Block, size: Size) -> nn.Module:
        torch.manual_seed(self._seed)
        with torch.device(self._device):
            module = block.module(*size.widths)
        return module.bfloat16() if self._precision == "bf16" else module

    def _drawn(self, given: Sequence[Given], seed: int = 0) -> list[Tensor]:
        """Random inputs; other ones for another `seed`, which is added to that of the trial."""
        generator = torch.Generator(self._device).manual_seed(self._seed + seed)
        dtype = torch.bfloat16 if self._precision == "bf16" else torch.float32
        return [one.draw(generator, dtype, self._device) for one in given]

    def _gradient_for(self, inputs: Sequence[Tensor], seed: int = 0) -> Tensor:
        """A random gradient of the output, as from the rest of a model; 1 for a loss."""
        with torch.no_grad(), self._autocast():
            out = self._module(*inputs)
        if not out.dim():
            return torch.ones_like(out)
        generator = torch.Generator(self._device).manual_seed(self._seed + seed + 1)
        return torch.randn(out.shape, generator=generator, device=self._device, dtype=out.dtype)

    def _renew_numbers(self) -> None:
        """Write other numbers into the inputs and the gradient, in place: a graph reads these tensors."""
        inputs = self._drawn(self._given, OTHER_NUMBERS)
        gradient = self._gradient_for(inputs, OTHER_NUMBERS)
        with torch.no_grad():
            for mine, other in zip((*self._inputs, self._gradient), (*inputs, gradient), strict=True):
                mine.copy_(other)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device, torch.bfloat16, enabled=self._precision == "amp")

    def _bind(self, forward: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor) -> Step:
        wanted = [one for one in (*inputs, *self._module.parameters()) if one.requires_grad]

        def step() -> tuple[Tensor, ...]:
            with self._autocast():
                out = forward(*inputs)
            return (out.detach(), *torch.autograd.grad(out, wanted, gradient))

        return step

    def _capture(self, launched_because: str | None) -> dict[str, Any]:
        """Capture the step, unless there is a reason not to; facts about that.  Raises NotCaptured."""
        if launched_because is not None:
            return {"graph": False, "graph_reason": launched_because}
        try:
            self._graph = self._captured()
        except CannotReplay as why:
            return {"graph": False, "graph_reason": str(why)[:MAX_REASON]}
        return {"graph": True, "launches": self._graph.launches}

    def _captured(self) -> StepGraph:
        """The graph of a step, whose replay does what a launched step does.  Raises CannotReplay, NotCaptured."""
        graph = StepGraph(self._step)
        if wrong := unlike(self._names(), graph.outputs(), self._step(), self._rounding + SUM_NOISE):
            raise CannotReplay(wrong)
        return graph

    def _compile(self, block: Block, dynamic: bool) -> None:
        if self._device != "cpu":
            _tune_alone()
        counters = importlib.import_module("torch._dynamo.utils").counters
        metrics = importlib.import_module("torch._inductor.metrics")
        counters.clear()
        metrics.reset()
        _tuning_s.clear()
        self._forward = compiled(self._module, dynamic=dynamic, options=self._patches)
        if dynamic:
            _leave_open(self._inputs, block.free)
        began = time.perf_counter()
        self._bind(self._forward, self._inputs, self._gradient)()
        self._synchronize()
        self.facts |= {
            "compile_s": round(time.perf_counter() - began, 2),
            "tuning_s": {what: round(s, 2) for what, s in _tuning_s.items()},  # a part of it
            "graphs": counters["stats"]["unique_graphs"],
            "graph_breaks": sum(counters["graph_break"].values()),
            "kernels": metrics.generated_kernel_count,
            "patches": self._patches,
            "dynamic": dynamic,
        }
        if dynamic:
            self.facts["recompilations"] = self._recompilations(counters)

    def _recompilations(self, counters: Mapping[str, Any]) -> int:
        """Graphs that another batch needs; 0 if the compiled one takes any."""
        before = counters["stats"]["unique_graphs"]
        fewer = [Given((3 * one.shape[0] // 4 or 1, *one.shape[1:]), one.below) for one in self._given]
        inputs = self._drawn(fewer)
        self._bind(self._forward, inputs, self._gradient_for(inputs))()
        found: int = counters["stats"]["unique_graphs"] - before
        return found

    # -- timing ------------------------------------------------------------------------------------------------------

    def _on_cpu(self) -> float:
        began = time.perf_counter()
        for _ in range(STEPS["cpu"]):
            self._step()
        return (time.perf_counter() - began) * 1e6 / STEPS["cpu"]

    def _on_gpu(self) -> float:
        begin: Any = torch.cuda.Event(enable_timing=True)
        end: Any = torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(STEPS["cuda"]):
            self._step()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds * 1e3 / STEPS["cuda"]

    def _synchronize(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def _rounding(self) -> float:
        return torch.finfo(_COMPUTED[self._precision]).eps / 2

    def _names(self) -> list[str]:
        inputs = [f"input {number}" for number, one in enumerate(self._inputs) if one.requires_grad]
        return ["output", *inputs, *(name for name, _ in self._module.named_parameters())]

    def _exact(self) -> tuple[Tensor, ...]:
        dtype = torch.float64 if self._precision == "fp32" else torch.float32
        module = copy.deepcopy(self._module).to(dtype)
        inputs = [_widened(one, dtype) for one in self._inputs]
        wanted = [one for one in (*inputs, *module.parameters()) if one.requires_grad]
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            out = module(*inputs)
            return (out, *torch.autograd.grad(out, wanted, self._gradient.to(out.dtype)))


def compare(
    names: Sequence[str],
    found: Sequence[Tensor],
    eager: Sequence[Tensor],
    exact: Sequence[Tensor],
    rounding: float,
) -> str | None:
    """The first tensor of `found` that errs more than eager's, by the allowance and a rounding; None if all are right.

    An error is the norm of the difference relative to the norm of the exact tensor; `rounding` is that of the dtype of
    the matrix products.
    """
    for name, mine, theirs, right in zip(names, found, eager, exact, strict=True):
        if mine.shape != right.shape:
            return f"{name} has shape {tuple(mine.shape)} instead of {tuple(right.shape)}"
        error, allowed = relative_error(mine, right), ALLOWANCE * relative_error(theirs, right) + rounding + SUM_NOISE
        if not error <= allowed:
            return f"{name} has a relative error of {error:.2g}, eager has {relative_error(theirs, right):.2g}"
    return None


def _widened(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to(dtype).requires_grad_() if x.requires_grad else x


def _leave_open(inputs: Sequence[Tensor], dimensions: int) -> None:
    """Mark the first dimensions as dynamic; torch may still fix one, which `recompilations` shows."""
    for one in inputs:
        for dimension in range(dimensions):
            torch._dynamo.maybe_mark_dynamic(one, dimension)


_tuning_s = defaultdict[str, float](float)  # seconds in which this process waited for the others, and tuned
_gpu_use = fcntl.LOCK_UN  # how this process uses the GPU, as the processes of all arms see it


@functools.cache
def _gpu_lock() -> int:
    """A file that the processes of all arms lock.  Opened once: two open ones would lock each other out."""
    return os.open(__file__, os.O_RDONLY)


@contextmanager
def using_gpu(how: int) -> Iterator[None]:
    """Use the GPU next to other arms (LOCK_SH) or alone (LOCK_EX), which may be within the former."""
    global _gpu_use
    before, _gpu_use = _gpu_use, how
    fcntl.flock(_gpu_lock(), how)  # another kind gives up the former one first, so that two never wait for each other
    try:
        yield
    finally:
        _gpu_use = before
        fcntl.flock(_gpu_lock(), before)


@contextmanager
def _alone() -> Iterator[None]:
    """Tune alone: work of other arms would decide which candidate is chosen, and equal arms would differ."""
    began = time.perf_counter()
    with using_gpu(fcntl.LOCK_EX):
        locked = time.perf_counter()
        yield
    _tuning_s["waited"] += locked - began
    _tuning_s["tuned"] += time.perf_counter() - locked


@functools.cache
def _tune_alone() -> None:
    """Let one process at a time compare Inductor's candidates, while no other one checks or captures.

    Arms prepare at the same time, and the first call of some kernels times a few configurations.
    """
    tuner = importlib.import_module("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    original = tuner.benchmark_all_configs

    def benchmark_all_configs(self: Any, *arguments: Any, **named: Any) -> Any:
        with _alone():
            return original(self, *arguments, **named)

    tuner.benchmark_all_configs = benchmark_all_configs
