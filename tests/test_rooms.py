"""Arrows between rooms and folders, the size of folders, and names that stand for one thing (docs/architecture.md)."""

import ast
import importlib.metadata
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.every_run

ROOT = Path(__file__).parent.parent
ROOMS = {"kernelwatch", "kernels", "service", "workers", "dashboards"}
# Where processes start: they may know every room, and no room knows them.
DOORS = {
    "kernelwatch.command",
    "kernels.norms.tuning",
    "service.app",
    "service.cli",
    "service.commands.connection.local",
    "service.commands.measure.compare",
    "service.commands.measure.init",
    "service.commands.measure.study",
    "service.commands.machine.serve",
    "service.commands.machine.worker",
    "service.commands.transfer.exporting",
    "workers.app",
}
TORCH_FREE = {
    "kernels.cases",
    "kernels.functions",
    "kernels.suites",
    "kernels.blocks",
    "kernels.errors",
    "kernels.arena.session",
    "kernels.arena.channel",
    "kernels.arena.protocol",
    "kernels.arena.repeatability",
    "kernels.studies",
}
MAX_MODULES = 15  # in a folder, without its __init__

_PLAIN = {"service.errors", "service.settings", "service.log"}
_CASES = {
    "kernels.cases",
    "kernels.functions",
    "kernels.suites",
    "kernels.blocks",
    "kernels.arena.repeatability",
    "kernels.errors",
}
_SOURCES = {"service.errors", "service.settings", "service.domain.states"}
_DATA = {"service.db", "service.domain", "service.errors", *_CASES, "kernels.studies"}
_REPORTS = {"service.reports", "kernelwatch.documents", *_DATA}
_LEDGER = {"service.ledger", "service.sources", "service.forge", "service.channels", "service.settings", *_REPORTS}
_DOORWAYS = {"kernelwatch.client", "kernels.arena.protocol"}  # how commands reach servers and contenders
# What the modules of a folder may import of ours: folders or modules.  The longest prefix of a module's name counts.
MAY: Mapping[str, set[str]] = {
    "kernelwatch": {"kernelwatch"},
    "kernelwatch.client": {"kernelwatch.client", "kernelwatch.documents"},
    "kernelwatch.documents": {"kernelwatch.documents", "service.domain.states"},
    "kernelwatch.norms": {"kernels.norms", "kernelwatch.extras"},
    "kernels": {"kernels"},
    "service.errors": set(),
    "service.settings": {"service.errors"},
    "service.log": {"service.settings"},
    "service.version": set(),
    "service.domain": {"service.domain", "service.errors", *_CASES, "kernels.studies"},
    "service.db": {"service.db", "service.domain", *_PLAIN, *_CASES},
    "service.sources": {"service.sources", *_SOURCES},
    "service.forge": {"service.forge", *_SOURCES},
    "service.channels": {"service.channels", "service.domain", "service.errors", "service.settings"},
    "service.reports": _REPORTS,
    "service.ledger": _LEDGER,
    "service.ops": {"service.ops", "service.log", *_LEDGER},
    "service.api": {"service.api", "service.log", *_LEDGER},
    "service.commands": {"service.commands", "service.ops", "service.log", *_DOORWAYS, *_LEDGER},
    "workers": {"workers", "service.ops", "service.log", *_LEDGER, *TORCH_FREE},
    "dashboards": {"dashboards", "service.api", "service.log", *_LEDGER},
}


def modules(room: str) -> dict[str, Path]:
    """Every module of a room by its dotted name."""
    names = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


@cache
def imports(name: str, path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of everything that a module imports, inside functions too; relative names made whole."""
    return tuple(_imports(name, path))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join(filter(None, [*parts[: len(parts) - node.level + 1], base]))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def within(name: str, allowed: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in allowed)


ALL = [(name, path) for room in sorted(ROOMS) for name, path in modules(room).items()]


def test_there_are_rooms() -> None:
    assert {name.partition(".")[0] for name, _ in ALL} == ROOMS
    assert {name for name, _ in ALL} >= DOORS | TORCH_FREE


def test_arrows_point_one_way() -> None:
    wrong = []
    for name, path in ALL:
        if name in DOORS or name in ("service", "service.db.migrations.env"):
            continue
        folder = max((prefix for prefix in MAY if within(name, {prefix})), key=len)
        for line, imported in imports(name, path):
            if imported.partition(".")[0] in ROOMS and not within(imported, MAY[folder]):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {folder} may not import {imported}")
    assert wrong == []


def test_nothing_imports_a_benchmark() -> None:
    """Benchmarks use the product and what its tests share, so that both stand without them."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {imported}"
        for name, path in [*ALL, *modules("tests").items()]
        for line, imported in imports(name, path)
        if within(imported, {"benchmarks"})
    ]
    assert wrong == []


