"""Tests of pytest-benchmark: functions that take its fixture, and the ids that pytest gives their parameters."""

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from kernels.functions import WHOLE, label_of
from service.domain.adopt.candidates import Candidate, CandidateKind, is_label, slug, spread
from service.domain.adopt.literals import NotConstant, Symbol
from service.domain.adopt.sources import Function, Module, decorators, keyword

FIXTURE = "benchmark"
MAX_PRODUCT = 10_000
_DTYPE = re.compile(r"torch\.(b?float|u?int|complex)\d+\w*|torch\.(bool|half|double|long)")
_PATH = re.compile(r"[\w./-]+", re.ASCII)

Parameters = Sequence[tuple[str, float]]  # ids with their sizes
Fixtures = Mapping[str, tuple[Module, Function, ast.Call | None]]  # where each is, and its decorator if that is a call


def tests(module: Module, modules: Mapping[str, Module]) -> Iterator[Candidate]:
    """The tests of a file; `modules` has those of the whole checkout by path, for their fixtures."""
    fixtures = _fixtures(module, modules)
    if FIXTURE in fixtures:
        return  # a fixture of their own
    for parents, function in _collected(module):
        arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        if FIXTURE not in arguments or not function.name.startswith("test"):
            continue
        title = "::".join([*(parent.name for parent in parents), function.name])
        name = slug(title.replace("::", "-").removeprefix("test_"))
        candidate = Candidate(CandidateKind.TEST, module.path, function.lineno, title, name)
        if not _PATH.fullmatch(module.path):
            yield replace(candidate, lacks="its path has characters other than letters, digits and _ . / -")
            continue
        entry: dict[str, Any] = {"test": f"{module.path}::{title}"}
        try:
            cases, note = _cases([function, *parents], arguments, module, fixtures)
            yield replace(candidate, entry={**entry, "cases": cases}, notes=note)
        except NotConstant as error:
            listing = f"`pytest --collect-only -q {module.path}::{title}` lists the ids for cases"
            yield replace(candidate, entry={**entry, "cases": ["ID"]}, lacks=f"{error}; {listing}")


def _collected(module: Module) -> Iterator[tuple[list[ast.ClassDef], Function]]:
    for function in module.functions.values():
        yield [], function
    for node in module.classes:
        if node.name.startswith("Test"):
            yield from (([node], method) for method in node.body if isinstance(method, Function))


def _fixtures(module: Module, modules: Mapping[str, Module]) -> Fixtures:
    """The fixtures of a test file and of the conftest.py above it, and `pytest_generate_tests`; the nearest counts."""
    folders = [str(folder) for folder in PurePosixPath(module.path).parents]
    near = [modules.get("conftest.py" if folder == "." else f"{folder}/conftest.py") for folder in folders]
    fixtures: dict[str, tuple[Module, Function, ast.Call | None]] = {}
    for file in reversed([module, *filter(None, near)]):
        for function in _functions(file):
            for name, call in decorators(function, file):
                if name in ("pytest.fixture", "pytest_asyncio.fixture"):
                    fixtures[function.name] = file, function, call
            if function.name == "pytest_generate_tests":
                fixtures[function.name] = file, function, None
    return fixtures


def _functions(module: Module) -> Iterator[Function]:
    yield from module.functions.values()
    for node in module.classes:
        yield from (method for method in node.body if isinstance(method, Function))


def _cases(
    marked: Sequence[Function | ast.ClassDef],
    arguments: Sequence[str],
    module: Module,
    fixtures: Fixtures,
) -> tuple[list[str], list[str]]:
    """The ids to measure, of all that the parameters make.  Raises NotConstant with what hides them."""
    if generating := fixtures.get("pytest_generate_tests"):
        raise NotConstant(f"pytest_generate_tests of {generating[0].path} makes its parameters")
    if "pytestmark" in module.constants and "parametrize" in ast.unparse(module.constants["pytestmark"]):
        raise NotConstant("pytestmark gives it parameters")
    parameters, direct = list[Parameters](), set[str]()
    for node in marked:
        calls = [call for name, call in decorators(node, module) if name == "pytest.mark.parametrize" and call]
        for call in reversed(calls):  # the innermost decorator comes first in an id
            names, ids = _ids(call, module)
            direct |= set(names)
            parameters.append(ids)
    _refuse_hidden([name for name in arguments if name not in direct], fixtures)
    if math.prod(map(len, parameters)) > MAX_PRODUCT:
        raise NotConstant(f"it has more than {MAX_PRODUCT:,} combinations of parameters")
    combined = [
        (label_of("-".join(name for name, _ in chosen)), math.prod(size for _, size in chosen))
        for chosen in itertools.product(*parameters)
    ]
    if not parameters:
        return [WHOLE], []
    labels = [name for name, _ in sorted(combined, key=lambda each: each[1]) if is_label(name)]
    if not labels or len(set(labels)) != len(labels):
        raise NotConstant(
            "no id of its parameters can name a case" if not labels else "ids of its parameters are equal"
        )
    chosen = spread(labels)
    return chosen, [f"{len(chosen)} of {len(combined)} cases"] if len(combined) > len(chosen) else []


