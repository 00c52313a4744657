"""How large a tree is, and how tangled: before, now, and the goal.

python -m benchmarks.house [TREE]           counts in the files and in git
python -m benchmarks.house --walks [TREE]   and follows three values through a story (a minute)
"""

import argparse
import ast
import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

from tests.test_rooms import DOORS, ROOMS, cycles, imports, parsed

BEFORE = Path(__file__).with_name("house-before.json")
SHOWN = {".html", ".css", ".js", ".svg", ".xml", ".atom", ".md"}  # what is served, beside Python
# The most that is wanted of each figure.
GOALS = {
    "lines of product": 82_000,
    "lines of tests": 56_000,
    "modules": 330,
    "modules below 100 lines": 60,
    "modules with exactly one importer": 60,
    "functions": 4_600,
    "private functions with a single use, %": 45,
    "families of classes with the same fields": 45,
    "lines beyond the largest of each family": 900,
    "folders of weekly": 1,
    "folders of notices": 1,
    "folders of exports": 1,
    "folders of studies": 1,
    "folders of replay": 1,
    "folders of isolation": 1,
    "folders of site": 1,
    "folders of news": 1,
    "imports into features from the core": 0,
    "loops of folders": 0,
    "folders in the largest loop": 0,
    "files that name `acknowledge`": 5,
    "files that a commit passes": 16,
    "files that a sample passes": 12,
    "files that a threshold passes": math.inf,
    "files of a commit, median": 3,
    "files of a commit, nine tenths": 10,
    "words of docs": 45_000,
}
# How a part of a path begins that belongs to a feature.
FEATURES = {
    "weekly": ("weekly",),
    "notices": ("notice", "subscription", "channels"),
    "exports": ("export",),
    "studies": ("study", "studies"),
    "replay": ("replay",),
    "isolation": ("isolat",),
    "site": ("site",),
    "news": ("news", "feed", "badge"),
}
# These list what there is, features too: registration is no use of one.
REGISTERS = {*DOORS, "kernelwatch.client.clients"}
SMALL_LINES, FEWEST_FIELDS, SAME_FIELDS, COMMITS = 100, 3, 0.6, 200
ACKNOWLEDGE = re.compile(r"acknowledge(?!d|ment)", re.IGNORECASE)  # the action; its state has another name


class FoundNothing(Exception):
    """A ruler was held against something that is not there, so that its figure would say nothing."""


@dataclass(frozen=True)
class Tree:
    """The files of a tree.  The versions of the database are no part of the product's structure."""

    root: Path

    @cached_property
    def files(self) -> list[Path]:
        """Everything of the product that somebody wrote."""
        every = [path for room in sorted(ROOMS) for path in sorted((self.root / room).rglob("*"))]
        return [path for path in every if path.suffix in {".py", *SHOWN}]

    @cached_property
    def names(self) -> dict[str, Path]:
        """Every module by its dotted name."""
        found = {}
        for path in self.files:
            if path.suffix == ".py" and path.parent.name != "versions":
                parts = path.relative_to(self.root).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    @cached_property
    def modules(self) -> dict[str, Path]:
        return {name: path for name, path in self.names.items() if path.name != "__init__.py"}

    @cached_property
    def nodes(self) -> dict[str, list[ast.AST]]:
        return {name: list(ast.walk(parsed(path))) for name, path in self.names.items()}

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        """The modules that each of them imports, inside functions and for types too."""
        graph: dict[str, set[str]] = {name: set() for name in self.names}
        for name, path in self.names.items():
            for _, imported in imports(name, path):
                module = imported if imported in self.names else imported.rpartition(".")[0]
                if module in self.names and module != name:
                    graph[name].add(module)
        return graph

    def feature(self, path: Path) -> str | None:
        """The feature that a part of a path names."""
        parts = re.split(r"[/._]", str(path.relative_to(self.root)))
        return next((name for name, begins in FEATURES.items() if any(part.startswith(begins) for part in parts)), None)


def figures(root: Path) -> dict[str, int]:
    """The static figures of a tree, by the names of GOALS."""
    tree = Tree(root)
    importers = Counter(other for others in tree.graph.values() for other in others)
    found = {
        "lines of product": _lines(tree.files),
        "lines of tests": _lines(sorted((root / "tests").rglob("*.py"))),
        "modules": len(tree.modules),
        "modules below 100 lines": sum(_lines([path]) < SMALL_LINES for path in tree.modules.values()),
        "modules with exactly one importer": sum(importers[name] == 1 for name in tree.modules),
        **_functions(tree),
        **_families(tree),
        **_features(tree),
        **_loops(tree),
        "files that name `acknowledge`": sum(bool(ACKNOWLEDGE.search(path.read_text())) for path in tree.files),
        **_commits(root),
        "words of docs": sum(len(page.read_text().split()) for page in (root / "docs").glob("*.md")),
    }
    may_be_none = {"imports into features from the core", "loops of folders", "folders in the largest loop"}
    return _measured(found, may_be_none)


def _measured(found: dict[str, int], may_be_none: set[str] = frozenset()) -> dict[str, int]:
    """Raises FoundNothing where a ruler counted nothing of what every tree has."""
    if nothing := [what for what, count in found.items() if not count and what not in may_be_none]:
        raise FoundNothing(", ".join(nothing))
    return found


