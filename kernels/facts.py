"""What the compiler says of the code that ran: its hash, how many kernels, registers, spills, shared memory, settings.

Facts explain a time and never decide it.  Gathering them must not cost a case: whatever is not to be had is left out.

`kind` says what the hash `code` stands for: "generated" (everything Inductor wrote), "triton" (of each kernel its PTX,
its grid and its arguments, and the operators around them), "operators" (the sequence of operators with their arguments;
Python between them is not seen), "pinned" (versions of distributions whose code can not be seen).  Without a hash
nothing can be said.  Not seen is what is launched past both torch's dispatcher and Triton, as by a CUDA extension that
takes pointers: beside Triton kernels that are the same, such a kernel may have changed under an equal hash.
"""

import dataclasses
import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_Mode: Any = TorchDispatchMode  # without types in it

MOST_NAMES = 48  # of operators and kernels that are told by name

_ALLOCATES = re.compile(r"^aten::(empty|new_empty|empty_like|detach|alias|lift_fresh|_unsafe_view|_reshape_alias)")
_NAME = re.compile(r"\b(?:cpp|triton_[a-z]+)_fused_\w+")
_PATH = re.compile(r"(?:/[\w.@+-]+){2,}")
_COUNTED = re.compile(
    r"async_compile\.(?:cpp_pybinding|cpp|triton|cutedsl|multi_kernel)\(|^\s+extern_kernels\.\w+\(", re.MULTILINE
)


@dataclass
class Seen:
    """What was observed while a call ran."""

    operators: list[str] = field(default_factory=list)  # names
    described: list[str] = field(default_factory=list)  # names with arguments
    launched: int = 0  # operators that compute, not those that view or allocate
    generated: list[str] = field(default_factory=list)
    triton: list[tuple[Any, str]] = field(default_factory=list)  # kernels launched, each with its grid and arguments
    hooked: int = 0  # Triton launches whoever started them; those of Inductor are not among `triton`
    tuned: list[Any] = field(default_factory=list)  # Inductor's launchers, in order


def gather(call: Callable[[], Any], *, compiled: bool, pinned: Iterable[str], cuda: bool) -> dict[str, Any]:
    """Run `call` (which may compile), then once more under observation.  What it raises is raised, and nothing else."""
    seen = Seen()
    if compiled:
        with _generated_code(seen):
            call()
        with _inductor_launches(seen) if cuda else _nothing():
            call()
    else:
        call()
        with _triton_launches(seen) if cuda else _nothing(), Operators(seen):
            call()
    try:
        return _facts(seen, compiled, tuple(pinned))
    except Exception as trouble:
        return {"code": None, "trouble": f"{type(trouble).__name__}: {trouble}"[:200]}


def _facts(seen: Seen, compiled: bool, pinned: tuple[str, ...]) -> dict[str, Any]:
    facts: dict[str, Any] = {"code": None, "kind": None, "kernels": None}
    kernels = [_of_launcher(tuner) for tuner in seen.tuned] or [_of_kernel(kernel) for kernel, _ in seen.triton]
    if compiled:
        if seen.generated:
            normal = [normalised(code) for code in seen.generated]
            count = sum(len(_COUNTED.findall(code)) for code in normal)
            facts |= {"kind": "generated", "code": _hash(normal), "kernels": count}
    else:
        facts["ops"] = seen.operators[:MOST_NAMES]
        facts["kernels"] = seen.launched + seen.hooked
        strange = [name for name in seen.operators if not name.startswith(("aten::", "prims::", "prim::"))]
        ptx = [_ptx(kernel) for kernel, _ in seen.triton]
        if ptx and len(ptx) == seen.hooked and None not in ptx and not strange:
            launches = [launch for _, launch in seen.triton]
            facts |= {"kind": "triton", "code": _hash([*seen.described, *map(str, ptx), *launches])}
        elif seen.launched and not strange and not seen.hooked:
            facts |= {"kind": "operators", "code": _hash(seen.described)}
        elif versions := [f"{name} {metadata.version(name)}" for name in pinned]:
            facts |= {"kind": "pinned", "code": _hash([*seen.described, *versions])}
    if kernels:
        facts["triton"] = kernels[:MOST_NAMES]
        facts["config"] = "; ".join(_configuration(kernel) for kernel in kernels)[:400]
        for name, together in (("registers", max), ("spills", sum), ("shared", max)):
            known = [kernel[name] for kernel in kernels if kernel.get(name) is not None]
            if known:
                facts[name] = together(known)
    return facts


