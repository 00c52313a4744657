"""Measure a revision in two stacks and in their hybrids, in turns, until every case is decided.  Stores nothing."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from kernels.arena import protocol
from kernels.arena.session import Contender, Judge, OutOfTime, ProcessPool, Trial, run_trials
from kernels.cases import BUILT_IN_PROVIDERS, Case, Role
from service.domain.isolation import evaluation
from service.domain.isolation.components import unintended
from service.domain.isolation.evaluation import FROM, TO, CaseIsolation, IsolatedCase, Isolation, StackSide
from service.domain.policy.policy import Policy
from service.domain.states import CellState
from service.errors import BadInput, BuildFailed, ServiceError
from service.ledger.policies import effective
from service.settings import settings
from service.sources.checkout import Checkout
from workers import control
from workers.compile.offline import Subject
from workers.isolation import arms
from workers.isolation.arms import StackArm, StackArms, StackContents, contents
from workers.machine import environments
from workers.machine.definitions import spec_of
from workers.machine.device import DeviceHere, exclusive
from workers.machine.environments import BaseStack, Environment
from workers.run.baselines import LAST_CASE_S, contender
from workers.run.trials import HOST_METRICS, Tally, pace, side_by_side
from workers.sandbox.walls import remove

Say = Callable[[str], None]
_NO_VERSION = ("device", "replaced")  # of what a contender reports of its stack


@dataclass(frozen=True)
class StackPlace:
    """An arm with the revision built in its stack."""

    arm: StackArm
    environment: Environment


@dataclass
class _Entry:
    """One provider in one arm."""

    arm: StackArm
    contender: Contender
    tally: Tally
    runs: bool = True


@dataclass
class StackTrials:
    """All trials of a session.  `missing`: arms that did not run, with reasons; `versions`: what each arm reported."""

    sandboxed: bool
    cases: tuple[Case, ...]
    providers: Sequence[protocol.ProviderSpec]
    places: Sequence[StackPlace]
    made: StackArms
    policy: Policy
    here: DeviceHere
    scratch: Path
    say: Say
    done: int = 0
    notes: list[str] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.missing = dict(self.made.missing)
        self._seed = int(time.time())
        self._deadline = time.monotonic() + settings().session_limit_s
        self._late = False
        plain = [self._contender(place, spec) for place in self.places for spec in self.providers]
        self._pool = ProcessPool("cuda" if self._on_gpu else "cpu", len(plain), self._core)
        self._entries = [_Entry(arm, one, Tally([one], self.cases)) for arm, one in plain]

    def _contender(self, place: StackPlace, spec: protocol.ProviderSpec) -> tuple[StackArm, Contender]:
        """A built-in provider runs no code of the revision, and needs the stack alone."""
        arm = place.arm
        runs_in: Environment | BaseStack = place.environment
        if spec["builtin"] and not spec["of_revision"]:
            runs_in = arm.stack
        label = f"{arm.name}:{spec['name']}"
        return arm, self._start(label, arm.role, spec, runs_in)

    def _start(self, label: str, role: Role, spec: protocol.ProviderSpec, place: Environment | BaseStack) -> Contender:
        return contender(label, role, spec, place, self.here, sandboxed=self.sandboxed, scratch=self.scratch)

    def until_decided(self, at: Sequence[int]) -> tuple[CaseIsolation, ...]:
        """Run trials up to each of these numbers, of the providers and cases that are undecided until then."""
        judge = Judge(self._start("judge", Role.SOTA, protocol.built_in("eager"), self.places[0].arm.stack))
        every = {(one["name"], case) for one in self.providers for case in self.cases}
        wanted = every
        judged: tuple[CaseIsolation, ...] = ()
        try:
            for number in at:
                while self.done < number and wanted and not self._late:
                    self._trials(wanted, judge, number - self.done)
                judged = self._judged(tuple(at))
                still = {(one.provider, one.case) for one in judged if one.open}
                # All cases are tested together: what others show may open one that was decided.
                wanted = {(name, case) for name, case in every if (name, str(case)) in still}
        finally:
            self._pool.close()
            judge.close()
        if self._late:
            self.notes.append(
                f"The session limit of {settings().session_limit_s:g} s was reached before every case was decided "
                "(KERNELWATCH_SESSION_LIMIT_S)."
            )
        return judged

    def _judged(self, at: tuple[int, ...]) -> tuple[CaseIsolation, ...]:
        names = [one.name for one in self.made.components]
        both = [one for one in self.results() if not is_unsupported(one)]
        return evaluation.evaluate(both, names, self.policy, at)

    @property
    def _on_gpu(self) -> bool:
        return self.here.name != "cpu"

    @property
    def _core(self) -> int | None:
        return None if self._on_gpu else max(os.sched_getaffinity(0))

    def _trials(self, wanted: set[tuple[str, Case]], judge: Judge, most: int) -> None:
        """Run some trials side by side; the first alone, because it shows which hybrids take part."""
        cases = [case for case in self.cases if any(case == one for _, one in wanted)]
        entries = [one for one in self._entries if one.runs]
        who = [_at(one.contender, wanted) for one in entries]
        apart = any(case.metric in HOST_METRICS for case in cases)
        count = 1 if apart or self.done == 0 else min(most, side_by_side(self.here, len(who)))
        turned = run_trials(
            who,
            cases,
            pace(self.policy, len(cases), on_gpu=self._on_gpu),
            device="cuda" if self._on_gpu else "cpu",
            seeds=[self._seed + self.done + number for number in range(count)],
            core=self._core,
            thorough=self.done == 0,
            progress=lambda now: self.say(f"trial {self.done + 1}: {now}"),
            keep_going=self._keep_going,
            once_open=lambda _: (
                self._pool.fill([one for one in who if one.cases]) if self._on_gpu and not apart else None
            ),
            uuid=self.here.uuid,
            memory=self.here.memory,
            deadline=self._deadline,
            pool=self._pool,
            judge=judge,
        )
        self._late = any({case for _, case in trial.cells} != set(cases) for trial in turned)
        if self.done == 0:
            self._check_versions(turned[0])
        for one in entries:
            for trial in turned if one.runs else ():
                one.tally.add(trial, confirming=False)
        self.done += count

    def _keep_going(self) -> None:
        if time.monotonic() > self._deadline + LAST_CASE_S:
            raise OutOfTime

    def _check_versions(self, trial: Trial) -> None:
        """Let no hybrid take part that did not start, or that runs something else than it should."""
        for one in self._entries:
            if stack := trial.stacks.get(one.contender.label):
                self.versions.setdefault(
                    one.arm.name, {name: str(of) for name, of in stack.items() if name not in _NO_VERSION}
                )
        for one in self._entries:
            if reason := self._unfit(one, trial):
                self.missing.setdefault(one.arm.name, reason)
                one.runs = one.arm.component is None

    def _unfit(self, one: _Entry, trial: Trial) -> str | None:
        label, arm = one.contender.label, one.arm
        if label not in trial.stacks:
            return next((cell.reason for (of, _), cell in trial.cells.items() if of == label), None) or "did not start"
        if arm.component is None:
            return None
        base, donor = (self.versions.get(name, {}) for name in (arm.base, arm.donor))
        return unintended(arm.component, base, donor, self.versions[arm.name]) or None

    def results(self) -> list[IsolatedCase]:
        """The results so far, of the arms that run, case by case."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for one in self._entries:
            if one.runs:
                for result in one.tally.taken():
                    found.setdefault((result.provider, str(result.case)), {})[one.arm.name] = result
        return [IsolatedCase(*name, of_arms) for name, of_arms in found.items()]


