"""Triage in a real browser: each action as each role, twice, too late, by two people, without script, on a phone."""

import pytest
from playwright.sync_api import Browser, Page, expect

from service.domain.states import RegressionState
from tests.dashboards.acting.site import HOSTILE, Site
from tests.dashboards.browser.variants import PHONE, SCRIPTS_AND_VIEWPORTS
from tests.dashboards.inspection import CONTRAST, barriers, excess_width


def unfold(page: Page, title: str) -> None:
    page.locator("#triage summary", has_text=title).click()


def send(page: Page, title: str) -> None:
    page.locator("details[open] form").get_by_role("button", name=title).click()


@pytest.mark.every_run
@pytest.mark.parametrize("who", [None, "rita", "tina", "wendy", "alma"])
def test_each_role_sees_the_facts_and_the_forms_that_it_may_send(browser: Browser, site: Site, who: str | None) -> None:
    [number] = site.regressions()
    with site.as_person(browser, who) as page:
        page.goto(f"{site.address}/regressions/{number}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("20.0 % slower")
        expect(page.get_by_role("heading", name="Evidence")).to_be_visible()
        offered = {one.strip("▸ …") for one in page.locator("#triage .button").all_inner_texts()}
        triage = {"Assign to me", "Acknowledge", "Dismiss", "Assign", "Set a due date", "Add a note"}
        forms = {None: set(), "rita": set(), "tina": triage}.get(who, {*triage, "Find the culprit"})
        assert {one for one in offered if one in {*triage, "Find the culprit"}} == forms
        note = page.locator(".note")
        if who is None:
            expect(note).to_contain_text("Sign in to do this here; it needs the role triage:norms.")
        elif who == "rita":
            expect(note).to_contain_text("without the role that this needs: triage:norms")
        elif who == "tina":
            expect(note).to_contain_text("which people have who may write to octo/norms")
        if who in (None, "rita"):
            page.get_by_text("Commands that do the same").click()
            expect(page.get_by_text(f"kernelwatch regression dismiss {number} --reason WHY")).to_be_visible()
        assert barriers(page) == {}
        assert page.evaluate(CONTRAST) == []


@pytest.mark.every_run
@SCRIPTS_AND_VIEWPORTS
def test_a_regression_goes_through_every_action(
    browser: Browser, site: Site, script: bool, viewport: dict[str, int]
) -> None:
    [number] = site.regressions()
    with site.as_person(browser, "tina", java_script_enabled=script, viewport=viewport) as page:
        page.goto(f"{site.address}/regressions/{number}")

        page.get_by_role("button", name="Assign to me").click()
        expect(page.get_by_role("status")).to_have_text(f"✓ Regression {number}: assigned to tina.")
        assert site.row(number).assignee == "tina"

        unfold(page, "Assign")
        page.get_by_label("Person").fill("bob")
        send(page, "Assign")
        expect(page.get_by_role("status")).to_have_text(f"✓ Regression {number}: assigned to bob.")

        unfold(page, "Set a due date")
        page.get_by_label("Fixed by").fill("2999-12-01")
        send(page, "Set a due date")
        expect(page.get_by_text("due 2999-12-01")).to_be_visible()

        unfold(page, "Add a note")
        page.locator("details[open]").get_by_label("Note").fill(f"{HOSTILE}\nand a second line")
        send(page, "Add a note")
        expect(page.locator(".timeline")).to_contain_text(f"{HOSTILE} and a second line")

        unfold(page, "Acknowledge")
        page.get_by_label("Why it is accepted").fill("exact sums are worth it")
        page.get_by_label("Until").fill("2999-12-24")
        send(page, "Acknowledge")
        expect(page.get_by_text("exact sums are worth it until 2999-12-24")).to_be_visible()
        assert site.row(number).state is RegressionState.ACKNOWLEDGED

        unfold(page, "Reopen")
        page.locator("details[open]").get_by_label("Why").fill("they are not")
        send(page, "Reopen")
        assert site.row(number).state is RegressionState.OPEN

        unfold(page, "Dismiss")
        page.get_by_label("Why it is no regression").fill("the host was being serviced")
        send(page, "Dismiss")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Dismiss regression {number}?")
        assert site.row(number).state is RegressionState.OPEN, "nothing happens before the answer"
        page.get_by_role("button", name="Dismiss").click()
        expect(page.get_by_role("status")).to_have_text(f"✓ Regression {number}: dismissed.")
        assert site.row(number).state is RegressionState.DISMISSED
        if script:
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            assert barriers(page) == {}
    done = ["assigned", "assigned", "due", "note", "acknowledged", "reopened", "dismissed"]
    assert site.history(number) == [f"tina {one}" for one in done]
    verbs = ["assign", "assign", "due", "note", "acknowledge", "reopen", "dismiss"]
    assert site.audited(f"regression {number}") == [f"person tina regression.{verb}" for verb in verbs]


def test_a_form_opens_below_buttons_that_stay(browser: Browser, site: Site) -> None:
    """A second click at the same place closes what the first one opened; it used to meet another button."""
    [number] = site.regressions()
    with site.as_person(browser, "tina") as page:
        page.goto(f"{site.address}/regressions/{number}")
        summary = page.locator("#triage summary", has_text="Acknowledge")
        before = summary.bounding_box()
        assert before
        unfold(page, "Acknowledge")
        form = page.locator("details[open] form")
        expect(form).to_be_visible()
        assert summary.bounding_box() == before
        below = form.bounding_box()
        assert below
        assert below["y"] >= before["y"] + before["height"]
        assert below["width"] > 600
        assert summary.inner_text() != form.get_by_role("button").inner_text()
        page.mouse.click(before["x"] + 5, before["y"] + 5)
        expect(form).not_to_be_visible()


def test_a_whole_incident_is_decided_with_one_form(browser: Browser, site: Site) -> None:
    first, *others = site.regressions(cases=3)
    incident = site.row(first).incident_id
    with site.as_person(browser, "tina") as page:
        page.goto(f"{site.address}/regressions/{first}")
        unfold(page, "Acknowledge")
        form = page.locator("details[open]")
        form.get_by_label("Why it is accepted").fill("all of it is wanted")
        form.get_by_label("Applies to").select_option(label=f"all 3 cases of incident {incident}")
        send(page, "Acknowledge")
        expect(page.get_by_role("status")).to_have_text(f"✓ Incident {incident}: acknowledged.")
        assert {site.row(one).state for one in (first, *others)} == {RegressionState.ACKNOWLEDGED}

        page.get_by_role("link", name=f"incident {incident}").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("acknowledged 3 cases slower, worst 22.0 % slower")
        expect(page.locator(".timeline")).to_contain_text("tina acknowledged (3 cases): all of it is wanted")
        unfold(page, "Reopen")
        send(page, "Reopen")
        page.get_by_role("button", name="Assign to me").click()
        assert {site.row(one).assignee for one in (first, *others)} == {"tina"}
        unfold(page, "Dismiss")
        page.get_by_label("Why it is no regression").fill("a serviced host")
        send(page, "Dismiss")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Dismiss incident {incident} with all 3 cases?")
        page.get_by_role("link", name="Cancel").click()
        assert barriers(page) == {}
        assert {site.row(one).state for one in (first, *others)} == {RegressionState.OPEN}


def test_a_double_click_does_it_once(browser: Browser, site: Site) -> None:
    [number] = site.regressions()
    with site.as_person(browser, "tina") as page:
        page.goto(f"{site.address}/regressions/{number}")
        unfold(page, "Add a note")
        page.locator("details[open]").get_by_label("Note").fill("only once")
        form = page.locator("details[open] form")
        sent = form.evaluate("one => Object.fromEntries(new FormData(one))")
        form.get_by_role("button").dblclick()
        expect(page.get_by_role("status")).to_have_text(f"✓ Regression {number}: note added.")
        again = page.request.post(f"{site.address}/regressions/{number}/note", form=sent)
        assert f"Regression {number}: note added." in again.text()
    assert site.history(number) == ["tina note"]
    assert site.audited(f"regression {number}") == ["person tina regression.note"]


def test_a_stale_page_shows_what_changed_and_keeps_what_was_typed(browser: Browser, site: Site) -> None:
    [number] = site.regressions()
    with site.as_person(browser, "theo") as late, site.as_person(browser, "tina") as early:
        for page in (late, early):
            page.goto(f"{site.address}/regressions/{number}")
        unfold(early, "Acknowledge")
        early.get_by_label("Why it is accepted").fill("it is wanted")
        send(early, "Acknowledge")
        expect(early.get_by_role("status")).to_be_visible()

        unfold(late, "Acknowledge")
        late.get_by_label("Why it is accepted").fill("my own reason")
        with late.expect_response(lambda answer: answer.request.method == "POST") as answer:
            send(late, "Acknowledge")
        assert answer.value.status == 409
        expect(late.get_by_role("heading", level=1)).to_have_text("Not done: acknowledge")
        expect(late.get_by_role("alert")).to_contain_text(f"Regression {number} was changed after you opened the page")
        expect(late.locator("ol")).to_contain_text("tina acknowledged: it is wanted")
        expect(late.get_by_label("Why it is accepted")).to_have_value("my own reason")
        assert barriers(late) == {}
        assert site.row(number).reason == "it is wanted"

        with late.expect_response(lambda answer: answer.request.method == "POST") as answer:
            late.get_by_role("button", name="Acknowledge").click()
        assert answer.value.status == 303, "who has read it may go on"
        assert site.row(number).reason == "my own reason"


def test_a_form_without_its_reason_comes_back_with_the_rest(browser: Browser, site: Site) -> None:
    [number] = site.regressions()
    with site.as_person(browser, "tina", java_script_enabled=False) as page:
        page.goto(f"{site.address}/regressions/{number}/acknowledge")
        page.get_by_label("Why it is accepted").fill("   ")
        page.get_by_label("Until").fill("2999-01-02")
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_role("alert")).to_have_text("“Why it is accepted” is missing.")
        expect(page.get_by_label("Until")).to_have_value("2999-01-02")
        page.get_by_label("Why it is accepted").fill("late")
        page.get_by_label("Until").fill("2001-01-02")
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_role("alert")).to_contain_text("cannot end in the past")
        expect(page.get_by_label("Why it is accepted")).to_have_value("late")
    assert site.history(number) == []


