"""Environments of revisions: read-only stacks with torch, and one layer per revision, built once."""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
import venv
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from service.domain.policy.recipes import Recipe
from service.domain.text import without_middle
from service.errors import BadInput, BuildFailed, Conflict, NotFound
from service.ops import torch_install
from service.settings import MIB, settings, without_secrets
from service.sources.source import Exported, Source
from workers.sandbox import sandbox
from workers.sandbox.sandbox import Box, Limits
from workers.sandbox.usage import MemoryDisk, used
from workers.sandbox.walls import make_read_only, remove, tool

LOG = "build.log.gz"
LOG_LINES = 40  # of a build that failed; someone will read them in a pull request
_BUILDING, _REMOVING = ".building-", ".removing-"
_ADAPTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FULL = 64 * MIB  # a disk with less room left than this
COMPILING_S = 5.0  # per build; Liger-Kernel's modules take about a second
IN_USE_S = 3600.0  # an environment used so lately is not evicted
_WHERE = (
    "import json,sys,sysconfig; p=sysconfig.get_path; "
    "print(json.dumps([sys.prefix, sys.base_prefix, p('purelib'), p('platlib'), sys.version]))"
)
_LEFT_TOO_MUCH = (
    "The build leaves more than {:.0f} MiB beyond the revision, counted as on a disk, where each file and folder "
    "takes at least 4 KiB: remove at its end what is not needed, or raise KERNELWATCH_BUILD_DISK."
)
_COMPILERS = ("cc", "c++", "nvcc")  # of the machine, not of a stack: an upgrade changes what a build makes


@dataclass(frozen=True)
class BaseStack:
    """A base environment with torch.  It is only read."""

    name: str
    python: Path
    paths: tuple[Path, ...] = ()  # imported from as well

    @property
    def key(self) -> str:
        """Equal for stacks with the same interpreter and the same distributions in the same places."""
        at = _places(self.python)
        installed = sorted(one.name for folder in self.folders for one in folder.glob("*.dist-info"))
        return _digest(self.python, at.version, at.prefix, at.base, *self.paths, *installed)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of its packages."""
        at = _places(self.python)
        return tuple(dict.fromkeys((at.purelib, at.platlib, *self.paths)))

    @property
    def tree(self) -> tuple[Path, ...]:
        return ()

    @property
    def read_only(self) -> tuple[Path, ...]:
        """Paths that a process of this stack must be able to read."""
        at = _places(self.python)
        # The interpreter may also be a link or a script in another folder: then only itself, not the folder it is in.
        return tuple(dict.fromkeys((at.base, at.prefix, self.python, *self.commands, *self.paths)))

    @property
    def commands(self) -> tuple[Path, ...]:
        """A folder in which `python` is this interpreter, whatever its file is called."""
        shims = _stacks() / self.name / "shims"
        return (shims,) if shims.exists() else ()

    @property
    def version(self) -> tuple[int, int]:
        """The interpreter's version."""
        major, _, minor = _places(self.python).purelib.parent.name.removeprefix("python").partition(".")
        return int(major), int(minor)


@dataclass(frozen=True)
class Environment:
    """One revision's layer upon a stack."""

    key: str
    python: Path
    tree: tuple[Path, ...]  # what is the revision's to import from, and its adapters
    paths: tuple[Path, ...]  # the stack's
    read_only: tuple[Path, ...]
    hash_seed: int | None = None  # PYTHONHASHSEED of its build and of its processes; by default any

    @property
    def checkout(self) -> Path:
        """The folder of the revision's files."""
        return _environments() / self.key / "tree"


# -- stacks ---------------------------------------------------------------------------------------------------------


def stack(name: str) -> BaseStack:
    """The stack of this name.  Raises NotFound, which lists all."""
    folder = _stacks() / name
    if (described := folder / "stack.toml").exists():
        table = tomllib.loads(described.read_text())
        return BaseStack(name, Path(table["python"]), tuple(Path(path) for path in table["paths"]))
    if (python := folder / "bin" / "python").exists() and not (folder / "unfinished").exists():
        return BaseStack(name, python)
    known = ", ".join(one.name for one in list_stacks()) or "none"
    hint = f"Known: {known}. Create it with `kernelwatch stack create {name}` or `kernelwatch stack adopt {name} …`."
    raise NotFound("stack", name, hint)


