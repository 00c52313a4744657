"""Measure one leased run: fetch, build, measure the head with its baselines, record the result.

No transaction is open while anything here builds or measures.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import exc
from sqlalchemy.exc import OperationalError

from kernels.arena import protocol
from kernels.arena.session import Contender
from kernels.cases import AnyCase, Case, Role
from service.db.engine import reading, transaction
from service.db.models import Run
from service.domain.states import Purpose
from service.domain.text import one_line
from service.domain.verdicts.session_result import SessionResult
from service.errors import BuildFailed, LeaseLost, SandboxFailed, ServiceError, SourceFailed
from service.ledger.policies import effective
from service.ledger.runs import baselines, queue, recording
from service.settings import settings
from service.sources import open_source
from workers.machine import environments
from workers.machine.definitions import Definitions, spec_of
from workers.machine.device import DeviceHere
from workers.machine.environments import BaseStack, Environment
from workers.run.baselines import Baselines, Built, References, contender
from workers.run.heartbeat import Assignment, Heartbeat, Holding, Stopped, assigned, stopping
from workers.run.trials import OnDevice, Tally, Trials
from workers.sandbox import sandbox
from workers.sandbox.walls import remove

log = structlog.get_logger()

OUTAGES = (OperationalError, exc.InterfaceError, exc.TimeoutError)  # of the database
RECORD_RETRIES_S = (1.0, 5.0, 15.0)  # waits; the lease is not renewed meanwhile, and has to last


def measure(lease: queue.Lease, *here: DeviceHere) -> tuple[DeviceHere, ...]:
    """Measure a leased run on these devices and end it.  Never raises: the worker takes the next run.

    Returns the devices that were lost.
    """
    with Holding(lease, here[0]) as held:
        return _measure(lease, here, held)


def _measure(lease: queue.Lease, here: Sequence[DeviceHere], held: Holding) -> tuple[DeviceHere, ...]:
    lost: tuple[DeviceHere, ...] = ()
    try:
        with Heartbeat(lease, settings().lease_s) as heart:
            result, lost = _examine(lease, here, heart, held)
        _record(lease, result)
    except LeaseLost as reason:
        log.info("run lost", run=lease.run_id, reason=str(reason))
    except (Stopped, SandboxFailed) as reason:
        _end(lease, str(reason), again=True, blame=False)
    except SystemExit:  # how Celery ends a process of its pool on a signal, e.g. from systemd
        _end(lease, str(Stopped()), again=True, blame=False)
        raise
    except SourceFailed as failure:
        _end(lease, str(failure), again=failure.passing, blame=False, wait=True)
    except BuildFailed as failure:
        _end(lease, str(failure), again=False, failure=failure)
    except ServiceError as error:
        _end(lease, str(error), again=False)
    except Exception as error:
        log.exception("run failed", run=lease.run_id)
        _end(lease, _plainly(error), again=True, blame=held.in_code and not isinstance(error, OUTAGES), wait=True)
    return lost


def _record(lease: queue.Lease, result: SessionResult) -> None:
    """Store the result, with retries where the database restarts or breaks up a deadlock."""
    for wait_s in (*RECORD_RETRIES_S, None):
        try:
            with transaction() as session:
                recording.record(session, lease, result)
            return
        except OperationalError as trouble:
            if wait_s is None:
                raise
            log.warning("run not recorded yet", run=lease.run_id, error=one_line(str(trouble)), retry_in_s=wait_s)
            stopping.wait(wait_s)


def _plainly(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"the worker failed: {error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return f"the worker failed: {type(error).__name__}: {error}"


def _end(
    lease: queue.Lease,
    why: str,
    *,
    again: bool,
    blame: bool = True,
    wait: bool = False,
    failure: BuildFailed | None = None,
) -> None:
    try:
        with transaction() as session:
            if again:
                queue.give_back(session, lease, why, blame=blame, wait=wait)
            else:
                log_lines, whole = (failure.log, failure.whole) if failure else (None, "")
                recording.fail(session, lease, why, log_lines, whole)
    except LeaseLost as lost:
        log.info("run lost", run=lease.run_id, reason=str(lost))
    except Exception:  # e.g. without a database: the lease expires, and a sweep returns the run to the queue
        log.exception("run could not be ended", run=lease.run_id, reason=why)


def _examine(
    lease: queue.Lease, here: Sequence[DeviceHere], heart: Heartbeat, held: Holding
) -> tuple[SessionResult, tuple[DeviceHere, ...]]:
    """Return the result, and the devices that were lost."""
    seconds: dict[str, float] = {}  # those of the trials are in `trials.spent`
    with _timed(seconds, "fetch"):
        assignment = assigned(lease)
        run, cases = assignment.run, assignment.cases
        source = open_source(run.target, heart.keep_going)
        heart.say("fetching")
        _make_room(here)
        source.resolve(run.revision.sha)  # fetches only what is not here yet: the origin may be down
        baselines = Baselines(assignment, source, heart.keep_going)
    with _timed(seconds, "build"):
        heart.say("building the revision")
        held.code_starts()
        head = baselines.head()
        heart.keep_going()
    with _timed(seconds, "baselines"):
        heart.say("building the baselines")
        references = baselines.references()
        heart.keep_going()
    devices = [
        OnDevice(one, tuple(_contenders(assignment, head, references, one)), _trusted(assignment, one)) for one in here
    ]
    tally = Tally(devices[0].contenders, cases)
    policy = effective(assignment.recipe, run.device)
    began, load = time.time(), os.getloadavg()
    try:
        seed = lease.run_id * 10_000 + lease.attempt * 100
        before = assignment.repeats_before
        sandbox.take_shortage()  # of an earlier session
        trials = Trials(
            tally,
            devices,
            policy,
            heart,
            seed=seed,
            known=assignment.known,
            repeats_before=before,
            code_decides=run.code_decides,
            compared_before=partial(_compared_before, run, references, tally),
        )
        trials.until_decided(cases)
        # What was lost may have been lost to one of these.
        if assignment.sandboxed and (trouble := sandbox.self_test()):
            raise SandboxFailed(f"The sandbox stopped working: {trouble}.")
        if shortage := sandbox.take_shortage():
            raise OSError(shortage, os.strerror(shortage))
    finally:
        for one in here:
            remove(_scratch(one))
    notes = (*references.notes, *trials.notes)
    if trials.late:
        limit = f"the session limit of {settings().session_limit_s:g} s was reached"
        if not tally.taken():
            remedy = "Watch fewer cases, or raise KERNELWATCH_SESSION_LIMIT_S."
            raise ServiceError(f"Nothing was measured before {limit}. {remedy}")
        notes = (*notes, f"{limit} before every case was decided")
    stack, device = tally.stack
    telemetry = {
        "worker": lease.worker,
        "began": began,
        "load_before": load,
        "device": device,
        "ceilings": trials.ceilings,
        "seconds": seconds,
        "trials": trials.spent,
        **({"gpus": gpus} if (gpus := trials.gpus) else {}),
        **({} if assignment.sandboxed else {"no_sandbox": assignment.no_sandbox}),
    }
    definitions = Definitions(source, references.baseline, run.revision.sha, head)
    result = SessionResult(
        tuple(map(definitions.of_result, tally.taken())),
        references.baseline,
        notes,
        stack,
        telemetry,
        assignment.sandboxed,
        last_good={name: one.sha for one in references.last_good for name in one.names or ()},
        pinned=references.pinned.sha if references.pinned else None,
        earlier=references.earlier,
        build_log=environments.log_of(head.key),
        texts=tally.texts(),
    )
    return result, tuple(trials.lost)


def _compared_before(run: Run, references: References, tally: Tally) -> frozenset[tuple[str, str]]:
    """The cases at which the parent's session on this stack compared it with all baselines that take part here."""
    versions, _ = tally.stack
    pinned = references.pinned.sha if references.pinned else None
    with reading() as session:
        before = baselines.earlier(session, run, references.baseline, versions, pinned)
    if before is None or len(references.parents) > 1:
        return frozenset()
    return before.names - {name for one in references.last_good for name in one.names or ()}


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[phase] = time.monotonic() - began


