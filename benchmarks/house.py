"""Figures on the structure of a tree: its size, its imports, and how many files a value passes on its way.

python -m benchmarks.house [TREE ...]                         counts in the files, a column for each tree
TREE/.venv/bin/python -P benchmarks/house.py --walks TREE     runs one story test and follows three values
"""

import argparse
import ast
import inspect
import json
import math
import os
import statistics
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

ROOMS = ("kernels", "service", "workers", "dashboards")
STORY = "test_a_slow_pull_request_is_told_so_once_and_the_comment_is_edited_in_place"
THRESHOLD = 0.05173  # instead of the `smallest_change` of the recipe of the stories
MAX_LEVELS, MAX_NESTED, MAX_MEMBERS = 2, 6, 50


def figures(tree: Path) -> dict[str, int]:
    """The static figures of a tree, by what they count."""
    from tests.test_prose import decisions  # not for the walks: they run with the tests of another tree
    from tests.test_rooms import cycles

    rooms = [path for room in ROOMS for path in sorted((tree / room).rglob("*.py"))]
    tests = sorted((tree / "tests").rglob("*.py"))
    benchmarks = sorted((tree / "benchmarks").rglob("*.py"))
    pages = [page for page in tree.rglob("*.md") if "/." not in f"/{page.relative_to(tree)}"]
    graph = _graph(tree, rooms)
    importers = Counter(other for others in graph.values() for other in others)
    readers = [path for path in rooms if not {"kernels", "migrations"} & set(path.relative_to(tree).parts)]
    return {
        "modules of the rooms": len(rooms),
        "modules in the largest folder of the rooms": _largest(rooms),
        "modules in the largest folder of the tests": _largest(tests),
        "import cycles": len(cycles(graph)),
        "modules in import cycles": sum(map(len, cycles(graph))),
        "class names that stand for two or more classes in a room": sum(_repeated(tree / room) for room in ROOMS),
        "decisions on prose": sum(len(list(decisions(path.read_text()))) for path in readers),
        "modules with exactly one importer": sum(count == 1 for count in importers.values()),
        "lines of the product": _lines(rooms),
        "lines of the tests": _lines(tests),
        "lines of the benchmarks": _lines(benchmarks),
        "pages of markdown": len(pages),
        "lines of markdown": _lines(pages),
    }


