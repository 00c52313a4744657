"""Benchmarks that a repository has: objects of `triton.testing.perf_report`, and operators of tritonbench."""

import ast
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from kernels.functions import label_of
from service.domain.adopt.candidates import NO_MODULE, Candidate, CandidateKind, is_label, slug, spread
from service.domain.adopt.literals import NotConstant, Scope
from service.domain.adopt.sources import Function, Layout, Module, decorators, keyword

# What a line that others are compared with is called, as a word of its name.
BASELINES = frozenset(
    {"torch", "pytorch", "aten", "eager", "native", "compile", "compiled", "inductor", "huggingface", "hf"}
    | {"cublas", "cublaslt", "cudnn", "rocblas", "hipblas"}
    | {"naive", "vanilla", "ref", "reference", "baseline", "base", "default", "original"}
)
LARGEST = 1 << 30  # elements of a tensor of the two largest sizes: 2 GiB in bf16
_ARGUMENTS = ("x_names", "x_vals", "line_arg", "line_vals", "line_names", "plot_name", "args")  # of Benchmark, in order
_USUAL_WORDS = re.compile(r"^_*(benchmarks?|bench|perf|run|test)(?=_|$)|(?<=_)(benchmarks?|bench|perf|test)$|^main$")


def perf_reports(module: Module, layout: Layout) -> Iterator[Candidate]:
    """What `@triton.testing.perf_report(…)` decorates, and `NAME = triton.testing.perf_report(…)(function)`."""
    importable = set(map(id, module.statements))
    for node in ast.walk(module.tree):
        title, call = "", None
        match node:
            case ast.FunctionDef(name=title):
                call = next((call for name, call in decorators(node, module) if _is_perf_report(name)), None)
            case ast.Assign(targets=[ast.Name(id=title)], value=ast.Call(func=ast.Call() as inner)):
                call = inner if _is_perf_report(module.full_name(inner.func) or "") else None
        if call is None:
            continue
        candidate = Candidate(CandidateKind.PERF_REPORT, module.path, call.lineno, title)
        place = layout.place(module.path)
        if id(node) not in importable:
            yield replace(candidate, lacks="it is made inside of a function, so it cannot be imported")
        elif place is None:
            yield replace(candidate, lacks=NO_MODULE)
        else:
            entry = {"benchmark": f"{place[0]}:{title}"}
            yield from _of_each(
                module, replace(candidate, name=plain_name(candidate), entry=entry, folder=place[1]), call
            )


def _is_perf_report(name: str) -> bool:
    return name.endswith("testing.perf_report")


def _of_each(module: Module, candidate: Candidate, call: ast.Call) -> Iterator[Candidate]:
    """A function of the recipe for each `Benchmark` of the object."""
    try:
        configurations = list(module.elements(keyword(call, "benchmarks", 0)))
        if not configurations:
            raise NotConstant("its Benchmark is made by other code")
        for configuration, scope in configurations:
            if isinstance(configuration, ast.Name):
                configuration = module.constants.get(configuration.id, configuration)
            if not isinstance(configuration, ast.Call) or not _is_benchmark(module, configuration):
                raise NotConstant("its Benchmark is made by other code")
            part = candidate
            if len(configurations) > 1:
                plot = str(_argument(module, configuration, scope, "plot_name"))
                part = replace(
                    candidate, name=f"{candidate.name}/{slug(plot)}", entry={**candidate.entry, "plot": plot}
                )
            yield _of_benchmark(module, part, configuration, scope)
    except NotConstant as error:
        entry = {**candidate.entry, "line": "LINE", "cases": ["X"]}
        yield replace(candidate, entry=entry, lacks=f"{error}; write line, cases, and plot if it has several")


def _is_benchmark(module: Module, call: ast.Call) -> bool:
    return (module.full_name(call.func) or "").endswith("testing.Benchmark")


def _of_benchmark(module: Module, candidate: Candidate, configuration: ast.Call, scope: Scope) -> Candidate:
    entry, lacks, notes = dict(candidate.entry), list[str](), list[str]()
    try:
        lines, note = _chosen_line(*_lines(module, configuration, scope))
        entry |= lines
        notes += note
    except NotConstant as error:
        entry["line"] = "LINE"
        lacks.append(f"line_vals: {error}; write line")
    try:
        entry["cases"], note = _chosen_cases(
            _argument(module, configuration, scope, "x_names"),
            _argument(module, configuration, scope, "x_vals"),
            _fixed_sizes(module, configuration, scope),
        )
        notes += note
    except NotConstant as error:
        entry["cases"] = ["X"]
        lacks.append(f"x_vals: {error}; write cases")
    return replace(candidate, entry=entry, lacks="; ".join(lacks), notes=notes)


def _argument(module: Module, configuration: ast.Call, scope: Scope, key: str) -> Any:
    node = keyword(configuration, key, _ARGUMENTS.index(key))
    if node is None:
        raise NotConstant("it is missing")
    return module.value(node, scope)


def _lines(module: Module, configuration: ast.Call, scope: Scope) -> tuple[Any, list[str]]:
    """The lines that are there in any case, and a note of an expression that may add others."""
    node, notes = keyword(configuration, "line_vals", _ARGUMENTS.index("line_vals")), list[str]()
    while node is not None:
        try:
            return module.value(node, scope), notes
        except NotConstant as error:
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
                raise
            notes = [f"further lines are left out, because {error}"]
            node = node.left  # ["triton"] of ["triton"] + (["flash"] if HAS_FLASH else [])
    raise NotConstant("it is missing")


def _fixed_sizes(module: Module, configuration: ast.Call, scope: Scope) -> list[float]:
    """The numbers that every case has; none if they are not constant."""
    try:
        arguments = _argument(module, configuration, scope, "args")
    except NotConstant:
        return []
    return _numbers(list(arguments.values())) if isinstance(arguments, Mapping) else []


