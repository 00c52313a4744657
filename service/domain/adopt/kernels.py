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
            return _of_example(module, kernel, around, given, _reference(reference, module, place))
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


def _reference(node: ast.expr, module: Module, place: str) -> dict[str, str]:
    name = module.full_name(node) or ""
    owner, _, function = name.rpartition(".")
    if name in module.functions:
        return {"reference": f"{place}:{name}"}
    return {"reference": f"{owner}:{function}"} if owner.startswith("torch") else {}


def _of_example(
    module: Module, kernel: Function, around: Function, given: Sequence[ast.expr], reference: Mapping[str, str]
) -> dict[str, Any]:
    names = [each.arg for each in kernel.args.args]
    local = list(_assigned(around))
    sizes = {each.arg: each.arg.upper() for each in around.args.args}
    used = list[str]()
    inputs, constants = dict[str, Any](), dict[str, Any]()
    fixed = dict[int, str]()  # numbers in shapes, with the sizes that stand for them
    for name, argument in zip(names, given, strict=False):
        values = [value for variable, value in local if isinstance(argument, ast.Name) and variable == argument.id]
        if len(values) == 1 and isinstance(values[0], ast.Call):
            inputs[name] = _input(module, values[0], sizes, fixed, used)
        elif not inputs or not isinstance(constant := module.value(argument), bool | int | float | str):
            raise NotConstant(f"the example does not say what {name} is")
        else:
            constants[name] = constant
    if not inputs or len(given) > len(names):
        raise NotConstant("its example has other arguments")
    parameters = [name for name in sizes if sizes[name] in used]
    if parameters:
        labels = _labels(module, around, parameters)
    else:  # the numbers themselves are the only case
        labels = ["x".join(map(str, fixed))]
        for each in inputs.values():
            each["shape"] = [fixed[number] for number in each["shape"]]
    entry = {"sizes": [sizes[name] for name in parameters] or list(fixed.values()), "inputs": inputs}
    return {**entry, **({"constants": constants} if constants else {}), **reference, "cases": spread(labels)}


def _input(
    module: Module, call: ast.Call, sizes: Mapping[str, str], fixed: dict[int, str], used: list[str]
) -> dict[str, Any]:
    name, parts, values = (module.full_name(call.func) or "").removeprefix("torch."), call.args, dict[str, Any]()
    if name == "randint" and len(parts) == 3 and module.value(parts[0]) == 0:
        below = sizes.get(parts[1].id) if isinstance(parts[1], ast.Name) else None
        used += [below] if below else []
        values, parts = {"values": "integers", "below": below or module.value(parts[1])}, parts[2:]
    elif name not in _DRAWN:
        raise NotConstant(f"{one_line(ast.unparse(call), 60)} is no random tensor")
    elif _DRAWN[name] != "normal":
        values = {"values": _DRAWN[name]}
    if len(parts) == 1 and isinstance(parts[0], ast.List | ast.Tuple):
        parts = parts[0].elts
    shape = list[str | int]()
    for part in parts:
        if isinstance(part, ast.Name) and part.id in sizes:
            used.append(sizes[part.id])
            shape.append(sizes[part.id])
            continue
        number = module.value(part)
        if not isinstance(number, int) or number < 1:
            raise NotConstant(f"{ast.unparse(part)} is no size")
        shape.append(number)
        fixed.setdefault(number, f"S{len(fixed)}")
    node = keyword(call, "dtype")
    dtype = module.value(node) if node is not None else Symbol("torch.int64" if "below" in values else "torch.float32")
    short = _DTYPES.get(dtype.name.rpartition(".")[2]) if isinstance(dtype, Symbol) else None
    if short is None or not shape:
        raise NotConstant(
            f"the dtype of {one_line(ast.unparse(call), 60)} is not constant" if shape else "it has no shape"
        )
    return {"shape": shape, "dtype": short, **values}


def _labels(module: Module, around: Function, parameters: Sequence[str]) -> list[str]:
    """The sizes with which the file calls its example."""
    positions = {each.arg: number for number, each in enumerate(around.args.args)}
    labels = list[str]()
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name == around.name:
                numbers = [_size(module, keyword(node, each, positions[each])) for each in parameters]
                labels.append("x".join(map(str, numbers)))
    if not labels:
        raise NotConstant(f"nothing calls {around.name} with numbers")
    return list(dict.fromkeys(labels))


def _size(module: Module, node: ast.expr | None) -> int:
    number = module.value(node) if node is not None else None
    if not isinstance(number, int) or number < 1:
        raise NotConstant("its example is called with no numbers")
    return number
