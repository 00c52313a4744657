"""Compile the revisions of a target or of a checkout without a GPU; answers are cached with the environment."""

import errno
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kernels.arena import protocol
from kernels.arena.channel import ContenderLost
from kernels.arena.session import Connection, Contender
from kernels.cases import Case, Role
from service.db.engine import reading
from service.domain.policy import recipes
from service.domain.policy.recipes import Recipe
from service.domain.states import TargetKind
from service.errors import BadInput, Refused
from service.ledger import targets
from service.ledger.targets import RECIPE
from service.settings import MIB
from service.sources import open_source
from service.sources.checkout import Checkout
from service.sources.source import Source, read_beneath
from workers.machine.device import DeviceHere
from workers.machine.environments import Environment, facts_of
from workers.run.baselines import contender
from workers.sandbox import sandbox

AT_ONCE = 2  # a contender keeps one core busy
START_LIMIT_S, CASE_LIMIT_S, MORE_S = 180.0, 240.0, 5.0  # and so much more for each case ahead
BUDGET_S = 3600.0  # of all that one command compiles; 200 cases for two architectures took 73 s on two cores
AHEAD = 7  # cases that are compiled with the requested one: reading machine code takes as long for ten as for one
RESTARTS = 3  # of one contender that was lost; one that dies more often says nothing new
MAX_KEPT = 32 * MIB  # of one provider on one architecture; a case takes about 2 kB
MAX_VERSIONS = 4  # of what is kept, for as many engines or ways of calling a provider
NO_GPU = DeviceHere("cpu", "no GPU")


@dataclass(frozen=True)
class Job:
    """One provider of one environment, to be compiled for one architecture."""

    environment: Environment
    provider: Mapping[str, Any] = field(hash=False)
    arch: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.environment.key, self.provider["name"], self.arch


class CannotStart(Exception):
    """A contender does not come up: the module that the recipe names cannot be imported, say.

    `no_compiler`: its stack has no Triton, so that nothing of any revision can be compiled.
    """

    def __init__(self, why: str, *, no_compiler: bool = False) -> None:
        super().__init__(why)
        self.no_compiler = no_compiler


Answers = dict[str, dict[str, Any]]  # by case
Text = tuple[Case, int, str]  # which of the case's kernels, in which kind


