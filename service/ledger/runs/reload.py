"""Read stored runs back: session results, verdicts, and evidence that code is bitwise repeatable."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import JSON, ColumnElement, func, select, type_coerce
from sqlalchemy.orm import Session, selectinload

from kernels.arena.repeatability import Repeats, of_facts
from kernels.cases import Case, Role
from service.db.models import Measurement, Quarantine, Run, Target, VerdictRow, unpack
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, CellState, Purpose, RunState
from service.domain.verdicts.reasons import ReasonCode
from service.domain.verdicts.samples import Cell, Name
from service.domain.verdicts.session_result import ContenderResult, SessionResult, cells
from service.ledger.calibration.quarantines import in_force
from service.ledger.renames import on_device


@dataclass(frozen=True)
class Rebuilt:
    """One run as it was when it was judged; `quarantines` are those of people and of kernelwatch at that time."""

    run: Run  # with its target and revision
    result: SessionResult  # without its stack
    verdicts: Mapping[tuple[str, str, BaselineKind], VerdictRow]  # by provider, case and kind of baseline
    quarantines: Mapping[Name, Quarantine]

    def cells(self, policy: Policy) -> list[Cell]:
        """The cells of the head against its parent; `policy` gives the quarantines of the recipe."""
        against_parent = [row for (_, _, kind), row in self.verdicts.items() if kind is BaselineKind.PARENT]
        without_baseline = (row for row in against_parent if row.reason_code == ReasonCode.NO_BASELINE)
        note = next(((row.reason_args or {}).get("note") for row in without_baseline), None)
        broken_before = {(row.provider, row.case): CellState(row.outcome) for row in against_parent if row.known_before}
        heads = [(one.provider, str(one.case)) for one in self.result.taken if one.role is Role.HEAD]
        silent = in_force(self.quarantines, policy, heads)
        return cells(self.result.taken, note, broken_before, silent, code_decides=self.run.code_decides)


def rebuilt(
    session: Session,
    target: Target | None = None,
    *,
    device: str | None = None,
    since: float = 0.0,
    purposes: Sequence[Purpose] = (Purpose.WATCH, Purpose.CALIBRATION),
    newest_first: bool = False,
) -> Iterator[Rebuilt]:
    """The runs that were measured, oldest first and one at a time: all of them would not fit into memory."""
    wanted = _wanted(target, device, since, purposes)
    order = Run.id.desc() if newest_first else Run.id
    for run_id in session.execute(select(Run.id).where(*wanted).order_by(order)).scalars().all():
        yield one(session, run_id)
        session.expunge_all()


def count(session: Session, target: Target, *, device: str) -> int:
    """Number of runs of a target on a device that `rebuilt` yields."""
    wanted = _wanted(target, device, 0.0, (Purpose.WATCH, Purpose.CALIBRATION))
    return session.execute(select(func.count()).select_from(Run).where(*wanted)).scalar_one()


def _wanted(
    target: Target | None, device: str | None, since: float, purposes: Sequence[Purpose]
) -> list[ColumnElement[bool]]:
    wanted = [Run.state == RunState.DONE, Run.purpose.in_(purposes), Run.finished_at >= since]
    wanted += [Run.target_id == target.id] if target else []
    wanted += [Run.device == device] if device else []
    return wanted


def one(session: Session, run_id: int) -> Rebuilt:
    """A run put together again."""
    loads = [selectinload(part) for part in (Run.target, Run.revision, Run.verdicts)]
    loads.append(selectinload(Run.measurements).undefer(Measurement.samples))
    run = session.execute(select(Run).where(Run.id == run_id).options(*loads)).scalar_one()
    verdicts = {(row.provider, row.case, row.baseline_kind): row for row in run.verdicts}
    last_good = {
        (provider, case): row.baseline
        for (provider, case, kind), row in verdicts.items()
        if kind is BaselineKind.LAST_GOOD and row.baseline is not None
    }
    result = SessionResult(
        taken(run.measurements),
        run.baseline,
        notes=(),
        stack={},
        telemetry=run.telemetry or {},
        sandboxed=bool(run.sandboxed),
        last_good=last_good,
        pinned=run.pinned,
    )
    return Rebuilt(run, result, verdicts, _quarantines(session, run))


def taken(rows: Sequence[Measurement]) -> tuple[ContenderResult, ...]:
    """Measurements as the session saw them; a case that only another version of this program knows is left out."""
    return tuple(again for row in rows if (again := _taken(row)))


def _taken(row: Measurement) -> ContenderResult | None:
    try:
        role, case = Role(row.role), Case.parse(row.case)
    except ValueError:
        return None
    screened, confirmed, apart = map(tuple, unpack(row.samples)) if row.samples else ((), (), ())
    return ContenderResult(role, row.provider, case, row.state, row.reason, screened, confirmed, row.facts or {}, apart)


def _quarantines(session: Session, run: Run) -> dict[Name, Quarantine]:
    """The quarantines at the time when the run was judged."""
    then: ColumnElement[bool] = Quarantine.since < run.finished_at
    still = Quarantine.released_at.is_(None) | (Quarantine.released_at >= run.finished_at)
    rows = select(Quarantine).join(Quarantine.series).where(on_device(run.target_id, run.device), then, still)
    return {row.name: row for row in session.scalars(rows)}


LATEST_RUNS = 5  # of the target on the device: the parent was measured in one of the last ones, as head or as parent


def repeats_before(session: Session, run: Run, cases: Iterable[Case]) -> dict[tuple[Case, str], Repeats]:
    """The widest estimate of the target's last runs on the device of `run`, by case and hash of the code.

    Each was stored with those of the runs before it, so they are not added up.
    """
    by_text = {str(case): case for case in cases}
    last = (
        select(Run.id)
        .where(Run.target_id == run.target_id, Run.device == run.device, Run.state == RunState.DONE, Run.id != run.id)
        .order_by(Run.id.desc())
        .limit(LATEST_RUNS)
    )
    facts = type_coerce(Measurement.facts, JSON)  # the column's own type has no operators for what is inside
    rows = session.execute(
        select(
            Measurement.case,
            facts["code"].as_string(),
            facts["repeats"].as_string(),  # a contender wrote it: what is no number would end the query
            facts["distinct"].as_string(),
        ).where(Measurement.run_id.in_(list(session.scalars(last))), Measurement.role.in_((Role.HEAD, Role.PARENT)))
    )
    found: dict[tuple[Case, str], Repeats] = {}
    for text, code, calls, distinct in rows:
        estimate = of_facts({"repeats": _whole(calls), "distinct": _whole(distinct)})
        if text in by_text and code and estimate:
            name = by_text[text], code
            found[name] = max(found.get(name, estimate), estimate, key=lambda one: (one.distinct, one.calls))
    return found


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
