"""Hashes of compiled code that ignore names and paths."""

import hashlib
import re
from collections.abc import Iterable

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