def _chosen_line(lines: Any, notes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The line to measure, with a baseline as its reference; and a note of what was left out."""
    if not isinstance(lines, list | tuple) or not lines or not all(_is_text(line) for line in lines):
        raise NotConstant("a value is no text")
    own = [line for line in lines if not _words(line) & BASELINES]
    if not own:
        return {"line": lines[0]}, [
            *notes,
            f"by their names all lines are baselines; the first of {', '.join(lines)} is taken",
        ]
    line = own[0]
    # Of several baselines the one whose name differs least: of `triton_bwd` it is `torch_bwd`, not `torch`.
    baselines = sorted(
        (other for other in lines if other not in own), key=lambda other: len(_words(other) - BASELINES ^ _words(line))
    )
    chosen = {"line": line, **({"reference": baselines[0]} if baselines else {})}
    rest = [other for other in lines if other not in chosen.values()]
    return chosen, [*notes, *([f"lines left out: {', '.join(rest)}"] if rest else [])]


def _words(line: str) -> frozenset[str]:
    return frozenset(re.split(r"[^a-z0-9]+", line.lower())) - {""}


def _is_text(line: Any) -> bool:
    return isinstance(line, str) and line.isprintable() and bool(line)


def _chosen_cases(names: Any, values: Any, fixed: list[float]) -> tuple[list[str], list[str]]:
    """The labels to measure, and a note of those that are too large for a first look."""
    if not isinstance(names, list | tuple) or not isinstance(values, list | tuple):
        raise NotConstant("it is no list")
    elements = dict[str, float]()
    for value in values:
        parts = list(value) if isinstance(value, list | tuple) else [value] * len(names)  # as perf_report reads it
        if len(parts) == len(names) and is_label(label := label_of(value)):
            elements[label] = math.prod(sorted([*_numbers(parts), *fixed])[-2:])
    if not elements:
        raise NotConstant("no value can name a case")
    labels = sorted(elements, key=elements.__getitem__)
    fitting = [label for label in labels if elements[label] <= LARGEST] or labels[:1]
    left = len(labels) - len(fitting)
    note = f"{left} of {len(labels)} sizes are left out: tensors of more than {LARGEST:,} elements"
    return spread(fitting), [note] if left else []


def _numbers(parts: Sequence[Any]) -> list[float]:
    return [part for part in parts if isinstance(part, int | float) and not isinstance(part, bool) and part >= 1]


def plain_name(candidate: Candidate) -> str:
    """`bench_softmax` is softmax; what `benchmark` is, its file says."""
    for text in (candidate.title, PurePosixPath(candidate.path).stem, PurePosixPath(candidate.path).parent.name):
        if name := _USUAL_WORDS.sub("", text).strip("_-"):
            return slug(name)
    return "benchmark"


def operators(module: Module, layout: Layout) -> Iterator[Candidate]:
    """Subclasses of tritonbench's BenchmarkOperator, with the methods that it registers."""
    place = layout.place(module.path)
    for node in module.classes:
        if not any((module.full_name(base) or "").endswith("BenchmarkOperator") for base in node.bases):
            continue
        candidate = Candidate(CandidateKind.OPERATOR, module.path, node.lineno, node.name)
        methods = [method for method in node.body if isinstance(method, Function)]
        registered = {
            method.name: call
            for method in methods
            for name, call in decorators(method, module)
            if name.endswith("register_benchmark")
        }
        enabled = [name for name, call in registered.items() if _flag(call, "enabled", default=True) is not False]
        baselines = [name for name in enabled if _flag(registered[name], "baseline", default=False) is True]
        # Those that depend on what is installed come last.
        own = [name for name in enabled if name not in baselines]
        own.sort(key=lambda name: _flag(registered[name], "enabled", default=True) is None)
        if place is None or not own:
            yield replace(
                candidate, lacks=NO_MODULE if place is None else "it registers no benchmark besides a baseline"
            )
            continue
        file = PurePosixPath(module.path)
        name = file.parent.name if file.stem in ("operator", "__init__") else file.stem
        entry: dict[str, Any] = {"benchmark": f"{place[0]}:{node.name}", "line": own[0]}
        entry |= {"reference": baselines[0]} if baselines else {}
        inputs = next((method for method in methods if method.name == "get_input_iter"), None)
        entry["cases"] = spread([str(number) for number in range(_count(inputs, module))])
        rest = [other for other in registered if other not in entry.values()]
        notes = [f"methods left out: {', '.join(rest)}"] if rest else []
        yield replace(candidate, name=slug(name), entry=entry, folder=place[1], notes=notes)


def _flag(call: ast.Call | None, name: str, *, default: bool) -> bool | None:
    """A keyword of `register_benchmark`; None where code decides."""
    node = keyword(call, name) if call else None
    match node:
        case None:
            return default
        case ast.Constant(value=bool(value)):
            return value
    return None


def _count(method: Function | None, module: Module) -> int:
    """How many inputs a generator yields: 1 where that is not plain."""
    if method is None:
        return 1
    try:
        return sum(_yields(statement, module) for statement in method.body) or 1
    except NotConstant:
        return 1


def _yields(statement: ast.stmt, module: Module) -> int:
    match statement:
        case ast.Expr(value=ast.Yield()):
            return 1
        case ast.For(iter=values, body=body, orelse=[]):
            inner = sum(_yields(each, module) for each in body)
            elements = module.value(values) if inner else ()
            return inner * (len(elements) if isinstance(elements, Collection) else 1)
        case ast.Assign() | ast.AnnAssign() | ast.Expr() | ast.Assert() | ast.Pass():
            return 0
    raise NotConstant("it has conditions")
