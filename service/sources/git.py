"""A git repository as a source: a full bare mirror; no name in it can become an option of a git command."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from service.errors import BadInput, NotFound, SourceFailed
from service.settings import GIB, MIB
from service.sources.reach import Site, check_url, folder_of, place, site_of
from service.sources.source import Exported, Found, some
from service.sources.trees import TreeWriter

FETCH_LIMIT_S = 1800  # the first mirror of a large repository takes minutes
ASK_LIMIT_S = 60
WATCH_EVERY_S = 0.5
MAX_OUTPUT = 64 * MIB
MAX_MEMORY = 512 * MIB  # a forged tree of ten small objects has 10^10 paths, which git would hold all at once
FETCH_MEMORY = 8 * GIB
MAX_COMMITS = 10_000
LARGEST_READ = 4 * MIB
REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", "+refs/pull/*/head:refs/pull/*/head")
ORIGIN_HEAD = "refs/kernelwatch/origin-head"

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REV = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+#=@~^-]{0,199}")
_FORMAT = "%H%x00%P%x00%s%x00%an%x00%ct%x00"

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
[fetch "fsck"]\n\tzeroPaddedFilemode = ignore\n\tbadTimezone = ignore\n\tmissingSpaceBeforeDate = ignore
[gc]\n\tauto = 0
"""


def mirror_of(name: str, location: str) -> Path:
    """The path of the mirror of a target's repository."""
    return place(name, location).with_suffix(".git")


class GitSource:
    """The commits of one repository."""

    def __init__(self, name: str, location: str, keep_going: Callable[[], object] = lambda: None) -> None:
        self.name, self.location, self._keep_going = name, location, keep_going
        self._folder = folder_of(location)
        if self._folder is None:
            check_url(location)
        self._mirror = mirror_of(name, location)

    def refresh(self) -> None:
        """Fetch branches, tags and heads of pull requests into the mirror.  One process fetches at a time."""
        site = None if self._folder else site_of(self.location)
        with self._alone():
            self._fetch(site, *REFSPECS)
            try:
                self._fetch(site, f"+HEAD:{ORIGIN_HEAD}", prune=False)
            except SourceFailed:  # the origin's HEAD names a branch that does not exist
                self._git("update-ref", "-d", ORIGIN_HEAD)
            if branch := self._origin_branch():
                self._git("symbolic-ref", "HEAD", f"refs/heads/{branch}")

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
        """The full sha of a branch, tag, pull request (`pull/7/head`), sha or expression such as `main~2`."""
        rev = rev.strip()
        if not _REV.fullmatch(rev) or ".." in rev or "@{" in rev:
            raise BadInput(f"{rev[:80]!r} is not a revision; write a branch, a tag or a commit's sha.")
        self._have()
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

    def last_release(self, sha: str) -> str | None:
        asked = ("describe", "--tags", "--abbrev=0", f"{self._known(sha)}^")
        tag = self._git(*asked, fine=(0, 128)).decode(errors="surrogateescape").strip()
        return self._commit(f"refs/tags/{tag}") if tag else None

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

    def identity(self, sha: str) -> str:
        return self._git("rev-parse", "--verify", "--end-of-options", f"{self._known(sha)}^{{tree}}").decode().strip()

    def export(self, sha: str, folder: Path, python: tuple[int, int] | None = None) -> Exported:  # noqa: ARG002
        """Write the tree blob by blob: attributes of the repository (filters, export-ignore) have no say in it."""
        writer = TreeWriter(folder, f"{self.name} at {sha[:10]}")
        wanted: list[tuple[str, str, str]] = []
        with self._asking("ls-tree", "-r", "-z", "-l", "--full-tree", self._known(sha)) as answer:
            for line in _pieces(_pipe(answer.stdout), b"\0"):
                mode, blob, size, path = _entry(line)
                if mode == "160000":
                    writer.folder_only(path, f"The submodule {path} is left empty, because submodules are not fetched.")
                else:
                    writer.announce(size)
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
        options = ("--first-parent", "--diff-merges=first-parent", "--no-renames", "--name-only", "-z", "--no-ext-diff")
        start = secrets.token_hex(8)  # random, so that no subject or path contains it
        layout = f"--format={start}{_FORMAT}"
        logged = self._git("log", *options, "--encoding=UTF-8", "--reverse", layout, *arguments, "--")
        return [_found(record) for record in logged.split(start.encode())[1:]]

    def _known(self, sha: str) -> str:
        if not _SHA.fullmatch(sha):
            raise BadInput(f"{sha[:80]!r} is not a full commit sha.")
        self._have()
        if not self._commit(sha):
            return self.resolve(sha)
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

    def _origin_branch(self) -> str | None:
        """The branch of the origin's HEAD; among several, the usual names and the last answer are preferred."""
        last = self._git("symbolic-ref", "--short", "HEAD").decode().strip()
        head = self._commit(ORIGIN_HEAD)
        points = ("--points-at", head) if head else ()
        listed = self._git("for-each-ref", "--format=%(refname:lstrip=2)", *points, "refs/heads/")
        branches = listed.decode(errors="replace").split()
        preferred = [name for name in (last, "main", "master") if name in branches]
        return next(iter([*preferred, *branches]), None)

    def _fetched(self, sha: str) -> str | None:
        """Ask for a commit that no ref names any more, as after a forced push.  Not every host answers that."""
        site = None if self._folder else site_of(self.location)
        with self._alone(), suppress(SourceFailed):
            self._fetch(site, f"+{sha}:refs/kernelwatch/kept/{sha}", prune=False)
        return self._commit(sha)

    def _have(self) -> None:
        if not (self._mirror / "HEAD").exists() or not (self._mirror / "fetched").exists():
            self.refresh()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the mirror's lock, and make the mirror if there is none."""
        self._mirror.parent.mkdir(parents=True, exist_ok=True)
        with open(self._mirror.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # It serves all mirrors, whose gits may be reading it: it is never seen half written.
            fresh = self._mirror.parent / f"gitconfig-{secrets.token_hex(8)}.tmp"
            fresh.write_text(_CONFIGURATION)
            fresh.rename(self._mirror.parent / "gitconfig")
            if not (self._mirror / "HEAD").exists():
                self._git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(self._mirror))
            yield

    def _fetch(self, site: Site | None, *refspecs: str, prune: bool = True) -> None:
        if shutil.disk_usage(self._mirror).free < GIB // 4:
            raise SourceFailed(f"The disk under {self._mirror.parent} is full; nothing was fetched.")
        options = ["--quiet", "--force", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"]
        options += ["--no-recurse-submodules", *(["--prune"] if prune else [])]
        origin = str(self._folder) if self._folder else self.location
        pinned = ["-c", f"http.curloptResolve={site.host}:{site.port}:{site.address}"] if site and site.address else []
        self._git(
            *pinned,
            "fetch",
            *options,
            "--end-of-options",
            origin,
            *refspecs,
            limit_s=FETCH_LIMIT_S,
            memory=FETCH_MEMORY,
        )
        (self._mirror / "fetched").touch()

    def _git(
        self, *arguments: str, fine: Sequence[int] = (0,), limit_s: float = ASK_LIMIT_S, memory: int = MAX_MEMORY
    ) -> bytes:
        """Run git and return what it printed.  Raises SourceFailed with the reason, also for too long or too much."""
        with self._asking(*arguments, fine=fine, limit_s=limit_s, memory=memory) as answer:
            printed = _pipe(answer.stdout).read(MAX_OUTPUT + 1)
            if len(printed) > MAX_OUTPUT:
                raise SourceFailed(f"git {_verb(arguments)} on {self.location} printed too much output.", passing=False)
            return printed

    @contextmanager
    def _asking(
        self,
        *arguments: str,
        fine: Sequence[int] = (0,),
        limit_s: float = ASK_LIMIT_S * 5,
        memory: int = MAX_MEMORY,
        stdin: bool = False,
    ) -> Iterator[subprocess.Popen[bytes]]:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [*_within(memory), "git", f"--git-dir={self._mirror}", "-c", "core.hooksPath=/dev/null", *arguments],
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment(),
                cwd="/",
                start_new_session=True,
            )
            over, why = threading.Event(), list[Exception]()

            def watch() -> None:
                patience = time.monotonic() + limit_s
                while not over.wait(min(WATCH_EVERY_S, limit_s)):
                    try:
                        self._keep_going()
                        if time.monotonic() > patience:
                            took = f"git {_verb(arguments)} on {self.location} took longer than {limit_s:.0f} s."
                            raise SourceFailed(took)
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
            if why:
                raise why[0]
            if code not in fine:
                errors.seek(0)
                raise _failure(self.location, _verb(arguments), errors.read(64 * 1024).decode(errors="replace"))

    def _environment(self) -> dict[str, str]:
        configuration = str(self._mirror.parent / "gitconfig")
        protocols = "file" if self._folder else "https"
        if not self._folder and self.location.startswith("http://"):
            protocols = "http"
        proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ} if not self._folder else {}
        return {**_ENVIRONMENT, **proxies, "GIT_CONFIG_GLOBAL": configuration, "GIT_ALLOW_PROTOCOL": protocols}


