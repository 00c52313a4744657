"""Compile two revisions without a GPU and compare them: built as for a run, case by case, with their texts."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from kernels.arena import protocol
from kernels.cases import BUILT_IN_PROVIDERS, Case, Metric, Role
from service.domain.codefacts import compiled, diff, findings
from service.domain.codefacts.compiled import Compiled, CompiledPlace, State
from service.domain.codefacts.diff import Moved
from service.domain.codefacts.findings import ComparedRevision, FactsReport
from service.domain.codefacts.measured import ARCH_OF, KINDS, Difference, difference, mix
from service.domain.codefacts.texts import KernelText
from service.domain.policy.recipes import Recipe
from service.errors import BadInput, BuildFailed, ServiceError, Unavailable
from service.settings import settings
from service.sources.checkout import Checkout
from service.sources.source import Source
from workers.compile.offline import Answers, Bench, CannotStart, Job, Subject, Text
from workers.machine import environments
from workers.machine.definitions import Definitions, spec_of
from workers.machine.environments import Environment
from workers.sandbox.walls import remove

MAX_DIFFERENCES = 6  # shown; all of them go into a folder
MAX_STORED = 40  # changed kernels whose texts a check stores
MAX_TEXTS = 200  # kernels whose texts are written


@dataclass(frozen=True)
class Texts:
    """Gets texts from the contenders of both revisions."""

    bench: Bench
    before: Environment
    after: Environment
    providers: Mapping[str, Mapping[str, Any]]

    def of(self, moved: Sequence[Moved], kinds: Sequence[str]) -> dict[tuple[int, str], tuple[str, str]]:
        """(before, after) of each kernel by its number and kind, where at least one of them is there."""
        sides = [(self.before, "before"), (self.after, "after")]
        asked: dict[tuple[int, str], list[tuple[Job, Text] | None]] = {}
        wanted: dict[Job, list[Text]] = {}
        for number, one in enumerate(moved):
            for kind, (place, side) in product(kinds, sides):
                question = None
                if (kernel := getattr(one, side)) is not None:
                    job = Job(place, self.providers[one.place.provider], one.place.arch)
                    question = job, (Case.parse(one.place.case), kernel, kind)
                    wanted.setdefault(job, []).append(question[1])
                asked.setdefault((number, kind), []).append(question)
        said = self.bench.texts(wanted)
        pairs = {key: ["" if one is None else said.get(one, "") for one in both] for key, both in asked.items()}
        return {key: (old, new) for key, (old, new) in pairs.items() if old or new}


def differences(texts: Texts, moved: Sequence[Moved], kind: str, notes: list[str]) -> tuple[Difference, ...]:
    shown, found = moved[:MAX_DIFFERENCES], []
    pairs = texts.of(shown, [kind])
    for number, one in enumerate(shown):
        if (number, kind) not in pairs:
            notes.append(f"There is no {kind} of {one.name} at {one.place.case} on {one.place.arch}.")
            continue
        lines, cut = difference(kind, *pairs[number, kind])
        about = one.place.provider, one.place.case, one.place.arch, one.name, kind
        summary = mix(*pairs[number, kind]) if kind == "sass" else ""
        found.append(Difference(*about, lines, cut, summary, one.places))
    if rest := len(moved) - len(shown):
        notes.append(f"{rest} more kernels changed; --texts FOLDER writes the texts of all.")
    return tuple(found)


def stored(texts: Texts, moved: Sequence[Moved]) -> tuple[KernelText, ...]:
    """The texts of the first changed kernels before and after, at every place where they changed alike."""
    few = moved[:MAX_STORED]
    found = []
    for (number, kind), pair in texts.of(few, KINDS).items():
        one = few[number]
        for role, kernel, text in zip((Role.PARENT, Role.HEAD), (one.before, one.after), pair, strict=True):
            if text and kernel is not None:
                which = one.after if one.after is not None else kernel  # the same for both sides of a pair
                found += [
                    KernelText(f"{role}:{place.provider}", place.case, which, one.name, kind, text, place.arch)
                    for place in one.every
                ]
    return tuple(found)


def written(texts: Texts, moved: Sequence[Moved], folder: Path) -> str:
    """Write before and after of every changed kernel in every kind, and say where."""
    count = 0
    for (number, kind), pair in texts.of(moved[:MAX_TEXTS], KINDS).items():
        one = moved[number]
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", one.name)[:80]
        which = f"gone{one.before}" if one.after is None else str(one.after)
        place = folder / one.place.arch / one.place.provider / one.place.case
        try:
            place.mkdir(parents=True, exist_ok=True)
            for side, text in zip(("before", "after"), pair, strict=True):
                if text:
                    (place / f"{which}-{plain}.{side}.{kind}").write_text(text, errors="replace")
                    count += 1
        except OSError as error:
            raise BadInput(f"The texts cannot be written to {place}: {error.strerror}.") from None
    return f"{count} texts of {min(len(moved), MAX_TEXTS)} changed kernels were written to {folder}."


ARCHS = ("sm_90", "sm_100")
ABANDONED_S = 86_400

_ARCH = re.compile(r"sm_[0-9]{2,3}a?")
_SPAN = re.compile(r"(?P<base>.+?)(?P<dots>\.\.\.?)(?P<head>[^.].*)")
Say = Callable[[str], None]
KeepGoing = Callable[[], None]


@dataclass(frozen=True)
class Wish:
    """What to compare.  `show` is the kind of text whose differences are shown; `keep`: add the texts to the report."""

    revisions: str = "HEAD"
    suite: str | None = None
    archs: tuple[str, ...] = ARCHS
    providers: tuple[str, ...] = ()
    show: str | None = None
    texts: Path | None = None  # a folder for whole texts
    keep: bool = False


def archs_of(recipe: Recipe) -> tuple[str, ...]:
    """The architectures of the recipe's devices; none where all of them are processors or not known."""
    return tuple(dict.fromkeys(ARCH_OF[device] for device in recipe.devices if device in ARCH_OF))