def with_torch(name: str, python: Path | None) -> BaseStack:
    """The stack of this name on this machine, or a Python with torch: that which is named, or the active one.

    Raises BadInput if it has no torch.
    """
    if python is None:
        try:
            return stack(name)
        except NotFound:
            active = os.environ.get("VIRTUAL_ENV")
            python = Path(active, "bin", "python") if active else Path(sys.executable)
    probe = [str(python), "-c", "import torch"]
    try:
        if subprocess.run(probe, capture_output=True, timeout=120, check=False).returncode == 0:
            return BaseStack(name, python)
    except (OSError, subprocess.SubprocessError):
        pass
    raise BadInput(
        f"{python} has no torch, and there is no stack {name}: name a Python that has it with --python, "
        f"or run `kernelwatch stack create {name}`."
    )


def list_stacks() -> list[BaseStack]:
    if not _stacks().exists():
        return []
    folders = sorted(one for one in _stacks().iterdir() if not (one / "unfinished").exists())
    return [stack(one.name) for one in folders if (one / "stack.toml").exists() or (one / "bin/python").exists()]


def create_stack(name: str, requirements: Sequence[str], lock: Path | None = None) -> BaseStack:
    """Create a base environment with torch and more requirements, or with what a file of hashes lists.

    A failure leaves nothing behind.
    """
    final = _named(name)
    with _alone(name):
        # An environment knows its own place, so it is made where it will be, and marked as whole by its description.
        unfinished = final / "unfinished"
        if final.exists() and not unfinished.exists():
            raise BadInput(f"Stack {name} exists already; remove {final} to create it again.")
        shutil.rmtree(final, ignore_errors=True)
        final.mkdir(parents=True)
        unfinished.touch()
        try:
            venv.create(final, with_pip=True, symlinks=True)
            if lock:
                torch_install.install_locked(final / "bin" / "python", lock)
            else:
                torch_install.install(final / "bin" / "python", requirements)
        except RuntimeError as failure:
            shutil.rmtree(final, ignore_errors=True)
            raise BuildFailed(f"Stack {name} could not be created. {failure}") from None
        except BaseException:
            shutil.rmtree(final, ignore_errors=True)
            raise
        unfinished.unlink()
    return stack(name)


