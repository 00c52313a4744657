"""Kernels without a benchmark: functions of helion, and functions with the signature of a norm."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from kernels.cases import OPS, Direction
from service.domain.adopt.benchmarks import BASELINES
from service.domain.adopt.candidates import NO_MODULE, Candidate, CandidateKind, slug, spread
from service.domain.adopt.literals import NotConstant, Symbol
from service.domain.adopt.sources import Function, Layout, Module, decorators, keyword
from service.domain.text import one_line

# What the arguments of norms are called elsewhere, by their names in the signatures of adapters.
_ALSO = {
    "x": "input hidden_states inp",
    "weight": "w gamma",
    "bias": "b beta",
    "eps": "epsilon variance_epsilon",
    "residual": "res residual_in",
    "dy": "grad_output dout dO grad_out",
    "rstd": "inv_rms rms inv_std",
    "mean": "mu",
}
_NAMES = {name: usual for usual, others in _ALSO.items() for name in (usual, *others.split())}
_DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "float64": "fp64",
    "double": "fp64", "float8_e4m3fn": "fp8", "int8": "int8", "uint8": "uint8", "int32": "int32", "int": "int32",
    "int64": "int64", "long": "int64", "bool": "bool",
    "HALF_DTYPE": "fp16",  # of helion._testing, on NVIDIA's GPUs
}  # fmt: skip
NORM_CASES = ["4096x1024.bf16", "32768x4096.bf16"]
_DRAWN = {"randn": "normal", "rand": "uniform", "empty": "normal", "zeros": "normal", "ones": "normal"}


def norms(module: Module, layout: Layout) -> Iterator[Candidate]:
    """Public functions that can be called as a norm is (docs/adapters.md), by their names and arguments."""
    for function in module.functions.values():
        key = _norm_key(module, function)
        if key is None:
            continue
        candidate = Candidate(CandidateKind.NORM, module.path, function.lineno, function.name, key)
        place = layout.place(module.path)
        if place is None:
            yield replace(candidate, lacks=NO_MODULE)
        elif _words(function.name) & BASELINES:
            yield replace(candidate, lacks="its name is that of something to compare with")
        elif not set(_returned(function)) <= {len(_outputs(key)), None}:
            yield replace(candidate, lacks=f"it does not return {' and '.join(_outputs(key))}; write an adapter")
        else:
            yield replace(
                candidate, entry={"call": f"{place[0]}:{function.name}", "cases": NORM_CASES}, folder=place[1]
            )


def _norm_key(module: Module, function: Function) -> str | None:
    """`rmsnorm.fwd`, if a function can be called as that is."""
    text = f"{function.name} {PurePosixPath(module.path).stem}".lower()
    norm = "rmsnorm" if "rms" in text else "layernorm" if re.search(r"layer_?norm", text) else None
    arguments = function.args
    if (
        norm is None
        or function.name.startswith("_")
        or function.decorator_list
        or isinstance(function, ast.AsyncFunctionDef)
    ):
        return None
    listed = [*arguments.posonlyargs, *arguments.args]
    needed = len(listed) - len(arguments.defaults)
    if arguments.vararg or any(default is None for default in arguments.kw_defaults):
        return None
    names = [_NAMES.get(each.arg, each.arg) for each in listed]
    for op in OPS.values():
        for direction in (Direction.FWD, Direction.BWD):
            if op.norm == norm and direction in op.directions:
                call = [*op.inputs(direction), "eps"]
                if names[: len(call)] == call and needed <= len(call):
                    return f"{op.name}.{direction}"
    return None


def _outputs(key: str) -> Sequence[str]:
    op, _, direction = key.partition(".")
    return OPS[op].outputs(Direction(direction))


def _returned(node: ast.AST) -> Iterator[int | None]:
    """How many values each `return` of a function has; None where that is not plain."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                continue
            case ast.Return(value=None):
                yield 0
            case ast.Return(value=ast.Tuple(elts=values)):
                yield len(values)
            case ast.Return(value=ast.BinOp()):
                yield 1
            case ast.Return():
                yield None
            case _:
                yield from _returned(child)


