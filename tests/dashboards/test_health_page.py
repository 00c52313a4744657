"""The front page as text: what needs a person first, whatever the database holds."""

from sqlalchemy import update

from service.db.engine import clock, transaction
from service.db.models import RegressionRow, Target, Worker
from tests.big.seed import seed as seed_big
from tests.big.story import SMALL
from tests.dashboards.asking import Get, words
from tests.dashboards.seed import Seeded


def test_what_needs_somebody_comes_first_and_in_order(get: Get, seeded: Seeded) -> None:
    said = words(get("/"))
    parts = (
        "7 items need attention",
        "1 unassigned · first: 1 regression, norms on h200, 8.7 % slower",
        "▲ 1 regression norms on h200: 8.7 % slower; rmsnorm.bwd.32768x4096.bf16-fp32",
        "✕ 2 wrong or failed cases norms on h200, at its newest revision",
        "‖ 1 run waits for approval",
        "Nobody takes runs of cpu 1 run waits, the oldest for 3.0 h: cpu-box was last heard 15 min ago",
        "1 message not sent for minutes",
        "Not polled liger: failed 3 times in a row: index.example does not answer",
        "No recipe liger",
        "✓ Fine control polls 1 of 2 workers online",
    )
    places = [said.index(part) for part in parts]
    assert places == sorted(places)


def test_what_happened_since_yesterday_has_links(get: Get, seeded: Seeded) -> None:
    page = get("/")
    said = words(page)
    assert "norms: 1 regression fixed on h200 by" in said
    assert "norms: 3 cases faster on h200 with" in said
    assert f'href="/runs/{seeded.runs["fast"]}"' in page.text


def test_a_target_is_one_line(get: Get, seeded: Seeded) -> None:
    text = get("/").text
    assert (
        'aria-label="Last 8 revisions, newest last: 1 slower, 1 faster, 2 steady, 2 failed, 2 not measured"' in text
    ), text[text.index('aria-label="Last') :][:120]


def test_measurements_are_trusted_by_what_equal_code_did(get: Get, decided: Seeded) -> None:
    said = words(get("/"))
    assert "0.48 % A/A , root mean square 0 in 144 false alarms 1 quarantined" in said
    assert "1 regression accepted" in said


def test_an_empty_database_says_what_to_do_first(get: Get, state: object) -> None:
    said = words(get("/"))
    assert said.strip().startswith("No targets yet What to do first")
    assert "kernelwatch target add NAME LOCATION --recipe recipe.toml" in said
    assert "Targets last 30" not in said


def test_hostile_names_are_shown_and_do_nothing(get: Get, state: object) -> None:
    nasty = '<script>alert("1")</script>{{ 7*7 }}'
    with transaction() as session:
        seed_big(session, SMALL)
        for target in session.query(Target):
            target.poll_error, target.poll_failures, target.forge_error = nasty, 5, nasty
        for row in session.query(RegressionRow):
            row.assignee = nasty[:80]
        for worker in session.query(Worker):
            worker.name, worker.sandbox, worker.seen_at = f"{nasty}{worker.id}", nasty, 0.0
    text = get("/").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text
    assert "{{ 7*7 }}" in text


def test_a_clock_that_was_set_back_is_a_cause_of_its_own(get: Get, state: object) -> None:
    with transaction() as session:
        seed_big(session, SMALL)
        session.execute(update(Worker).values(seen_at=clock(session) + 7200))
    for path in ("/", "/workers"):
        said = words(get(path))
        assert "clock set back" in said, path
        assert "0 s ago" not in said, path
    assert "has not been heard since the clock of the database was set back by 2.0 h or more" in words(get("/"))
