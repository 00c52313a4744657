"""Inductor without a GPU: torch.compile goes all its way, to where a kernel would be launched.

Dynamo, the lowering for CUDA, its heuristics and Triton run as they do on a GPU.  What is different is that nothing can
be timed: of the configurations of a kernel the first is compiled (where it does not fit, those after it, as Inductor
would), and it is told how many there were.  Such a kernel is the same as another only where all candidates and the
generated code are.
"""

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

import torch

from ..hashing import normalised
from .architectures import Architecture
from .launches import Launches
from .operators import unobserved
from .pretend import properties_of

_EXTERN = re.compile(r"^[ \t]+(?:\w+ = )?((?:extern_kernels\.|torch\.ops\.(?!inductor\.))\w.*)$", re.MULTILINE)
_EMPTY = re.compile(r"empty_strided")


def seen_through(architecture: Architecture, launches: Launches) -> Callable[[], "Inductor | None"]:
    """From here on torch.compile works without a GPU.  The answer is None until somebody calls it: it takes seconds."""
    found: list[Inductor] = []
    torch_compile = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile, **options)
        if not found:
            found.append(Inductor(architecture, launches))
        compiled: Any = torch_compile(model, **options)
        if isinstance(model, torch.nn.Module):
            return compiled

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            with unobserved():
                return compiled(*args, **kwargs)

        return call

    whole: Any = torch
    whole.compile = compile
    return lambda: found[0] if found else None


class Inductor:
    """What Inductor is asked for while a case runs.  One for a process: Inductor is changed for good."""

    def __init__(self, architecture: Architecture, launches: Launches) -> None:
        self._launches = launches
        self._generated: list[str] = []
        _pretend(architecture)
        self._choose_without_timing()
        graph: Any = importlib.import_module("torch._inductor.graph")
        graph.GraphLowering.save_output_code = staticmethod(self._keep)

    def clear(self) -> None:
        self._generated.clear()

    @property
    def extern(self) -> list[str]:
        """Calls of operators that Inductor left as they are, in the generated code."""
        calls = [call for code in self._generated for call in _EXTERN.findall(normalised(code))]
        return [call for call in calls if not _EMPTY.search(call)]

    def _keep(self, code: str) -> None:
        if code not in self._generated:
            self._generated.append(code)

    def _choose_without_timing(self) -> None:
        heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
        tuner: Any = heuristics.CachingAutotuner
        compile_all, load, run = tuner._precompile_worker, tuner._make_launchers, tuner.run

        def compile_first(self: Any) -> None:
            if self.compile_results:
                return
            configs = list(self.configs)
            self._kernelwatch_configs = configs
            self.configs = configs[:1]
            try:
                compile_all(self)
            except Exception:
                if len(configs) == 1:
                    raise
                self.configs = configs[1:]
                compile_all(self)

        def load_first(self: Any) -> None:
            try:
                load(self)
            except RuntimeError:
                configs = self._kernelwatch_configs
                if len(configs) == 1:
                    raise
                self.configs, self.compile_results = configs[1:], []
                compile_all(self)
                load(self)

        def first(self: Any, *_: Any, **__: Any) -> None:
            self.launchers = self.launchers[:1]

        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            return noting(self, run, args, kwargs)

        noting = self._noting
        tuner._precompile_worker, tuner._make_launchers, tuner.run = compile_first, load_first, noted
        tuner.autotune_to_one_config = first
        tuner._dynamic_scale_rblock = lambda _: None
        tuner.coordinate_descent_tuning = lambda _, launcher, *__, **___: launcher

    def _noting(self, tuner: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = len(self._launches.seen)
        returned = run(tuner, *args, **kwargs)
        for launch in self._launches.seen[before:]:
            config = tuner.launchers[0].config
            launch.settings = {str(name): value for name, value in config.kwargs.items()}
            launch.candidates = len(getattr(tuner, "_kernelwatch_configs", ())) or 1
            named = [code for code in self._generated if f"'{tuner.fn.__name__}'" in code]
            launch.source = normalised(named[-1]) if named else str(tuner.fn.src)
            if launch.candidates > 1:
                launch.uncompiled = f"{sorted(map(str, tuner._kernelwatch_configs))} {launch.source}"
        return returned


def _pretend(architecture: Architecture) -> None:
    """Answer what Inductor asks of a device past `torch.cuda`."""
    interfaces: Any = importlib.import_module("torch._dynamo.device_interface")
    interfaces.init_device_reg()
    cuda: Any = interfaces.CudaInterface
    properties = properties_of(architecture)
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "get_device_properties": properties,
        "get_compute_capability": architecture.number,
        "get_raw_stream": 0,
        "synchronize": None,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "is_bf16_supported": True,
    }
    for name, answer in answers.items():
        setattr(cuda, name, staticmethod(lambda *_, _answer=answer, **__: _answer))
    cuda.Worker.get_device_properties = staticmethod(lambda *_, **__: properties)
    cuda.Worker.current_device = staticmethod(lambda: 0)
    core: Any = torch._C
    core._dynamo.guards._empty_strided_cuda = _empty_strided
    helpers: Any = importlib.import_module("torch._inductor.runtime.triton_helpers")
    helpers.set_driver_to_gpu = lambda: None
    config: Any = importlib.import_module("torch._inductor.config")
    for name in ("use_static_cuda_launcher", "use_static_triton_launcher"):  # it loads cubins past Triton
        if hasattr(config, name):
            setattr(config, name, False)
    wrapper: Any = importlib.import_module("torch._inductor.codegen.wrapper")  # a region by itself is timed at once
    wrapper.PythonWrapperCodegen.generate_and_run_autotune_block = lambda _: None
    # patterns of whole subgraphs are traced with real tensors first: on the CPU, they fit any device
    for name in ("joint_graph", "post_grad"):
        passes: Any = importlib.import_module(f"torch._inductor.fx_passes.{name}")
        passes.lazy_init = _on_cpu(passes.lazy_init)


def _on_cpu(prepare: Any) -> Any:
    return lambda *_: prepare(torch.device("cpu"))


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> Any:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
