"""Whether the database has the schema of this version.  Without Alembic, which a worker does without."""

from functools import cache
from pathlib import Path

import structlog
from sqlalchemy import text

from service.db.engine import reading

log = structlog.get_logger()

_reported: str | None = None


@cache
def _known() -> tuple[str, ...]:
    """The migrations of this version, in their order.  A file is named after its migration."""
    return tuple(sorted(file.stem for file in Path(__file__).parent.glob("migrations/versions/[0-9]*.py")))


def newest() -> str:
    """The migration that this code was written for."""
    return _known()[-1]


def is_known(revision: str) -> bool:
    """Whether this version has the migration, so that it can bring a database from there to its own schema."""
    return revision in _known()


def mismatch(at: str) -> str | None:
    """What to do about a database at another migration than this version's; None where they are the same."""
    if at == newest():
        return None
    remedy = "run `kernelwatch db upgrade`" if is_known(at) else "restart this process with the version that made it"
    return f"the database is at migration {at}, and this version needs {newest()}; {remedy}"


def fits() -> bool:
    """Whether the database has the schema of this version: with another, a process takes no work, and asks again.

    Logs what to do, once for each migration.  Raises DBAPIError for a database without a schema.
    """
    global _reported
    with reading() as session:
        problem = mismatch(session.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
    if problem and problem != _reported:
        log.error("waiting for another schema", reason=problem)
    _reported = problem
    return problem is None
