"""Facts about a compiled Triton kernel that ran on this GPU: resources, occupancy, machine code."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from .accesses import Argument, Bytes, names_of, of_ptx, of_ttgir, traffic
from .architectures import KNOWN, occupancy
from .locations import location
from .machine import code_of

OPTIONS = ("maxnreg", "launch_cooperative_grid")  # listed if they are set
SHORT = (bool, int, float, str, type(None))
MAX_CANDIDATES = 20  # of a timing table, best first


def of_launcher(tuner: Any, timings: Sequence[tuple[Any, float]], values: Sequence[Argument] = ()) -> dict[str, Any]:
    """Facts about the first launcher of Inductor's CachingAutotuner, which is the one that runs.

    Its grid is unknown: of memory traffic, only the sizes of the arguments are known.
    """
    launcher = tuner.launchers[0]
    facts = {
        "name": getattr(tuner.fn, "__name__", None),
        "registers": getattr(launcher, "n_regs", None),
        "spills": getattr(launcher, "n_spills", None),
        "shared": getattr(launcher, "shared", None),
        **_configuration(launcher.config),
    }
    cubin = None
    with suppress(Exception):  # its launcher does not keep the machine code; Triton's cache does
        folder = Path(knobs.cache.dir) / launcher.cache_hash
        [file] = folder.glob("*.cubin")
        cubin = file.read_bytes()
        facts |= of_ptx(file.with_suffix(".ptx").read_text())
    if sizes := [value.size for value in values if isinstance(value, Bytes)]:
        facts["bytes"] = sum(sizes)
    if timings:
        best = sorted(timings, key=lambda candidate: candidate[1])[:MAX_CANDIDATES]
        facts["timings"] = [{"ms": round(ms, 6), **_configuration(config)} for config, ms in best]
    return _with_occupancy(facts, cubin)


def of_kernel(kernel: Any, grid: Sequence[int] = (), values: Sequence[Argument] = ()) -> dict[str, Any]:
    """Facts about Triton's CompiledKernel, launched on this grid with these arguments."""
    facts = {
        "name": kernel.metadata.name,
        "registers": getattr(kernel, "n_regs", None),
        "spills": getattr(kernel, "n_spills", None),
        "shared": getattr(kernel.metadata, "shared", None),
        "warps": getattr(kernel.metadata, "num_warps", None),
        "stages": getattr(kernel.metadata, "num_stages", None),
    }
    with suppress(AttributeError):  # only kernels compiled from Python have constants
        facts["settings"] = settings_of(kernel)
    facts |= source_of(kernel) | accesses_of(kernel, grid, values)
    return _with_occupancy(facts, kernel.asm.get("cubin"))


def source_of(kernel: Any) -> dict[str, Any]:
    """Where the target defines a kernel; empty for those of libraries and of generated code."""
    found = location(getattr(getattr(kernel, "src", None), "fn", None))
    return {"source": found} if found else {}


def settings_of(kernel: Any) -> dict[str, Any]:
    """The compile-time constants of a Triton kernel by name, and the options that were set.

    The fields of a NamedTuple count as constants.  Without arguments that Triton specialised because they were 1, and
    without warps and stages.
    """
    function = kernel.src.fn
    found = {name: value for name in OPTIONS if (value := getattr(kernel.metadata, name, None))}
    for where, value in kernel.src.constants.items():
        number = where[0] if isinstance(where, tuple) else where
        parameter = function.params[number] if isinstance(number, int) else None
        if parameter is not None and parameter.is_constexpr:
            value = getattr(value, "value", value)
            fields = value._asdict() if hasattr(value, "_asdict") else {parameter.name: value}  # a NamedTuple
            for name, each in fields.items():
                found[name] = each if isinstance(each, SHORT) else str(each)[:80]
    return found


def accesses_of(kernel: Any, grid: Sequence[int], values: Sequence[Argument]) -> dict[str, Any]:
    """How a launch accesses memory and what it computes, as far as PTX and TTGIR are available."""
    facts: dict[str, Any] = {}
    with suppress(Exception):
        facts |= of_ptx(kernel.asm["ptx"])
    with suppress(Exception):
        if grid:
            names = names_of(getattr(kernel.src, "signature", {}))
            facts |= {"grid": list(grid), **of_ttgir(kernel.asm["ttgir"], values, grid, names)}
            facts["bytes"] = sum(traffic(facts))
    return facts


def _configuration(config: Any) -> dict[str, Any]:
    return {
        "warps": config.num_warps,
        "stages": config.num_stages,
        "settings": {str(name): value for name, value in config.kwargs.items()},
    }


def _with_occupancy(facts: dict[str, Any], cubin: Any) -> dict[str, Any]:
    """Add the hash of the machine code, static shared memory, the GPU's limit, and theoretical occupancy.

    Reads only the sections of the cubin (0.1 ms), without disassembling.
    """
    with suppress(Exception):
        if isinstance(cubin, bytes):
            code = code_of(cubin)
            facts |= {"sass": code.hash, "shared_static": code.shared}
        architecture = KNOWN["sm_{}{}".format(*torch.cuda.get_device_capability())]
        facts["shared_limit"] = architecture.shared_limit
        fits = occupancy(
            architecture,
            warps=facts["warps"],
            registers=facts["registers"],
            shared=facts["shared"] + facts.get("shared_static", 0),
        )
        facts |= {
            "occupancy": fits.share,
            "limited_by": fits.limited_by,
            "blocks": fits.blocks,
            "sms": architecture.sms,
        }
    return facts
