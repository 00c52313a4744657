"""Observers of a call: operators, Triton launches with grid and arguments, and code that Inductor generates."""

import dataclasses
import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .accesses import Argument, argument_of, bytes_of, values_of
from .graph_kernels import readable

_Mode: Any = TorchDispatchMode  # not typed

_ALLOCATES = re.compile(r"^aten::(empty|new_empty|empty_like|detach|alias|lift_fresh|_unsafe_view|_reshape_alias)")


@dataclass(frozen=True)
class TritonLaunch:
    """One launch of a Triton kernel, without references to its tensors."""

    kernel: Any  # Triton's CompiledKernel
    text: str  # its grid, options and arguments, as far as they determine the code that runs
    grid: tuple[int, ...] = (1, 1, 1)
    values: tuple[Argument, ...] = ()  # the arguments that TTGIR has as parameters


@dataclass(frozen=True)
class OperatorCall:
    """An operator that computes, and the minimum of bytes that it moves."""

    name: str
    bytes: int


@dataclass
class Seen:
    """Everything observed during a call."""

    operators: list[str] = field(default_factory=list)  # names
    described: list[str] = field(default_factory=list)  # names with arguments
    launched: int = 0  # operators that compute; views and allocations do not count
    calls: list[OperatorCall] = field(default_factory=list)  # of these operators, in order
    generated: list[str] = field(default_factory=list)
    triton: list[TritonLaunch] = field(default_factory=list)
    hooked: int = 0  # all Triton launches; `triton` does not contain those of Inductor
    # Inductor's launchers, in order, each with the arguments of its launch
    tuned: list[tuple[Any, tuple[Argument, ...]]] = field(default_factory=list)
    # by id of a launcher: configuration and time in ms of each candidate, if they were timed
    timings: dict[int, list[tuple[Any, float]]] = field(default_factory=dict)


# -- operators -------------------------------------------------------------------------------------------------------


