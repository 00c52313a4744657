"""What torch does when nobody compiles anything.  "Eager" is not one thing: the facts say which operators ran."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..cases import OPS, Case, Direction, Op
from ..checks.inputs import DTYPES, Inputs
from .base import Bind, Call, Provider, Unsupported, by_name, by_position, returned
from .operators import Function, backward_of, forward_of, in_fp32, rounds_twice, too_coarse

REFUSALS = (RuntimeError, NotImplementedError, AttributeError)  # mixed dtypes, or an operator that a device has not
# RuntimeErrors as well that say nothing about the way: of the device, and after the second nothing works any more.
TROUBLES: tuple[type[BaseException], ...] = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", MemoryError))

Way = TypeVar("Way")
Result = TypeVar("Result")


class Eager(Provider):
    """`torch.nn.functional` forwards; backwards its own backward operator, or autograd where there is none."""

    name = "eager"

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        op = OPS[case.op]
        if case.direction is Direction.FWD:
            return _first_that_binds(*map(by_name, _ways(case, forward_of(op))))
        by_operator = map(by_name, _ways(case, backward_of(op)))
        by_autograd = (_by_autograd(way) for way in _ways(case, _of_the_sum(op)) if op.norm == "rmsnorm")
        return _first_that_binds(*by_operator, *by_autograd)

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        ways = _ways(case, forward_of(OPS[case.op]))
        return by_position(case, _first_that_runs(*(ways[-1:] if too_coarse(case, device) else ways)))


def _ways(case: Case, function: Function) -> tuple[Function, ...]:
    wide = in_fp32(function)
    return (wide,) if rounds_twice(case, OPS[case.op]) else (function, wide)


def _of_the_sum(op: Op) -> Function:
    """The forward function of what was normalised: backwards, x is the sum with the residual already."""
    norm = forward_of(op)

    def forward(**given: Any) -> Any:
        return norm(**given), given["x"]

    return forward if op.residual else norm


def _by_autograd(forward: Function) -> Bind:
    """The backward pass as autograd runs it; the forward pass is over before the clock starts."""

    def bind(inputs: Inputs) -> Call:
        op, x = OPS[inputs.case.op], inputs["x"]
        values: dict[str, Tensor] = {name: inputs[name] for name in ("x", "weight") if name in inputs.tensors}
        if op.bias:
            values["bias"] = torch.zeros(x.shape[1], dtype=DTYPES[inputs.case.weight_dtype], device=x.device)
        # detached aliases: the inputs themselves must not begin to require gradients
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        with torch.enable_grad():
            outputs = forward(**leaves, eps=inputs.eps)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        gradients = tuple(inputs[name] for name in ("dy", *("dresidual_out",) * op.residual))
        wanted = tuple(leaves.values())
        return lambda: returned(*torch.autograd.grad(outputs, wanted, gradients, retain_graph=True))

    return bind


def _first_that_runs(*ways: Function) -> Function:
    """Tried at the first call; Unsupported when none runs."""
    chosen: list[Function] = []

    def function(**arguments: Any) -> Any:
        if chosen:
            return chosen[0](**arguments)
        way, outputs = _tried(ways, lambda way: way(**arguments))
        chosen.append(way)
        return outputs

    return function


def _first_that_binds(*ways: Bind) -> Bind:
    """The same for calls, each tried once with the first inputs."""
    chosen: list[Bind] = []

    def bind(inputs: Inputs) -> Call:
        if chosen:
            return chosen[0](inputs)

        def bound(way: Bind) -> Call:
            call = way(inputs)
            call()
            return call

        way, call = _tried(ways, bound)
        chosen.append(way)
        return call

    return bind


def _tried(ways: Sequence[Way], run: Callable[[Way], Result]) -> tuple[Way, Result]:
    """The first way that runs, with what it gave.  Raises Unsupported with what each of them said."""
    troubles = []
    for way in ways:
        try:
            return way, run(way)
        except TROUBLES:
            raise
        except REFUSALS as trouble:
            troubles.append(str(trouble).splitlines()[0])
    raise Unsupported("; ".join(troubles))
