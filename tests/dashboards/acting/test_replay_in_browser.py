"""Policies in a real browser: what another one would have reported, its versions, and who may see them."""

import tomllib

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import func, select

from service.db.engine import reading
from service.db.models import Base
from service.domain.policy.policy import NOTHING, read
from tests import world
from tests.dashboards.acting.site import Site, client, fields
from tests.dashboards.browser.variants import PHONE, SCRIPTS_AND_VIEWPORTS
from tests.dashboards.inspection import CONTRAST, barriers, excess_width
from tests.service.ledger.test_replay import RECIPE, Ledger, filled


@pytest.fixture(scope="module")
def replayed(site: Site) -> str:
    """The page of a target with six measured runs, of which two raised an alarm."""
    made = world.target(RECIPE.format(policy="smallest_change = 0.02"), name="replayed", forge="octo/norms")
    filled(Ledger(made.id))
    return f"{site.address}/targets/replayed/policy"


def counts() -> dict[str, int]:
    with reading() as session:
        tables = Base.metadata.sorted_tables
        return {one.name: session.execute(select(func.count()).select_from(one)).scalar_one() for one in tables}


@SCRIPTS_AND_VIEWPORTS
def test_a_changed_policy_is_replayed_before_it_is_saved(
    browser: Browser, site: Site, replayed: str, script: bool, viewport: dict[str, int]
) -> None:
    with site.as_person(browser, "wendy", java_script_enabled=script, viewport=viewport) as page:
        page.goto(replayed)
        before = counts()
        expect(page.get_by_label("smallest_change", exact=True)).to_have_value("0.02")
        page.get_by_label("smallest_change", exact=True).fill("0.1")
        expect(page.get_by_label("rounds optional", exact=True)).to_have_value("")
        page.get_by_label("rounds optional", exact=True).fill("6")
        page.get_by_role("button", name="Replay").click()
        said = page.get_by_role("status")
        expect(said).to_contain_text("2 alarms in 6 runs so far; 1 with the changed policy")
        expect(said).to_contain_text("1 gone")
        expect(page.locator("tbody").first).to_contain_text("disappears")
        expect(page.locator("#snippet")).to_have_text("[policy]\nsmallest_change = 0.1\nrounds = 6")
        expect(page.locator("main")).to_contain_text("all 6 stored runs")
        assert page.get_by_label("smallest_change", exact=True).input_value() == "0.1"
        if script:
            assert (barriers(page), page.evaluate(CONTRAST), excess_width(page)) == ({}, [], 0)
            page.locator("tbody a").first.click()
            expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert counts() == before, "nothing is stored"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"smallest_change": "much"}, "smallest_change: Input should be a valid number"),
        ({"smallest_change": "2"}, "smallest_change: Input should be less than 1"),
        ({"screening": "8, 3"}, "screening must be increasing numbers"),
        ({"rounds": "2"}, "rounds: Input should be greater than or equal to 4"),
        ({"comment": "loudly"}, "has no choice loudly"),
    ],
)
def test_a_wrong_value_is_named(
    browser: Browser, site: Site, replayed: str, values: dict[str, str], message: str
) -> None:
    with site.as_person(browser, "wendy") as page:
        page.goto(replayed)
        sent = {
            one.get_attribute("name") or "": one.input_value()
            for one in page.locator("form.form :is(input, select)").all()
        }
        answer = page.request.post(replayed, form=sent | values, headers={"Origin": site.address})
        assert answer.status == 422
        assert message in answer.text()


@pytest.mark.parametrize(("who", "status"), [(None, 401), ("rita", 403), ("tina", 403), ("wendy", 200), ("alma", 200)])
def test_who_may_run_may_replay(site: Site, replayed: str, who: str | None, status: int) -> None:
    with client(site, who) as person:
        shown = person.get(replayed)
        assert (shown.status_code, 'class="form"' in shown.text) == (200, status == 200)
        form = fields(person)
        answer = person.post(replayed, data=form)
        assert answer.status_code == (422 if status == 200 else status), "its fields are missing"
        hidden = person.get(f"{site.address}/targets/secret/policy")
        assert hidden.status_code == (200 if who in ("tina", "alma") else 404)
        post = person.post(f"{site.address}/targets/secret/policy", data=form)
        assert (post.status_code == 404) is (who not in ("tina", "alma"))
        versions = person.get(f"{site.address}/policies", headers={"Accept": "text/html"})
        assert versions.status_code == (200 if who == "alma" else 403 if who else 401)


def test_versions_say_what_differs_and_what_they_judged(browser: Browser, site: Site, replayed: str) -> None:
    with site.as_person(browser, "alma", viewport=PHONE) as page:
        page.goto(f"{site.address}/policies")
        assert (barriers(page), page.evaluate(CONTRAST), excess_width(page)) == ({}, [], 0)
        row = page.locator("tbody tr").last
        expect(row).to_contain_text("replayed")
        row.get_by_role("link").first.click()
        expect(page.locator("main")).to_contain_text("smallest_change")
        expect(page.locator("main")).to_contain_text("Runs that it judged")
        assert (barriers(page), page.evaluate(CONTRAST), excess_width(page)) == ({}, [], 0)


def test_the_lines_for_the_recipe_are_those_that_were_replayed(browser: Browser, site: Site) -> None:
    """The table of one device where the recipe names several: another table would change the others as well."""
    with site.as_person(browser, "wendy") as page:
        page.goto(f"{site.address}/targets/norms/policy?device=cpu")
        page.get_by_label("blocking", exact=True).select_option("yes")
        page.get_by_label("screening", exact=True).fill("3, 6")
        page.get_by_role("button", name="Replay").click()
        expect(page.get_by_role("status")).to_have_text("There is no stored run to judge again on this device.")
        toml = page.locator("#snippet").inner_text()
    assert tomllib.loads(toml) == {"policy": {"devices": {"cpu": {"screening": [3, 6], "blocking": True}}}}
    assert read(toml, "of the page").on("cpu", NOTHING).screening == (3, 6)
