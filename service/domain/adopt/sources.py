"""The Python files of a checkout as they are read here: their syntax, their names, and how each is imported."""

import ast
import itertools
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from service.domain.adopt import literals
from service.domain.adopt.literals import NO_LOOP, Evaluator, NotConstant, Scope

# A folder with such a module cannot be an import path: everything else would import it instead of the real one.
_TAKEN = frozenset(sys.stdlib_module_names) | {"torch", "triton", "numpy", "helion", "pytest"}

MAX_ELEMENTS = 200
TOO_DEEP = "it is nested too deep"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A file that was parsed."""

    path: str
    tree: ast.Module

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """What names of the file stand for: `{"do_bench": "triton.testing.do_bench"}`."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=aliases):
                    names |= {alias.asname or alias.name.partition(".")[0]: _imported(alias) for alias in aliases}
                case ast.ImportFrom(module=str(module), names=aliases, level=level):
                    names |= {alias.asname or alias.name: f"{'.' * level}{module}.{alias.name}" for alias in aliases}
        return names

    @cached_property
    def statements(self) -> Sequence[ast.stmt]:
        """Those that an import runs, in conditions too: what they define can be imported."""
        return list(_statements(self.tree.body))

    @cached_property
    def constants(self) -> Mapping[str, ast.expr]:
        """The names that the module assigns once, on no condition, and never changes, with their expressions."""
        assigned: dict[str, list[ast.expr | None]] = {}
        certain = set(map(id, self.tree.body))
        for statement in self.statements:
            pairs: list[tuple[ast.expr, ast.expr | None]] = []
            match statement:
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    pairs = list(zip(targets, values, strict=True)) if len(targets) == len(values) else []
                case ast.Assign(targets=targets, value=value):
                    pairs = [(target, value) for target in targets]
                case ast.AnnAssign(target=ast.Name() as target, value=value):
                    pairs = [(target, value)]
            for variable, expression in pairs:
                if isinstance(variable, ast.Name):
                    assigned.setdefault(variable.id, []).append(expression if id(statement) in certain else None)
        changed = {name for node in ast.walk(self.tree) for name in _changed(node)}
        return {
            name: values[0]
            for name, values in assigned.items()
            if len(values) == 1 and values[0] is not None and name not in changed
        }

    @cached_property
    def functions(self) -> Mapping[str, Function]:
        """The functions that can be imported from the module."""
        return {node.name: node for node in self.statements if isinstance(node, Function)}

    @cached_property
    def classes(self) -> Sequence[ast.ClassDef]:
        """The classes that can be imported from the module."""
        return [node for node in self.statements if isinstance(node, ast.ClassDef)]

    def full_name(self, node: ast.expr) -> str | None:
        """`triton.testing.perf_report` of however the file writes it; None for what is no imported name."""
        match node:
            case ast.Name(id=name) if name in self.imported:
                return self.imported[name]
            case ast.Name(id=name) if name in self.functions:
                return name
            case ast.Attribute(value=owner, attr=attribute):
                of = self.full_name(owner)
                return None if of is None else f"{of}.{attribute}"
        return None

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.constants, self.full_name)

    def value(self, node: ast.expr, scope: Scope = NO_LOOP) -> Any:
        """The value of a constant expression.  Raises NotConstant."""
        return self._evaluator.value(node, scope)

    def elements(self, node: ast.expr | None) -> list[tuple[ast.expr, Scope]]:
        """The expressions of a list, each with the variables of the loops around it.

        The list may be written out, be a comprehension, or grow in loops of the module.  Raises NotConstant.
        """
        try:
            elements = list(itertools.islice(self._elements(node, NO_LOOP, itertools.count()), MAX_ELEMENTS + 1))
        except RecursionError:
            raise NotConstant("a list is made of itself") from None
        if len(elements) > MAX_ELEMENTS:
            raise NotConstant(f"a list has more than {MAX_ELEMENTS} elements")
        return elements

    def _elements(self, node: ast.expr | None, scope: Scope, turns: Iterator[int]) -> Iterator[tuple[ast.expr, Scope]]:
        match node:
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                yield from ((element, scope) for element in elements)
            case ast.ListComp(elt=element):
                yield from ((element, inner) for inner in self._evaluator.turns(node, scope))
            case ast.Name(id=name) if name in self.constants:
                yield from self._elements(self.constants[name], NO_LOOP, turns)
            case ast.Name(id=name):
                yield from self._grown(name, self.tree.body, scope, turns)
            case ast.expr():
                yield node, scope

    def _grown(
        self, name: str, body: Sequence[ast.stmt], scope: Scope, turns: Iterator[int]
    ) -> Iterator[tuple[ast.expr, Scope]]:
        """What statements put into a list of this name; `turns` counts those of all loops."""
        for statement in body:
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=target)], value=value)
                    | ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value)
                ) if target == name:
                    yield from self._elements(value, scope, turns)
                case ast.Expr(
                    value=ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="append"), args=[element])
                ) if target == name:
                    yield element, scope
                case ast.For(body=inside) if _mentions(inside, name):
                    for inner in self._evaluator.turns(statement, scope):
                        if next(turns) > literals.MAX_SIZE:
                            raise NotConstant("a loop takes long")
                        yield from self._grown(name, inside, inner, turns)
                case ast.If(test=test, body=inside, orelse=orelse) if _mentions([*inside, *orelse], name):
                    yield from self._grown(name, inside if self.value(test, scope) else orelse, scope, turns)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        match statement:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), orelse=orelse):
                yield from _statements(orelse)
            case ast.If(body=inner, orelse=orelse):
                yield from _statements([*inner, *orelse])
            case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=final):
                caught = [each for handler in handlers for each in handler.body]
                yield from _statements([*inner, *caught, *orelse, *final])
            case ast.With(body=inner) | ast.For(body=inner) | ast.While(body=inner):
                yield from _statements(inner)