class Operators(_Mode):  # type: ignore[misc]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports all of dynamo here, which takes two seconds

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        with suppress(Exception):
            _untraced(self._note)(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func.name()
        if name != "prim::device":  # the device query of a tensor without storage
            self._seen.operators.append(name)
            self._seen.described.append(f"{name}({described(args)}, {described(kwargs)})")
            if not (func.is_view or _ALLOCATES.match(name)):
                self._seen.launched += 1
                self._seen.calls.append(OperatorCall(name, _bytes(name, (args, kwargs or {}), result)))


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, hidden from torch.compile, which would compile it with the backend of a target's function."""
    dynamo: Any = sys.modules.get("torch._dynamo")  # never imported for this: that takes two seconds
    return function if dynamo is None else cast("Callable[..., Any]", dynamo.disable(function))


class Entering(Operators):
    """Replaces operators that are Python code on a GPU by what runs inside of them.

    Only if all of that is observed: the kernels of a second call, from `kernels_of_call`, must be the Triton kernels of
    the first.  Any other operator is kept, and its code counts as unknown.
    """

    def __init__(self, seen: Seen, kernels_of_call: Callable[[Callable[[], Any]], list[str]]) -> None:
        super().__init__(seen)
        self._kernels_of_call = kernels_of_call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        code = None
        with suppress(Exception):
            code = python_code(func) if _on_gpu((*args, *(kwargs or {}).values())) else None
        if code is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        call = partial(code, *args, **(kwargs or {}))
        seen = self._seen
        operators, texts, triton = len(seen.operators), len(seen.described), len(seen.triton)
        launched, hooked = seen.launched, seen.hooked
        with self:
            result = call()
        if seen.launched != launched or not self._is_all(call, triton, seen.hooked - hooked):
            del seen.operators[operators:], seen.described[texts:]
            seen.launched = launched
            del seen.calls[launched:]
            with suppress(Exception):
                self._note(func, args, kwargs, result)
        return result

    def _is_all(self, call: Callable[[], Any], first: int, hooked: int) -> bool:
        """Are the Triton launches from the `first` on, of which a hook saw `hooked`, all that the call launches?"""
        triton = len(self._seen.triton)
        hooks = self._seen.hooked
        if not triton - first == hooked > 0:
            return False
        try:
            names = [readable(launch.kernel.metadata.name) for launch in self._seen.triton[first:]]
            return Counter(self._kernels_of_call(call)) == Counter(names)
        except Exception:  # cannot be captured
            return False
        finally:  # forget the second call
            del self._seen.triton[triton:]
            self._seen.hooked = hooks


def moved_bytes(name: str, given: Any, result: Any) -> int:
    """The minimum of bytes that an operator moves: each tensor once, one that it changes in place twice.

    Tensors that a copy or a fill overwrites count once.
    """
    read, written = (list(_tensors(value)) for value in (given, result))
    places = {(tensor.data_ptr() if _placed(tensor) else id(tensor)) for tensor in read}
    new = [tensor for tensor in written if (tensor.data_ptr() if _placed(tensor) else id(tensor)) not in places]
    operator = name.partition("::")[2].partition(".")[0]
    if operator.endswith("_like") or operator.startswith("new_"):
        return sum(map(bytes_of, new))  # the input only determines the shape
    once = sum(map(bytes_of, read)) + sum(map(bytes_of, new))
    in_place = operator.endswith("_") and operator not in _OVERWRITES
    return once + (bytes_of(written[0]) if in_place and written else 0)


def _bytes(name: str, given: Any, result: Any) -> int:
    """The same; 0 if a tensor has no known size."""
    with suppress(Exception):
        return moved_bytes(name, given, result)
    return 0


_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_")


def _placed(tensor: torch.Tensor) -> bool:
    """Does the tensor have an address?  Without a GPU none has."""
    return type(tensor) is torch.Tensor and tensor.data_ptr() != 0


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def python_code(func: Any) -> Callable[..., Any] | None:
    """The Python function that implements an operator on a GPU; None for torch's own and for C++ operators."""
    if func.namespace in ("aten", "prims", "prim"):
        return None
    name = func.name().split(".")[0]
    definition = importlib.import_module("torch._library.custom_ops").OPDEFS.get(name)
    if definition is not None:
        chosen: Callable[..., Any] = definition._backend_fns.get("cuda") or definition._init_fn
        return chosen
    library: Any = torch.library
    if f"{name.replace('::', '/')}/CUDA" in getattr(library, "_impls", ()):
        core: Any = torch._C
        return lambda *args, **kwargs: func._op_dk(core.DispatchKey.CUDA, *args, **kwargs)
    return None


def _on_gpu(values: tuple[Any, ...]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in values)


def described(value: Any) -> str:
    """Arguments as far as they determine the code that runs: type and layout of a tensor, never its numbers."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(described, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {described(each)}' for key, each in value.items())}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # Triton's tensor descriptors
        return f"{type(value).__name__}{described(vars(value))}"
    if hasattr(value, "data_ptr"):  # Triton's view of a tensor under another dtype
        return f"{type(value).__name__}({getattr(value, 'dtype', None)})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


# -- Inductor --------------------------------------------------------------------------------------------------------


@contextmanager
def _observed(module: str, owner: str, method: str, observer: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method by what `observer` makes of it; where torch has no such method, nothing is observed."""
    try:
        replaced: Any = getattr(importlib.import_module(module), owner)
        before = getattr(replaced, method)
    except Exception:
        yield
        return
    setattr(replaced, method, observer(before))
    try:
        yield
    finally:
        setattr(replaced, method, before)


_TUNER = ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner")


def generated_code(seen: Seen) -> AbstractContextManager[None]:
    """Inductor passes all generated code to this hook, also from its cache."""

    def save(code: str) -> None:
        if code not in seen.generated:
            seen.generated.append(code)

    return _observed("torch._inductor.graph", "GraphLowering", "save_output_code", lambda _: staticmethod(save))


def autotuned(seen: Seen) -> AbstractContextManager[None]:
    """Inductor's timings of the candidates of a kernel; none if it reads the best from its cache."""

    def observer(benchmark: Any) -> Any:
        def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            timings = benchmark(tuner, *args, **kwargs)
            with suppress(Exception):
                seen.timings[id(tuner)] = [(launcher.config, float(ms)) for launcher, ms in timings.items()]
            return timings

        return observed

    return _observed(*_TUNER, "benchmark_all_configs", observer)


def inductor_launches(seen: Seen) -> AbstractContextManager[None]:
    def observer(run: Any) -> Any:
        def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            result = run(tuner, *args, **kwargs)
            with suppress(Exception):
                seen.tuned.append((tuner, tuple(map(argument_of, args))))
            return result

        return observed

    return _observed(*_TUNER, "run", observer)


# -- Triton ----------------------------------------------------------------------------------------------------------


_LAUNCHED_WITH = ("shared", "num_ctas", "cluster_dims", "launch_cooperative_grid", "launch_pdl")


@contextmanager
def triton_launches(seen: Seen) -> Iterator[None]:
    """Observe Triton's launches.

    Before each launch Triton calls `launch_metadata` with the grid and all arguments (up to 3.7), then a hook (a chain
    from 3.5 on), which also sees other launches, but not their kernels.
    """
    try:
        from triton import knobs

        hook = knobs.runtime.launch_enter_hook
        compiled: Any = importlib.import_module("triton.compiler.compiler").CompiledKernel
        metadata_of = compiled.launch_metadata
    except Exception:
        yield
        return

    def observed(kernel: Any, grid: Any, stream: Any, *args: Any) -> Any:
        with suppress(Exception):
            values = tuple(values_of(getattr(kernel.src, "signature", {}), args))
            seen.triton.append(TritonLaunch(kernel, _launch(kernel, grid, args), (*grid, 1, 1)[:3], values))
        return metadata_of(kernel, grid, stream, *args)

    def hooked(_: Any) -> None:
        seen.hooked += 1

    compiled.launch_metadata = observed
    if hasattr(hook, "add"):
        hook.add(hooked)
    else:
        knobs.runtime.launch_enter_hook = hooked
    try:
        yield
    finally:
        compiled.launch_metadata = metadata_of
        if hasattr(hook, "remove"):
            hook.remove(hooked)
        else:
            knobs.runtime.launch_enter_hook = hook


def _launch(kernel: Any, grid: Any, args: tuple[Any, ...]) -> str:
    """Properties of a launch that PTX does not contain: options, grid and arguments."""
    options = [getattr(kernel.metadata, name, None) for name in _LAUNCHED_WITH]
    return f"{(*grid, 1, 1)[:3]} {options} {described(args)}"
