"""Host time of an eager call of a norm: ours, torch's, Quack's, Liger's and Inductor's, in turns.  Needs a GPU.

What a model calls is measured: functions, modules, and forward and backward by autograd; and the op of the metric
`.call`, which is below them.  All sides are in one process and take turns; a side whose result is wrong is not timed.

    python -m benchmarks.kernels.host_time --out DIR
    python -m benchmarks.kernels.host_time --parts      # where the time of ours goes
"""

import argparse
import importlib
import json
import statistics
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.kernels.trials import say
from kernels.arena.protocol import built_in
from kernels.cases import Case, Direction
from kernels.checks.inputs import make
from kernels.metrics.call import CallClock
from kernels.norms import tuned_plans
from kernels.norms.backward import backward
from kernels.norms.calls.again import FORWARD, _key
from kernels.norms.forward import forward
from kernels.norms.modules import LayerNorm, RMSNorm, layer_norm, rms_norm
from kernels.providers import open_provider

EPS = 1e-6
OURS = "ours"
PROVIDERS = {OURS: "triton", "eager": "eager", "quack": "quack", "liger": "liger", "inductor": "inductor"}
TOLERANCE = 2e-2  # of the largest value, in bf16
SHAPES = ((8, 4096), (64, 4096), (8, 65536))

Function = Callable[..., Any]
Side = TypeVar("Side")


@dataclass(frozen=True)
class Tensors:
    x: Tensor
    residual: Tensor
    weight: Tensor
    bias: Tensor
    dy: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write host_time.json and host_time.md there")
    parser.add_argument("--rounds", type=int, default=12, help="%(default)s")
    parser.add_argument("--parts", action="store_true", help="time the parts of a call of ours instead")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        say("Skipped: the host time of a launch needs a GPU.")
        return
    if chosen.parts:
        for name, us in parts():
            say(f"{us:8.2f} us  {name}")
        return
    measured = {}
    for rows, cols in SHAPES:
        for what, sides in calls(rows, cols, torch.device("cuda", torch.cuda.current_device())):
            measured[f"{what}, {rows}x{cols}"] = in_turns(sides, chosen.rounds)
    text = table(measured)
    say(text)
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "host_time.json").write_text(json.dumps(measured, indent=1))
        (chosen.out / "host_time.md").write_text(text)


# -- what is called ---------------------------------------------------------------------------------------------------


def calls(rows: int, cols: int, device: torch.device) -> Iterator[tuple[str, dict[str, Function]]]:
    """(what, calls by side) in bf16, with weights of bf16."""
    torch.compiler.reset()  # after eight shapes and modes of a function it would run eagerly
    torch.manual_seed(0)
    x, residual, dy = torch.randn(3, rows, cols, device=device, dtype=torch.bfloat16).unbind()
    weight, bias = torch.randn(2, cols, device=device, dtype=torch.bfloat16).unbind()
    given = Tensors(x, residual, weight, bias, dy)
    for norm in ("RMSNorm", "LayerNorm"):
        functions = rms_functions() if norm == "RMSNorm" else layer_functions()
        yield f"{norm}, op", ops(norm.lower(), rows, cols, device)
        yield f"{norm}, function", right({name: plain(each, given) for name, each in functions.items()})
        yield f"{norm}, module", right({name: plain(each, given) for name, each in modules(norm, given).items()})
        yield f"{norm}, forward and backward", right({name: step(each, given) for name, each in functions.items()})
        if norm == "RMSNorm":
            yield f"{norm}, with residual", right({name: plain(each, given, True) for name, each in functions.items()})
            yield f"{norm}, module with residual", right({OURS: plain(modules(norm, given)[OURS], given, True)})
            yield (
                f"{norm}, forward and backward with residual",
                right({name: step(each, given, True) for name, each in functions.items()}),
            )


def ops(norm: str, rows: int, cols: int, device: torch.device) -> dict[str, Function]:
    """What the metric `.call` times of each provider."""
    case = Case(norm, Direction.FWD, rows, cols, "bf16", "bf16")
    inputs, sides = make(case, device, 1), {}
    for name, provider in PROVIDERS.items():
        try:
            sides[name] = open_provider(built_in(provider)).ready(case, device)(inputs)
        except Exception as error:
            say(f"the op of {name} is left out: {type(error).__name__}: {str(error)[:200]}")
    return right(sides)


