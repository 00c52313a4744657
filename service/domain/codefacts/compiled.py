"""The facts of an offline contender about a case.  Pure; they come from untrusted processes and are validated."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple

from service.domain.codefacts.texts import SourceLines, paired

MAX_KERNELS = 1000  # of one case; Inductor's largest graphs have some dozens
MAX_TEXT = 600
MAX_ENTRIES = 64  # of a table: constants of a kernel, widths of its loads
LARGEST = 2**53  # of a number: what a double holds


class State(StrEnum):
    COMPILED = "compiled"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


@dataclass(frozen=True, order=True)
class CompiledPlace:
    """The place of a compilation: one provider's case for one architecture."""

    provider: str
    case: str
    arch: str


@dataclass(frozen=True)
class Access:
    """Traffic of a launch for one argument: bytes requested, and size of the argument."""

    asked: int
    size: int


@dataclass(frozen=True)
class Call:
    """An operator that computes, and the bytes that it moves at least."""

    name: str
    bytes: int | None


@dataclass(frozen=True)
class Kernel:
    """One kernel as the compiler left it; None where the compiler did not say.  Sizes are in bytes."""

    name: str
    sass: str | None = None  # hash of the machine code, without its addresses
    registers: int | None = None
    spills: int | None = None  # instructions that load from or store to local memory
    stack: int | None = None
    shared_static: int | None = None
    shared_dynamic: int | None = None
    shared_limit: int | None = None
    occupancy: float | None = None
    limited_by: str | None = None
    loads: Mapping[str, int] = field(default_factory=dict)  # bytes of one instruction to how many there are
    stores: Mapping[str, int] = field(default_factory=dict)
    async_loads: Mapping[str, int] = field(default_factory=dict)  # past the registers, into shared memory (cp.async)
    instructions: int | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)  # num_warps, num_stages, and the kernel's own
    grid: tuple[int, ...] | None = None
    candidates: int | None = None  # configurations that the GPU will choose from
    hints: Mapping[str, int] = field(default_factory=dict)  # "load evict_first" to how many instructions carry it
    reads: Mapping[str, "Access"] = field(default_factory=dict)  # by argument
    writes: Mapping[str, "Access"] = field(default_factory=dict)
    looped: Mapping[str, int] = field(default_factory=dict)  # bytes of `reads` that are requested in loops
    work: Mapping[str, int] = field(default_factory=dict)  # elements by kind of operation, of the whole launch
    bytes: int | None = None  # that a launch has to move at least
    blocks: int | None = None  # that fit on an SM at once
    sms: int | None = None  # of the GPU
    source: SourceLines | None = None  # where the revision defines it; None for a library's and for generated code

    @property
    def programs(self) -> int | None:
        return prod(self.grid) if self.grid else None

    @property
    def warps(self) -> int | None:
        warps = self.configuration.get("num_warps", "")
        return int(warps) if warps.isdecimal() else None

    @property
    def shared(self) -> int | None:
        """Bytes of shared memory, static and dynamic."""
        sizes = [size for size in (self.shared_static, self.shared_dynamic) if size is not None]
        return sum(sizes) if sizes else None

    @property
    def fetches(self) -> Mapping[str, int]:
        """Loads of both kinds."""
        return Counter({**self.loads}) + Counter({**self.async_loads})

    @property
    def over(self) -> str | None:
        if self.shared is None or not self.shared_limit or self.shared <= self.shared_limit:
            return None
        return f"shared memory: asks for {self.shared} bytes of {self.shared_limit}"


@dataclass(frozen=True)
class Compiled:
    """One case, compiled or not."""

    state: State
    reason: str = ""
    code: str | None = None  # hash of all its kernels
    kernels: tuple[Kernel, ...] = ()
    count: int = 0  # kernels launched
    extern: int = 0  # calls that no compiler of ours made: aten, cuBLAS
    over: str | None = None  # which hard limit it breaks, and by how much
    refused: tuple[str, ...] = ()  # the same of kernels in whose place the case launched another
    calls: tuple[Call, ...] = ()  # the operators among `extern` that were seen
    source: SourceLines | None = None  # of the function that the recipe names

    @property
    def spills(self) -> int | None:
        """Spill instructions of all kernels; None where nothing is known."""
        spills = [kernel.spills for kernel in self.kernels if kernel.spills is not None]
        return sum(spills) if spills else None


def read(answer: Mapping[str, Any]) -> Compiled:
    """An answer to `compile`; what makes no sense in it counts as not said."""
    facts = _table(answer.get("facts"))
    listed = facts.get("kernels")
    kernels = kernels_of(listed)
    stored_state, reason = answer.get("state"), answer.get("reason") or answer.get("error")
    state = State(stored_state) if isinstance(stored_state, str) and stored_state in list(State) else State.FAILED
    refused = facts.get("refused")
    over = _text(facts.get("over")) or next((kernel.over for kernel in kernels if kernel.over), None)
    return Compiled(
        state,
        _shown(reason) if reason else "",
        _text(facts.get("code")) if state is State.COMPILED else None,
        kernels,
        whole(facts.get("count")) or len(kernels),
        whole(facts.get("extern")) or 0,
        over,
        tuple(_text(_table(row).get("over")) or "?" for row in refused[:MAX_KERNELS])
        if isinstance(refused, list)
        else (),
        calls_of(facts.get("operators")),
        SourceLines.read(facts.get("source")),
    )


