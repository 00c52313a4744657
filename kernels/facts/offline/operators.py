"""Operators that a target registers itself are entered: without a GPU torch would only ask for their shapes."""

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..trace import Operators, python_code


class Through(Operators):
    """Notes the operators of a call, and runs what Python code was registered for CUDA with those of the target."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = python_code(func)
        if inside is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:  # an operator may call another
            return inside(*args, **(kwargs or {}))


def unobserved() -> AbstractContextManager[Any]:
    """Out of sight of `Through`, if it looks: nothing is compiled under a mode that it does not know."""
    modes: Any = importlib.import_module("torch.utils._python_dispatch")
    return modes._pop_mode_temporarily() if isinstance(modes._get_current_dispatch_mode(), Through) else nullcontext()