def _scratch(here: DeviceHere) -> Path:
    """The scratch folder of a device's contenders.  A device has one worker at a time."""
    return settings().state / "scratch" / here.key


def _make_room(here: Sequence[DeviceHere]) -> None:
    """Remove what a worker that died left here, and the environments beyond the limit.  A run can do without."""
    try:
        for one in here:
            remove(_scratch(one))
        environments.evict(settings().environments_limit)
    except Exception:
        log.exception("could not free disk space")


def _trusted(assignment: Assignment, here: DeviceHere) -> Contender:
    """A contender with nothing of the target, which judges the outputs of all others."""
    stack = environments.stack(assignment.recipe.base.stack)
    eager = protocol.built_in("eager")
    sandboxed, scratch = assignment.sandboxed, _scratch(here)
    return contender("judge", Role.SOTA, eager, stack, here, sandboxed=sandboxed, scratch=scratch)


def _contenders(
    assignment: Assignment, head: Environment, references: References, here: DeviceHere
) -> Iterator[Contender]:
    recipe, run, device = assignment.recipe, assignment.run, assignment.run.device

    def one(
        role: Role,
        spec: Mapping[str, Any],
        place: Environment | BaseStack,
        label: str = "",
        cases: frozenset[AnyCase] | None = None,
    ) -> Contender:
        name = label or f"{role}:{spec['name']}"
        sandboxed, scratch = assignment.sandboxed, _scratch(here)
        return contender(name, role, spec, place, here, sandboxed=sandboxed, scratch=scratch, cases=cases)

    def taking(spec: Mapping[str, Any]) -> frozenset[AnyCase] | None:
        """The cases of a provider, where functions are measured besides norms; None for all."""
        if not recipe.function:
            return None
        provider = recipe.providers[spec["name"]]
        norms = bool(provider.calls or provider.builtin)  # which say themselves what they do not support
        return frozenset(
            case for case in assignment.cases if (norms if isinstance(case, Case) else provider.offers(case))
        )

    def some(role: Role, spec: Mapping[str, Any], revisions: Sequence[Built]) -> Iterator[Contender]:
        """The revisions that share the cases of a role among them."""
        for number, revision in enumerate(revisions):
            cases = revision.cases_of(spec["name"], assignment.cases)
            takes = taking(spec)
            cases = takes if cases is None else cases if takes is None else cases & takes
            if cases is None or cases:
                label = f"{role}:{spec['name']}" + (f":{number}" if number else "")
                yield one(role, spec, revision.place, label, cases)

    own = [spec_of(name, provider) for name, provider in recipe.providers_on(device).items()]
    for spec in own:
        yield one(Role.HEAD, spec, head, cases=taking(spec))
        yield from some(Role.PARENT, spec, references.parents)
        yield from some(Role.LAST_GOOD, spec, references.last_good)
        if references.pinned is not None:
            yield one(Role.PINNED, spec, references.pinned.place, cases=taking(spec))
    for spec in own:
        yield from some(Role.CONTROL, spec, references.parents or (Built(run.revision.sha, head),))
    if run.purpose is not Purpose.WATCH:
        return  # a bisection and a calibration are not compared with SOTA
    stack = environments.stack(recipe.base.stack)
    if (sota := recipe.sota_on(device)) is None:
        yield one(Role.SOTA, protocol.built_in("eager"), stack, cases=frozenset())
        return
    norms = frozenset(case for case in assignment.cases if isinstance(case, Case))
    yield one(Role.SOTA, protocol.built_in(sota), stack, cases=norms)
    for name in recipe.rivals_on(device):
        yield one(Role.RIVAL, protocol.built_in(name), stack, cases=norms)