def facts(subject: Subject, wish: Wish, say: Say = lambda _: None, keep_going: KeepGoing = lambda: None) -> FactsReport:
    """Compile and compare.  Raises BuildFailed when the head does not build or cannot be loaded; writes no rows.

    `keep_going` is called about every half second while programs run; what it raises ends them and the comparison.
    """
    began, notes = time.monotonic(), list[str]()
    _check(wish)
    say("resolving the revisions")
    base, head = _span(subject.source, wish.revisions)
    subject.check_trust(*(sha for sha in (base, head) if sha))
    if isinstance(subject.source, Checkout) and head == subject.source.resolve("HEAD"):
        notes += _uncommitted(subject.source)
    suite = wish.suite or _suite(subject.recipe)
    cases = _cases(subject.recipe, suite, notes)
    providers = _providers(subject.recipe, wish.providers, notes)
    report = FactsReport(
        subject.name,
        suite,
        wish.archs,
        tuple(providers),
        _side(subject.source, head),
        _side(subject.source, base) if base else None,
    )
    if base and (why := _nothing_matters(subject, base, head)):
        return replace(report, skipped=why, notes=tuple(notes))
    environments.evict(settings().environments_limit)
    say("building the head")
    after = _build(subject, head, keep_going)
    say("building the base")
    before = _base(subject, base, notes, keep_going)
    with _scratch() as scratch:
        bench = Bench(sandboxed=subject.sandboxed, scratch=scratch, say=say, keep_going=keep_going)
        places = [one for one in (after, before) if one is not None]
        jobs = [Job(one, spec, arch) for one in places for arch in wish.archs for spec in providers.values()]
        said = bench.compile(list(dict.fromkeys(jobs)), cases)  # equal trees are one environment
        _check_anything_compiles(said, after, before)
        notes += _not_started(said, before)
        now, was = _read(said, after) | _silent(said, after, cases), _read(said, before) if before else None
        definitions = Definitions(subject.source, base, head, after)
        now = {place: definitions.of_compiled(one) for place, one in now.items()}
        report = findings.compared(report, was, now, subject.recipe.facts)
        if before is not None and was is not None and (wish.show or wish.texts or wish.keep):
            moved = diff.moved(was, now)
            texts = Texts(bench, before, after, providers)
            if wish.show:
                report = replace(report, differences=differences(texts, moved, wish.show, notes))
            if wish.keep:
                report = replace(report, texts=stored(texts, moved))
            if wish.texts:
                notes.append(written(texts, moved, wish.texts))
    return replace(report, notes=tuple(notes), seconds=round(time.monotonic() - began, 1))