def normalised(code: str) -> str:
    """Generated code without what differs from one machine, process or line number to the next."""
    code = re.sub(r"^\s*(#(?!include|define|pragma|if|endif|else)|//).*\n", "", code, flags=re.MULTILINE)
    code = re.sub(r"'(backend_hash|kernel_name|cache_key|autotune_cache_key)': *(None|'[^']*'),? *", "", code)
    code = re.sub(r"\s+#.*$", "", code, flags=re.MULTILINE) if "#include" not in code else code
    # kernels are named after the operators they were fused from: x * x and x.square() give one kernel with two names
    names = list(dict.fromkeys(_NAME.findall(code)))
    code = _NAME.sub(lambda found: f"kernel_{names.index(found[0])}", code)
    return _PATH.sub("PATH", code)


def normalised_ptx(ptx: str) -> str:
    """PTX without line numbers, file names and debug sections: moving a kernel in its file changes nothing."""
    ptx = ptx.split(".section\t.debug", 1)[0].split(".section .debug", 1)[0]
    kept = [line.split("//")[0].rstrip() for line in ptx.splitlines()]
    return "\n".join(line for line in kept if line.strip() and not re.match(r"\s*(\.loc|\.file|\$L__\w+:)", line))


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _configuration(kernel: dict[str, Any]) -> str:
    details = {"num_warps": kernel.get("warps"), "num_stages": kernel.get("stages"), **kernel.get("settings", {})}
    return " ".join([str(kernel.get("name")), *(f"{k}={v}" for k, v in details.items() if v is not None)])


# -- operators -------------------------------------------------------------------------------------------------------


class Operators(_Mode):  # type: ignore[misc]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import all of dynamo here, for two seconds

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with suppress(Exception):
            self._note(func, args, kwargs)
        return func(*args, **(kwargs or {}))

    def _note(self, func: Any, args: Any, kwargs: Any) -> None:
        name = func.name()
        if name != "prim::device":  # a tensor without storage is asked where it is
            self._seen.operators.append(name)
            self._seen.described.append(f"{name}({described(args)}, {described(kwargs)})")
            self._seen.launched += not (func.is_view or _ALLOCATES.match(name))


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
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _generated_code(seen: Seen) -> Iterator[None]:
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
def _inductor_launches(seen: Seen) -> Iterator[None]:
    try:
        heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
        run = heuristics.CachingAutotuner.run
    except Exception:
        yield
        return

    def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(tuner, *args, **kwargs)
        seen.tuned.append(tuner)
        return result

    heuristics.CachingAutotuner.run = observed
    try:
        yield
    finally:
        heuristics.CachingAutotuner.run = run


def _of_launcher(tuner: Any) -> dict[str, Any]:
    launcher = tuner.launchers[0]
    config = launcher.config
    return {
        "name": getattr(tuner.fn, "__name__", None),
        "registers": getattr(launcher, "n_regs", None),
        "spills": getattr(launcher, "n_spills", None),
        "shared": getattr(launcher, "shared", None),
        "warps": config.num_warps,
        "stages": config.num_stages,
        "settings": {str(name): value for name, value in config.kwargs.items()},
    }


# -- Triton ----------------------------------------------------------------------------------------------------------


_LAUNCHED_WITH = ("shared", "num_ctas", "cluster_dims", "launch_cooperative_grid", "launch_pdl")


@contextmanager
def _triton_launches(seen: Seen) -> Iterator[None]:
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
            seen.triton.append((kernel, _launch(kernel, grid, args)))
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


def _of_kernel(kernel: Any) -> dict[str, Any]:
    return {
        "name": kernel.metadata.name,
        "registers": getattr(kernel, "n_regs", None),
        "spills": getattr(kernel, "n_spills", None),
        "shared": getattr(kernel.metadata, "shared", None),
        "warps": getattr(kernel.metadata, "num_warps", None),
        "stages": getattr(kernel.metadata, "num_stages", None),
    }


def _ptx(kernel: Any) -> str | None:
    ptx = kernel.asm.get("ptx")
    return normalised_ptx(ptx) if isinstance(ptx, str) else None
