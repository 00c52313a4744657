"""Run torch.compile without a GPU, up to the launch of each kernel.

Dynamo, the lowering for CUDA, its heuristics and Triton run as on a GPU, but nothing can be timed.  Of the
configurations of a kernel only the first is compiled (as in Inductor, the next ones if it does not fit), and their
number is recorded. Two such kernels are equal only if all their candidates and their generated code are.
"""

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

import torch

from ..architectures import Architecture
from ..hashing import normalised
from .launches import Launches
from .operators import unobserved
from .pretend import properties_of

_EXTERN = re.compile(r"^[ \t]+(?:\w+ = )?((?:extern_kernels\.|torch\.ops\.(?!inductor\.))\w.*)$", re.MULTILINE)
_EMPTY = re.compile(r"empty_strided")


def install(architecture: Architecture, launches: Launches) -> Callable[[], "InductorHooks | None"]:
    """Make torch.compile work without a GPU.  Returns a getter of the hooks, None until the first torch.compile."""
    found: list[InductorHooks] = []
    torch_compile = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile, **options)
        if not found:
            found.append(InductorHooks(architecture, launches))
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


class InductorHooks:
    """Records the work of Inductor, which is patched permanently: use one instance per process."""

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
        """Calls of operators in the generated code that Inductor does not compile."""
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
                self.configs = configs[1:]
                self.compile_results = []
                compile_all(self)
                load(self)

        def first(self: Any, *_: Any, **__: Any) -> None:
            self.launchers = self.launchers[:1]

        def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
            return record(self, run, args, kwargs)

        record = self._record
        tuner._precompile_worker, tuner._make_launchers, tuner.run = compile_first, load_first, recorded
        tuner.autotune_to_one_config = first
        tuner._dynamic_scale_rblock = lambda _: None
        tuner.coordinate_descent_tuning = lambda _, launcher, *__, **___: launcher

    def _record(self, tuner: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
    """Answer Inductor's device queries that do not go through `torch.cuda`."""
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
    core._dynamo.guards._reinterpret_tensor = _reinterpret  # its C++ forgets the device of a fake tensor
    helpers: Any = importlib.import_module("torch._inductor.runtime.triton_helpers")
    helpers.set_driver_to_gpu = lambda: None
    config: Any = importlib.import_module("torch._inductor.config")
    for name in ("use_static_cuda_launcher", "use_static_triton_launcher"):  # it loads cubins without Triton
        if hasattr(config, name):
            setattr(config, name, False)
    wrapper: Any = importlib.import_module("torch._inductor.codegen.wrapper")  # would time a region
    wrapper.PythonWrapperCodegen.generate_and_run_autotune_block = lambda _: None
    # patterns of subgraphs are traced with real tensors: trace them on the CPU, they match on any device
    for name in ("joint_graph", "post_grad"):
        passes: Any = importlib.import_module(f"torch._inductor.fx_passes.{name}")
        passes.lazy_init = _on_cpu(passes.lazy_init)


def _on_cpu(prepare: Any) -> Any:
    return lambda *_: prepare(torch.device("cpu"))


def _reinterpret(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> Any:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
