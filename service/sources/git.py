"""A git repository as a source: a full bare mirror; no name in it can become an option of a git command.

Branches and tags are fetched together; only people with write access can change them.  The head of a pull request comes
from anybody: it is fetched by itself into a folder next to the objects, within limits, and taken over when git has
accepted all of it.  So one bad head cannot stop the others.
"""

import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from service.domain.states import ForgeKind
from service.errors import BadInput, NotFound, ServiceError, SourceFailed
from service.settings import GIB, MIB, settings
from service.sources.source import (
    ANY,
    Exported,
    Found,
    Site,
    TreeWriter,
    check_url,
    folder_of,
    newest_first,
    place,
    site_of,
    some,
)

WATCH_EVERY_S = 0.5
_LOCK_EVERY_S = 0.05
MAX_OUTPUT = 64 * MIB
MAX_COMMITS = 10_000
LARGEST_READ = 4 * MIB
REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
ORIGIN_HEAD = "refs/kernelwatch/origin-head"
KEPT = "refs/kernelwatch/kept"  # commits that were requested by their sha, or that the ledger may still need
DAY_S = 86_400.0


@dataclass(frozen=True)
class GitLimits:
    """What one git process may use: seconds, its own memory, and the bytes of each file that it writes."""

    seconds: float
    memory: int
    file: int | None = None


_ASK = GitLimits(seconds=60, memory=512 * MIB)  # a tree of ten small objects can have 10^10 paths, all held in memory
_STREAM = replace(_ASK, seconds=300)
_FETCH = GitLimits(seconds=1800, memory=8 * GIB)  # the first mirror of a large repository takes minutes
_PULL = GitLimits(seconds=120, memory=2 * GIB)
_REPACK = GitLimits(seconds=1800, memory=8 * GIB)
_TOGETHER = 50  # heads of pull requests in one fetch
_TOGETHER_S = 60.0  # all of them must arrive in this time, or each is fetched by itself
_PULLS_SHARE = 0.75  # of the mirror's limit: the rest is reserved for branches, so that strangers cannot stop them
_FEW_PACKS = 30  # more of them are repacked: each fetch leaves one

