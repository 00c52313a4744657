"""Rows of hidden targets are left out of every query, whatever name the query gives to their table."""

from typing import Any

import pytest
from sqlalchemy import Select, func, select
from sqlalchemy.orm import aliased

from service.db import visibility
from service.db.engine import reading, transaction
from service.db.models import Base, Revision, Run, Target, Worker
from service.db.visibility import OF_NO_TARGET, hiding, ways
from tests import every_table, world

RUN, OTHER = aliased(Run), aliased(Run)
TARGETS_OF: dict[str, Select[Any]] = {  # of all runs, each asked in another way
    "table": select(Run.target_id),
    "alias": select(RUN.target_id),
    "alias that joins a table": select(RUN.target_id).join(Revision, RUN.revision_id == Revision.id),
    "joined alias": select(Target.id).join(RUN, RUN.target_id == Target.id),
    "two aliases": select(OTHER.target_id).join(RUN, RUN.id == OTHER.id),
    "outer join": select(RUN.target_id).select_from(Target).outerjoin(RUN, RUN.target_id == Target.id),
    "alias next to its table": select(RUN.target_id).join(Run, Run.id == RUN.id),
    "subquery": select(Target.id).where(select(RUN.id).where(RUN.target_id == Target.id).exists()),
}


@pytest.fixture
def targets(either: str) -> list[int]:
    """Two targets with a run each."""
    made = [world.target(name=name).id for name in ("public", "private")]
    with transaction() as session:
        for target_id in made:
            world.run(session, world.commit(session, target_id, 1))
    return made


@pytest.mark.parametrize("asked", TARGETS_OF)
def test_a_hidden_target_is_in_no_query(targets: list[int], asked: str) -> None:
    public, private = targets
    for hidden, seen in (((), {public, private}), ((private,), {public}), ((public,), {private}), (targets, set())):
        with hiding(hidden), reading() as session:
            assert set(session.scalars(TARGETS_OF[asked])) == seen, "a compiled statement asks for the reader of now"


def test_a_count_does_not_name_a_hidden_target(targets: list[int]) -> None:
    with hiding(targets[1:]), reading() as session:
        joined = select(func.count()).select_from(Revision).join(RUN, RUN.revision_id == Revision.id)
        assert session.scalar(joined) == 1


def test_every_table_is_said_to_have_rows_of_targets_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {mapper.class_ for mapper in Base.registry.mappers}
    assert ways().keys() | OF_NO_TARGET == every
    assert not ways().keys() & OF_NO_TARGET
    monkeypatch.setattr(visibility, "OF_NO_TARGET", OF_NO_TARGET - {Worker})
    ways.cache_clear()
    try:
        with pytest.raises(TypeError, match=r"to which target rows of these tables belong: workers\."):
            ways()
    finally:
        ways.cache_clear()


def test_no_table_that_leads_to_a_target_is_said_to_belong_to_none() -> None:
    hidden = {table.__tablename__ for table in ways()}
    keys = [key for table in OF_NO_TARGET for key in table.__table__.foreign_keys if not key.parent.nullable]
    assert not [str(key.parent) for key in keys if key.column.table.name in hidden]


def test_the_rows_of_every_table_are_hidden_with_their_target(either: str) -> None:
    with transaction() as session:
        rows = every_table.filled(session)
        target_id = rows["targets"].id
    with reading() as session:
        assert {table for table in ways() if session.scalars(select(table)).first() is None} == set()
        with hiding([target_id]):
            assert {table.__tablename__ for table in ways() if session.scalars(select(table)).first()} == set()
        with hiding([target_id + 1]):
            assert {table for table in ways() if session.scalars(select(table)).first() is None} == set()