def _mentions(body: Sequence[ast.stmt], name: str) -> bool:
    nodes = (node for statement in body for node in ast.walk(statement))
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def _changed(node: ast.AST) -> Sequence[str]:
    match node:
        case ast.AugAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" | "insert" | "update")):
            return [name]
        case ast.Global(names=names):
            return names
    return ()


def parsed(path: str, text: str) -> Module | str:
    """The module, or why it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in their strings
            return Module(path, ast.parse(text))
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{line}{error.msg if isinstance(error, SyntaxError) else error}"
    except (RecursionError, MemoryError):
        return TOO_DEEP


def decorators(function: Function | ast.ClassDef, module: Module) -> Iterator[tuple[str, ast.Call | None]]:
    """The full name of each decorator, the outermost first, with its call if it has one."""
    for node in function.decorator_list:
        call = node if isinstance(node, ast.Call) else None
        yield module.full_name(call.func if call else node) or "", call


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument of a call."""
    if position is not None and len(call.args) > position and not isinstance(call.args[position], ast.Starred):
        return call.args[position]
    return next((argument.value for argument in call.keywords if argument.arg == name), None)


@dataclass(frozen=True)
class Layout:
    """Where modules are imported from, by the paths of all Python files."""

    paths: Sequence[str]

    @cached_property
    def _packages(self) -> frozenset[str]:
        return frozenset(str(PurePosixPath(path).parent) for path in self.paths if path.endswith("/__init__.py"))

    @cached_property
    def _modules(self) -> Mapping[str, set[str]]:
        """The modules of each folder."""
        folders: dict[str, set[str]] = {}
        for path in self.paths:
            file = PurePosixPath(path)
            folders.setdefault(str(file.parent), set()).add(file.stem)
        return folders

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The folders that hold the packages of the repository: `.` or `src`."""
        tops = {
            str(PurePosixPath(package).parent)
            for package in self._packages
            if str(PurePosixPath(package).parent) not in self._packages
            and PurePosixPath(package).name not in ("tests", "test", "benchmarks", "examples", "docs")
        }
        return tuple(sorted({".", *(top for top in tops if top in (".", "src", "python"))}))

    def place(self, path: str) -> tuple[str, str] | None:
        """The module of a file and the folder that it is imported from; None where its name is no Python name."""
        folder, parts = self._inside(path)
        hides = self._modules.get(folder, set()) & _TAKEN and folder != "."  # as an import path, real modules
        if hides or (folder != "." and len(self._tops[parts[0]]) > 1):
            parts, folder = (*PurePosixPath(folder).parts, *parts), "."
        fits = all(part.isidentifier() and part.isascii() for part in parts)
        return (".".join(parts), folder) if parts and fits else None

    def _inside(self, path: str) -> tuple[str, tuple[str, ...]]:
        """The folder above the outermost package of a file, and the parts of its module beneath."""
        file = PurePosixPath(path)
        folder, parts = file.parent, () if file.stem == "__init__" else (file.stem,)
        while str(folder) in self._packages:
            folder, parts = folder.parent, (folder.name, *parts)
        return str(folder), parts

    @cached_property
    def _tops(self) -> Mapping[str, set[str]]:
        """The folders in which each first part of a module is."""
        folders: dict[str, set[str]] = {}
        for path in self.paths:
            folder, parts = self._inside(path)
            if parts:
                folders.setdefault(parts[0], set()).add(folder)
        return folders


def _imported(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.partition(".")[0]
