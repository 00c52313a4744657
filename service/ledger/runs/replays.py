"""Read stored runs back: session results, verdicts, evidence of repeatable code; and judge them by another policy.

Reads only.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import JSON, ColumnElement, func, select, type_coerce
from sqlalchemy.orm import Session, selectinload

from kernels.arena.repeatability import Repeats, of_facts
from kernels.cases import AnyCase, Role, parse_case
from service.db.models import (
    Calibration,
    Measurement,
    Quarantine,
    RegressionRow,
    Run,
    Series,
    Target,
    VerdictRow,
    unpack,
)
from service.domain.policy.policy import Policy, Written
from service.domain.states import BaselineKind, CellState, Outcome, Purpose, RegressionState, RunState
from service.domain.verdicts import calibration
from service.domain.verdicts.baselines import SessionOffset, judge_baseline
from service.domain.verdicts.calibration import Rate
from service.domain.verdicts.reasons import ReasonCode
from service.domain.verdicts.replay import Fate, Replayed, Sum, replay, summed
from service.domain.verdicts.samples import Cell, Name
from service.domain.verdicts.session_result import ContenderResult, SessionResult, baseline_cases, cells
from service.ledger.calibration.quarantines import in_force
from service.ledger.calibration.sessions import known_variances
from service.ledger.targets import on_device
from service.reports.views import Replay, ReplayedCase


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
        heads = [(result.provider, str(result.case)) for result in self.result.taken if result.role is Role.HEAD]
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
    wanted += [Run.has_samples.is_(True)]  # without its rounds (`retention`) no run can be judged again
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
        role, case = Role(row.role), parse_case(row.case)
    except ValueError:
        return None
    screened, confirmed, apart = map(tuple, unpack(row.samples)) if row.samples else ((), (), ())
    return ContenderResult(
        role=role,
        provider=row.provider,
        case=case,
        state=row.state,
        reason=row.reason,
        screened=screened,
        confirmed=confirmed,
        facts=row.facts or {},
        apart=apart,
    )


def _quarantines(session: Session, run: Run) -> dict[Name, Quarantine]:
    """The quarantines at the time when the run was judged."""
    then: ColumnElement[bool] = Quarantine.since < run.finished_at
    still = Quarantine.released_at.is_(None) | (Quarantine.released_at >= run.finished_at)
    rows = select(Quarantine).join(Quarantine.series).where(on_device(run.target_id, run.device), then, still)
    return {row.name: row for row in session.scalars(rows)}


LATEST_RUNS = 5  # of the target on the device: the parent was measured in one of the last ones, as head or as parent


def repeats_before(session: Session, run: Run, cases: Iterable[AnyCase]) -> dict[tuple[AnyCase, str], Repeats]:
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
    repeatses: dict[tuple[AnyCase, str], Repeats] = {}
    for text, code, calls, distinct in rows:
        estimate = of_facts({"repeats": _whole(calls), "distinct": _whole(distinct)})
        if text in by_text and code and estimate:
            name = by_text[text], code
            repeatses[name] = max(
                repeatses.get(name, estimate), estimate, key=lambda repeats: (repeats.distinct, repeats.calls)
            )
    return repeatses


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def replayed(
    session: Session,
    written: Written,
    server: Written,
    target: Target | None = None,
    device: str | None = None,
    since: float = 0.0,
    progress: Callable[[int], None] = lambda _: None,
    within_s: float | None = None,
) -> Replay:
    """Judge by the policy `written`, over the `server`'s, what is stored since a time (seconds since the epoch).

    With `within_s` the newest runs are judged first, and no other one is begun after that time.
    """
    answer, begun = Replay(), time.monotonic()
    for stored in rebuilt(session, target, device=device, since=since, newest_first=within_s is not None):
        run = stored.run
        policy = written.on(run.device, server)
        answer.policy_versions[run.device] = policy.digest
        answer.runs += 1
        progress(answer.runs)
        ended = run.finished_at or 0.0
        answer.since = min(answer.since or ended, ended)
        answer.until = max(answer.until or ended, ended)
        if run.purpose is Purpose.CALIBRATION:
            _equal_code(session, answer, stored, policy)
        else:
            _watched(session, answer, stored, policy)
        if within_s is not None and time.monotonic() - begun > within_s:
            break
    return answer


def _watched(session: Session, answer: Replay, stored: Rebuilt, policy: Policy) -> None:
    run = stored.run
    before = {
        (provider, case): Outcome(row.outcome)
        for (provider, case, against), row in stored.verdicts.items()
        if against == BaselineKind.PARENT
    }
    variances = known_variances(session, run, policy)
    cases = replay(stored.cells(policy), before, _dismissed(session, run.id), policy, variances)
    flags = _flags(stored, policy, {_name(case): case.verdict.session_offset for case in cases})
    for (provider, metric), own in summed(cases).items():
        group = run.device, provider, metric
        here = [
            flags[name]
            for case in cases
            if (case.provider, case.metric) == (provider, metric) and (name := _name(case)) in flags
        ]
        answer.sums[group] = answer.sums.get(group, Sum()) + own + sum(here, Sum())
    changed = [case for case in cases if case.fate not in (Fate.QUIET, Fate.STAYS)]
    answer.cases += [
        ReplayedCase(run.id, run.target.name, run.revision.short, run.device, run.pull, case) for case in changed
    ]


def _name(case: Replayed) -> Name:
    return case.provider, case.case


def _flags(stored: Rebuilt, policy: Policy, offsets: Mapping[Name, SessionOffset]) -> dict[Name, Sum]:
    """The flags *behind SOTA* and *slower than the pinned baseline*, as stored and as replayed."""

    def now(kind: BaselineKind) -> set[Name]:
        verdicts = judge_baseline(kind, baseline_cases(kind, stored.result), policy, offsets=offsets)
        return {name for name, verdict in verdicts.items() if verdict.slower}

    behind, leaking = now(BaselineKind.SOTA), now(BaselineKind.PINNED)
    flags = {}
    for name in ((result.provider, str(result.case)) for result in stored.result.taken if result.role is Role.HEAD):
        sota = stored.verdicts.get((*name, BaselineKind.SOTA))
        if sota is not None and sota.reason_code == ReasonCode.AS_BEFORE:
            continue  # another session compared this code
        pinned = stored.verdicts.get((*name, BaselineKind.PINNED))
        flags[name] = Sum(
            behind_sota_before=int(sota is not None and sota.behind_sota),
            behind_sota=int(name in behind),
            slower_than_pinned_before=int(pinned is not None and pinned.outcome == Outcome.REGRESSION),
            slower_than_pinned=int(name in leaking),
        )
    return flags


def _dismissed(session: Session, run_id: int) -> set[Name]:
    """The regressions that this run opened, and that a person dismissed: they were none."""
    rows = select(Series.provider, Series.printed).join(RegressionRow.series).where(RegressionRow.run_id == run_id)
    found = session.execute(rows.where(RegressionRow.state == RegressionState.DISMISSED))
    return {(provider, case) for provider, case in found}


def _equal_code(session: Session, answer: Replay, stored: Rebuilt, policy: Policy) -> None:
    """Count false alarms of a calibration: its code is equal on both sides."""
    rows = {
        (row.provider, row.case, row.kind): row
        for row in session.execute(select(Calibration).where(Calibration.run_id == stored.run.id)).scalars()
    }
    variances = known_variances(session, stored.run, policy)
    for comparison in calibration.compared(stored.result.taken, policy, variances, calibration=True):
        row = rows.get((comparison.provider, comparison.case, comparison.kind))
        if row is not None:
            nominal = policy.calibrate.nominal
            answer.equal_before += Rate(1, int(row.p < nominal), int(row.alarmed))
            answer.equal += Rate(1, int(comparison.p < nominal), int(comparison.alarmed))
