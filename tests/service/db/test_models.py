"""Whatever a build, a commit or a kernel says can be stored, on SQLite and on PostgreSQL."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlalchemy import insert, select

from service.db.engine import reading, transaction
from service.db.models import Delivery, Stack, Target, storable
from service.errors import BadInput

# With what nobody expects: NUL bytes, and halves of characters such as `os.fsdecode` makes of odd file names.
ANY_TEXT = st.text(st.characters(exclude_categories=()))
ANY_JSON = st.dictionaries(
    ANY_TEXT,
    st.recursive(
        st.none() | st.booleans() | st.floats() | ANY_TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@pytest.fixture
def numbers(either: str) -> Iterator[str]:
    """Names that were not used before: the database outlives an example."""
    return (f"{number:064}" for number in range(10_000))


anything = examples(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(said=ANY_TEXT)
@example(said="error:\0 no such header \udcff")
@anything
def test_any_text_is_stored(numbers: Iterator[str], said: str) -> None:
    with transaction() as session:
        stored = Delivery(guid=next(numbers), event="push", body=b"", received_at=0.0, outcome=said)
        session.add(stored)
    with reading() as session:
        outcome = session.get_one(Delivery, stored.id).outcome
    assert outcome == storable(said)
    assert outcome is not None
    assert len(outcome) == len(said)


@given(facts=ANY_JSON)
@example(facts={"registers\0": float("nan"), "config": ["\ud800", {"warps": float("inf")}]})
@anything
def test_any_facts_are_stored(numbers: Iterator[str], facts: dict[str, Any]) -> None:
    with transaction() as session:
        stored = Stack(digest=next(numbers), versions=facts)
        session.add(stored)
    with reading() as session:
        versions = session.get_one(Stack, stored.id).versions
    assert versions == storable(facts)
    json.dumps(versions, allow_nan=False)


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ("plain ✓", "plain ✓"),
        ("a\0b\udcffc", "a\ufffdb\ufffdc"),
        (float("inf"), None),
        ({"a": (1, 2.5, None)}, {"a": [1, 2.5, None]}),
    ],
)
def test_what_cannot_be_stored_leaves_a_mark(said: Any, stored: Any) -> None:
    assert storable(said) == stored


@pytest.mark.parametrize("name", ["norms\0", "norms\ud800"])
def test_a_name_that_no_database_stores_is_refused_where_it_is_written_and_where_it_is_sought(
    either: str, name: str
) -> None:
    for statement in (
        select(Target).where(Target.name == name),
        insert(Delivery).values(guid=name, event="push", body=b"", received_at=0.0),
    ):
        with (
            pytest.raises(BadInput, match="half of a surrogate pair, which no database stores"),
            transaction() as session,
        ):
            session.execute(statement)
