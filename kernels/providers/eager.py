"""Torch without a compiler.  Facts say which of its operators ran."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..cases import OPS, Case, Direction, Op
from ..checks.inputs import DTYPES, Inputs
from .base import Bind, Call, Provider, Unsupported, by_name, by_position, returned
from .operators import Function, backward_of, forward_of, in_fp32, rounds_twice, too_coarse

REFUSALS = (RuntimeError, NotImplementedError, AttributeError)  # mixed dtypes, or no such operator on the device
# RuntimeErrors of the device, which do not mean that the variant is unsupported.
DEVICE_ERRORS: tuple[type[BaseException], ...] = (
    torch.OutOfMemoryError,
    getattr(torch, "AcceleratorError", MemoryError),
)

Variant = TypeVar("Variant")
Result = TypeVar("Result")


class Eager(Provider):
    """Forward: `torch.nn.functional`.  Backward: torch's backward operator, or autograd if there is none."""

    name = "eager"

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        op = OPS[case.op]
        if case.direction is Direction.FWD:
            return _first_that_binds(*map(by_name, _variants(case, forward_of(op))))
        by_operator = map(by_name, _variants(case, backward_of(op)))
        by_autograd = (
            _by_autograd(variant) for variant in _variants(case, _forward_of_sum(op)) if op.norm == "rmsnorm"
        )
        return _first_that_binds(*by_operator, *by_autograd)

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        variants = _variants(case, forward_of(OPS[case.op]))
        return by_position(case, _first_that_runs(*(variants[-1:] if too_coarse(case, device) else variants)))


def _variants(case: Case, function: Function) -> tuple[Function, ...]:
    wide = in_fp32(function)
    return (wide,) if rounds_twice(case, OPS[case.op]) else (function, wide)


def _forward_of_sum(op: Op) -> Function:
    """The forward function of x as in a backward pass, where x already includes the residual."""
    norm = forward_of(op)

    def forward(**given: Any) -> Any:
        return norm(**given), given["x"]

    return forward if op.residual else norm


def _by_autograd(forward: Function) -> Bind:
    """Autograd's backward pass; binding runs the forward pass."""

    def bind(inputs: Inputs) -> Call:
        op = OPS[inputs.case.op]
        x = inputs["x"]
        values: dict[str, Tensor] = {name: inputs[name] for name in ("x", "weight") if name in inputs.tensors}
        if op.bias:
            values["bias"] = torch.zeros(x.shape[-1], dtype=DTYPES[inputs.case.weight_dtype], device=x.device)
        # detached aliases: the inputs must not require gradients
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        with torch.enable_grad():
            outputs = forward(**leaves, eps=inputs.eps)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        gradients = tuple(inputs[name] for name in ("dy", *("dresidual_out",) * op.residual))
        wanted = tuple(leaves.values())
        return lambda: returned(*torch.autograd.grad(outputs, wanted, gradients, retain_graph=True))

    return bind


def _first_that_runs(*variants: Function) -> Function:
    """Choose at the first call.  The result raises Unsupported if no variant runs."""
    chosen: list[Function] = []

    def function(**arguments: Any) -> Any:
        if chosen:
            return chosen[0](**arguments)
        variant, outputs = _first(variants, lambda variant: variant(**arguments))
        chosen.append(variant)
        return outputs

    return function


def _first_that_binds(*variants: Bind) -> Bind:
    """Choose by calling with the first inputs.  The result raises Unsupported if no variant runs."""
    chosen: list[Bind] = []

    def bind(inputs: Inputs) -> Call:
        if chosen:
            return chosen[0](inputs)

        def bound(variant: Bind) -> Call:
            call = variant(inputs)
            call()
            return call

        variant, call = _first(variants, bound)
        chosen.append(variant)
        return call

    return bind


def _first(variants: Sequence[Variant], run: Callable[[Variant], Result]) -> tuple[Variant, Result]:
    """The first variant that runs, and its result.  Raises Unsupported with the errors of all."""
    errors = []
    for variant in variants:
        try:
            return variant, run(variant)
        except DEVICE_ERRORS:
            raise
        except REFUSALS as error:
            errors.append(str(error).splitlines()[0])
    raise Unsupported("; ".join(errors))
