"""Any two revisions on one device by what sessions measured, and the cases of a target by its latest runs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from kernels.cases import Metric, Role
from service.db.models import WATCHED, Measurement, Pull, Revision, Run, Stack, Target, VerdictRow
from service.domain.attribution.causes import moved
from service.domain.metrics import split_metric
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, ComparisonMethod, Direction, Outcome, Purpose, RunState
from service.domain.text import listed
from service.domain.verdicts.reasons import ReasonCode
from service.domain.verdicts.samples import MAX_LINKS, Name, PairedRatio, direction, paired, product
from service.errors import Conflict, NotFound
from service.ledger.policies import effective
from service.ledger.reading import queries
from service.ledger.reading.revisions import named
from service.ledger.reading.runs import CaseFilter
from service.reports.report import readable
from service.reports.rows import ComparedCase, ComparedSide, RevisionsCompared
from service.reports.views import MeasuredCase, MeasuredSeries

MAINLINE = "mainline"
_OWN = (BaselineKind.PARENT, BaselineKind.LAST_GOOD, BaselineKind.PINNED)
_DIRECTIONS: Mapping[Outcome, Direction] = {
    Outcome.REGRESSION: "slower",
    Outcome.IMPROVEMENT: "faster",
    Outcome.STEADY: "same",
}
_OPPOSITE = {Outcome.REGRESSION: Outcome.IMPROVEMENT, Outcome.IMPROVEMENT: Outcome.REGRESSION}
_NOT_TOGETHER = "no session measured both, and they share no paired baseline on one machine and stack"


@dataclass(frozen=True)
class _Run:
    """A finished run; `sha` is its revision's."""

    id: int
    revision_id: int
    worker: str | None
    stack_id: int | None
    recipe_id: int
    baseline: str | None
    sha: str


