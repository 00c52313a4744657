"""Revisions by the names that people give them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from service.db.models import FactsCheck, Revision, Run, Target
from service.domain.states import Purpose
from service.domain.text import listed, short
from service.errors import BadInput, NotFound
from service.ledger import queries
from service.ledger.queries import Glance
from service.ledger.reading.runs import MIN_SHA, is_revision

MAX_RUNS = 20  # of a revision in a list


@dataclass(frozen=True)
class RevisionView:
    """A revision with its runs on the mainline or of a pull request, and what was compiled of it, the newest first."""

    row: Revision
    runs: Sequence[Glance]
    checks: Sequence[FactsCheck]


def named(session: Session, target: Target, name: str) -> Revision:
    """The revision of this sha, of the beginning of one, or of this version.  Raises NotFound and BadInput."""
    found = session.scalars(
        select(Revision)
        .where(Revision.target_id == target.id, is_revision(target, name))
        .order_by(Revision.sha)
        .limit(4)
    ).all()
    exact = [row for row in found if row.sha == name]
    if len(found) > 1 and not exact:
        raise BadInput(f"{name} is the beginning of {listed([short(row.sha) for row in found[:3]])}: write more of it.")
    if not found:
        hint = f"Write at least {MIN_SHA} characters of it." if len(name) < MIN_SHA else ""
        raise NotFound(f"revision of {target.name}", name, hint)
    return (exact or found)[0]


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
    found = dict[int, list[Glance]]()
    for glance in queries.glances(session, session.scalars(statement).all()):
        of = found.setdefault(glance.run.revision_id, [])
        if len(of) < MAX_RUNS:
            of.append(glance)
    return found