def test_the_domain_is_pure() -> None:
    """Values in, values out: no table, session, clock, client or process."""
    unwanted = {"sqlalchemy", "alembic", "httpx", "fastapi", "celery", "time", "subprocess", "os", "structlog"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {imported}"
        for name, path in ALL
        if within(name, {"service.domain"})
        for line, imported in imports(name, path)
        if imported.partition(".")[0] in unwanted
    ]
    assert wrong == []


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert cycles(graph) == [["b", "c"]]


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions count; so do those for types alone."""
    assert cycles(_graph()) == []


def test_folders_import_each_other_in_no_loop() -> None:
    """Doors may know every room, so what they import ties no folders together."""
    folders = {name: ".".join(path.parent.relative_to(ROOT).parts) for name, path in ALL}
    graph: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for name, others in _graph().items():
        graph[folders[name]].update(folders[other] for other in others if name not in DOORS)
    assert list(cycles(graph)) == []


def _graph() -> dict[str, set[str]]:
    """For each module those that it imports."""
    names = {name for name, _ in ALL}
    return {
        name: {one for _, imported in imports(name, path) if (one := _module(imported, names)) and one != name}
        for name, path in ALL
    }


def _module(imported: str, names: set[str]) -> str | None:
    """The module that an imported name is, or is in."""
    while imported not in names and "." in imported:
        imported = imported.rpartition(".")[0]
    return imported if imported in names else None


def test_no_folder_is_crowded() -> None:
    paths = [
        path for path in ROOT.glob("*/**/*.py") if path.relative_to(ROOT).parts[0] in {*ROOMS, "tests", "benchmarks"}
    ]
    counts = Counter(path.parent for path in paths if path.name != "__init__.py" and path.parent.name != "versions")
    assert {str(folder): count for folder, count in counts.items() if count > MAX_MODULES} == {}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_class_name_stands_for_one_thing_in_a_room(room: str) -> None:
    places = defaultdict(list)
    for path in modules(room).values():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_room_knows_a_door() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {imported} is a door"
        for name, path in ALL
        if name not in DOORS
        for line, imported in imports(name, path)
        if within(imported, DOORS)
    ]
    assert wrong == []


def test_kernels_imports_its_siblings_relatively() -> None:
    """A contender loads the package under another name, because a target may have its own `kernels`."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for _, path in modules("kernels").items()
        for node in ast.walk(parsed(path))
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "kernels")
        or (isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "kernels" for alias in node.names))
    ]
    assert wrong == []


def test_only_kernels_knows_torch() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {imported}"
        for name, path in ALL
        if not name.startswith("kernels")
        for line, imported in imports(name, path)
        if imported.partition(".")[0] in ("torch", "triton")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("loaded", "unwanted"),
    [
        (
            sorted(name for name in modules("kernelwatch") if within(name, {"kernelwatch.client"})),
            [
                *("kernels", "workers", "dashboards", "sqlalchemy", "celery", "fastapi", "numpy", "torch"),
                *sorted(modules("service").keys() - {"service", "service.domain", "service.domain.states"}),
            ],
        ),
        (
            sorted(name for name, _ in ALL if within(name, TORCH_FREE)),
            ["torch", "triton", "numpy", "service", "workers", "dashboards"],
        ),
        (
            sorted(name for name in modules("service").keys() - DOORS if ".migrations." not in name),
            ["torch", "triton", "celery", "workers", "dashboards"],
        ),
        (sorted(modules("dashboards")), ["torch", "triton", "celery", "workers"]),
        (["service.commands.connection.local"], ["dashboards", "ruptures", "scipy.stats"]),
        (sorted(modules("workers").keys() - DOORS), ["torch", "triton", "dashboards"]),
        (["service.domain.metrics"], ["numpy", "scipy", "pydantic", "sqlalchemy"]),  # nearly all import it
        (["service.commands.measure.waiting"], ["scipy", "sqlalchemy"]),
        (["service.commands.views.machine"], ["alembic", "fastapi", "scipy"]),  # of `status`, against a server
        (["workers.loop"], ["alembic", "authlib"]),
        (["kernels.facts.offline"], ["torch"]),
    ],
    ids=[
        "client",
        "torch-free",
        "service",
        "dashboards",
        "a command",
        "workers",
        "metrics",
        "a command that waits",
        "a command against a server",
        "a worker",
        "offline facts",
    ],
)
def test_what_importing_a_room_loads(loaded: list[str], unwanted: list[str]) -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {loaded!r}: importlib.import_module(name)\n"
        f"sys.exit(', '.join(name for name in {unwanted!r} if name in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"importing {loaded} loaded or met: {done.stderr}"


def test_the_name_kernels_is_ours_alone() -> None:
    """There is a public distribution of that name; with it installed, what `import kernels` means would be chance."""
    assert set(importlib.metadata.packages_distributions().get("kernels", [])) <= {"kernelwatch"}
    import kernels

    assert Path(str(kernels.__file__)).parent == ROOT / "kernels"
