"""Every night each worker measures a revision against itself, for each target of its device."""

from functools import lru_cache

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service import recipes
from service.database import transaction
from service.errors import BadInput
from service.ledger import asked, queue, references, targets
from service.ledger.once import lock
from service.models import WATCHED, CellState, Measurement, Purpose, Revision, Run, RunState, Target, Worker
from service.recipes import Recipe
from service.server_policy import effective

LATELY_S = 15 * 60.0  # a worker that was seen since then is there
GONE_S = 24 * 3600.0  # one that was not seen for so long takes no run that waits for it alone
NEWEST = 20  # revisions among which a fit one is looked for


def plan_due() -> int:
    """Ask for the calibrations that are due; how many.  Any number of controls may do it at once."""
    with transaction() as session:
        now = queue.clock(session)
        _give_up(session, now)
        here = list(session.execute(select(Worker).where(Worker.seen_at >= now - LATELY_S)).scalars())
        watched = [one for one in targets.all_targets(session) if one.recipe] if here else []
        return sum(_planned(session, target, worker, now) for target in watched for worker in here)


def _planned(session: Session, target: Target, worker: Worker, now: float) -> bool:
    recipe = _recipe(target.recipe.text) if target.recipe else None
    if recipe is None or worker.device not in recipe.devices or (worker.sandbox and not target.allow_unsandboxed):
        return False
    every_s = effective(recipe, worker.device).calibrate.every_h * 3600
    if every_s == 0 or not _due(session, target, worker, now - every_s):
        return False
    lock(session, target.id)
    revision = _fit(session, target, worker.device)
    if revision is None or not _due(session, target, worker, now - every_s):
        return False
    asked.run_asked(
        session,
        target,
        revision,
        Purpose.CALIBRATION,
        key=f"{target.id}:{worker.name}:{int(now // every_s)}",
        device=worker.device,
        suite=recipe.suite_on(worker.device),
        baseline=revision.sha,
        worker=worker.name,
    )
    return True


@lru_cache(maxsize=256)
def _recipe(text: str) -> Recipe | None:
    """Control asks every few seconds, and recipes hardly ever change."""
    try:
        return recipes.parse(text)
    except BadInput:  # written for another version of this program
        return None


def _due(session: Session, target: Target, worker: Worker, since: float) -> bool:
    """Has this worker calibrated none since then, and does none wait for it?"""
    known = select(Run.id).where(
        Run.target_id == target.id, Run.purpose == Purpose.CALIBRATION, Run.only_worker == worker.name
    )
    open_or_new = Run.state.in_((RunState.QUEUED, RunState.LEASED)) | (Run.created_at > since)
    return session.execute(known.where(open_or_new).limit(1)).first() is None


def _fit(session: Session, target: Target, device: str) -> Revision | None:
    """The newest revision of the mainline that was measured on this device, and may be a baseline there."""
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
    return next((one for one in newest if references.unfit(session, target, one.sha, device) is None), None)


def _give_up(session: Session, now: float) -> None:
    """What waits for a worker that went away would wait for ever."""
    there = select(Worker.name).where(Worker.seen_at >= now - GONE_S)
    session.execute(
        update(Run)
        .where(Run.purpose == Purpose.CALIBRATION, Run.state == RunState.QUEUED, Run.only_worker.not_in(there))
        .values(state=RunState.CANCELLED, finished_at=now, reason="its worker has not been seen for a day")
        .execution_options(synchronize_session=False)
    )
