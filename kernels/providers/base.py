"""The interface of a provider: prepare for a case, then bind input sets.  Only the bound call is timed."""

import functools
import importlib
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..cases import OPS, Case, Direction, Rounding
from ..checks.inputs import Inputs

Call = Callable[[], Any]
Bind = Callable[[Inputs], Call]
WithNorm = Callable[[Callable[..., Any]], Callable[..., Any]]


class Unsupported(Exception):
    """This provider does not support this case here.  The message says why."""


class Broken(Exception):
    """It should work and does not: an import failed, a name is missing.  The message says what to fix."""


class Provider:
    """Base class.  To add a provider, write a subclass and add it to the table of the package."""

    name: str
    compiled: bool = False  # through torch.compile: facts come from the generated code
    tunes: bool = False  # the preparation times candidates, which needs the device for itself
    rounding: Rounding = Rounding.AFTER_WEIGHT  # its convention, by which its outputs are judged
    inplace: bool = False  # writes its outputs into its inputs
    pinned: tuple[str, ...] = ()  # distributions whose versions represent code that cannot be observed

    def warm(self) -> None:
        """Import what takes long.  Errors are raised when a case needs it."""

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Why it does not support this case here; None if it does.  Creates no tensor and compiles nothing."""
        return None

    def ready(self, case: Case, device: torch.device) -> Bind:  # noqa: ARG002
        """Prepare for one direction of a case.  Raises Unsupported or Broken."""
        raise Unsupported(f"{self.name} has no {case.key}")

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:  # noqa: ARG002
        """A differentiable function of the forward inputs and eps.  Raises Unsupported or Broken."""
        raise Unsupported(f"{self.name} has no {case.key}")

    def joint(self, case: Case, device: torch.device) -> Bind:
        """Prepare for the forward and backward pass in one call, by default of `differentiable` through autograd.

        Raises Unsupported or Broken.
        """
        return forward_backward(case, self.differentiable(case, device))

    def block(self, case: Case, device: torch.device, with_norm: WithNorm) -> Callable[..., Any]:
        """The forward pass of a transformer block, which `with_norm` builds around a norm.

        Raises Unsupported or Broken.
        """
        return with_norm(self.differentiable(case, device))

    def facts(self) -> dict[str, Any]:
        """Facts about the code of the last preparation: where it is, how it was compiled, timed candidates."""
        return {}

    def refuse(self, case: Case, device: torch.device) -> None:
        """Raises Unsupported if the case is not supported."""
        if reason := self.supports(case, device):
            raise Unsupported(reason)


def by_order(function: Callable[..., Any]) -> Bind:
    """Bind by passing the arguments in the order of the adapter protocol."""

    def bind(inputs: Inputs) -> Call:
        arguments = inputs.arguments
        return lambda: function(*arguments)

    return bind


def by_name(function: Callable[..., Any]) -> Bind:
    """Bind by passing the tensors of the op and eps by name."""
    return lambda inputs: functools.partial(function, **inputs.tensors, eps=inputs.eps)


def by_position(case: Case, function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a forward function with tensors by name to one with tensors in the order of the op."""
    names = (*OPS[case.op].inputs(Direction.FWD), "eps")

    def forward(*arguments: Any) -> Any:
        return function(**dict(zip(names, arguments, strict=True)))

    return forward


def on_matrices(case: Case, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which takes [rows, columns], at a case that may have heads: then it gets copies of their rows.

    The copies are part of the call: a caller of such a function pays for them.
    """
    if not case.heads:
        return function

    def rows(value: Any) -> Any:
        return value.reshape(-1, case.cols) if isinstance(value, Tensor) and value.ndim == 3 else value

    def call(*arguments: Any, **named: Any) -> Any:
        outputs = function(*map(rows, arguments), **{name: rows(value) for name, value in named.items()})
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return returned(*(each.view(case.shape("x")) if each.ndim == 2 else each for each in outputs))

    return call


def returned(*outputs: Tensor | None) -> Any:
    """The outputs that are not None; a single one without a tuple."""
    present = tuple(output for output in outputs if output is not None)
    return present if len(present) > 1 else present[0]


def forward_backward(case: Case, function: Callable[..., Any]) -> Bind:
    """Bind a differentiable function as one call of its forward and backward pass, through autograd."""
    op = OPS[case.op]

    def bind(inputs: Inputs) -> Call:
        # detached aliases: the inputs must not require gradients
        leaves = {name: inputs[name].detach().requires_grad_() for name in op.inputs(Direction.FWD)}
        arguments = (*leaves.values(), inputs.eps)
        wanted = tuple(leaves[name] for name in ("x", *op.weights))
        gradients = tuple(inputs[name] for name in case.inputs if name.startswith("d"))

        def call() -> tuple[Any, ...]:
            with torch.enable_grad():
                returned = function(*arguments)
                outputs = returned if isinstance(returned, tuple | list) else (returned,)
                found = torch.autograd.grad(tuple(outputs), wanted, gradients)
            return (*(output.detach() for output in outputs), *found)

        return call

    return bind


def warm_compiler() -> None:
    """Compile something tiny while other contenders start, to do the imports of a first compilation.

    On a CPU this made the first case 4 s faster (two cores, November).
    """
    with suppress(Exception):  # a case that compiles raises it again
        importlib.import_module("torch._inductor.compile_fx")
        if not torch.cuda.is_available():
            compiled(_tiny)(torch.zeros(8))


def _tiny(x: Any) -> Any:
    return x + 1


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """torch.compile, with static shapes by default.

    The reset is necessary: otherwise the second shape would be compiled for any shape, and be slower.
    """
    _skip_vector_probes()
    torch._dynamo.reset()
    return torch.compile(function, **{"dynamic": False, **options})


@functools.cache
def _skip_vector_probes() -> None:
    """Skip Inductor's probes of the CPU's vector extensions if the compiler accepts their flags.

    Inductor compiles and loads a small library for each: 5 s with an empty cache, 1.5 s in every later process.
    """
    try:
        config = importlib.import_module("torch._inductor.config")
        units = importlib.import_module("torch._inductor.cpu_vec_isa")
        here = set(units.x86_isa_checker())
        flags = [unit.build_arch_flags() for unit in units.supported_vec_isa_list if set(str(unit).split()) <= here]
        compiler = [os.environ.get("CXX", "g++"), *" ".join(flags).split(), "-fsyntax-only", "-x", "c++", os.devnull]
        if flags and subprocess.run(compiler, capture_output=True, timeout=20, check=False).returncode == 0:
            config.cpp.vec_isa_ok = True
    except Exception:
        return  # Inductor probes as usual
