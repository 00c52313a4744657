"""The values of constant expressions in Python source: nothing of it is imported or run."""

import ast
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from service.domain.text import one_line

EMPTY: Mapping[str, Any] = {}
MAX_STEPS = 50_000  # of one expression: no list that people write has more
MAX_SIZE = 10_000  # of a sequence, or characters of a text
MAX_BITS = 128  # of a number
_OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, among: value in among,
    ast.NotIn: lambda value, among: value not in among,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "itertools.product": itertools.product,
    "math.log2": math.log2,
    "triton.cdiv": lambda count, size: -(-count // size),
    "triton.next_power_of_2": lambda number: 1 << max(number - 1, 0).bit_length(),
    **{
        function.__name__: function
        for function in (bool, dict, enumerate, float, int, len, list, max, min, range, reversed)
    },
    **{function.__name__: function for function in (round, set, sorted, str, sum, tuple, zip)},
}
_METHODS: Mapping[type[Any], Collection[str]] = {
    dict: ("items", "keys", "values"),
    str: ("lower", "upper", "strip", "replace"),
}


class NotConstant(Exception):
    """A value that only running the code would show.  The text says which part of the expression decides it."""


@dataclass(frozen=True)
class Symbol:
    """Something with a name, such as `torch.float16` or a function of the module."""

    name: str

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        raise TypeError(f"what {self.name} is, is not known")


Scope = Mapping[str, Any]  # the values of the variables of loops around an expression


def value(
    node: ast.expr, names: Mapping[str, ast.expr], symbol: Callable[[ast.expr], str | None], scope: Scope = EMPTY
) -> Any:
    """The value of an expression.  Raises NotConstant.

    `names` are the constants of the module by name; `symbol` gives the full name of an expression that is one.
    """
    with _refusing(node):
        return _Evaluation(names, symbol).of(node, scope)


def scopes(
    loop: ast.For | ast.ListComp,
    names: Mapping[str, ast.expr],
    symbol: Callable[[ast.expr], str | None],
    scope: Scope = EMPTY,
) -> list[Scope]:
    """The variables in each turn of a loop.  Raises NotConstant."""
    generators = (
        loop.generators
        if isinstance(loop, ast.ListComp)
        else [ast.comprehension(target=loop.target, iter=loop.iter, ifs=[], is_async=0)]
    )
    with _refusing(loop):
        return list(_Evaluation(names, symbol).scopes(generators, scope))


@contextmanager
def _refusing(node: ast.AST) -> Iterator[None]:
    """Raise NotConstant for whatever Python raises for a wrong operand, and for too deep a nest."""
    try:
        yield
    except NotConstant:
        raise
    except Exception as error:
        raise _not_constant(node) from error


def _not_constant(node: ast.AST) -> NotConstant:
    try:
        return NotConstant(f"{one_line(ast.unparse(node), 60)} is not constant")
    except RecursionError:
        return NotConstant("an expression is nested too deep")


