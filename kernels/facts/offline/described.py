"""Facts about compiled kernels as plain values for JSON."""

from collections.abc import Sequence
from typing import Any

from ..accesses import values_of
from ..architectures import REGISTERS, Architecture, occupancy
from ..gather import MAX_NAMES
from ..hashing import hash_of
from ..machine import Reader
from ..texts import assembly, bounded
from ..trace import OperatorCall, described
from ..triton import SHORT, accesses_of, settings_of, source_of
from .launches import Launch

MAX_CHOICES = 24  # of an autotuner that are listed


def facts_of(
    architecture: Architecture,
    reader: Reader,
    launches: Sequence[Launch],
    around: Sequence[str],
    extern: int,
    calls: Sequence[OperatorCall] = (),
) -> dict[str, Any]:
    """Facts about a case: its kernels in launch order.

    `around` are the other operators, of which `extern` compute; `calls` are the observed ones of these.
    """
    read = iter(reader.facts(cubins_of(launches)))
    kernels = []
    hashed = list(around)
    for launch in launches:
        kernel = _kernel(architecture, launch, next(read))
        if launch.choices:
            choices = [_kernel(architecture, choice, next(read)) for choice in launch.choices]
            kernel = _chosen(launch, choices)
            kernel["choices"] = [
                {name: choice[name] for name in ("settings", "warps", "stages", *_LISTED) if name in choice}
                for choice in choices[:MAX_CHOICES]
            ]
        if launch.uncompiled:
            kernel["sass"] = hash_of([kernel["sass"], launch.uncompiled])
        kernels.append(kernel)
        numbers = [argument for argument in launch.arguments if isinstance(argument, SHORT)]
        hashed.append(f"{kernel['sass']} {kernel['grid']} {kernel['shared_dynamic']} {described(numbers)}")
    over = next((kernel["over"] for kernel in kernels if "over" in kernel), None)
    return {
        **({"over": over} if over else {}),
        "arch": architecture.name,
        "code": hash_of(hashed) if hashed else None,
        "count": len(kernels),
        "extern": extern,
        "operators": [{"name": call.name, "bytes": call.bytes} for call in calls[:MAX_NAMES]],
        "kernels": kernels,
    }


def cubins_of(launches: Sequence[Launch]) -> list[bytes]:
    """The machine code of each launch and of the other choices of its autotuner."""
    return [one.kernel.asm["cubin"] for launch in launches for one in (launch, *launch.choices)]


def refused(architecture: Architecture, reader: Reader, launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Kernels that cannot be loaded, whether or not another one replaced them."""
    read = reader.facts(cubins_of(launches))
    return [_kernel(architecture, launch, code) for launch, code in zip(launches, read, strict=True)]


def _chosen(launch: Launch, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An autotuner's kernel.  A GPU decides which configuration runs, so that the hash covers all of them.

    The one that is shown fits and has the fewest spills, then the fewest registers.
    """
    fits = [one for one in choices if "over" not in one] or choices

    def order(one: dict[str, Any]) -> tuple[Any, ...]:
        return one["spills"], one["registers"], str(sorted(one["settings"].items())), one["warps"], str(one["stages"])

    best = min(fits, key=order)
    launch.shown = launch.choices[choices.index(best)]
    return {
        **best,
        "candidates": len(choices),
        "registers": min(one["registers"] for one in fits),
        "sass": hash_of(sorted(f"{one['sass']} {one['grid']} {one['shared_dynamic']}" for one in choices)),
    }


_LISTED = ("registers", "spills", "shared_dynamic", "occupancy", "over")


def _kernel(architecture: Architecture, launch: Launch, code: dict[str, Any]) -> dict[str, Any]:
    metadata = launch.kernel.metadata
    dynamic = int(metadata.shared or 0)
    warps = int(metadata.num_warps)
    fits = occupancy(architecture, warps=warps, registers=code["registers"], shared=dynamic + code["shared_static"])
    values = values_of(getattr(getattr(launch.kernel, "src", None), "signature", {}), launch.arguments)
    facts = {
        "name": launch.name or metadata.name,
        **source_of(launch.kernel),
        **accesses_of(launch.kernel, launch.grid or (), values),
        **code,
        "shared_dynamic": dynamic,
        "shared_limit": architecture.shared_limit,
        "occupancy": fits.share,
        "blocks": fits.blocks,
        "sms": architecture.sms,
        "limited_by": fits.limited_by,
        "warps": warps,
        "stages": metadata.num_stages,
        "settings": settings_of(launch.kernel) if launch.settings is None else launch.settings,
        "grid": None if launch.grid is None else list(launch.grid),
        "candidates": launch.candidates,
    }
    if getattr(metadata, "num_ctas", 1) != 1:
        facts["ctas"] = metadata.num_ctas
    over = launch.over
    if not fits.blocks and fits.limited_by == "registers":
        over = over or f"registers: asks for {code['registers'] * warps * 32} registers of {REGISTERS}"
    return facts | ({"over": over} if over else {})


def text_of(launch: Launch, kind: str) -> str:
    """The code of a kernel without locations.  Raises KeyError if it has no code of this kind."""
    launch = launch.shown or launch
    if kind == "generated":
        return bounded(launch.source or str(launch.kernel.src.fn.src))
    return bounded(assembly(launch.kernel.asm, kind))
