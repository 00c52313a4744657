"""One run, from lease to record: fetch, build, measure head, parent and SOTA side by side, hand the evidence over.

No transaction is open while anything here builds or measures.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import select
from sqlalchemy.orm import selectinload

from kernels import messages
from kernels.arena import Contender
from kernels.words import Case, Role
from service import recipes
from service.database import reading, transaction
from service.errors import BadInput, BuildFailed, LeaseLost, NotFound, Refused, ServiceError, SourceFailed
from service.evidence import Evidence
from service.ledger import queue, recording
from service.models import Purpose, Run, Target
from service.recipes import Recipe
from service.settings import settings
from service.sources import Source, open_source
from workers import environments, sandbox
from workers.contenders import contender
from workers.device import DeviceHere
from workers.environments import BaseStack, Environment
from workers.folders import remove
from workers.heartbeat import Heartbeat, Stopped
from workers.launches import Launches
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
    except SystemExit:  # how Celery ends a process of its pool that is told to end by itself, as systemd does
        _end(lease, str(Stopped()), again=True, blame=False)
        raise
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
    except Exception:  # the database is away, say: then the lease runs out, and a sweep returns the run to the queue
        log.exception("run could not be ended", run=lease.run_id, reason=why)


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
    cases = _cases(recipe, run)
    source = open_source(run.target, heart.keep_going)
    heart.say("fetching")
    _make_room(here)
    source.resolve(run.revision.sha)  # the origin is asked only for what is not here yet: it may be away
    heart.say("building the revision")
    head = _build(assignment, source, run.revision.sha, heart)
    heart.keep_going()
    heart.say("building the baseline")
    baseline, parent, notes = _baseline(assignment, source, heart)
    heart.keep_going()
    contenders = list(_contenders(assignment, head, parent, here))
    tally = Tally(contenders, cases)
    policy = recipe.policy_on(run.device)
    began, load = time.time(), os.getloadavg()
    try:
        launches = Launches(tally, contenders, policy, here, heart, seed=lease.run_id * 10_000 + lease.attempt * 100)
        launches.until_decided(cases)
    finally:
        remove(_scratch(here))
    if launches.late:
        limit = f"the session limit of {settings().session_limit_s:g} s was reached"
        if not tally.taken():
            mend = "watch fewer cases, or raise KERNELWATCH_SESSION_LIMIT_S"
            raise ServiceError(f"Nothing was measured before {limit}: {mend}.")
        notes = (*notes, f"{limit} before every case was decided")
    stack, device = _stack(tally)
    telemetry = {
        "worker": lease.worker,
        "began": began,
        "load_before": load,
        "device": device,
        "ceilings": launches.ceilings,
        "launches": launches.spent,
    }
    return Evidence(tally.taken(), baseline, notes, stack, telemetry, assignment.sandboxed)


def _cases(recipe: Recipe, run: Run) -> tuple[Case, ...]:
    """Those of the suite, or the ones among them that were asked for."""
    cases = recipe.cases(run.suite)
    wanted = None if run.only_cases is None else set(run.only_cases)
    return cases if wanted is None else tuple(case for case in cases if str(case) in wanted)


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


def _scratch(here: DeviceHere) -> Path:
    """Where this device's contenders write.  A device has one worker at a time, so nobody else's are in there."""
    return settings().state / "scratch" / (here.uuid or here.name)


def _make_room(here: DeviceHere) -> None:
    """Remove what a worker that died left here, and the environments beyond the limit.  A run can do without."""
    try:
        remove(_scratch(here))
        environments.evict(settings().environments_limit)
    except Exception:
        log.exception("no room could be made")


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
    """The nearest first-parent ancestor that can be measured, its environment, and why it is not the parent itself.

    Where none is fit, the nearest of the unfit that can be built: at the cases that it gets right it serves as well.
    """
    run, sha, passed, unfit = assignment.run, assignment.run.baseline, list[str](), list[str]()
    if sha is not None and run.purpose is not Purpose.WATCH:  # it was asked for beside exactly this one
        return sha, _build(assignment, source, sha, heart), ()
    for _ in range(FARTHEST_BASELINE):
        if sha is None:
            break
        with reading() as session:
            why = recording.unfit(session, run.target, sha, run.device)
        if why is not None:
            unfit.append(sha)
        elif isinstance(built := _built(assignment, source, sha, heart), Environment):
            return sha, built, (*passed, f"compared with {sha[:10]} instead") if passed else ()
        else:
            why = built
        passed.append(f"{sha[:10]} was passed over as baseline: {why}")
        sha = _parent(source, sha)
    for sha in unfit:
        if isinstance(built := _built(assignment, source, sha, heart), Environment):
            return sha, built, (*passed, f"compared with {sha[:10]} all the same, since no earlier revision is fit")
    return None, None, (*passed, "there is no earlier revision to compare with")


def _built(assignment: Assignment, source: Source, sha: str, heart: Heartbeat) -> Environment | str:
    """The environment of a baseline, or why there can be none: that is no fault of the head's."""
    try:
        return _build(assignment, source, sha, heart)
    except SourceFailed as failure:
        if failure.passing:
            raise
        return str(failure)
    except (BuildFailed, BadInput, NotFound) as failure:
        return str(failure)


def _parent(source: Source, sha: str) -> str | None:
    try:
        return source.describe(sha).parent
    except (BadInput, NotFound):  # history was rewritten, or a release taken back: nothing leads further
        return None


def _contenders(
    assignment: Assignment, head: Environment, parent: Environment | None, here: DeviceHere
) -> Iterator[Contender]:
    recipe, device = assignment.recipe, assignment.run.device

    def one(role: Role, spec: Mapping[str, Any], place: Environment | BaseStack) -> Contender:
        label = f"{role}:{spec['name']}"
        return contender(label, role, spec, place, here, sandboxed=assignment.sandboxed, scratch=_scratch(here))

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
    if assignment.run.purpose is not Purpose.WATCH:
        return  # how far the best is, is no question of a search or of a calibration
    yield one(Role.SOTA, messages.built_in(recipe.sota_on(device)), environments.stack(recipe.base.stack))