# -- the request ---------------------------------------------------------------------------------------------------


def _check(wish: Wish) -> None:
    for arch in wish.archs:
        if not _ARCH.fullmatch(arch):
            raise BadInput(f"{arch!r} is not an architecture; write sm_90 (H100, H200) or sm_100 (B200).")


def _span(source: Source, revisions: str) -> tuple[str | None, str]:
    """The base and the head of `BASE..HEAD`, of `BASE...HEAD` (from where they parted) or of `HEAD` (its parent)."""
    found = _SPAN.fullmatch(revisions)
    if not found and ".." in revisions:
        raise BadInput(f"{revisions!r} is not BASE..HEAD, BASE...HEAD or HEAD.")
    if not found:
        head = source.resolve(revisions)
        parent = source.describe(head).parent
        if parent is None and isinstance(source, Checkout) and source.shallow:
            fix = "fetch more (`git fetch --deepen=1`, or `fetch-depth: 2`)"
            raise BadInput(f"The parent of {revisions} is missing in this shallow checkout: {fix}.")
        return parent, head
    base, head = source.resolve(found["base"]), source.resolve(found["head"])
    return (source.merge_base(base, head) if found["dots"] == "..." else base), head


def _uncommitted(checkout: Checkout) -> Iterator[str]:
    if count := checkout.uncommitted():
        files = "1 file is" if count == 1 else f"{count} files are"
        yield f"Only commits are compared, and {files} changed since the head."


def _side(source: Source, sha: str) -> ComparedRevision:
    return ComparedRevision(sha, source.describe(sha).subject)


def _suite(recipe: Recipe) -> str:
    """The suite of the first GPU of the recipe."""
    return recipe.suite_on(next((device for device in recipe.devices if device != "cpu"), "default"))


def _cases(recipe: Recipe, suite: str, notes: list[str]) -> tuple[Case, ...]:
    """The cases of the suite as kernel cases; whole blocks are left out."""
    every = [case for case in recipe.cases(suite) if isinstance(case, Case)]
    if functions := len(recipe.cases(suite)) - len(every):
        notes.append(f"{functions} cases of the suite are of [[function]], which are compiled where they run.")
    cases = tuple(
        dict.fromkeys(replace(case, metric=Metric.KERNEL) for case in every if case.metric is not Metric.BLOCK)
    )
    if blocks := sum(case.metric is Metric.BLOCK for case in every):
        notes.append(f"{blocks} cases of the suite are whole blocks, which have no facts of their own.")
    if not cases:
        raise BadInput(f"The suite {suite!r} has no case that can be compiled without a GPU.")
    return cases


