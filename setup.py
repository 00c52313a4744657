"""Build the wheel, in which everything is below the one name `kernelwatch`.

In a checkout the packages import each other as `kernels`, `service`, `workers` and `dashboards`.  Other distributions
have packages of such names, so the wheel has kernelwatch.kernels and so on, and the import statements of the copies are
rewritten.  Nothing else is: modules that are started or loaded by name derive it from their own `__name__`.
"""

import ast
from pathlib import Path
from typing import NoReturn

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

HOME = "kernelwatch"
ROOMS = ("kernels", "service", "workers", "dashboards")
FOLDERS = ("docs", "examples")  # the pages of the documentation, and what the demo builds a repository from
DATA = {
    HOME: ["py.typed"],
    f"{HOME}.service": ["db/migrations/*", "db/migrations/versions/*", "reports/templates/*", "samples/*"],
    f"{HOME}.dashboards": ["templates/*", "static/*", "static/vendor/*"],
    f"{HOME}.kernels.norms.calls": ["*.cpp"],
    f"{HOME}.docs": ["*.md", "pictures/*"],
    f"{HOME}.examples": ["norms/**", "own/*"],
}


def rewritten(source: str) -> str:
    """The module with its absolute imports of our packages below `kernelwatch`."""
    lines = source.encode().split(b"\n")  # positions of ast are in bytes
    for line, column, text in sorted(_insertions(source), reverse=True):
        lines[line - 1] = lines[line - 1][:column] + text.encode() + lines[line - 1][column:]
    return b"\n".join(lines).decode()


def _insertions(source: str) -> list[tuple[int, int, str]]:
    """Line, column and text of what to insert."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if _is_ours(module):
                found.append((node.lineno, node.col_offset + len("from "), f"{HOME}."))
            case ast.Import(names=names):
                ours = [alias for alias in names if _is_ours(alias.name)]
                found += [(alias.lineno, alias.col_offset, f"{HOME}.") for alias in ours]
                # `import service.app` binds `service`.
                roots = sorted({_root(alias.name) for alias in ours if alias.asname is None})
                found += [(node.end_lineno, node.end_col_offset, f"; from {HOME} import {root}") for root in roots]
    return found


def _root(module: str) -> str:
    return module.partition(".")[0]


def _is_ours(module: str) -> bool:
    return _root(module) in ROOMS


class BuildRewritten(build_py):
    """Copies the packages, and rewrites the copies."""

    def run(self) -> None:
        super().run()
        home = Path(self.build_lib) / HOME
        for path in map(Path, self.get_outputs(include_bytecode=False)):
            if path.suffix == ".py" and path.relative_to(home).parts[0] not in FOLDERS:
                path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


class RefuseEditable(editable_wheel):
    """An editable installation would import the checkout, where nothing is rewritten."""

    def run(self) -> NoReturn:
        raise SystemExit("kernelwatch cannot be installed as editable: `make run` uses a checkout in place.")


if __name__ == "__main__":
    rooms = [package for room in ROOMS for package in find_packages(include=[room, f"{room}.*"])]
    setup(
        packages=[
            *find_packages(include=[HOME, f"{HOME}.*"]),
            *(f"{HOME}.{one}" for one in rooms),
            *(f"{HOME}.{folder}" for folder in FOLDERS),
        ],
        package_dir={f"{HOME}.{one}": one for one in (*ROOMS, *FOLDERS)},
        package_data=DATA,
        cmdclass={"build_py": BuildRewritten, "editable_wheel": RefuseEditable},
    )
