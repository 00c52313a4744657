"""Compile Triton kernels where they would be launched, and record the launches instead."""

import functools
import importlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..architectures import Architecture, over_the_limit


@dataclass
class Launch:
    """One launch of a kernel.  `kernel` is Triton's CompiledKernel, or has its `asm` and `metadata`."""

    kernel: Any
    grid: tuple[int, ...] | None = None
    arguments: tuple[Any, ...] = ()
    settings: dict[str, Any] | None = None  # None: the kernel's own constants
    name: str | None = None
    source: str | None = None  # the source code, if the kernel does not have it
    over: str | None = None
    candidates: int = 1
    choices: list["Launch"] = field(default_factory=list)  # the candidates that an autotuner would time on a GPU
    shown: "Launch | None" = None  # the choice that represents all of them
    uncompiled: str = ""  # the other candidates, if only one was compiled


class Launches:
    """Collects the launches of Triton, which is patched permanently: use one instance per process."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self.seen: list[Launch] = []
        self.refused: list[Launch] = []
        compiler: Any = importlib.import_module("triton.compiler.compiler")
        autotuner: Any = importlib.import_module("triton.runtime.autotuner")
        errors: Any = importlib.import_module("triton.compiler.errors")
        self.out_of_resources = autotuner.OutOfResources
        self._skipped_errors = (autotuner.OutOfResources, autotuner.PTXASError, errors.CompileTimeAssertionFailure)
        self._run_tuned = autotuner.Autotuner.run
        self._trying: list[Launch] | None = None

        def load(kernel: Any) -> None:
            self._load(kernel)

        def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
            return self._tried(tuner, config, args, meta)

        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            return self._tuned(tuner, args, kwargs)

        compiler.CompiledKernel._init_handles = load
        autotuner.Autotuner._bench = bench
        autotuner.Autotuner.run = run

    def clear(self) -> None:
        self.seen = []
        self.refused = []
        self._trying = None

    def _load(self, kernel: Any) -> None:
        """Replaces the loading of a kernel: raise what the driver would raise, or record its launches."""
        if kernel.module is not None:
            return
        if over := over_the_limit(self._architecture, kernel.metadata):
            self.refused.append(Launch(kernel, over=over))
            what, _, numbers = over.partition(": asks for ")
            wanted, _, _, limit = numbers.split()
            raise self.out_of_resources(int(wanted), int(limit), what)
        kernel.n_regs, kernel.n_spills, kernel.n_max_threads = 0, 0, 1024
        kernel.module = kernel.function = 0
        kernel._run = functools.partial(self._launched, kernel)

    def _launched(self, kernel: Any, x: int, y: int, z: int, *more: Any) -> None:
        """Called as a launcher: grid, stream, function, metadata (2), hooks (2; 3.6, 3.7), the kernel's arguments."""
        self.add(Launch(kernel, (int(x), int(y), int(z)), more[6:]))

    def add(self, launch: Launch) -> None:
        (self.seen if self._trying is None else self._trying).append(launch)

    def _tuned(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let the autotuner choose the first candidate that compiles, as nothing can be timed."""
        tuner.cache.clear()  # an earlier case with the same key must not hide the candidates
        tuner.cache_results = False  # a choice without timing must not be cached for a GPU
        outer = self._trying
        self._trying = []
        choices: list[Launch] = []
        tuner._kernelwatch_choices = choices
        try:
            returned = self._run_tuned(tuner, *args, **kwargs)
            launched = self._trying
        finally:
            self._trying = outer
        for launch in launched:
            launch.choices = choices if len(tuner.configs) > 1 else []
        (self.seen if outer is None else outer).extend(launched)
        return returned

    def _tried(self, tuner: Any, config: Any, args: tuple[Any, ...], meta: dict[str, Any]) -> list[float]:
        """Compile a configuration instead of timing it.  The first that compiles wins."""
        choices: list[Launch] = tuner._kernelwatch_choices
        wins = float(any(choice.over is None for choice in choices))
        outer = self._trying
        self._trying = []
        refused = len(self.refused)
        try:
            with suppress(*self._skipped_errors):
                if config.pre_hook:
                    config.pre_hook({**tuner.nargs, **meta, **config.all_kwargs()})
                tuner.fn.run(*args, **{**meta, **config.all_kwargs()})
            tried = self._trying
        finally:
            self._trying = outer
        choices += [*tried, *self.refused[refused:]]
        del self.refused[refused:]  # a candidate of an autotuner may exceed a limit
        return [wins if tried else float("inf")] * 3
