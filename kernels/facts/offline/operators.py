"""Run the Python code of operators that a target registers; without a GPU torch would only infer their shapes."""

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..trace import Operators, python_code


class EnteringOffline(Operators):
    """Records the operators of a call, and runs the Python code that the target registered for CUDA."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = python_code(func)
        if inside is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:  # an operator may call another
            return inside(*args, **(kwargs or {}))


def unobserved() -> AbstractContextManager[Any]:
    """Disable `EnteringOffline` if it is active: torch.compile does not compile under an unknown mode."""
    modes: Any = importlib.import_module("torch.utils._python_dispatch")
    return (
        modes._pop_mode_temporarily()
        if isinstance(modes._get_current_dispatch_mode(), EnteringOffline)
        else nullcontext()
    )
