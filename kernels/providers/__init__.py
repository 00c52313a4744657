"""The implementations that can be measured: those of kernelwatch, and those in a target's recipe."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ..cases import Rounding
from .base import Broken, Provider, Unsupported, forward_backward

__all__ = ["Broken", "Provider", "Unsupported", "forward_backward", "open_provider"]

# By the names of cases.BUILT_IN_PROVIDERS; a module is imported when its provider is opened.
_BUILT_IN = {
    "eager": "eager:Eager",
    "inductor": "inductor:Inductor",
    "inductor-max-autotune": "inductor:MaxAutotune",
    "inductor-coordinate-descent": "inductor:CoordinateDescent",
    "inductor-dynamic": "inductor:Dynamic",
    "inductor-automatic-dynamic": "inductor:AutomaticDynamic",
    "inductor-regional": "regional:Regional",
    "quack": "quack:Quack",
    "quack-tuned": "quack_tuned:QuackTuned",
    "liger": "liger:Liger",
    "flashinfer": "engines:FlashInfer",
    "vllm": "engines:VLLM",
    "triton": "ours:Ours",
}


def open_provider(spec: Mapping[str, Any]) -> Provider:
    """The provider of a start message.  Raises Unsupported for an unknown name."""
    builtin = spec.get("builtin")
    if not builtin:
        from ..functions import Function
        from .modes import Mode
        from .recipe import RecipeProvider

        mode = Mode.of(spec["compile"]) if spec.get("compile") else None
        rounding = Rounding(spec.get("rounding", Rounding.AFTER_WEIGHT))
        inplace = bool(spec.get("inplace"))
        functions = {name: Function.of(given) for name, given in (spec.get("functions") or {}).items()}
        return RecipeProvider(str(spec["name"]), spec.get("calls") or {}, mode, rounding, inplace, functions)
    provider = _of_study(str(spec["study"]), spec.get("options") or {}) if spec.get("study") else _built_in(builtin)
    provider.name = str(spec["name"])
    return provider


def _built_in(name: str) -> Provider:
    if name not in _BUILT_IN:
        raise Unsupported(f"there is no built-in provider {name!r}; known: {', '.join(_BUILT_IN)}")
    module, _, kind = _BUILT_IN[name].partition(":")
    make: Callable[[], Provider] = getattr(importlib.import_module(f".{module}", __name__), kind)
    return make()


def _of_study(place: str, options: Mapping[str, Any]) -> Provider:
    """An arm of a study, `module:Class`; the process can import the module (`python -P -m kernels.contender`)."""
    module, _, kind = place.partition(":")
    made: Provider = getattr(importlib.import_module(module), kind)(**options)
    return made
