"""A regression from its arrival to its end, with everything that people do done in a browser."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import update

from service.db.engine import reading, transaction
from service.db.models import Incident, RegressionRow
from service.domain.states import RegressionState
from service.ledger.regressions import transitions
from service.settings import settings
from tests.dashboards.conftest import browser  # noqa: F401  (a fixture)
from tests.shell import attempt
from tests.stories.test_story import Story, story  # noqa: F401  (a fixture)
from tests.stories.test_story_bisect import Eight


@contextmanager
def operator(opened: Browser, told: Story, patch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page of the user of the server's machine, signed in with a link."""
    patch.setenv("KERNELWATCH_PUBLIC_URL", told.address)
    settings.cache_clear()
    context = opened.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.goto(attempt("person", "sign-in").stdout.strip())
    yield page
    context.close()
    assert complaints == []


def row_of(regression_id: int) -> RegressionRow:
    with reading() as session:
        return session.get_one(RegressionRow, regression_id)


def test_from_arrival_to_its_end(
    browser: Browser,  # noqa: F811
    story: Story,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eight = Eight(story, monkeypatch)
    number = eight.history_sees_it().id
    with operator(browser, story, monkeypatch) as page:
        # It arrives, and somebody takes it.
        page.goto(f"{story.address}/regressions")
        page.locator(f"a[href='/regressions/{number}']").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("30.0 % slower")
        expect(page.get_by_text("Find the culprit, or dismiss the regression with a reason.")).to_be_visible()
        page.get_by_role("button", name="Assign to me").click()
        expect(page.get_by_role("status").first).to_contain_text(f"Regression {number}: assigned to")
        me = row_of(number).assignee

        # The search for the culprit, and what it finds.
        page.get_by_role("button", name="Find the culprit").click()
        expect(page.get_by_role("status").first).to_contain_text("has started")
        assert row_of(number).state is RegressionState.BISECTING
        expect(page.get_by_role("link", name="Bisection 1")).to_be_visible()
        eight.settle()
        expect(page.get_by_text(f"Fix or revert {eight.merge[:10]}")).to_be_visible(timeout=20_000)
        expect(page.locator(".rev.culprit")).to_have_count(1)
        expect(page.locator(".timeline")).to_contain_text("blamed")

        # What the sources say, fetched when it is opened.
        page.get_by_text("Code of both sides").click()
        expect(page.locator(".sides", has_text="260.0")).to_be_visible()

        # Accepted with a date, and reminded of.
        page.locator("#triage summary", has_text="Acknowledge").click()
        page.get_by_label("Why it is accepted").fill("exact sums first")
        page.get_by_label("Until").fill("2999-12-24")
        page.locator("details[open] form").get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_text("exact sums first until 2999-12-24")).to_be_visible()
        with transaction() as session:
            session.execute(update(RegressionRow).values(until=1.0))
        transitions.expire_due()
        page.goto(f"{story.address}/regressions/{number}")
        expect(page.locator(".timeline")).to_contain_text("acknowledgement ended: exact sums first")
        assert row_of(number).state is RegressionState.OPEN

        # Fixed and closed.
        fixed = story.push("one pass again", wide=200.0)
        page.reload()
        expect(page.get_by_text(f"Fixed by {fixed[:10]}.")).to_be_visible()
        expect(page.get_by_role("button", name="Assign to me")).to_have_count(0)
        page.goto(f"{story.address}/incidents/{row_of(number).incident_id}")
        expect(page.locator(".lead")).to_contain_text("Closed")
        done = ["acknowledged", "assigned", "blamed", "bisecting", "opened"]
        assert all(one in page.locator(".timeline").inner_text() for one in [me or "", *done])
    with reading() as session:
        assert session.get_one(Incident, row_of(number).incident_id or 0).closed_at is not None