def test_a_session_that_ended_keeps_the_text_and_offers_to_sign_in(browser: Browser, site: Site) -> None:
    [number] = site.regressions()
    with site.as_person(browser, "tina") as page:
        page.goto(f"{site.address}/regressions/{number}/note")
        page.get_by_label("Note").fill("a long explanation")
        page.context.clear_cookies()
        page.get_by_role("button", name="Add a note").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Not done: add a note")
        expect(page.get_by_text("a long explanation")).to_be_visible()
        expect(page.get_by_role("link", name="Sign in").last).to_be_visible()
    assert site.history(number) == []


def test_the_form_of_another_session_comes_back_with_a_new_token(browser: Browser, site: Site) -> None:
    [number] = site.regressions()
    with site.as_person(browser, "tina") as page:
        page.goto(f"{site.address}/regressions/{number}/note")
        page.get_by_label("Note").fill("kept")
        tab = page.context.new_page()
        tab.goto(f"{site.address}/sign-in")  # a new session
        page.get_by_role("button", name="Add a note").click()
        expect(page.get_by_role("alert")).to_contain_text("too old or not from this page")
        expect(page.get_by_label("Note")).to_have_value("kept")
        page.get_by_role("button", name="Add a note").click()
        expect(page.get_by_role("status")).to_be_visible()
    assert site.history(number) == ["tina note"]


