"""Texts of compiled kernels, bounded; hashes that ignore names and paths; where their source is defined."""

import hashlib
import inspect
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from .trace import Seen

_NAME = re.compile(r"\b(?:cpp|triton_[a-z]+)_fused_\w+")
_PATH = re.compile(r"(?:/[\w.@+-]+){2,}")


def normalised(code: str) -> str:
    """Generated code without parts that depend on the machine, the process or line numbers."""
    code = re.sub(r"^\s*(#(?!include|define|pragma|if|endif|else)|//).*\n", "", code, flags=re.MULTILINE)
    code = re.sub(r"'(backend_hash|kernel_name|cache_key|autotune_cache_key)': *(None|'[^']*'),? *", "", code)
    code = re.sub(r"\s+#.*$", "", code, flags=re.MULTILINE) if "#include" not in code else code
    # kernels are named after the fused operators: x * x and x.square() give the same kernel with two names
    names = list(dict.fromkeys(_NAME.findall(code)))
    code = _NAME.sub(lambda found: f"kernel_{names.index(found[0])}", code)
    return _PATH.sub("PATH", code)


def normalised_ptx(ptx: str) -> str:
    """PTX without line numbers, file names and debug sections, which change when a kernel moves in its file."""
    ptx = ptx.split(".section\t.debug", 1)[0].split(".section .debug", 1)[0]
    kept = [line.split("//")[0].rstrip() for line in ptx.splitlines()]
    return "\n".join(line for line in kept if line.strip() and not re.match(r"\s*(\.loc|\.file|\$L__\w+:)", line))


def hash_of(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


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
            from .offline.machine import disassembled  # needs Triton

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


CHECKOUT = "KERNELWATCH_CHECKOUT"  # the folder of the target's files; no others are named
_MAX_WRAPPERS = 10
# The names under which Triton, torch.compile, torch.library, functools and others keep the function that they wrap.
_WRAPPED = ("_torchdynamo_orig_callable", "_orig_mod", "_init_fn", "__wrapped__", "fn", "func")
_DEFINES = ("def ", "async def ", "class ")


def location(function: Any) -> dict[str, Any] | None:
    """File, line of the definition, and first and last line; None if the function is in no file of the checkout.

    The first line is that of the first decorator.
    """
    try:
        return _location(_code(function))
    except Exception:  # facts must not fail a case
        return None


def _location(code: CodeType | None) -> dict[str, Any] | None:
    root = os.environ.get(CHECKOUT)
    if code is None or not root:
        return None
    file, folder = Path(code.co_filename).resolve(), Path(root).resolve()
    if not file.is_relative_to(folder):
        return None
    lines, first = inspect.getsourcelines(code)
    line = first + next((number for number, text in enumerate(lines) if text.lstrip().startswith(_DEFINES)), 0)
    return {"file": file.relative_to(folder).as_posix(), "line": line, "first": first, "last": first + len(lines) - 1}


def _code(function: Any) -> CodeType | None:
    """The code of a function, below what wraps it; of a module, that of its `forward`."""
    for _ in range(_MAX_WRAPPERS):
        wrapped = next((inner for name in _WRAPPED if (inner := getattr(function, name, None)) is not None), None)
        if wrapped is not None:
            function = wrapped
        elif isinstance(code := getattr(function, "__code__", None), CodeType):
            return code
        else:
            kind = function if inspect.isclass(function) else type(function)
            function = getattr(kind, "forward", None) or kind.__call__
    return None
