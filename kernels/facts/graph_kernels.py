"""Names of the kernels of a CUDA graph or of a call, from the CUDA driver and without a profiler."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

MAX_NODES = 4096  # of a graph; a query takes about a microsecond
MAX_NAME = 120  # characters; names of C++ templates have up to a thousand
_KERNEL = 0
_OTHERS = {1: "memcpy", 2: "memset"}
_ORDER = (5, 6, 7)  # nodes without work: empty ones, waits and records of events
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: allows memory allocation, which torch may do at any time


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


def kernels_of_graph(graph: "torch.cuda.CUDAGraph") -> list[str]:
    """Distinct kernels, copies and fills of a graph made with `keep_graph=True`; empty if the driver fails."""
    try:
        return list(dict.fromkeys(_names(int(graph.raw_cuda_graph()))))
    except Exception:  # an old driver or torch: facts must not fail a case
        return []


def kernels_of_call(call: Callable[[], Any]) -> list[str]:
    """Names of the kernels, copies, fills and other nodes that `call` puts on the current stream, in no order.

    Captures the stream and discards the graph.  torch does not know of this capture: its allocator uses the stream's
    own memory, which is correct for kernels that never run, and its state is unchanged if the capture fails.  Other
    streams are captured if they wait for this one; launches on independent streams are not seen.

    Raises: what the call raises, and RuntimeError for work that cannot be captured, e.g. on the default stream.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    graph = ctypes.c_void_p()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _check(driver.cuStreamBeginCapture_v2, stream, ctypes.c_int(_RELAXED))
    try:
        try:
            call()
        except BaseException:
            driver.cuStreamEndCapture(stream, ctypes.byref(graph))  # its error would hide that of the call
            raise
        _check(driver.cuStreamEndCapture, stream, ctypes.byref(graph))
        return list(_names(graph.value or 0, others=True))
    finally:
        driver.cuGraphDestroy(graph)


def readable(name: str) -> str:
    """A demangled kernel name, without return type and arguments."""
    demangle: Any = getattr(torch._C, "_demangle", None)
    plain = str(demangle(name)) if demangle else name
    plain = plain.removeprefix("void ").replace("(anonymous namespace)::", "")
    return plain.partition("(")[0][:MAX_NAME] or name[:MAX_NAME]


def _names(graph: int, *, others: bool = False) -> Iterator[str]:
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t(0)
    _check(driver.cuGraphGetNodes, ctypes.c_void_p(graph), None, ctypes.byref(count))
    count.value = min(count.value, MAX_NODES)
    if not count.value:  # the driver refuses an array without elements
        return
    nodes = (ctypes.c_void_p * count.value)()
    _check(driver.cuGraphGetNodes, ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    for node in nodes[: count.value]:
        kind = ctypes.c_int(-1)
        _check(driver.cuGraphNodeGetType, ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == _KERNEL:
            yield _kernel(driver, node)
        elif kind.value in _OTHERS:
            yield _OTHERS[kind.value]
        elif others and kind.value not in _ORDER:
            yield f"node of kind {kind.value}"


def _kernel(driver: Any, node: int | None) -> str:
    launched = _KernelNode()
    name = ctypes.c_char_p()
    _check(driver.cuGraphKernelNodeGetParams_v2, ctypes.c_void_p(node), ctypes.byref(launched))
    if launched.function:
        _check(driver.cuFuncGetName, ctypes.byref(name), ctypes.c_void_p(launched.function))
    else:
        _check(driver.cuKernelGetName, ctypes.byref(name), ctypes.c_void_p(launched.kernel))
    return readable((name.value or b"").decode(errors="replace"))


def _check(function: Any, *arguments: Any) -> None:
    if error := function(*arguments):
        raise RuntimeError(f"CUDA driver error {error} in {function.__name__}")