def _within(memory: int) -> tuple[str, ...]:
    """The start of a command that may hold so much of its own memory (mapped packs do not count), and ends with us."""
    ends = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv", path=_ENVIRONMENT["PATH"]) else ()
    return (*ends, "/bin/sh", "-c", f'ulimit -d {memory >> 10}; exec "$@"', "git")


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
    for words, meaning in (
        (("not found", "could not read Username", "Authentication failed", "does not appear to be a git repo"),
         "does not exist, is no git repository, or is not public"),
        (("redirect",), "has moved to another address; register the new one"),
        (("ut of memory", "malloc failed", "mmap failed"), "has a revision that is too large to read"),
        (("fsck", "in packed object"), "has damaged or forged objects"),
    ):  # fmt: skip
        if any(word in said for word in words):
            return SourceFailed(f"{location} {meaning} ({reason}).", passing=False)
    if "No space left on device" in said:
        return SourceFailed(f"The disk is full: {location} was not fetched.")
    if verb == "fetch":
        return SourceFailed(f"{location} cannot be reached: {reason}.")
    return SourceFailed(f"git {verb} failed on the mirror of {location}: {reason}.")


def _found(record: bytes) -> Found:
    sha, parents, subject, author, committed, paths = record.split(b"\0", 5)
    return Found(
        sha.decode(),
        parents.decode().split(" ")[0] or None,
        _plain(subject, 500),
        _plain(author, 200),
        float(committed or 0),
        tuple(path.decode(errors="replace") for path in paths.removeprefix(b"\0\n").split(b"\0") if path),
    )


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