# Changed paths are kept of each commit up to these, and of one list of commits up to the last.
MAX_PATHS = 5_000
MAX_PATH_BYTES = 256 * 1024
MAX_LIST_BYTES = 16 * MIB
_LIST_S = 30.0  # for commits that had to be read one by one; the paths of the rest count as unknown
_ONE_PATH_S = 5.0

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HUNK = re.compile(rb"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_REV = re.compile(r"\w[\w./+#=@~^,;!$%&'\"`()<>|-]{0,199}")  # what git allows in a name, in any script
_PULL_REV = re.compile(r"(?:refs/)?((?:pull|merge-requests)/([1-9][0-9]{0,9})/head)([~^].*)?")
_FORMAT = "%H%x00%ct%x00%P%x00%an%x00%s%x00"  # what has no bound comes last
_MESSAGES = 50  # of commits in one process: of a range, git keeps all messages in memory before it prints one
_MAX_FIELDS = 8 * 1024  # bytes of one commit, where its paths are read apart

# Nothing of the machine's or the user's configuration, no prompt, no LFS download, English messages.
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
    "GIT_HTTP_LOW_SPEED_TIME": "30",
}
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")
# Local repositories are those under the allowed roots, whoever owns them.  Old histories hold dates and modes that a
# strict check refuses although they harm nobody.
_CONFIGURATION = """[safe]\n\tdirectory = *
[core]\n\thooksPath = /dev/null\n\tfsmonitor = false
[http]\n\tfollowRedirects = false
[transfer]\n\tfsckObjects = true
[fetch]\n\tunpackLimit = 1
[fetch "fsck"]\n\tzeroPaddedFilemode = ignore\n\tbadTimezone = ignore\n\tmissingSpaceBeforeDate = ignore
[gc]\n\tauto = 0
"""


def mirror_of(name: str, location: str) -> Path:
    """The path of the mirror of a target's repository."""
    return place(name, location).with_suffix(".git")


class GitSource:
    """The commits of one repository."""

    def __init__(
        self,
        name: str,
        location: str,
        keep_going: Callable[[], object] = lambda: None,
        forge_kind: ForgeKind | None = None,
    ) -> None:
        self.name, self.location, self._keep_going = name, location, keep_going
        self._on_gitlab = forge_kind is ForgeKind.GITLAB if forge_kind else _is_on_gitlab(location)
        self._folder = folder_of(location)
        if self._folder is None:
            check_url(location)
        self._mirror = mirror_of(name, location)
        self._seen = set[str]()  # commits that are here: each question is a process, which takes 4 ms

    def refresh(self) -> None:
        """Fetch branches and tags into the mirror.  One process fetches at a time."""
        site = self._site()
        with self._alone():
            if self._folder and any((self._folder / name).exists() for name in ("shallow", ".git/shallow")):
                raise SourceFailed(  # git fetches nothing from it, and does not call that a failure
                    f"{self.location} is a shallow clone, from which nothing can be fetched: run "
                    "`git fetch --unshallow` there, or name the repository that it was cloned from."
                )
            limits = replace(_FETCH, file=self._room(settings().mirror_limit))
            try:
                self._fetch(self._mirror, site, [*REFSPECS, f"+HEAD:{ORIGIN_HEAD}"], limits, "--prune")
            except _NoSuchRef:  # the origin's HEAD names a branch that does not exist
                self._fetch(self._mirror, site, [*REFSPECS], limits, "--prune")
                self._git("update-ref", "-d", ORIGIN_HEAD)
            (self._mirror / "fetched").touch()
            last = self._git("symbolic-ref", "--short", "HEAD").decode().strip()
            if (branch := self._origin_branch(last)) not in (None, last):
                self._git("symbolic-ref", "HEAD", f"refs/heads/{branch}")

    def fetch_pulls(self, numbers: Collection[int], limit_s: float) -> Mapping[int, str | ServiceError]:
        """Fetch the heads of these pull requests: the commit of each, or why it could not be fetched.

        Those that `limit_s` seconds do not suffice for are left out.
        """
        self._have()
        ends, heads = time.monotonic() + limit_s, dict[int, str | ServiceError]()
        waiting = sorted(numbers)
        for start in range(0, len(waiting), _TOGETHER):
            some_of_them = waiting[start : start + _TOGETHER]
            if len(some_of_them) > 1:
                try:
                    heads |= self._pulls(some_of_them, replace(_PULL, seconds=_TOGETHER_S))
                    continue
                except SourceFailed:
                    self._keep_going()  # one of them, or the network: each by itself says which
            for number in some_of_them:
                if heads and time.monotonic() > ends:
                    return heads
                heads[number] = self._pull(number)
        return heads

    def has(self, sha: str) -> bool:
        """Whether a commit is kept here.  Asks nobody."""
        return bool(_SHA.fullmatch(sha)) and self._is_fetched() and self._commit(sha) is not None

    def is_on_branch(self, sha: str) -> bool:
        """Whether a branch of the repository contains the commit, as of the last refresh."""
        containing = ("for-each-ref", "--count=1", "--format=%(refname)", f"--contains={self._known(sha)}")
        return bool(self._git(*containing, "refs/heads/").strip())

    def size(self) -> int:
        """Bytes of the mirror's objects."""
        size = 0
        for folder, _, names in os.walk(self._mirror / "objects"):
            for name in names:
                with suppress(FileNotFoundError):  # another process may be repacking
                    size += os.stat(os.path.join(folder, name)).st_size
        return size

    def is_tight(self) -> bool:
        """Whether the mirror is too large to take heads of pull requests."""
        return self.size() >= settings().mirror_limit * _PULLS_SHARE

    def clean(self, open_pulls: Collection[int], keep: Collection[str], *, thoroughly: bool = False) -> int:
        """Forget the heads of all other pull requests, and delete what no reference needs.  Returns the size in bytes.

        The commits `keep` stay, and for a day whatever was requested by its sha.  Objects are repacked when there are
        many packs, or when it is requested with `thoroughly`.
        """
        with self._alone():
            refs = self._refs("refs/pull/", f"{KEPT}/")
            gone = [ref for ref in refs if self._is_over(ref, open_pulls, keep)]
            kept = [sha for sha in {*keep} if f"{KEPT}/{sha}" not in refs and self.has(sha)]
            changes = [f"delete {ref}\n" for ref in gone] + [f"update {KEPT}/{sha} {sha}\n" for sha in kept]
            self._update_refs(changes)
            packs = len([*(self._mirror / "objects" / "pack").glob("*.pack")])
            if thoroughly or packs > _FEW_PACKS:
                sparing = ("-c", "pack.threads=1", "-c", "pack.windowMemory=256m")
                self._git(*sparing, "repack", "-a", "-d", "--quiet", limits=_REPACK)
                self._git("prune", "--expire=1.day.ago", limits=_REPACK)  # loose objects
            return self.size()

    def is_kept(self) -> bool:
        return self._mirror.exists()

    def default_branch(self) -> str:
        """The branch that the origin's HEAD names."""
        self._have()
        branch = self._git("symbolic-ref", "--short", "HEAD").decode().strip()
        if not self._commit(f"refs/heads/{branch}"):
            raise NotFound("commit", f"in {self.location}", self._why_no_default())
        return branch

    def resolve(self, rev: str) -> str:
        """The full sha of a branch, tag, pull request (`pull/7/head`), sha or expression such as `main~2`.

        A merge request of GitLab may be written as there too: `merge-requests/7/head`.
        """
        rev = rev.strip()
        if not _REV.fullmatch(rev) or ".." in rev or "@{" in rev:
            raise BadInput(f"{rev[:80]!r} is not a revision; write a branch, a tag or a commit's sha.")
        self._have()
        if pull := _PULL_REV.fullmatch(rev):  # never a branch or tag of this name
            head = self._pull(int(pull[2]))
            if isinstance(head, ServiceError):
                raise head
            rev = f"{head}{pull[3] or ''}"
        if sha := self._commit(rev):
            return sha
        self.refresh()
        if sha := self._commit(rev) or (self._fetched(rev) if _SHA.fullmatch(rev) else None):
            return sha
        raise NotFound("revision", f"{rev} in {self.location}", f"Branches: {some(self._branches())}.")

    def describe(self, sha: str) -> Found:
        return self._log("--no-walk", self._known(sha))[0]

    def mainline(self, branch: str | None, limit: int) -> list[Found]:
        branch = branch or self.default_branch()
        self._have()
        tip = self._tip(branch)
        if tip is None:
            self.refresh()
            tip = self._tip(branch)
        if tip is None:
            branches = self._branches()
            hint = f"Branches: {some(branches)}." if branches else self._why_no_default()
            raise NotFound("branch", f"{branch} in {self.location}", hint)
        return self._log(f"--max-count={min(limit, MAX_COMMITS)}", tip)

    def between(self, base: str, head: str) -> list[Found]:
        return self._log(f"--max-count={MAX_COMMITS}", self._known(head), f"^{self._known(base)}")

    def merge_base(self, a: str, b: str) -> str:
        answer = self._git("merge-base", self._known(a), self._known(b), fine=(0, 1)).decode().strip()
        if not answer:
            raise NotFound("common ancestor", f"of {a[:10]} and {b[:10]} in {self.location}")
        return answer

    def last_release(self, sha: str, pattern: str = ANY) -> str | None:
        head, refs = self._known(sha), self._refs("refs/tags")
        for tag in newest_first((ref.removeprefix("refs/tags/") for ref in refs), pattern):
            commit = self._commit(f"refs/tags/{tag}")
            # Of a release that was made on a branch of its own, what the mainline has of it.
            base = self._git("merge-base", commit, head, fine=(0, 1)).decode().strip() if commit else ""
            if base and base != head:
                return base
        return None

    def read(self, sha: str, path: str) -> bytes | None:
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            return None
        listed = self._git("--literal-pathspecs", "ls-tree", "-z", "-l", "--full-tree", self._known(sha), "--", path)
        entries = [_entry(line) for line in listed.split(b"\0") if line]
        if len(entries) != 1 or entries[0][0] not in ("100644", "100755") or entries[0][3] != path:
            return None
        _, blob, size, _ = entries[0]
        if size > LARGEST_READ:
            raise BadInput(f"{path} at {sha[:10]} has {size / 1e6:.0f} MB; the limit is {LARGEST_READ / 1e6:.0f} MB.")
        return self._git("cat-file", "blob", blob)

    def changed_lines(self, base: str, head: str, path: str) -> Sequence[tuple[int, int]]:
        options = ("-r", "-p", "--unified=0", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        trees = (self._known(base), self._known(head))
        printed = self._git("--literal-pathspecs", "diff-tree", *options, *trees, "--", path)
        hunks = ((int(match[1]), int(match[2] or 1)) for match in _HUNK.finditer(printed))
        return [(first, first + count - 1) for first, count in hunks if count]

    def identity(self, sha: str) -> str:
        return self._git("rev-parse", "--verify", "--end-of-options", f"{self._known(sha)}^{{tree}}").decode().strip()

    def export(self, sha: str, folder: Path, python: tuple[int, int] | None = None) -> Exported:  # noqa: ARG002
        """Write the tree blob by blob: attributes of the repository (filters, export-ignore) have no say in it."""
        writer = TreeWriter(folder, f"{self.name} at {sha[:10]}")
        wanted: list[tuple[str, str, str]] = []
        with self._asking("ls-tree", "-r", "-z", "-l", "--full-tree", self._known(sha)) as answer:
            for line in _pieces(_pipe(answer.stdout), b"\0"):
                mode, blob, size, path = _entry(line)
                writer.announce(size, link=mode == "120000")
                if mode == "160000":
                    writer.folder_only(path, f"The submodule {path} is left empty, because submodules are not fetched.")
                else:
                    wanted.append((mode, blob, path))
        with self._asking("cat-file", "--batch", stdin=True) as answer:
            for mode, blob, path in wanted:
                content = _blob(answer, blob)
                if mode == "120000":
                    writer.link(path, os.fsdecode(b"".join(content)))
                else:
                    writer.file(path, content, executable=mode == "100755")
        return writer.finish()

    def _log(self, *arguments: str) -> list[Found]:
        # Git prints the newest first: with `--reverse` it keeps all messages in memory before it prints one.
        start = secrets.token_hex(8)  # random, so that no subject or path contains it
        shown = (
            "-z",
            "--encoding=UTF-8",
            f"--format={start}{_FORMAT}",
        )
        try:
            logged = self._git("log", *_NAMES, "--first-parent", *shown, *arguments, "--", most=MAX_LIST_BYTES)
            return [_found(record) for record in logged.split(start.encode())[:0:-1]]
        except SourceFailed:  # subjects may be long, and one commit may change more paths than git can hold
            self._keep_going()
            shas = self._git("rev-list", "--first-parent", *arguments, "--").decode().split()[::-1]
            commits = list[Found]()
            for at in range(0, len(shas), _MESSAGES):
                asked = ("log", "--no-patch", "--no-walk=unsorted", *shown, *shas[at : at + _MESSAGES], "--")
                with self._asking(*asked, limits=_ASK) as answer:
                    records = _beginnings(_pipe(answer.stdout), start.encode(), _MAX_FIELDS)
                    commits += [_found(record) for record in islice(records, 1, None)]
        ends, room, complete = time.monotonic() + _LIST_S, MAX_LIST_BYTES, list[Found]()
        for commit in commits:
            paths, more = self._first_paths(commit.sha) if time.monotonic() < ends and room > 0 else ((), True)
            room -= sum(map(len, paths))
            complete.append(replace(commit, paths=paths, more_paths=more))
        return complete

    def _first_paths(self, sha: str) -> tuple[tuple[str, ...], bool]:
        """The first of the paths that a commit changes, and whether there are more."""
        printed = b""
        try:
            limits = replace(_ASK, seconds=_ONE_PATH_S)
            with self._asking("log", "--no-walk", "--format=", *_NAMES, "-z", sha, "--", limits=limits) as answer:
                printed = _pipe(answer.stdout).read(MAX_PATH_BYTES + 1)
                if len(printed) > MAX_PATH_BYTES:
                    raise _Enough
        except _Enough:
            pass
        except SourceFailed:  # git cannot compare its trees
            self._keep_going()
            return (), True
        return _first(printed)

    def _known(self, sha: str) -> str:
        if not _SHA.fullmatch(sha):
            raise BadInput(f"{sha[:80]!r} is not a full commit sha.")
        self._have()
        if sha not in self._seen:
            sha = self._commit(sha) or self.resolve(sha)
            self._seen.add(sha)
        return sha

    def _commit(self, rev: str) -> str | None:
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}")
        sha = self._git(*asked, fine=(0, 1, 128)).decode().strip()
        return sha if _SHA.fullmatch(sha) else None

    def _tip(self, branch: str) -> str | None:
        answer = self._git("show-ref", "--verify", "--hash", "--", f"refs/heads/{branch}", fine=(0, 1, 128))
        return answer.decode().strip() or None

    def _why_no_default(self) -> str:
        branches = self._branches()
        if not branches:
            return "The repository is empty: push a first commit, then try again."
        return f"Its HEAD names no branch: name one. Branches: {some(branches)}."

    def _branches(self) -> list[str]:
        listed = self._git("for-each-ref", "--format=%(refname:lstrip=2)", "--count=200", "refs/heads/")
        return listed.decode(errors="replace").split()

    def _origin_branch(self, last: str) -> str | None:
        """The branch of the origin's HEAD; among several, the usual names and the last answer are preferred."""
        head = self._commit(ORIGIN_HEAD)
        points = ("--points-at", head) if head else ()
        listed = self._git("for-each-ref", "--format=%(refname:lstrip=2)", *points, "refs/heads/")
        branches = listed.decode(errors="replace").split()
        preferred = [name for name in (last, "main", "master") if name in branches]
        return next(iter([*preferred, *branches]), None)

    def _pull(self, number: int) -> str | ServiceError:
        try:
            return self._pulls([number], _PULL)[number]
        except SourceFailed as failure:
            return failure

    def _pulls(self, numbers: Sequence[int], limits: GitLimits) -> dict[int, str | ServiceError]:
        refs = {number: f"refs/pull/{number}/head" for number in numbers}  # here; GitLab has them elsewhere
        theirs = "refs/merge-requests/{}/head" if self._on_gitlab else "refs/pull/{}/head"
        with self._alone():
            refspecs = [f"+{theirs.format(number)}:{ref}" for number, ref in refs.items()]
            self._fetch_apart(refspecs, limits, self._name_of(numbers))
            heads = {number: self._commit(ref) for number, ref in refs.items()}
            self._update_refs([f"delete {refs[number]}\n" for number, head in heads.items() if head is None])
        return {
            number: head or SourceFailed(f"{self._name_of([number])} is not a commit.", passing=False)
            for number, head in heads.items()
        }

    def _name_of(self, numbers: Sequence[int]) -> str:
        """How messages name the heads of these pull requests."""
        mark = "!" if self._on_gitlab else ""
        first, last = f"{mark}{numbers[0]}", f"{mark}{numbers[-1]}"
        which = first if len(numbers) == 1 else f"one of {first} to {last}"
        return f"The head of {'merge' if self._on_gitlab else 'pull'} request {which}"

    def _fetched(self, sha: str) -> str | None:
        """Request a commit that no reference names any more, as after a forced push.  Not every host answers that."""
        with self._alone(), suppress(SourceFailed):
            self._fetch_apart([f"+{sha}:{KEPT}/{sha}"], _PULL, sha[:10])
        self._keep_going()
        return self._commit(sha)

    def _fetch_apart(self, refspecs: Sequence[str], limits: GitLimits, what: str) -> None:
        """Fetch into a folder of its own, and take over what arrived if git accepted all of it.  Needs the lock.

        Raises SourceFailed, with `passing` false where the same head would fail again.
        """
        room = min(settings().pull_limit, self._room(settings().mirror_limit * _PULLS_SHARE))
        with tempfile.TemporaryDirectory(prefix="incoming-", dir=self._mirror) as folder:
            apart = Path(folder)
            for name in ("objects/info", "objects/pack", "refs"):
                (apart / name).mkdir(parents=True)
            (apart / "HEAD").write_text("ref: refs/heads/none\n")
            (apart / "objects/info/alternates").write_text(f"{self._mirror / 'objects'}\n")
            try:
                self._fetch(apart, self._site(), refspecs, replace(limits, file=room), what=what)
            except _TooLarge:
                limit = "KERNELWATCH_PULL_LIMIT" if room == settings().pull_limit else "KERNELWATCH_MIRROR_LIMIT"
                size = f"{room / MIB:.0f} MiB of new objects ({limit})"
                raise SourceFailed(f"{what} brings more than {size}.", passing=False) from None
            except _TooSlow:
                raise SourceFailed(f"{what} took longer than {limits.seconds:.0f} s to fetch.", passing=False) from None
            arrived = self._git("for-each-ref", "--format=update %(refname) %(objectname)", folder=apart)
            # An index makes its pack visible, so it goes last.
            for file in sorted((apart / "objects/pack").iterdir(), key=lambda file: file.suffix == ".idx"):
                file.rename(self._mirror / "objects" / "pack" / file.name)
            self._update_refs(arrived.decode().splitlines(keepends=True))

    def _update_refs(self, changes: Sequence[str]) -> None:
        if changes:
            self._git("update-ref", "--stdin", given="".join(changes).encode())

    def _refs(self, *under: str) -> list[str]:
        listed = self._git("for-each-ref", "--format=%(refname)", *under)
        return listed.decode(errors="surrogateescape").splitlines()

    def _is_over(self, ref: str, open_pulls: Collection[int], keep: Collection[str]) -> bool:
        """Whether nobody needs a reference to the head of a pull request, or to a kept commit, any more."""
        if pull := _PULL_REV.fullmatch(ref):
            return int(pull[2]) not in open_pulls
        with suppress(OSError):  # a packed one is older than a day
            if time.time() - (self._mirror / ref).stat().st_mtime < DAY_S:
                return False
        return ref.rpartition("/")[2] not in keep

    def _room(self, limit: float) -> int:
        """Bytes that the mirror may still grow by.  Raises SourceFailed where there are none."""
        size = self.size()
        if size >= limit:
            raise SourceFailed(
                f"The mirror of {self.location} has {size / MIB:.0f} MiB, and {limit / MIB:.0f} MiB are allowed here: "
                "raise KERNELWATCH_MIRROR_LIMIT, or close pull requests and run `kernelwatch target clean`."
            )
        return int(limit) - size

    def _site(self) -> Site | None:
        return None if self._folder else site_of(self.location)

    def _have(self) -> None:
        if not self._is_fetched():
            self.refresh()

    def _is_fetched(self) -> bool:
        return (self._mirror / "HEAD").exists() and (self._mirror / "fetched").exists()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the mirror's lock, and make the mirror if there is none."""
        self._mirror.parent.mkdir(parents=True, exist_ok=True)
        with open(self._mirror.with_suffix(".lock"), "w") as lock:
            self._lock(lock)
            # It serves all mirrors, whose gits may be reading it: it is never seen half written.
            fresh = self._mirror.parent / f"gitconfig-{secrets.token_hex(8)}.tmp"
            fresh.write_text(_CONFIGURATION)
            fresh.rename(self._mirror.parent / "gitconfig")
            if not (self._mirror / "HEAD").exists():
                self._git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(self._mirror))
            self._remove_leftovers()
            yield

    def _lock(self, file: IO[str]) -> None:
        """Wait for the lock of a file, for as long as we are to keep going."""
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._keep_going()
                time.sleep(_LOCK_EVERY_S)
            else:
                return

    def _remove_leftovers(self) -> None:
        """Delete what a fetch that was killed left.  Whoever holds the lock is the only one who writes."""
        for folder in self._mirror.glob("incoming-*"):
            shutil.rmtree(folder, ignore_errors=True)
        packs, refs = self._mirror / "objects" / "pack", self._mirror / "refs"
        for file in (*packs.glob("*tmp*"), *self._mirror.glob("*.lock"), *refs.rglob("*.lock")):
            file.unlink(missing_ok=True)  # no reference may be named so

    def _fetch(
        self, into: Path, site: Site | None, refspecs: Sequence[str], limits: GitLimits, *more: str, what: str = ""
    ) -> None:
        if shutil.disk_usage(self._mirror).free < GIB // 4:
            raise SourceFailed(f"The disk under {self._mirror.parent} is full; nothing was fetched.")
        options = ["--quiet", "--force", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"]
        options += ["--no-recurse-submodules", *more]
        origin = str(self._folder) if self._folder else self.location
        pinned = ["-c", f"http.curloptResolve={site.host}:{site.port}:{site.address}"] if site and site.address else []
        command = (*pinned, "fetch", *options, "--end-of-options", origin, *refspecs)
        try:
            self._git(*command, limits=limits, folder=into, what=what)
        except SourceFailed:
            # What git prints when it hits the limit differs between its versions; the unfinished pack does not.
            unfinished = (file.stat().st_size for file in (into / "objects" / "pack").glob("*tmp*"))
            if limits.file is not None and max(unfinished, default=0) >= limits.file:
                raise _TooLarge(
                    f"{origin} has more new objects than its mirror has room for: raise KERNELWATCH_MIRROR_LIMIT."
                ) from None
            raise

    def _git(
        self,
        *arguments: str,
        fine: Sequence[int] = (0,),
        limits: GitLimits = _ASK,
        folder: Path | None = None,
        most: int = MAX_OUTPUT,
        given: bytes | None = None,
        what: str = "",
    ) -> bytes:
        """Run git and return what it printed.  Raises SourceFailed with the reason, also for too long or too much."""
        stdin = given is not None
        with self._asking(*arguments, fine=fine, limits=limits, folder=folder, stdin=stdin, what=what) as answer:
            if given is not None:
                _pipe(answer.stdin).write(given)
                _pipe(answer.stdin).close()
            printed = _pipe(answer.stdout).read(most + 1)
            if len(printed) > most:
                raise SourceFailed(f"git {_verb(arguments)} on {self.location} printed too much output.", passing=False)
            return printed

    @contextmanager
    def _asking(
        self,
        *arguments: str,
        fine: Sequence[int] = (0,),
        limits: GitLimits = _STREAM,
        folder: Path | None = None,
        stdin: bool = False,
        what: str = "",
    ) -> Iterator[subprocess.Popen[bytes]]:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [
                    *_within(limits),
                    "git",
                    f"--git-dir={folder or self._mirror}",
                    "-c",
                    "core.hooksPath=/dev/null",
                    *arguments,
                ],
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment(),
                cwd="/",
                start_new_session=True,
            )
            over, why = threading.Event(), list[Exception]()

            def watch() -> None:
                patience = time.monotonic() + limits.seconds
                while not over.wait(min(WATCH_EVERY_S, limits.seconds)):
                    try:
                        self._keep_going()
                        if time.monotonic() > patience:
                            took = f"git {_verb(arguments)} on {self.location} took longer than {limits.seconds:.0f} s."
                            raise _TooSlow(took)
                    except Exception as reason:
                        why.append(reason)
                        _end(process)
                        return

            threading.Thread(target=watch, name="git", daemon=True).start()
            try:
                yield process
                with suppress(BrokenPipeError):
                    if process.stdin:
                        process.stdin.close()
                code = process.wait()
            except Exception:
                if why:  # what the reader of a cut answer made of it is not the reason
                    raise why[0] from None
                raise
            finally:
                over.set()
                _end(process)
                _pipe(process.stdout).close()
                if process.stdin:
                    with suppress(OSError):  # git has ended and does not read what is still buffered
                        process.stdin.close()
            if why:
                raise why[0]
            if code not in fine:
                errors.seek(0)
                raise _failure(what or self.location, _verb(arguments), errors.read(64 * 1024).decode(errors="replace"))

    def _environment(self) -> dict[str, str]:
        configuration = str(self._mirror.parent / "gitconfig")
        protocols = "file" if self._folder else "https"
        if not self._folder and self.location.startswith("http://"):
            protocols = "http"
        proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ} if not self._folder else {}
        return {**_ENVIRONMENT, **proxies, "GIT_CONFIG_GLOBAL": configuration, "GIT_ALLOW_PROTOCOL": protocols}


