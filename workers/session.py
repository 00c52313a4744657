"""One run, from lease to record: fetch, build, measure head, parent and SOTA side by side, hand the evidence over.

No transaction is open while anything here builds or measures.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import select
from sqlalchemy.orm import selectinload

from kernels import messages
from kernels.arena import Contender, Pace, run_launch
from kernels.words import Case, Role
from service import recipes, verdicts
from service.database import reading, transaction
from service.errors import BuildFailed, LeaseLost, Refused, ServiceError, SourceFailed
from service.evidence import Evidence, cells
from service.ledger import queue, recording
from service.models import CellState, Run, Target
from service.policy import Policy
from service.recipes import Recipe
from service.settings import settings
from service.sources import Source, open_source
from workers import environments, sandbox
from workers.contenders import contender
from workers.device import DeviceHere
from workers.environments import BaseStack, Environment
from workers.heartbeat import Heartbeat, Stopped
from workers.tally import Tally

log = structlog.get_logger()

FARTHEST_BASELINE = 20  # how many parents back a usable baseline is looked for


@dataclass(frozen=True)
class Assignment:
    """What the ledger says about a leased run."""

    run: Run
    recipe: Recipe
    adapters: Mapping[str, str]
    sandboxed: bool

    @property
    def target(self) -> Target:
        return self.run.target


def measure(lease: queue.Lease, here: DeviceHere) -> None:
    """Do one leased run to its end, whatever that is.  Never raises: the worker takes the next run."""
    try:
        with Heartbeat(lease, settings().lease_s) as heart:
            evidence = _examine(lease, here, heart)
        with transaction() as session:
            recording.record(session, lease, evidence)
    except LeaseLost as lost:
        log.info("run lost", run=lease.run_id, reason=str(lost))
    except Stopped as stopped:
        _end(lease, str(stopped), again=True, blame=False)
    except SourceFailed as failure:
        _end(lease, str(failure), again=failure.passing)
    except BuildFailed as failure:
        _end(lease, str(failure), again=False, log_lines=failure.log)
    except ServiceError as error:
        _end(lease, str(error), again=False)
    except Exception as error:
        log.exception("run broke", run=lease.run_id)
        _end(lease, _plainly(error), again=True)


def _plainly(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"the worker could not go on: {error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return f"the worker could not go on: {type(error).__name__}: {error}"


def _end(lease: queue.Lease, why: str, *, again: bool, blame: bool = True, log_lines: str | None = None) -> None:
    try:
        with transaction() as session:
            if again:
                queue.give_back(session, lease, why, blame=blame)
            else:
                recording.fail(session, lease, why, log_lines)
    except LeaseLost as lost:
        log.info("run lost", run=lease.run_id, reason=str(lost))


def _assignment(lease: queue.Lease) -> Assignment:
    loads = (selectinload(Run.target), selectinload(Run.recipe), selectinload(Run.revision))
    with reading() as session:
        run = session.execute(select(Run).where(Run.id == lease.run_id).options(*loads)).scalar_one()
    trouble = sandbox.self_test()
    if trouble and not (run.trusted and run.target.allow_unsandboxed):
        raise Refused(
            f"The sandbox does not work on this worker ({trouble}), and "
            + (
                f"target {run.target.name} may not run without it: mend it (`kernelwatch doctor`), or allow this "
                f"target with `kernelwatch target allow-unsandboxed {run.target.name}`."
                if run.trusted
                else "an untrusted revision never runs without it: mend it (`kernelwatch doctor`)."
            )
        )
    return Assignment(run, recipes.parse(run.recipe.text), run.recipe.adapters, sandboxed=trouble is None)


def _examine(lease: queue.Lease, here: DeviceHere, heart: Heartbeat) -> Evidence:
    assignment = _assignment(lease)
    run, recipe = assignment.run, assignment.recipe
    cases = recipe.cases(run.suite)
    source = open_source(run.target)
    heart.say("fetching")
    source.refresh()
    heart.say("building the revision")
    head = _build(assignment, source, run.revision.sha, heart)
    heart.keep_going()
    heart.say("building the baseline")
    baseline, parent, notes = _baseline(assignment, source, heart)
    heart.keep_going()
    with tempfile.TemporaryDirectory(prefix="kernelwatch-", dir=_scratch()) as scratch:
        contenders = list(_contenders(assignment, head, parent, here, Path(scratch)))
        tally = Tally(contenders, cases)
        policy = recipe.policy_on(run.device)
        began, load = time.time(), os.getloadavg()
        seconds = _launches(
            tally, contenders, cases, policy, here, heart, seed=lease.run_id * 10_000 + lease.attempt * 100
        )
    environments.evict(settings().environments_limit)
    stack, device = _stack(tally)
    telemetry = {"worker": lease.worker, "began": began, "load_before": load, "device": device, "launches": seconds}
    return Evidence(tally.taken(), baseline, notes, stack, telemetry, assignment.sandboxed)


def _stack(tally: Tally) -> tuple[dict[str, Any], dict[str, Any]]:
    """The versions that all contenders share, and the device they ran on.

    SOTA's process has only the stack in it, so its versions are the stack's; any other serves where there is no SOTA.
    """
    labels = sorted(tally.stacks, key=lambda label: not label.startswith(Role.SOTA))
    versions = dict(tally.stacks[labels[0]]) if labels else {}
    device = versions.pop("device", {})
    if driver := next((one["gpu"]["driver"] for one in tally.telemetry if one.get("gpu", {}).get("driver")), None):
        versions["driver"] = driver
    return versions, device


def _scratch() -> Path:
    folder = settings().state / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _build(assignment: Assignment, source: Source, sha: str, heart: Heartbeat) -> Environment:
    return environments.build(
        source,
        sha,
        assignment.recipe,
        assignment.adapters,
        kind=assignment.target.kind.value,
        sandboxed=assignment.sandboxed,
        keep_going=heart.keep_going,
    )


def _baseline(
    assignment: Assignment, source: Source, heart: Heartbeat
) -> tuple[str | None, Environment | None, tuple[str, ...]]:
    """The nearest first-parent ancestor that can be measured, its environment, and why it is not the parent itself."""
    run, sha, passed = assignment.run, assignment.run.baseline, list[str]()
    for _ in range(FARTHEST_BASELINE):
        if sha is None:
            break
        with reading() as session:
            why = recording.unfit(session, run.target, sha, run.device)
        if why is None:
            try:
                return sha, _build(assignment, source, sha, heart), _notes(passed, sha)
            except BuildFailed as failure:
                why = str(failure)
        passed.append(f"{sha[:10]} was passed over as baseline: {why}")
        sha = source.describe(sha).parent
    return None, None, (*passed, "there is no earlier revision to compare with")


def _notes(passed: list[str], sha: str) -> tuple[str, ...]:
    return (*passed, f"compared with {sha[:10]} instead") if passed else ()


def _contenders(
    assignment: Assignment, head: Environment, parent: Environment | None, here: DeviceHere, scratch: Path
) -> Iterator[Contender]:
    recipe, device = assignment.recipe, assignment.run.device

    def one(role: Role, spec: Mapping[str, Any], place: Environment | BaseStack) -> Contender:
        label = f"{role}:{spec['name']}"
        return contender(label, role, spec, place, here, sandboxed=assignment.sandboxed, scratch=scratch)

    own = [
        messages.targets_own(name, provider.calls, compile=provider.compile)
        for name, provider in recipe.providers_on(device).items()
    ]
    for spec in own:
        yield one(Role.HEAD, spec, head)
        if parent is not None:
            yield one(Role.PARENT, spec, parent)
    if own:
        yield one(Role.CONTROL, own[0], parent or head)
    yield one(Role.SOTA, messages.built_in(recipe.sota_on(device)), environments.stack(recipe.base.stack))


def _launches(
    tally: Tally,
    contenders: list[Contender],
    cases: tuple[Case, ...],
    policy: Policy,
    here: DeviceHere,
    heart: Heartbeat,
    seed: int,
) -> list[dict[str, Any]]:
    """Launch until every case is decided, confirmed, or out of budget.  Returns where the time went, by launch."""
    deadline = time.monotonic() + settings().session_limit_s
    spent: list[dict[str, Any]] = []
    # A CPU sample is some milliseconds of calls already; a GPU's is one replay, of which the median is taken.
    warm, timed = (1, 3) if here.name == "cpu" else (2, 5)
    pace = Pace(rounds=policy.rounds, warm=warm, timed=timed, turn_limit_s=settings().turn_limit_s)

    def launch(which: list[Contender], on: tuple[Case, ...], what: str, *, confirming: bool) -> None:
        if not on or time.monotonic() > deadline:
            return
        heart.say(what)
        turned = run_launch(
            which,
            on,
            pace,
            device="cpu" if here.name == "cpu" else "cuda",
            seed=seed + len(spent),
            core=max(os.sched_getaffinity(0)) if here.name == "cpu" else None,
            progress=lambda now: heart.say(f"{what}: {now}"),
            keep_going=heart.keep_going,
        )
        tally.add(turned, confirming=confirming)
        spent.append({"what": what, "seconds": turned.seconds, "telemetry": turned.telemetry})

    def asked(kind: str) -> tuple[list[Contender], tuple[Case, ...]]:
        """Who must run again on which cases; SOTA's flag is settled by the first launches."""
        names = {name for name, why in verdicts.wanted(cells(tally.taken()), policy).items() if why == kind}
        providers, texts = {provider for provider, _ in names}, {case for _, case in names}
        who = [
            c
            for c in contenders
            if c.role is Role.CONTROL or (c.role is not Role.SOTA and c.provider["name"] in providers)
        ]
        return who, tuple(case for case in cases if str(case) in texts)

    def until_decided(kind: str, who: list[Contender], on: tuple[Case, ...]) -> None:
        done, confirming = 0, kind == "confirm"
        while on and (more := verdicts.launches_until_next_look(done, policy)):
            for _ in range(more):
                done += 1
                launch(who, on, f"{'confirming ' * confirming}launch {done}", confirming=confirming)
                on = _with_hope(tally, on)
            who, on = asked(kind)

    until_decided("look", contenders, cases)
    until_decided("confirm", *asked("confirm"))
    return spent


def _with_hope(tally: Tally, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Without those at which every provider of the head is wrong or failed: more launches cannot change that."""
    heads = [one for one in tally.taken() if one.role is Role.HEAD]
    seen = {one.case for one in heads}
    measured = {one.case for one in heads if one.state is CellState.MEASURED}
    return tuple(case for case in cases if case in measured or case not in seen)
