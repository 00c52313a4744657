"""Two revisions compiled without a GPU and compared: built as for a run, asked case by case, told as one report."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernels import messages
from kernels.words import BUILT_IN_PROVIDERS, Case, Lane
from service import changes, compiled, facts_report, recipes
from service.compiled import Compiled, Place, State
from service.database import reading
from service.errors import BadInput, BuildFailed, Refused, ServiceError
from service.facts_report import FactsReport, Side
from service.ledger import targets
from service.ledger.intake import RECIPE
from service.listings import KINDS, Difference, difference
from service.models import TargetKind
from service.recipes import Recipe
from service.settings import settings
from service.sources import Source, open_source
from service.sources.checkout import Checkout
from workers import environments, sandbox
from workers.environments import Environment
from workers.folders import remove
from workers.offline import Answers, Bench, CannotStart, Job, Text

ARCHS = ("sm_90", "sm_100")
MOST_DIFFERENCES = 6  # shown; all of them go into a folder
MOST_TEXTS = 200  # kernels whose texts are written
ABANDONED_S = 86_400

_ARCH = re.compile(r"sm_[0-9]{2,3}a?")
_SPAN = re.compile(r"(?P<base>.+?)(?P<dots>\.\.\.?)(?P<head>[^.].*)")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """What is compiled: a watched target, or a checkout that nobody watches."""

    name: str
    kind: str
    source: Source
    recipe: Recipe
    adapters: Mapping[str, str]
    sandboxed: bool


@dataclass(frozen=True)
class Wish:
    """What somebody wants to know.  `show` is the kind of text whose differences are shown."""

    revisions: str = "HEAD"
    suite: str | None = None
    archs: tuple[str, ...] = ARCHS
    providers: tuple[str, ...] = ()
    show: str | None = None
    texts: Path | None = None  # a folder for whole texts


def subject(
    target: str, recipe: tuple[str, Mapping[str, str]] | None = None, *, without_sandbox: bool = False
) -> Subject:
    """What a name or a folder (which is written with a slash) means.  `recipe`: text and adapters, instead of its own.

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
    walls = _sandboxed(without_it=allowed, mend=f"`kernelwatch target allow-unsandboxed {target}` where it is trusted")
    return Subject(target, watched.kind.value, source, _recipe(*told), told[1], walls)


def _checkout(folder: Path, recipe: tuple[str, Mapping[str, str]] | None, without_sandbox: bool) -> Subject:
    source = Checkout(folder)
    if recipe is None:
        file = source.root / RECIPE
        try:
            text = file.read_text()
            recipe = text, {name: (file.parent / name).read_text() for name in recipes.parse(text).adapters}
        except FileNotFoundError as missing:
            raise BadInput(f"There is no {missing.filename}: write it, or name a recipe with --recipe.") from None
        except OSError as error:
            raise BadInput(f"{error.filename}: {error.strerror}.") from None
    walls = _sandboxed(without_it=without_sandbox, mend="say --allow-unsandboxed, as it is your own code")
    return Subject(source.name, TargetKind.GIT.value, source, _recipe(*recipe), recipe[1], walls)


def _recipe(text: str, adapters: Mapping[str, str]) -> Recipe:
    parsed = recipes.parse(text)
    targets.check_adapters(parsed, adapters)
    return parsed


def _sandboxed(*, without_it: bool, mend: str) -> bool:
    """Whether there is a sandbox to compile in.  Raises Refused where there is none and it may not go without."""
    trouble = sandbox.self_test()
    if trouble and not without_it:
        raise Refused(f"The sandbox does not work here ({trouble}). Mend it (`kernelwatch doctor`), or {mend}.")
    return trouble is None


