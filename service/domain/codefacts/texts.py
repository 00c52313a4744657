"""Texts of compiled kernels as they are stored: bounded, and addressed by their content.  Pure."""

import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol, TypeVar

from kernels.cases import Case, Metric, Role
from service.domain.text import printable

NAMES = {"ttgir": "TTGIR", "ptx": "PTX", "sass": "SASS", "generated": "Generated code"}  # in the order of compilation
MAX_BYTES = 1 << 20  # of a text; a longer one is not stored
MAX_TEXTS = 2000  # of one run or check
MAX_PACKED = 64 << 20  # bytes of them, compressed
MAX_NAME = 200

_PATH = re.compile(r"(?:/[\w.@+-]+){2,}")
_TEMPORARY = ("/tmp/", "/torchinductor", "/scratch/")  # noqa: S108  names in texts; no file is opened


@dataclass(frozen=True)
class KernelText:
    """One text of one kernel of a contender at a case; `arch` is empty where a device compiled for itself."""

    contender: str  # "head:norms"
    case: str
    number: int  # which kernel of the call
    kernel: str  # its name; empty for the code of a whole call
    kind: str
    text: str
    arch: str = ""


@dataclass(frozen=True)
class PackedText:
    """A text as it is stored."""

    sha256: str
    packed: bytes
    bytes: int


class _OfKernel(Protocol):
    @property
    def number(self) -> int: ...

    @property
    def kernel(self) -> str: ...


Side = TypeVar("Side", bound=_OfKernel)


def paired_texts(before: Sequence[Side], after: Sequence[Side]) -> Iterator[tuple[Side | None, Side | None]]:
    """Texts of one kind as before and after: in order where there are as many, else by the names of their kernels."""
    old, new = (sorted(side, key=lambda one: one.number) for side in (before, after))
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
        return
    left = defaultdict[str, list[Side]](list)
    for one in old:
        left[one.kernel].append(one)
    fresh = list[Side]()
    for one in new:
        if left[one.kernel]:
            yield left[one.kernel].pop(0), one
        else:
            fresh.append(one)
    yield from zip_longest([one for some in left.values() for one in some], fresh)


BASELINES = (Role.PARENT, Role.LAST_GOOD, Role.PINNED)  # the first that has texts is compared with the head


def plain_case(case: str) -> str:
    """The case whose kernels a case of another metric has; a text that is no case is its own."""
    try:
        return str(replace(Case.parse(case), metric=Metric.KERNEL))
    except ValueError:
        return case


def packed(text: str) -> PackedText | None:
    """The text without names of temporary folders, compressed.  None for one that is empty or too long."""
    whole = _PATH.sub(_without_folder, printable(text)).encode(errors="replace")
    if not whole.strip() or len(whole) > MAX_BYTES:
        return None
    return PackedText(hashlib.sha256(whole).hexdigest(), zlib.compress(whole, 6), len(whole))


def unpacked(stored: bytes) -> str:
    """Never more than a text may have, whatever is stored."""
    return zlib.decompressobj().decompress(stored, MAX_BYTES).decode(errors="replace")


def _without_folder(path: re.Match[str]) -> str:
    return "PATH" if any(one in path[0] for one in _TEMPORARY) else path[0]
