"""The line of a bisection: the revisions from its good end to its bad end."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Bisection, Revision, Run, Target, VerdictRow
from service.domain.states import BaselineKind, RunState, TargetKind
from service.domain.text import short
from service.domain.verdicts.judge import Outcome
from service.errors import BadInput
from service.ledger.runs.revisions import revisions_known
from service.sources.source import Found


def known_line(session: Session, target: Target, good: str, bad: str) -> list[str]:
    """The revisions from `good` to `bad` along first parents as the ledger knows them; empty where it has gaps."""
    parents = dict(session.execute(select(Revision.sha, Revision.parent).where(Revision.target_id == target.id)).all())
    line, sha = {bad: None}, bad  # a dict keeps the order
    while sha != good:
        if sha not in parents:
            return []
        parent = parents[sha]
        if parent is None or parent in line:
            raise BadInput(_not_on_one_line(good, bad))
        line[parent], sha = None, parent
    return [*line][::-1]


def sound(target: Target, good: str, bad: str, line: Sequence[Found]) -> list[str]:
    """The whole line, checked: each commit is the first parent of the next; releases are ordered by version."""
    shas = [good, *(one.sha for one in line)]
    linked = all(one.parent == before for before, one in zip(shas, line, strict=False))
    if len(shas) < 2 or shas[-1] != bad or not (linked or target.kind is TargetKind.PACKAGE):
        raise BadInput(_not_on_one_line(good, bad))
    return shas


def _not_on_one_line(good: str, bad: str) -> str:
    return (
        f"{short(good)} is not on the first-parent line of {short(bad)}, which a bisection follows. "
        "Write GOOD..BAD with the older revision first; if the good one is on a merged branch, use the commit where "
        f"that branch started (`git merge-base {short(good)} {short(bad)}`)."
    )


def store(session: Session, target: Target, row: Bisection, line: Sequence[Found]) -> None:
    """Store the revisions of a line.  If its bad end is on the mainline, all of them are."""
    known = select(Revision.ordinal).where(Revision.target_id == target.id, Revision.sha == row.bad)
    mainline = session.execute(known).scalar_one_or_none() is not None
    revisions_known(session, target, line, mainline=mainline)


def moved_between(session: Session, target: Target, device: str, good: str, bad: str) -> list[str]:
    """The cases that the newest stored comparison of the two ends found slower; empty without a comparison."""
    compared = (
        select(Run.id, VerdictRow.case, VerdictRow.outcome)
        .join(Revision, Revision.id == Run.revision_id)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .where(Run.target_id == target.id, Run.device == device, Run.state == RunState.DONE, Revision.sha == bad)
        .where(VerdictRow.baseline_kind.in_((BaselineKind.PARENT, BaselineKind.LAST_GOOD)), VerdictRow.baseline == good)
        .order_by(Run.id.desc())
    )
    rows = session.execute(compared).all()
    return sorted({row.case for row in rows if row.id == rows[0].id and row.outcome == Outcome.REGRESSION})
