"""Functions that a recipe names, besides norms: where each is, its inputs, its cases.  Torch-free.

A function is called with inputs that are made here (`call`), or it is what a benchmark of the repository times: an
object of `triton.testing.perf_report`, an operator of tritonbench (`benchmark`), or a test of pytest-benchmark
(`test`).  docs/recipes.md has the keys.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from .cases import DTYPE_BYTES, FUNCTION_NAME, FunctionCase, Metric

DTYPES = ("bf16", "fp16", "fp32", "fp64", "fp8", "int8", "uint8", "int32", "int64", "bool")
METRICS = (Metric.KERNEL, Metric.CALL, Metric.MEMORY)
MAX_SIZE = 1 << 40
MAX_WORK = (1 << 63) - 1  # what a database stores as a whole number
MAX_FORMULA = 200  # characters
WHOLE = "-"  # the label of a test without parameters

_NAME = re.compile(FUNCTION_NAME, re.ASCII)
_PLACE = re.compile(r"\w[\w.-]*:[A-Za-z_]\w*")
_TEST = re.compile(r"[\w./-]+\.py(::[A-Za-z_]\w*)+")
_SIZE = re.compile(r"[A-Za-z]\w*", re.ASCII)
_LABEL = re.compile(r"(?P<numbers>[0-9]+(?:x[0-9]+)*)(?:\.(?P<dtype>[a-z0-9]+))?")
_NOT_IN_LABELS = re.compile(r"[^\w=,+.-]", re.ASCII)
OPERATIONS: Mapping[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
_CALLS: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "ceil": math.ceil, "log2": math.log2}


class Values(StrEnum):
    """How the numbers of an input are drawn."""

    NORMAL = "normal"  # mean 0, deviation `scale`
    UNIFORM = "uniform"  # from 0 to `scale`
    INTEGERS = "integers"  # from 0 to less than `below`
    BOOLEANS = "booleans"  # true and false alike


class Form(StrEnum):
    """What a function is."""

    CALL = "call"
    BENCHMARK = "benchmark"
    TEST = "test"


@dataclass(frozen=True)
class Input:
    """A tensor: its shape in sizes and numbers, its dtype (that of the case without one), its numbers."""

    shape: tuple[int | str, ...]
    dtype: str | None = None
    values: Values = Values.NORMAL
    scale: float = 1.0
    below: int | str | None = None

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  what pydantic reads of a dataclass

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"dtype = {self.dtype!r} is unknown; known: {', '.join(DTYPES)}")
        if (self.values is Values.INTEGERS) is (self.below is None):
            raise ValueError('values = "integers" and below = "V" belong together: numbers from 0 to less than V')

    @property
    def formulas(self) -> tuple[int | str, ...]:
        return (*self.shape, *(() if self.below is None else (self.below,)))


@dataclass(frozen=True)
class Function:
    """A function of a recipe.  Exactly one of `call`, `benchmark` and `test` says where it is.

    Raises ValueError that says what is wrong and what is allowed.
    """

    name: str
    cases: tuple[str, ...]
    call: str | None = None
    benchmark: str | None = None
    test: str | None = None
    line: str | None = None
    plot: str | None = None
    sizes: tuple[str, ...] = ()
    inputs: Mapping[str, Input] = field(default_factory=dict)
    constants: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    reference: str | None = None
    error: float | None = None
    bytes: str | None = None
    flops: str | None = None
    graph: bool = True
    provider: str = "functions"

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name = {self.name!r}: write letters, digits, - and _, in parts with / between them")
        forms = [form for form in Form if getattr(self, form) is not None]
        if len(forms) != 1:
            raise ValueError(
                f"{self.name}: write exactly one of {', '.join(f'{form} = …' for form in Form)}; it has {len(forms)}"
            )
        place = self.place
        fits = _TEST.fullmatch(place) if self.form is Form.TEST else _PLACE.fullmatch(place)
        if not fits:
            usual = "tests/test_file.py::test_name" if self.form is Form.TEST else "module:name"
            raise ValueError(f"{self.name}: {self.form} = {place!r} is not of the form {usual}")
        self._check_keys()
        if not self.cases:
            raise ValueError(f"{self.name}: cases is empty; name at least one")
        if self.error is not None and not 0 < self.error < 1:
            raise ValueError(f"{self.name}: error = {self.error:g} must be above 0 and below 1")
        cases = [self.case(text) for text in self.cases]
        if twice := [case for case in cases if cases.count(case) > 1]:  # storing a second result of a run fails
            raise ValueError(f"{self.name}: cases: {str(twice[0])!r} is listed twice; remove one")

    def _check_keys(self) -> None:
        of_form = {
            Form.CALL: {"sizes", "inputs", "constants", "reference", "bytes", "flops"},
            Form.BENCHMARK: {"line", "plot", "reference"},
            Form.TEST: set[str](),
        }
        for key in sorted(set().union(*of_form.values()) - of_form[self.form]):
            if getattr(self, key):
                raise ValueError(f"{self.name}: {key} has no meaning beside {self.form} = …; remove it")
        if self.form is Form.BENCHMARK and not self.line:
            raise ValueError(
                f'{self.name}: line = "NAME" is missing: which line of the benchmark is the implementation'
            )
        if self.form is not Form.CALL:
            return
        if self.reference is not None and not _PLACE.fullmatch(self.reference):
            raise ValueError(f"{self.name}: reference = {self.reference!r} is not of the form module:function")
        if not self.sizes or not self.inputs:
            raise ValueError(f'{self.name}: a call needs sizes = ["M", …] and inputs = {{x = {{shape = ["M", …]}}}}')
        for size in self.sizes:
            if not _SIZE.fullmatch(size):
                raise ValueError(f"{self.name}: sizes: {size!r} is no name of a number")
        if twice := [size for size in self.sizes if self.sizes.count(size) > 1]:
            raise ValueError(f"{self.name}: sizes: {twice[0]!r} is listed twice; rename one")

    @property
    def form(self) -> Form:
        return next(form for form in Form if getattr(self, form) is not None)

    @property
    def place(self) -> str:
        return str(getattr(self, self.form))

    def case(self, text: str) -> FunctionCase:
        """A case by its label, which may end with a metric, with its least work.  Raises ValueError."""
        case = FunctionCase.parse(f"{self.name}/{text}")
        if case.metric not in METRICS:
            raise ValueError(f"{self.name}: {text!r}: a function has the metrics {', '.join(METRICS)}")
        if self.form is not Form.CALL:
            return case
        numbers, dtype = self.numbers(case.label)
        for name, tensor in self.inputs.items():
            for formula in tensor.formulas:
                _size(f"{self.name}: inputs: {name}", formula, numbers)
        numbers["element"] = DTYPE_BYTES.get(dtype or "", 0)
        least_bytes = _size(f"{self.name}: bytes", self.bytes or 0, numbers)
        flops = _size(f"{self.name}: flops", self.flops or 0, numbers)
        return FunctionCase(case.function, case.label, case.metric, least_bytes, flops)

    def numbers(self, label: str) -> tuple[dict[str, int], str | None]:
        """The sizes of a label such as `8x512x4096.bf16`, and its dtype.  Raises ValueError."""
        parts = _LABEL.fullmatch(label)
        values = [int(number) for number in parts["numbers"].split("x")] if parts else []
        dtype = parts["dtype"] if parts else None
        if len(values) != len(self.sizes) or max(values) > MAX_SIZE or min(values) < 1:
            raise ValueError(f"{self.name}: {label!r} is not {'x'.join(self.sizes)} as numbers from 1")
        free = [name for name, tensor in self.inputs.items() if tensor.dtype is None]
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"{self.name}: {label!r}: unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
        if free and dtype is None:
            raise ValueError(f"{self.name}: {label!r} ends without the dtype of {free[0]}: write {label}.bf16")
        if dtype is not None and not free:
            raise ValueError(f"{self.name}: {label!r} ends with a dtype, and every input has its own; remove one")
        return dict(zip(self.sizes, values, strict=True)), dtype

    @property
    def as_json(self) -> dict[str, Any]:
        """What a contender gets."""
        inputs = {name: _given(tensor) for name, tensor in self.inputs.items()}
        return {**_given(self), "inputs": inputs, "constants": dict(self.constants)}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From `as_json`."""
        inputs = {
            name: Input(**{**keys, "shape": tuple(keys["shape"]), "values": Values(keys["values"])})
            for name, keys in given["inputs"].items()
        }
        lists = {name: tuple(given[name]) for name in ("cases", "sizes")}
        return cls(**{**given, **lists, "inputs": inputs})


