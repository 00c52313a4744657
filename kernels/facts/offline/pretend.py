"""A fake CUDA device: tensors without storage, and the properties that torch and Triton query.

Permanent for the whole process, in which nothing can run on a real device.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ...cases import Case
from ...checks.inputs import ANY_DTYPE, BY_ROW, DTYPES, Inputs, laid_out
from ..architectures import REGISTERS, RESERVED, Architecture

# torch's CUDA allocator aligns to 512 bytes; the value is arbitrary.
ADDRESS = 1 << 20
_CUDA, _META = 1, 14  # c10::DeviceType


def become(architecture: Architecture) -> FakeTensorMode:
    """Make torch and Triton see one device of this architecture.  The returned mode creates tensors on it."""
    properties = properties_of(architecture)
    stream = SimpleNamespace(cuda_stream=0, device=torch.device("cuda", 0), synchronize=_nothing, wait_stream=_nothing)
    answers = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": architecture.capability,
        "get_device_properties": properties,
        "get_device_name": properties.name,
        "is_bf16_supported": True,
        "get_arch_list": [architecture.name],
        "current_stream": stream,
        "default_stream": stream,
        "mem_get_info": (architecture.memory_bytes, architecture.memory_bytes),
        "is_current_stream_capturing": False,
        "init": None,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "_lazy_init": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    cuda: Any = torch.cuda
    for name, answer in answers.items():
        setattr(cuda, name, _always(answer))
    cuda.device = cuda.device_of = cuda.stream = _no_context
    cuda.random._lazy_init = _nothing
    core: Any = torch._C  # generated code imports these by name; a torch without CUDA does not have them
    core._cuda_getCurrentRawStream = _always(0)
    core._cuda_getDeviceCount = _always(1)
    whole: Any = torch
    whole.Generator = _Generator
    _guard_devices()
    torch.version.cuda = torch.version.cuda or "13.0"
    fake: Any = FakeTensor
    fake.data_ptr = lambda tensor: ADDRESS + int(tensor.storage_offset()) * tensor.element_size()
    fake.to = _to
    fake.cuda = lambda tensor, *_, **__: torch.Tensor.to(tensor, torch.device("cuda", 0))
    # keep torch from using the device: it would create a first tensor there (2.11) and move constants to it
    for name in ("init_gpu_context", "init_cuda_context"):  # all known versions look them up when they call them
        vars(fake_tensor)[name] = _nothing
    mode: Any = FakeTensorMode
    mode.avoid_device_init = True
    runtime: Any = triton.runtime
    runtime.driver.set_active(Driver(architecture))
    return FakeTensorMode(allow_non_fake_inputs=True)


def _guard_devices() -> None:
    """Register a device guard for CUDA that does nothing.

    A torch with CUDA has such a guard, and uses it after the call below.  A torch without CUDA has no guard: slicing a
    tensor raises, and a weight that requires gradients ends the process (2.13).  The guard of the meta device does
    nothing either, and is used instead.
    """
    core: Any = torch._C
    core._ensureCUDADeviceGuardSet()
    with contextlib.suppress(OSError, ValueError):
        library = ctypes.CDLL(str(Path(str(torch.__file__)).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * 24).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        if not guards[_CUDA]:
            guards[_CUDA] = guards[_META]


def properties_of(architecture: Architecture) -> Any:
    """The properties in the form of `torch.cuda.get_device_properties`."""
    major, minor = architecture.capability
    return SimpleNamespace(
        # part of the keys of Inductor's caches: this code must not be used on a real device
        name=f"{architecture.name} without a GPU, like {architecture.like}",
        major=major,
        minor=minor,
        multi_processor_count=architecture.sms,
        L2_cache_size=architecture.l2_bytes,
        total_memory=architecture.memory_bytes,
        regs_per_multiprocessor=REGISTERS,
        max_threads_per_multi_processor=architecture.threads_per_sm,
        max_threads_per_block=1024,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=architecture.shared_limit,
        shared_memory_per_multiprocessor=architecture.shared_per_sm,
        reserved_shared_memory_per_block=RESERVED,
        warp_size=32,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid="",
    )


class _Generator(torch.Generator):
    """Always a CPU generator; its numbers are not used."""

    def __new__(cls, device: Any = None) -> Any:  # noqa: ARG004
        make: Any = super().__new__
        return make(cls, device="cpu")


class Driver:
    """Replaces Triton's CUDA driver.  It provides the compile target; nothing can be loaded or launched."""

    def __init__(self, architecture: Architecture) -> None:
        target: Any = triton.backends.compiler.GPUTarget
        self._target = target("cuda", architecture.number, 32)
        self.utils = SimpleNamespace(
            get_device_properties=_always(
                {
                    "max_shared_mem": architecture.shared_limit,
                    "max_num_regs": REGISTERS,
                    "multiprocessor_count": architecture.sms,
                    "warpSize": 32,
                    "sm_clock_rate": 1_980_000,
                    "mem_clock_rate": 3_201_000,
                    "mem_bus_width": 6144,
                }
            ),
            fill_tma_descriptor=_nothing,
        )

    def get_current_target(self) -> Any:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: Any) -> None: ...

    def get_current_stream(self, device: Any = None) -> int:  # noqa: ARG002
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:  # noqa: ARG002
        return divmod(int(self._target.arch), 10)

    def get_benchmarker(self) -> Any:
        return _nothing


def inputs_of(case: Case) -> Inputs:
    """The inputs of `case` without storage.  Call it inside the mode."""

    def tensor(name: str) -> Tensor:
        if name in BY_ROW:
            whole = torch.empty(case.tokens, case.stride or case.cols, dtype=DTYPES[case.dtype], device="cuda")
            return laid_out(case, whole)
        return torch.empty(case.shape(name), dtype=ANY_DTYPE[case.dtypes(name)[0]], device="cuda")

    return Inputs(case, {name: tensor(name) for name in case.inputs})


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to` with an explicit device index, which the guard of the meta device does not add."""
    kwargs = {name: _numbered(value) for name, value in kwargs.items()}
    return torch.Tensor.to(tensor, *map(_numbered, args), **kwargs)


def _numbered(value: Any) -> Any:
    bare = isinstance(value, str | torch.device) and str(value) == "cuda"
    return torch.device("cuda", 0) if bare else value


def _always(answer: Any) -> Any:
    return lambda *_, **__: answer


def _nothing(*_: Any, **__: Any) -> None: ...


@contextlib.contextmanager
def _no_context(*_: Any, **__: Any) -> Iterator[None]:
    yield