def _at(contender: Contender, wanted: set[tuple[str, Case]]) -> Contender:
    """The contender at the cases that are wanted of its provider; without any it is not started."""
    return replace(contender, cases=frozenset(case for name, case in wanted if name == contender.provider["name"]))


def is_unsupported(one: IsolatedCase) -> bool:
    """Neither stack supports the case."""
    return all(one.arms[arm].state is CellState.UNSUPPORTED for arm in (FROM, TO) if arm in one.arms)


@dataclass(frozen=True)
class IsolationWish:
    """`before` and `after` are names of stacks; without `providers` the target's own are measured.

    After `trials` trials, those cases that are undecided get as many more, until `most` are made.
    """

    before: str
    after: str
    revision: str | None = None  # by default the newest of the mainline
    suite: str | None = None
    providers: tuple[str, ...] = ()
    components: tuple[str, ...] = ()  # all that differ by default
    trials: int = 4
    most: int = 12


def isolated(subject: Subject, wish: IsolationWish, say: Say = lambda _: None) -> Isolation:
    """Measure and evaluate.

    Raises:
        BadInput: The stacks cannot be mixed, or the wish does not fit the recipe or the device.
        BuildFailed: The revision does not build in one of the two stacks.
        ServiceError: Nothing could be measured in both stacks.
    """
    began = time.monotonic()
    here = control.here()
    cases, providers = _cases(subject, wish, here), _providers(subject, wish, here)
    if wish.before == wish.after:
        raise BadInput("--from and --to are the same stack; name two that differ.")
    say("reading the stacks")
    before, after = (contents(environments.stack(name)) for name in (wish.before, wish.after))
    made = arms.arms_of(before, after, wish.components)
    sha = _resolved(subject, wish.revision)
    environments.evict(settings().environments_limit)
    policy = effective(subject.recipe, here.name)
    places = _places(subject, sha, made, say)
    with exclusive(here.key), _scratch() as scratch:
        session = StackTrials(subject.sandboxed, cases, providers, places, made, policy, here, scratch, say)
        judged = session.until_decided(evaluation.steps(wish.trials, wish.most))
    taken = session.results()
    _check_measured(judged, session.missing)
    left_out = len(taken) - len(judged)
    notes = [*arms.notes(before, after, made), *session.notes]
    if left_out:
        notes.append(f"Left out, because neither stack supports them: {left_out} cases.")
    return Isolation(
        subject.name,
        sha,
        here.name,
        wish.suite or subject.recipe.suite_on(here.name),
        _side(before, session, FROM),
        _side(after, session, TO),
        made.components,
        judged,
        policy.confidence,
        evaluation.causes(taken, judged),
        session.missing,
        tuple(notes),
        session.done,
        round(time.monotonic() - began, 1),
    )