class Bench:
    """Runs jobs, two at a time.

    `say` is called with their progress, and `keep_going` before each request and about every half second of a longer
    one.  What they raise ends all jobs.
    """

    def __init__(
        self,
        *,
        sandboxed: bool,
        scratch: Path,
        say: Callable[[str], None] = lambda _: None,
        keep_going: Callable[[], None] = lambda: None,
    ) -> None:
        self._sandboxed, self._scratch, self._say, self._keep_going = sandboxed, scratch, say, keep_going
        self._over = threading.Event()
        self._until = time.monotonic() + BUDGET_S
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def compile(self, jobs: Sequence[Job], cases: Sequence[Case]) -> dict[Job, Answers | CannotStart]:
        """The answer of each job for each case, or why the job could not start."""
        total = len(jobs) * len(cases)

        def one(job: Job) -> Answers | CannotStart:
            kept = _kept(job)
            answers = {str(case): kept[str(case)] for case in cases if str(case) in kept}
            self._tell(job, len(answers), total)
            if missing := [case for case in cases if str(case) not in answers]:
                try:
                    fresh = self._answers(job, missing, total)
                except CannotStart as why:
                    return why
                _keep(job, {case: answer for case, answer in fresh.items() if _lasting(answer)})
                answers |= fresh
            return {str(case): answers[str(case)] for case in cases}

        return dict(zip(jobs, self._each(one, jobs), strict=True))

    def texts(self, wanted: Mapping[Job, Sequence[Text]]) -> dict[tuple[Job, Text], str]:
        """The texts of kernels of each job; missing ones are left out."""

        def one(job: Job) -> dict[tuple[Job, Text], str]:
            said: dict[tuple[Job, Text], str] = {}
            self._say(f"reading the machine code for {job.arch}")
            with suppress(ContenderLost, CannotStart), self._started(job) as line:
                compiled: set[Case] = set()
                for case, kernel, kind in wanted[job]:
                    if case not in compiled:
                        self._ask(line, protocol.compile(case))
                        compiled.add(case)
                    answer = self._ask(line, protocol.texts(case, kernel, kind))
                    if isinstance(text := answer.get("text"), str) and text:
                        said[job, (case, kernel, kind)] = text
            return said

        return {key: text for each in self._each(one, list(wanted)) for key, text in each.items()}

    def _each(self, do: Callable[[Job], Any], jobs: Sequence[Job]) -> list[Any]:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="offline") as pool:
            doing = [pool.submit(do, job) for job in jobs]
            try:
                wait(doing, return_when=FIRST_EXCEPTION)
                return [one.result() for one in doing]
            except BaseException:
                self._over.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _answers(self, job: Job, cases: Sequence[Case], total: int) -> Answers:
        """Compile several cases at a time; after a crash one by one, to find the case that caused it."""
        answers: Answers = {}
        left, lost, alone = list(cases), 0, 0
        while left and lost <= RESTARTS and not self._over.is_set() and self._has_time():
            ahead: list[Case] = []
            try:
                with self._started(job) as line:
                    while left:
                        ahead = [] if alone else left[1 : AHEAD + 1]
                        limit_s = CASE_LIMIT_S + MORE_S * len(ahead)
                        answer = self._ask(line, protocol.compile(left[0], ahead), limit_s)
                        answers[str(left.pop(0))] = answer
                        alone = max(0, alone - 1)
                        self._tell(job, 1, total)
                        if answer.get("broken"):
                            break
            except ContenderLost as gone:
                if ahead:
                    alone = 1 + len(ahead)
                    continue
                answers[str(left.pop(0))] = _failed(f"the compiling process was lost: {gone}")
                lost, alone = lost + 1, max(0, alone - 1)
        why = f"{lost} compiling processes were lost" if self._has_time() else f"{BUDGET_S:.0f} s were over"
        return answers | {str(case): _failed(f"not tried: {why}") for case in left}

    def _has_time(self) -> bool:
        return time.monotonic() < self._until

    @contextmanager
    def _started(self, job: Job) -> Iterator[Connection]:
        line = self._contender(job).start()
        try:
            try:
                ready = self._ask(line, protocol.start(job.provider, job.arch, 1, None), START_LIMIT_S)
            except ContenderLost as gone:
                raise CannotStart(f"{job.provider['name']} does not start for {job.arch}: {gone}") from None
            if not ready.get("ready"):
                why = str(ready.get("reason") or ready.get("error") or "no reason was given")
                no_compiler = "No module named 'triton'" in why  # torch for the CPU comes without it
                if no_compiler:
                    why += "; create a stack with it: `kernelwatch stack create NAME triton`"
                said = f"{job.provider['name']} cannot be compiled for {job.arch}: {why}"
                raise CannotStart(said, no_compiler=no_compiler)
            yield line
        finally:
            line.close()

    def _contender(self, job: Job) -> Contender:
        label = f"{job.environment.key[:10]}-{job.provider['name']}-{job.arch}-{time.monotonic_ns()}"
        scratch = self._scratch
        return contender(
            label, Role.HEAD, job.provider, job.environment, NO_GPU, sandboxed=self._sandboxed, scratch=scratch
        )

    def _ask(self, line: Connection, message: Mapping[str, Any], limit_s: float = CASE_LIMIT_S) -> dict[str, Any]:
        self._keep_going()  # quick answers: a connection calls `_unless_over` only where it waits for half a second
        return line.ask(message, limit_s, self._unless_over)

    def _unless_over(self) -> None:
        self._keep_going()
        if self._over.is_set():
            raise ContenderLost("no longer wanted")
        if not self._has_time():
            raise ContenderLost(f"the time limit of {BUDGET_S:.0f} s was reached")

    def _tell(self, job: Job, more: int, total: int) -> None:
        with self._lock:
            self._done[job.arch] = self._done.get(job.arch, 0) + more
            done = sum(self._done.values())
        self._say(f"compiling for {', '.join(sorted(self._done))}: {done} of {total}")


def _failed(reason: str) -> dict[str, Any]:
    return {"state": "failed", "reason": reason, "lost": True}


# -- the cache ------------------------------------------------------------------------------------------------------


def _lasting(answer: Mapping[str, Any]) -> bool:
    """Would it be the same again?  Not for a lost process, nor for a lack of memory or disk."""
    known = answer.get("state") in ("compiled", "unsupported", "failed")
    return known and not answer.get("lost") and not answer.get("passing")


def _kept(job: Job) -> Answers:
    with suppress(OSError, ValueError):
        read = json.loads(_file(job).read_text())
        if isinstance(read, dict):
            return {case: answer for case, answer in read.items() if isinstance(answer, dict)}
    return {}


def _keep(job: Job, fresh: Answers) -> None:
    """Add to the cache, atomically; the oldest answers go where it would be too large."""
    every = _kept(job) | fresh
    sizes = {case: len(json.dumps(answer)) for case, answer in every.items()}
    total = sum(sizes.values())
    while total > MAX_KEPT:
        total -= sizes[oldest := next(iter(every))]
        del every[oldest]
    with suppress(OSError):  # not cached: compiled again the next time
        file = _file(job)
        fresh_file = file.with_name(f"{file.name}.{time.monotonic_ns()}.tmp")
        fresh_file.write_text(json.dumps(every))
        fresh_file.rename(file)
        alike = sorted(file.parent.glob(f"{_stem(job)}-*.json"), key=lambda one: one.stat().st_mtime)
        for old in alike[:-MAX_VERSIONS]:
            old.unlink(missing_ok=True)


