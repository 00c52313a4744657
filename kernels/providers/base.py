"""What a provider is: it gets ready for a case, then binds input sets; only what the bound call does is timed."""

import functools
import importlib
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..cases import OPS, Case, Direction
from ..checks.inputs import Inputs

Call = Callable[[], Any]
Bind = Callable[[Inputs], Call]
WithNorm = Callable[[Callable[..., Any]], Callable[..., Any]]


class Unsupported(Exception):
    """This provider does not do this case here.  The message says why."""


class Broken(Exception):
    """It should work and does not: an import failed, a name is missing.  The message says what to mend."""


class Provider:
    """What it says of itself, and how it gets ready.  A new one is a small class and a line in the package's table."""

    name: str
    compiled: bool = False  # through torch.compile: facts come from the generated code
    tunes: bool = False  # getting ready times candidates on the device, which nobody else may use meanwhile
    pinned: tuple[str, ...] = ()  # distributions whose versions stand for code that can not be seen

    def warm(self) -> None:
        """Import what takes long.  Troubles wait until a case needs it."""

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Why it does not do this case here, in a sentence; None where it does.  Makes no tensor, compiles nothing."""
        return None

    def ready(self, case: Case, device: torch.device) -> Bind:  # noqa: ARG002
        """Get ready for one direction of a case.  Raises Unsupported or Broken."""
        raise Unsupported(f"{self.name} has no {case.key}")

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:  # noqa: ARG002
        """The forward function, given the forward inputs and eps, that autograd can go back through.

        Raises Unsupported or Broken.
        """
        raise Unsupported(f"{self.name} has no {case.key}")

    def block(self, case: Case, device: torch.device, with_norm: WithNorm) -> Callable[..., Any]:
        """The forward pass of a transformer block, which `with_norm` builds around a norm.

        Raises Unsupported or Broken.
        """
        return with_norm(self.differentiable(case, device))

    def facts(self) -> dict[str, Any]:
        """What it knows of the code it got ready last: how it was compiled, which candidates were timed."""
        return {}

    def refuse(self, case: Case, device: torch.device) -> None:
        """Raises Unsupported for what is not supported."""
        if reason := self.supports(case, device):
            raise Unsupported(reason)


def plainly(function: Callable[..., Any]) -> Bind:
    """Bind by handing over the arguments of the adapter protocol."""

    def bind(inputs: Inputs) -> Call:
        arguments = inputs.arguments
        return lambda: function(*arguments)

    return bind


def by_name(function: Callable[..., Any]) -> Bind:
    """Bind by handing over the tensors by their names and eps; a tensor that an op has not is left out."""
    return lambda inputs: functools.partial(function, **inputs.tensors, eps=inputs.eps)


def by_position(case: Case, function: Callable[..., Any]) -> Callable[..., Any]:
    """A forward function that takes its tensors by name, for callers that hand them over in the order of the op."""
    names = (*OPS[case.op].inputs(Direction.FWD), "eps")

    def forward(*arguments: Any) -> Any:
        return function(**dict(zip(names, arguments, strict=True)))

    return forward


def returned(*outputs: Tensor | None) -> Any:
    """Those outputs that an op has; one alone is not a tuple."""
    present = tuple(output for output in outputs if output is not None)
    return present if len(present) > 1 else present[0]


def forward_backward(case: Case, function: Callable[..., Any]) -> Bind:
    """Bind a differentiable function as one call that goes forward and back, through autograd."""
    op = OPS[case.op]

    def bind(inputs: Inputs) -> Call:
        # detached aliases: the inputs themselves must not begin to require gradients
        leaves = {name: inputs[name].detach().requires_grad_() for name in op.inputs(Direction.FWD)}
        arguments, wanted = (*leaves.values(), inputs.eps), tuple(leaves[name] for name in ("x", *op.weights))
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
    """Pay for what every first compilation pays for while the others are still starting as well.

    On a CPU one tiny compilation took 4 s of the first case away, most of it imports (two cores, November).
    """
    with suppress(Exception):  # said again where it matters
        importlib.import_module("torch._inductor.compile_fx")
        if not torch.cuda.is_available():
            compiled(_tiny)(torch.zeros(8))


def _tiny(x: Any) -> Any:
    return x + 1


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """torch.compile, for exactly these shapes unless `dynamic` says otherwise.

    The reset matters: after an earlier case, the second shape would be compiled for any shape, and be slower.
    """
    _trust_the_vector_units()
    torch._dynamo.reset()
    return torch.compile(function, **{"dynamic": False, **options})


@functools.cache
def _trust_the_vector_units() -> None:
    """Spare Inductor its probes of the CPU's vector extensions, once the compiler has been seen to know them.

    It compiles and loads a small library for each: 5 s with an empty cache and 1.5 s in every later process.
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
        return  # it probes as usual
