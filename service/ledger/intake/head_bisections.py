"""Search the commits of a pull request for the one that made its cases slower."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import reading
from service.db.models import Revision, Run, Target
from service.domain.markup import code
from service.domain.states import Purpose, RunState
from service.domain.text import short
from service.errors import Conflict
from service.ledger.bisections import advance
from service.ledger.bisections.commits import moved_between
from service.settings import settings


def start(target: Target, run: Run, who: str) -> str:
    """Bisect between the base and the commit of a run, for the cases that it found slower; a line about the search.

    An open bisection of the same is continued.  Raises Conflict where there is nothing to search, and what
    `advance.search` raises.
    """
    with reading() as session:
        sha, good = session.get_one(Revision, run.revision_id).sha, run.baseline
        slower = good and moved_between(session, target, run.device, good, sha)
        parent = session.get_one(Revision, run.revision_id).parent
    if run.state is not RunState.DONE:
        raise Conflict(f"Run {run.id} on {run.device} is {run.state}; bisect when it is done.")
    if not good or not slower:
        raise Conflict(f"Run {run.id} on {run.device} found no case slower than its base; there is nothing to search.")
    if parent == good:
        raise Conflict(f"{short(sha)} is the only commit after its base {short(good)}; there is nothing to search.")
    requested = advance.search(
        target.name, good, sha, device=run.device, suite=run.suite, patterns=slower, asked_by=who
    )
    number = requested.id
    page = f"{settings().address}/bisections/{number}"
    cases = f"{len(slower)} case{'s' * (len(slower) != 1)}"
    return (
        f"[bisection {number}]({page}) on {code(run.device)} searches {code(f'{short(good)}..{short(sha)}')} for the "
        f"commit that made {cases} slower."
    )


def newest_runs(session: Session, target: Target, pull: int, sha: str) -> Sequence[Run]:
    """The newest run of a head that is done, for each device."""
    rows = (
        select(Run)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == target.id, Run.pull == pull, Revision.sha == sha, Run.purpose == Purpose.WATCH)
        .where(Run.state == RunState.DONE)
        .order_by(Run.id)
    )
    return list({run.device: run for run in session.scalars(rows)}.values())
