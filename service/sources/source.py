"""The interface of all sources of revisions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from service.domain.states import ForgeKind, TargetKind
from service.errors import ServiceError
from service.sources.release_tags import ANY


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
