"""Does getting ready time candidates on the device?  Then it needs the device alone, and may choose again each launch.

Triton's autotuner times its configurations at the first call in a process, Inductor's at the first call of a kernel
that is not in its cache.  Beside other contenders' work such times are noise, and so is the choice.  A preparation
that comes to such a timing while others use the device is given up, and repeated when nobody else does.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

_TRITON = "triton.runtime.autotuner", "Autotuner"
_INDUCTOR = "torch._inductor.runtime.triton_heuristics", "CachingAutotuner"


class NeedsDevice(BaseException):
    """Candidates are about to be timed while others use the device.  No target catches it by `except Exception`."""


@dataclass
class Tuning:
    """What was seen of one preparation."""

    alone: bool
    refused: bool = False  # candidates were about to be timed, and were not
    chosen: dict[str, str] = field(default_factory=dict)  # by kernel, what an autotuner with a choice launched

    def begin(self) -> None:
        """Raises NeedsDevice unless the device is this process's alone."""
        if not self.alone:
            self.refused = True
            raise NeedsDevice("it times candidates on the device")

    def note(self, tuner: Any) -> None:
        """The configurations of a kernel that is called in several ways are joined."""
        if len(tuner.configs) < 2:
            return
        name, config = str(tuner.base_fn.__name__), configuration(tuner.best_config)
        known = self.chosen.get(name)
        if known is None:
            self.chosen[name] = config
        elif config not in known.split(" | "):
            self.chosen[name] = f"{known} | {config}"


def configuration(config: Any) -> str:
    """`BLOCK=1024 num_warps=4 num_stages=2`, of a triton.Config."""
    options = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    return " ".join(f"{name}={value}" for name, value in options.items() if value is not None)


@contextmanager
def watched(*, alone: bool, on_gpu: bool, compiled: bool) -> Iterator[Tuning]:
    """Watch the autotuners of this process.

    What is not imported is not watched: Triton unless `on_gpu`, Inductor unless the provider is `compiled`.
    """
    tuning = Tuning(alone)

    def timing(original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            tuning.begin()
            return original(tuner, *args, **kwargs)

        return observed

    def launching(original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tuner, *args, **kwargs)
            with suppress(Exception):
                tuning.note(tuner)
            return result

        return observed

    with ExitStack() as patched:
        if on_gpu or "triton" in sys.modules:
            patched.enter_context(_replaced(_TRITON, "_bench", timing))
            patched.enter_context(_replaced(_TRITON, "run", launching))
        if compiled or _INDUCTOR[0] in sys.modules:  # importing it takes seconds, for Quack in vain
            patched.enter_context(_replaced(_INDUCTOR, "bench", timing))
        yield tuning


@contextmanager
def _replaced(place: tuple[str, str], name: str, wrapped: Callable[..., Any]) -> Iterator[None]:
    """A method, replaced for all objects of its class; nothing where there is none."""
    module, of = place
    try:
        kind: Any = getattr(importlib.import_module(module), of)
        before = getattr(kind, name)
    except Exception:  # no Triton here, or one that is built otherwise
        yield
        return
    setattr(kind, name, wrapped(before))
    try:
        yield
    finally:
        setattr(kind, name, before)
