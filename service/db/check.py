"""Check a database: that it answers and accepts a write, its integrity, its schema, and the references of its rows."""

import shutil
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Connection, MetaData, and_, func, not_, select, text, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import ForeignKeyConstraint

from service.db import migrate, schema
from service.db.engine import clock, reading, transaction
from service.db.models import Base, WriteProbe
from service.settings import MIB, settings

log = structlog.get_logger()

MIN_FREE = 64 * MIB  # more than two of the largest deliveries; SQLite may still accept small writes below it
_ROW = 1
_NO_TABLES = "the database has no tables yet; run `kernelwatch db upgrade`"
_SHOWN = 5  # problems of one kind
# Rows of these tables are made by an empty database, too.
_OWN = frozenset({"alembic_version", "write_probes"})


def unready() -> list[str]:
    """Return why the database is not ready; an empty list if it is.  Writes one row, which it updates in place."""
    file = migrate.file_of(settings().database)
    if file is not None and not file.exists():
        return [_NO_TABLES]
    try:
        with reading() as session:
            current = migrate.revision_of(session.connection())
    except SQLAlchemyError as error:
        return [f"the database does not answer ({type(getattr(error, 'orig', None) or error).__name__})"]
    if current is None:
        return [_NO_TABLES]
    if problem := schema.mismatch(current):
        return [problem]
    if file is not None and (free := shutil.disk_usage(file.parent).free) < MIN_FREE:
        return [f"the disk of the database has {free // MIB} MiB left, less than {MIN_FREE // MIB} MiB"]
    try:
        _probe()
    except SQLAlchemyError as error:
        log.error("the database accepts no writes", error=str(error))
        return [f"the database accepts no writes ({type(getattr(error, 'orig', None) or error).__name__}); see the log"]
    return []


def _probe() -> None:
    with transaction() as session:
        now = clock(session)
        statement = update(WriteProbe).where(WriteProbe.id == _ROW).values(written_at=now).returning(WriteProbe.id)
        if session.scalar(statement) is None:
            session.add(WriteProbe(id=_ROW, written_at=now))


@dataclass
class Checked:
    """The migration of a database, None if it is not one of kernelwatch, its rows by table, and what is wrong with it.

    A database with damage cannot be read as a whole; one with faults can.
    """

    revision: str | None = None
    rows: dict[str, int] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def known(self) -> bool:
        """Whether this version can read it, after an upgrade if need be."""
        return self.revision is not None and schema.is_known(self.revision)

    @property
    def current(self) -> bool:
        return self.revision == schema.newest()

    def problems(self) -> list[str]:
        """Damage, faults, and whether the schema is that of this version."""
        return [*self.damage, *self.faults, *self._wrong_migration()]

    def _wrong_migration(self) -> list[str]:
        """What is wrong with the version of its tables."""
        if self.damage or self.current:
            return []
        if self.revision is None:
            return ["it has no tables of kernelwatch"]
        if not self.known:
            return [f"it is at migration {self.revision}, which this version does not know"]
        return [f"it is at migration {self.revision}; `kernelwatch db upgrade` brings it to {schema.newest()}"]


def check(connection: Connection) -> Checked:
    """Check everything that can be checked from inside the database; reads all of it."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    checked = Checked()
    try:
        checked.damage += _integrity(connection)
        checked.revision = migrate.revision_of(connection)
        tables = MetaData()
        tables.reflect(connection)
        checked.rows = row_counts(connection, tables)
        if checked.current:
            differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
            checked.faults += [
                f"the schema differs from the one of this version: {difference}" for difference in differences[:_SHOWN]
            ]
        for _, table in sorted(tables.tables.items()):
            checked.faults += [
                problem for key in table.foreign_key_constraints if (problem := _orphans_of(connection, key))
            ]
    except DBAPIError as error:
        checked.damage.append(f"the database cannot be read: {error.orig}")
    return checked


def row_counts(connection: Connection, tables: MetaData) -> dict[str, int]:
    """Count the rows of the tables, without those that an empty database has, too."""
    return {
        name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for name, table in sorted(tables.tables.items())
        if name not in _OWN
    }


def _integrity(connection: Connection) -> list[str]:
    if connection.dialect.name == "sqlite":
        rows = connection.execute(text(f"PRAGMA integrity_check({_SHOWN})")).scalars().all()
        return [f"integrity: {row}" for row in rows if row != "ok"]
    failed = text("SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()")
    failures = connection.execute(failed).scalar() or 0  # null where checksums are off
    return [f"PostgreSQL counted {failures} pages with a wrong checksum"] if failures else []


def _orphans_of(connection: Connection, key: ForeignKeyConstraint) -> str | None:
    """Rows that refer to a row that does not exist.  Databases enforce this, unless somebody switched that off."""
    parent = key.referred_table.alias()
    exists = (
        select(1).where(and_(*(parent.c[element.column.name] == element.parent for element in key.elements))).exists()
    )
    refers = and_(*(element.parent.is_not(None) for element in key.elements))
    count = connection.execute(select(func.count()).select_from(key.table).where(refers, not_(exists))).scalar_one()
    if not count:
        return None
    columns = ", ".join(element.parent.name for element in key.elements)
    return f"{count} rows of {key.table.name} refer to no row of {key.referred_table.name} ({columns})"
