"""Which automatic run executes a test function, read from its marks without importing anything.

A run for every push leaves out what is marked for request, and has neither root nor a GPU (.github/workflows/test.yml).
The nightly run has root and leaves out nothing but what needs a GPU.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import slow

ROOT = Path(__file__).parents[2]
EVERY_RUN, NIGHTLY, NEVER = "every run", "nightly", "never"
ON_REQUEST = {"attack", "image", "long"}


@dataclass(frozen=True)
class Function:
    name: str
    when: str  # EVERY_RUN, NIGHTLY or NEVER


@cache
def functions(file: Path) -> tuple[Function, ...]:
    """The test functions of a file.  One of which only some parameters are marked runs with the others."""
    tree = ast.parse(file.read_text())
    shared = {
        word
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
        for word in _words(node.value)
    }
    return tuple(
        Function(node.name, _when(_with_slow(file, node, shared)))
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def _with_slow(file: Path, function: ast.FunctionDef | ast.AsyncFunctionDef, shared: set[str]) -> set[str]:
    """The marks of a function and its file, and `long` where every variant of it is in the list of slow tests."""
    words = shared | {word for each in function.decorator_list for word in _words(each)}
    is_listed = file.is_relative_to(ROOT) and f"{file.relative_to(ROOT)}::{function.name}" in slow.stored()
    return words | {"long"} if is_listed and "every_run" not in words else words


def _words(mark: ast.expr) -> Iterator[str]:
    """`long` of `@pytest.mark.long`, and the need of `@needs.skip_unless(…, need)`."""
    for each in mark.elts if isinstance(mark, ast.List | ast.Tuple) else [mark]:
        text = ast.unparse(each)
        if found := re.match(r"pytest\.mark\.(\w+)", text):
            yield found[1]
        elif text.startswith("needs.skip_unless(") and isinstance(each, ast.Call):
            yield ast.literal_eval(each.args[1])


def _when(words: set[str]) -> str:
    return NEVER if "gpu" in words else NIGHTLY if words & (ON_REQUEST | {"root"}) else EVERY_RUN


def named(name: str) -> list[Function]:
    """The functions of a file, of a folder with its files, or the one of `file::function`."""
    place, _, function = name.partition("::")
    path = ROOT / place
    files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    return [one for file in files for one in functions(file) if function in ("", one.name)]
