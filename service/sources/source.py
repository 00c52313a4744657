"""The interface of all sources of revisions, and a stranger's tree on disk, written and read within limits.

Which tags of a repository are releases, and which addresses a source may have: allow-lists of hosts and folders, and no
private addresses behind names.
"""

import errno
import hashlib
import ipaddress
import os
import re
import shutil
import socket
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version

from service.domain.states import ForgeKind, TargetKind
from service.errors import BadInput, Refused, ServiceError, SourceFailed
from service.settings import settings

# A version has a dot: `docs-2026-11` and `build-1234` are none.  What precedes it says that it is one.
_VERSION = re.compile(r"(?P<before>.*?)(?P<version>\d+(?:\.\d+)+\S*)", re.DOTALL)
_USUAL = re.compile(r"(?:(?:releases?|rel|version|ver)[-/_]?)?v?", re.IGNORECASE)
ANY = "*"


def version_of(tag: str, pattern: str = ANY) -> Version | None:
    """The version that a tag releases; None if it releases none, or a pre-release.

    With another `pattern` than ANY a tag may begin with anything, as long as the whole of it matches.
    """
    match = _VERSION.fullmatch(tag)
    if match is None or not (fnmatchcase(tag, pattern) if pattern != ANY else _USUAL.fullmatch(match["before"])):
        return None
    try:
        version = Version(match["version"])
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version


def newest_first(tags: Iterable[str], pattern: str = ANY) -> list[str]:
    """The tags that are releases, the highest version first."""
    versions = {tag: version for tag in tags if (version := version_of(tag, pattern)) is not None}
    return sorted(versions, key=lambda tag: (versions[tag], tag), reverse=True)


@dataclass(frozen=True)
class Found:
    """One revision as its source reports it.

    `paths` are those changed against the first parent: all of them, or with `more_paths` the first of very many.
    """

    sha: str  # of a commit, or the version of a release
    parent: str | None
    subject: str
    author: str
    committed_at: float
    paths: tuple[str, ...]
    more_paths: bool = False


@dataclass(frozen=True)
class Exported:
    """The result of an export, with notes for the reader of a failed build."""

    files: int
    size: int
    left_out: tuple[str, ...] = ()  # one sentence for each thing that was not written
    lfs_pointers: tuple[str, ...] = ()  # files that hold a Git LFS pointer instead of their content

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.lfs_pointers:
            return self.left_out
        files = "1 file is" if len(self.lfs_pointers) == 1 else f"{len(self.lfs_pointers)} files are"
        said = f"{files} only a Git LFS pointer, as LFS content is not fetched; the first is {self.lfs_pointers[0]}."
        return (*self.left_out, said)


class Source(Protocol):
    """The revisions of one target.  Methods raise NotFound, BadInput or SourceFailed, in words for people."""

    def refresh(self) -> None:
        """Learn what is new at the origin.  The other methods answer from what is already known here."""

    def fetch_pulls(self, numbers: Collection[int], limit_s: float) -> Mapping[int, str | ServiceError]:
        """The head of each of these pull requests now, or why it could not be fetched; some if time is short."""

    def has(self, sha: str) -> bool:
        """Whether a revision is known here.  Asks nobody."""

    def is_on_branch(self, sha: str) -> bool:
        """Whether the origin itself has the revision on a branch.  Any other may be a stranger's."""

    def is_kept(self) -> bool:
        """Whether anything of the origin is kept here."""

    def default_branch(self) -> str: ...

    def resolve(self, rev: str) -> str:
        """The full sha (or the version) that a branch, tag, abbreviated sha or version means."""

    def describe(self, sha: str) -> Found: ...

    def mainline(self, branch: str | None, limit: int) -> list[Found]:
        """The newest `limit` revisions of a branch along first parents, oldest first."""

    def between(self, base: str, head: str) -> list[Found]:
        """The commits of `base`..`head` along first parents, oldest first."""

    def merge_base(self, a: str, b: str) -> str: ...

    def last_release(self, sha: str, pattern: str = ANY) -> str | None:
        """The highest final version before `sha`; of a repository the commit of its tag, or where that left the line.

        `pattern`: of the tags that are releases, instead of those that are a version after `v`, `release-` or nothing.
        """

    def read(self, sha: str, path: str) -> bytes | None:
        """One regular file of a revision; None when there is none at `path`."""

    def changed_lines(self, base: str, head: str, path: str) -> Sequence[tuple[int, int]]:
        """The ranges of lines of a file of `head` that differ from `base`: the first and the last line of each.

        Lines that were only removed have no range.
        """

    def identity(self, sha: str) -> str:
        """Equal for two revisions exactly when they export the same tree."""

    def export(self, sha: str, folder: Path, python: tuple[int, int] | None = None) -> Exported:
        """Write the plain tree into the empty or missing `folder`.  `python` chooses among the wheels of a release."""


