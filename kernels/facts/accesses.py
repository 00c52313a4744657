"""Count memory accesses and operations of a Triton kernel from the text of its TTGIR and PTX.  Pure.

PTX contains the width and the cache hints of each access.  TTGIR still has tensors and loops: with the grid and the
arguments of a launch it gives the bytes requested of each argument and the number of computed elements.  No tool is
started; a kernel takes a few milliseconds.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

MAX_LINES = 20_000  # of one TTGIR; typical kernels have some hundreds
MAX_ARGUMENTS = 32

_PTX_ACCESS = re.compile(r"\b(?P<what>ld|st)\.global(?P<how>(?:\.[\w:]+)*)\.(?P<kind>[bsuf])(?P<bits>\d+)\b")
_PTX_ASYNC = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\S* \[[^\]]*\], \[[^\]]*\], (?P<bytes>0x[0-9a-fA-F]+|\d+)")
_PTX_INSTRUCTION = re.compile(r"^\s+(?:@!?%p\d+\s+)?[a-z][\w.:]*(?:\s+[^;]*)?;", re.MULTILINE)
_HINTS = {"cg", "cs", "cv", "lu", "wt", "evict_first", "evict_last", "no_allocate"}


def of_ptx(ptx: str) -> dict[str, Any]:
    """Global loads, stores and asynchronous loads by width in bytes, and cache hints by kind of access."""
    widths: dict[str, Counter[int]] = {"loads": Counter(), "stores": Counter(), "async_loads": Counter()}
    hints: Counter[str] = Counter()
    for found in _PTX_ACCESS.finditer(ptx):
        words = [word.rpartition("::")[2] for word in found["how"].split(".") if word]
        vector = next((int(word[1:]) for word in words if re.fullmatch(r"v[248]", word)), 1)
        load = found["what"] == "ld"
        widths["loads" if load else "stores"][vector * int(found["bits"]) // 8] += 1
        for word in _HINTS.intersection(words):
            hints[f"{'load' if load else 'store'} {word}"] += 1
    for found in _PTX_ASYNC.finditer(ptx):
        widths["async_loads"][int(found["bytes"], 0)] += 1
    by_width = {
        kind: {str(width): counts[width] for width in sorted(counts, reverse=True)} for kind, counts in widths.items()
    }
    instructions = len(_PTX_INSTRUCTION.findall(ptx))
    return {**by_width, "hints": dict(sorted(hints.items())), "instructions": instructions}


@dataclass(frozen=True)
class Bytes:
    """An argument that is a tensor, and its size."""

    size: int


Argument = Bytes | int | float | None


def of_ttgir(
    ttgir: str, arguments: Sequence[Argument], grid: Sequence[int], names: Sequence[str] = ()
) -> dict[str, Any]:
    """Memory accesses and operations of a launch, summed over its programs.

    `reads`, `writes`: by argument the requested bytes (`asked`) and the bytes it has (`size`); if `asked` is larger,
    the kernel reads some of them again.  `looped`: the bytes of `reads` requested inside of loops.  `work`: elements by
    kind of operation.  `unknown_loops`: loops with unknown bounds, which count once.  `names`: the arguments' names in
    the source, which older TTGIR does not contain.
    """
    reader = _Reader(arguments, (*grid, 1, 1)[:3], names)
    for line in ttgir.splitlines()[:MAX_LINES]:
        reader.line(line)
    return reader.counts()


@dataclass
class _Reader:
    """Reads TTGIR line by line, with the trip counts of the enclosing loops."""

    arguments: Sequence[Argument]
    grid: tuple[int, ...]
    names: Sequence[str] = ()  # of the arguments in the source
    _values: dict[str, float] = field(default_factory=dict)  # known scalars
    _roots: dict[str, str] = field(default_factory=dict)  # from a pointer to its argument
    _bounds: dict[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)  # limits of masks
    _blocks: list[float] = field(default_factory=list)  # trip count of each open region; 1 unless it is a loop
    _unknown: int = 0
    _sizes: dict[str, int] = field(default_factory=dict)
    _reads: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _writes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _looped: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _work: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def counts(self) -> dict[str, Any]:
        programs = prod(self.grid)

        def table(counts: Mapping[str, float]) -> dict[str, dict[str, int]]:
            named = list(counts.items())[:MAX_ARGUMENTS]
            return {name: {"asked": round(asked * programs), "size": self._sizes[name]} for name, asked in named}

        looped = {name: round(asked * programs) for name, asked in list(self._looped.items())[:MAX_ARGUMENTS]}
        work = {kind: round(count * programs) for kind, count in sorted(self._work.items()) if count}
        facts = {"reads": table(self._reads), "writes": table(self._writes), "looped": looped, "work": work}
        return facts | ({"unknown_loops": self._unknown} if self._unknown else {})

    def line(self, line: str) -> None:
        text = _LOCATION.sub("", line.strip())
        if text.startswith("}") and self._blocks:
            self._blocks.pop()
        if text.startswith("})"):  # the end of a reduction, which has its types
            self._work["double" if "xf64" in text else "reduce"] += _elements(text) * self._times
        if "tt.func" in text:
            self._function(text)
        elif found := _STATEMENT.match(text):
            self._statement(found["result"] or "", found["op"], found["rest"])
        if text.endswith("{"):
            self._blocks.append(self._trips(text))

    @property
    def _times(self) -> float:
        return prod(self._blocks)

    def _function(self, text: str) -> None:
        """Read the arguments in order; tensors are pointers here."""
        given = iter(self.arguments)
        named = iter(self.names)
        for found in _PARAMETER.finditer(text):
            name = found["name"]
            value = next(given, None)
            shown = next(named, name.lstrip("%"))
            if isinstance(value, Bytes):
                self._roots[name] = shown
                self._sizes[shown] = value.size
            elif isinstance(value, int | float):
                self._values[name] = value
            elif found["type"].startswith("!tt.ptr"):
                self._roots[name] = shown
                self._sizes[shown] = 0

    def _trips(self, text: str) -> float:
        if found := _FOR.search(text):
            for inner, outer in _CARRIED.findall(text):
                if outer in self._roots:
                    self._roots[inner] = self._roots[outer]
            low, high, step = (self._values.get(found[name]) for name in ("low", "high", "step"))
            if low is None or high is None or not step:
                self._unknown += 1
                return 1.0
            self._values[found["index"]] = low
            return max(0.0, float(ceil((high - low) / step)))
        if "scf.while" in text:
            self._unknown += 1
        return 1.0

    # -- statements ---------------------------------------------------------------------------------------------------

    def _statement(self, result: str, op: str, rest: str) -> None:
        names = _NAME.findall(rest.partition(" : ")[0])
        if op == "tt.load" or op == "ttg.async_copy_global_to_local":
            self._access(names, rest, self._reads)
        elif op == "tt.store":
            self._access(names, rest, self._writes)
        elif op.startswith("tt.atomic"):
            self._work["atomic"] += _elements(rest) * self._times
        elif op == "ttg.convert_layout":
            self._work["layout_bytes"] += _elements(rest) * _element_bytes(rest) * self._times
        else:
            self._compute(op, rest)
        self._follow(result, op, names, rest)

    def _access(self, names: list[str], rest: str, counts: dict[str, float]) -> None:
        if (root := self._root(names)) is None:
            return
        pointed = _POINTED.search(rest)
        size = _TYPE_BYTES.get(pointed["type"], 4) if pointed else 4
        masks = next((self._bounds[name] for name in names if name in self._bounds), ())
        inside = prod(limit / (ceil(limit / extent) * extent) for limit, extent in masks if limit > 0)
        asked = _elements(rest) * size * inside * self._times
        counts[root] += asked
        if counts is self._reads and any(times != 1 for times in self._blocks):
            self._looped[root] += asked

    def _compute(self, op: str, rest: str) -> None:
        kind = _KINDS.get(op)
        if op in _DIVIDES and "tensor<" in rest:
            kind = "division"
        if kind is None and op.startswith("math."):
            kind = "special"
        if kind is None and op.startswith(("arith.", "tt.extern")) and re.search(r"f(?:8|16|32|64)", rest):
            kind = "arithmetic"
        if kind is not None:
            kind = "double" if "xf64" in rest else kind
            self._work[kind] += _elements(rest) * self._times

    def _follow(self, result: str, op: str, names: list[str], rest: str) -> None:
        """Record the result if it is a known number, a pointer into an argument, or a mask with known limits."""
        if not result:
            return
        if op == "arith.constant" and (number := re.match(r"(-?[\d.]+(?:e[-+]?\d+)?) :", rest)):
            self._values[result] = float(number[1])
        elif op == "tt.get_program_id":
            self._values[result] = 0.0
        elif op == "tt.get_num_programs":
            self._values[result] = float(self.grid["xyz".index(rest[0]) if rest[:1] in "xyz" else 0])
        elif op == "arith.cmpi":
            known = [self._values[name] for name in names if name in self._values]
            self._bounds[result] = ((max(known), _elements(rest)),) if known else ()
        elif op == "arith.andi":
            self._bounds[result] = tuple({bound: None for name in names for bound in self._bounds.get(name, ())})
        elif op in _CALCULATES and len(names) == 2 and all(name in self._values for name in names):
            left, right = (self._values[name] for name in names)
            if right or op not in _DIVIDES:
                self._values[result] = _CALCULATES[op](left, right)
        elif names and op in _PASSES:
            tables: tuple[dict[str, Any], ...] = (self._values, self._roots, self._bounds)
            for known_of in tables:
                if names[0] in known_of:
                    known_of[result] = known_of[names[0]]
        elif op in ("tt.addptr", "arith.select") and (root := self._root(names)):
            self._roots[result] = root

    def _root(self, names: list[str]) -> str | None:
        return next((self._roots[name] for name in names if name in self._roots), None)


_LOCATION = re.compile(r"\s*loc\([^{}]*\)$")
_STATEMENT = re.compile(r"(?:(?P<result>%[\w.#-]+)(?::\d+)? = )?\"?(?P<op>[a-z_]+\.[\w.]+)\"?\s*(?P<rest>.*)")
_PARAMETER = re.compile(r"(?P<name>%[\w.-]+): (?P<type>!?[\w.<>]+)")
_NAME = re.compile(r"%[\w.#-]+")
_FOR = re.compile(r"scf\.for (?P<index>%[\w.-]+) = (?P<low>%[\w.-]+) to (?P<high>%[\w.-]+) step (?P<step>%[\w.-]+)")
_CARRIED = re.compile(r"(%[\w.-]+) = (%[\w.#-]+)[,)]")
_SHAPE = re.compile(r"(?:tensor|memdesc)<((?:\d+x)+)")
_POINTED = re.compile(r"!tt\.ptr<(?P<type>\w+)")
_ELEMENT = re.compile(r"tensor<(?:\d+x)+(?P<type>\w+)")
_TYPE_BYTES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2, "i8": 1, "i1": 1}
_KINDS = {
    "arith.divf": "special",
    "arith.extf": "convert",
    "arith.truncf": "convert",
    "arith.sitofp": "convert",
    "arith.fptosi": "convert",
    "tt.fp_to_fp": "convert",
}
_PASSES = {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "ttg.convert_layout", "tt.reshape"}
_PASSES |= {"arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast"}
_DIVIDES = {"arith.divsi", "arith.divui", "arith.ceildivsi", "arith.remsi", "arith.remui"}
_CALCULATES: dict[str, Callable[[float, float], float]] = {
    "arith.addi": lambda left, right: left + right,
    "arith.subi": lambda left, right: left - right,
    "arith.muli": lambda left, right: left * right,
    "arith.divsi": lambda left, right: float(int(left / right)),
    "arith.divui": lambda left, right: float(int(left / right)),
    "arith.ceildivsi": lambda left, right: float(ceil(left / right)),
    "arith.remsi": lambda left, right: left % right,
    "arith.minsi": min,
    "arith.maxsi": max,
}


def _elements(rest: str) -> int:
    """Elements of the first tensor in a statement's types; 1 if there is none."""
    found = _SHAPE.search(rest)
    return prod(int(size) for size in found[1].rstrip("x").split("x")) if found else 1


