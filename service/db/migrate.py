"""Bring a database to the schema of this version: `upgrade()`, and the question `current()`."""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, make_url, text

from service.db import schema
from service.db.engine import make_engine
from service.errors import BadInput
from service.settings import make_private, settings

if TYPE_CHECKING:
    from alembic.config import Config

_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x6B65726E656C  # several processes of a fleet may start at once: PostgreSQL lets one of them migrate


def upgrade(url: str | None = None, to: str = "head") -> None:
    """Apply what is missing, all or nothing.  Running it twice, or in two processes at once, is harmless.

    Raises BadInput for a database of another version, from which no migration leads here.
    """
    from alembic import command  # no process needs it that finds the database up to date

    url = url or settings().database
    if file := file_of(url):
        if file.parent == settings().state:
            make_private(file.parent)  # what cannot be closed is reported by the processes that use it
        file.parent.mkdir(parents=True, exist_ok=True)
    engine = make_engine(url)
    try:
        with engine.begin() as connection:  # on SQLite this is BEGIN IMMEDIATE, which is the lock
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            if (at := revision_of(connection)) and not schema.is_known(at):
                raise BadInput(
                    f"The database is at migration {at}, which this version does not know: a newer version made it, or "
                    "one before the first release. Run that version, or choose another database or state folder."
                )
            config = configuration()
            config.attributes["connection"] = connection
            command.upgrade(config, to)
    finally:
        engine.dispose()


def current(url: str | None = None) -> str | None:
    """Return the current migration of the database, or None before the first.  Creates no file."""
    url = url or settings().database
    if (file := file_of(url)) and not file.exists():
        return None
    engine = make_engine(url)
    try:
        with engine.execution_options(reading=True).connect() as connection:
            return revision_of(connection)
    finally:
        engine.dispose()


def revision_of(connection: Connection) -> str | None:
    """Return the current migration of the database behind a connection, or None before the first."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    at: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return at


def configuration() -> "Config":
    """Alembic's configuration, without an ini file: the scripts lie in the package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def file_of(url: str) -> Path | None:
    """Return the file of an SQLite database; None for other databases."""
    parsed = make_url(url)
    within_a_file = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
    return Path(str(parsed.database)) if within_a_file else None