def facts(subject: Subject, wish: Wish, say: Say = lambda _: None) -> FactsReport:
    """Compile and compare.  Raises BuildFailed when the head does not build or cannot be loaded; writes no rows."""
    began = time.monotonic()
    for arch in wish.archs:
        if not _ARCH.fullmatch(arch):
            raise BadInput(f"{arch!r} is not an architecture; write sm_90 (H100, H200) or sm_100 (B200).")
    say("looking at the revisions")
    base, head = _span(subject.source, wish.revisions)
    suite, notes = wish.suite or _suite(subject.recipe), list[str]()
    cases = _cases(subject.recipe, suite, notes)
    providers = _providers(subject.recipe, wish.providers, notes)
    about = {"target": subject.name, "suite": suite, "archs": wish.archs, "providers": tuple(providers)}
    sides = {"head": _side(subject.source, head), "base": _side(subject.source, base) if base else None}
    if base and (why := _nothing_matters(subject, base, head)):
        return FactsReport(**about, **sides, skipped=why)  # type: ignore[arg-type]

    environments.evict(settings().environments_limit)
    say("building the head")
    after = _build(subject, head)
    say("building the base")
    before = _base(subject, base, notes)
    with _scratch() as scratch:
        bench = Bench(sandboxed=subject.sandboxed, scratch=scratch, say=say)
        places = [one for one in (after, before) if one is not None]
        jobs = {Job(one, spec, arch): None for one in places for arch in wish.archs for spec in providers.values()}
        said = bench.compile(list(jobs), cases)
        now, was = _read(said, after) | _silent(said, after, cases), _read(said, before) if before else None
        _complain_if_nothing_starts(said, after, before)
        notes += _not_started(said, before)
        report = facts_report.compared(was, now, subject.recipe.facts, **about, **sides)
        if before is not None and was is not None and (wish.show or wish.texts):
            moved = changes.moved(was, now)
            texts = _Texts(bench, before, after, providers)
            report = replace(report, differences=_differences(texts, moved, wish.show, notes) if wish.show else ())
            if wish.texts:
                notes.append(_written(texts, moved, wish.texts))
    return replace(report, notes=tuple(notes), seconds=round(time.monotonic() - began, 1))


# -- what is asked --------------------------------------------------------------------------------------------------


def _span(source: Source, revisions: str) -> tuple[str | None, str]:
    """The base and the head of `BASE..HEAD`, of `BASE...HEAD` (from where they parted) or of `HEAD` (its parent)."""
    found = _SPAN.fullmatch(revisions)
    if not found and ".." in revisions:
        raise BadInput(f"{revisions!r} is not BASE..HEAD, BASE...HEAD or HEAD.")
    if not found:
        head = source.resolve(revisions)
        return source.describe(head).parent, head
    base, head = source.resolve(found["base"]), source.resolve(found["head"])
    return (source.merge_base(base, head) if found["dots"] == "..." else base), head


def _side(source: Source, sha: str) -> Side:
    return Side(sha, source.describe(sha).subject)


def _suite(recipe: Recipe) -> str:
    """That of the first GPU of the recipe."""
    return recipe.suite_on(next((device for device in recipe.devices if device != "cpu"), "default"))


def _cases(recipe: Recipe, suite: str, notes: list[str]) -> tuple[Case, ...]:
    """The suite's cases; those of other lanes call the same kernels, but for a transformer block's."""
    every = recipe.cases(suite)
    cases = tuple(dict.fromkeys(replace(case, lane=Lane.KERNEL) for case in every if case.lane is not Lane.BLOCK))
    if blocks := sum(case.lane is Lane.BLOCK for case in every):
        notes.append(f"{blocks} of the suite's cases are whole blocks, which have no facts of their own.")
    if not cases:
        raise BadInput(f"The suite {suite!r} has no case that can be compiled without a GPU.")
    return cases


