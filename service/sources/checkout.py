"""A person's own checkout as a source: read in place, with every revision that git resolves.

Nothing is fetched and nothing is copied.  Only the user of the command names such a folder, so it need not be under
an allowed root; what is watched for others goes through a mirror (`service.sources.git`).
"""

import hashlib
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from service.errors import BadInput, NotFound
from service.settings import MIB
from service.sources.git import GitSource

_BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
# Only the caller's own settings decide which repositories are safe.
_TRUST = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "SUDO_UID")
# What a repository's configuration would have git execute while it only reads.
_EXECUTES_NOTHING = {"core.fsmonitor": "false", "log.showSignature": "false"}
LARGEST_COMPARED = 64 * MIB


class Checkout(GitSource):
    """The commits of the repository that contains `folder`.  Raises BadInput if there is none."""

    def __init__(self, folder: Path, keep_going: Callable[[], object] = lambda: None) -> None:
        self.root, self._mirror = _repository(folder.resolve())
        self.name, self.location, self._keep_going = self.root.name or "checkout", str(folder), keep_going
        self._folder = self.root
        self._seen = set[str]()

    @property
    def shallow(self) -> bool:
        """Whether the checkout is shallow, as on CI machines that fetch only the last commits."""
        return self._git("rev-parse", "--is-shallow-repository").decode().strip() == "true"

    def uncommitted(self) -> int:
        """Number of files that differ from the checked-out commit; untracked ones do not count.

        Contents are compared here: git would run the filters of the configuration over them.  A file that such a
        filter unfolds (large ones of LFS) counts as one that differs.
        """
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0")
        entries = [
            (about.decode().split(), path) for about, _, path in (line.partition(b"\t") for line in listed if line)
        ]
        return sum(
            not _holds(self.root / os.fsdecode(path), mode, blob)
            for (mode, kind, blob), path in entries
            if kind == "blob"  # not a submodule, which is never looked into
        )

    def tracked(self, pattern: str) -> list[str]:
        """The paths of the tracked files whose names fit a pattern such as `*.py`."""
        listed = self._git("ls-files", "-z", "--", pattern).split(b"\0")
        return [os.fsdecode(path) for path in listed if path]

    def changed(self, base: str, head: str) -> set[str]:
        """The paths at which two trees differ."""
        options = ("-r", "-z", "--name-only", "--no-renames", "--no-ext-diff")
        listed = self._git("diff-tree", *options, self._known(base), self._known(head), "--")
        return {path.decode(errors="replace") for path in listed.split(b"\0") if path}

    def refresh(self) -> None:
        """Does nothing: a checkout is always current."""

    def resolve(self, rev: str) -> str:
        """The full sha of whatever git understands: `HEAD`, `origin/main`, `v1.0~2`, `main@{yesterday}`."""
        if sha := self._commit(rev.strip()):
            return sha
        hint = "The checkout is shallow: fetch more of its history (`git fetch --unshallow`, or `fetch-depth: 0`)."
        raise NotFound(
            "revision", f"{rev} in {self.location}", hint if self.shallow else "`git log --all` lists what is."
        )

    def _have(self) -> None:
        """It is all here."""

    def _environment(self) -> dict[str, str]:
        own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ALLOW_PROTOCOL": "none"}
        for number, (name, value) in enumerate(_EXECUTES_NOTHING.items()):
            own |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return {**super()._environment(), **own, "GIT_CONFIG_COUNT": str(len(_EXECUTES_NOTHING))}


def _holds(file: Path, mode: str, blob: str) -> bool:
    """Whether this file equals the commit's."""
    try:
        status = file.lstat()
        if stat.S_ISLNK(status.st_mode):
            kind, content = "120000", os.fsencode(os.readlink(file))
        elif stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_COMPARED:
            kind, content = "100755" if status.st_mode & stat.S_IXUSR else "100644", file.read_bytes()
        else:
            return False
    except OSError:
        return False
    digest = hashlib.sha1 if len(blob) == 40 else hashlib.sha256  # git's own hash, of what is compared and not kept
    return mode == kind and digest(b"blob %d\0" % len(content) + content).hexdigest() == blob


def _repository(folder: Path) -> tuple[Path, Path]:
    """The folder's top and its git directory.  A repository of another user is refused, as by git itself."""
    command = ["git", "-C", str(folder), "rev-parse", "--absolute-git-dir", "--show-toplevel"]
    environment = _BARE | {name: os.environ[name] for name in _TRUST if name in os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "dubious ownership" in done.stderr:
        mend = f"git config --global --add safe.directory {folder}"
        raise BadInput(f"{folder} belongs to another user. If you trust its git settings, run `{mend}`.")
    lines = done.stdout.splitlines()
    if len(lines) != 2:
        raise BadInput(f"{folder} is not the checkout of a git repository: name a folder that is, with its files.")
    return Path(lines[1]), Path(lines[0])
