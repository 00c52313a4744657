"""A stranger's tree on disk: written within limits and without links that lead out of it, and read as carefully."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from service.errors import BadInput, SourceFailed
from service.settings import settings
from service.sources.source import Exported

MAX_FILES = 200_000  # with links and submodules
MAX_LINKS = 10_000  # no tree that people work in has more
LARGEST_LINK = 4096  # PATH_MAX
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\n"

_OUTSIDE = "leads out of the tree"
_TOO_MANY_LINKS = "is part of a loop or of a chain of more than 40 links"


def shown(name: str) -> str:
    """A printable form of a file's name: names in a tree are bytes, and need not be text."""
    return os.fsencode(name).decode(errors="replace")


def read_beneath(root: Path, path: str, limit: int) -> bytes | None:
    """The content of a regular file beneath `root`, at most `limit` bytes and one more.

    None where anything else has the name: a build may have put a FIFO, a device or a link there.  No link is followed
    and nothing is waited for.  Raises OSError where there is nothing, or where a part of the path is a link or no
    folder.
    """
    *folders, name = Path(path).parts
    if Path(path).is_absolute() or ".." in folders or name == "..":
        return None
    options = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with ExitStack() as opened:
        here = None
        for folder in (str(root), *folders):
            follow = options & ~os.O_NOFOLLOW if here is None else options
            here = os.open(folder, follow | os.O_DIRECTORY, dir_fd=here)
            opened.callback(os.close, here)
        with open(name, "rb", opener=lambda file, _: os.open(file, options, dir_fd=here)) as file:
            return file.read(limit + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


class TreeWriter:
    """Writes one tree.  Links are made last, so that no file is ever written through one."""

    def __init__(self, folder: Path, what: str) -> None:
        self.folder, self.what, self.limit = folder, what, settings().tree_limit
        self.files, self.size, self.links = 0, 0, 0
        self._links: dict[str, str] = {}
        self._left_out: list[str] = []
        self._lfs: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def announce(self, size: int, *, link: bool = False) -> None:
        """Count one coming file against the limits.  Raises BadInput as soon as the tree is too large."""
        self.files, self.size, self.links = self.files + 1, self.size + size, self.links + link
        if link and size > LARGEST_LINK:
            raise BadInput(f"The tree of {self.what} has a symbolic link of {size} bytes; {LARGEST_LINK} are allowed.")
        if self.links > MAX_LINKS:
            raise BadInput(f"The tree of {self.what} has more than {MAX_LINKS} symbolic links.")
        if self.files > MAX_FILES:
            raise BadInput(f"The tree of {self.what} has more than {MAX_FILES} files.")
        if self.size > self.limit:
            raise BadInput(f"The tree of {self.what} exceeds {self.limit / 1e6:.0f} MB (KERNELWATCH_TREE_LIMIT).")

    def file(self, path: str, chunks: Iterable[bytes], *, executable: bool = False) -> None:
        """Write one announced file."""
        try:
            self._write(self._at(path), path, chunks, executable)
        except OSError as error:
            raise self._unwritable(path, error) from None

    def _write(self, target: Path, path: str, chunks: Iterable[bytes], executable: bool) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        start = b""
        with open(target, "xb") as out:
            for chunk in chunks:
                start = start or chunk[: len(LFS_POINTER)]
                out.write(chunk)
            os.fchmod(out.fileno(), 0o755 if executable else 0o644)
        if start == LFS_POINTER:
            self._lfs.append(shown(path))

    def link(self, path: str, target: str) -> None:
        """Remember a symbolic link; `finish` makes it when it stays inside."""
        self._at(path)
        self._links[path] = target

    def folder_only(self, path: str, why: str) -> None:
        """Make an empty folder where something was left out."""
        self.leave_out(why)
        try:
            self._at(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(path, error) from None

    def leave_out(self, why: str) -> None:
        self._left_out.append(shown(why))

    def finish(self) -> Exported:
        """Make the links and say what was written."""
        made = [path for path, target in self._links.items() if self._make(path, target)]
        # A link may lead out only through another link; taking one away can only make others dangle.
        while refused := {path: why for path in made if (why := self._trouble(path))}:
            for path, why in refused.items():
                (self.folder / path).unlink()
                self._leave_link_out(path, why)
            made = [path for path in made if path not in refused]
        return Exported(self.files, self.size, tuple(self._left_out), tuple(self._lfs))

    def _make(self, path: str, target: str) -> bool:
        place = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if target.startswith("/") or place == ".." or place.startswith("../"):
            self._leave_link_out(path, _OUTSIDE)
            return False
        try:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).symlink_to(target)
        except OSError as error:
            raise self._unwritable(path, error) from None
        return True

    def _trouble(self, path: str) -> str:
        """Why a link must be left out, or nothing.

        The kernel follows at most 40 links and is asked first: Python would follow a chain of any length, link by link.
        """
        place = self.folder / path
        try:
            place.stat()
        except OSError as error:
            if error.errno == errno.ELOOP:
                return _TOO_MANY_LINKS
        try:
            inside = Path(os.path.realpath(place)).is_relative_to(os.path.realpath(self.folder))
        except RecursionError:  # a chain behind a folder that does not exist, where the kernel stops at once
            return _TOO_MANY_LINKS
        return "" if inside else _OUTSIDE

    def _leave_link_out(self, path: str, why: str) -> None:
        self.leave_out(f"The symbolic link {path} -> {self._links[path]} {why} and was left out.")

    def _at(self, path: str) -> Path:
        parts = path.split("/")
        if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts) or "\0" in path:
            raise BadInput(f"{self.what} has the invalid path {path!r}.")
        return self.folder.joinpath(*parts)

    def _unwritable(self, path: str, error: OSError) -> BadInput | SourceFailed:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.folder).free
            return SourceFailed(f"The disk is full: {self.folder} has {free / 1e6:.0f} MB free.")
        return BadInput(f"{path!r} of {self.what} cannot be written: {error.strerror or error}.")
