"""Revisions by the names that people give them, and what is known of their code without timing it.

That is checks, and the facts of measurements side by side.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, selectinload

from kernels.cases import Role
from service.db.models import FactsCheck, Measurement, Revision, Run, Stack, Target, VerdictRow
from service.db.paging import ResultPage, paged
from service.domain.attribution.causes import moved
from service.domain.states import BaselineKind, FactsState, Purpose, RunState
from service.domain.text import listed, short
from service.domain.verdicts.samples import Name
from service.errors import BadInput, NotFound
from service.ledger.reading import queries
from service.ledger.reading.queries import Glance
from service.ledger.reading.runs import MIN_SHA, CaseFilter, is_revision
from service.reports.rows import FactsDiff, FactsPair, FactsSide

MAX_RUNS = 20  # of a revision in a list
_NAMES = select(VerdictRow.provider, VerdictRow.case)


@dataclass(frozen=True)
class RevisionView:
    """A revision with its runs on the mainline or of a pull request, and what was compiled of it, the newest first."""

    row: Revision
    runs: Sequence[Glance]
    checks: Sequence[FactsCheck]


def named(session: Session, target: Target, name: str) -> Revision:
    """The revision of this sha, of the beginning of one, or of this version.  Raises NotFound and BadInput."""
    revisions = session.scalars(
        select(Revision)
        .where(Revision.target_id == target.id, is_revision(target, name))
        .order_by(Revision.sha)
        .limit(4)
    ).all()
    exact = [row for row in revisions if row.sha == name]
    if len(revisions) > 1 and not exact:
        raise BadInput(
            f"{name} is the beginning of {listed([short(row.sha) for row in revisions[:3]])}: write more of it."
        )
    if not revisions:
        hint = f"Write at least {MIN_SHA} characters of it." if len(name) < MIN_SHA else ""
        raise NotFound(f"revision of {target.name}", name, hint)
    return (exact or revisions)[0]


def one(session: Session, target: Target, name: str) -> RevisionView:
    """A revision with its runs and checks.  Raises NotFound and BadInput."""
    row = named(session, target, name)
    checks = (
        select(FactsCheck)
        .where(FactsCheck.revision_id == row.id)
        .options(selectinload(FactsCheck.revision))
        .order_by(FactsCheck.id.desc())
    )
    return RevisionView(row, runs_of(session, [row.id]).get(row.id, ()), session.scalars(checks).all())


def runs_of(session: Session, ids: Collection[int]) -> dict[int, list[Glance]]:
    """The runs of these revisions, the newest first, without steps of bisections and calibrations."""
    statement = (
        select(Run)
        .where(Run.revision_id.in_(ids), Run.purpose == Purpose.WATCH)
        .options(selectinload(Run.target), selectinload(Run.revision))
        .order_by(Run.id.desc())
    )
    glances = dict[int, list[Glance]]()
    for glance in queries.glances(session, session.scalars(statement).all()):
        of = glances.setdefault(glance.run.revision_id, [])
        if len(of) < MAX_RUNS:
            of.append(glance)
    return glances


def checks(
    session: Session,
    target: Target | None,
    *,
    revision: str | None = None,
    state: FactsState | None = None,
    where: Collection[ColumnElement[bool]] = (),
    cursor: str | None = None,
    limit: int = 50,
) -> ResultPage[FactsCheck]:
    """The facts checks of a target or of all, the newest first, each with its target and revision."""
    names = (selectinload(FactsCheck.target), selectinload(FactsCheck.revision))
    statement = select(FactsCheck).where(*where).options(*names)
    if target is not None:
        statement = statement.where(FactsCheck.target_id == target.id)
    if revision is not None:
        statement = statement.join(FactsCheck.revision).where(is_revision(target, revision))
    if state is not None:
        statement = statement.where(FactsCheck.state == state)
    return paged(session, statement, (FactsCheck.id,), cursor, limit)


def facts_diff(
    session: Session, base: Revision, head: Revision, which: CaseFilter, *, device: str | None = None
) -> FactsDiff:
    """The facts of two revisions: of the head's session where that measured both, or else of the newest one of each."""
    check = session.scalar(
        select(FactsCheck)
        .where(FactsCheck.revision_id == head.id, FactsCheck.base == base.sha)
        .options(selectinload(FactsCheck.revision))
        .order_by(FactsCheck.id.desc())
        .limit(1)
    )
    heads, bases = (_newest(session, revision, device) for revision in (head, base))
    pairs, changes = list[FactsPair](), dict[str, tuple[str, ...]]()
    for where in sorted({*heads, *bases}):
        of_head, of_base = heads.get(where), bases.get(where)
        head_side = _facts(session, of_head, Role.HEAD, which)
        together = _parents(session, of_head, base, which)
        base_side = _facts(session, of_base, Role.HEAD, which) | together
        for provider, case in sorted({*head_side, *base_side}):
            name = provider, case
            pairs.append(FactsPair(where, provider, case, base_side.get(name), head_side.get(name)))
        if not together and of_head is not None and of_base is not None:
            changes[where] = _stack_changes(session, of_base, of_head)
    return FactsDiff(
        base, head, check, pairs, {where: changes_there for where, changes_there in changes.items() if changes_there}
    )


def _newest(session: Session, revision: Revision, device: str | None) -> dict[str, Run]:
    """The newest finished run of a revision on each device."""
    done = select(Run).where(Run.revision_id == revision.id, Run.state == RunState.DONE).order_by(Run.id)
    wanted = done if device is None else done.where(Run.device == device)
    return {run.device: run for run in session.scalars(wanted)}


def _parents(session: Session, run: Run | None, base: Revision, which: CaseFilter) -> dict[Name, FactsSide]:
    """The base in the head's session, at the cases for which it was the parent."""
    if run is None:
        return {}
    asked = (VerdictRow.run_id == run.id, VerdictRow.baseline_kind == BaselineKind.PARENT, *which.on(VerdictRow))
    against = func.coalesce(VerdictRow.baseline, run.baseline) == base.sha
    names = {(row.provider, row.case) for row in session.execute(_NAMES.where(*asked, against))}
    return {name: side for name, side in _facts(session, run, Role.PARENT, which).items() if name in names}


def _facts(session: Session, run: Run | None, role: Role, which: CaseFilter) -> dict[Name, FactsSide]:
    if run is None:
        return {}
    columns = (Measurement.provider, Measurement.case, Measurement.state, Measurement.facts)
    asked = (Measurement.run_id == run.id, Measurement.role == role.value, *which.on(Measurement))
    rows = session.execute(select(*columns).where(*asked))
    return {(provider, case): FactsSide(run.id, state, facts or {}) for provider, case, state, facts in rows}


def _stack_changes(session: Session, base: Run, head: Run) -> tuple[str, ...]:
    if base.stack_id == head.stack_id or None in (base.stack_id, head.stack_id):
        return ()
    ids = (base.stack_id, head.stack_id)
    versions = {row.id: row.versions for row in session.scalars(select(Stack).where(Stack.id.in_(ids)))}
    return moved(versions[base.stack_id or 0], versions[head.stack_id or 0]) or ("another stack",)