def _providers(recipe: Recipe, wanted: Sequence[str], notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """The providers by name: those named, or the recipe's; one that is built in runs in the revision's environment."""
    own = {
        name: messages.targets_own(name, provider.calls, compile=provider.compile)
        for name, provider in recipe.providers.items()
    }
    chosen: dict[str, Mapping[str, Any]] = {}
    for name in wanted:
        if name not in own and name not in BUILT_IN_PROVIDERS:
            known = ", ".join([*own, *(one for one in BUILT_IN_PROVIDERS if one not in own)])
            raise BadInput(f"There is no provider {name!r}; known: {known}.")
        chosen[name] = own.get(name) or messages.built_in(name)
    if chosen:
        return chosen
    only_cpu = [name for name, provider in recipe.providers.items() if set(provider.devices) == {"cpu"}]
    if len(only_cpu) == len(own):
        return {**own}
    if only_cpu:
        left_out = ", ".join(only_cpu)
        notes.append(f"Left out, as the recipe has it on the processor only: {left_out} (name it with --provider).")
    return {name: spec for name, spec in own.items() if name not in only_cpu}


def _nothing_matters(subject: Subject, base: str, head: str) -> str | None:
    """Why nothing needs compiling, where only files changed that the recipe says do not matter."""
    if base == head:
        return "Base and head are the same commit: nothing was compiled."
    if subject.source.merge_base(base, head) != base:
        return None
    paths = {path for one in subject.source.between(base, head) for path in one.paths}
    if subject.recipe.matters(paths):
        return None
    return f"None of the {len(paths)} changed files matters by the recipe: nothing was compiled."


# -- what is compiled -----------------------------------------------------------------------------------------------


def _build(subject: Subject, sha: str) -> Environment:
    return environments.build(
        subject.source, sha, subject.recipe, subject.adapters, kind=subject.kind, sandboxed=subject.sandboxed
    )


def _base(subject: Subject, sha: str | None, notes: list[str]) -> Environment | None:
    """The base's environment; without one the head is told alone."""
    if sha is None:
        notes.append("The head has no parent: there is nothing to compare with.")
        return None
    try:
        return _build(subject, sha)
    except BuildFailed as failure:
        notes.append(f"There is nothing to compare with, since the base {sha[:10]} does not build: {failure}")
        return None


Said = Mapping[Job, Answers | CannotStart]


def _read(said: Said, place: Environment) -> dict[Place, Compiled]:
    """What the jobs of one environment said, place by place."""
    facts: dict[Place, Compiled] = {}
    for job, answers in said.items():
        if job.environment == place and not isinstance(answers, CannotStart):
            name = job.provider["name"]
            facts |= {Place(name, case, job.arch): compiled.read(answer) for case, answer in answers.items()}
    return facts


def _silent(said: Said, place: Environment, cases: Sequence[Case]) -> dict[Place, Compiled]:
    """The places of providers that could not be loaded: at the head they are as many failures."""
    return {
        Place(job.provider["name"], str(case), job.arch): Compiled(State.FAILED, str(why))
        for job, why in said.items()
        if job.environment == place and isinstance(why, CannotStart)
        for case in cases
    }


def _complain_if_nothing_starts(said: Said, head: Environment, base: Environment | None) -> None:
    def silent(place: Environment) -> list[CannotStart]:
        answers = [answer for job, answer in said.items() if job.environment == place]
        refused = [answer for answer in answers if isinstance(answer, CannotStart)]
        return refused if len(refused) == len(answers) else []

    if whys := silent(head):
        if base is not None and base != head and silent(base):
            raise ServiceError(f"Nothing can be compiled, neither at the base nor at the head: {whys[0]}.")
        raise BuildFailed(f"Nothing of the head can be compiled: {whys[0]}.")


def _not_started(said: Said, base: Environment | None) -> Iterator[str]:
    for job, why in said.items():
        if isinstance(why, CannotStart) and job.environment == base:
            yield f"At the base, {why}."


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for this command's contenders; what commands left that were killed goes as well."""
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


# -- what changed in the texts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Texts:
    """Asks the contenders of both revisions for texts."""

    bench: Bench
    before: Environment
    after: Environment
    providers: Mapping[str, Mapping[str, Any]]

    def of(self, moved: Sequence[changes.Moved], kinds: Sequence[str]) -> dict[tuple[int, str], tuple[str, str]]:
        """(before, after) of each kernel by its number and kind, where at least one of them is there."""
        keys: dict[tuple[int, str], list[tuple[Job, Text]]] = {}
        wanted: dict[Job, list[Text]] = {}
        for number, one in enumerate(moved):
            for kind in kinds:
                for place, kernel in ((self.before, one.before), (self.after, one.after)):
                    job = Job(place, self.providers[one.place.provider], one.place.arch)
                    text = Case.parse(one.place.case), kernel, kind
                    wanted.setdefault(job, []).append(text)
                    keys.setdefault((number, kind), []).append((job, text))
        said = self.bench.texts(wanted)
        pairs = {key: (said.get(old, ""), said.get(new, "")) for key, (old, new) in keys.items()}
        return {key: pair for key, pair in pairs.items() if any(pair)}


def _differences(texts: _Texts, moved: Sequence[changes.Moved], kind: str, notes: list[str]) -> tuple[Difference, ...]:
    shown, found = moved[:MOST_DIFFERENCES], []
    pairs = texts.of(shown, [kind])
    for number, one in enumerate(shown):
        if (number, kind) not in pairs:
            notes.append(f"There is no {kind} of {one.name} at {one.place.case} on {one.place.arch}.")
            continue
        lines, cut = difference(kind, *pairs[number, kind])
        about = one.place.provider, one.place.case, one.place.arch, one.name, kind
        found.append(Difference(*about, lines, cut, one.places))
    if rest := len(moved) - len(shown):
        notes.append(f"{rest} more kernels changed; --texts FOLDER writes the texts of all.")
    return tuple(found)


def _written(texts: _Texts, moved: Sequence[changes.Moved], folder: Path) -> str:
    """Write before and after of every changed kernel in every kind, and say where."""
    count = 0
    for (number, kind), pair in texts.of(moved[:MOST_TEXTS], KINDS).items():
        one = moved[number]
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", one.name)[:80]
        place = folder / one.place.arch / one.place.provider / one.place.case
        try:
            place.mkdir(parents=True, exist_ok=True)
            for side, text in zip(("before", "after"), pair, strict=True):
                (place / f"{one.after}-{plain}.{side}.{kind}").write_text(text)
                count += 1
        except OSError as error:
            raise BadInput(f"The texts cannot be written to {place}: {error.strerror}.") from None
    return f"{count} texts of {min(len(moved), MOST_TEXTS)} changed kernels were written to {folder}."