def rms_functions() -> dict[str, Function]:
    """f(x, residual or None, weight, bias): y, or (y, residual_out)."""

    def eager(x: Tensor, residual: Tensor | None, weight: Tensor, _: Tensor) -> Any:
        if residual is None:
            return F.rms_norm(x, (x.shape[-1],), weight, EPS)
        total = x + residual
        return F.rms_norm(total, (x.shape[-1],), weight, EPS), total

    found: dict[str, Function] = {
        OURS: lambda x, residual, weight, _: rms_norm(x, weight, None, residual, eps=EPS),
        "eager": eager,
        "inductor": torch.compile(eager, dynamic=False),
    }
    with suppress(ImportError):
        quack: Any = importlib.import_module("quack.rmsnorm")
        found["quack"] = lambda x, residual, weight, _: quack.rmsnorm(
            x, weight, residual=residual, eps=EPS, prenorm=residual is not None
        )
    with suppress(ImportError):
        alone: Any = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
        fused: Any = importlib.import_module("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction

        def liger(x: Tensor, residual: Tensor | None, weight: Tensor, _: Tensor) -> Any:
            if residual is None:
                return alone.apply(x, weight, EPS, 0.0, "llama", False)
            return fused.apply(x, residual, weight, EPS, 0.0, "llama", False)

        found["liger"] = liger
    return found


def layer_functions() -> dict[str, Function]:
    def eager(x: Tensor, _: None, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), weight, bias, EPS)

    found: dict[str, Function] = {
        OURS: lambda x, _, weight, bias: layer_norm(x, weight, bias, eps=EPS),
        "eager": eager,
        "inductor": torch.compile(eager, dynamic=False),
    }
    with suppress(ImportError):
        liger: Any = importlib.import_module("liger_kernel.ops.layer_norm").LigerLayerNormFunction
        found["liger"] = lambda x, _, weight, bias: liger.apply(x, weight, bias, EPS)
    return found


def modules(norm: str, given: Tensors) -> dict[str, Function]:
    """f(x, residual or None, …) through a module with the same parameters."""
    cols, device = given.x.shape[-1], given.x.device
    made: dict[str, Any] = {
        OURS: (RMSNorm if norm == "RMSNorm" else LayerNorm)(cols, eps=EPS, device=device, dtype=torch.bfloat16),
        "eager": getattr(nn, norm)(cols, eps=EPS, device=device, dtype=torch.bfloat16),
    }
    with suppress(ImportError, AttributeError):
        if norm == "RMSNorm":
            quack: Any = importlib.import_module("quack.rmsnorm")
            made["quack"] = quack.QuackRMSNorm(cols, eps=EPS).to(device, torch.bfloat16)
    with suppress(ImportError, AttributeError):
        liger: Any = importlib.import_module(
            f"liger_kernel.transformers.{'rms_norm' if norm == 'RMSNorm' else 'layer_norm'}"
        )
        made["liger"] = getattr(liger, f"Liger{norm}")(cols, eps=EPS).to(device, torch.bfloat16)
    for module in made.values():
        values = {"weight": given.weight, "bias": given.bias}
        module.load_state_dict({name: values[name] for name, _ in module.named_parameters()})

    def called(module: Any) -> Function:
        return lambda x, residual, *_: module(x) if residual is None else module(x, residual)

    return {name: called(module) for name, module in made.items()}


def plain(function: Function, given: Tensors, residual: bool = False) -> Function:
    return partial(function, given.x, given.residual if residual else None, given.weight, given.bias)


def step(function: Function, given: Tensors, residual: bool = False) -> Function:
    """Forward and backward by autograd, of all tensors that the function uses."""
    x, added, weight, bias = (
        tensor.detach().clone().requires_grad_() for tensor in (given.x, given.residual, given.weight, given.bias)
    )
    arguments = (x, added if residual else None, weight, bias)
    leaves = [each for each in arguments if each is not None]

    def call() -> Any:
        with torch.enable_grad():
            outputs = function(*arguments)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            gradients = torch.autograd.grad(outputs, leaves, [given.dy] * len(outputs), allow_unused=True)
            return (*outputs, *(gradient for gradient in gradients if gradient is not None))

    return call


def right(sides: Mapping[str, Function], tolerance: float = TOLERANCE) -> dict[str, Function]:
    """The sides that run and give what the first does, which is ours; the others are named."""
    kept, expected = {}, None
    for name, call in sides.items():
        try:
            outputs = call()
        except Exception as error:
            say(f"{name} is left out: {type(error).__name__}: {str(error)[:200]}")
            continue
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        outputs = [each.detach().float() for each in outputs]
        expected = outputs if expected is None else expected
        errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(outputs, expected, strict=True)]
        if max(errors) < tolerance:
            kept[name] = call
        else:
            say(f"{name} is left out: it differs from ours by {max(errors):.3f}")
    return kept


# -- how it is timed --------------------------------------------------------------------------------------------------


