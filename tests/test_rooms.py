"""The arrows between the rooms: `kernels <- service <- workers` and `service <- dashboards`; no room knows a door."""

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {"kernels", "service", "workers", "dashboards"}
DOORS = {"service.app", "service.cli", "workers.app"}
WORDS = {  # without torch
    "kernels.cases",
    "kernels.suites",
    "kernels.blocks",
    "kernels.errors",
    "kernels.arena.session",
    "kernels.arena.channel",
    "kernels.arena.protocol",
    "kernels.arena.repeatability",
    "kernels.studies.trials",
}

# What a module may import of ours: whole rooms, or single modules.
MAY = {
    "kernels": set(),
    "service": {"service", *WORDS},
    "workers": {"workers", "service", *WORDS},
    "dashboards": {"dashboards", "service", *WORDS},
}


def modules(room: str) -> dict[str, Path]:
    """Every module of a room by its dotted name."""
    names = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, inside functions too; relative names made whole."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
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
    assert {name for name, _ in ALL} >= DOORS | WORDS


def test_arrows_point_one_way() -> None:
    wrong = []
    for name, path in ALL:
        room = name.partition(".")[0]
        allowed = ROOMS if name in DOORS else {*MAY[room], room}
        # Who starts contenders may ask the package itself where it lies: `import kernels` alone brings nothing.
        harmless = {"kernels"} if room == "workers" else set()
        for line, imported in imports(name, path):
            if imported.partition(".")[0] in ROOMS and imported not in harmless and not within(imported, allowed):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} may not import {imported}")
    assert wrong == []


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
        for node in ast.walk(ast.parse(path.read_text()))
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
        (sorted(WORDS), ["torch", "triton", "numpy", "service", "workers", "dashboards"]),
        (
            sorted(name for name in modules("service").keys() - DOORS if ".migrations." not in name),
            ["torch", "triton", "celery", "workers", "dashboards"],
        ),
        (sorted(modules("dashboards")), ["torch", "triton", "celery", "workers"]),
        (sorted(modules("workers").keys() - DOORS), ["torch", "triton", "dashboards"]),
    ],
    ids=["words", "service", "dashboards", "workers"],
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