def _words(name: str) -> frozenset[str]:
    return frozenset(name.lower().split("_"))


def helion_kernels(module: Module, layout: Layout) -> Iterator[Candidate]:
    """Functions decorated with `helion.kernel`, with the inputs of an example in the same file."""
    place, examples = layout.place(module.path), _examples(module)
    for function in module.functions.values():
        if not any(name in ("helion.kernel", "helion.jit") for name, _ in decorators(function, module)):
            continue
        candidate = Candidate(CandidateKind.HELION, module.path, function.lineno, function.name, slug(function.name))
        if place is None:
            yield replace(candidate, lacks=NO_MODULE)
            continue
        candidate = replace(candidate, entry={"call": f"{place[0]}:{function.name}"}, folder=place[1])
        try:
            entry = _example(module, function, place[0], examples)
            yield replace(candidate, entry={**candidate.entry, **entry})
        except NotConstant as error:
            unknown = {
                "sizes": ["M", "N"],
                "inputs": {each.arg: {"shape": ["M", "N"], "dtype": "bf16"} for each in function.args.args},
            }
            yield replace(
                candidate,
                entry={**candidate.entry, **unknown, "cases": ["4096x4096"]},
                lacks=f"{error}; write sizes, inputs and cases",
            )


Example = tuple[Function, ast.expr, ast.expr, Sequence[ast.expr]]  # around, what it runs, reference, arguments


def _examples(module: Module) -> list[Example]:
    """The calls of `run_example(kernel, reference, arguments)`."""
    examples = list[Example]()
    for around in module.functions.values():
        for node in ast.walk(around):
            match node:
                case ast.Call(func=func, args=[first, second, ast.Tuple(elts=given), *_]):
                    if (module.full_name(func) or "").endswith("run_example"):
                        examples.append((around, first, second, given))
    return examples


def _example(module: Module, kernel: Function, place: str, examples: Sequence[Example]) -> dict[str, Any]:
    """Sizes, inputs, reference and cases of the example that runs a kernel.  Raises NotConstant."""
    for around, runs, reference, given in examples:
        if _runs(runs, kernel.name, around):
            return _of_example(module, kernel, around, given, reference, place)
    raise NotConstant("no example of its file has its inputs")


def _runs(node: ast.expr, kernel: str, around: Function) -> bool:
    """Whether this is the kernel, or a table of several with it among them."""
    if isinstance(node, ast.Name) and node.id != kernel:
        node = next((value for name, value in _assigned(around) if name == node.id), node)
    names = [node] if isinstance(node, ast.Name) else node.values if isinstance(node, ast.Dict) else []
    return any(isinstance(name, ast.Name) and name.id == kernel for name in names)


def _assigned(around: Function) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(around):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def _reference(node: ast.expr, constants: Mapping[str, Any], module: Module, place: str) -> dict[str, str]:
    """The reference of an example, if it can be called by name, and with the same names of constants."""
    name = module.full_name(node) or ""
    owner, _, function = name.rpartition(".")
    if name in module.functions:
        arguments = {each.arg for each in module.functions[name].args.args}
        return {"reference": f"{place}:{name}"} if constants.keys() <= arguments else {}
    return {"reference": f"{owner}:{function}"} if owner.startswith("torch") and not constants else {}


