"""Measure a revision in two stacks and in their hybrids, side by side in one session.  Stores nothing."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from kernels.arena import protocol
from kernels.cases import BUILT_IN_PROVIDERS, Case
from service.domain.isolation import evaluation, why
from service.domain.isolation.evaluation import FROM, TO, CaseIsolation
from service.domain.isolation.result import Isolation, StackSide
from service.errors import BadInput, BuildFailed, ServiceError
from service.ledger.server_policy import effective
from service.settings import settings
from service.sources.checkout import Checkout
from workers import control, environments
from workers.compile.subjects import Subject
from workers.device import DeviceHere, exclusive
from workers.environments import BaseStack, Environment
from workers.isolation import arms
from workers.isolation.arms import StackArms
from workers.isolation.distributions import StackContents, contents
from workers.isolation.trials import Say, StackPlace, StackTrials
from workers.sandbox.folders import remove
from workers.specs import spec_of


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
    with exclusive(here.name), _scratch() as scratch:
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
        why.causes(taken, judged),
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
    return subject.recipe.cases(wish.suite or subject.recipe.suite_on(here.name))


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
