"""Schedule calibrations: each worker compares two builds of one revision of each target of its device.

The first MIN_CALIBRATIONS as soon as a revision was measured, because until then times block nothing; then each night.
"""

from collections import defaultdict
from collections.abc import Iterable

import structlog
from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import WATCHED, Calibration, CalibrationPlan, Measurement, Revision, Run, Target, Worker
from service.domain.policy import recipes
from service.domain.states import OPEN_STATES, CellState, Equal, Priority, Purpose, RunState
from service.domain.text import is_recent, listed, short
from service.domain.verdicts.calibration import MIN_CALIBRATIONS
from service.errors import BadInput
from service.ledger import audit, targets
from service.ledger.calibration import plans
from service.ledger.calibration.sessions import MAX_AGE_S
from service.ledger.locking import lock, within_budget
from service.ledger.policies import effective
from service.ledger.reading import revisions
from service.ledger.runs import baselines, internal_runs
from service.ledger.runs.revisions import recipe_of

log = structlog.get_logger()

LATELY_S = 15 * 60.0  # a worker seen since then is online
GONE_S = 24 * 3600.0  # runs for a worker not seen for so long are cancelled
NEWEST = 20  # revisions that are considered for a calibration
_AT_MOST = 1000  # pairs of a target and a worker in one call
_BARRED_S = 3600.0  # between two looks at a target that is paused, or that the worker may not measure
_BOUND = (Run.purpose == Purpose.CALIBRATION, Run.only_worker.is_not(None))


def plan_due() -> int:
    """Queue the calibrations that are due.  Returns how many; any number of processes may run this at once."""
    with reading() as session:
        now = clock(session)
        lost = _lost(session, now)
        due = session.execute(plans.due(now, now - LATELY_S, _AT_MOST)).all()
    if lost:
        _give_up()
    return sum(_asked(*pair) for pair in within_budget(sorted(due, key=lambda pair: (pair.name, pair.target_id))))


def _asked(target_id: int, worker: str, device: str, sandbox: str | None) -> bool:
    try:
        with transaction() as session:
            return _ask(session, target_id, worker, device, has_sandbox=sandbox is None)
    except Exception:  # the failure of one target must not stop the others
        log.exception("no calibration was queued", target=target_id, worker=worker)
        return False


def _ask(session: Session, target_id: int, worker: str, device: str, *, has_sandbox: bool) -> bool:
    """Queue the calibration of a pair unless it is not due, and note when to look again.

    Of the first ones at most so many are queued in one interval: a target whose second build fails must not keep its
    worker busy.
    """
    lock(session, target_id)
    now, plan = clock(session), session.get(CalibrationPlan, (target_id, worker))
    if plan is None or plan.due_at > now >= plan.planned_at:  # by another control
        return False
    target = session.scalars(targets.with_recipe().where(Target.id == target_id)).one()
    every_s = _every_s(target, device)
    revision = _fit(session, target, device) if every_s else None
    if revision is None:  # the next measurement on the device plans it anew
        session.delete(plan)
        return False
    barred = target.paused_at is not None or not (has_sandbox or target.allow_unsandboxed)
    plan.planned_at, plan.due_at = now, now + (_BARRED_S if barred else every_s)
    if barred:
        return False
    pair = (*_BOUND, Run.target_id == target_id, Run.only_worker == worker)
    if session.scalar(select(Run.id).where(*pair, Run.state.in_(OPEN_STATES)).limit(1)) is not None:
        return False  # its end plans the next one
    asked_at = session.scalars(select(Run.created_at).where(*pair, Run.created_at.between(now - every_s, now))).all()
    first = len(asked_at) < MIN_CALIBRATIONS and _compared(session, pair, now) < MIN_CALIBRATIONS
    if asked_at and not first:
        plan.due_at = max(asked_at) + every_s
        return False
    last = session.scalars(select(Run).where(*pair).order_by(Run.id.desc()).limit(1)).first()
    if (
        last is not None
        and (last.state, last.revision_id) == (RunState.CANCELLED, revision.id)
        and audit.is_recorded(session, "run.cancel", f"run {last.id}", target=target.name)
    ):  # by a person, and not because the worker was away
        return False
    _, recipe = recipe_of(session, target)
    internal_runs.internal_run(
        session,
        target,
        revision,
        Purpose.CALIBRATION,
        key=f"{target.id}:{worker}:after {last.id if last else 0}",
        device=device,
        suite=recipe.suite_on(device),
        baseline=revision.sha,
        worker=worker,
        priority=Priority.BACKFILL if first else None,  # else a busy worker's times might never block
    )
    return True


def _compared(session: Session, pair: Iterable[ColumnElement[bool]], now: float) -> int:
    """Number of calibrations that the runs of a pair know."""
    builds = exists().where(Calibration.run_id == Run.id, Calibration.kind == Equal.BUILD)
    ended = (Run.state == RunState.DONE, Run.finished_at > now - MAX_AGE_S, builds)
    return session.scalar(select(func.count()).select_from(Run).where(*pair, *ended)) or 0


def _every_s(target: Target, device: str) -> float:
    """Seconds between two calibrations on a device; 0 for never."""
    try:
        recipe = recipes.parse(target.recipe.text) if target.recipe else None
    except BadInput:  # written for another version of this program
        recipe = None
    if recipe is None or device not in recipe.devices:
        return 0.0
    return effective(recipe, device).calibrate.every_h * 3600


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
    measured = exists().where(
        Measurement.run_id == Run.id, Measurement.role == "head", Measurement.state == CellState.MEASURED
    )
    done = exists().where(Run.revision_id == Revision.id, Run.device == device, Run.state == RunState.DONE, WATCHED)
    newest = session.execute(
        select(Revision)
        .where(Revision.target_id == target.id, Revision.ordinal.is_not(None), done.where(measured))
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


def _lost(session: Session, now: float) -> list[int]:
    """The runs that wait for a worker that is gone."""
    gone = defaultdict[str, list[str]](list)
    for device, name in session.execute(
        select(Worker.device, Worker.name).where(~is_recent(Worker.seen_at, now, GONE_S))
    ):
        gone[device].append(name)
    waiting = select(Run.id).where(Run.state == RunState.QUEUED)
    return [
        run_id
        for device, names in gone.items()
        for run_id in session.scalars(waiting.where(Run.device == device, Run.only_worker.in_(names)))
    ]


def _give_up() -> None:
    with transaction() as session:
        now = clock(session)
        given_up = {"state": RunState.CANCELLED, "finished_at": now, "reason": "its worker has not been seen for a day"}
        for run_id in _lost(session, now):
            rows = update(Run).where(Run.id == run_id, Run.state == RunState.QUEUED).values(given_up)
            session.execute(rows.execution_options(synchronize_session=False))
