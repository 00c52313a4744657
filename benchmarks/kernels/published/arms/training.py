"""Training of a small transformer: operator by operator, as a traced graph, with compiled norms, compiled as a whole.

A sample is the time of one step: forward, backward and AdamW.  Before the timing the first steps are trained twice from
the same weights and with the same numbers, and the bits of loss, gradients and weights are compared after every step.
"""

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.kernels.published.arms import fused_norm, llama
from benchmarks.kernels.published.arms.graphs import traced, with_compiled_norms
from benchmarks.kernels.published.arms.llama import LlamaSize
from benchmarks.kernels.published.arms.replay import relative_error
from kernels.checks.inputs import INTEGERS
from kernels.providers.base import compiled

STEPS = 20
SEED = 20  # that of the trial would make the bits of trials incomparable
LEARNING_RATE = 3e-4
ROW = 4096  # elements of a row of a digest
# Of a gradient relative to eager's, which rounds at other places: on a CPU 1e-6 was seen for fp32.
MAX_ERROR = {torch.float32: 1e-5, torch.bfloat16: 0.1}

Step = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]]  # weights, batch -> loss, gradients
Loss = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


class Trainable(Protocol):
    """What is trained: a whole model, or the part of it that a rank has."""

    size: LlamaSize
    device: str

    def weights(self) -> list[Tensor]:
        """The first weights, which require gradients."""
        ...

    def batches(self) -> list[tuple[Tensor, ...]]:
        """Of the first steps."""
        ...

    def loss(self, weights: Sequence[Tensor], batch: Sequence[Tensor]) -> Tensor: ...

    def expected(self) -> tuple[Tensor, ...]:
        """Loss and gradients of the first step, computed by eager from the whole model."""
        ...


class Whole:
    """A model on one device."""

    def __init__(self, size: LlamaSize, device: str) -> None:
        self.size, self.device = size, device

    def weights(self) -> list[Tensor]:
        return llama.parameters(self.size, self.device, SEED)

    def batches(self) -> list[tuple[Tensor, ...]]:
        return llama.batches(self.size, self.device, SEED, STEPS)

    def loss(self, weights: Sequence[Tensor], batch: Sequence[Tensor]) -> Tensor:
        return llama.loss(self.size, weights, batch)

    def expected(self) -> tuple[Tensor, ...]:
        return through_autograd(self.loss)(self.weights(), self.batches()[0])


def whole(case: str, spec: Mapping[str, Any], device: str, seed: int) -> "Training":
    """The workload of one arm on one device.  Raises ValueError for an unknown way or model."""
    return Training(Whole(LlamaSize.parse(case), device), spec)