def in_turns(sides: Mapping[str, Function], rounds: int) -> dict[str, list[float]]:
    """us of each side, one value a round; who begins changes with every round."""
    with torch.no_grad():
        clocks = {name: CallClock([call], torch.cuda.current_stream()) for name, call in sides.items()}
        return by_turns(clocks, rounds, lambda clock: statistics.median(clock.turn(1, 5)))


def by_turns(sides: Mapping[str, Side], rounds: int, timed: Callable[[Side], float]) -> dict[str, list[float]]:
    """What `timed` gives of each side, one value a round; who begins changes with every round."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    names = [*sides]
    for number in range(rounds):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            taken[name].append(timed(sides[name]))
    return taken


def table(
    measured: Mapping[str, Mapping[str, Sequence[float]]],
    unit: str = "us of the host",
    head: Sequence[str] = (*PROVIDERS,),
    form: str = ".1f",
) -> str:
    """Median, least and most of each line and side."""
    lines = [f"| {unit} | {' | '.join(head)} |", f"|---|{'--:|' * len(head)}"]
    for what, sides in measured.items():
        cells = [
            f"{statistics.median(sides[name]):{form}} ({min(sides[name]):{form}} to {max(sides[name]):{form}})"
            if name in sides
            else "–"
            for name in head
        ]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def parts() -> Iterator[tuple[str, float]]:
    """The parts of a call of ours at 8x4096, from the inside to the outside, in us."""
    x, weight = torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16), torch.ones(4096, device="cuda").bfloat16()
    module = RMSNorm(4096, eps=EPS, device="cuda", dtype=torch.bfloat16)
    leaf = x.clone().requires_grad_()
    with torch.no_grad():
        rms_norm(x, weight, eps=EPS)
        module(x)
        rstd = forward(x, weight, eps=EPS, center=False, statistics=True).rstd
    y = rms_norm(leaf, weight, eps=EPS)
    torch.autograd.grad(y, leaf, x)
    tensors, others = (x, weight, None, None), (EPS, False, 0.0, False, tuned_plans.choices)
    key = _key(tensors, others)
    usable, again = FORWARD._kept[key]
    launch: Any = again.args[0]  # type: ignore[attr-defined]
    pointers = (x, None, weight, None, x.clone(), None, None, None, None, None, None)
    timed: dict[str, Function] = {
        "torch.empty_like(x)": lambda: torch.empty_like(x),
        "x.data_ptr()": x.data_ptr,
        "the key of the call": lambda: _key(tensors, others),
        "usable()": usable,
        "the launch alone": lambda: launch.again(*pointers),
        "the call again": lambda: again(*tensors),
        "FORWARD.again": lambda: FORWARD.again(tensors, *others),
        "forward()": lambda: forward(x, weight, eps=EPS, center=False),
        "the launch by Triton": lambda: launch._function[launch._launch.args[1]](
            *pointers, *launch.constants, num_warps=launch._compiled.metadata.num_warps
        ),
        "rms_norm(), no gradient": lambda: rms_norm(x, weight, eps=EPS),
        "RMSNorm, no gradient": lambda: module(x),
        "nn.RMSNorm, no gradient": partial(nn.RMSNorm(4096, eps=EPS, device="cuda", dtype=torch.bfloat16), x),
        "backward()": lambda: backward(x, x, weight, rstd, weight_wanted=False),
    }
    differentiated: dict[str, Function] = {
        "an empty autograd.Function": lambda: Empty.apply(leaf),
        "an empty autograd.Function and its gradient": lambda: torch.autograd.grad(Empty.apply(leaf), leaf, x),
        "rms_norm() for a gradient": lambda: rms_norm(leaf, weight, eps=EPS),
        "F.rms_norm for a gradient": lambda: F.rms_norm(leaf, (4096,), weight, EPS),
        "rms_norm() and its gradient": lambda: torch.autograd.grad(rms_norm(leaf, weight, eps=EPS), leaf, x),
        "F.rms_norm and its gradient": lambda: torch.autograd.grad(F.rms_norm(leaf, (4096,), weight, EPS), leaf, x),
    }
    for grad, functions in ((False, timed), (True, differentiated)):
        with torch.set_grad_enabled(grad):
            for name, function in functions.items():
                yield name, host_us(function)


class Empty(torch.autograd.Function):
    """What autograd takes for two calls of Python, without launches."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:
        return dy


def host_us(function: Function, calls: int = 200) -> float:
    """us of a call; the device is drained after each 200, which its queue has room for."""
    taken = []
    for _ in range(30):
        torch.cuda.synchronize()
        taken.append(timeit.timeit(function, number=calls) / calls * 1e6)
    torch.cuda.synchronize()
    return min(taken)


if __name__ == "__main__":
    main()
