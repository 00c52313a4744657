"""What the compiler says of the code that ran: its hash, how many kernels, registers, spills, shared memory, settings.

Facts explain a time and never decide it.  Gathering them must not cost a case: whatever is not to be had is left out.

`kind` says what the hash `code` stands for: "generated" (everything Inductor wrote), "triton" (of each kernel its PTX,
its grid and its arguments, and the operators around them), "operators" (the sequence of operators with their arguments;
Python between them is not seen), "pinned" (versions of distributions whose code can not be seen).  An operator
written in Python is, on a GPU, what it launches inside, if that is all seen; any other is not known.  Without a hash
nothing can be said.  Not seen is what is launched past both torch's dispatcher and Triton, as by a CUDA extension that
takes pointers: beside Triton kernels that are the same, such a kernel may have changed under an equal hash.
"""

import re
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from .graph_kernels import put_on_stream
from .hashing import _hash, normalised, normalised_ptx
from .trace import Entering, Operators, Seen, autotuned, generated_code, inductor_launches, nothing, triton_launches

MAX_NAMES = 48  # of operators and kernels that are told by name

_COUNTED = re.compile(
    r"async_compile\.(?:cpp_pybinding|cpp|triton|cutedsl|multi_kernel)\(|^\s+extern_kernels\.\w+\(", re.MULTILINE
)


def gather(call: Callable[[], Any], *, compiled: bool, pinned: Iterable[str], cuda: bool) -> dict[str, Any]:
    """Run `call` (which may compile), then once more under observation.  What it raises is raised, and nothing else."""
    seen = Seen()
    if compiled:
        with generated_code(seen), autotuned(seen) if cuda else nothing():
            call()
        with inductor_launches(seen) if cuda else nothing():
            call()
    else:
        call()
        with triton_launches(seen) if cuda else nothing(), Entering(seen, put_on_stream) if cuda else Operators(seen):
            call()
    try:
        return _facts(seen, compiled, tuple(pinned))
    except Exception as trouble:
        return {"code": None, "trouble": f"{type(trouble).__name__}: {trouble}"[:200]}


def _facts(seen: Seen, compiled: bool, pinned: tuple[str, ...]) -> dict[str, Any]:
    facts: dict[str, Any] = {"code": None, "kind": None, "kernels": None}
    kernels = _kernels(seen)
    if compiled:
        if seen.generated:
            normal = [normalised(code) for code in seen.generated]
            count = sum(len(_COUNTED.findall(code)) for code in normal)
            facts |= {"kind": "generated", "code": _hash(normal), "kernels": count}
    else:
        facts["ops"] = seen.operators[:MAX_NAMES]
        facts["kernels"] = seen.launched + seen.hooked
        strange = [name for name in seen.operators if not name.startswith(("aten::", "prims::", "prim::"))]
        facts["operators"] = [{"name": call.name, "bytes": call.bytes} for call in seen.calls[:MAX_NAMES]]
        ptx = [_ptx(launch.kernel) for launch in seen.triton]
        if ptx and len(ptx) == seen.hooked and None not in ptx and not strange:
            launches = [launch.text for launch in seen.triton]
            facts |= {"kind": "triton", "code": _hash([*seen.described, *map(str, ptx), *launches])}
        elif seen.launched and not strange and not seen.hooked:
            facts |= {"kind": "operators", "code": _hash(seen.described)}
        elif versions := [f"{name} {metadata.version(name)}" for name in pinned]:
            facts |= {"kind": "pinned", "code": _hash([*seen.described, *versions])}
    return facts | totals(kernels)


def totals(kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of a case's Triton kernels one by one, and what they come to together."""
    if not kernels:
        return {}
    facts: dict[str, Any] = {"triton": kernels[:MAX_NAMES]}
    facts["config"] = "; ".join(_configuration(kernel) for kernel in kernels)[:400]
    for name, together in (("registers", max), ("spills", sum), ("shared", max)):
        known = [kernel[name] for kernel in kernels if kernel.get(name) is not None]
        if known:
            facts[name] = together(known)
    return facts


def _kernels(seen: Seen) -> list[dict[str, Any]]:
    if not (seen.tuned or seen.triton):
        return []
    from .triton import of_kernel, of_launcher  # they need Triton

    launchers = [of_launcher(tuner, seen.timings.get(id(tuner), ()), values) for tuner, values in seen.tuned]
    return launchers or [of_kernel(launch.kernel, launch.grid, launch.values) for launch in seen.triton]


def _configuration(kernel: dict[str, Any]) -> str:
    details = {"num_warps": kernel.get("warps"), "num_stages": kernel.get("stages"), **kernel.get("settings", {})}
    return " ".join([str(kernel.get("name")), *(f"{k}={v}" for k, v in details.items() if v is not None)])


def _ptx(kernel: Any) -> str | None:
    ptx = kernel.asm.get("ptx")
    return normalised_ptx(ptx) if isinstance(ptx, str) else None