def label_of(value: Any) -> str:
    """The label of a value of `x_vals`, or of a test's id."""
    parts = value if isinstance(value, tuple | list) else (value,)
    return "x".join(_NOT_IN_LABELS.sub("_", str(part).removeprefix("torch.")) for part in parts)


def _given(value: Any) -> dict[str, Any]:
    return {key.name: getattr(value, key.name) for key in fields(value)}


def evaluated(formula: int | str, numbers: Mapping[str, float]) -> float:
    """A formula of numbers, names, + - * / // %, min, max, ceil and log2.  Raises ValueError."""
    if isinstance(formula, int):
        return formula
    if len(formula) > MAX_FORMULA:
        raise ValueError(f"{formula[:40]}… is longer than {MAX_FORMULA} characters")
    try:
        return _value(ast.parse(formula, mode="eval").body, numbers)
    except (SyntaxError, ZeroDivisionError, OverflowError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"{formula!r} is no formula; write for example 2 * M * N") from None


def _value(node: ast.AST, numbers: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            if name not in numbers:
                raise ValueError(f"{name!r} is no size; known: {', '.join(numbers)}")
            return numbers[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CALLS:
            return _CALLS[name](*(_value(argument, numbers) for argument in arguments))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not allowed in a formula; write for example 2 * M * N")


def _size(where: str, formula: int | str, numbers: Mapping[str, float]) -> int:
    """A formula of a case as a whole number.  Raises ValueError."""
    try:
        size = evaluated(formula, numbers)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not 0 <= size <= MAX_WORK:  # infinity and NaN are not
        raise ValueError(f"{where}: {formula!r} is not from 0 to 2**63 - 1; correct it")
    return round(size)