class _Evaluation:
    def __init__(self, names: Mapping[str, ast.expr], symbol: Callable[[ast.expr], str | None]) -> None:
        self._names, self._symbol = names, symbol
        self._steps = 0
        self._open = set[str]()  # names whose value is being looked for

    def of(self, node: ast.expr, scope: Scope) -> Any:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise NotConstant("an expression takes long to compute")
        return _bounded(self._of(node, scope), node)

    def _of(self, node: ast.expr, scope: Scope) -> Any:
        match node:
            case ast.Constant(value=result):
                return result
            case ast.Name(id=name) if name in scope:
                return scope[name]
            case ast.Name(id=name) if name in self._names and name not in self._open:
                self._open.add(name)
                result = self.of(self._names[name], {})
                self._open.discard(name)
                return result
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
                return kind(self._spread(parts, scope))
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self.of(key, scope): self.of(each, scope) for key, each in zip(keys, values, strict=True) if key
                }
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATIONS:
                return _OPERATIONS[type(op)](self.of(operand, scope))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                return self._operated(node, self.of(left, scope), self.of(right, scope))
            case ast.BoolOp(op=op, values=values):
                stop = isinstance(op, ast.Or)
                for part in values:
                    result = self.of(part, scope)
                    if bool(result) is stop:
                        break
                return result
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATIONS:
                sides = self.of(left, scope), self.of(right, scope)
                if any(isinstance(side, Symbol) for side in sides):
                    raise _not_constant(node)
                return _OPERATIONS[type(op)](*sides)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.of(body if self.of(test, scope) else orelse, scope)
            case ast.Subscript(value=whole, slice=ast.Slice(lower=lower, upper=upper, step=step)):
                return self.of(whole, scope)[
                    slice(*(bound and self.of(bound, scope) for bound in (lower, upper, step)))
                ]
            case ast.Subscript(value=whole, slice=index):
                return self.of(whole, scope)[self.of(index, scope)]
            case ast.JoinedStr(values=parts):
                return "".join(str(self.of(part, scope)) for part in parts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return str(self.of(inner, scope))
            case (
                ast.ListComp(elt=element, generators=generators) | ast.GeneratorExp(elt=element, generators=generators)
            ):
                return [self.of(element, inner) for inner in self.scopes(generators, scope)]
            case ast.Call(keywords=[]):
                return self._called(node, scope)
        if (symbol := self._symbol(node)) is not None:
            return Symbol(symbol)
        raise _not_constant(node)

    def _called(self, node: ast.Call, scope: Scope) -> Any:
        arguments = list(self._spread(node.args, scope))
        match node.func:
            case ast.Attribute(value=owner, attr=method) if self._symbol(node.func) is None:
                of = self.of(owner, scope)
                if method not in _METHODS.get(type(of), ()):
                    raise _not_constant(node)
                return getattr(of, method)(*arguments)
        name = self._symbol(node.func) or (node.func.id if isinstance(node.func, ast.Name) else "")
        if name not in _FUNCTIONS:
            raise _not_constant(node)
        if name == "itertools.product" and math.prod(map(len, arguments)) > MAX_SIZE:
            raise _not_constant(node)
        result = _FUNCTIONS[name](*arguments)
        return result if isinstance(result, str | Collection) or not isinstance(result, Iterable) else list(result)

    def _operated(self, node: ast.BinOp, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, str | list | tuple) else abs(side) for side in (left, right)]
        number = isinstance(left, int | float)
        shifts = isinstance(node.op, ast.LShift) and right > MAX_BITS
        raises = isinstance(node.op, ast.Pow) and (abs(right) > MAX_BITS or abs(left) > 1 << 40)
        grows = isinstance(node.op, ast.Mult) and not (number and isinstance(right, int | float))
        if shifts or raises or (isinstance(left, str) and isinstance(node.op, ast.Mod)):
            raise _not_constant(node)
        if grows and math.prod(sizes) > MAX_SIZE:
            raise _not_constant(node)
        return _OPERATIONS[type(node.op)](left, right)

    def _spread(self, parts: Iterable[ast.expr], scope: Scope) -> Iterator[Any]:
        for part in parts:
            if isinstance(part, ast.Starred):
                yield from self.of(part.value, scope)
            else:
                yield self.of(part, scope)

    def scopes(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        if not generators:
            yield scope
            return
        first, *rest = generators
        for element in self.of(first.iter, scope):
            inner = {**scope, **_bound(first.target, element)}
            if all(self.of(test, inner) for test in first.ifs):
                yield from self.scopes(rest, inner)


def _bound(target: ast.expr, element: Any) -> dict[str, Any]:
    match target:
        case ast.Name(id=name):
            return {name: element}
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            pairs = zip(parts, element, strict=True)
            return {name: bound for part, inner in pairs for name, bound in _bound(part, inner).items()}
    raise _not_constant(target)


def _bounded(result: Any, node: ast.AST) -> Any:
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise _not_constant(node)
    if isinstance(result, str | Collection) and len(result) > MAX_SIZE:
        raise _not_constant(node)
    return result
