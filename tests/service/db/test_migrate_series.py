"""Rows that name a series by target, device, provider and case are carried over to rows that point at it, and back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, Row, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db import migrate
from service.db.engine import make_engine
from service.db.models import Calibration, ChangePoint, Gap, Quarantine, RegressionEvent, RegressionRow, Series
from service.domain.series import SeriesKey
from service.domain.states import Equal, PointState
from service.reports.words import of_point_reason
from tests.service.db.test_migrate import described, downgrade

BEFORE = "0009"
SHAPE = "rmsnorm.fwd.4096x1024.bf16"
CALL, MEMORY = f"{SHAPE}.call", f"{SHAPE}.memory"
NAMED = 'target_id, device, provider, "case"'
OLD = (
    *(
        "INSERT INTO targets (id, name, kind, location, trusted, allow_unsandboxed, recipe_from_branch, created_at,"
        f" poll_at, poll_failures) VALUES ({key}, 'target {key}', 'git', '/srv', true, false, false, 1.0, 1.0, 0)"
        for key in (1, 2)
    ),
    "INSERT INTO recipes (id, target_id, digest, text, adapters, created_at) VALUES (1, 1, 'a', '', '{}', 1.0)",
    *(
        "INSERT INTO revisions (id, target_id, sha, subject, author, committed_at, paths)"
        f" VALUES ({key}, 1, 'sha{key}', '', '', 1.0, '[]')"
        for key in (1, 2)
    ),
    "INSERT INTO runs (id, dedupe, target_id, revision_id, recipe_id, device, suite, trusted, priority, state, attempt,"
    " max_attempts, not_before, created_at, notified_state, purpose, repeated) VALUES (1, 'c', 1, 1, 1, 'h200',"
    " 'smoke', true, 10, 'done', 1, 3, 0, 1.0, '', 'watch', false)",
    *(
        f"INSERT INTO regressions (id, {NAMED}, run_id, found_by, ratio, state, opened_at)"
        f" VALUES ({key}, 1, '{device}', '{provider}', '{case}', 1, 'pair', 1.5, 'open', 1.0)"
        for key, device, provider, case in (
            (1, "h200", "norms", SHAPE),
            (2, "h200", "norms", CALL),
            (3, "h200", "triton", CALL),
            (4, "cpu", "norms", CALL),
        )
    ),
    "INSERT INTO regression_events (id, regression_id, at, who, what, state, words)"
    " VALUES (7, 2, 1.0, 'ada', 'note', 'open', 'known')",
    f"INSERT INTO change_points (id, {NAMED}, revision_id, before_id, ratio, low, high, p, level, state, missed_scans,"
    f" found_at, regression_id) VALUES (1, 1, 'h200', 'norms', '{CALL}', 2, 1, 1.5, 1.4, 1.6, 0, 'block', 'open', 0,"
    " 1.0, 2)",
    f"INSERT INTO quarantines (id, {NAMED}, since, by, reason) VALUES (1, 2, 'h200', 'norms', '{SHAPE}', 1.0, 'ada',"
    " 'old')",
    f"INSERT INTO gaps (id, {NAMED}, behind_sota, last_run_id, ratio_now, own, sota)"
    f" VALUES (1, 1, 'h200', 'norms', '{MEMORY}', true, 1, 1.2, 7.31, 6.1)",
    *(
        f"INSERT INTO calibrations (id, run_id, {NAMED}, ratio, p, trials, alarmed, at, kind)"
        f" VALUES ({key}, 1, 1, 'h200', 'norms', '{CALL}', 1.01, 0.5, 3, false, 1.0, '{kind}')"
        for key, kind in ((1, "copy"), (2, "build"))
    ),
)
TABLES = ("regressions", "regression_events", "change_points", "quarantines", "gaps", "calibrations")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("postgres")) if request.param == "postgres" else f"sqlite:///{tmp_path}/old.db"


@pytest.fixture
def old(url: str) -> Iterator[Engine]:
    """A database from before there were series, with rows of each table that names some."""
    migrate.upgrade(url, BEFORE)
    engine = make_engine(url)
    with engine.begin() as connection:
        for row in OLD:
            connection.execute(text(row))
    yield engine
    engine.dispose()


def test_old_rows_are_found_under_their_series(old: Engine, url: str) -> None:
    migrate.upgrade(url)

    with Session(old) as session:
        named = {row.id: row.series.key for row in session.scalars(select(RegressionRow))}
        call = SeriesKey(1, "h200", "norms", SHAPE, Metric.CALL)
        assert named == {
            1: SeriesKey(1, "h200", "norms", SHAPE, Metric.KERNEL),
            2: call,
            3: SeriesKey(1, "h200", "triton", SHAPE, Metric.CALL),
            4: SeriesKey(1, "cpu", "norms", SHAPE, Metric.CALL),
        }
        [event] = session.scalars(select(RegressionEvent))
        assert (event.id, event.regression_id, event.words) == (7, 2, "known")
        [point] = session.scalars(select(ChangePoint))
        assert (point.series.key, point.case, point.regression_id) == (call, CALL, 2)
        [quarantine] = session.scalars(select(Quarantine))
        assert (quarantine.target_id, quarantine.case, quarantine.reason) == (2, SHAPE, "old")
        [gap] = session.scalars(select(Gap))
        assert (gap.series.metric, gap.case, gap.own) == (Metric.MEMORY, MEMORY, 7.31)
        calibrations = session.scalars(select(Calibration).order_by(Calibration.id)).all()
        assert [(one.series.key, one.kind) for one in calibrations] == [(call, Equal.COPY), (call, Equal.BUILD)]
        assert len(session.scalars(select(Series)).all()) == 6, "one row for each series"


@pytest.mark.parametrize(
    "again",  # the first row of a table once more, under a new id
    [
        """INSERT INTO series (id, target_id, device, provider, "case", metric)
        SELECT 99, target_id, device, provider, "case", metric FROM series WHERE id = 1""",
        """INSERT INTO change_points (id, series_id, revision_id, before_id, ratio, low, high, p, level, state,
        refuted_scans, found_at) SELECT 99, series_id, revision_id, before_id, 0.5, 0.4, 0.6, p, level, state, 0, 2.0
        FROM change_points""",
        """INSERT INTO quarantines (id, series_id, since, by, reason)
        SELECT 99, series_id, 2.0, 'bob', 'again' FROM quarantines""",
        """INSERT INTO gaps (id, series_id, behind_sota, last_run_id, ratio_now, own, sota)
        SELECT 99, series_id, behind_sota, last_run_id, ratio_now, own, sota FROM gaps""",
        """INSERT INTO calibrations (id, run_id, series_id, ratio, p, trials, alarmed, at, kind)
        SELECT 99, run_id, series_id, ratio, p, trials, alarmed, at, kind FROM calibrations WHERE id = 1""",
    ],
    ids=lambda statement: statement.split()[2],
)
def test_what_was_unique_by_four_columns_is_unique_by_series(old: Engine, url: str, again: str) -> None:
    migrate.upgrade(url)

    with pytest.raises(IntegrityError, match=r"(?i)unique"), old.begin() as connection:
        connection.execute(text(again))


def test_a_released_quarantine_makes_room_for_another(old: Engine, url: str) -> None:
    migrate.upgrade(url)

    with old.begin() as connection:
        connection.execute(text("UPDATE quarantines SET released_at = 2.0"))
        again = "SELECT 99, series_id, 3.0, by, reason FROM quarantines"
        connection.execute(text(f"INSERT INTO quarantines (id, series_id, since, by, reason) {again}"))


def test_the_way_back_brings_the_columns_back(old: Engine, url: str) -> None:
    before, schema = stored(old), described(url)
    migrate.upgrade(url, "0011")
    assert stored(old) != before

    downgrade(old, BEFORE)

    assert stored(old) == before
    assert described(url) == schema


def test_scans_that_missed_an_unexplained_point_are_no_evidence_against_it(old: Engine, url: str) -> None:
    migrate.upgrade(url, "0029")
    with old.begin() as connection:
        connection.execute(text("UPDATE change_points SET missed_scans = 2"))
        for key, state in ((2, "checking"), (3, "closed"), (4, "confirmed")):
            revision = "target_id, subject, author, committed_at, paths"
            columns = "series_id, before_id, ratio, low, high, p, level, found_at"
            connection.execute(
                text(
                    f"INSERT INTO revisions (id, sha, {revision})"
                    f" SELECT {key + 1}, 'sha{key + 1}', {revision} FROM revisions WHERE id = 1"
                )
            )
            connection.execute(
                text(
                    f"INSERT INTO change_points (id, state, missed_scans, revision_id, {columns})"
                    f" SELECT {key}, '{state}', 2, {key + 1}, {columns} FROM change_points WHERE id = 1"
                )
            )
    migrate.upgrade(url)
    with Session(old) as session:
        scans = {
            row.id: (row.state, row.refuted_scans, row.reason_code) for row in session.scalars(select(ChangePoint))
        }
    assert scans == {
        1: (PointState.OPEN, 0, None),
        2: (PointState.CHECKING, 0, None),
        3: (PointState.CLOSED, 2, "contradicted"),
        4: (PointState.CONFIRMED, 2, None),
    }

    downgrade(old, "0029")
    with old.connect() as connection:
        missed = connection.execute(text("SELECT id, missed_scans FROM change_points ORDER BY id")).all()
    assert [tuple(row) for row in missed] == [(1, 0), (2, 0), (3, 2), (4, 2)]


SENTENCES = {
    "regression 4, by bisection 3": ("regression", {"regression": 4, "bisection": 3}),
    "regression 4": ("regression", {"regression": 4}),
    "regression 4, which was dismissed": ("dismissed", {"regression": 4}),
    "regression 4, which was dismissed: it is\nnoise": ("dismissed", {"regression": 4, "why": "it is\nnoise"}),
    "improvement of run 9": ("improvement", {"run": 9}),
    "faster, and held for more than 30 measured revisions": ("held", {"revisions": 30}),
    "the machine: a-b, c.d and e changed within the same hours": ("machine", {"targets": ["a-b", "c.d", "e"]}),
    "the machine: a-b changed within the same hours": ("machine", {"targets": ["a-b"]}),
    "the mainline was rewritten without its revision": ("rewritten", {}),
    "bisection 3": ("bisection", {"bisection": 3}),
    "bisection 3 was inconclusive: Stopped by ada.": ("inconclusive", {"bisection": 3, "said": "Stopped by ada."}),
    "cannot be bisected: no device {cpu}": ("not_bisectable", {"said": "no device {cpu}"}),
    "two fresh sessions did not repeat it": ("text", {"text": "two fresh sessions did not repeat it"}),
}


def test_sentences_of_change_points_become_codes_and_read_the_same(old: Engine, url: str) -> None:
    migrate.upgrade(url, "0030")
    point = text("UPDATE change_points SET reason = :reason, reason_code = :code, reason_args = :args")
    reasons = dict.fromkeys(SENTENCES, (None, None))
    reasons |= {"1 session did not": ("not_repeated", None), None: ("same_code", "{}")}
    for sentence, (code, args) in reasons.items():
        with old.begin() as connection:
            connection.execute(point, {"reason": sentence, "code": code, "args": args})

        migrate.upgrade(url)

        with Session(old) as session:
            [row] = session.scalars(select(ChangePoint))
        if sentence is None:
            assert (row.reason_code, row.reason_args) == ("same_code", {})
        else:
            expected = SENTENCES.get(sentence, ("not_repeated", {"text": sentence}))
            assert (row.reason_code, row.reason_args) == expected
            assert of_point_reason(row) == sentence

        downgrade(old, "0030")
        with old.connect() as connection:
            again = connection.execute(text("SELECT reason, reason_code FROM change_points")).one()
        assert tuple(again) == (sentence, code)


def stored(engine: Engine) -> dict[str, list[dict[str, object]]]:
    with engine.connect() as connection:
        rows: dict[str, list[Row[object]]] = {
            table: list(connection.execute(text(f"SELECT * FROM {table} ORDER BY id"))) for table in TABLES
        }
    return {table: [dict(row._mapping) for row in found] for table, found in rows.items()}