class Watched(Protocol):
    """The part of a target that says where its revisions come from."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> TargetKind: ...
    @property
    def location(self) -> str: ...
    @property
    def package(self) -> str | None: ...
    @property
    def forge_kind(self) -> ForgeKind | None: ...


def some(names: Sequence[str], most: int = 8) -> str:
    """The first few of many names, for an error's hint."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


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


@dataclass(frozen=True)
class Site:
    """The destination of a permitted URL.  Connect to `address`, because a second look-up may differ."""

    scheme: str
    host: str
    port: int
    address: str | None  # None: a proxy looks the name up


def folder_of(location: str) -> Path | None:
    """The local folder that a location names, checked against the allowed roots; None when it is a URL.

    Raises Refused outside the allowed roots and BadInput when there is no such folder.
    """
    if "://" in location and not location.startswith("file://"):
        return None
    written = Path(location.removeprefix("file://"))
    if not written.is_absolute():
        raise BadInput(f"{location!r} is neither an https address nor the full path of a folder.")
    folder = written.resolve()
    roots = [root.expanduser().resolve() for root in settings().local_roots]
    if not any(folder.is_relative_to(root) for root in roots):
        known = ", ".join(map(str, roots)) or "none"
        raise Refused(f"{written} is not under an allowed root (KERNELWATCH_ALLOWED_ROOTS; now: {known}).")
    if not folder.is_dir():
        raise BadInput(f"There is no folder {written}.")
    return folder


def check_url(url: str) -> tuple[str, str, int]:
    """(scheme, host, port) of a URL on an allowed host.  Raises BadInput or Refused; looks nothing up."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    except ValueError as error:
        raise BadInput(f"{url!r} is not an address: {error}.") from None
    if not host or re.search(r"[\s\\\x00-\x1f]", url):
        raise BadInput(f"{url!r} is not an address.")
    if parts.username is not None or parts.password is not None:
        raise BadInput("Addresses with a user name or a password in them are not accepted.")
    private = _private(host, port)
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise Refused(f"{url} is not https; only https is allowed.")
    if not private and host not in (allowed.lower() for allowed in settings().allowed_hosts):
        known = ", ".join(settings().allowed_hosts) or "none"
        raise Refused(f"{host} is not an allowed host (KERNELWATCH_ALLOWED_HOSTS; now: {known}).")
    if not private and port != 443:
        raise Refused(f"Port {port} of {host} is not allowed; allowed hosts are reached on port 443 only.")
    return parts.scheme, host, port


def site_of(url: str) -> Site:
    """Look the host of a permitted URL up.  Raises Refused when it is a private address, SourceFailed when unknown."""
    scheme, host, port = check_url(url)
    proxied = bool(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"))
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        if proxied:
            return Site(scheme, host, port, None)
        raise SourceFailed(f"The host {host} could not be looked up: {error.strerror or error}.") from None
    addresses = sorted({str(entry[4][0]) for entry in found}, key=lambda address: ":" in address)
    if not _private(host, port):
        for address in addresses:
            if not ipaddress.ip_address(address.partition("%")[0]).is_global:
                raise Refused(f"{host} leads to the private address {address}, which is not allowed.")
    return Site(scheme, host, port, None if proxied else addresses[0])


def _private(host: str, port: int) -> bool:
    """Did the operator name this private host?  Then http and its own port are accepted as well."""
    named = [entry.lower() for entry in settings().private_hosts]
    return host in named or f"{host}:{port}" in named


def place(name: str, location: str) -> Path:
    """The folder under the state that holds the mirror of a target; another location is another mirror."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:40] or "target"
    return settings().state / "mirrors" / f"{plain}-{hashlib.sha256(location.encode()).hexdigest()[:10]}"
