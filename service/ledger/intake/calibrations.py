"""Schedule calibrations: each worker compares two builds of one revision of each target of its device.

The first MIN_CALIBRATIONS as soon as a revision was measured, because until then times block nothing; then each night.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import structlog
from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import WATCHED, Calibration, Measurement, Revision, Run, Target, Worker
from service.domain.policy import recipes
from service.domain.states import OPEN_STATES, CellState, Equal, Priority, Purpose, RunState
from service.domain.text import is_due, is_recent, listed, short
from service.domain.verdicts.calibration import MIN_CALIBRATIONS
from service.errors import BadInput
from service.ledger import audit, targets
from service.ledger.calibration.sessions import MAX_AGE_S
from service.ledger.locking import lock
from service.ledger.policies import effective
from service.ledger.reading import revisions
from service.ledger.runs import baselines, internal_runs
from service.ledger.runs.revisions import recipe_of

log = structlog.get_logger()

LATELY_S = 15 * 60.0  # a worker seen since then is online
GONE_S = 24 * 3600.0  # runs for a worker not seen for so long are cancelled
MAX_EVERY_S = 31 * 24 * 3600.0  # between two calibrations (`Calibrating.every_h`)
NEWEST = 20  # revisions that are considered for a calibration


@dataclass(frozen=True)
class Due:
    """A worker that has not calibrated a target for `every_s` seconds, or `first`: never often enough."""

    target_id: int
    worker: str
    device: str
    every_s: float
    first: bool


def plan_due() -> int:
    """Queue the calibrations that are due.  Returns how many; any number of processes may run this at once."""
    with reading() as session:
        now = clock(session)
        lost = session.execute(select(Run.id).where(*_lost(now)).limit(1)).first() is not None
        due = list(_due(session, now))
    if lost:
        _give_up()
    return sum(map(_asked, due))


def _due(session: Session, now: float) -> Iterator[Due]:
    """The calibrations that are due.

    Of the first ones at most so many are queued in one interval: a target whose second build fails must not keep its
    worker busy.
    """
    online = is_recent(Worker.seen_at, now, LATELY_S)
    workers = session.scalars(select(Worker).where(online).order_by(Worker.name)).all()
    if not workers:
        return
    names = [worker.name for worker in workers]
    asked_at, compared = _asked_at(session, names, now), _compared(session, names, now)
    rows = session.execute(select(Run.target_id, Run.only_worker).where(*_OPEN))
    waiting = {(target_id, name or "") for target_id, name in rows}
    for target in targets.all_targets(session):
        if target.paused_at is not None:
            continue
        every, fit = _every_s(target), dict[str, bool]()
        for online_worker in workers:
            every_s, pair = every.get(online_worker.device, 0.0), (target.id, online_worker.name)
            barred = online_worker.sandbox is not None and not target.allow_unsandboxed
            if every_s == 0 or pair in waiting or barred:
                continue
            asked = asked_at.get(pair, [])
            lately = sum(at > now - every_s for at in asked)
            first = compared.get(pair, 0) < MIN_CALIBRATIONS and lately < MIN_CALIBRATIONS
            if not first and not is_due(max(asked, default=0.0) + every_s, now, every_s):
                continue
            if online_worker.device not in fit:
                fit[online_worker.device] = _fit(session, target, online_worker.device) is not None
            if fit[online_worker.device]:
                yield Due(target.id, online_worker.name, online_worker.device, every_s, first)


_BOUND = (Run.purpose == Purpose.CALIBRATION, Run.only_worker.is_not(None))
_OPEN = (*_BOUND, Run.state.in_((RunState.QUEUED, RunState.LEASED)))


def _asked_at(session: Session, workers: list[str], now: float) -> dict[tuple[int, str], list[float]]:
    """When the calibrations of each target on each worker were queued, of the longest interval that there may be."""
    of_workers = *_BOUND, Run.only_worker.in_(workers), Run.created_at.between(now - MAX_EVERY_S, now)
    asked = defaultdict[tuple[int, str], list[float]](list)
    for target_id, worker, at in session.execute(
        select(Run.target_id, Run.only_worker, Run.created_at).where(*of_workers)
    ):
        asked[target_id, worker or ""].append(at)
    return asked


def _compared(session: Session, workers: list[str], now: float) -> dict[tuple[int, str], int]:
    """Number of calibrations of each target on each worker that its runs know."""
    series = Run.target_id, Run.worker
    builds = Run.id.in_(select(Calibration.run_id).where(Calibration.kind == Equal.BUILD))
    known = (Run.purpose == Purpose.CALIBRATION, Run.state == RunState.DONE, Run.finished_at > now - MAX_AGE_S, builds)
    rows = select(*series, func.count(Run.id)).where(Run.worker.in_(workers), *known).group_by(*series)
    return {(target_id, worker or ""): number for target_id, worker, number in session.execute(rows)}


def _every_s(target: Target) -> dict[str, float]:
    """By device, seconds between two calibrations; 0 for never."""
    try:
        recipe = recipes.parse(target.recipe.text) if target.recipe else None
    except BadInput:  # written for another version of this program
        recipe = None
    if recipe is None:
        return {}
    return {device: effective(recipe, device).calibrate.every_h * 3600 for device in recipe.devices}


def _asked(due: Due) -> bool:
    try:
        with transaction() as session:
            return _ask(session, due)
    except Exception:  # the failure of one target must not stop the others
        log.exception("no calibration was asked for", target=due.target_id, worker=due.worker)
        return False


def _ask(session: Session, due: Due) -> bool:
    lock(session, due.target_id)
    now = clock(session)
    asked = (*_BOUND, Run.target_id == due.target_id, Run.only_worker == due.worker)
    by_another_control = Run.state.in_(OPEN_STATES) if due.first else Run.created_at.between(now - due.every_s, now)
    if session.execute(select(Run.id).where(*asked, by_another_control).limit(1)).first() is not None:
        return False
    last = session.scalar(select(func.max(Run.id)).where(*asked)) or 0
    target = session.get_one(Target, due.target_id)
    revision, (_, recipe) = _fit(session, target, due.device), recipe_of(session, target)
    if revision is None:
        return False
    internal_runs.internal_run(
        session,
        target,
        revision,
        Purpose.CALIBRATION,
        key=f"{target.id}:{due.worker}:after {last}",
        device=due.device,
        suite=recipe.suite_on(due.device),
        baseline=revision.sha,
        worker=due.worker,
        priority=Priority.BACKFILL if due.first else None,  # else a busy worker's times might never block
    )
    return True


def ask_now(
    session: Session,
    target: Target,
    device: str,
    *,
    sha: str | None = None,
    suite: str | None = None,
    worker: str | None = None,
) -> Run:
    """Queue a calibration at once, of a mainline revision: by default the newest that is fit for it.

    Raises BadInput if there is none, and for a device, suite or worker that there is not.
    """
    _, recipe = recipe_of(session, target)
    if device not in recipe.devices:
        devices = ", ".join(recipe.devices)
        raise BadInput(f"The recipe of {target.name} has no device {device}; it has {devices}.")
    recipe.cases(suite or recipe.suite_on(device))
    _check_worker(session, worker, device)
    revision = _fit(session, target, device) if sha is None else revisions.named(session, target, sha)
    if revision is None:
        raise BadInput(
            f"{target.name} has no mainline revision that was measured on {device}: measure one first, or name one."
        )
    if revision.ordinal is None:  # it would run as trusted code
        raise BadInput(f"{short(revision.sha)} is not on the mainline of {target.name}.")
    details = {"revision": revision.sha, "device": device, "worker": worker}
    run = internal_runs.internal_run(
        session,
        target,
        revision,
        Purpose.CALIBRATION,
        key=f"{target.id}:{device}:now:{clock(session):.3f}",
        device=device,
        suite=suite or recipe.suite_on(device),
        baseline=revision.sha,
        worker=worker,
    )
    audit.record(session, "calibration.start", target=target.name, of=f"run {run.id}", details=details)
    return run


def _check_worker(session: Session, name: str | None, device: str) -> None:
    if name is None or session.scalar(select(Worker.id).where(Worker.name == name, Worker.device == device)):
        return
    names = session.scalars(select(Worker.name).where(Worker.device == device).order_by(Worker.name)).all()
    raise BadInput(f"There is no worker {name} for {device}; known: {listed(names) or 'none'}.")


def _fit(session: Session, target: Target, device: str) -> Revision | None:
    """The newest measured revision of the mainline without a broken case, or else the newest that builds."""
    measured = select(Measurement.id).where(
        Measurement.run_id == Run.id, Measurement.role == "head", Measurement.state == CellState.MEASURED
    )
    newest = session.execute(
        select(Revision)
        .join(Run, Run.revision_id == Revision.id)
        .where(Run.target_id == target.id, Run.device == device, Run.state == RunState.DONE, WATCHED)
        .where(Revision.ordinal.is_not(None), measured.exists())
        .order_by(Revision.ordinal.desc())
        .limit(NEWEST)
    ).scalars()
    building = []
    for revision in newest:
        fitness = baselines.fitness(session, target, revision.sha, device)
        if fitness.builds and not fitness.broken:
            return revision
        building += [revision] * fitness.builds
    return next(iter(building), None)  # its broken cases are not calibrated


def _lost(now: float) -> tuple[ColumnElement[bool], ...]:
    """The runs that wait for a worker that is gone."""
    there = select(Worker.name).where(is_recent(Worker.seen_at, now, GONE_S))
    return Run.only_worker.is_not(None), Run.state == RunState.QUEUED, Run.only_worker.not_in(there)


def _give_up() -> None:
    with transaction() as session:
        now = clock(session)
        given_up = {"state": RunState.CANCELLED, "finished_at": now, "reason": "its worker has not been seen for a day"}
        rows = update(Run).where(*_lost(now)).values(given_up)
        session.execute(rows.execution_options(synchronize_session=False))