class _Enough(Exception):
    """The rest of the output is not needed."""


class _NoSuchRef(SourceFailed):
    """The origin does not have a reference."""


class _TooSlow(SourceFailed):
    """Git was ended because it took too long."""


class _TooLarge(SourceFailed):
    """There is more to fetch than there is room for."""


def _within(limits: GitLimits) -> tuple[str, ...]:
    """The start of a command that ends with this process and keeps to its limits.

    Mapped packs do not count as memory.  `ulimit -f` counts blocks of 512 bytes.
    """
    file = "" if limits.file is None else f"ulimit -f {(limits.file + 511) // 512}; "
    return (*_ending_with_us(), "/bin/sh", "-c", f'ulimit -d {limits.memory >> 10}; {file}exec "$@"', "git")


@cache
def _ending_with_us() -> tuple[str, ...]:
    """The start of a command that the kernel kills when this process has ended, where the system has it."""
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv", path=_ENVIRONMENT["PATH"]) else ()


def _is_on_gitlab(location: str) -> bool:
    """Whether a repository is on the GitLab of the settings."""
    try:
        host = urlsplit(location).hostname
    except ValueError:
        return False
    return host is not None and host == urlsplit(settings().gitlab_url).hostname


def _verb(arguments: Sequence[str]) -> str:
    return next((a for a in arguments if re.fullmatch(r"[a-z][a-z-]+", a)), "command")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure(location: str, verb: str, said: str) -> SourceFailed:
    """Build an error from git's output, with whether a retry may help."""
    lines = [line.removeprefix("fatal: ").removeprefix("error: ") for line in said.splitlines() if line.strip()]
    reason = "; ".join(lines[-3:])[:500] or "git said nothing"
    if "find remote ref" in said:
        return _NoSuchRef(f"{location} does not have it ({reason}). The forge may not serve it yet.")
    for words, meaning in (
        (("not found", "could not read Username", "Authentication failed", "does not appear to be a git repo"),
         "does not exist, is no git repository, or is not public"),
        (("redirect",), "has moved to another address; register the new one"),
        (("ut of memory", "malloc failed", "mmap failed"), "has a revision that is too large to read"),
        (("fsck", "in packed object", "not send all necessary", "repository corruption"),
         "has damaged or forged objects"),
        (("signal 11",), "has a revision that git cannot read"),
    ):  # fmt: skip
        if any(word in said for word in words):
            return SourceFailed(f"{location} {meaning} ({reason}).", passing=False)
    if "No space left on device" in said:
        return SourceFailed(f"The disk is full: {location} was not fetched.")
    if verb == "fetch":
        return SourceFailed(f"{location} cannot be reached: {reason}.")
    return SourceFailed(f"git {verb} failed on the mirror of {location}: {reason}.")


