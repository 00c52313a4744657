"""Texts of compiled kernels as stored, and where kernels are defined.  Pure; from untrusted processes."""

import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Self, TypeVar

from kernels.cases import Metric, Role, parse_case
from service.domain.text import printable

NAMES = {"ttgir": "TTGIR", "ptx": "PTX", "sass": "SASS", "generated": "Generated code"}  # in the order of compilation
TRACE = "trace"  # of a few calls, by torch's profiler: no code, and stored beside it
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


Side = TypeVar("Side")


def paired(
    before: Sequence[Side], after: Sequence[Side], name: Callable[[Side], str]
) -> Iterator[tuple[Side | None, Side | None]]:
    """Kernels as before and after: in order where there are as many, else by their names; then those of no pair."""
    if len(before) == len(after):
        yield from zip(before, after, strict=True)
        return
    left = defaultdict[str, list[Side]](list)
    for side in before:
        left[name(side)].append(side)
    fresh = list[Side]()
    for side in after:
        if left[name(side)]:
            yield left[name(side)].pop(0), side
        else:
            fresh.append(side)
    yield from zip_longest([side for some in left.values() for side in some], fresh)


BASELINES = (Role.PARENT, Role.LAST_GOOD, Role.PINNED)  # the first that has texts is compared with the head


def plain_case(case: str) -> str:
    """The case whose kernels a case of another metric has; a text that is no case is its own."""
    try:
        return str(replace(parse_case(case), metric=Metric.KERNEL))
    except ValueError:
        return case


def packed(text: str) -> PackedText | None:
    """The text without names of temporary folders, compressed.  None for one that is empty or too long."""
    shown = _PATH.sub(
        lambda path: "PATH" if any(folder in path[0] for folder in _TEMPORARY) else path[0], printable(text)
    )
    whole = shown.encode(errors="replace")
    if not whole.strip() or len(whole) > MAX_BYTES:
        return None
    return PackedText(hashlib.sha256(whole).hexdigest(), zlib.compress(whole, 6), len(whole))


def unpacked(stored: bytes) -> str:
    """Never more than a text may have, whatever is stored."""
    return zlib.decompressobj().decompress(stored, MAX_BYTES).decode(errors="replace")


MAX_FILE = 300  # characters of a path
MAX_LINE = 10_000_000


@dataclass(frozen=True)
class SourceLines:
    """A definition in a file, relative to the top of the checkout, with `/`."""

    file: str
    line: int  # of the `def`
    first: int  # of its decorators
    last: int
    changed: tuple[int, int] | None = None  # the first and the last of the first lines in it that the revision changed

    @property
    def at(self) -> str:
        """`norms/rms.py:41`, the place to read first: the first changed line, else that of the definition."""
        return f"{self.file}:{self.shown[0]}"

    @property
    def short(self) -> str:
        """`rms.py:41`, for people who see the whole path elsewhere."""
        return self.at.rpartition("/")[2]

    @property
    def shown(self) -> tuple[int, int]:
        """The first and the last line to point at."""
        return self.changed or (self.line, self.line)

    def as_json(self) -> dict[str, Any]:
        place = {"file": self.file, "line": self.line, "first": self.first, "last": self.last}
        return place | ({"changed": list(self.changed)} if self.changed else {})

    @classmethod
    def read(cls, stored: Any) -> Self | None:
        """None for everything that is not the place of a definition within a checkout."""
        if not isinstance(stored, Mapping):
            return None
        file, (first, line, last) = stored.get("file"), (_line(stored.get(name)) for name in ("first", "line", "last"))
        if not isinstance(file, str) or not _is_relative(file) or not 1 <= first <= line <= last:
            return None
        changed = stored.get("changed")
        pair = tuple(map(_line, changed)) if isinstance(changed, list | tuple) else ()
        inside = len(pair) == 2 and first <= pair[0] <= pair[1] <= last
        return cls(file, line, first, last, (pair[0], pair[1]) if inside else None)


def _is_relative(file: str) -> bool:
    parts = file.split("/")
    return 0 < len(file) <= MAX_FILE and file.isprintable() and not any(part in ("", ".", "..") for part in parts)


def _line(value: Any) -> int:
    """The number of a line; 0 for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_LINE else 0


def first_changed(source: SourceLines, hunks: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """The part of the first changed range of a file that is inside of a definition; ranges have both ends.

    None also where the whole definition is new.
    """
    inside = ((max(first, source.first), min(last, source.last)) for first, last in sorted(hunks))
    lines = next(((first, last) for first, last in inside if first <= last), None)
    return None if lines == (source.first, source.last) else lines
