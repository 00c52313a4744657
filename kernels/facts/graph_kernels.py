"""Which kernels a CUDA graph or a call launches, by name.  Only the driver is asked: no profiler slows anything."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

MAX_NODES = 4096  # that are looked at; asking takes about a microsecond each
MAX_NAME = 120  # of a kernel; templates of C++ go on for a thousand
_KERNEL, _OTHERS = 0, {1: "memcpy", 2: "memset"}
_ORDER = (5, 6, 7)  # nodes that do nothing: empty ones, waits and records of events
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: memory may be allocated meanwhile, as torch does of its own accord


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


def put_on_stream(call: Callable[[], Any]) -> list[str]:
    """What `call` would have the current stream do, in no order: each kernel, copy, fill or other thing by its name.

    The stream is captured meanwhile, and the graph thrown away.  torch does not know of this capture: its allocator
    takes from the stream's own memory, which is right for kernels that never run, and as before if the capture fails.
    Other streams are captured where they wait for this one; who launches on one that does not is not seen.
    Raises what the call raises, and RuntimeError for what can not be captured, such as the default stream.
    """
    driver, graph = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _asked(driver.cuStreamBeginCapture_v2, stream, ctypes.c_int(_RELAXED))
    try:
        try:
            call()
        finally:
            _asked(driver.cuStreamEndCapture, stream, ctypes.byref(graph))
        return list(_names(graph.value or 0, others=True))
    finally:
        driver.cuGraphDestroy(graph)


def readable(name: str) -> str:
    """A kernel as its author wrote it, without return type, arguments and the depth of its templates."""
    demangle: Any = getattr(torch._C, "_demangle", None)
    plain = str(demangle(name)) if demangle else name
    plain = plain.removeprefix("void ").replace("(anonymous namespace)::", "")
    return plain.partition("(")[0][:MAX_NAME] or name[:MAX_NAME]


def _names(graph: int, *, others: bool = False) -> Iterator[str]:
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t(0)
    _asked(driver.cuGraphGetNodes, ctypes.c_void_p(graph), None, ctypes.byref(count))
    count.value = min(count.value, MAX_NODES)
    nodes = (ctypes.c_void_p * count.value)()
    _asked(driver.cuGraphGetNodes, ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    for node in nodes[: count.value]:
        kind = ctypes.c_int(-1)
        _asked(driver.cuGraphNodeGetType, ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == _KERNEL:
            yield _kernel(driver, node)
        elif kind.value in _OTHERS:
            yield _OTHERS[kind.value]
        elif others and kind.value not in _ORDER:
            yield f"node of kind {kind.value}"


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