def adopt_stack(name: str, python: Path, paths: Sequence[Path]) -> BaseStack:
    """Use an existing interpreter, with more folders to import from."""
    for path in (python, *paths):
        if not path.exists():
            raise BadInput(f"{path} does not exist.")
    try:
        _places(python.absolute())
    except (OSError, subprocess.SubprocessError, ValueError) as failure:
        raise BadInput(f"{python} is not a Python interpreter that runs here: {failure}.") from None
    folder = _named(name)
    if (folder / "bin" / "python").exists():
        raise BadInput(f"Stack {name} exists already; remove {folder} to create it again.")
    folder.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(json.dumps(str(path.absolute())) for path in paths)
    shim = folder / "shims" / "python"
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(str(python.absolute()))} "$@"\n')
    shim.chmod(0o755)
    (folder / "stack.toml").write_text(f"python = {json.dumps(str(python.absolute()))}\npaths = [{listed}]\n")
    return stack(name)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Hold the lock for creating this stack.  Raises Conflict where another process holds it."""
    _stacks().mkdir(parents=True, exist_ok=True)
    with (_stacks() / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Another process is creating stack {name}; wait until it is done.") from None
        yield


def _stacks() -> Path:
    return settings().state / "stacks"


def _named(name: str) -> Path:
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        raise BadInput(f"{name!r} cannot be a stack's name: letters, digits, -, _ and .")
    return _stacks() / name


class _Interpreter(NamedTuple):
    """Its prefix, its base prefix, its folders of packages, and its full version, as it reports them."""

    prefix: Path
    base: Path
    purelib: Path
    platlib: Path
    version: str


@cache
def _places(python: Path) -> _Interpreter:
    command, bare = [str(python), "-I", "-c", _WHERE], {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=True, timeout=60)
    *places, version = json.loads(done.stdout)
    prefix, base, purelib, platlib = map(Path, places)
    return _Interpreter(prefix, base, purelib, platlib, version)


def _compilers(base: BaseStack) -> dict[str, str]:
    """The versions of the compilers that a build on this stack finds."""
    path = _for_building(base)["PATH"]
    found = {name: shutil.which(name, path=path) for name in _COMPILERS}
    return {name: _version_of(Path(file), Path(file).stat().st_mtime_ns) for name, file in found.items() if file}


@cache  # by the time of the file, because an upgrade does not restart the worker
def _version_of(compiler: Path, mtime_ns: int) -> str:  # noqa: ARG001
    command, bare = [str(compiler), "--version"], {"PATH": "/usr/bin:/bin"}
    try:
        return subprocess.run(command, env=bare, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):  # a build cannot use it either
        return ""


# -- environments of revisions ----------------------------------------------------------------------------------------


def build(
    source: Source,
    sha: str,
    recipe: Recipe,
    adapters: Mapping[str, str],
    *,
    kind: str,
    sandboxed: bool,
    keep_going: Callable[[], None] = lambda: None,
    apart: int | None = None,
    base: BaseStack | None = None,
) -> Environment:
    """The environment of a revision, from the cache or built now.  Raises BuildFailed with the log's last lines.

    It is built on `base`, by default the recipe's stack.  Builds of one source with different numbers `apart` share
    nothing: each has a path, caches and a hash seed of its own.  `keep_going` is called now and then while commands
    run; what it raises ends the build.
    """
    base = base or stack(recipe.base.stack)
    for name in adapters:
        if not _ADAPTER.fullmatch(name):
            raise BadInput(f"{name!r} cannot be an adapter: it must be the name of a file next to the recipe.")
    table = [kind, source.identity(sha), recipe.build.commands, recipe.build.import_paths, sorted(adapters.items())]
    compilers = [_compilers(base)] if recipe.build.commands else []
    key = _digest(base.key, json.dumps([*table, *compilers, *([] if apart is None else [apart])]))
    seed = None if apart is None else apart % 2**32
    final = _environments() / key
    if not (final / "whole").exists():
        _build(source, sha, recipe, adapters, base, final, sandboxed=sandboxed, keep_going=keep_going, seed=seed)
    os.utime(final / "whole")
    # Adapters first: a revision must not be able to put a file of its own in the place of one.
    tree = [Path(os.path.normpath(final / "tree" / path)) for path in recipe.build.import_paths]
    return Environment(key, base.python, (final / "adapters", *tree), base.paths, (*base.read_only, final), seed)


def _build(
    source: Source,
    sha: str,
    recipe: Recipe,
    adapters: Mapping[str, str],
    base: BaseStack,
    final: Path,
    *,
    sandboxed: bool,
    keep_going: Callable[[], None],
    seed: int | None,
) -> None:
    _environments().mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=_environments()))
    try:
        exported = source.export(sha, unfinished / "tree", base.version)
        (unfinished / "adapters").mkdir()
        for name, text in adapters.items():
            (unfinished / "adapters" / name).write_text(text)
        box = Box(
            unfinished / "tree",
            read_only=base.read_only,
            environment=_for_building(base) | hash_seed(seed),
            sandboxed=sandboxed,
            inside=final / "tree" if sandboxed else None,  # what is built may keep its own place in mind
        )
        with _disk_of_its_own(box, recipe.build.commands, keep_going) as disk:
            own = replace(box, disk=disk)
            said = _run_commands(recipe.build.commands, own, exported, keep_going)
            # In memory a folder takes no room, and 4 KiB on the machine's disk.
            if disk is not None and used([disk.content], disk.size) > disk.size:
                raise BuildFailed(_LEFT_TOO_MUCH.format(settings().build_disk / MIB), _last_lines(said), said)
            _compile_modules(base, recipe.build.import_paths, own, keep_going)
        (unfinished / LOG).write_bytes(gzip.compress(said.encode(errors="replace")))
        make_read_only(unfinished / "tree", keep_going)
        make_read_only(unfinished / "adapters")
        _put_in_place(unfinished, final)
    finally:
        remove(unfinished)


def cached(key: str, fill: Callable[[Path], None]) -> Path:
    """A read-only folder that is kept, and evicted, like an environment: `fill` writes into it if it is not there."""
    final = _environments() / key
    if not (final / "whole").exists():
        _environments().mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=_environments()))
        try:
            (unfinished / "tree").mkdir()
            fill(unfinished / "tree")
            make_read_only(unfinished / "tree")
            _put_in_place(unfinished, final)
        finally:
            remove(unfinished)
    os.utime(final / "whole")
    return final / "tree"


def _put_in_place(unfinished: Path, final: Path) -> None:
    (unfinished / "whole").touch()
    try:
        unfinished.rename(final)
    except OSError:
        if not (final / "whole").exists():  # what is there is broken; else another worker built the same meanwhile
            _discard(final)
            unfinished.rename(final)


@contextmanager
def _disk_of_its_own(box: Box, commands: Sequence[str], keep_going: Callable[[], None]) -> Iterator[MemoryDisk | None]:
    """Have the commands write to a file system of their own size in memory, and bring the result back to this disk.

    Where there is none, they write to this disk, and the watchdog checks how much.
    """
    if not commands or not box.sandboxed:
        yield None
        return
    tree, built = box.folder, box.folder.with_name("built")
    with sandbox.disk_in_memory(tree, used([tree], sys.maxsize) + settings().build_disk) as disk:
        if disk is not None:
            _copy(tree, disk.content, keep_going)
        yield disk
        if disk is None:
            return
        _copy(disk.content, built, keep_going)
    remove(tree, keep_going)
    built.rename(tree)


def _copy(tree: Path, into: Path, keep_going: Callable[[], None]) -> None:
    into.mkdir(exist_ok=True)
    keep = "--preserve=mode,timestamps,links"
    done = tool("cp", "-dR", keep, "--", f"{tree}/.", into, keep_going=keep_going)
    if done.returncode:
        _raise_if_full()
        raise BuildFailed("The tree that the build left cannot be copied.", _last_lines(done.stderr), done.stderr)


def _raise_if_full() -> None:
    if shutil.disk_usage(_environments()).free < _FULL:  # the machine's trouble, and perhaps not the revision's
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(_environments()))


def log_of(key: str) -> str:
    """The build output of an environment; empty if there was none or it was not kept."""
    try:
        return gzip.decompress((_environments() / key / LOG).read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):  # evicted, or damaged: nothing rests on it
        return ""


def _run_commands(commands: Sequence[str], box: Box, exported: Exported, keep_going: Callable[[], None]) -> str:
    """Run a recipe's commands one after the other, within one limit of time for all of them; return their log."""
    said, ends = "", time.monotonic() + settings().build_limit_s
    for command in commands:
        limits = Limits(wall_s=max(1.0, ends - time.monotonic()), disk=settings().build_disk)
        done = sandbox.run(["/bin/sh", "-ec", command], replace(box, limits=limits), keep_going)
        said = without_middle(without_secrets(f"{said}$ {command}\n{done.log.rstrip()}\n"), settings().log_limit)
        if done.returncode == 0 and done.reason is None:
            continue
        if done.shortage:
            raise OSError(done.shortage, os.strerror(done.shortage), str(_environments()))
        _raise_if_full()
        why = done.reason or f"it exited with {done.returncode}"
        if done.timed_out:
            why = f"the build took longer than {settings().build_limit_s:g} s (KERNELWATCH_BUILD_LIMIT_S)"
        notes = " ".join(exported.notes[:5])
        raise BuildFailed(
            f"The build failed at `{command}`: {why}.{' Note: ' if notes else ''}{notes}", _last_lines(said), said
        )
    return said


