"""The arms of an isolation: both stacks, a second copy of the old one, and their hybrids, made of distributions."""

import csv
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path, PurePosixPath

from kernels.cases import Role
from service.domain.isolation.components import Component, Installed, components
from service.domain.isolation.evaluation import CONTROL, FROM, TO, backward, forward
from service.errors import BadInput
from workers.machine import environments
from workers.machine.environments import BaseStack

_SEARCH = "import json,platform,sys; print(json.dumps([platform.python_version(), sys.base_prefix, sys.path]))"
_REQUIRED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Distribution:
    """`root` is the folder that its files are relative to, `files` those in it, with their hashes where known."""

    name: str  # normalised
    version: str
    root: Path
    files: Mapping[str, str] = field(hash=False)
    requires: tuple[str, ...] = ()
    obstacle: str | None = None

    @cached_property
    def content(self) -> str:
        """A digest of its files, without what an installer adds."""
        lines = sorted(f"{path},{digest}" for path, digest in self.files.items() if digest and not _of_installer(path))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def installed(self) -> Installed:
        return Installed(self.name, self.version, self.content, self.requires, self.obstacle)


@dataclass(frozen=True)
class StackContents:
    """A stack, and what its interpreter can import.  `search` is its `sys.path`."""

    stack: BaseStack
    python: str  # version
    base_prefix: str
    search: tuple[Path, ...]
    distributions: Mapping[str, Distribution] = field(hash=False)

    @property
    def installed(self) -> dict[str, Installed]:
        return {name: one.installed for name, one in self.distributions.items()}


def contents(stack: BaseStack) -> StackContents:
    """Raises BadInput if its interpreter does not run."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, stack.paths)), "PYTHONNOUSERSITE": "1"}
    command = [str(stack.python), "-P", "-c", _SEARCH]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        python, base_prefix, folders = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as failure:
        raise BadInput(f"The interpreter of stack {stack.name} does not run: {failure}.") from None
    search = tuple(path for folder in folders if folder and (path := Path(folder)).is_dir())
    return StackContents(stack, python, base_prefix, search, _found(search))


def _found(search: Iterable[Path]) -> dict[str, Distribution]:
    """The first of each name is the one that is imported."""
    found: dict[str, Distribution] = {}
    for one in metadata.distributions(path=[str(folder) for folder in search]):
        name = one.metadata["Name"] if one.metadata else None
        if name and (normal := normalised(name)) not in found:
            found[normal] = _read(normal, one)
    return found


def _read(name: str, one: metadata.Distribution) -> Distribution:
    record = one.read_text("RECORD")
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    obstacle = None
    if origin.get("dir_info", {}).get("editable"):
        obstacle = f"{name} is installed in editable mode, so its files are elsewhere"
    elif record is None:
        obstacle = f"{name} has no list of its files (RECORD)"
    files = dict(_files(record or ""))
    requires = tuple(
        normalised(match[0]) for required in one.requires or () if (match := _REQUIRED.match(required.strip()))
    )
    return Distribution(name, one.version, Path(str(one.locate_file(""))), files, requires, obstacle)


def _files(record: str) -> Iterator[tuple[str, str]]:
    """The files in the root with their hashes; scripts are outside of it, and nothing imports them."""
    for path, *rest in filter(None, csv.reader(record.splitlines())):
        parts = PurePosixPath(path).parts
        if ".." not in parts and not path.startswith("/"):
            yield path, rest[0] if rest else ""


def _of_installer(path: str) -> bool:
    return path.endswith(".pyc") or PurePosixPath(path).parts[0].endswith(".dist-info")


def normalised(name: str) -> str:
    """The name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


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


@dataclass(frozen=True)
class StackArm:
    """`base` is the arm whose stack it has but for the `component`, which is that of `donor`; None of a whole stack."""

    name: str
    stack: BaseStack
    role: Role
    component: Component | None = None
    base: str = ""
    donor: str = ""


@dataclass
class StackArms:
    """`missing`: the hybrids that cannot be made, with reasons."""

    components: tuple[Component, ...]
    arms: list[StackArm] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def arms_of(before: StackContents, after: StackContents, wanted: Sequence[str]) -> StackArms:
    """The arms to swap the components that differ, or those of them that are `wanted`.

    Raises BadInput if the stacks cannot be mixed, or do not differ.
    """
    _check_python(before, after)
    found = _chosen(components(before.installed, after.installed), wanted, before, after)
    made = StackArms(found)
    # Facts and repeatability of both stacks are gathered in full, as those of a parent are.
    made.arms = [
        StackArm(FROM, before.stack, Role.PARENT),
        StackArm(TO, after.stack, Role.PARENT),
        StackArm(CONTROL, before.stack, Role.CONTROL),
    ]
    for component in found:
        if component.obstacle is not None:
            made.missing |= dict.fromkeys((forward(component.name), backward(component.name)), component.obstacle)
            continue
        made.arms.append(_hybrid(forward(component.name), FROM, TO, component, before, after))
        made.arms.append(_hybrid(backward(component.name), TO, FROM, component, after, before))
    return made


def _hybrid(
    name: str, base: str, donor: str, component: Component, of_base: StackContents, of_donor: StackContents
) -> StackArm:
    return StackArm(name, hybrid(of_base, component, of_donor), Role.RIVAL, component, base, donor)


def _check_python(before: StackContents, after: StackContents) -> None:
    old, new = ((one.stack.name, one.stack.version) for one in (before, after))
    if old[1] != new[1]:
        first, second = (f"{name} has Python {major}.{minor}" for name, (major, minor) in (old, new))
        raise BadInput(
            f"{first} and {second}: compiled modules of one do not load in the other, so no component can be swapped. "
            "Create one of the stacks again with the Python of the other."
        )


def _chosen(
    found: tuple[Component, ...], wanted: Sequence[str], before: StackContents, after: StackContents
) -> tuple[Component, ...]:
    names = [one.name for one in found]
    if not found:
        raise BadInput(
            f"Stacks {before.stack.name} and {after.stack.name} have the same distributions: there is nothing to swap."
        )
    if unknown := next((name for name in wanted if name not in names), None):
        raise BadInput(f"No component {unknown!r} differs between the stacks; those that do: {', '.join(names)}.")
    return tuple(one for one in found if not wanted or one.name in wanted)


def notes(before: StackContents, after: StackContents, made: StackArms) -> Iterator[str]:
    """What differs between the stacks and is not swapped."""
    if (before.python, before.base_prefix) != (after.python, after.base_prefix):
        yield (
            f"The interpreters differ too: Python {before.python} and {after.python}. An interpreter is not swapped; "
            "what it does is part of what is left."
        )
    for component in made.components:
        added = [one.name for one in component.changes if one.before is None]
        removed = [one.name for one in component.changes if one.after is None]
        if component.obstacle is None and (added or removed):
            names = ", ".join([*added, *removed][:5])
            yield f"Only one of the stacks has {names} ({component.name}); a swap cannot hide them in the other."
