"""What a session found becomes rows: measurements, verdicts, regressions, gaps and effects."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from kernels.words import Role
from service import recipes, sota, verdicts
from service.evidence import Evidence, Taken, against_sota, cells
from service.ledger import queue, telling
from service.models import (
    CellState,
    Gap,
    Measurement,
    Recipe,
    RegressionRow,
    RegressionState,
    Revision,
    Run,
    RunState,
    Stack,
    Target,
    VerdictRow,
    pack,
)
from service.policy import Policy
from service.verdicts import Outcome, Verdict


def record(session: Session, lease: queue.Lease, evidence: Evidence) -> Run:
    """Store, judge and tell what a session found.  Raises LeaseLost, and stores nothing, when the run is not ours."""
    run = queue.end(session, lease, RunState.DONE)
    run.baseline, run.sandboxed = evidence.baseline, evidence.sandboxed
    run.reason = "; ".join(evidence.notes) or None
    run.stack_id = stack_known(session, evidence.stack).id
    run.telemetry = dict(evidence.telemetry)
    session.add_all(_measurement(run.id, one) for one in evidence.taken)
    policy = recipes.parse(session.get_one(Recipe, run.recipe_id).text).policy_on(run.device)
    note = evidence.notes[0] if evidence.notes and evidence.baseline is None else None
    judged = verdicts.judge(cells(evidence.taken, note), policy)
    session.add_all(_against_parent(run.id, name, verdict) for name, verdict in judged.items())
    revision = session.get_one(Revision, run.revision_id)
    mainline = revision.ordinal is not None and run.pull is None
    _compare_with_sota(session, run, revision, evidence, judged, policy, mainline)
    if mainline:
        _note_regressions(session, run, judged, policy)
    session.flush()
    telling.tell(session, run.id)
    return run


def fail(session: Session, lease: queue.Lease, reason: str, log: str | None = None) -> Run:
    """The revision itself cannot be measured (it does not build, say): that is an answer, and it is told."""
    run = queue.end(session, lease, RunState.FAILED, reason, log)
    session.flush()
    telling.tell(session, run.id)
    return run


def stack_known(session: Session, versions: Mapping[str, Any]) -> Stack:
    """The row of this fingerprint, made when it is new."""
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()
    stack = session.execute(select(Stack).where(Stack.digest == digest)).scalar_one_or_none()
    if stack is None:
        stack = Stack(digest=digest, versions=dict(versions))
        session.add(stack)
        session.flush()
    return stack


def _measurement(run_id: int, one: Taken) -> Measurement:
    launches = (*one.looked, *one.confirmed)
    us = one.median_us
    return Measurement(
        run_id=run_id,
        contender=one.contender,
        role=one.role.value,
        provider=one.provider,
        case=str(one.case),
        state=one.state,
        reason=one.reason,
        median_us=us,
        gb_s=one.case.least_bytes / us / 1e3 if us else None,
        launches=len(launches),
        rounds=sum(len(rounds) for rounds in launches),
        facts=dict(one.facts),
        samples=pack(one.looked, one.confirmed) if launches else None,
    )


def _against_parent(run_id: int, name: tuple[str, str], verdict: Verdict) -> VerdictRow:
    provider, case = name
    row = VerdictRow(run_id=run_id, provider=provider, case=case, against="parent")
    row.outcome, row.reason, row.confirmed = verdict.outcome.value, verdict.reason, verdict.confirmed
    if verdict.comparison:
        row.ratio, row.low, row.high = verdict.comparison.ratio, verdict.comparison.low, verdict.comparison.high
        row.launches, row.rounds = verdict.comparison.launches, verdict.comparison.rounds
    return row


def _compare_with_sota(
    session: Session,
    run: Run,
    revision: Revision,
    evidence: Evidence,
    judged: Mapping[tuple[str, str], Verdict],
    policy: Policy,
    mainline: bool,
) -> None:
    times = {(one.role, one.case): one.median_us for one in evidence.taken}
    for head in evidence.taken:
        if head.role is not Role.HEAD or head.state is not CellState.MEASURED:
            continue
        pairs, name, trouble = against_sota(evidence.taken, head)
        standing = sota.stand(pairs, name, policy, trouble)
        row = VerdictRow(
            run_id=run.id, provider=head.provider, case=str(head.case), against="sota", outcome=Outcome.NEW.value
        )
        row.behind, row.reason = standing.behind, standing.reason
        session.add(row)
        own_us, sota_us = head.median_us, times.get((Role.SOTA, head.case))
        if standing.comparison is None or own_us is None or sota_us is None:
            continue
        comparison = standing.comparison
        row.outcome = _direction(comparison.low, comparison.high).value
        row.ratio, row.low, row.high = comparison.ratio, comparison.low, comparison.high
        row.launches, row.rounds = comparison.launches, comparison.rounds
        if mainline:
            now = sota.Standing(revision.short, comparison.ratio, own_us, sota_us, run.stack_id, standing.behind)
            parent = judged.get((head.provider, str(head.case)))
            parent_ratio = parent.comparison.ratio if parent and parent.comparison else None
            row.reason = _note_gap(session, run, head, now, name, parent_ratio, policy) or row.reason


def _direction(low: float, high: float) -> Outcome:
    """Against SOTA the outcome is only where the interval lies: whether that matters is the `behind` flag."""
    return Outcome.REGRESSION if low > 1 else Outcome.IMPROVEMENT if high < 1 else Outcome.STEADY


def _note_gap(
    session: Session, run: Run, head: Taken, now: sota.Standing, name: str, parent_ratio: float | None, policy: Policy
) -> str | None:
    """Keep since when the case is behind; returns the sentence to show when it is."""
    where = (
        Gap.target_id == run.target_id,
        Gap.device == run.device,
        Gap.provider == head.provider,
        Gap.case == str(head.case),
    )
    gap = session.execute(select(Gap).where(*where)).scalar_one_or_none()
    before = _standing(session, gap) if gap else None
    if gap is None:
        gap = Gap(target_id=run.target_id, device=run.device, provider=head.provider, case=str(head.case), behind=False)
        session.add(gap)
    if now.behind and not gap.behind:
        gap.since_run_id, gap.ratio_then = run.id, now.ratio
    elif not now.behind:
        gap.since_run_id, gap.ratio_then = None, None
    gap.behind, gap.last_run_id, gap.stack_id = now.behind, run.id, run.stack_id
    gap.ratio_now, gap.own_us, gap.sota_us = now.ratio, now.own_us, now.sota_us
    return sota.told(now, before, name, parent_ratio, policy) if now.behind else None


def _standing(session: Session, gap: Gap) -> sota.Standing:
    def short(run_id: int) -> str:
        return session.execute(select(Revision).join(Run).where(Run.id == run_id)).scalar_one().short

    since = short(gap.since_run_id) if gap.since_run_id else None
    return sota.Standing(
        short(gap.last_run_id), gap.ratio_now, gap.own_us, gap.sota_us, gap.stack_id, gap.behind, since
    )


def _note_regressions(session: Session, run: Run, judged: Mapping[tuple[str, str], Verdict], policy: Policy) -> None:
    """Open a record for each confirmed regression of the mainline, and close those that this revision mends."""
    now = queue.clock(session)
    for (provider, case), verdict in judged.items():
        if verdict.comparison is None or verdict.outcome not in (Outcome.REGRESSION, Outcome.IMPROVEMENT):
            continue
        open_ones = (
            session.execute(
                select(RegressionRow).where(
                    RegressionRow.target_id == run.target_id,
                    RegressionRow.device == run.device,
                    RegressionRow.provider == provider,
                    RegressionRow.case == case,
                    RegressionRow.state == RegressionState.OPEN,
                )
            )
            .scalars()
            .all()
        )
        ratio = verdict.comparison.ratio
        if verdict.outcome is Outcome.REGRESSION:
            session.add(
                RegressionRow(
                    target_id=run.target_id,
                    device=run.device,
                    provider=provider,
                    case=case,
                    run_id=run.id,
                    ratio=ratio,
                    opened_at=now,
                )
            )
        for one in open_ones:
            if verdict.outcome is Outcome.IMPROVEMENT and one.ratio * ratio <= 1 + policy.smallest_change:
                one.state, one.fixed_at, one.fixed_by = RegressionState.FIXED, now, run.id


def unfit(session: Session, target: Target, sha: str, device: str) -> str | None:
    """Why this revision must not be a baseline on this device, when that is known already."""
    newest = session.execute(
        select(Run)
        .join(Revision)
        .where(Revision.target_id == target.id, Revision.sha == sha, Run.device == device)
        .where(Run.state.in_([RunState.DONE, RunState.FAILED]))
        .order_by(Run.id.desc())
        .limit(1)
        .options(selectinload(Run.verdicts))
    ).scalar_one_or_none()
    if newest is None:
        return None
    if newest.state is RunState.FAILED:
        return "it does not build or could not be measured"
    if any(row.outcome == Outcome.INVALID.value for row in newest.verdicts):
        return "it computes wrong results"
    return None
