"""Series get one row each, also under concurrent inserts."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from threading import Barrier

import pytest
from sqlalchemy import select

from kernels.cases import Metric
from service.db.engine import reading, transaction
from service.db.models import Series
from service.domain.metrics import SeriesKey
from service.ledger.locking import lock
from service.ledger.targets import IS_SERIES, series_ids, series_of
from tests import world

SHAPE = "rmsnorm.fwd.4096x1024.bf16"


def key(printed: str, device: str = "h200") -> SeriesKey:
    return SeriesKey.of(1, device, "norms", printed)


@pytest.fixture
def target(either: str) -> int:
    return world.target().id


def test_a_series_has_one_id_and_prints_as_it_was_typed(target: int) -> None:
    keys = [key(SHAPE), key(f"{SHAPE}.call"), key(SHAPE, "cpu")]
    with transaction() as session:
        ids = series_ids(session, keys)
        assert len(set(ids.values())) == 3
        assert series_of(session, key(f"{SHAPE}.call")) == ids[keys[1]]
    with reading() as session:
        row = session.scalars(select(Series).where(IS_SERIES), asdict(keys[1])).one()
        assert (row.case, row.metric, row.printed, row.key) == (SHAPE, Metric.CALL, f"{SHAPE}.call", keys[1])
        [printed] = session.scalars(select(Series.printed).where(Series.printed == f"{SHAPE}.call"))
        assert printed == row.printed, "the database prints a case as Python does"
        assert session.scalars(select(Series.printed).where(Series.device == "cpu")).all() == [SHAPE]


def test_several_ask_for_the_same_new_series_at_once(target: int) -> None:
    together = Barrier(4)
    keys = [key(f"{SHAPE}.{metric}") for metric in Metric if metric is not Metric.KERNEL]

    def ask(number: int) -> dict[SeriesKey, int]:
        together.wait()
        with transaction() as session:
            if number % 2:
                lock(session, target)  # as who opens regressions
            return series_ids(session, keys if number < 2 else keys[::-1])

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(ask, range(4))
    assert all(one == first for one in others)
    with reading() as session:
        assert len(session.scalars(select(Series.id)).all()) == len(keys)
