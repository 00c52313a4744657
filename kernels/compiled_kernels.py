"""Facts of a compiled kernel that ran on this GPU: what it takes of an SM, and which machine code it is."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from .offline.architectures import KNOWN, occupancy
from .offline.described import settings_of
from .offline.machine import code_of

MOST_CANDIDATES = 20  # of a timing table, best first


def of_launcher(tuner: Any, timings: Sequence[tuple[Any, float]]) -> dict[str, Any]:
    """Of Inductor's CachingAutotuner, whose first launcher is the one that runs."""
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
        [file] = (Path(knobs.cache.dir) / launcher.cache_hash).glob("*.cubin")
        cubin = file.read_bytes()
    if timings:
        best = sorted(timings, key=lambda candidate: candidate[1])[:MOST_CANDIDATES]
        facts["timings"] = [{"ms": round(ms, 6), **_configuration(config)} for config, ms in best]
    return _placed(facts, cubin)


def of_kernel(kernel: Any) -> dict[str, Any]:
    """Of Triton's CompiledKernel."""
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
    return _placed(facts, kernel.asm.get("cubin"))


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
        facts |= {"occupancy": fits.share, "limited_by": fits.limited_by}
    return facts
