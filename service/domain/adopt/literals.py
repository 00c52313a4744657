"""The values of constant expressions in Python source: nothing of it is imported or run."""

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kernels.functions import OPERATIONS
from service.domain.text import one_line

MAX_STEPS = 200_000  # of one expression: half a second
MAX_STEPS_OF_FILE = 10 * MAX_STEPS  # a loop may compute an expression in each turn
MAX_SIZE = 10_000  # things in lists of lists, or characters of a text: nobody writes more benchmarks
MAX_BITS = 128  # of a number
_OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    **OPERATIONS,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.UAdd: operator.pos,
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
    "sum": lambda numbers: sum(numbers),  # not of lists, which may grow without limit
    **{function.__name__: function for function in (bool, dict, enumerate, float, int, len, list, max, min)},
    **{function.__name__: function for function in (range, reversed, round, set, sorted, str, tuple, zip)},
}
_METHODS: Mapping[type[Any], Collection[str]] = {
    dict: ("items", "keys", "values"),
    str: ("lower", "upper", "strip"),
}
_NO_TEXT = re.compile("[\ud800-\udfff]")  # half of a character, which no file can contain

Scope = Mapping[str, Any]  # the values of the variables of loops around an expression
NO_LOOP: Scope = {}


class NotConstant(Exception):
    """A value that only running the code would show.  The text says which part of the expression decides it."""


@dataclass(frozen=True)
class Symbol:
    """Something with a name, such as `torch.float16` or a function of the module."""

    name: str

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self.name} is true is not known")


