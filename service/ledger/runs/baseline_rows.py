"""How a run stands beside the baselines that are not its parent: rows, gaps, and who moved since the run before.

SOTA and the best are other people's code, told apart from a regression by a flag of their own; the last good revision
and the slow baseline are the target's own code, earlier.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from kernels.cases import Comparison, Role
from service.db.models import WATCHED, Measurement, Revision, Run, VerdictRow
from service.domain.attribution import collect
from service.domain.attribution.causes import Cause
from service.domain.attribution.gap import Shift, Side, gap_cause
from service.domain.attribution.stack_diff import replaced
from service.domain.policy.policy import Policy
from service.domain.states import Purpose, RunState
from service.domain.verdicts import baselines, sota
from service.domain.verdicts.baselines import Stand
from service.domain.verdicts.judge import CHANGES, Verdict
from service.domain.verdicts.samples import Name, Outcome
from service.domain.verdicts.session_result import SessionResult, Taken, beside_best, beside_revision, beside_sota
from service.ledger.runs.sota_gaps import Distance, note_gaps


@dataclass(frozen=True)
class Decided:
    """What was decided of a run beside its parent; `before` is the mainline run to which its gaps are held."""

    run: Run
    revision: Revision
    evidence: SessionResult
    policy: Policy
    judged: Mapping[Name, Verdict]
    causes: Mapping[Name, Cause]
    before: Run | None = None

    @property
    def mainline(self) -> bool:
        return self.revision.ordinal is not None and self.run.watched

    def moved(self, name: Name) -> float | None:
        """Head over parent, where that is a confirmed change."""
        verdict = self.judged.get(name)
        return verdict.comparison.ratio if verdict and verdict.comparison and verdict.outcome in CHANGES else None


def before(session: Session, run: Run, revision: Revision) -> Run | None:
    """The run of the nearest earlier revision of the mainline on this device and suite, with all that it found."""
    earlier = (
        select(Run)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, Run.suite == run.suite)
        .where(WATCHED, Run.state == RunState.DONE, Run.id != run.id, Revision.ordinal < revision.ordinal)
        .order_by(Revision.ordinal.desc(), Run.id.desc())
        .limit(1)
        .options(selectinload(Run.revision), selectinload(Run.stack), selectinload(Run.verdicts))
        .options(selectinload(Run.measurements))
    )
    return session.execute(earlier).scalar_one_or_none()


def compare(session: Session, decided: Decided) -> list[VerdictRow]:
    """A row for each case beside each baseline that took part, and the gaps of a mainline run."""
    evidence, policy = decided.evidence, decided.policy
    to_good = baselines.against_good(beside_revision(evidence.taken, Role.LAST_GOOD, evidence.good), policy)
    good = collect.beside(evidence, Role.LAST_GOOD, to_good)
    rows = [_row(decided, "last_good", evidence.good[name], name, stand, good) for name, stand in to_good.items()]
    if evidence.slow is not None:
        slow_everywhere = dict.fromkeys(decided.judged, evidence.slow)
        to_slow = baselines.leaks(beside_revision(evidence.taken, Role.PINNED, slow_everywhere), policy)
        slow = collect.beside(evidence, Role.PINNED, to_slow)
        rows += [_row(decided, "pinned", evidence.slow, name, stand, slow) for name, stand in to_slow.items()]
    if decided.run.purpose is not Purpose.WATCH:
        return rows  # no search and no calibration asks how far the best is
    controls = {name: verdict.control for name, verdict in decided.judged.items()}
    rows += _beside_others(decided, "best", sota.stand_all(beside_best(evidence.taken), policy, controls))
    stood = sota.stand_all(beside_sota(evidence.taken), policy, controls)
    to_sota = _beside_others(decided, "sota", stood)
    if decided.mainline:
        _note_gaps(session, decided, to_sota, stood)
    return [*rows, *to_sota]


def _beside_others(decided: Decided, against: str, stood: Mapping[Name, Stand]) -> list[VerdictRow]:
    """Beside other people's code, with who moved since the mainline was measured last."""
    shifts = _shifts(decided, against, stood) if decided.before is not None else {}
    causes = {name: found for name, shift in shifts.items() if (found := gap_cause(shift)) is not None}
    rows = [_row(decided, against, stand.baseline, name, stand, causes) for name, stand in stood.items()]
    for row in rows:
        row.behind_sota = stood[row.provider, row.case].slower
    return rows


