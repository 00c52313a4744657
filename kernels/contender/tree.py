"""The tree of the revision under test, and the packages of the base stack that it replaces.

A release of torch, Triton, Quack or Liger is such a tree: it has to be imported instead of the one in the base stack.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Self

VARIABLE = "KERNELWATCH_TREE"  # folders of the target, which join sys.path only when the trial begins
DISTRIBUTIONS = {
    "torch": "torch",
    "triton": "triton",
    "quack": "quack-kernels",
    "cutlass_dsl": "nvidia-cutlass-dsl",
    "liger": "liger-kernel",
}
_MODULES = {"torch": "torch", "triton": "triton", "quack": "quack", "liger": "liger_kernel"}


@dataclass(frozen=True)
class Tree:
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, variable: str) -> Self:
        """Of a path list with colons."""
        return cls(tuple(filter(None, variable.split(":"))))

    @cached_property
    def replaces(self) -> frozenset[str]:
        """The packages of the stack, by their names there, whose modules it has."""
        return frozenset(name for name, module in _MODULES.items() if self._has(module))

    @cached_property
    def versions(self) -> Mapping[str, str]:
        """The versions of the distributions that it has, by their names in the stack."""
        found: dict[str, str] = {}
        for name, distribution in DISTRIBUTIONS.items():
            for one in metadata.distributions(name=distribution, path=list(self.folders)):
                found.setdefault(name, one.version)
        return found

    def join_path(self) -> None:
        """Allow imports from it.  What was imported before, during other measurements, does not belong to it."""
        if self.folders:
            sys.path[:0] = self.folders
            inherited = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = ":".join(filter(None, (*self.folders, inherited)))

    def misplaced(self) -> str | None:
        """Why a package that it replaces is not imported from it; None if all are."""
        for name in sorted(self.replaces):
            place = _place_of(_MODULES[name])
            if place is not None and not any(Path(place).is_relative_to(folder) for folder in self.folders):
                return (
                    f"{_MODULES[name]} is imported from {place}, although the revision has its own: nothing in the "
                    "base environment may import it when Python starts (look for .pth files and sitecustomize there)"
                )
        return None

    def _has(self, module: str) -> bool:
        files = (f"{module}/__init__.py", f"{module}.py")
        return any(os.path.exists(f"{folder}/{file}") for folder in self.folders for file in files)


def _place_of(module: str) -> str | None:
    """The file from which a module is or would be imported."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    spec = find_spec(module)
    return spec.origin if spec else None
