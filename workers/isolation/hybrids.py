"""Hybrids: a stack with one component of another stack, by a folder that comes first in its search path."""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.domain.isolation.components import Component
from service.errors import BadInput
from workers import environments
from workers.environments import BaseStack
from workers.isolation.distributions import Distribution, StackContents, contents

FORMAT = "overlay 1"  # part of every key: raise it if the same files make another folder


def hybrid(base: StackContents, component: Component, donor: StackContents) -> BaseStack:
    """The stack `base` with this component of `donor`.

    It has the same interpreter and folders, and before these an overlay with the files of the component alone.  What
    `base` has of the component is still in its folders, but is found second.

    Raises BadInput if the interpreter finds something else than the component.
    """
    swapped = [one for name in component.members if (one := donor.distributions.get(name))]
    folders = _overlay(swapped, donor.search)
    made = BaseStack(base.stack.name, base.stack.python, (*folders, *base.stack.paths))
    found = contents(made).distributions
    for one in swapped:
        if (seen := found.get(one.name)) is None or seen.root != folders[0] or seen.version != one.version:
            raise BadInput(f"{one.name} {one.version} is not what Python finds in the overlay of {component.name}.")
    return made


def _overlay(distributions: Sequence[Distribution], search: Sequence[Path]) -> tuple[Path, ...]:
    """The overlay, and its folders that are in the search path of the stack that they come from.

    A distribution may need a folder of its own in the search path, which it names in a .pth file; Python does not read
    those in PYTHONPATH.
    """
    tree = environments.cached(_key(distributions), lambda folder: _copy(distributions, folder))
    roots = dict.fromkeys(one.root for one in distributions)
    inner = (tree / folder.relative_to(root) for root in roots for folder in search if _in(folder, root))
    return (tree, *dict.fromkeys(folder for folder in inner if folder.is_dir()))


def _key(distributions: Sequence[Distribution]) -> str:
    """Of its content: the versions, places and hashes of all files."""
    lines = [FORMAT]
    for one in distributions:
        lines += [f"{one.name} {one.version} {one.root}", *(f"{path},{digest}" for path, digest in one.files.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _copy(distributions: Sequence[Distribution], folder: Path) -> None:
    """Copies and no links: a link would let a cleaned-up cache change the modes of the stack's own files."""
    for one in distributions:
        for path in dict.fromkeys(path for listed in one.files for path in _with_compiled(one.root, listed)):
            source, copy = one.root / path, folder / path
            if source.is_file() and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy)


def _with_compiled(root: Path, path: str) -> Iterator[str]:
    """A file, and the bytecode of a module: the overlay is read-only, so each process would compile it again."""
    yield path
    if path.endswith(".py"):
        module = root / path
        for compiled in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
            yield str(compiled.relative_to(root))


def _in(folder: Path, root: Path) -> bool:
    return folder != root and folder.is_relative_to(root)
