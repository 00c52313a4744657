"""Facts of a compiled kernel that ran on this GPU: what it takes of an SM, and which machine code it is."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from .accesses import Argument, Bytes, names_of, of_ptx, of_ttgir, traffic
from .offline.architectures import KNOWN, occupancy
from .offline.machine import code_of

OPTIONS = ("maxnreg", "launch_cooperative_grid")  # named where they are set
SHORT = (bool, int, float, str, type(None))
MAX_CANDIDATES = 20  # of a timing table, best first


def of_launcher(tuner: Any, timings: Sequence[tuple[Any, float]], values: Sequence[Argument] = ()) -> dict[str, Any]:
    """Of Inductor's CachingAutotuner, whose first launcher is the one that runs.

    Its grid is not known, so that of memory only the arguments' bytes are.
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
    with suppress(Exception):  # its own launcher forgets the machine code; Triton's cache keeps it
        folder = Path(knobs.cache.dir) / launcher.cache_hash
        [file] = folder.glob("*.cubin")
        cubin = file.read_bytes()
        facts |= of_ptx(file.with_suffix(".ptx").read_text())
    if sizes := [value.size for value in values if isinstance(value, Bytes)]:
        facts["bytes"] = sum(sizes)
    if timings:
        best = sorted(timings, key=lambda candidate: candidate[1])[:MAX_CANDIDATES]
        facts["timings"] = [{"ms": round(ms, 6), **_configuration(config)} for config, ms in best]
    return _placed(facts, cubin)


def of_kernel(kernel: Any, grid: Sequence[int] = (), values: Sequence[Argument] = ()) -> dict[str, Any]:
    """Of Triton's CompiledKernel, launched on this grid with these arguments."""
    facts = {
        "name": kernel.metadata.name,
        "registers": getattr(kernel, "n_regs", None),
        "spills": getattr(kernel, "n_spills", None),
        "shared": getattr(kernel.metadata, "shared", None),
        "warps": getattr(kernel.metadata, "num_warps", None),
        "stages": getattr(kernel.metadata, "num_stages", None),
    }
    with suppress(AttributeError):  # what was not compiled from Python has no constants
        facts["settings"] = settings_of(kernel)
    facts |= accesses_of(kernel, grid, values)
    return _placed(facts, kernel.asm.get("cubin"))


def settings_of(kernel: Any) -> dict[str, Any]:
    """The compile-time constants that a Triton kernel was called with, by name, and the options that were set.

    The fields of a NamedTuple count as constants.  Without the arguments that happened to be 1, and the options that
    every kernel has: warps and stages.
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
    """How a launch accesses memory and what it computes, as far as its texts are there."""
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


def _placed(facts: dict[str, Any], cubin: Any) -> dict[str, Any]:
    """With the hash of the machine code, static shared memory, the limit of the GPU, and theoretical occupancy.

    Nothing is disassembled: reading the sections of a cubin takes a tenth of a millisecond.
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