def _lines(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def _functions(tree: Tree) -> dict[str, int]:
    """How many there are, and how many of the private ones their module names once beside the definition."""
    total = private = once = 0
    for nodes in tree.nodes.values():
        used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
        used.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
        names = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        hidden = [name for name in names if name.startswith("_") and not name.startswith("__")]
        total += len(names)
        private += len(hidden)
        once += sum(used[name] == 1 for name in hidden)
    return {"functions": total, "private functions with a single use, %": round(100 * once / max(private, 1))}


def _families(tree: Tree) -> dict[str, int]:
    """Classes of which each has 60 % of its fields and another's in common with another of the family."""
    classes = [node for name in tree.modules for node in tree.nodes[name] if isinstance(node, ast.ClassDef)]
    fields = {node: names for node in classes if len(names := set(_fields(node))) >= FEWEST_FIELDS}
    alike: dict[ast.ClassDef, set[ast.ClassDef]] = {node: {node} for node in fields}
    for one, other in combinations(fields, 2):
        shared = fields[one] & fields[other]
        if len(shared) >= SAME_FIELDS * len(fields[one] | fields[other]) and alike[one] is not alike[other]:
            alike[one] |= alike[other]
            alike.update(dict.fromkeys(alike[other], alike[one]))
    families = {id(family): family for family in alike.values() if len(family) > 1}.values()
    lengths = [[(node.end_lineno or 0) - node.lineno + 1 for node in family] for family in families]
    return {
        "families of classes with the same fields": len(lengths),
        "lines beyond the largest of each family": sum(sum(family) - max(family) for family in lengths),
    }


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id


def _features(tree: Tree) -> dict[str, int]:
    """The folders of each feature, without those inside of another of them, and who else imports from it."""
    folders: dict[str, set[Path]] = {name: set() for name in FEATURES}
    for path in tree.files:
        if path.parent.name != "versions" and (named := tree.feature(path)):
            folders[named].add(path.parent)
    tops = {
        f"folders of {name}": sum(not found & set(folder.parents) for folder in found)
        for name, found in folders.items()
    }
    core = [name for name, path in tree.modules.items() if name not in REGISTERS and not tree.feature(path)]
    into = [other for name in core for other in tree.graph[name] if tree.feature(tree.names[other])]
    return tops | {"imports into features from the core": len(into)}


def _loops(tree: Tree) -> dict[str, int]:
    """Folders that import each other.  Doors may know every room, so what they import ties no folders together."""
    folders: dict[str, set[str]] = {str(path.parent): set() for path in tree.names.values()}
    for name, others in tree.graph.items():
        if name not in DOORS:
            folders[str(tree.names[name].parent)].update(str(tree.names[other].parent) for other in others)
    if not any(others - {folder} for folder, others in folders.items()):
        raise FoundNothing("loops of folders")
    loops = cycles(folders)
    return {"loops of folders": len(loops), "folders in the largest loop": max(map(len, loops), default=0)}


def _commits(root: Path) -> dict[str, int]:
    """Files of the product and its tests that a commit touches, of those among the last that touch any."""
    command = ["git", "log", "--no-merges", f"-{COMMITS}", "--name-only", "--format=%x00"]
    log = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    touched = [
        sum(line.split("/")[0] in {*ROOMS, "tests"} for line in commit.splitlines()) for commit in log.split("\0")
    ]
    counts = sorted(filter(None, touched))
    if not counts:
        raise FoundNothing("files of a commit")
    return {
        "files of a commit, median": math.ceil(statistics.median(counts)),
        "files of a commit, nine tenths": counts[len(counts) * 9 // 10],
    }


def walked(root: Path) -> dict[str, int]:
    """In how many files three values are seen while a story is told.

    Raises CalledProcessError where the story failed, and FoundNothing.
    """
    walks = Path(__file__).with_name("walks.py")
    # Both the tree's own tests and its own product: `-P` leaves the folder of the script out.
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-P", str(walks), str(root)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    *shown, last = done.stdout.splitlines()
    print(*shown, sep="\n", file=sys.stderr)
    done.check_returncode()
    return _measured(json.loads(last))


def table(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """A line for each figure; what was not measured has a dash."""

    def cell(value: float | None) -> str:
        return "–" if value in (None, math.inf) else f"{value:,}"

    rows = [("", "before", "now", "goal"), ("---", "---:", "---:", "---:")]
    rows += [(what, cell(before.get(what)), cell(now.get(what)), cell(goal)) for what, goal in GOALS.items()]
    return "\n".join(f"| {what:<42} | {old:>7} | {new:>7} | {goal:>7} |" for what, old, new, goal in rows)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("tree", nargs="?", type=Path, default=Path())
    given.add_argument("--walks", action="store_true", help="follow three values through a story of the tree")
    options = given.parse_args()
    root = options.tree.resolve()
    try:
        now = figures(root) | (walked(root) if options.walks else {})
    except FoundNothing as nothing:
        sys.exit(f"These rulers found nothing: {nothing}.")
    print(table(json.loads(BEFORE.read_text()), now))


if __name__ == "__main__":
    main()