def _lines(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def _largest(paths: list[Path]) -> int:
    """The most modules in one folder, without `__init__.py` and the versions of the database."""
    counted = [path for path in paths if path.name != "__init__.py" and path.parent.name != "versions"]
    return max(Counter(path.parent for path in counted).values())


def _repeated(room: Path) -> int:
    nodes = [node for path in room.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return sum(count > 1 for count in Counter(node.name for node in nodes if isinstance(node, ast.ClassDef)).values())


def _graph(tree: Path, paths: list[Path]) -> dict[str, set[str]]:
    """The modules of the rooms that each of them imports, inside functions and for types too."""
    from tests.test_rooms import imports

    dotted = [".".join(path.relative_to(tree).with_suffix("").parts) for path in paths]
    names = {name.removesuffix(".__init__"): path for name, path in zip(dotted, paths, strict=True)}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        for _, imported in imports(name, path):
            module = imported if imported in names else imported.rpartition(".")[0]
            if module in names and module != name:
                graph[name].add(module)
    return graph


@dataclass
class Walk:
    """Where values were: by file, the fewest attributes between an argument of a function there and one of them."""

    values: set[object] = field(default_factory=set)
    files: dict[str, int] = field(default_factory=dict)
    names: Counter[str] = field(default_factory=Counter)


class Walks:
    """A plugin of pytest that follows a commit, a sample and a threshold through the functions of a tree.

    Commit: the first head of the pull request, from its webhook until its comment is posted.
    Sample: the times of each turn and their median, in the same interval; the processes of contenders are not followed.
    Threshold: `smallest_change` and its logarithm, from the registration of the recipe until that comment is posted.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = f"{tree}/"
        self.commit, self.sample, self.threshold = Walk(), Walk(), Walk({THRESHOLD, math.log1p(THRESHOLD)})
        self._on: list[Walk] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Plant the threshold, and follow the first head of a pull request."""
        module = items[0].module
        module.RECIPE = module.RECIPE.replace("smallest_change = 0.05\n", f"smallest_change = {THRESHOLD}\n")
        head = module.Story.head

        def followed(story: object, number: int, sha: str, **rest: object) -> None:
            if not self.commit.values:
                self.commit.values.add(sha)
                self._on = [self.commit, self.sample, self.threshold]
            head(story, number, sha, **rest)
            self._on = []

        module.Story.head = followed
        json.loads = partial(self._read, json.loads)
        self._on = [self.threshold]

    def _read(self, loads: Callable[..., object], *given: object, **rest: object) -> object:
        """`json.loads`, which remembers the samples of contenders."""
        answer = loads(*given, **rest)
        if self.sample in self._on and isinstance(answer, dict) and isinstance(answer.get("samples"), list):
            self.sample.values.update(answer["samples"], [statistics.median(answer["samples"])])
        return answer

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Look at the arguments of a function that starts, and at the local names of one that ends."""
        file = frame.f_code.co_filename.removeprefix(self._tree)
        if not self._on or event not in ("call", "return") or file.split("/")[0] not in ROOMS:
            return
        named, *more = inspect.getargs(frame.f_code)
        arguments = {*named, *more} if event == "call" else set()
        for name, value in list(frame.f_locals.items()):
            for walk in self._on:
                for level, last in found(value, walk.values, name):
                    walk.names[last] += 1
                    if name in arguments:
                        walk.files[file] = min(level, walk.files.get(file, level))


def found(value: object, wanted: set[object], name: str, level: int = 0, nested: int = 0) -> Iterator[tuple[int, str]]:
    """Find wanted values in `value`, its members and its attributes: how many attributes deep, and the last name."""
    if isinstance(value, str | float):
        if value in wanted:
            yield level, name
    elif nested < MAX_NESTED and isinstance(value, dict):
        for key, one in list(value.items())[:MAX_MEMBERS]:
            yield from found(one, wanted, str(key), level, nested + 1)
    elif nested < MAX_NESTED and isinstance(value, list | tuple):
        fields = getattr(value, "_fields", ())
        for place, one in enumerate(value[:MAX_MEMBERS]):
            yield from found(one, wanted, fields[place] if fields else name, level + bool(fields), nested + 1)
    elif level < MAX_LEVELS and type(value).__module__.split(".")[0] in ROOMS:
        slots = {key: getattr(value, key, None) for key in getattr(type(value), "__slots__", ())}
        for key, one in {**slots, **getattr(value, "__dict__", {})}.items():
            yield from found(one, wanted, key, level + 1, nested)


def follow(tree: Path) -> int:
    """Run the story in a tree, and print where the three values were."""
    os.chdir(tree)
    walks = Walks(tree)
    threading.setprofile(walks.profile)
    sys.setprofile(walks.profile)
    [story] = (tree / "tests").rglob("test_story.py")
    status = pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"{story}::{STORY}"], plugins=[walks])
    for title, walk in {"commit": walks.commit, "sample": walks.sample, "threshold": walks.threshold}.items():
        print(f"{title}: {len(walk.files)} files; {len(walk.names)} names: {dict(walk.names.most_common())}")
        for level in range(MAX_LEVELS + 1):
            files = sorted(file for file, least in walk.files.items() if least == level)
            print(f"  {level} attributes deep, {len(files)} files: {' '.join(files)}")
    return int(status)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("trees", nargs="*", type=lambda name: Path(name).resolve(), default=[Path.cwd()])
    given.add_argument("--walks", action="store_true", help="follow three values through the first tree")
    options = given.parse_args()
    if options.walks:
        sys.exit(follow(options.trees[0]))
    columns = [figures(tree) for tree in options.trees]
    print("| |", " | ".join(tree.name for tree in options.trees), "|\n|---|" + "---:|" * len(columns))
    for what in columns[0]:
        print(f"| {what} |", " | ".join(f"{column[what]:,}" for column in columns), "|")


if __name__ == "__main__":
    main()
