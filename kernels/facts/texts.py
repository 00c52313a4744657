"""Texts of compiled kernels without locations, bounded so that each is one answer: TTGIR, PTX, SASS, generated code."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .hashing import normalised_ptx
from .trace import Seen

MAX_TEXT = 700_000  # characters: an answer is one line of at most 1 MiB
MAX_ENCODED = 900_000  # bytes of the same text as JSON, which takes six for a character outside of ASCII

_LOCATION = re.compile(r"^#loc.*\n|\s*loc\((?:[^()]|\([^()]*\))*\)", re.MULTILINE)


def observed_text(seen: Seen, kernel: int, kind: str) -> str:
    """The text of a kernel of an observed call, by its place in the fact `triton`.

    The code that Inductor generated is one text for the whole call.  Raises KeyError or IndexError where there is no
    such text.
    """
    if kind == "generated":
        if kernel or not seen.generated:
            raise KeyError(kind)
        return bounded("\n\n".join(seen.generated))
    if seen.tuned:
        return bounded(assembly(_cached(seen.tuned[kernel][0]), kind))
    return bounded(assembly(seen.triton[kernel].kernel.asm, kind))


def assembly(asm: Mapping[str, Any], kind: str) -> str:
    """What Triton keeps of a kernel, as a text.  Raises KeyError if it has none of this kind."""
    match kind:
        case "sass":
            from .machine import disassembled  # needs Triton

            return disassembled(asm["cubin"])
        case "ptx":
            return normalised_ptx(asm["ptx"])
        case "ttgir":
            return _LOCATION.sub("", asm["ttgir"])
        case _:
            raise KeyError(kind)


def bounded(text: str) -> str:
    """The text, or its beginning and how much more there is."""
    kept = text[:MAX_TEXT]
    while len(json.dumps(kept)) > MAX_ENCODED:
        kept = kept[: len(kept) // 2]
    return text if len(kept) == len(text) else f"{kept}\n... {len(text) - len(kept)} more characters"


def _cached(tuner: Any) -> dict[str, Any]:
    """The code of Inductor's launcher that runs.  The launcher does not keep it; Triton's cache does."""
    from triton import knobs

    folder = Path(knobs.cache.dir) / tuner.launchers[0].cache_hash
    found: dict[str, Any] = {}
    for file in folder.iterdir():
        if file.suffix in (".ttgir", ".ptx"):
            found[file.suffix[1:]] = file.read_text()
        elif file.suffix == ".cubin":
            found["cubin"] = file.read_bytes()
    return found
