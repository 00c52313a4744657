"""Store the whole build log of each run, compressed."""

import zlib

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.db.engine import clock, transaction
from service.db.models import BuildLog, Run
from service.errors import NotFound
from service.settings import settings

DAY_S = 86_400.0


def keep(session: Session, run_id: int, text: str) -> None:
    """Store the log of a run's build, replacing that of an earlier attempt.  An empty one is not stored."""
    session.execute(delete(BuildLog).where(BuildLog.run_id == run_id))
    if text:
        packed = zlib.compress(text.encode(errors="replace"), 6)
        session.add(BuildLog(run_id=run_id, packed=packed, characters=len(text), made_at=clock(session)))
        session.flush()


def text_of(session: Session, run_id: int) -> str:
    """The log of a run's build.  Raises NotFound, with the reason."""
    # The run first: a reader who may not read its target finds no run, but a log belongs to no target by itself.
    if session.get(Run, run_id) is None:
        raise NotFound("run", run_id)
    row = session.get(BuildLog, run_id)
    if row is not None:
        return zlib.decompress(row.packed).decode()
    kept = f"{settings().build_logs_days:g} days"
    raise NotFound(
        "build log of run", run_id, f"It is not built yet, its build printed nothing, or the log is older than {kept}."
    )


def characters(session: Session, run_id: int) -> int:
    """The length of the log of a run's build; 0 where there is none."""
    return session.scalar(select(BuildLog.characters).where(BuildLog.run_id == run_id)) or 0


def forget_due() -> int:
    """Delete the logs that have expired.  Returns how many there were."""
    with transaction() as session:
        oldest = clock(session) - settings().build_logs_days * DAY_S
        return int(session.execute(delete(BuildLog).where(BuildLog.made_at < oldest)).rowcount)  # type: ignore[attr-defined]
