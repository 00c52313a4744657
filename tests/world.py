"""Rows that tests of the ledger begin with.  What a test does not name has a usual value; any column may be named."""

from itertools import count
from typing import Any, TypeVar

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from service.db.engine import transaction
from service.db.models import Base, Calibration, Measurement, RecipeRow, Revision, Run, Target, VerdictRow
from service.domain.states import CellState, ForgeKind, Priority, RunState, TargetKind
from service.domain.verdicts.calibration import Compared
from service.ledger.health import totals

_numbers = count()
Row = TypeVar("Row", bound=Base)


def target(recipe: str = "", name: str = "norms", **columns: Any) -> Target:
    """Register a repository with this recipe, in a transaction of its own."""
    with transaction() as session:
        usual = {"kind": TargetKind.GIT, "location": "/nowhere", "created_at": 0.0}
        if columns.get("forge"):
            usual["forge_kind"] = ForgeKind.GITHUB
        made = _added(session, Target(name=name, **usual | columns))
        made.recipe_id = recipe_of(session, made.id, recipe).id
    return made


def recipe_of(session: Session, target_id: int, text: str) -> RecipeRow:
    """Add a version of the target's recipe, which its next runs do not use yet."""
    digest = f"{next(_numbers):064}"
    return _added(session, RecipeRow(target_id=target_id, digest=digest, text=text, adapters={}, created_at=0.0))


def commit(session: Session, target_id: int, sha: str | int, **columns: Any) -> Revision:
    """Find or add a commit.  A number is a place on the mainline c0, c1, …, where each is the parent of the next."""
    usual: dict[str, Any] = {"subject": "work", "author": "Ada", "committed_at": 0.0, "paths": []}
    if isinstance(sha, int):
        usual |= {"ordinal": sha, "parent": f"c{sha - 1}" if sha else None}
        sha = f"c{sha}"
    known = session.scalar(select(Revision).where(Revision.target_id == target_id, Revision.sha == sha))
    return known or _added(session, Revision(target_id=target_id, sha=sha, **usual | columns))


def run(session: Session, revision: Revision, **columns: Any) -> Run:
    """Queue a run of the commit against its parent, on the CPU."""
    usual: dict[str, Any] = {"device": "cpu", "suite": "smoke", "trusted": True, "created_at": 0.0}
    usual |= {"priority": Priority.MAINLINE, "baseline": revision.parent, "dedupe": f"run {next(_numbers)}"}
    usual["recipe_id"] = session.get_one(Target, revision.target_id).recipe_id
    return _added(session, Run(target_id=revision.target_id, revision_id=revision.id, **usual | columns))


def again(session: Session, of: Run, **columns: Any) -> Run:
    """Add a copy of a run, without its measurements and verdicts."""
    known = {column.key: getattr(of, column.key) for column in inspect(Run).column_attrs if column.key != "id"}
    return _added(session, Run(**known | {"dedupe": f"run {next(_numbers)}"} | columns))


def measured(session: Session, of: Run, case: str, median: float | None = None, **columns: Any) -> Measurement:
    """Add what the run measured of its own revision at a case; `median` in the unit of the case."""
    usual: dict[str, Any] = {"role": "head", "provider": "norms", "state": CellState.MEASURED, "facts": {}} | columns
    usual = {"contender": f"{usual['role']}:{usual['provider']}"} | usual
    return _added(session, Measurement(run_id=of.id, case=case, median=median, **usual))


def judged(session: Session, of: Run, case: str, **columns: Any) -> VerdictRow:
    """Add the verdict of a case against the parent; steady by default."""
    usual = {"provider": "norms", "baseline_kind": "parent", "outcome": "steady", "reason": ""}
    return _added(session, VerdictRow(run_id=of.id, case=case, **usual | columns))


def totalled(session: Session) -> None:
    """Keep the numbers of every finished run and its comparisons of equal code, as recording does."""
    session.flush()
    for finished in session.scalars(select(Run).where(Run.state == RunState.DONE)).all():
        totals.note(session, finished, session.scalars(select(VerdictRow).where(VerdictRow.run_id == finished.id)))
        copies = session.scalars(select(Calibration).where(Calibration.run_id == finished.id)).all()
        if copies:
            compared = [Compared(one.provider, one.case, one.ratio, one.p, one.trials, one.alarmed) for one in copies]
            totals.note_calibration(session, finished, compared, max(one.at for one in copies))
    session.flush()


def _added(session: Session, row: Row) -> Row:
    session.add(row)
    session.flush()
    return row
