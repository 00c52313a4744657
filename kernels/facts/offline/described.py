"""Facts of compiled kernels, in the words of a report: plain values that go through JSON."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from ..accesses import values_of
from ..gather import MAX_NAMES
from ..hashing import normalised_ptx
from ..trace import OperatorCall, described
from ..triton import SHORT, accesses_of, settings_of
from .architectures import REGISTERS, Architecture, occupancy
from .launches import Launch
from .machine import Reader, disassembled

MAX_CHOICES = 24  # of an autotuner that are told one by one
MAX_TEXT = 700_000  # characters: an answer is one line of at most 1 MiB

_LOCATION = re.compile(r"^#loc.*\n|\s*loc\((?:[^()]|\([^()]*\))*\)", re.MULTILINE)


def facts_of(
    architecture: Architecture,
    reader: Reader,
    launches: Sequence[Launch],
    around: Sequence[str],
    extern: int,
    calls: Sequence[OperatorCall] = (),
) -> dict[str, Any]:
    """Of a case: its kernels in launch order.

    `around` are the operators beside them, of which `extern` compute; `calls` are those of these that were seen.
    """
    read = iter(reader.facts(cubins_of(launches)))
    kernels, hashed = [], list(around)
    for launch in launches:
        kernel = _kernel(architecture, launch, next(read))
        if launch.choices:
            choices = [_kernel(architecture, choice, next(read)) for choice in launch.choices]
            kernel = _chosen(launch, choices)
            kernel["choices"] = [
                {name: choice[name] for name in ("settings", "warps", "stages", *_TOLD) if name in choice}
                for choice in choices[:MAX_CHOICES]
            ]
        if launch.uncompiled:
            kernel["sass"] = _hash([kernel["sass"], launch.uncompiled])
        kernels.append(kernel)
        numbers = [argument for argument in launch.arguments if isinstance(argument, SHORT)]
        hashed.append(f"{kernel['sass']} {kernel['grid']} {kernel['shared_dynamic']} {described(numbers)}")
    over = next((kernel["over"] for kernel in kernels if "over" in kernel), None)
    return {
        **({"over": over} if over else {}),
        "arch": architecture.name,
        "code": _hash(hashed) if hashed else None,
        "count": len(kernels),
        "extern": extern,
        "operators": [{"name": call.name, "bytes": call.bytes} for call in calls[:MAX_NAMES]],
        "kernels": kernels,
    }


def cubins_of(launches: Sequence[Launch]) -> list[bytes]:
    """The machine code of each launch, and of what else an autotuner could have chosen in its place."""
    return [one.kernel.asm["cubin"] for launch in launches for one in (launch, *launch.choices)]


def refused(architecture: Architecture, reader: Reader, launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Kernels that can not be loaded, whether or not another one took their place."""
    read = reader.facts(cubins_of(launches))
    return [_kernel(architecture, launch, code) for launch, code in zip(launches, read, strict=True)]


def _chosen(launch: Launch, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An autotuner's kernel: which configuration runs is decided on a GPU, so it is the same when all of them are.

    Shown is, whatever their order, one that fits and spills the least, with the fewest registers of any that fits.
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
        "sass": _hash(sorted(f"{one['sass']} {one['grid']} {one['shared_dynamic']}" for one in choices)),
    }


_TOLD = ("registers", "spills", "shared_dynamic", "occupancy", "over")


def _kernel(architecture: Architecture, launch: Launch, code: dict[str, Any]) -> dict[str, Any]:
    metadata = launch.kernel.metadata
    dynamic = int(metadata.shared or 0)
    warps = int(metadata.num_warps)
    fits = occupancy(architecture, warps=warps, registers=code["registers"], shared=dynamic + code["shared_static"])
    values = values_of(getattr(getattr(launch.kernel, "src", None), "signature", {}), launch.arguments)
    facts = {
        "name": launch.name or metadata.name,
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
    """What a kernel compiled to, without what moves when nothing changes.  Raises KeyError for a kind it has not."""
    launch = launch.shown or launch
    if kind == "generated":
        text = launch.source or str(launch.kernel.src.fn.src)
    else:
        asm = launch.kernel.asm
        readers = {
            "sass": lambda: disassembled(asm["cubin"]),
            "ptx": lambda: normalised_ptx(asm["ptx"]),
            "ttgir": lambda: _LOCATION.sub("", asm["ttgir"]),
        }
        text = readers[kind]()
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}\n... {len(text) - MAX_TEXT} more characters"
    return text


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
