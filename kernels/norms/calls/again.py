"""Calls with tensors of the same layouts as before: launched as those were, without checks, choices and Triton."""

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from . import native

PLAIN = frozenset({Tensor, torch.nn.Parameter})  # types of tensors whose memory is all that they are
ALIGNED = 16  # bytes: Triton distinguishes addresses that are multiples
MAX_CALLS = 4096  # that are kept, of each direction: with lengths that vary, most of them would not be made again
PACKED = {"i1": "<b", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q", "fp32": "<f"}  # Triton's types of scalars


class Relaunch:
    """A kernel launched with tensors and constants; to be launched again with other tensors of the same layouts.

    For each launch Triton binds the arguments by name, works out what the compiler may know of each, and looks for the
    compiled kernel under the text of all that.  Again, only the driver is called.
    """

    def __init__(
        self, function: Any, grid: tuple[int, ...], tensors: tuple[Any, ...], *constants: Any, **options: Any
    ) -> None:
        """Launch as Triton does.  tensors, constants: the arguments of the function in this order."""
        compiled = function[grid](*tensors, *constants, **options)
        self.constants = constants
        self._function, self._interpreted = function, compiled is None
        if self._interpreted:
            self._launch = functools.partial(self._interpret, grid, options)
            return
        from triton import knobs

        self._index, self._run, self._runtime = torch.cuda.current_device(), type(function).run, knobs.runtime
        self._kernels = function.device_caches[self._index][0]
        # It owns the code.  Both attributes are in place by now.
        self._compiled, self._kernel = compiled, (compiled.function, compiled.packed_metadata)
        self._grid = (*grid, 1, 1)[:3]
        self._launch = functools.partial(self._drive, compiled.run, self._grid)

    def usable(self) -> bool:
        """Whether Triton would do the same now, for this device, and nobody observes what it launches."""
        return self._interpreted or (
            torch._C._cuda_getDevice() == self._index
            and bool(self._kernels)  # whoever empties Triton's caches wants it to compile
            and type(self._function).run is self._run
            and not self._function.pre_run_hooks
            and not self._runtime.launch_enter_hook.calls
            and not self._runtime.launch_exit_hook.calls
        )

    def watched(self) -> tuple[Any, ...]:
        """What `native` looks at to know whether the launch is `usable`."""
        runtime, function = self._runtime, self._function
        hooks = function.pre_run_hooks, runtime.launch_enter_hook.calls, runtime.launch_exit_hook.calls
        return self.usable, self._kernels, [*hooks]

    def again(self, *tensors: Tensor | None) -> None:
        self._launch(tensors)

    def described(self) -> tuple[Any, ...] | None:
        """The launch for `native`: what the driver takes; None if Triton does more than to launch.

        Its last value has, for each parameter of the kernel, the place of its tensor, or -1 and the bytes of a number.
        """
        if self._interpreted:
            return None
        metadata = self._compiled.metadata
        if metadata.num_ctas != 1 or metadata.global_scratch_size or metadata.profile_scratch_size:
            return None
        parameters, kinds = [], [*self._compiled.src.signature.values()]
        for place, kind in enumerate(kinds):
            if isinstance(kind, str) and kind.startswith("*"):
                parameters.append((place, b""))
            elif kind in PACKED:
                value = self.constants[place - len(kinds)]  # constants are the last arguments
                parameters.append((-1, struct.pack(PACKED[kind], value)))
            elif not _constant(kind):
                return None
        options = metadata.shared, metadata.launch_pdl, metadata.launch_cooperative_grid
        return self._compiled.function, self._grid, 32 * metadata.num_warps, *options, parameters

    def _interpret(self, grid: tuple[int, ...], options: Mapping[str, Any], tensors: tuple[Any, ...]) -> None:
        self._function[grid](*tensors, *self.constants, **options)

    def _drive(self, run: Any, grid: tuple[int, ...], tensors: tuple[Any, ...]) -> None:
        """As the last lines of Triton's JITFunction.run (3.5 to 3.9): without metadata and hooks, with addresses."""
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        run(*grid, stream, *self._kernel, None, None, None, *addresses, *self.constants)


def _constant(kind: Any) -> bool:
    """Whether a kind of Triton's signature is of compile-time constants alone."""
    return all(map(_constant, kind)) if isinstance(kind, tuple) else kind == "constexpr"


Result = TypeVar("Result")


class Calls(Generic[Result]):
    """Calls of one direction that were made before, to be made again with tensors of the same layouts."""

    def __init__(self, direction: str) -> None:
        """direction: forward or backward."""
        self._direction = direction
        self._kept: dict[Any, tuple[Callable[[], bool], Callable[..., Result]]] = {}
        native.at_use.append(self.clear)

    def again(self, tensors: tuple[Tensor | None, ...], *others: Any) -> Result | None:
        """The results of the tensors, by a launch as before; None if it must be made anew."""
        if not self._kept:
            return None
        key = _key(tensors, others)
        kept = self._kept.get(key)
        if kept is None or not kept[0]():
            return None
        try:
            return kept[1](*tensors)
        except RuntimeError:  # made anew, it says more, or finds another way
            self._kept.pop(key, None)
            return None

    def keep(
        self,
        usable: Callable[[], bool],
        call: Callable[..., Result],
        tensors: tuple[Tensor | None, ...],
        *others: Any,
    ) -> None:
        """`call(*tensors)` makes it again while `usable()`.  others: all that it depends on beside the tensors."""
        if (key := _key(tensors, others)) is None:
            return
        if len(self._kept) >= MAX_CALLS:
            self.clear()
        self._kept[key] = usable, call

    def clear(self) -> None:
        self._kept.clear()
        native.forget(self._direction)


FORWARD: Calls[Any] = Calls("forward")
BACKWARD: Calls[Any] = Calls("backward")


def _key(tensors: tuple[Tensor | None, ...], others: tuple[Any, ...]) -> Any:
    """What decides how the tensors are launched; None if they are more than memory, or have none."""
    layouts: list[Any] = [others]
    for tensor in tensors:
        if tensor is None:
            layouts.append(None)
        elif type(tensor) not in PLAIN or tensor.is_neg() or not (address := tensor.data_ptr()):
            return None
        else:
            layouts.append((tensor.dtype, tensor.device, tensor.shape, tensor.stride(), address % ALIGNED == 0))
    return tuple(layouts)
