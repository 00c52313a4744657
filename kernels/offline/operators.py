"""Operators that a target registers itself are entered: without a GPU torch would only ask for their shapes."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..observing import Operators


class Through(Operators):
    """Notes the operators of a call, and runs what Python code was registered for CUDA with those of the target."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = _registered(func)
        if inside is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:  # an operator may call another
            return inside(*args, **(kwargs or {}))


def unobserved() -> AbstractContextManager[Any]:
    """Out of sight of `Through`, if it looks: nothing is compiled under a mode that it does not know."""
    modes: Any = importlib.import_module("torch.utils._python_dispatch")
    return modes._pop_mode_temporarily() if isinstance(modes._get_current_dispatch_mode(), Through) else nullcontext()


def _registered(func: Any) -> Callable[..., Any] | None:
    """The Python function behind an operator; None for one of torch, and for one written in C++."""
    if func.namespace in ("aten", "prims", "prim"):
        return None
    name = func.name().split(".")[0]
    definition = importlib.import_module("torch._library.custom_ops").OPDEFS.get(name)
    if definition is not None:
        chosen: Callable[..., Any] = definition._backend_fns.get("cuda") or definition._init_fn
        return chosen
    library: Any = torch.library
    if f"{name.replace('::', '/')}/CUDA" in getattr(library, "_impls", ()):
        core: Any = torch._C
        return lambda *args, **kwargs: func._op_dk(core.DispatchKey.CUDA, *args, **kwargs)
    return None
