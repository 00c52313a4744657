"""Facts about the code that ran: hash, number of kernels, registers, spills, shared memory, settings.

Facts explain a time and never decide a verdict.  Gathering them must not fail a case: missing facts are left out.

`kind` says what the hash `code` covers:
- "generated": all code that Inductor generated;
- "triton": PTX, grid and arguments of each kernel, and the operators around them;
- "operators": the sequence of operators with their arguments, without the Python code between them;
- "pinned": versions of distributions whose code cannot be observed.

On a GPU, an operator written in Python is replaced by its launches if all of them are observed; otherwise its code is
unknown.  Without a hash, changes cannot be detected.  Launches that bypass both torch's dispatcher and Triton are not
observed, for example by a CUDA extension that takes pointers: next to unchanged Triton kernels, such a kernel may
change without a new hash.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from importlib import metadata
from typing import Any

from .graph_kernels import kernels_of_call
from .hashing import hash_of, normalised, normalised_ptx
from .trace import Entering, Operators, Seen, autotuned, generated_code, inductor_launches, triton_launches

MAX_NAMES = 48  # of operators and kernels that are listed

_COUNTED = re.compile(
    r"async_compile\.(?:cpp_pybinding|cpp|triton|cutedsl|multi_kernel)\(|^\s+extern_kernels\.\w+\(", re.MULTILINE
)


def gather(
    call: Callable[[], Any], *, compiled: bool, pinned: Iterable[str], cuda: bool, seen: Seen | None = None
) -> dict[str, Any]:
    """Run `call` (which may compile), then again under observation.  Raises only what `call` raises.

    What is observed is added to `seen`, which holds no tensors.
    """
    seen = Seen() if seen is None else seen
    if compiled:
        with generated_code(seen), autotuned(seen) if cuda else nullcontext():
            call()
        with inductor_launches(seen) if cuda else nullcontext():
            call()
    else:
        call()
        operators = Entering(seen, kernels_of_call) if cuda else Operators(seen)
        with triton_launches(seen) if cuda else nullcontext(), operators:
            call()
    try:
        return _facts(seen, compiled, tuple(pinned))
    except Exception as error:
        return {"code": None, "trouble": f"{type(error).__name__}: {error}"[:200]}


def _facts(seen: Seen, compiled: bool, pinned: tuple[str, ...]) -> dict[str, Any]:
    facts: dict[str, Any] = {"code": None, "kind": None, "kernels": None}
    kernels = _kernels(seen)
    if compiled:
        if seen.generated:
            normal = [normalised(code) for code in seen.generated]
            facts |= {"kind": "generated", "code": hash_of(normal), "kernels": kernel_count(seen, compiled=True)}
    else:
        facts["ops"] = seen.operators[:MAX_NAMES]
        facts["kernels"] = kernel_count(seen, compiled=False)
        foreign = [name for name in seen.operators if not name.startswith(("aten::", "prims::", "prim::"))]
        facts["operators"] = [{"name": call.name, "bytes": call.bytes} for call in seen.calls[:MAX_NAMES]]
        ptx = [_ptx(launch.kernel) for launch in seen.triton]
        if ptx and len(ptx) == seen.hooked and None not in ptx and not foreign:
            launches = [launch.text for launch in seen.triton]
            facts |= {"kind": "triton", "code": hash_of([*seen.described, *map(str, ptx), *launches])}
        elif seen.launched and not foreign and not seen.hooked:
            facts |= {"kind": "operators", "code": hash_of(seen.described)}
        elif versions := [f"{name} {metadata.version(name)}" for name in pinned]:
            facts |= {"kind": "pinned", "code": hash_of([*seen.described, *versions])}
    return facts | totals(kernels)


def kernel_count(seen: Seen, *, compiled: bool) -> int:
    """Kernels of one call: those in generated code with its library calls, or operators and Triton launches."""
    if compiled:
        return sum(len(_COUNTED.findall(normalised(code))) for code in seen.generated)
    return seen.launched + seen.hooked


def totals(kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of each Triton kernel of a case, and their totals."""
    if not kernels:
        return {}
    facts: dict[str, Any] = {"triton": kernels[:MAX_NAMES]}
    facts["config"] = "; ".join(_configuration(kernel) for kernel in kernels)[:400]
    for name, aggregate in (("registers", max), ("spills", sum), ("shared", max)):
        known = [kernel[name] for kernel in kernels if kernel.get(name) is not None]
        if known:
            facts[name] = aggregate(known)
    return facts


def _kernels(seen: Seen) -> list[dict[str, Any]]:
    if not (seen.tuned or seen.triton):
        return []
    from .triton import of_kernel, of_launcher  # needs Triton

    launchers = [of_launcher(tuner, seen.timings.get(id(tuner), ()), values) for tuner, values in seen.tuned]
    return launchers or [of_kernel(launch.kernel, launch.grid, launch.values) for launch in seen.triton]


def _configuration(kernel: dict[str, Any]) -> str:
    details = {"num_warps": kernel.get("warps"), "num_stages": kernel.get("stages"), **kernel.get("settings", {})}
    return " ".join([str(kernel.get("name")), *(f"{k}={v}" for k, v in details.items() if v is not None)])


def _ptx(kernel: Any) -> str | None:
    ptx = kernel.asm.get("ptx")
    return normalised_ptx(ptx) if isinstance(ptx, str) else None
