"""Deleting a row searches no table that refers to it: a target is removed as fast among a million runs of others."""

from sqlalchemy import ForeignKey, Index, PrimaryKeyConstraint, Table, UniqueConstraint

from service.db.models import Base

# Their rows are never deleted, so nobody would read an index of those that refer to them.
KEPT = {"accounts", "api_keys", "deliveries", "policies", "stacks"}


def test_every_foreign_key_leads_an_index() -> None:
    tables = Base.metadata.sorted_tables
    keys = [key for table in tables for key in table.foreign_keys if key.column.table.name not in KEPT]
    assert len(keys) > 60
    assert [f"{key.parent.table}.{key.parent.name}" for key in keys if not has_index(key)] == []


def has_index(key: ForeignKey) -> bool:
    table = key.parent.table
    assert isinstance(table, Table)
    unique = (one for one in table.constraints if isinstance(one, PrimaryKeyConstraint | UniqueConstraint))
    whole = (one for one in table.indexes if condition(one) in (None, f"{key.parent.name} IS NOT NULL"))
    return any(next(iter(one.columns)) is key.parent for one in (*unique, *whole))


def condition(index: Index) -> str | None:
    """Which rows the index has; None for all."""
    where = index.dialect_options["postgresql"]["where"]
    return None if where is None else str(where)
