"""The distributions of a stack, with their files, as its interpreter finds them."""

import csv
import hashlib
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path, PurePosixPath

from service.domain.isolation.components import Installed
from service.errors import BadInput
from workers.environments import BaseStack

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