def _row(
    decided: Decided, against: str, baseline: str, name: Name, stand: Stand, causes: Mapping[Name, Cause]
) -> VerdictRow:
    provider, case = name
    row = VerdictRow(run_id=decided.run.id, provider=provider, case=case, baseline_kind=against, baseline=baseline)
    row.outcome, row.reason, row.p, row.q = stand.outcome.value, stand.reason, stand.p, stand.q
    measured(row, stand.comparison, causes.get(name))
    return row


def measured(row: VerdictRow, comparison: Comparison | None, why: Cause | None) -> None:
    """What every verdict keeps of what it rests on: the size with its interval, and the cause."""
    if comparison is not None:
        row.ratio, row.low, row.high = comparison.ratio, comparison.low, comparison.high
        row.trials, row.rounds = comparison.trials, comparison.rounds
    if why is not None:
        row.cause_kind, row.cause_text, row.cause_certain = why.kind.value, why.words, why.certain
        row.cause_by = why.by.value if why.by else None


# -- since when, and who moved ----------------------------------------------------------------------------------------


def _note_gaps(session: Session, decided: Decided, rows: Iterable[VerdictRow], stood: Mapping[Name, Stand]) -> None:
    sides, run, revision = _sides(decided.evidence.taken), decided.run, decided.revision
    measured = {(row.provider, row.case): row for row in rows if row.ratio is not None}
    found = dict[Name, Distance]()
    for name, row in measured.items():
        own, best = sides.own.get(name), sides.baselines.get((row.baseline or "", row.case))
        if row.ratio is not None and own is not None and best is not None:
            took, is_open = (own.took, best.took), stood[name].is_open
            now = sota.Standing(revision.short, row.ratio, *took, run.stack_id, row.behind_sota, is_open=is_open)
            found[name] = Distance(now, best.name, decided.moved(name))
    for name, told in note_gaps(session, run, revision, found, decided.policy).items():
        row = measured[name]
        row.reason = told
        if not row.behind_sota:
            row.outcome = Outcome.INCONCLUSIVE.value  # the gap was known, and this session could not close it


@dataclass(frozen=True)
class _Sides:
    """What everybody took in one session: the head by provider and case, and other people's code."""

    own: Mapping[Name, Side]
    baselines: Mapping[Name, Side]


def _sides(measured: Iterable[Taken | Measurement]) -> _Sides:
    own, baselines = dict[Name, Side](), dict[Name, Side]()
    for one in measured:
        kind = own if one.role == Role.HEAD else baselines if one.role in (Role.SOTA, Role.RIVAL) else None
        if kind is not None and one.median:
            kind[one.provider, str(one.case)] = Side(one.provider, one.median, one.facts)
    return _Sides(own, baselines)


def _shifts(decided: Decided, against: str, stood: Mapping[Name, Stand]) -> dict[Name, Shift]:
    """This run and the one before it on the mainline, at each case that both measured beside this kind of baseline."""
    if (before := decided.before) is None:
        return {}
    was = {(row.provider, row.case): row.baseline for row in before.verdicts if row.baseline_kind == against}
    then, now = _sides(before.measurements), _sides(decided.evidence.taken)
    stack = replaced(before.stack.versions, decided.evidence.stack) if before.stack else {}
    found = {}
    for name, stand in stood.items():
        case = name[1]
        own = then.own.get(name), now.own.get(name)
        theirs = then.baselines.get((was.get(name) or stand.baseline, case)), now.baselines.get((stand.baseline, case))
        if own[0] and own[1] and theirs[0] and theirs[1]:
            smallest = decided.policy.relevant(case, own[1].took)
            moved, why = decided.moved(name), decided.causes.get(name)
            both = (own[0], own[1]), (theirs[0], theirs[1])
            found[name] = Shift(case, before.revision.short, *both, smallest, stack, moved, why)
    return found
