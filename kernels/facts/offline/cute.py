"""Kernels of the CuTe DSL (Quack's, of 0.6.5 with CUTLASS DSL 4.8) compiled for an architecture and not launched.

The DSL compiles without a GPU when it is told the architecture (CUTE_DSL_ARCH, before it is imported) and what to keep
(CUTE_DSL_KEEP); a compiled function then has its cubin, PTX and IR as attributes.
"""

import importlib
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

from .architectures import Architecture
from .launches import Launch, Launches

_SHARED = re.compile(r'(!\w+) = !cute\.memref<i8, smem, align<(\d+)>, "(\d+):1">')
_ALLOCATION = re.compile(r"cute\.memref\.alloca\(\) \{smem[^}]*\} : (!\w+)")
_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_CLUSTER = re.compile(r"exact_cluster_dim = array<i64: (\d+), (\d+), (\d+)>")
_ENTRY = re.compile(r"\.entry\s+(?:kernel_cutlass_(?:kernel_)?)?(\w+?)(?:_object_at_\w*)?\(")


def prepare_environment(architecture: str) -> None:
    """Before the DSL and Quack are imported."""
    os.environ["CUTE_DSL_ARCH"] = os.environ["QUACK_ARCH"] = f"{architecture}a"
    os.environ["CUTE_DSL_KEEP"] = "ir,ptx,cubin"
    # it dumps what it keeps into a folder too, which would be the current one; see `dumps`
    folder = f"kernelwatch-cute-{os.getpid()}-{secrets.token_hex(8)}"
    os.environ["CUTE_DSL_DUMP_DIR"] = os.path.join(tempfile.gettempdir(), folder)
    os.environ["QUACK_CACHE_ENABLED"] = "0"  # what it keeps on disk is an object file for the CPU, without the cubin


@contextmanager
def dumps() -> Iterator[None]:
    """The folder that the DSL dumps into is there, and gone afterwards: what it keeps is held in memory as well."""
    folder = os.environ["CUTE_DSL_DUMP_DIR"]
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Cute:
    """Takes the place of `cute.compile` as soon as somebody has imported it."""

    def __init__(self, architecture: Architecture, launches: Launches) -> None:
        self._architecture, self._launches = architecture, launches
        self._done = False

    def look(self) -> None:
        cute: Any = sys.modules.get("cutlass.cute")
        if self._done or not hasattr(cute, "compile"):
            return
        self._done = True
        cute.compile = _Compile(cute.compile, self._launches)
        _answer_for_shared_memory(self._architecture)


class _Compile:
    def __init__(self, compile: Any, launches: Launches) -> None:
        self._compile, self._launches = compile, launches

    def __getitem__(self, options: Any) -> "_Compile":
        return _Compile(self._compile[options], self._launches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compile, name)

    def __call__(self, *args: Any, **kwargs: Any) -> "_Function":
        return _Function(self._compile(*args, **kwargs), self._launches)


class _Function:
    """A compiled function that notes its calls.  The grid is computed in machine code of the CPU, and not known."""

    def __init__(self, compiled: Any, launches: Launches) -> None:
        self._launches = launches
        cubin, ptx, ir = compiled.__cubin__, compiled.__ptx__ or "", str(compiled.__mlir__ or "")
        if not isinstance(cubin, bytes):
            raise RuntimeError("the CUTLASS DSL kept no cubin; 4.8 does, with CUTE_DSL_KEEP=cubin")
        threads, cluster = _product(_THREADS, ptx), _product(_CLUSTER, ir)
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
    """Of a block: the allocations in the kernel's IR, one behind the other."""
    types = {name: (int(align), int(size)) for name, align, size in _SHARED.findall(ir)}
    total = 0
    for name in _ALLOCATION.findall(ir):
        align, size = types.get(name, (1, 0))
        total = -(-total // align) * align + size
    return total


def _product(pattern: re.Pattern[str], text: str) -> int:
    found, product = pattern.search(text), 1
    for number in found.groups() if found else ():
        product *= int(number or 1)
    return product


def _answer_for_shared_memory(architecture: Architecture) -> None:
    """The one thing that the DSL asks a driver for while it compiles (where several blocks are to fit on an SM)."""
    helpers: Any = importlib.import_module("cutlass.base_dsl.runtime.cuda")
    attribute: Any = helpers.cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    asked = helpers.get_device_attribute

    def answer(which: Any, *where: Any) -> Any:
        return architecture.shared_per_sm if which == attribute else asked(which, *where)

    helpers.get_device_attribute = answer
