"""The implementations that can be measured: those kernelwatch brings, and those that a target's recipe names."""

from collections.abc import Callable, Mapping
from typing import Any

from .base import Broken, Provider, Unsupported, forward_backward

__all__ = ["Broken", "Provider", "Unsupported", "forward_backward", "open_provider"]


def open_provider(spec: Mapping[str, Any]) -> Provider:
    """The provider of a start message, imported as far as it can be.  Raises Unsupported for a name nobody knows."""
    name = str(spec["name"])
    if not spec.get("builtin"):
        from .recipe import RecipeProvider

        return RecipeProvider(name, spec.get("calls") or {}, bool(spec.get("compile")))
    if name not in _BUILT_IN:
        raise Unsupported(f"there is no built-in provider {name!r}; known: {', '.join(_BUILT_IN)}")
    return _BUILT_IN[name]()


def _eager() -> Provider:
    from .eager import Eager

    return Eager()


def _inductor() -> Provider:
    from .inductor import Inductor

    return Inductor()


def _quack() -> Provider:
    from .quack import Quack

    return Quack()


def _liger() -> Provider:
    from .liger import Liger

    return Liger()


def _triton() -> Provider:
    from .ours import Ours

    return Ours()


_BUILT_IN: dict[str, Callable[[], Provider]] = {
    "eager": _eager,
    "inductor": _inductor,
    "quack": _quack,
    "liger": _liger,
    "triton": _triton,
}