def _compile_modules(base: BaseStack, folders: Sequence[str], box: Box, keep_going: Callable[[], None]) -> None:
    """Compile the modules of a tree to byte code as far as the time allows: a contender cannot write into the tree."""
    limits = Limits(wall_s=COMPILING_S, disk=settings().build_disk)
    command = [str(base.python), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", *folders]
    sandbox.run(command, replace(box, limits=limits), keep_going)  # what does not compile fails where it is imported


def _for_building(base: BaseStack) -> dict[str, str]:
    """Python is the stack's, and installers search only the tree."""
    cuda = Path("/usr/local/cuda")
    path = [
        *map(str, (*base.commands, base.python.parent)),
        *([str(cuda / "bin")] if cuda.exists() else []),
        "/usr/bin",
        "/bin",
    ]
    return {
        "PATH": ":".join(path),
        **({"CUDA_HOME": str(cuda)} if cuda.exists() else {}),
        "PYTHONPATH": ":".join(map(str, base.paths)),
        "PYTHONNOUSERSITE": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_OFFLINE": "1",
        "UV_LINK_MODE": "copy",
    }


def hash_seed(seed: int | None) -> dict[str, str]:
    return {} if seed is None else {"PYTHONHASHSEED": str(seed)}


def cache_of(key: str) -> Path:
    """The compile caches of one environment's contenders; never shared with another environment."""
    folder = _caches() / key
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    return folder


def facts_of(key: str) -> Path:
    """The facts folder of an environment: removed with it, and read-only for its contenders."""
    folder = _environments() / key / "facts"
    folder.mkdir(exist_ok=True)
    return folder


def evict(limit: int) -> list[str]:
    """Remove the environments longest unused until the rest fit into `limit` bytes.  Returns the keys that went.

    The limit is lower where the disk has no room left for a build.  An environment goes with what was compiled in it,
    and what dead workers left half built or half removed goes as well.
    """
    if not _environments().exists():
        return []
    now, gone = time.time(), list[str]()
    for left in _environments().glob(f"{_BUILDING}*"):
        with suppress(FileNotFoundError):  # just finished
            if now - left.lstat().st_mtime > IN_USE_S + settings().build_limit_s:
                remove(left)
    for left in (*_environments().glob(f"{_REMOVING}*"), *_caches().glob(f"{_REMOVING}*")):
        remove(left)
    sizes = {key: _size(key) for key in _keys()}
    total = sum(sizes.values())
    limit = min(limit, total + shutil.disk_usage(_environments()).free - settings().build_disk)
    for key in sorted(sizes, key=_last_use):
        if total <= limit or now - _last_use(key) < IN_USE_S:
            break
        for folder in _belonging(key):
            _discard(folder)
        total -= sizes[key]
        gone.append(key)
    return gone


def _keys() -> set[str]:
    """Environments that are whole, and keys of which only compiled things are left (stacks have these as well)."""
    made, compiled = _environments().glob("[!.]*/whole"), _caches().glob("[!.]*")
    return {one.parent.name for one in made} | {one.name for one in compiled}


def _belonging(key: str) -> tuple[Path, Path]:
    return _environments() / key, _caches() / key


def _last_use(key: str) -> float:
    environment, compiled = _belonging(key)
    return max((one.stat().st_mtime for one in (environment / "whole", compiled) if one.exists()), default=0.0)


def _size(key: str) -> int:
    # Exact for any depth, where `used` takes a tree that is nested too deep for a full disk: others would be evicted.
    folders = [folder for folder in _belonging(key) if folder.exists()]
    done = tool("du", "-sk", "--", *folders)
    return sum(int(line.split()[0]) << 10 for line in done.stdout.splitlines())


def _discard(folder: Path) -> None:
    """Remove a folder that others may open: under its own name it is complete or gone, even if we are killed."""
    leaving = folder.with_name(f"{_REMOVING}{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):  # never there, or gone by now
        folder.rename(leaving)
    remove(leaving)


def _caches() -> Path:
    return settings().state / "caches"


def _environments() -> Path:
    return settings().state / "environments"


def _last_lines(log: str) -> str:
    return "\n".join(log.rstrip().splitlines()[-LOG_LINES:])


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]
