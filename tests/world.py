"""Rows that tests of the ledger begin with.  What a test does not name has a usual value; any column may be named."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from kernels.cases import Case, Role
from service.db.engine import transaction
from service.db.models import (
    Base,
    Bisection,
    Calibration,
    ChangePoint,
    ConfigurationDrift,
    FactsCheck,
    Measurement,
    RecipeRow,
    RegressionRow,
    Revision,
    Run,
    Target,
    VerdictRow,
    Worker,
)
from service.domain.metrics import SeriesKey
from service.domain.states import CellState, ForgeKind, Priority, RunState, TargetKind
from service.domain.verdicts.calibration import Compared
from service.domain.verdicts.session_result import ContenderResult, SessionResult
from service.ledger.calibration import sessions
from service.ledger.runs import queue, recording
from service.ledger.targets import series_of

_numbers = count()
Row = TypeVar("Row", bound=Base)


def target(recipe: str = "", name: str = "norms", **columns: Any) -> Target:
    """Register a repository with this recipe, in a transaction of its own."""
    with transaction() as session:
        return registered(session, recipe, name, **columns)


def registered(session: Session, recipe: str = "", name: str = "norms", **columns: Any) -> Target:
    """Register a repository with this recipe."""
    usual = {"kind": TargetKind.GIT, "location": "/nowhere", "created_at": 0.0}
    if columns.get("forge"):
        usual["forge_kind"] = ForgeKind.GITHUB
    made = _added(session, Target(name=name, **usual | columns))
    made.recipe_id = recipe_of(session, made.id, recipe, "0" * 64).id
    return made


def recipe_of(session: Session, target_id: int, text: str, digest: str | None = None) -> RecipeRow:
    """Add a version of the target's recipe, which its next runs do not use yet."""
    digest = digest or f"{next(_numbers) + 1:064}"
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


def series(session: Session, target_id: int, case: str, device: str = "cpu", provider: str = "norms") -> int:
    """Find or add the series of a case; its id."""
    return series_of(session, SeriesKey.of(target_id, device, provider, case))


def regression(session: Session, of: Run, case: str, ratio: float = 1.2, **columns: Any) -> RegressionRow:
    """Add a regression that the run showed; open by default."""
    of_series = series(session, of.target_id, case, of.device)
    return _added(
        session, RegressionRow(series_id=of_series, run_id=of.id, ratio=ratio, **{"opened_at": 0.0} | columns)
    )


def change_point(
    session: Session, before: Revision, at: Revision, case: str, ratio: float = 1.1, device: str = "cpu", **columns: Any
) -> ChangePoint:
    """Add a point of a history at the revision `at`, which is slower than `before`; open by default."""
    usual = {"low": ratio - 0.01, "high": ratio + 0.01, "p": 1e-6, "level": "notify", "found_at": 0.0}
    usual |= {"series_id": series(session, at.target_id, case, device), "before_id": before.id, "revision_id": at.id}
    return _added(session, ChangePoint(ratio=ratio, **usual | columns))


def bisection(session: Session, line: Sequence[Revision], *cases: str, **columns: Any) -> Bisection:
    """Add a search along the line; it waits for its first step by default."""
    shas = [revision.sha for revision in line]
    usual = {"device": "cpu", "suite": "smoke", "max_runs": 9, "asked_by": "ada", "created_at": 0.0}
    usual |= {"cases": list(cases), "good": shas[0], "bad": shas[-1], "line": shas}
    return _added(session, Bisection(target_id=line[0].target_id, **usual | columns))


def drift(session: Session, of: Run, earlier: Run, case: str, **columns: Any) -> ConfigurationDrift:
    """Add that the run chose another configuration at a case than the earlier one."""
    usual = {"at": 0.0, "before": "num_warps=4", "now": "num_warps=8"}
    usual |= {"series_id": series(session, of.target_id, case, of.device)}
    return _added(session, ConfigurationDrift(run_id=of.id, earlier_run_id=earlier.id, **usual | columns))


def facts_check(session: Session, head: Revision, base: str = "", **columns: Any) -> FactsCheck:
    """Queue a look at the compiled code of a revision."""
    usual = {"recipe_id": session.get_one(Target, head.target_id).recipe_id, "trusted": True, "created_at": 0.0}
    return _added(session, FactsCheck(target_id=head.target_id, revision_id=head.id, base=base, **usual | columns))


def worker(session: Session, name: str, device: str = "cpu", **columns: Any) -> Worker:
    """Add a worker, which was last seen in 1970 by default."""
    usual = {"description": "", "started_at": 0.0, "seen_at": 0.0}
    return _added(session, Worker(name=name, device=device, **usual | columns))


def leased(worker: str = "worker") -> queue.Lease:
    """Take the next run of the CPU, as a worker does."""
    with transaction() as session:
        lease = queue.next_run(session, "cpu", worker, 60)
    assert lease
    return lease


def took(
    role: Role,
    case: str,
    us: float = 100.0,
    provider: str = "norms",
    state: CellState = CellState.MEASURED,
    facts: Mapping[str, Any] | None = None,
) -> ContenderResult:
    """What a session saw of a contender: two times three trials that hardly vary, unless its `state` says otherwise."""
    if state is not CellState.MEASURED:
        return ContenderResult(role, provider, Case.parse(case), state, "y is wrong")
    trials = tuple((us * first, us * second) for first, second in ((1, 1.002), (1.001, 1), (1, 1.001)))
    return ContenderResult(role, provider, Case.parse(case), state, None, trials, trials, facts or {})


def session_of(taken: Iterable[ContenderResult], baseline: str | None, **rest: Any) -> SessionResult:
    """A session in a sandbox against a baseline."""
    usual = {"notes": (), "stack": {"torch": "2.13.0"}, "telemetry": {}, "sandboxed": True}
    return SessionResult(tuple(taken), baseline, **usual | rest)


def recorded(lease: queue.Lease, found: SessionResult) -> Run:
    """Record a session in a transaction of its own, as a worker does."""
    with transaction() as session:
        return recording.record(session, lease, found)


def totalled(session: Session) -> None:
    """Keep the numbers of every finished run and its comparisons of equal code, as recording does."""
    session.flush()
    for finished in session.scalars(select(Run).where(Run.state == RunState.DONE)).all():
        sessions.note_totals(
            session, finished, session.scalars(select(VerdictRow).where(VerdictRow.run_id == finished.id))
        )
        copies = session.scalars(select(Calibration).where(Calibration.run_id == finished.id)).all()
        if copies:
            compared = [Compared(one.provider, one.case, one.ratio, one.p, one.trials, one.alarmed) for one in copies]
            sessions.note_calibration(session, finished, compared, max(one.at for one in copies))
    session.flush()


def _added(session: Session, row: Row) -> Row:
    session.add(row)
    session.flush()
    return row