def test_the_primary_action_is_reached_by_keyboard(browser: Browser, site: Site) -> None:
    [number] = site.regressions()
    with site.as_person(browser, "tina") as page:
        page.goto(f"{site.address}/regressions/{number}")
        box = page.locator(".button.primary").bounding_box()
        assert box is not None
        assert box["y"] < 900
        presses = 0
        while not page.evaluate("document.activeElement.classList.contains('primary')"):
            page.keyboard.press("Tab")
            presses += 1
        assert presses <= 15
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_contain_text("assigned to tina")


@pytest.mark.parametrize("script", [True, False])
def test_one_button_finds_the_culprit_of_a_whole_incident(browser: Browser, site: Site, script: bool) -> None:
    numbers = site.searchable(cases=3)
    incident = site.row(numbers[0]).incident_id
    for who in (None, "rita", "tina"):
        with site.as_person(browser, who) as page:
            page.goto(f"{site.address}/incidents/{incident}")
            expect(page.get_by_role("button", name="Find the culprit")).to_have_count(0)
            page.get_by_text("Commands that do the same").click()
            command = page.locator("dd code", has_text="kernelwatch bisection start searched").inner_text()
            assert command.count("--case") == 3
            assert all(f"--case {site.row(one).case}" in command for one in numbers)
            assert barriers(page) == {}
    with site.as_person(browser, "wendy", java_script_enabled=script, viewport=PHONE) as page:
        page.goto(f"{site.address}/incidents/{incident}")
        form = page.locator("form", has=page.get_by_role("button", name="Find the culprit"))
        sent = {one.get_attribute("name"): one.input_value() for one in form.locator("input").all()}
        form.get_by_role("button").dblclick()
        expect(page.locator("#done")).to_contain_text(f"Incident {incident}: ")
        [search] = site.bisections_of(numbers)
        expect(page.locator("#bisections")).to_contain_text(f"Bisection {search.id}")
        again = page.request.post(f"{site.address}/incidents/{incident}/bisect", form=sent)
        assert f"Incident {incident}: the search for the culprit has started." in again.text()
        expect(page.get_by_role("button", name="Find the culprit")).to_have_count(0)
        assert excess_width(page) == 0
    assert [one.id for one in site.bisections_of(numbers)] == [search.id]
    assert (search.cases, search.suite, search.asked_by) == ([site.row(one).case for one in numbers], "all", "wendy")
    assert {site.row(one).state for one in numbers} == {RegressionState.BISECTING}
    assert site.audited(f"bisection {search.id}") == ["person wendy bisection.start"]