def kernels_of(listed: Any) -> tuple[Kernel, ...]:
    """Kernels as a contender describes them, those that ran and those that were only compiled."""
    return tuple(_kernel(_table(kernel)) for kernel in listed[:MAX_KERNELS]) if isinstance(listed, list) else ()


class Definition(NamedTuple):
    """Where a kernel is defined, and its compiled code."""

    name: str
    sass: str | None
    source: SourceLines | None


def definitions_of(listed: Any) -> tuple[Definition, ...]:
    """The definitions of the same kernels, without the rest of them: a document asks for them at each of its cases."""
    tables = [_table(kernel) for kernel in listed[:MAX_KERNELS]] if isinstance(listed, list) else []
    return tuple(
        Definition(_text(facts.get("name")) or "?", _text(facts.get("sass")), SourceLines.read(facts.get("source")))
        for facts in tables
    )


def kernel_pairs(before: Sequence[Kernel], after: Sequence[Kernel]) -> list[tuple[Kernel, Kernel]]:
    """The kernels that are each other's before and after."""
    return [(old, new) for old, new in paired(before, after, lambda kernel: kernel.name) if old and new]


def calls_of(listed: Any) -> tuple[Call, ...]:
    tables = [_table(row) for row in listed[:MAX_KERNELS]] if isinstance(listed, list) else []
    return tuple(Call(_text(table.get("name")) or "?", whole(table.get("bytes"))) for table in tables)


def texts_of(listed: Any) -> tuple[str, ...]:
    """A list of texts; whatever else is in it is left out."""
    texts = listed[:MAX_KERNELS] if isinstance(listed, list) else []
    return tuple(_clean(text) for text in texts if isinstance(text, str))


def _kernel(facts: Mapping[str, Any]) -> Kernel:
    own = {_clean(name): _shown(value) for name, value in _entries(facts.get("settings"))}
    usual = {"num_warps": whole(facts.get("warps")), "num_stages": whole(facts.get("stages"))}
    configuration = {name: str(value) for name, value in usual.items() if value is not None} | own
    grid = facts.get("grid")
    occupancy = facts.get("occupancy")
    return Kernel(
        _text(facts.get("name")) or "?",
        _text(facts.get("sass")),
        **{name: whole(facts.get(name)) for name in _WHOLE}
        | ({"shared_dynamic": whole(facts.get("shared"))} if "shared" in facts else {}),
        occupancy=float(occupancy) if isinstance(occupancy, int | float) and 0 <= occupancy <= 1 else None,
        limited_by=_text(facts.get("limited_by")),
        loads=_counts(facts.get("loads")),
        stores=_counts(facts.get("stores")),
        async_loads=_counts(facts.get("async_loads")),
        configuration=configuration,
        grid=tuple(whole(size) or 0 for size in grid[:3]) if isinstance(grid, list) else None,
        hints=_counts(facts.get("hints")),
        reads=_accesses(facts.get("reads")),
        writes=_accesses(facts.get("writes")),
        looped=_counts(facts.get("looped")),
        work=_counts(facts.get("work")),
        source=SourceLines.read(facts.get("source")),
    )


def _accesses(value: Any) -> dict[str, Access]:
    tables = {_clean(name[:80]): _table(each) for name, each in _entries(value)}
    return {
        name: Access(whole(table.get("asked")) or 0, whole(table.get("size")) or 0) for name, table in tables.items()
    }


_WHOLE: tuple[str, ...] = ("registers", "spills", "stack", "shared_static", "shared_dynamic", "shared_limit")
_WHOLE += ("instructions", "candidates", "bytes", "blocks", "sms")


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def whole(value: Any) -> int | None:
    """A whole number of 0 or more that a double holds; None for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST else None


def _text(value: Any) -> str | None:
    return _clean(value) if isinstance(value, str) and value else None


def _clean(text: str) -> str:
    """Bounded, and without halves of characters, which no file and no terminal takes."""
    return _HALVES.sub("?", text[:MAX_TEXT])


_HALVES = re.compile("[\ud800-\udfff]")


def _entries(value: Any) -> list[tuple[str, Any]]:
    return [(str(name), each) for name, each in list(_table(value).items())[:MAX_ENTRIES]]


def _counts(value: Any) -> dict[str, int]:
    read = {_clean(width[:40]): whole(count) for width, count in _entries(value)}
    return {width: count for width, count in read.items() if count}


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return "?"  # Python refuses to write out numbers of more than 4300 digits
    return _clean(value if isinstance(value, str) else repr(value))


def is_number(text: str) -> bool:
    """Digits as Python's numbers have them: `²` is a digit for `isdigit` alone."""
    return text.isascii() and text.isdecimal()


def mean_width(counts: Mapping[str, int]) -> float | None:
    """Bytes of an access, on average over the instructions."""
    by_width = {int(width): count for width, count in counts.items() if is_number(width)}
    return sum(width * count for width, count in by_width.items()) / sum(by_width.values()) if by_width else None