def _refuse_hidden(arguments: Sequence[str], fixtures: Mapping[str, tuple[Module, Function, ast.Call | None]]) -> None:
    """Raise NotConstant if a fixture has parameters, which are in the id too."""
    seen, waiting = set[str](), list(arguments)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in fixtures:
            continue
        seen.add(name)
        file, function, call = fixtures[name]
        if call and keyword(call, "params") is not None:
            raise NotConstant(f"its fixture {name} of {file.path}:{function.lineno} has parameters")
        waiting += [each.arg for each in function.args.args]


def _ids(call: ast.Call, module: Module) -> tuple[list[str], Parameters]:
    """The names and ids of one `parametrize`, with the product of the numbers of each."""
    names_node, values_node, ids_node = (
        keyword(call, "argnames", 0),
        keyword(call, "argvalues", 1),
        keyword(call, "ids"),
    )
    if names_node is None or values_node is None:
        raise NotConstant("parametrize has no values")
    named = module.value(names_node)
    names = [each.strip() for each in named.split(",") if each.strip()] if isinstance(named, str) else list(named)
    if isinstance(values_node, ast.Name):
        values_node = module.constants.get(values_node.id, values_node)
    own = module.value(ids_node) if ids_node is not None else None
    if own is not None and not isinstance(own, list | tuple):
        raise NotConstant(f"code makes the ids of {', '.join(names)}")
    sets = list(_parameter_sets(values_node, module))
    ids = list[tuple[str, float]]()
    for number, (text, values) in enumerate(sets):
        arguments = [values] if isinstance(named, str) and len(names) == 1 else list(values)
        if len(arguments) != len(names):
            raise NotConstant(f"the values of {', '.join(names)} do not fit")
        if text is None and own is not None and number < len(own):
            text = own[number]
        if not isinstance(text, str):
            text = "-".join(_id(value, name, number) for name, value in zip(names, arguments, strict=True))
        ids.append((text, math.prod(_numbers(values))))
    return names, ids


def _parameter_sets(node: ast.expr, module: Module) -> Iterator[tuple[str | None, Any]]:
    """The values of each case, with its id if `pytest.param` has one."""
    elements = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    if any(isinstance(each, ast.Call) and module.full_name(each.func) == "pytest.param" for each in elements):
        for each in elements:
            if not isinstance(each, ast.Call) or module.full_name(each.func) != "pytest.param":
                yield None, module.value(each)
                continue
            id_node = keyword(each, "id")
            values = [module.value(value) for value in each.args]
            yield module.value(id_node) if id_node else None, values[0] if len(values) == 1 else values
        return
    values = module.value(node)
    if not isinstance(values, list | tuple | set):
        raise NotConstant(f"{ast.unparse(node)[:40]} is no list")
    yield from ((None, value) for value in values)


def _id(value: Any, name: str, number: int) -> str:
    """The part of an id that pytest makes of a value."""
    match value:
        case str() if value.isascii() and value.isprintable():
            return value
        case None | bool() | int() | float() | complex():
            return str(value)
        case list() | tuple() | dict() | set():
            return f"{name}{number}"
        case Symbol(name=symbol) if _DTYPE.fullmatch(symbol):
            return f"{name}{number}"
        case Symbol(name=symbol) if "." not in symbol:  # a function of the file
            return symbol
    raise NotConstant(f"the id of {getattr(value, 'name', type(value).__name__)} is not known without running it")


def _numbers(value: Any) -> Iterator[float]:
    match value:
        case bool() | None:
            return
        case int() | float():
            yield max(value, 1)
        case list() | tuple() | set():
            for each in value:
                yield from _numbers(each)
        case dict():
            yield from _numbers(list(value.values()))