def _file(job: Job) -> Path:
    asked = json.dumps([_engine(), dict(job.provider), job.arch], sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()[:16]
    return facts_of(job.environment.key) / f"{_stem(job)}-{digest}.json"


def _stem(job: Job) -> str:
    return f"{job.provider['name']}-{job.arch}"


@cache
def _engine() -> str:
    """A digest of the package `kernels`, which does the compiling."""
    digest = hashlib.sha256()
    for path in sorted(protocol.KERNELS.rglob("*.py")):
        digest.update(f"{path.relative_to(protocol.KERNELS)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


MAX_OWN = 4 << 20  # bytes of a recipe or an adapter


@dataclass(frozen=True)
class Subject:
    """What is compiled: a watched target, or a local checkout."""

    name: str
    kind: str
    source: Source
    recipe: Recipe
    adapters: Mapping[str, str]
    sandboxed: bool
    branch: str | None = None  # the mainline; None for the default branch

    def check_trust(self, *shas: str) -> None:
        """Raise Refused for a commit that may be a stranger's, if there is no sandbox for it."""
        if self.sandboxed or isinstance(self.source, Checkout):
            return
        for sha in shas:
            if not self.source.is_on_branch(sha):
                raise Refused(f"No branch of {self.name} contains {sha[:10]}: its code runs only in a sandbox.")


def subject(
    target: str, recipe: tuple[str, Mapping[str, str]] | None = None, *, without_sandbox: bool = False
) -> Subject:
    """Resolve a target's name or a folder (with a slash).  `recipe`: text and adapters, instead of its own.

    Raises NotFound, BadInput and Refused in words for people.
    """
    if "/" in target or target in (".", ".."):
        return _checkout(Path(target), recipe, without_sandbox)
    with reading() as session:
        watched = targets.target_named(session, target)
        own = (watched.recipe.text, watched.recipe.adapters) if watched.recipe else None
    if (told := recipe or own) is None:
        raise BadInput(f"Target {target} has no recipe yet: name one with --recipe.")
    source = open_source(watched)
    source.refresh()
    allowed = watched.trusted and watched.allow_unsandboxed
    walls = _sandboxed(without_it=allowed, mend=f"run `kernelwatch target allow-unsandboxed {target}` if you trust it")
    return Subject(target, watched.kind.value, source, _recipe(*told), told[1], walls, watched.branch)


def _checkout(folder: Path, recipe: tuple[str, Mapping[str, str]] | None, without_sandbox: bool) -> Subject:
    source = Checkout(folder)
    recipe = recipe or own_recipe(source)
    walls = _sandboxed(without_it=without_sandbox, mend="use --allow-unsandboxed if this is your own code")
    return Subject(source.name, TargetKind.GIT.value, source, _recipe(*recipe), recipe[1], walls)


def own_recipe(source: Checkout) -> tuple[str, dict[str, str]]:
    """The recipe that is in a checkout, with its adapters.  Raises BadInput if there is none."""
    text = _own(source.root, RECIPE)
    parsed = recipes.parse(text)
    targets.check_adapters(parsed, dict.fromkeys(parsed.adapters, ""))  # names that lead elsewhere are not read
    return text, {name: _own(source.root, name) for name in parsed.adapters}


def _own(root: Path, name: str) -> str:
    """The text of a file of the checkout.  Who wrote it may be a stranger: a link could lead to the host's files."""
    file = root / name
    plain = f"{file} is not a plain file: a link is not followed out of a checkout."
    try:
        content = read_beneath(root, name, MAX_OWN)
        if content is None:
            raise BadInput(plain)
        if len(content) > MAX_OWN:
            raise BadInput(f"{file} has more than {MAX_OWN >> 20} MiB.")
        return content.decode()
    except FileNotFoundError:
        raise BadInput(f"There is no {file}: write it, or name a recipe with --recipe.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
        raise BadInput(plain if linked else f"{file}: {error.strerror}.") from None


def _recipe(text: str, adapters: Mapping[str, str]) -> Recipe:
    parsed = recipes.parse(text)
    targets.check_adapters(parsed, adapters)
    return parsed


def _sandboxed(*, without_it: bool, mend: str) -> bool:
    """Whether there is a sandbox to compile in.  Raises Refused where there is none and it may not go without."""
    trouble = sandbox.self_test()
    if trouble and not without_it:
        raise Refused(f"The sandbox does not work: {trouble}. Fix it, or {mend}.")
    return trouble is None
