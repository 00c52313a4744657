"""Which kernels a CUDA graph launches, by name.  The driver is asked: nothing runs, and no profiler slows anything."""

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

MOST_NODES = 4096  # that are looked at; asking takes about a microsecond each
LONGEST_NAME = 120  # of a kernel; templates of C++ go on for a thousand
_KERNEL, _OTHERS = 0, {1: "memcpy", 2: "memset"}


class _KernelNode(ctypes.Structure):  # CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def ran(graph: "torch.cuda.CUDAGraph") -> list[str]:
    """Distinct kernels, copies and fills of a graph made with `keep_graph=True`; empty where the driver can not say."""
    try:
        return list(dict.fromkeys(_names(int(graph.raw_cuda_graph()))))
    except Exception:  # an old driver or torch: facts must not cost a case
        return []


def readable(name: str) -> str:
    """A kernel as its author wrote it, without return type, arguments and the depth of its templates."""
    demangle: Any = getattr(torch._C, "_demangle", None)
    plain = str(demangle(name)) if demangle else name
    plain = plain.removeprefix("void ").replace("(anonymous namespace)::", "")
    return plain.partition("(")[0][:LONGEST_NAME] or name[:LONGEST_NAME]


def _names(graph: int) -> Iterator[str]:
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t(0)
    _asked(driver.cuGraphGetNodes, ctypes.c_void_p(graph), None, ctypes.byref(count))
    count.value = min(count.value, MOST_NODES)
    nodes = (ctypes.c_void_p * count.value)()
    _asked(driver.cuGraphGetNodes, ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    for node in nodes[: count.value]:
        kind = ctypes.c_int(-1)
        _asked(driver.cuGraphNodeGetType, ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == _KERNEL:
            yield _kernel(driver, node)
        elif kind.value in _OTHERS:
            yield _OTHERS[kind.value]


def _kernel(driver: Any, node: int | None) -> str:
    launched, name = _KernelNode(), ctypes.c_char_p()
    _asked(driver.cuGraphKernelNodeGetParams_v2, ctypes.c_void_p(node), ctypes.byref(launched))
    if launched.function:
        _asked(driver.cuFuncGetName, ctypes.byref(name), ctypes.c_void_p(launched.function))
    else:
        _asked(driver.cuKernelGetName, ctypes.byref(name), ctypes.c_void_p(launched.kernel))
    return readable((name.value or b"").decode(errors="replace"))


def _asked(function: Any, *arguments: Any) -> None:
    if error := function(*arguments):
        raise RuntimeError(f"the driver answers {error} to {function.__name__}")