_NAMES = ("--diff-merges=first-parent", "--no-renames", "--name-only", "--no-ext-diff")


def _found(record: bytes) -> Found:
    """One commit as it was printed, perhaps only the beginning of it."""
    sha, committed, parents, author, subject, paths = (record + b"\0" * 5).split(b"\0", 5)
    return Found(
        sha.decode(),
        parents.decode().split(" ")[0] or None,
        _plain(subject, 500),
        _plain(author, 200),
        float(committed or 0),
        *_first(paths.removeprefix(b"\0\n").rstrip(b"\0")),
    )


def _first(paths: bytes) -> tuple[tuple[str, ...], bool]:
    """The first of these paths, and whether there are more."""
    cut = len(paths) > MAX_PATH_BYTES
    whole = paths[:MAX_PATH_BYTES].rpartition(b"\0")[0] if cut else paths
    first = [path for path in whole.split(b"\0") if path]
    return tuple(path.decode(errors="replace") for path in first[:MAX_PATHS]), cut or len(first) > MAX_PATHS


def _plain(text: bytes, most: int) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", " ", text.decode(errors="replace"))[:most]


def _entry(line: bytes) -> tuple[str, str, int, str]:
    """(mode, object, size, path) of one line of `ls-tree -l`."""
    about, _, path = line.partition(b"\t")
    mode, _, blob, size = about.decode().split()
    return mode, blob, 0 if size == "-" else int(size), os.fsdecode(path)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("git was started without this pipe")
    return stream


