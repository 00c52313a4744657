"""Temporarily empty the compile caches of torch.compile, Triton and Quack."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}  # read at each compilation

Cache = MutableMapping[Any, Any]


@dataclass(frozen=True)
class TritonCaches:
    """The caches in this process of some Triton functions and of their autotuners."""

    kernels: tuple[Cache, ...] = ()  # of each function: by device, its compiled kernels (Triton 3.6, 3.7)
    choices: tuple[Cache, ...] = ()

    @classmethod
    def of(cls, call: Callable[[], Any]) -> Self:
        """The caches of the functions that `call` runs."""
        jit: Any = sys.modules.get("triton.runtime.jit")
        autotuner: Any = sys.modules.get("triton.runtime.autotuner")
        kernels: dict[int, Cache] = {}
        choices: dict[int, Cache] = {}
        with ExitStack() as observed:
            if jit is not None:
                observed.enter_context(_recording(jit.JITFunction, "device_caches", kernels))
            if autotuner is not None:
                observed.enter_context(_recording(autotuner.Autotuner, "cache", choices))
            call()
        return cls(tuple(kernels.values()), tuple(choices.values()))

    def __len__(self) -> int:
        """Number of compiled kernels."""
        return sum(len(of_device[0]) for cache in self.kernels for of_device in cache.values())


@contextmanager
def _recording(kind: Any, cache: str, found: dict[int, Cache]) -> Iterator[None]:
    run = kind.run

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with suppress(AttributeError):
            found[id(self)] = getattr(self, cache)
        return run(self, *args, **kwargs)

    kind.run = recorded
    try:
        yield
    finally:
        kind.run = run


def quack_caches() -> list[Cache]:
    """Quack 0.6 keeps compiled kernels in a dictionary of each function that compiles."""
    functions = [
        function
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "quack"
        for function in vars(module).values()
        if callable(getattr(function, "cache_clear", None)) and isinstance(getattr(function, "cache", None), dict)
    ]
    return list({id(function): function.cache for function in functions}.values())


@contextmanager
def empty_caches(triton: TritonCaches) -> Iterator[None]:
    """Empty all caches, as in a new process on a new machine, and restore them afterwards.

    Only torch.compile's results are not restored: the next call compiles again, from the cache on disk.
    """
    quack: Any = sys.modules.get("quack.cache")
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        for variable, name in _FOLDERS.items():
            undo.callback(_set, variable, os.environ.get(variable))
            _set(variable, str(folder / name))
        if quack is not None:
            undo.callback(setattr, quack, "CACHE_DIR", quack.CACHE_DIR)
            quack.CACHE_DIR = str(folder / "quack")
        for cache in (*triton.kernels, *triton.choices, *quack_caches()):
            undo.callback(_restore, cache, dict(cache))
            cache.clear()
        undo.callback(forget_compiled)
        forget_compiled()
        yield


def forget_graphs() -> None:
    """Reset torch.compile, which would compile a second shape for any shape.

    Does nothing if torch.compile has not compiled anything: on a GPU the reset imports all of Inductor, which cost
    Quack, which imports only dynamo, 2.4 s at the first case of each trial (H200, November).
    """
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is None:
        return
    codes = getattr(frames, "input_codes", None)
    if codes is None or getattr(codes, "seen", True):
        torch._dynamo.reset()


def forget_compiled() -> None:
    """Drop what torch.compile keeps in this process; its caches on disk stay."""
    forget_graphs()
    if utils := sys.modules.get("torch._inductor.utils"):
        utils.clear_caches()


def _set(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


def _restore(cache: Cache, content: dict[Any, Any]) -> None:
    cache.clear()
    cache.update(content)