class Training:
    """One arm: `spec["way"]` is "eager", "make-fx", "regional" or "inductor"; `spec["configs"]` are Inductor's.

    Raises ValueError for an unknown way.
    """

    unit = "us"

    def __init__(self, model: Trainable, spec: Mapping[str, Any]) -> None:
        self._model, self._size, self._device = model, model.size, model.device
        device = self._device
        if device == "cpu":
            fused_norm.enable_on_cpu()
        self._batches = model.batches()
        about, compile_s = self._prepared(spec)
        first = self._run()
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        second = self._run()
        peak = None if device == "cpu" else torch.cuda.max_memory_allocated()
        self.facts: Mapping[str, Any] = {
            **about,
            "tokens": self._size.tokens,
            "flops": self._size.flops,
            "parameters": sum(map(math.prod, self._size.shapes.values())),
            "compile_s": round(compile_s, 2),
            "peak_bytes": peak,
            "losses": first.losses,
            "digests": first.digests,
            "repeats": first.differs_from(second),
        }

    def turn(self, warm: int, timed: int) -> list[float]:
        for number in range(warm):
            self._train(number)
        if self._device == "cpu":
            return [self._timed_on_cpu(number) for number in range(timed)]
        events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(timed + 1)]
        events[0].record()
        for number, event in enumerate(events[1:]):
            self._train(number)
            event.record()
        torch.cuda.synchronize()
        return [began.elapsed_time(ended) * 1e3 for began, ended in pairwise(events)]

    def check(self) -> str | None:
        """Compare loss and gradients of the first step with those of eager, at the first weights."""
        self._begin()
        expected = self._model.expected()
        found = self._step(self._weights, self._batches[0])
        limit = MAX_ERROR[self._size.dtype]
        for name, right, seen in zip(("loss", *self._size.shapes), expected, found, strict=True):
            error = relative_error(seen, right.float())
            if not error <= limit:
                return f"{name} of the first step is wrong by {error:.1e}; eager and rounding explain {limit:.1e}"
        return None

    def _prepared(self, spec: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """Compile, tune and train one step; facts about it, and the seconds.

        If an operator has no deterministic form, all take the usual one, and the facts name it.  torch raises a plain
        RuntimeError for it: lack of memory and failures of compilers and collectives have types of their own.
        """
        reason = ""
        try:
            return self._first_step(spec, strict=True)
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise
            reason = str(error).partition("\n")[0]
        about, seconds = self._first_step(spec, strict=False)  # if the reason is another one, it fails again
        return {**about, "not_deterministic": reason}, seconds

    def _first_step(self, spec: Mapping[str, Any], *, strict: bool) -> tuple[dict[str, Any], float]:
        began = time.perf_counter()
        _repeatable(strict=strict)
        self._begin()
        self._step, about = _way(self._model.loss, spec, self._weights, self._batches[0])
        self._train(0)
        self._finish()
        return about, time.perf_counter() - began

    def _begin(self) -> None:
        """Start again from the first weights."""
        self._weights = self._model.weights()
        self._optimizer = torch.optim.AdamW(self._weights, lr=LEARNING_RATE, fused=True)

    def _train(self, number: int) -> tuple[Tensor, ...]:
        """One step; loss and gradients."""
        found = self._step(self._weights, self._batches[number % STEPS])
        for weight, gradient in zip(self._weights, found[1:], strict=True):
            weight.grad = gradient.contiguous()  # AdamW needs the strides of the weight
        self._optimizer.step()
        return found

    def _run(self) -> "Run":
        self._begin()
        run = Run()
        for number in range(STEPS):
            loss, *gradients = self._train(number)
            run.add(loss, gradients, self._weights)
        return run

    def _timed_on_cpu(self, number: int) -> float:
        began = time.perf_counter_ns()
        self._train(number)
        return (time.perf_counter_ns() - began) / 1e3

    def _finish(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()


class Run:
    """Loss, and digests of the bits of loss, gradients and weights, after each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.digests: dict[str, list[str]] = {"loss": [], "gradients": [], "weights": []}

    def add(self, loss: Tensor, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        self.losses.append(round(float(loss), 6))
        for what, tensors in (("loss", [loss]), ("gradients", gradients), ("weights", weights)):
            self.digests[what].append(digest(tensors))

    def differs_from(self, other: "Run") -> dict[str, int | None]:
        """By what is compared, the first step with other bits, from 1; None if all are equal."""
        return {
            what: next(
                (n for n, pair in enumerate(zip(mine, other.digests[what], strict=True), 1) if len({*pair}) > 1), None
            )
            for what, mine in self.digests.items()
        }


def digest(tensors: Sequence[Tensor]) -> str:
    """A hash of the bits of tensors.  It is computed on their device: sums of rows and columns with their places."""
    sums = torch.stack([one for tensor in tensors for one in _bit_sums(tensor)]).tolist()
    return hashlib.sha256(repr(sums).encode()).hexdigest()[:12]


def _bit_sums(tensor: Tensor) -> Iterator[Tensor]:
    """Sums of the bits as integers, modulo 2^64: weighted by the row, and by the column."""
    flat = tensor.detach().contiguous().view(-1)
    bits = flat.view(INTEGERS[tensor.element_size()]).view(-1, math.gcd(len(flat), ROW))
    for along in (0, 1):
        sums = bits.sum(along, dtype=torch.int64)
        yield (sums * torch.arange(1, len(sums) + 1, device=sums.device)).sum()


def _repeatable(*, strict: bool) -> None:
    """Choose deterministic kernels where torch has a choice; an operator without one fails if `strict`.

    Attention takes its deterministic backward pass only if it may fail (torch pull request 182551).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # it would be timed
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass has no deterministic form for all shapes


def _way(
    loss: Loss, spec: Mapping[str, Any], weights: Sequence[Tensor], batch: Sequence[Tensor]
) -> tuple[Step, dict[str, Any]]:
    """The step of an arm, and facts about it."""
    match spec["way"]:
        case "eager":
            return through_autograd(loss), {}
        case "inductor":
            return through_autograd(compiled(loss, fullgraph=True)), {}
        case "make-fx":
            graph = _graph(loss, weights, batch)
            return _of_graph(graph), {"nodes": len(graph.graph.nodes)}
        case "regional":
            graph, norms = with_compiled_norms(_graph(loss, weights, batch), spec.get("configs") or {})
            return _of_graph(graph), {"nodes": len(graph.graph.nodes), "tagged": norms}
        case other:
            raise ValueError(f"there is no way {other!r} to train; known: eager, make-fx, regional, inductor")


def through_autograd(loss: Loss) -> Step:
    """Loss and gradients, operator by operator, or with the graphs of a compiled loss."""

    def step(weights: Sequence[Tensor], batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            found = loss(weights, batch)
            return (found.detach(), *torch.autograd.grad(found, tuple(weights)))

    return step


def _graph(loss: Loss, weights: Sequence[Tensor], batch: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Forward and backward in one graph."""
    count = len(weights)

    def passes(*given: Tensor) -> tuple[Tensor, ...]:
        found = loss(given[:count], given[count:])
        return (found, *torch.autograd.grad(found, given[:count]))

    return traced(passes, (*weights, *batch))


def _of_graph(graph: torch.fx.GraphModule) -> Step:
    def step(weights: Sequence[Tensor], batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            found: tuple[Tensor, ...] = graph(*weights, *batch)
        return found

    return step