def _element_bytes(rest: str) -> int:
    found = _ELEMENT.search(rest)
    return _TYPE_BYTES.get(found["type"], 4) if found else 4


def values_of(signature: Mapping[str, Any], arguments: Sequence[Any]) -> list[Argument]:
    """The arguments that are parameters in TTGIR, in its order, i.e. without constants."""
    return [
        argument_of(argument)
        for (_, kind), argument in zip(signature.items(), arguments, strict=False)
        if kind != "constexpr"
    ]


def names_of(signature: Mapping[str, Any]) -> list[str]:
    """The names of these arguments in the source."""
    return [str(name) for name, kind in signature.items() if kind != "constexpr"]


def argument_of(value: Any) -> Argument:
    """A launch's argument without its data; for a tensor its size, without expanded dimensions."""
    if hasattr(value, "data_ptr") and hasattr(value, "numel"):
        return Bytes(bytes_of(value))
    return value if isinstance(value, int | float) else None


def bytes_of(tensor: Any) -> int:
    """Bytes of the elements of a tensor with different addresses."""
    spread = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 0]
    return int(prod(spread)) * int(tensor.element_size())


def traffic(facts: Mapping[str, Any]) -> Iterator[int]:
    """The minimum of bytes that a launch moves of each argument: at most its size."""
    for kind in ("reads", "writes"):
        for one in facts.get(kind, {}).values():
            yield min(one["asked"], one["size"]) if one["size"] else one["asked"]
