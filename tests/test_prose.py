"""No decision reads prose: a sentence is written to be read by people, and may be improved at any time.

What is decided later is stored as a code, a number or a flag beside it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("service", "workers", "dashboards")

# Attributes, and keys of stored JSON, that hold sentences.
PROSE = re.compile(r"(\w+_)?(advice|headline|poll_error|reason|released_why|sentence|text|trouble|why|words)s?")
NO_PROSE = {"context"}
READ = {"startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "count", "split", "partition"}
READ |= {"rpartition", "rsplit", "match", "search", "fullmatch", "findall", "like", "not_like", "ilike", "contains"}
EQUALITY = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
TEMPLATE = re.compile(
    r"\.\w*(?:reason|words|why|_text|headline|advice)\b\s*(?:==|!=|\bin\b|\.startswith|\.endswith|\.split)"
    r"|(?:[\"'])\s*(?:==|!=|\bin\b)\s*\w+\.\w*(?:reason|words|why|_text|headline|advice)\b"
)


def decisions(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every place where a string method, a pattern or a comparison reads a sentence."""
    module = ast.parse(source)
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = {place for scope in (module, *functions) for place in _decisions(scope)}
    return iter(sorted(found))


def _decisions(scope: ast.AST) -> Iterator[tuple[int, str]]:
    """Those of one function, where a local name may stand for a sentence; of a module without such names."""
    names = frozenset(_names_of_prose(scope)) if not isinstance(scope, ast.Module) else frozenset[str]()
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READ:
            if any(_is_prose(one, names) for one in (node.func.value, *node.args)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Compare) and any(isinstance(op, EQUALITY) for op in node.ops):
            sides = [node.left, *node.comparators]
            if any(_is_prose(one, names) for one in sides) and any(_is_text(one) for one in sides):
                yield node.lineno, ast.unparse(node)


def _names_of_prose(scope: ast.AST) -> Iterator[str]:
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_prose(value, frozenset()):
                yield name
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if _is_prose(value, frozenset()):
                yield name


def _is_prose(node: ast.expr, names: frozenset[str]) -> bool:
    """`row.reason`, `(row.reason or "")`, `str(row.reason)`, `row.reason.lower()`, `stored["reason"]`."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=name):
            return PROSE.fullmatch(name) is not None and name not in NO_PROSE
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return PROSE.fullmatch(key) is not None
        case ast.BoolOp(values=values):
            return any(_is_prose(one, names) for one in values)
        case ast.IfExp(body=body, orelse=orelse):
            return _is_prose(body, names) or _is_prose(orelse, names)
        case ast.Call(func=ast.Attribute(value=value), args=args):
            return _is_prose(value, names) or any(_is_prose(one, names) for one in args)
        case ast.Call(args=args):
            return any(_is_prose(one, names) for one in args)
    return False


def _is_text(node: ast.expr) -> bool:
    """A literal, a constant by its name, or several of them."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.Tuple(elts=many) | ast.List(elts=many) | ast.Set(elts=many):
            return any(_is_text(one) for one in many)
    return False


def test_no_decision_reads_prose() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, text in decisions(path.read_text())
    ]
    assert wrong == []


def test_no_template_reads_prose() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in sorted((ROOT / "dashboards").rglob("*.html"))
        for found in TEMPLATE.finditer(path.read_text())
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        'row.reason.startswith("quarantined: ")',
        "(row.reason or '').startswith(QUARANTINED)",
        "'machine' in verdict.cause_text",
        'run.reason == "none of the paths that matter changed"',
        "run.reason == NOTHING_THAT_MATTERS",
        "row.reason in (NOTHING, 'something')",
        'select(Row).where(Row.reason.not_like(f"{QUARANTINED}%"))',
        "re.match('behind', str(found.words))",
        "said.cause.words.removeprefix('slower')",
        "event.words.lower().endswith('machine')",
        "stored['reason'].split('; ')",
        "def f(row): said = row.reason if row else ''; return said.startswith('behind')",
        "def f(row): return (why := row.cause_text) and 'machine' in why",
    ],
)
def test_a_decision_on_prose_is_found(source: str) -> None:
    assert [line for line, _ in decisions(source)] == [1]


@pytest.mark.parametrize(
    "source",
    [
        "row.reason or 'no reason was given'",
        "row.reason is None",
        "row.reason_code == ReasonCode.NO_BASELINE",
        "row.reason_code == 'no_baseline'",
        "one_line(row.reason)",
        "found.words != last",
        "text.startswith('#')",
        "row.reason.rstrip('.')",
    ],
)
def test_what_is_no_decision_on_prose_is_left_alone(source: str) -> None:
    assert list(decisions(source)) == []


@pytest.mark.parametrize(
    "template",
    ["{% if row.reason == 'x' %}", "{% if 'machine' in row.cause_text %}", "{% if row.why.startswith('a') %}"],
)
def test_a_template_that_decides_on_prose_is_found(template: str) -> None:
    assert TEMPLATE.search(template)