class Evaluator:
    """Evaluates expressions of a module.

    `names` are its constants; `symbol` gives the full name of an expression that is the name of something.
    """

    def __init__(self, names: Mapping[str, ast.expr], symbol: Callable[[ast.expr], str | None]) -> None:
        self._names, self._symbol = names, symbol
        self._steps = 0
        self._steps_of_file = 0
        self._open = set[str]()  # names whose value is being looked for

    def value(self, node: ast.expr, scope: Scope = NO_LOOP) -> Any:
        """The value of an expression.  Raises NotConstant."""
        with self._refusing(node):
            return self._value(node, scope)

    def turns(self, loop: ast.For | ast.ListComp, scope: Scope = NO_LOOP) -> list[Scope]:
        """The variables in each turn of a loop.  Raises NotConstant."""
        generators = (
            [ast.comprehension(target=loop.target, iter=loop.iter, ifs=[], is_async=0)]
            if isinstance(loop, ast.For)
            else loop.generators
        )
        with self._refusing(loop):
            return list(self._turns(generators, scope))

    @contextmanager
    def _refusing(self, node: ast.AST) -> Iterator[None]:
        """Raise NotConstant for whatever Python raises for a wrong operand, and for too deep a nest."""
        self._steps = 0
        self._open.clear()
        try:
            yield
        except NotConstant:
            raise
        except Exception as error:
            raise _not_constant(node) from error

    def _value(self, node: ast.expr, scope: Scope) -> Any:
        result = self._unbounded(node, scope)
        weight = _weight(result)
        self._steps += weight
        if self._steps > MAX_STEPS:
            raise NotConstant("an expression takes long to compute")
        self._steps_of_file += weight
        if self._steps_of_file > MAX_STEPS_OF_FILE:
            raise NotConstant("the expressions of its file take long to compute")
        if weight > MAX_SIZE or (isinstance(result, int) and result.bit_length() > MAX_BITS):
            raise _not_constant(node)
        return result

    def _unbounded(self, node: ast.expr, scope: Scope) -> Any:
        match node:
            case ast.Constant(value=str() as text) if _NO_TEXT.search(text):
                raise _not_constant(node)
            case ast.Constant(value=result):
                return result
            case ast.Name(id=name) if name in scope:
                return scope[name]
            case ast.Name(id=name) if name in self._names and name not in self._open:
                self._open.add(name)
                result = self._value(self._names[name], NO_LOOP)
                self._open.discard(name)
                return result
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
                return kind(self._spread(parts, scope))
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                return {self._value(key, scope): self._value(value, scope) for key, value in pairs if key}
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATIONS:
                return _OPERATIONS[type(op)](self._value(operand, scope))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                return self._operated(node, self._value(left, scope), self._value(right, scope))
            case ast.BoolOp(op=op, values=values):
                for part in values:
                    result = self._value(part, scope)
                    if bool(result) is isinstance(op, ast.Or):
                        break
                return result
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATIONS:
                sides = self._value(left, scope), self._value(right, scope)
                if any(isinstance(side, Symbol) for side in sides):
                    raise _not_constant(node)
                return _OPERATIONS[type(op)](*sides)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._value(body if self._value(test, scope) else orelse, scope)
            case ast.Subscript(value=whole, slice=ast.Slice(lower=lower, upper=upper, step=step)):
                bounds = (bound and self._value(bound, scope) for bound in (lower, upper, step))
                return self._value(whole, scope)[slice(*bounds)]
            case ast.Subscript(value=whole, slice=index):
                return self._value(whole, scope)[self._value(index, scope)]
            case ast.JoinedStr(values=parts):
                return "".join(str(self._value(part, scope)) for part in parts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return str(self._value(inner, scope))
            case ast.ListComp(elt=element, generators=loops) | ast.GeneratorExp(elt=element, generators=loops):
                return [self._value(element, inner) for inner in self._turns(loops, scope)]
            case ast.Call(keywords=[]):
                return self._called(node, scope)
        if (symbol := self._symbol(node)) is not None:
            return Symbol(symbol)
        raise _not_constant(node)

    def _called(self, node: ast.Call, scope: Scope) -> Any:
        arguments = list(self._spread(node.args, scope))
        match node.func:
            case ast.Attribute(value=owner, attr=method) if self._symbol(node.func) is None:
                instance = self._value(owner, scope)
                if method not in _METHODS.get(type(instance), ()):
                    raise _not_constant(node)
                return list(getattr(instance, method)()) if isinstance(instance, dict) else getattr(instance, method)()
        name = self._symbol(node.func) or (node.func.id if isinstance(node.func, ast.Name) else "")
        product = name == "itertools.product" and math.prod(map(len, arguments)) > MAX_SIZE
        if name not in _FUNCTIONS or product:
            raise _not_constant(node)
        result = _FUNCTIONS[name](*arguments)
        if isinstance(result, range) and len(result) > MAX_SIZE:
            raise _not_constant(node)
        return (
            result
            if isinstance(result, str | list | tuple | set | dict) or not isinstance(result, Iterable)
            else list(result)
        )

    def _operated(self, node: ast.BinOp, left: Any, right: Any) -> Any:
        """Apply an operator, unless its result may be much larger than its operands."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        match node.op:
            case ast.LShift():
                fits = numbers and right <= MAX_BITS
            case ast.Pow():
                fits = numbers and abs(right) <= MAX_BITS and abs(left) <= 1 << 40
            case ast.Mult():  # of a list or text and a number
                count = next((side for side in (left, right) if isinstance(side, int)), 0)
                fits = numbers or max(_weight(left), _weight(right)) * count <= MAX_SIZE
            case ast.Mod():
                fits = numbers
            case _:
                fits = True
        if not fits:
            raise _not_constant(node)
        return _OPERATIONS[type(node.op)](left, right)

    def _spread(self, parts: Iterable[ast.expr], scope: Scope) -> Iterator[Any]:
        for part in parts:
            if isinstance(part, ast.Starred):
                yield from self._value(part.value, scope)
            else:
                yield self._value(part, scope)

    def _turns(self, loops: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        if not loops:
            yield scope
            return
        first, *rest = loops
        for element in self._value(first.iter, scope):
            inner = {**scope, **_bound(first.target, element)}
            if all(self._value(test, inner) for test in first.ifs):
                yield from self._turns(rest, inner)


def _bound(target: ast.expr, element: Any) -> dict[str, Any]:
    """The variables of a loop in a turn."""
    match target:
        case ast.Name(id=name):
            return {name: element}
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            pairs = zip(parts, element, strict=True)
            return {name: value for part, inner in pairs for name, value in _bound(part, inner).items()}
    raise _not_constant(target)


def _weight(result: Any) -> int:
    """About how much a value holds: characters, or things in lists of lists; no further than to the limit."""
    total, waiting = 0, [result]
    while waiting and total <= MAX_SIZE:
        match waiting.pop():
            case str() as text:
                total += max(len(text), 1)
            case dict() as table:
                waiting += list(itertools.islice(table.values(), MAX_SIZE + 1))
                total += 1
            case (list() | tuple() | set()) as values:
                waiting += list(itertools.islice(values, MAX_SIZE + 1))
                total += 1
            case _:
                total += 1
    return total


def _not_constant(node: ast.AST) -> NotConstant:
    try:
        return NotConstant(f"`{one_line(ast.unparse(node), 60)}` is not constant")
    except RecursionError:
        return NotConstant("an expression is nested too deep")
