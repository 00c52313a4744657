"""An experiment: the kernel that adds up the parts under programmatic dependent launch, which Hopper brought.

It is launched before the first kernel has ended, and waits (`griddepcontrol.wait`) until all of that is done and to be
seen.  It may start as the programs of the first one end, or, if each of those says so when it begins
(`griddepcontrol.launch_dependents`), while they still work.  Both are the real kernels with one more line.
"""

import ast
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton
import triton.language.extra.cuda  # where the line that is put in looks for it

from .dweight_sums import Overlap

# A package may hand on the function `backward` under the name of its module.
_module: Any = importlib.import_module("..norms.backward", __package__)


@contextmanager
def overlapped(how: Overlap) -> Iterator[None]:
    """Here `backward` launches its two kernels overlapped.  Not to be used by several threads."""
    if how is Overlap.NONE:
        yield
        return
    usual = _module._backward, _module._sum_parts
    _module._sum_parts = _Launched(waiting())
    if how is Overlap.START:
        _module._backward = announcing()
    try:
        yield
    finally:
        _module._backward, _module._sum_parts = usual


@functools.cache
def waiting() -> Any:
    return _beginning("tl.extra.cuda.gdc_wait()", _module._sum_parts)


@functools.cache
def announcing() -> Any:
    return _beginning("tl.extra.cuda.gdc_launch_dependents()", _module._backward, do_not_specialize=["M"])


class _Launched:
    """A kernel with the option that lets it start early."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return functools.partial(self._kernel[grid], launch_pdl=True)


def _beginning(line: str, kernel: Any, **options: Any) -> Any:
    """The kernel with one more line before its first."""
    copy: Any = triton.jit(kernel.fn, **options)
    lines = copy.src.splitlines(keepends=True)
    [function] = ast.parse(copy.src).body
    assert isinstance(function, ast.FunctionDef)  # noqa: S101  what Triton compiles
    first = function.body[0]
    lines.insert(first.lineno - 1, f"{' ' * first.col_offset}{line}\n")
    copy._unsafe_update_src("".join(lines))
    return copy
