"""Judge every stored run again by another policy.  Reads only."""

import time
from collections.abc import Callable, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.models import Calibration, RegressionRow, Series, Target
from service.domain.policy.policy import Policy, Written
from service.domain.states import BaselineKind, Outcome, Purpose, RegressionState
from service.domain.verdicts import calibration
from service.domain.verdicts.baselines import SessionOffset, judge_baseline
from service.domain.verdicts.calibration import Rate
from service.domain.verdicts.replay import Fate, Replayed, Sum, replay, summed
from service.domain.verdicts.samples import Name
from service.domain.verdicts.session_result import baseline_cases
from service.ledger.calibration.known_variances import known_variances
from service.ledger.runs.reload import Rebuilt, rebuilt
from service.reports.views import Replay, ReplayedCase


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
        answer.versions[run.device] = policy.digest
        answer.runs += 1
        progress(answer.runs)
        ended = run.finished_at or 0.0
        answer.first_at = min(answer.first_at or ended, ended)
        answer.last_at = max(answer.last_at or ended, ended)
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
    known = known_variances(session, run, policy)
    found = replay(stored.cells(policy), before, _dismissed(session, run.id), policy, known)
    flags = _flags(stored, policy, {_name(one): one.verdict.session_offset for one in found})
    for (provider, metric), own in summed(found).items():
        group = run.device, provider, metric
        here = [
            flags[name]
            for one in found
            if (one.provider, one.metric) == (provider, metric) and (name := _name(one)) in flags
        ]
        answer.sums[group] = answer.sums.get(group, Sum()) + own + sum(here, Sum())
    changed = [one for one in found if one.fate not in (Fate.QUIET, Fate.STAYS)]
    answer.cases += [
        ReplayedCase(run.id, run.target.name, run.revision.short, run.device, run.pull, one) for one in changed
    ]


def _name(one: Replayed) -> Name:
    return one.provider, one.case


def _flags(stored: Rebuilt, policy: Policy, offsets: Mapping[Name, SessionOffset]) -> dict[Name, Sum]:
    """The flags *behind SOTA* and *slower than the pinned baseline*, as stored and as replayed."""

    def now(kind: BaselineKind) -> set[Name]:
        verdicts = judge_baseline(kind, baseline_cases(kind, stored.result), policy, offsets=offsets)
        return {name for name, verdict in verdicts.items() if verdict.slower}

    behind, leaking = now(BaselineKind.SOTA), now(BaselineKind.PINNED)
    flags = {}
    for name in ((one.provider, str(one.case)) for one in stored.result.taken if one.role is Role.HEAD):
        sota = stored.verdicts.get((*name, BaselineKind.SOTA))
        pinned = stored.verdicts.get((*name, BaselineKind.PINNED))
        flags[name] = Sum(
            behind_before=int(sota is not None and sota.behind_sota),
            behind=int(name in behind),
            leaks_before=int(pinned is not None and pinned.outcome == Outcome.REGRESSION),
            leaks=int(name in leaking),
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
    known = known_variances(session, stored.run, policy)
    for one in calibration.compared(stored.result.taken, policy, known, calibration=True):
        row = rows.get((one.provider, one.case, one.kind))
        if row is not None:
            nominal = policy.calibrate.nominal
            answer.equal_before += Rate(1, int(row.p < nominal), int(row.alarmed))
            answer.equal += Rate(1, int(one.p < nominal), int(one.alarmed))
