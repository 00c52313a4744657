"""The whole log of each run's build, compressed: of those that failed and of those that did not."""

import zlib

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.db.engine import clock, transaction
from service.db.models import BuildLog, Run
from service.errors import NotFound
from service.settings import settings

DAY_S = 86_400.0


def keep(session: Session, run_id: int, text: str) -> None:
    """Store the log of a run's build, in the place of an earlier attempt's.  What printed nothing has no log."""
    session.execute(delete(BuildLog).where(BuildLog.run_id == run_id))
    if text:
        packed = zlib.compress(text.encode(errors="replace"), 6)
        session.add(BuildLog(run_id=run_id, packed=packed, characters=len(text), made_at=clock(session)))
        session.flush()


def text_of(session: Session, run_id: int) -> str:
    """The log of a run's build.  Raises NotFound, which says why there is none."""
    row = session.get(BuildLog, run_id)
    if row is not None:
        return zlib.decompress(row.packed).decode()
    if session.get(Run, run_id) is None:
        raise NotFound("run", run_id)
    kept = f"{settings().build_logs_days:g} days"
    raise NotFound("build log of run", run_id, f"It was not built yet, its build printed nothing, or {kept} are over.")


def characters(session: Session, run_id: int) -> int:
    """How long the log of a run's build is; 0 where there is none."""
    return session.scalar(select(BuildLog.characters).where(BuildLog.run_id == run_id)) or 0


def forget_due() -> int:
    """Delete the logs that are older than they are kept.  Returns how many."""
    with transaction() as session:
        oldest = clock(session) - settings().build_logs_days * DAY_S
        return int(session.execute(delete(BuildLog).where(BuildLog.made_at < oldest)).rowcount)  # type: ignore[attr-defined]
