"""How many tests each mark and each lack leaves out, by file: `skipped.toml`, so that a change of it is a decision.

Marks and needs are read from what was collected and not from what happened, so the numbers are the same on a machine
with a GPU and on one without.  A file that is not collected here (tests/kernels/gpu without a GPU) keeps its numbers.

Write the list again with `make skipped` (`python -m tests.skipped`).
"""

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.needs import NEEDS

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).parent / "skipped.toml"
WRITE = "KERNELWATCH_WRITE_SKIPPED"
# What a selection or a machine leaves out.  `torch` is left out by `make test-fast` alone.
MARKS = ("alone", "attack", "demo", "gpu", "image", "long", "torch")
Counts = dict[str, dict[str, int]]  # mark or need to file to number of tests
FOUND = pytest.StashKey[Counts]()
FILES = pytest.StashKey[frozenset[str]]()
HEAD = """# How many tests each mark and each lack leaves out, by file (tests/skipped.py).  Written by `make skipped`.
# A change of this file is a decision: look at each line of its difference.
"""


def note(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count what was collected, before anything is left out.  A run of a part is not compared."""
    if not is_whole(config):
        items[:] = [item for item in items if item.get_closest_marker("whole") is None]
        return
    # Where there is no GPU, files of tests/kernels/gpu are not imported, and their items are no functions.
    imported = [item for item in items if isinstance(item, pytest.Function)]
    config.stash[FOUND] = counted(imported)
    config.stash[FILES] = frozenset(file_of(item) for item in imported)
    if WRITE in os.environ:
        LIST.write_text(written(merged(stored(), config.stash[FOUND], config.stash[FILES])))


def is_whole(config: pytest.Config) -> bool:
    """Whether all tests are collected."""
    option = config.option
    narrowed = (option.keyword, option.markexpr, option.deselect, option.ignore, option.ignore_glob)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(narrowed)


def counted(items: Iterable[pytest.Item]) -> Counts:
    """The number of tests of each file with each mark and each need."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()} & set(MARKS)
        for name in marks | needs_of(item):
            found[name][file_of(item)] += 1
    return {name: dict(files) for name, files in found.items()}


def file_of(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else item.path.name


def needs_of(item: pytest.Item) -> set[str]:
    """What a test may skip for: by a mark, in its function or in a fixture that it uses."""
    reasons = (str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skipif"))
    found = {match[1] for text in reasons if (match := re.match(r"needs ([\w-]+): ", text))}
    if isinstance(item, pytest.Function):
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        functions = [item.function, *(each[-1].func for each in fixtures)]
        found |= {need for function in functions for need in asked_by(function)}
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        found |= {"postgresql" for value in values if value == "postgres"}  # of the fixture `either`
    return found & NEEDS.keys()


def asked_by(function: Callable[..., Any], seen: frozenset[object] = frozenset()) -> Iterator[str]:
    """The needs for which a function, or one of our tests' functions that it calls, asks `needs.skip`."""
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, FunctionType) or function in seen:
        return
    code = function.__code__
    if {"needs", "skip"} <= set(code.co_names):
        yield from (one for one in code.co_consts if isinstance(one, str) and one in NEEDS)
    for name in code.co_names:
        called = function.__globals__.get(name)
        if str(getattr(called, "__module__", "")).startswith("tests."):
            yield from asked_by(called, seen | {function})


def stored() -> Counts:
    return tomllib.loads(LIST.read_text()) if LIST.exists() else {}


def merged(before: Mapping[str, Mapping[str, int]], found: Counts, files: frozenset[str]) -> Counts:
    """What was found, with the numbers of files that exist and were not collected here."""
    kept = {
        name: {file: count for file, count in numbers.items() if file not in files and (ROOT / file).exists()}
        for name, numbers in before.items()
    }
    both = {name: {**kept.get(name, {}), **found.get(name, {})} for name in kept.keys() | found.keys()}
    return {name: dict(sorted(numbers.items())) for name, numbers in sorted(both.items()) if numbers}


def written(counts: Counts) -> str:
    """The list as TOML, with the sum of each table."""
    tables = [
        f"[{name}]  # {sum(numbers.values())} tests\n" + "".join(f'"{file}" = {n}\n' for file, n in numbers.items())
        for name, numbers in counts.items()
    ]
    return "\n".join([HEAD, *tables])


if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "--no-header", "-p", "no:cacheprovider"]
    quiet = {"stdout": subprocess.DEVNULL}
    sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, WRITE: "1"}, check=False, **quiet).returncode)
