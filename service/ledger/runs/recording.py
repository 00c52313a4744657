"""Store what a session measured: measurements, verdicts with their causes, regressions, and other configurations.

A run measures its revision and the parent.  What differs between them is the commit's.  Both may have been measured
before, in sessions of their own; the newest of those is what this session is compared with: with the same stack the
autotuner chose again, and with another one the stack did it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import and_, func, not_, select
from sqlalchemy import case as when
from sqlalchemy.orm import Session

from kernels.cases import Metric, Role
from service.db.engine import clock, insert_rows
from service.db.models import (
    WATCHED,
    ConfigurationDrift,
    Measurement,
    RecipeRow,
    Revision,
    Run,
    Stack,
    Target,
    VerdictRow,
    pack,
    storable,
)
from service.domain.attribution import collect
from service.domain.attribution.causes import Kind
from service.domain.codefacts.history import drifted
from service.domain.metrics import SeriesKey
from service.domain.policy import recipes
from service.domain.policy.policy import Policy
from service.domain.policy.recipes import Recipe
from service.domain.states import BaselineKind, MovedBy, Outcome, Purpose, RunState
from service.domain.text import one_line
from service.domain.verdicts import judge
from service.domain.verdicts.calibration import is_provisional
from service.domain.verdicts.judge import Verdict
from service.domain.verdicts.reasons import ReasonCode
from service.domain.verdicts.samples import Cell, Name
from service.domain.verdicts.session_result import ContenderResult, SessionResult, cells, most_moved
from service.domain.verdicts.totals import summaries
from service.ledger import policies, stored_texts, targets
from service.ledger.calibration import plans, quarantines, sessions
from service.ledger.calibration.sessions import known_variances
from service.ledger.locking import insert_if_absent, lock
from service.ledger.notices import happenings
from service.ledger.notices.happenings import subscribers
from service.ledger.policies import effective
from service.ledger.regressions import after_run
from service.ledger.runs import baselines, queue
from service.ledger.runs.baselines import BROKEN
from service.ledger.targets import series_ids

MAX_TEXT = 400  # of a configuration, as in the fact `config`

_Chosen = tuple[int, str, str]  # the earlier run, its configuration, and that of this session
_Move = tuple[MovedBy, Name]
_Facts = Mapping[Name, Mapping[str, Any]]


def note_drifts(session: Session, run: Run, revision: Revision, taken: Sequence[ContenderResult]) -> None:
    """Keep the changes that this session of the mainline shows, and notify those who subscribed to them."""
    heads, parents = (
        {(result.provider, str(result.case)): result.facts for result in taken if result.role is role}
        for role in (Role.HEAD, Role.PARENT)
    )
    moves = dict[_Move, _Chosen]()
    for sha, now in ((run.baseline, parents), (revision.sha, heads)):
        if sha is not None and now:
            moves |= _against_earlier(session, run, sha, now)
    moves |= _by_the_commit(run, heads, parents)
    if not moves:
        return
    at = clock(session)
    key_of = {name: SeriesKey.of(run.target_id, run.device, *name) for _, name in moves}
    series = series_ids(session, key_of.values())
    rows = {
        (by, name): ConfigurationDrift(
            series_id=series[key_of[name]],
            run_id=run.id,
            earlier_run_id=earlier,
            moved_by=by,
            at=at,
            before=one_line(before, MAX_TEXT),
            now=one_line(after, MAX_TEXT),
        )
        for (by, name), (earlier, before, after) in moves.items()
    }
    session.add_all(rows.values())
    if subscribers(session, run.target_id):
        for (_, name), row in rows.items():
            happenings.configuration_moved(session, run, name, row)


def _by_the_commit(run: Run, heads: _Facts, parents: _Facts) -> dict[_Move, _Chosen]:
    """Where head and parent ran different configurations in this session."""
    moves = {}
    for name, facts in heads.items():
        if moved := drifted(parents.get(name, {}), facts):
            moves[MovedBy.COMMIT, name] = (run.id, *moved)
    return moves


def _against_earlier(session: Session, run: Run, sha: str, now: _Facts) -> dict[_Move, _Chosen]:
    """Where this session ran another configuration than the newest earlier one of the same revision.

    One with the same stack counts before one with another.
    """
    for by, stack in (
        (MovedBy.NOTHING, Run.stack_id == run.stack_id),
        (MovedBy.STACK, Run.stack_id != run.stack_id),
    ):
        earlier = session.scalar(
            select(func.max(Run.id))
            .join(Revision, Revision.id == Run.revision_id)
            .where(Revision.target_id == run.target_id, Revision.sha == sha, Run.device == run.device)
            .where(Run.state == RunState.DONE, Run.id != run.id, stack, WATCHED)
        )
        if earlier is not None:
            return {(by, name): chosen for name, chosen in _moved_since(session, earlier, now).items()}
    return {}


def _moved_since(session: Session, earlier: int, now: _Facts) -> dict[Name, _Chosen]:
    rows = session.execute(
        select(Measurement.provider, Measurement.case, Measurement.facts).where(
            Measurement.run_id == earlier, Measurement.role == Role.HEAD.value
        )
    )
    moves = {}
    for provider, case, facts in rows:
        moved = drifted(facts, now.get((provider, case), {}))
        if moved:
            moves[provider, case] = (earlier, *moved)
    return moves


AT_THAT_TIME_S = 6 * 3600.0  # a neighbour, a fan or a driver lasts for hours; a commit of another target is over in one


def moved_elsewhere(session: Session, run: Run) -> dict[bool, tuple[str, ...]]:
    """The other targets of which most cases became slower (True), or faster, on the worker of `run` lately.

    Each of their cases was compared with its own baseline.  A move counts for the machine unless a commit of theirs is
    known to have caused it; steps of bisections and runs of untrusted code are left out.
    """
    by_a_commit = and_(VerdictRow.confirmed, func.coalesce(VerdictRow.cause_kind, "") == Kind.CODE)
    moved = and_(VerdictRow.suspected, not_(by_a_commit))
    slower, faster = (
        func.sum(when((and_(moved, VerdictRow.ratio > 1), 1), else_=0)),
        func.sum(when((and_(moved, VerdictRow.ratio < 1), 1), else_=0)),
    )
    compared = func.count(VerdictRow.id)
    rows = session.execute(
        select(Target.name, slower, faster, compared)
        .join(Run, Run.target_id == Target.id)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .where(Run.worker == run.worker, Run.target_id != run.target_id, Run.state == RunState.DONE)
        .where(Run.finished_at >= clock(session) - AT_THAT_TIME_S)
        .where(Run.purpose != Purpose.BISECTION, Run.trusted)
        .where(VerdictRow.baseline_kind == BaselineKind.PARENT, VerdictRow.ratio.is_not(None))
        .group_by(Target.name)
        .order_by(Target.name)
    ).all()
    return {
        True: tuple(name for name, worse, _, n in rows if most_moved(worse, n)),
        False: tuple(name for name, _, better, n in rows if most_moved(better, n)),
    }


CONTROLS_OFF = "the controls of its first session failed, so it is measured again"


def record(session: Session, lease: queue.Lease, result: SessionResult) -> Run:
    """Judge and store the result of a session.  Raises LeaseLost, and stores nothing, when the run is not ours.

    Where the controls of the session are off, the run is queued again instead; a second session counts in any case.
    """
    target_id = session.scalar(select(Run.target_id).where(Run.id == lease.run_id))
    if target_id is not None:
        lock(session, target_id)  # its recipe may give providers other names at this moment
    run = queue.end(session, lease, RunState.DONE)
    names = targets.names_now(session, run)
    result = targets.renamed(result, names)
    recipe = recipes.parse(session.get_one(RecipeRow, run.recipe_id).text)
    policy = effective(recipe, run.device)
    cells = _cells(session, run, result, policy)
    variances = known_variances(session, run, policy, result.baseline)
    judged = judge.judge(cells, policy, variances)
    sessions.compared(session, run, result, policy, variances)  # before it is known whether this session counts
    if run.purpose is Purpose.WATCH and not run.repeated and judge.controls_are_off(judged):
        queue.repeat(session, run, CONTROLS_OFF)
        return run
    _store(session, run, result)
    known = sessions.calibrations_before(session, run)
    run.awaits_second = run.purpose is Purpose.WATCH and run.second_of is None and judge.needs_second_session(judged)
    run.provisional = run.purpose is Purpose.WATCH and is_provisional(known, policy.calibrate)
    stored_texts.keep_log(session, run.id, result.build_log)
    stored_texts.keep_code(session, run.target_id, result.texts, run_id=run.id)
    causes = collect.against_parent(result, _known(run, cells), judged, moved_elsewhere(session, run))
    run.summary = [summary.as_json() for summary in summaries(cells, policy)]
    made_by = policies.version_of(session, policy).id
    revision = session.get_one(Revision, run.revision_id)
    decided = baselines.Decided(run, revision, result, policy, judged, causes)
    if decided.mainline:
        decided = replace(decided, before=baselines.before(session, run, revision))
    rows = [_against_parent(decided, name, verdict) for name, verdict in judged.items()]
    rows += baselines.compare(session, decided)
    rows += _removed(decided, recipe, names)
    for row in rows:
        row.policy_id = made_by
    sessions.note_totals(session, run, rows)
    session.bulk_save_objects(rows)  # hundreds at once: SQLite's ORM inserts one by one where it wants their ids back
    if decided.mainline:
        note_drifts(session, run, revision, result.taken)
        plans.plan_target(session, run.target_id, run.device, policy.calibrate.every_h * 3600)
        after_run.note_regressions(session, run, policy)
    return run


def _cells(session: Session, run: Run, result: SessionResult, policy: Policy) -> list[Cell]:
    """The cells to judge, with what only the ledger knows of them."""
    heads = {(head.provider, str(head.case)): head for head in result.taken if head.role is Role.HEAD}
    # The run was compared with another revision than requested, which may have been correct where that one was not.
    elsewhere = {
        name for name, head in heads.items() if head.state in BROKEN and result.baseline_at(name) != run.baseline
    }
    broken_before = baselines.broken_before(session, run, run.baseline, elsewhere)
    note = result.notes[0] if result.notes and result.baseline is None else None
    silent = quarantines.quarantined(session, run.target_id, run.device, policy, list(heads))
    return cells(result.taken, note, broken_before, silent, code_decides=run.code_decides)


def _known(run: Run, cells: Sequence[Cell]) -> Sequence[Cell]:
    """The cells as their causes are looked for: in a calibration the code is the same on both sides."""
    return [replace(cell, same_code=True) for cell in cells] if run.purpose is Purpose.CALIBRATION else cells


def _store(session: Session, run: Run, result: SessionResult) -> None:
    run.baseline, run.sandboxed = result.baseline, result.sandboxed
    run.reason = "; ".join(result.notes) or None
    run.stack_id = stack_known(session, result.stack).id
    run.telemetry = dict(result.telemetry)
    last_good = list(result.last_good.values())
    run.last_good = max(last_good, key=last_good.count) if last_good else None  # each row names its own
    run.pinned = result.pinned
    insert_rows(session, Measurement, _COLUMNS, [_measurement(run.id, taken) for taken in result.taken])


def fail(session: Session, lease: queue.Lease, reason: str, log: str | None = None, whole_log: str = "") -> Run:
    """End a run whose revision cannot be measured, for example because it does not build."""
    run = queue.end(session, lease, RunState.FAILED, reason, log)
    stored_texts.keep_log(session, run.id, whole_log)
    return run


def stack_known(session: Session, versions: Mapping[str, Any]) -> Stack:
    """The row of this fingerprint, made when it is new."""
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()
    insert_if_absent(session, Stack, "digest", {"digest": digest, "versions": dict(versions)})
    return session.execute(select(Stack).where(Stack.digest == digest)).scalar_one()


_COLUMNS = (
    *("run_id", "contender", "role", "provider", "case", "state", "reason", "median", "gb_s", "trials", "rounds"),
    *("facts", "samples"),
)


def _measurement(run_id: int, result: ContenderResult) -> tuple[Any, ...]:
    trials = (*result.screened, *result.confirmed)
    median = result.median
    facts = dict(result.facts) | ({"inexact_median": result.inexact_median} if result.inexact_median else {})
    return (
        run_id,
        result.contender,
        result.role.value,
        result.provider,
        str(result.case),
        result.state.value,
        storable(result.reason),
        median,
        result.case.least_bytes / median / 1e3 if median and result.case.metric is Metric.KERNEL else None,
        sum(map(bool, trials)),  # without those that it sat out
        sum(len(rounds) for rounds in trials),
        json.dumps(storable(facts)),
        pack(result.screened, result.confirmed, result.apart) if trials or any(result.apart) else None,
    )


def _against_parent(decided: baselines.Decided, name: Name, verdict: Verdict) -> VerdictRow:
    provider, case = name
    row = VerdictRow(run_id=decided.run.id, provider=provider, case=case, baseline_kind=BaselineKind.PARENT)
    row.baseline = decided.result.baseline_at(name)
    row.outcome, row.confirmed = verdict.outcome.value, verdict.confirmed
    baselines.explained(row, verdict.reason)
    row.known_before, row.quarantined_by = verdict.known_before, verdict.quarantined_by
    row.control, row.suspected, row.smallest_change = verdict.control, verdict.suspected, verdict.smallest_change
    row.p, row.q, row.doubt = verdict.p, verdict.q, verdict.doubt
    baselines.measured(row, verdict.comparison, decided.causes.get(name))
    return row


def _removed(decided: baselines.Decided, recipe: Recipe, names: Mapping[str, str]) -> list[VerdictRow]:
    """A row for each case that the mainline run before judged and that the recipe no longer has."""
    before, run = decided.before, decided.run
    if before is None:
        return []
    cases = recipe.cases(run.suite)
    providers = [names.get(name, name) for name in recipe.providers_on(run.device)]
    asked = {(name, str(case)) for name in providers for case in cases} | set(decided.judged)
    return [
        VerdictRow(
            run_id=run.id,
            provider=row.provider,
            case=row.case,
            baseline_kind=BaselineKind.PARENT,
            outcome=Outcome.REMOVED.value,
            reason_code=ReasonCode.REMOVED.value,
            reason_args={"last": before.revision},
        )
        for row in before.verdicts
        if row.baseline_kind == BaselineKind.PARENT
        and row.outcome != Outcome.REMOVED
        and (row.provider, row.case) not in asked
    ]