# -- the request ---------------------------------------------------------------------------------------------------


def _cases(subject: Subject, wish: IsolationWish, here: DeviceHere) -> tuple[Case, ...]:
    if here.name not in subject.recipe.devices:
        devices = ", ".join(subject.recipe.devices)
        raise BadInput(f"This machine has {here.name}, and the recipe measures on {devices}: add it to `devices`.")
    return tuple(
        case
        for case in subject.recipe.cases(wish.suite or subject.recipe.suite_on(here.name))
        if isinstance(case, Case)
    )


def _providers(subject: Subject, wish: IsolationWish, here: DeviceHere) -> list[protocol.ProviderSpec]:
    own = {name: spec_of(name, provider) for name, provider in subject.recipe.providers_on(here.name).items()}
    if unknown := [name for name in wish.providers if name not in own and name not in BUILT_IN_PROVIDERS]:
        known = ", ".join([*own, *(name for name in BUILT_IN_PROVIDERS if name not in own)])
        raise BadInput(f"There is no provider {unknown[0]!r}; known: {known}.")
    wanted = dict.fromkeys(wish.providers or own)
    return [own[name] if name in own else protocol.built_in(name) for name in wanted]


def _resolved(subject: Subject, revision: str | None) -> str:
    """The revision that is held; by default the newest of the mainline."""
    source = subject.source
    if revision is None and not isinstance(source, Checkout):
        sha = source.mainline(subject.branch, 1)[-1].sha
    else:
        sha = source.resolve(revision or "HEAD")
    subject.check_trust(sha)
    return sha


def _check_measured(judged: Sequence[CaseIsolation], missing: Mapping[str, str]) -> None:
    if any(one.median is not None for one in judged):
        return
    reasons = (f"{arm}: {missing[arm]}" for arm in (FROM, TO) if arm in missing)
    states = (f"{one.case}: {found[1]}" for one in judged for found in one.states.values())
    reason = next(chain(reasons, states), "no case of the suite is supported by the providers")
    raise ServiceError(f"Nothing was measured: {reason.rstrip('.')}.")


# -- arms ----------------------------------------------------------------------------------------------------------


def _places(subject: Subject, sha: str, made: StackArms, say: Say) -> list[StackPlace]:
    """Build the revision in the stack of every arm: what it compiles may depend on the stack.

    A hybrid in which it does not build is missing.
    """
    found = []
    for arm in made.arms:
        say(f"building the revision in {arm.name}")
        try:
            found.append(StackPlace(arm, _built(subject, sha, arm.stack)))
        except BuildFailed as failure:
            if arm.component is None:
                raise
            made.missing[arm.name] = str(failure)
    return found


def _built(subject: Subject, sha: str, stack: BaseStack) -> Environment:
    recipe, adapters = subject.recipe, subject.adapters
    return environments.build(
        subject.source, sha, recipe, adapters, kind=subject.kind, sandboxed=subject.sandboxed, base=stack
    )


def _side(stack: StackContents, session: StackTrials, arm: str) -> StackSide:
    return StackSide(stack.stack.name, stack.python, session.versions.get(arm, {}))


@contextmanager
def _scratch() -> Iterator[Path]:
    root = settings().state / "scratch"
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="isolate-", dir=root))
    try:
        yield folder
    finally:
        remove(folder)
