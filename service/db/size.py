"""How large the tables of a database are, with their indexes."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.db.models import Base
from service.errors import Refused

# Of PostgreSQL the statistics of autovacuum; of SQLite the pages of each b-tree, and the largest id, as counting reads
# the whole table.
_POSTGRESQL = text("SELECT relname, pg_total_relation_size(relid) FROM pg_stat_user_tables")
_SQLITE = text(
    "SELECT coalesce(tbl_name, stat.name), sum(pgsize) FROM dbstat AS stat LEFT JOIN sqlite_master AS of"
    " ON of.name = stat.name WHERE aggregate = TRUE GROUP BY 1"
)


@dataclass(frozen=True)
class TableSize:
    table: str
    bytes: int


def sizes(session: Session) -> list[TableSize]:
    """The largest first.  SQLite reads every page for it.  Raises Refused if this SQLite cannot tell."""
    try:
        rows = session.execute(_SQLITE if session.get_bind().dialect.name == "sqlite" else _POSTGRESQL)
        tables = [TableSize(table, int(size or 0)) for table, size in rows if table in Base.metadata.tables]
    except OperationalError:
        raise Refused("This SQLite was built without dbstat, which knows the size of tables.") from None
    return sorted(tables, key=lambda size: (-size.bytes, size.table))
