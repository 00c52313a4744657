"""Where the programs are that measure studies: in `benchmarks/`, which only a clone has.  Torch-free."""

import hashlib

from ..arena import protocol

BENCHMARKS = protocol.KERNELS.parent / "benchmarks"  # next to this package in a clone
MODULE = "benchmarks.kernels.published"  # started with `python -m`


def kernels_digest() -> str:
    """A hash of the code that measures; a session goes on only with the same code."""
    files = [
        *sorted(protocol.KERNELS.rglob("*.py")),
        *sorted(protocol.KERNELS.rglob("*.cpp")),
        *sorted((BENCHMARKS / "kernels").rglob("*.py")),
    ]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]
