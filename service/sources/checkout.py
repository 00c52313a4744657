"""A person's own checkout as a source: read where it lies, with every revision that its git understands.

Nothing is fetched and nothing is copied.  Only whoever runs the command names such a folder, so it need not lie under
an allowed root; what is watched for others goes through a mirror (`service.sources.git`).
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

from service.errors import BadInput, NotFound
from service.sources.git import GitSource

_BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1"}


class Checkout(GitSource):
    """The commits of the repository that `folder` lies in.  Raises BadInput when it lies in none."""

    def __init__(self, folder: Path, keep_going: Callable[[], object] = lambda: None) -> None:
        self.root, self._mirror = _repository(folder.resolve())
        self.name, self.location, self._keep_going = self.root.name or "checkout", str(folder), keep_going
        self._folder = self.root

    @property
    def shallow(self) -> bool:
        """Does its history end before it began, as where a CI machine fetched only the last commits?"""
        return self._git("rev-parse", "--is-shallow-repository").decode().strip() == "true"

    def uncommitted(self) -> int:
        """How many files differ from the commit that is checked out; new ones do not count."""
        listed = self._git("--work-tree", str(self.root), "diff", "--name-only", "--no-ext-diff", "-z", "HEAD", "--")
        return listed.count(b"\0")

    def refresh(self) -> None:
        """Nothing is newer than what lies here."""

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
        return {**super()._environment(), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ALLOW_PROTOCOL": "none"}


def _repository(folder: Path) -> tuple[Path, Path]:
    """The folder's top and its git directory."""
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), "rev-parse", "--absolute-git-dir", "--show-toplevel"]
    done = subprocess.run(command, env=_BARE, capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()
    if len(said) != 2:
        raise BadInput(f"{folder} is not the checkout of a git repository: name a folder that is, with its files.")
    return Path(said[1]), Path(said[0])