class _Sizes:
    """The names of numbers in the shapes of an example: the arguments of the function around it, or S0, S1, …"""

    def __init__(self, module: Module, around: Function) -> None:
        self._module, self._around = module, around
        self._arguments = {each.arg: each.arg.upper() for each in around.args.args}
        self._used = set[str]()
        self._fixed = dict[int, str]()

    def number(self, node: ast.expr) -> str | int:
        """A size by its name, or a number.  Raises NotConstant."""
        if isinstance(node, ast.Name) and node.id in self._arguments:
            self._used.add(node.id)
            return self._arguments[node.id]
        return _whole(self._module.value(node), node)

    def shape(self, parts: Sequence[ast.expr]) -> list[str | int]:
        numbers = [self.number(part) for part in parts]
        for number in numbers:
            if isinstance(number, int):
                self._fixed.setdefault(number, f"S{len(self._fixed)}")
        return numbers

    def finished(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of a function that are about its sizes."""
        names = [name for name in self._arguments if name in self._used]
        if names:
            return {
                "sizes": [self._arguments[name] for name in names],
                "inputs": inputs,
                "cases": spread(self._labels(names)),
            }
        named = {
            name: {**each, "shape": [self._fixed[number] for number in each["shape"]]} for name, each in inputs.items()
        }
        return {"sizes": list(self._fixed.values()), "inputs": named, "cases": ["x".join(map(str, self._fixed))]}

    def _labels(self, names: Sequence[str]) -> list[str]:
        """The numbers with which the file calls the function around the example."""
        positions = {each.arg: number for number, each in enumerate(self._around.args.args)}
        labels = list[str]()
        for node in ast.walk(self._module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == self._around.name:
                given = [keyword(node, name, positions[name]) for name in names]
                numbers = [_whole(self._module.value(each), each) for each in given if each is not None]
                labels += ["x".join(map(str, numbers))] if len(numbers) == len(names) else []
        if not labels:
            raise NotConstant(f"nothing calls {self._around.name} with numbers")
        return list(dict.fromkeys(labels))


def _whole(number: Any, node: ast.expr) -> int:
    if not isinstance(number, int) or number < 1:
        raise NotConstant(f"`{one_line(ast.unparse(node), 60)}` is no size")
    return number


def _of_example(
    module: Module, kernel: Function, around: Function, given: Sequence[ast.expr], reference: ast.expr, place: str
) -> dict[str, Any]:
    names = [each.arg for each in kernel.args.args]
    if len(given) > len(names):
        raise NotConstant("its example has other arguments")
    local = list(_assigned(around))
    sizes = _Sizes(module, around)
    inputs, constants = dict[str, Any](), dict[str, Any]()
    for name, argument in zip(names, given, strict=False):
        values = [value for variable, value in local if isinstance(argument, ast.Name) and variable == argument.id]
        if len(values) == 1 and isinstance(values[0], ast.Call) and not constants:  # which follow the inputs, by name
            inputs[name] = _input(module, values[0], sizes)
        elif inputs and isinstance(constant := module.value(argument), bool | int | float | str):
            constants[name] = constant
        else:
            raise NotConstant(f"the example does not say what {name} is")
    entry = sizes.finished(inputs)
    labels = entry.pop("cases")
    further = {"constants": constants} if constants else {}
    return {**entry, **further, **_reference(reference, constants, module, place), "cases": labels}


def _input(module: Module, call: ast.Call, sizes: _Sizes) -> dict[str, Any]:
    name, parts, values = (module.full_name(call.func) or "").removeprefix("torch."), call.args, dict[str, Any]()
    if name == "randint" and len(parts) == 3 and module.value(parts[0]) == 0:
        values, parts = {"values": "integers", "below": sizes.number(parts[1])}, parts[2:]
    elif name not in _DRAWN:
        raise NotConstant(f"`{one_line(ast.unparse(call), 60)}` is no random tensor")
    elif _DRAWN[name] != "normal":
        values = {"values": _DRAWN[name]}
    if len(parts) == 1 and isinstance(parts[0], ast.List | ast.Tuple):
        parts = parts[0].elts
    node = keyword(call, "dtype")
    dtype = module.value(node) if node is not None else Symbol("torch.int64" if "below" in values else "torch.float32")
    short = _DTYPES.get(dtype.name.rpartition(".")[2]) if isinstance(dtype, Symbol) else None
    if short is None or not parts:
        raise NotConstant(f"`{one_line(ast.unparse(call), 60)}` has no plain {'dtype' if parts else 'shape'}")
    return {"shape": sizes.shape(parts), "dtype": short, **values}
