"""What a session found becomes rows: measurements, verdicts, regressions, gaps and effects."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session, selectinload

from kernels.words import Lane, Role
from service import recipes, sota, verdicts
from service.beside import Beside
from service.evidence import Evidence, Taken, against_sota, cells
from service.ledger import queue, standing
from service.ledger.once import inserted
from service.models import (
    CellState,
    Measurement,
    Purpose,
    Recipe,
    Revision,
    Run,
    RunState,
    Stack,
    Target,
    VerdictRow,
    pack,
)
from service.policy import Policy
from service.server_policy import effective
from service.verdicts import CHANGES, KNOWN_BEFORE, Outcome, Verdict


def record(session: Session, lease: queue.Lease, evidence: Evidence) -> Run:
    """Store and judge what a session found.  Raises LeaseLost, and stores nothing, when the run is not ours."""
    run = queue.end(session, lease, RunState.DONE)
    wrong_before = _wrong_before(session, run, run.baseline) if run.baseline != evidence.baseline else set()
    run.baseline, run.sandboxed = evidence.baseline, evidence.sandboxed
    run.reason = "; ".join(evidence.notes) or None
    run.stack_id = stack_known(session, evidence.stack).id
    run.telemetry = dict(evidence.telemetry)
    session.add_all(_measurement(run.id, one) for one in evidence.taken)
    policy = effective(recipes.parse(session.get_one(Recipe, run.recipe_id).text), run.device)
    note = evidence.notes[0] if evidence.notes and evidence.baseline is None else None
    judged = verdicts.judge(cells(evidence.taken, note, wrong_before), policy)
    session.add_all(_against_parent(run.id, name, verdict) for name, verdict in judged.items())
    revision = session.get_one(Revision, run.revision_id)
    mainline = revision.ordinal is not None and run.watched
    _compare_with_sota(session, run, revision, evidence, judged, policy, mainline)
    if mainline:
        standing.note_regressions(session, run, judged, policy)
    return run


def fail(session: Session, lease: queue.Lease, reason: str, log: str | None = None) -> Run:
    """The revision itself cannot be measured (it does not build, say): that is an answer."""
    return queue.end(session, lease, RunState.FAILED, reason, log)


def stack_known(session: Session, versions: Mapping[str, Any]) -> Stack:
    """The row of this fingerprint, made when it is new."""
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()
    inserted(session, Stack, "digest", {"digest": digest, "versions": dict(versions)})
    return session.execute(select(Stack).where(Stack.digest == digest)).scalar_one()


def _measurement(run_id: int, one: Taken) -> Measurement:
    launches = (*one.looked, *one.confirmed)
    median = one.median
    return Measurement(
        run_id=run_id,
        contender=one.contender,
        role=one.role.value,
        provider=one.provider,
        case=str(one.case),
        state=one.state,
        reason=one.reason,
        median=median,
        gb_s=one.case.least_bytes / median / 1e3 if median and one.case.lane is Lane.KERNEL else None,
        launches=len(launches),
        rounds=sum(len(rounds) for rounds in launches),
        facts=dict(one.facts),
        samples=pack(one.looked, one.confirmed) if launches else None,
    )


def _against_parent(run_id: int, name: tuple[str, str], verdict: Verdict) -> VerdictRow:
    provider, case = name
    row = VerdictRow(run_id=run_id, provider=provider, case=case, against="parent")
    row.outcome, row.reason, row.confirmed = verdict.outcome.value, verdict.reason, verdict.confirmed
    row.control = verdict.control
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
    times = {(one.role, one.case): one.median for one in evidence.taken}
    heads = [one for one in evidence.taken if one.role is Role.HEAD and one.state is CellState.MEASURED]
    besides = {(one.provider, str(one.case)): _beside_sota(evidence, one) for one in heads}
    stood = sota.stand_all(list(besides.values()), policy)
    # In one order, so that two workers never wait for each other's gaps.
    for head in sorted(heads, key=lambda one: (one.provider, str(one.case))):
        stands = stood[head.provider, str(head.case)]
        name = stands.baseline
        row = VerdictRow(
            run_id=run.id, provider=head.provider, case=str(head.case), against="sota", outcome=stands.outcome.value
        )
        row.behind, row.reason = stands.slower, stands.reason
        session.add(row)
        own, best = head.median, times.get((Role.SOTA, head.case))
        if stands.comparison is None or own is None or best is None:
            continue
        comparison = stands.comparison
        row.ratio, row.low, row.high = comparison.ratio, comparison.low, comparison.high
        row.launches, row.rounds = comparison.launches, comparison.rounds
        if mainline:
            now = sota.Standing(revision.short, comparison.ratio, own, best, run.stack_id, stands.slower)
            parent = judged.get((head.provider, str(head.case)))
            moved = parent.comparison.ratio if parent and parent.comparison and parent.outcome in CHANGES else None
            row.reason = standing.note_gap(session, run, revision, row, now, name, moved, policy) or row.reason


def _beside_sota(evidence: Evidence, head: Taken) -> Beside:
    pairs, name, trouble = against_sota(evidence.taken, head)
    return Beside(head.provider, str(head.case), name, pairs, trouble)


def unfit(session: Session, target: Target, sha: str, device: str) -> str | None:
    """Why this revision must not be a baseline on this device, when the recipe of today has shown that already.

    Wrong results count only when they came with this revision: what was wrong before it stays wrong beside any other
    baseline, and must not hide what the other cases do.
    """
    newest = session.execute(
        select(Run)
        .join(Revision)
        .where(Revision.target_id == target.id, Revision.sha == sha, Run.device == device)
        .where(Run.recipe_id == target.recipe_id, Run.purpose == Purpose.WATCH)
        # A run that failed without a log was given up because of the machine.
        .where(or_(Run.state == RunState.DONE, and_(Run.state == RunState.FAILED, Run.log.is_not(None))))
        .order_by(Run.id.desc())
        .limit(1)
        .options(selectinload(Run.verdicts))
    ).scalar_one_or_none()
    if newest is None:
        return None
    if newest.state is RunState.FAILED:
        return "it does not build"
    if newest.baseline is not None and any(not row.reason.startswith(KNOWN_BEFORE) for row in _wrong(newest)):
        return "it computes wrong results"
    return None


def _wrong_before(session: Session, run: Run, wanted: str | None) -> set[tuple[str, str]]:
    """Where the newest measured revision up to `wanted`, which was passed over as baseline, was wrong."""
    place = select(Revision.ordinal).where(Revision.target_id == run.target_id, Revision.sha == wanted)
    newest = session.execute(
        select(Run)
        .join(Revision)
        .where(Run.target_id == run.target_id, Run.device == run.device, Run.state == RunState.DONE)
        .where(Run.purpose == Purpose.WATCH)
        .where(Revision.ordinal <= place.scalar_subquery())
        .order_by(Revision.ordinal.desc(), Run.id.desc())
        .limit(1)
        .options(selectinload(Run.verdicts))
    ).scalar_one_or_none()
    return {(row.provider, row.case) for row in _wrong(newest)} if newest else set()


def _wrong(run: Run) -> list[VerdictRow]:
    return [row for row in run.verdicts if row.outcome == Outcome.INVALID.value]
