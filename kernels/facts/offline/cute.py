"""Compile kernels of the CuTe DSL (Quack 0.6.5 with CUTLASS DSL 4.8) for an architecture, and do not launch them.

The DSL compiles without a GPU if CUTE_DSL_ARCH is set before its import.  With CUTE_DSL_KEEP, a compiled function has
its cubin, PTX and IR as attributes.
"""

import importlib
import math
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ..architectures import Architecture
from .launches import Launch, Launches

_SHARED = re.compile(r'(!\w+) = !cute\.memref<i8, smem, align<(\d+)>, "(\d+):1">')
_ALLOCATION = re.compile(r"cute\.memref\.alloca\(\) \{smem[^}]*\} : (!\w+)")
_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_CLUSTER = re.compile(r"exact_cluster_dim = array<i64: (\d+), (\d+), (\d+)>")
_ENTRY = re.compile(r"\.entry\s+(?:kernel_cutlass_(?:kernel_)?)?(\w+?)(?:_object_at_\w*)?\(")


def prepare_environment(architecture: str) -> None:
    """Set environment variables; call it before the DSL and Quack are imported."""
    os.environ["CUTE_DSL_ARCH"] = os.environ["QUACK_ARCH"] = f"{architecture}a"
    os.environ["CUTE_DSL_KEEP"] = "ir,ptx,cubin"
    # it also writes these files into a folder, by default the current one; see `dumps`
    folder = f"kernelwatch-cute-{os.getpid()}-{secrets.token_hex(8)}"
    os.environ["CUTE_DSL_DUMP_DIR"] = os.path.join(tempfile.gettempdir(), folder)
    os.environ["QUACK_CACHE_ENABLED"] = "0"  # its cache on disk holds an object file for the CPU, without the cubin


@contextmanager
def dumps() -> Iterator[None]:
    """Create the folder that the DSL writes into, and delete it afterwards: the DSL also keeps the code in memory."""
    folder = os.environ["CUTE_DSL_DUMP_DIR"]
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Cute:
    """Replaces `cute.compile`."""

    def __init__(self, architecture: Architecture, launches: Launches) -> None:
        self._architecture = architecture
        self._launches = launches
        self._done = False

    def install(self) -> None:
        """Replace `cute.compile` if it has been imported."""
        cute: Any = sys.modules.get("cutlass.cute")
        if self._done or not hasattr(cute, "compile"):
            return
        self._done = True
        cute.compile = _Compile(cute.compile, self._launches)
        _answer_for_shared_memory(self._architecture)


class _Compile:
    def __init__(self, compile: Any, launches: Launches) -> None:
        self._compile = compile
        self._launches = launches

    def __getitem__(self, options: Any) -> "_Compile":
        return _Compile(self._compile[options], self._launches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compile, name)

    def __call__(self, *args: Any, **kwargs: Any) -> "_Function":
        return _Function(self._compile(*args, **kwargs), self._launches)


class _Function:
    """A compiled function that records its calls.  Its grid is unknown: host machine code computes it."""

    def __init__(self, compiled: Any, launches: Launches) -> None:
        self._launches = launches
        cubin, ptx, ir = compiled.__cubin__, compiled.__ptx__ or "", str(compiled.__mlir__ or "")
        if not isinstance(cubin, bytes):
            raise RuntimeError("this CUTLASS DSL does not keep cubins; install nvidia-cutlass-dsl 4.8")
        threads = _product(_THREADS, ptx)
        cluster = _product(_CLUSTER, ir)
        named = _ENTRY.search(ptx)
        self._kernel = SimpleNamespace(
            asm={"cubin": cubin, "ptx": ptx},
            metadata=SimpleNamespace(
                name=named[1] if named else "kernel",
                shared=shared_bytes(ir),
                num_warps=max(1, threads // 32),
                num_stages=None,
                num_ctas=cluster,
            ),
        )
        self._settings = {"threads": threads, "cluster": cluster}
        self._ir = ir

    def __call__(self, *args: Any, **_: Any) -> None:
        self._launches.add(Launch(self._kernel, arguments=args, settings=self._settings, source=self._ir))


def shared_bytes(ir: str) -> int:
    """Shared memory of a block: the sum of the aligned allocations in the kernel's IR."""
    types = {name: (int(align), int(size)) for name, align, size in _SHARED.findall(ir)}
    total = 0
    for name in _ALLOCATION.findall(ir):
        align, size = types.get(name, (1, 0))
        total = -(-total // align) * align + size
    return total


def _product(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return math.prod(int(number or 1) for number in found.groups()) if found else 1


def _answer_for_shared_memory(architecture: Architecture) -> None:
    """Answer the only query of the DSL to the driver during compilation (for several blocks on an SM)."""
    helpers: Any = importlib.import_module("cutlass.base_dsl.runtime.cuda")
    attribute: Any = helpers.cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    query = helpers.get_device_attribute

    def answer(which: Any, *where: Any) -> Any:
        return architecture.shared_per_sm if which == attribute else query(which, *where)

    helpers.get_device_attribute = answer