def _providers(recipe: Recipe, wanted: Sequence[str], notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """The providers by name: those named, or the recipe's; one that is built in runs in the revision's environment."""
    own = {name: spec_of(name, provider) for name, provider in recipe.providers.items()}
    chosen: dict[str, Mapping[str, Any]] = {}
    for name in wanted:
        if name not in own and name not in BUILT_IN_PROVIDERS:
            known = ", ".join([*own, *(one for one in BUILT_IN_PROVIDERS if one not in own)])
            raise BadInput(f"There is no provider {name!r}; known: {known}.")
        chosen[name] = own.get(name) or protocol.of_revision(name, name)
    if chosen:
        return chosen
    only_cpu = [name for name, provider in recipe.providers.items() if set(provider.devices) == {"cpu"}]
    if len(only_cpu) == len(own):
        return {**own}
    if only_cpu:
        left_out = ", ".join(only_cpu)
        notes.append(f"Left out, because the recipe has it on the CPU only: {left_out} (name it with --provider).")
    return {name: spec for name, spec in own.items() if name not in only_cpu}


def _nothing_matters(subject: Subject, base: str, head: str) -> str | None:
    """Why nothing needs compiling, where no path of the recipe changed; else None."""
    if base == head:
        return "Base and head are the same commit: nothing was compiled."
    if isinstance(subject.source, Checkout):
        paths = subject.source.changed(base, head)
    elif subject.source.merge_base(base, head) != base:
        return None
    else:
        paths = {path for one in subject.source.between(base, head) for path in one.paths}
    if subject.recipe.matters(paths):
        return None
    return f"No path of the recipe changed ({len(paths)} other files did): nothing was compiled."


# -- compilation ---------------------------------------------------------------------------------------------------


def _build(subject: Subject, sha: str, keep_going: KeepGoing) -> Environment:
    return environments.build(
        subject.source,
        sha,
        subject.recipe,
        subject.adapters,
        kind=subject.kind,
        sandboxed=subject.sandboxed,
        keep_going=keep_going,
    )


def _base(subject: Subject, sha: str | None, notes: list[str], keep_going: KeepGoing) -> Environment | None:
    """The environment of the base; without one the head is reported alone."""
    if sha is None:
        notes.append("The head has no parent: there is nothing to compare with.")
        return None
    try:
        return _build(subject, sha, keep_going)
    except BuildFailed as failure:
        notes.append(f"There is nothing to compare with, because the base {sha[:10]} does not build: {failure}")
        return None


Said = Mapping[Job, Answers | CannotStart]


def _read(said: Said, place: Environment) -> dict[CompiledPlace, Compiled]:
    """The answers of the jobs of one environment, place by place."""
    facts: dict[CompiledPlace, Compiled] = {}
    for job, answers in said.items():
        if job.environment == place and not isinstance(answers, CannotStart):
            name = job.provider["name"]
            facts |= {CompiledPlace(name, case, job.arch): compiled.read(answer) for case, answer in answers.items()}
    return facts


def _silent(said: Said, place: Environment, cases: Sequence[Case]) -> dict[CompiledPlace, Compiled]:
    """The places of providers that could not be loaded: at the head they count as failures."""
    return {
        CompiledPlace(job.provider["name"], str(case), job.arch): Compiled(State.FAILED, str(why))
        for job, why in said.items()
        if job.environment == place and isinstance(why, CannotStart)
        for case in cases
    }


def _check_anything_compiles(said: Said, head: Environment, base: Environment | None) -> None:
    """Raise BuildFailed where nothing of the head compiles, and ServiceError where nothing of the base does either.

    Raises Unavailable where the stack has no compiler.
    """
    if (why := _nothing(said, head)) is None:
        return
    if any(isinstance(one, CannotStart) and one.no_compiler for one in said.values()):
        raise Unavailable(f"Nothing can be compiled: {why}.")
    if base is not None and base != head and _nothing(said, base):
        raise ServiceError(f"Nothing can be compiled, neither at the base nor at the head: {why}.")
    raise BuildFailed(f"Nothing of the head can be compiled: {why}.")


def _nothing(said: Said, place: Environment) -> str | None:
    """Why no case of this environment compiles, by its first job; None where one does, or is too large."""
    whys = list[str]()
    for job, answers in said.items():
        if job.environment != place:
            continue
        if isinstance(answers, CannotStart):
            whys.append(str(answers))
        else:
            read = [compiled.read(answer) for answer in answers.values()]
            if any(one.state is not State.FAILED or one.over for one in read):
                return None
            whys += [one.reason for one in read]
    return whys[0].rstrip(".") if whys else None


def _not_started(said: Said, base: Environment | None) -> Iterator[str]:
    for job, why in said.items():
        if isinstance(why, CannotStart) and job.environment == base:
            yield f"At the base, {why}."


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for the contenders of this command; also removes the folders of commands that were killed."""
    root = settings().state / "scratch"
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob("facts-*"):
        if time.time() - left.stat().st_mtime > ABANDONED_S:
            remove(left)
    folder = Path(tempfile.mkdtemp(prefix="facts-", dir=root))
    try:
        yield folder
    finally:
        remove(folder)
