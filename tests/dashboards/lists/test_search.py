"""The search: what fits, what is found at once, what is hidden, and how it is reached."""

from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import event, select

from service.db import models as m
from service.db.engine import engine, reading
from service.db.visibility import hiding
from service.ledger.lookup import MAX_HITS, HitKind, lookup, parse
from tests.big.seeder import Places
from tests.dashboards.asking import Get, asking, words
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import CONTRAST, barriers, excess_width
from tests.dashboards.lists import seed_big
from tests.dashboards.seed import watched

PHONE, WIDE = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
HOSTILE = ("%", "_", "\\", "'", '" OR 1=1 --', "<script>alert(1)</script>", "\x01\x1b[31m", "../..", "#0", "x" * 200)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with watched(tmp_path_factory.mktemp("searched"), seed_big.small) as found:
        yield found


@pytest.fixture(scope="module")
def get(places: Places) -> Get:
    return asking()


def search(get: Get, query: str) -> str:
    """Where a search goes, or the text of its page."""
    answer = get(f"/search?{urlencode({'q': query})}")
    assert answer.status_code in (200, 303), query
    return answer.headers["location"] if answer.status_code == 303 else words(answer)


def test_the_only_thing_that_fits_is_shown_at_once(get: Get, places: Places) -> None:
    with reading() as session:
        run = session.get_one(m.Run, places.newest)
        sha = session.get_one(m.Revision, run.revision_id).sha
        incident = session.scalars(select(m.Incident.id).limit(1)).one()
        worker = session.scalars(select(m.Worker).limit(1)).one()
    assert search(get, sha).startswith("/runs/")
    assert search(get, sha[:12].upper()) == search(get, sha)
    assert search(get, f"run {places.newest}") == f"/runs/{places.newest}"
    assert search(get, f"regression {places.regression}") == f"/regressions/{places.regression}"
    assert search(get, f"Incident #{incident}") == f"/incidents/{incident}"
    assert search(get, f"bisection {places.bisection}") == f"/bisections/{places.bisection}"
    assert search(get, f"norms#{places.pull_number}") == f"/targets/norms/pulls/{places.pull_number}"
    assert search(get, worker.name) == f"/workers#worker-{quote(worker.name)}"
    for path in ("run 1", f"regression {places.regression}", f"norms#{places.pull_number}"):
        assert get(search(get, path)).status_code == 200


def test_everything_else_is_listed_by_kind(get: Get, places: Places) -> None:
    page = search(get, str(places.regression))
    assert f"regression {places.regression}" in page
    assert f"run {places.regression}" in page
    cases = search(get, "rmsnorm fwd")
    assert cases.count("rmsnorm.fwd.") == MAX_HITS
    assert f"the first {MAX_HITS}; type more" in cases
    assert "Nothing fits" in search(get, "no such thing")
    assert "at least 4 characters" in search(get, "")


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_queries_find_nothing_and_break_nothing(get: Get, query: str) -> None:
    answer = get(f"/search?{urlencode({'q': query})}")
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    with reading() as session:
        found = lookup(session, parse(query))
    assert [hit for hit in found.found if hit.kind is not HitKind.CASE] == [], "wildcards are no wildcards"
    assert all(query.lower() in (hit.series.printed if hit.series else "") for hit in found.found)


def test_a_query_that_is_too_long_is_refused(get: Get) -> None:
    assert get(f"/search?q={'x' * 201}").status_code == 422


def test_nothing_of_a_hidden_target_is_found(places: Places) -> None:
    with reading() as session:
        target = session.scalars(select(m.Target).where(m.Target.name == "norms")).one()
        sha = session.scalars(select(m.Revision.sha).where(m.Revision.target_id == target.id).limit(1)).one()
    numbers = (places.newest, places.regression, places.bisection, places.pull_number)
    queries = ["norms", target.forge or "norms", sha, sha[:8], f"norms#{places.pull_number}", "rmsnorm"]
    for query in [*queries, *map(str, numbers), "incident 1"]:
        with reading() as session:
            assert [hit for hit in lookup(session, parse(query)).found if hit.target and hit.target.id == target.id]
        with hiding([target.id]), reading() as session:
            hits = lookup(session, parse(query))
        assert [hit for hit in hits.found if hit.target and hit.target.id == target.id] == []


def test_no_query_reads_a_long_table_as_a_whole(places: Places) -> None:
    """Targets, workers and series are few; runs, commits, regressions and pull requests are found by an index."""
    asked: list[tuple[str, object]] = []

    def listen(_connection: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        asked.append((statement, values))

    event.listen(engine(), "before_cursor_execute", listen)
    try:
        for query in ("1234", "#7", "octo/norms#7", "rmsnorm fwd"):
            with reading() as session:
                lookup(session, parse(query))
    finally:
        event.remove(engine(), "before_cursor_execute", listen)
    plans: list[str] = []
    with engine().connect() as connection:
        for statement, values in asked:
            if statement.startswith("SELECT"):
                assert (
                    statement.count("LIMIT")
                    or "WHERE runs.id = ?" in statement
                    or ".id = ?" in statement
                    or ("GROUP BY" in statement)
                ), statement
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                plans += [row.detail for row in rows]
    scanned = {plan.split()[1] for plan in plans if plan.startswith("SCAN")}
    assert plans
    assert scanned <= {"targets", "workers", "series"}


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_field_is_reached_by_a_key_and_works_without_script(
    browser: Browser, places: Places, size: dict[str, int]
) -> None:
    with reachable() as address:
        context = browser.new_context(viewport=size)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{address}/regressions")
        page.keyboard.press("/")
        field = page.get_by_role("searchbox", name="Search everything")
        expect(field).to_be_focused()
        page.keyboard.type("rms/norm")
        expect(field).to_have_value("rms/norm")
        field.fill("rmsnorm")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("What fits rmsnorm")
        expect(page.get_by_role("searchbox", name="Search everything")).to_have_value("rmsnorm")
        assert excess_width(page) == 0
        assert barriers(page) == {}
        assert page.evaluate(CONTRAST) == []
        context.close()
        context = browser.new_context(viewport=size, java_script_enabled=False)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{address}/workers")
        page.get_by_role("searchbox", name="Search everything").fill(f"run {places.newest}")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address}/runs/{places.newest}")
        context.close()