def _pieces(stream: IO[bytes], end: bytes) -> Iterator[bytes]:
    rest = b""
    while chunk := stream.read(1 << 16):
        *whole, rest = (rest + chunk).split(end)
        yield from whole
        if len(rest) > MIB:
            raise BadInput("A path of the tree is longer than 1 MiB.")


def _beginnings(stream: IO[bytes], end: bytes, most: int) -> Iterator[bytes]:
    """The pieces before each `end` and after the last, each cut to `most` bytes."""
    piece = rest = b""
    while chunk := stream.read(1 << 16):
        *whole, rest = (rest + chunk).split(end)
        for one in whole:
            yield (piece + one)[:most]
            piece = b""
        piece, rest = (piece + rest[: -len(end)])[:most], rest[-len(end) :]
    yield (piece + rest)[:most]


def _blob(answer: subprocess.Popen[bytes], blob: str) -> Iterator[bytes]:
    """The content of one object in pieces, which must all be taken."""
    ask, tell = _pipe(answer.stdin), _pipe(answer.stdout)
    with suppress(BrokenPipeError):
        ask.write(blob.encode() + b"\n")
        ask.flush()
    header = tell.readline().split()
    if len(header) != 3:
        raise SourceFailed(f"The mirror lacks the object {blob}; it may be damaged.", passing=False)
    left = int(header[2])
    while left and (chunk := tell.read(min(left, MIB))):
        left -= len(chunk)
        yield chunk
    tell.read(1)
