"""What runs during a call, observed: operators, Triton kernels with grid and arguments, and what Inductor generates."""

import dataclasses
import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .accesses import Argument, argument_of, bytes_of, values_of
from .graph_kernels import readable

_Mode: Any = TorchDispatchMode  # without types in it

_ALLOCATES = re.compile(r"^aten::(empty|new_empty|empty_like|detach|alias|lift_fresh|_unsafe_view|_reshape_alias)")


@dataclass(frozen=True)
class TritonLaunch:
    """One launch of a Triton kernel, without holding on to its tensors."""

    kernel: Any  # Triton's CompiledKernel
    text: str  # its grid, options and arguments, as far as they decide what runs
    grid: tuple[int, ...] = (1, 1, 1)
    values: tuple[Argument, ...] = ()  # the arguments that TTGIR has as parameters


@dataclass(frozen=True)
class OperatorCall:
    """An operator that computes, and the bytes that it has to move at least."""

    name: str
    bytes: int


@dataclass
class Seen:
    """What was observed while a call ran."""

    operators: list[str] = field(default_factory=list)  # names
    described: list[str] = field(default_factory=list)  # names with arguments
    launched: int = 0  # operators that compute, not those that view or allocate
    calls: list[OperatorCall] = field(default_factory=list)  # those, in order
    generated: list[str] = field(default_factory=list)
    triton: list[TritonLaunch] = field(default_factory=list)
    hooked: int = 0  # Triton launches whoever started them; those of Inductor are not among `triton`
    # Inductor's launchers, in order, each with the arguments of its launch
    tuned: list[tuple[Any, tuple[Argument, ...]]] = field(default_factory=list)
    # of the candidates of a launcher (its id) the configuration and its time in ms, where they were timed
    timings: dict[int, list[tuple[Any, float]]] = field(default_factory=dict)


# -- operators -------------------------------------------------------------------------------------------------------


class Operators(_Mode):  # type: ignore[misc]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import all of dynamo here, for two seconds

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
        if name != "prim::device":  # a tensor without storage is asked where it is
            self._seen.operators.append(name)
            self._seen.described.append(f"{name}({described(args)}, {described(kwargs)})")
            if not (func.is_view or _ALLOCATES.match(name)):
                self._seen.launched += 1
                self._seen.calls.append(OperatorCall(name, _bytes(name, (args, kwargs or {}), result)))


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, hidden from torch.compile: it would compile our code with the backend of a target's function."""
    dynamo: Any = sys.modules.get("torch._dynamo")  # never imported for this: that takes two seconds
    return function if dynamo is None else cast("Callable[..., Any]", dynamo.disable(function))


class Entering(Operators):
    """Sees through operators that are Python code on a GPU: what is seen inside stands in the operator's place.

    Only where that is all of it: `put_on_stream` is asked what a second call would have the device do, and these must
    be the Triton kernels that were seen.  Any other stays an operator that nobody knows.
    """

    def __init__(self, seen: Seen, put_on_stream: Callable[[Callable[[], Any]], list[str]]) -> None:
        super().__init__(seen)
        self._put_on_stream = put_on_stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        code = None
        with suppress(Exception):
            code = python_code(func) if _on_gpu((*args, *(kwargs or {}).values())) else None
        if code is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        call, seen = partial(code, *args, **(kwargs or {})), self._seen
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
        triton, hooks = len(self._seen.triton), self._seen.hooked
        if not triton - first == hooked > 0:
            return False
        try:
            names = [readable(launch.kernel.metadata.name) for launch in self._seen.triton[first:]]
            return Counter(self._put_on_stream(call)) == Counter(names)
        except Exception:  # what can not be captured is not known
            return False
        finally:  # those of the second call were no launches
            del self._seen.triton[triton:]
            self._seen.hooked = hooks


def moved_bytes(name: str, given: Any, result: Any) -> int:
    """Bytes that an operator reads and writes at least: each tensor once, one that is changed in place twice.

    What a copy or a fill overwrites is not read before.
    """
    read, written = (list(_tensors(value)) for value in (given, result))
    places = {(tensor.data_ptr() if _placed(tensor) else id(tensor)) for tensor in read}
    new = [tensor for tensor in written if (tensor.data_ptr() if _placed(tensor) else id(tensor)) not in places]
    operator = name.partition("::")[2].partition(".")[0]
    if operator.endswith("_like") or operator.startswith("new_"):
        return sum(map(bytes_of, new))  # its input says how large it is, and no more
    once = sum(map(bytes_of, read)) + sum(map(bytes_of, new))
    in_place = operator.endswith("_") and operator not in _OVERWRITES
    return once + (bytes_of(written[0]) if in_place and written else 0)


def _bytes(name: str, given: Any, result: Any) -> int:
    """The same; 0 where a tensor does not say how large it is."""
    with suppress(Exception):
        return moved_bytes(name, given, result)
    return 0


_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_")


def _placed(tensor: torch.Tensor) -> bool:
    """Has it an address?  Without a GPU tensors have none."""
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
    """The Python function behind an operator on a GPU; None for one of torch, and for one written in C++."""
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
    """Arguments as far as they decide what runs: the kind of a tensor, never its numbers."""
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
def nothing() -> Iterator[None]:
    yield


@contextmanager
def generated_code(seen: Seen) -> Iterator[None]:
    """Inductor hands each piece of code to this hook, also when it comes from the cache."""
    try:
        graph: Any = importlib.import_module("torch._inductor.graph")
        before = graph.GraphLowering.save_output_code
    except Exception:
        yield
        return

    def save(code: str) -> None:
        if code not in seen.generated:
            seen.generated.append(code)

    graph.GraphLowering.save_output_code = staticmethod(save)
    try:
        yield
    finally:
        graph.GraphLowering.save_output_code = before


@contextmanager
def autotuned(seen: Seen) -> Iterator[None]:
    """Inductor's timings of the candidates of a kernel, when it takes them; not where it remembers the best."""
    try:
        heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
        benchmark = heuristics.CachingAutotuner.benchmark_all_configs
    except Exception:
        yield
        return

    def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        timings = benchmark(tuner, *args, **kwargs)
        with suppress(Exception):
            seen.timings[id(tuner)] = [(launcher.config, float(ms)) for launcher, ms in timings.items()]
        return timings

    heuristics.CachingAutotuner.benchmark_all_configs = observed
    try:
        yield
    finally:
        heuristics.CachingAutotuner.benchmark_all_configs = benchmark


@contextmanager
def inductor_launches(seen: Seen) -> Iterator[None]:
    try:
        heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
        run = heuristics.CachingAutotuner.run
    except Exception:
        yield
        return

    def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(tuner, *args, **kwargs)
        with suppress(Exception):
            seen.tuned.append((tuner, tuple(map(argument_of, args))))
        return result

    heuristics.CachingAutotuner.run = observed
    try:
        yield
    finally:
        heuristics.CachingAutotuner.run = run


# -- Triton ----------------------------------------------------------------------------------------------------------


_LAUNCHED_WITH = ("shared", "num_ctas", "cluster_dims", "launch_cooperative_grid", "launch_pdl")


@contextmanager
def triton_launches(seen: Seen) -> Iterator[None]:
    """Before each launch Triton asks the kernel for metadata, with the grid and all arguments (seen up to 3.7), then
    calls a hook (3.5 and later keep a chain), which also sees launches of others, but not what is launched.
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
    """What a launch adds to the kernel: PTX says nothing of the grid nor of a number handed over."""
    options = [getattr(kernel.metadata, name, None) for name in _LAUNCHED_WITH]
    return f"{(*grid, 1, 1)[:3]} {options} {described(args)}"