def test_an_incident_without_a_good_revision_says_why_nothing_is_searched(browser: Browser, site: Site) -> None:
    numbers = site.regressions(cases=2)
    incident = site.row(numbers[0]).incident_id
    with site.as_person(browser, "wendy") as page:
        page.goto(f"{site.address}/incidents/{incident}/bisect")
        page.get_by_role("button", name="Find the culprit").click()
        expect(page.get_by_role("alert")).to_be_visible()
    assert site.bisections_of(numbers) == []


@pytest.mark.parametrize("script", [True, False])
def test_a_bisection_is_stopped_after_a_question(browser: Browser, site: Site, script: bool) -> None:
    number = site.bisection()
    with site.as_person(browser, "tina") as page:
        page.goto(f"{site.address}/bisections/{number}")
        expect(page.locator(".note")).to_contain_text("run:norms")
    with site.as_person(browser, "wendy", java_script_enabled=script) as page:
        page.goto(f"{site.address}/bisections/{number}")
        page.get_by_role("button", name="Stop it").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Stop bisection {number}?")
        sent = {one: page.locator(f"input[name={one}]").last.input_value() for one in ("csrf_token", "confirmed")}
        page.get_by_role("button", name="Stop the bisection").click()
        expect(page.get_by_role("status").first).to_have_text(f"✓ Bisection {number}: stopped.")
        again = page.request.post(f"{site.address}/bisections/{number}/stop", form=sent)
        assert f"Bisection {number}: stopped." in again.text(), "the second of two clicks"
    with site.as_person(browser, "alma") as page:
        page.goto(f"{site.address}/bisections/{number}/stop")
        page.get_by_role("button", name="Stop the bisection").click()
        page.get_by_role("button", name="Stop the bisection").click()
        expect(page.get_by_role("alert")).to_have_text(f"Bisection {number} has ended already: stopped.")
    assert site.audited(f"bisection {number}") == ["person wendy bisection.stop"]


def test_code_is_fetched_when_it_is_opened_and_says_what_is_missing(browser: Browser, site: Site) -> None:
    [number] = site.regressions()
    with site.as_person(browser, None, viewport=PHONE) as page:
        page.goto(f"{site.address}/regressions/{number}")
        page.get_by_text("Code of both sides").click()
        expect(page.get_by_text("No texts of SASS")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert barriers(page) == {}