_SAME = PairedRatio(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class _Verdict:
    """A stored verdict of a session's head against one baseline."""

    run: _Run
    kind: BaselineKind
    baseline: str | None
    outcome: Outcome | None
    ratio: PairedRatio | None
    smallest_change: float | None
    same_code: bool  # proved by facts, and one trial has no ratio


@dataclass(frozen=True)
class _Side:
    revision: Revision
    pull: int | None
    runs: Sequence[_Run]  # newest first


def compare(
    session: Session, target: Target, base: str, head: str, device: str, which: CaseFilter
) -> RevisionsCompared:
    """Compare two revisions, releases or pull requests (`pull/7`); `mainline` and its branch name its newest revision.

    Raises NotFound, and Conflict where nothing on this device, or nothing on one machine, can be compared.
    """
    before, after = (_side(session, target, revision, device) for revision in (base, head))
    chain = _chain(session, target, device, before, after)
    verdicts = _verdicts(session, {run.id: run for run in (*after.runs, *before.runs, *chain)}, which)
    of_head, of_base = _shown(after, before)
    recipe = readable(target.recipe.text) if target.recipe else None
    comparer = _Comparer(before, after, chain, verdicts, effective(recipe, device) if recipe else Policy())
    medians = _medians(session, {run.id for run in (*after.runs, *before.runs)}, which)
    names = sorted({name for run in (of_head, of_base) for name in medians.get((run.id, Role.HEAD), {})})
    cases = [comparer.case(name, medians, of_base, of_head) for name in names]
    if of_head.worker != of_base.worker and not any(case.ratio for case in cases):
        raise Conflict(
            f"{before.revision.short} was measured by {of_base.worker} and {after.revision.short} by {of_head.worker}: "
            "times of two machines are not comparable. Start a run of one of them on the other's machine."
        )
    return RevisionsCompared(
        device,
        ComparedSide(before.revision, before.pull, of_base.id, of_base.worker, of_base.recipe_id),
        ComparedSide(after.revision, after.pull, of_head.id, of_head.worker, of_head.recipe_id),
        _stack_changes(session, of_base.stack_id, of_head.stack_id),
        cases,
    )


COMPARED = (Run.state == RunState.DONE, Run.purpose != Purpose.CALIBRATION)  # that compares a revision with itself


def _runs(session: Session, device: str, *of_revision: ColumnElement[bool]) -> Sequence[_Run]:
    """The finished runs of a revision on the device, the newest first."""
    columns = (Run.id, Run.revision_id, Run.worker, Run.stack_id, Run.recipe_id, Run.baseline, Revision.sha)
    rows = session.execute(
        select(*columns)
        .join(Revision, Revision.id == Run.revision_id)
        .where(*of_revision, Run.device == device, *COMPARED)
        .order_by(Run.id.desc())
    )
    return [_Run(*row) for row in rows]


def _side(session: Session, target: Target, name: str, device: str) -> _Side:
    number = name.removeprefix("pull/") if name.startswith("pull/") else ""
    pull = int(number) if number.isdecimal() and len(number) < 10 else None
    if pull is not None:
        head = session.scalar(select(Pull.head).where(Pull.target_id == target.id, Pull.number == pull))
        if head is None:
            raise NotFound(f"pull request of {target.name}", pull)
        name = head
    newest = _newest(session, target, device) if name in (MAINLINE, target.branch) else None
    revision = newest or named(session, target, name)
    own = _runs(session, device, Revision.id == revision.id)
    if not own:
        done = (Run.revision_id == revision.id, Run.state == RunState.DONE)
        others = session.scalars(select(Run.device).where(*done).distinct().order_by(Run.device)).all()
        where = f"only on {listed(others)}: times of other devices are not comparable" if others else "nowhere yet"
        raise Conflict(
            f"{target.name} {revision.short} was not measured on {device}, {where}. Start a run of it on {device}."
        )
    return _Side(revision, pull, own)


def _newest(session: Session, target: Target, device: str) -> Revision:
    """The newest revision of the mainline that was measured on the device.  Raises Conflict if there is none."""
    on_mainline = (Revision.target_id == target.id, Revision.ordinal.is_not(None))
    measured = select(Revision).join(Run, Run.revision_id == Revision.id).where(Run.device == device, *COMPARED)
    revision = session.scalar(measured.where(*on_mainline).order_by(Revision.ordinal.desc()).limit(1))
    if revision is None:
        raise Conflict(f"No revision of the mainline of {target.name} was measured on this device. Start a run of one.")
    return revision


def _chain(session: Session, target: Target, device: str, base: _Side, head: _Side) -> list[_Run]:
    """The runs from head to base, each compared with the revision of the next; empty where there is no such chain."""
    runs = list[_Run]()
    run: _Run | None = head.runs[0]
    while run is not None and len(runs) < MAX_LINKS:
        runs.append(run)
        if run.baseline == base.revision.sha:
            return runs
        before = (Revision.target_id == target.id, Revision.sha == run.baseline)
        run = next((run for run in _runs(session, device, *before) if _same_place(run, runs[0])), None)
    return []


def _same_place(run: _Run, other: _Run) -> bool:
    """Whether ratios of the two sessions to the same code can be compared."""
    return (run.worker, run.stack_id) == (other.worker, other.stack_id)


def _verdicts(session: Session, runs: Mapping[int, _Run], which: CaseFilter) -> dict[tuple[int, Name], list[_Verdict]]:
    table = VerdictRow
    columns = (table.run_id, table.provider, table.case, table.baseline_kind, table.baseline, table.outcome)
    numbers = (table.ratio, table.low, table.high, table.doubt, table.smallest_change, table.reason_code)
    asked = (table.run_id.in_(runs), table.baseline_kind.in_((*_OWN, BaselineKind.SOTA)), *which.on(table))
    verdicts = dict[tuple[int, Name], list[_Verdict]]()
    for run_id, provider, case, kind, who, outcome, ratio, low, high, doubt, smallest, code in session.execute(
        select(*columns, *numbers).where(*asked).order_by(table.id)
    ):
        baseline = who or (runs[run_id].baseline if kind is BaselineKind.PARENT else None)
        own_outcome = Outcome(outcome) if kind is BaselineKind.PARENT else None
        of = paired(ratio, low, high) if doubt is None else None
        same_code = code == ReasonCode.EQUAL_CODE and ratio is None
        verdict = _Verdict(runs[run_id], kind, baseline, own_outcome, of, smallest, same_code)
        verdicts.setdefault((run_id, (provider, case)), []).append(verdict)
    return verdicts


Medians = dict[tuple[int, str], dict[Name, float | None]]


def _medians(session: Session, runs: set[int], which: CaseFilter) -> Medians:
    """By run and role."""
    roles = [Role.HEAD.value, *(kind.value for kind in _OWN)]
    columns = (Measurement.run_id, Measurement.role, Measurement.provider, Measurement.case, Measurement.median)
    asked = (Measurement.run_id.in_(runs), Measurement.role.in_(roles), *which.on(Measurement))
    found: Medians = {}
    for run_id, role, provider, case, median in session.execute(select(*columns).where(*asked)):
        found.setdefault((run_id, role), {})[provider, case] = median
    return found


def _shown(head: _Side, base: _Side) -> tuple[_Run, _Run]:
    """The runs whose medians are shown: the newest two of one machine and stack, else of one machine, else of all."""
    pairs = [(run, other) for run in head.runs for other in base.runs]
    together = (pair for pair in pairs if _same_place(*pair))
    machine = (pair for pair in pairs if pair[0].worker == pair[1].worker)
    return next(together, None) or next(machine, None) or pairs[0]


@dataclass(frozen=True)
class _Comparer:
    base: _Side
    head: _Side
    chain: Sequence[_Run]
    verdicts: Mapping[tuple[int, Name], Sequence[_Verdict]]
    policy: Policy

    def case(self, name: Name, medians: Medians, of_base: _Run, of_head: _Run) -> ComparedCase:
        """The best comparison of a case: its pair, else the narrowest indirect ratio, else none."""
        if (pair := self._pair(name, medians)) is not None:
            return pair
        before, after = (medians.get((run.id, Role.HEAD), {}).get(name) for run in (of_base, of_head))
        indirect = sorted(
            self._indirect(name, of_base, of_head), key=lambda indirect_ratio: indirect_ratio[1].half_width
        )
        if not indirect or before is None or after is None:
            reason = "one of them has no time at this case" if None in (before, after) else _NOT_TOGETHER
            both = (of_head.id, of_base.id)
            return ComparedCase(*name, ComparisonMethod.UNPAIRED, "unknown", before, after, None, both, reason=reason)
        method, ratio, via, runs = indirect[0]
        smallest = self.policy.smallest_change_at(name[1], before)
        reason = "no session measured both: the interval is that of several sessions"
        return ComparedCase(*name, method, direction(ratio, smallest), before, after, ratio, runs, via, reason=reason)

    def _pair(self, name: Name, medians: Medians) -> ComparedCase | None:
        for runs, other, turned in ((self.head.runs, self.base, False), (self.base.runs, self.head, True)):
            for run in runs:
                for verdict in self.verdicts.get((run.id, name), ()):
                    if verdict.kind in _OWN and verdict.baseline == other.revision.sha and verdict.ratio is not None:
                        return _of_pair(name, verdict, medians, turned=turned, policy=self.policy)
        return None

    def _indirect(
        self, name: Name, of_base: _Run, of_head: _Run
    ) -> Iterator[tuple[ComparisonMethod, PairedRatio, str | None, tuple[int, ...]]]:
        if _same_place(of_base, of_head):
            heads, bases = (self._references(run, name) for run in (of_head, of_base))
            for key in heads.keys() & bases.keys():
                method = ComparisonMethod.SOTA if key[0] else ComparisonMethod.BASELINE
                yield method, product([heads[key], bases[key].inverse]), key[1], (of_head.id, of_base.id)
        links = [self._link(run, name) for run in self.chain]
        ratios = [link for link in links if link is not None]
        if len(ratios) == len(links) > 1:
            yield ComparisonMethod.CHAIN, product(ratios), None, tuple(run.id for run in self.chain)

    def _references(self, run: _Run, name: Name) -> dict[tuple[bool, str], PairedRatio]:
        """What the session compared its head with."""
        return {
            (verdict.kind is BaselineKind.SOTA, verdict.baseline): verdict.ratio
            for verdict in self.verdicts.get((run.id, name), ())
            if verdict.ratio is not None and verdict.baseline is not None
        }

    def _link(self, run: _Run, name: Name) -> PairedRatio | None:
        """The session's ratio to exactly the baseline that the chain goes through."""
        verdicts = self.verdicts.get((run.id, name), ())
        own = (verdict for verdict in verdicts if verdict.kind in _OWN and verdict.baseline == run.baseline)
        return next((_SAME if verdict.same_code else verdict.ratio for verdict in own), None)


def _of_pair(name: Name, verdict: _Verdict, medians: Medians, *, turned: bool, policy: Policy) -> ComparedCase:
    assert verdict.ratio is not None  # noqa: S101  # checked by the caller
    ratio = verdict.ratio.inverse if turned else verdict.ratio
    of_head = medians.get((verdict.run.id, Role.HEAD), {}).get(name)
    of_other = medians.get((verdict.run.id, verdict.kind.value), {}).get(name)
    before, after = (of_head, of_other) if turned else (of_other, of_head)
    outcome = _OPPOSITE.get(verdict.outcome, verdict.outcome) if turned and verdict.outcome else verdict.outcome
    # Only verdicts against the parent store it.
    smallest = verdict.smallest_change or policy.smallest_change_at(name[1], of_other or 0.0)
    which_way = direction(ratio, smallest) if outcome is None else _DIRECTIONS.get(outcome, "unknown")
    stored = outcome.value if outcome else None
    return ComparedCase(
        *name, ComparisonMethod.PAIRED, which_way, before, after, ratio, (verdict.run.id,), outcome=stored
    )


def _stack_changes(session: Session, base: int | None, head: int | None) -> tuple[str, ...]:
    if base == head or base is None or head is None:
        return ()
    versions = {row.id: row.versions for row in session.scalars(select(Stack).where(Stack.id.in_((base, head))))}
    return moved(versions[base], versions[head]) or ("another stack",)


def series(
    session: Session, target: Target, which: CaseFilter, *, device: str | None = None, since: float | None = None
) -> list[MeasuredSeries]:
    """The series that mainline runs measured: the latest of each device, or all `since` a time."""
    runs = [
        run
        for on in ([device] if device else queries.devices(session, target))
        for run in _latest(session, target, on, since)
    ]
    rows = session.execute(
        select(Run.device, Measurement.provider, Measurement.case, func.max(Run.id))
        .join(Run, Run.id == Measurement.run_id)
        .where(Measurement.run_id.in_(runs), Measurement.role == Role.HEAD.value, *which.on(Measurement))
        .group_by(Run.device, Measurement.provider, Measurement.case)
    )
    return [MeasuredSeries(*row) for row in rows]


def cases(found: Iterable[MeasuredSeries]) -> list[MeasuredCase]:
    """The same by case."""
    by_case = defaultdict[str, list[MeasuredSeries]](list)
    for series in found:
        by_case[split_metric(series.case)[0]].append(series)
    return [_case(case, series) for case, series in sorted(by_case.items())]


def _case(case: str, every: Sequence[MeasuredSeries]) -> MeasuredCase:
    metrics = {series.metric for series in every}
    return MeasuredCase(
        case,
        tuple(sorted({series.device for series in every})),
        tuple(sorted({series.provider for series in every})),
        tuple(metric for metric in Metric if metric in metrics),
    )


def _latest(session: Session, target: Target, device: str, since: float | None) -> Sequence[int]:
    if since is None:
        return queries.latest_of_device(session, target, device)
    done = select(Run.id).where(Run.target_id == target.id, Run.device == device, Run.state == RunState.DONE, WATCHED)
    return session.scalars(done.where(Run.created_at >= since)).all()
