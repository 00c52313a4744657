"""Keys, people and the audit log in a real browser: as each role, twice, too late, and by two people at once."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import select

from service.db.engine import reading, transaction
from service.db.models import ApiKey, Base, RepeatableRequest
from service.domain.access import NamedGrant, Scope
from service.ledger.access import keys
from tests.dashboards.acting.site import HOSTILE, Site, client, fields
from tests.dashboards.browser.variants import PHONE, SCRIPTS_AND_VIEWPORTS, WIDE
from tests.dashboards.inspection import CONTRAST, OPEN_DETAILS, barriers, excess_width


def named(name: str) -> list[ApiKey]:
    with reading() as session:
        return list(session.scalars(select(ApiKey).where(ApiKey.name == name).order_by(ApiKey.id)))


def stored_texts() -> str:
    """Every value of every table."""
    with reading() as session:
        return "\n".join(str(row) for table in Base.metadata.sorted_tables for row in session.execute(select(table)))


def made_in(page: Page, site: Site, name: str, scopes: str) -> str:
    """Make a key with the form; returns its text."""
    page.goto(f"{site.address}/keys")
    page.get_by_text("New key").click()
    page.get_by_label("Name").fill(name)
    page.get_by_label("Scopes").fill(scopes)
    page.get_by_role("button", name="Make the key").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Store this key now")
    return page.locator("#key").inner_text()


@pytest.mark.parametrize(
    ("who", "of_keys", "of_admins"), [(None, 401, 401), ("rita", 200, 403), ("wendy", 200, 403), ("alma", 200, 200)]
)
def test_each_role_opens_the_pages_that_the_api_allows(
    site: Site, who: str | None, of_keys: int, of_admins: int
) -> None:
    with client(site, who) as person:
        for path, expected in (("/keys", of_keys), ("/people", of_admins), ("/audit", of_admins)):
            answers = [
                person.get(start + path, headers={"Accept": "text/html"}).status_code for start in ("", "/api/v1")
            ]
            assert answers == [expected, expected], path
        overview = person.get("/").text
        assert ('href="/keys"' in overview, 'href="/audit"' in overview) == (who is not None, who == "alma")


@SCRIPTS_AND_VIEWPORTS
def test_a_key_is_shown_once_and_works_until_it_is_revoked(
    browser: Browser, site: Site, script: bool, viewport: dict[str, int]
) -> None:
    name = f"CI {script} {viewport['width']}"
    with site.as_person(browser, "wendy", java_script_enabled=script, viewport=viewport) as page:
        text = made_in(page, site, name, "run:norms, triage:norms")
        if script:
            assert (barriers(page), page.evaluate(CONTRAST), excess_width(page)) == ({}, [], 0)
        assert text not in page.url
        page.get_by_role("link", name="It is stored").click()
        assert text not in page.content()
        [row] = named(name)
        with httpx.Client(base_url=site.address, headers={"Authorization": f"Bearer {text}"}, timeout=60) as program:
            assert program.get("/api/v1/me").json()["scopes"] == ["run:norms", "triage:norms"]
            page.locator(f"#key-{row.prefix}").get_by_role("link", name="Revoke").click()
            page.locator("form.form").get_by_role("button", name="Revoke").click()
            expect(page.get_by_role("heading", level=1)).to_have_text(f"Revoke {row.prefix} ({name})?")
            assert program.get("/api/v1/me").status_code == 200, "nothing happens before the answer"
            page.locator("form.form").get_by_role("button", name="Revoke").click()
            expect(page.get_by_role("status")).to_have_text(f"✓ The key {row.prefix} is revoked.")
            assert program.get("/api/v1/me").status_code == 401
        expect(page.locator(f"#key-{row.prefix}")).to_have_count(0)
        page.goto(f"{site.address}/keys?ended=true")
        expect(page.locator(f"#key-{row.prefix}")).to_contain_text("revoked")
    assert text.removeprefix(f"{row.prefix}_") not in stored_texts()
    assert site.audited(f"key {row.prefix}") == ["person wendy key.create", "person wendy key.revoke"]


def test_a_second_click_makes_no_second_key_and_keeps_the_page_of_the_first(browser: Browser, site: Site) -> None:
    with site.as_person(browser, "wendy") as page:
        page.goto(f"{site.address}/keys/create")
        page.get_by_label("Name").fill("twice in a browser")
        page.get_by_label("Scopes").fill("read:norms")
        page.get_by_role("button", name="Make the key").dblclick()
        expect(page.get_by_role("heading", level=1)).to_have_text("Store this key now")
    assert len(named("twice in a browser")) == 1


@pytest.mark.parametrize("verb", ["create", "rotate"])
def test_a_form_that_is_sent_twice_at_once_makes_one_key(site: Site, verb: str) -> None:
    name = f"twice to {verb}"
    with client(site, "alma") as person:
        headers = {"Origin": site.address}
        if verb == "rotate":
            person.post("/keys/create", data=fields(person, name=name, scopes="read", once="first"), headers=headers)
        before = len(named(name))
        path = "/keys/create" if verb == "create" else f"/keys/{named(name)[0].id}/rotate"
        sent = fields(person, name=name, scopes="read", overlap="0", once=f"once-{verb}")
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: person.post(path, data=sent, headers=headers), range(4)))
    assert sorted(one.status_code for one in answers) == [200, 200, 200, 201]
    assert all(one.headers["Cache-Control"] == "no-store" for one in answers)
    assert sum("This form was sent twice" in one.text for one in answers) == 3
    assert len(named(name)) == before + 1
    with reading() as session:
        stored = session.scalars(select(RepeatableRequest.body).where(RepeatableRequest.key == f"once-{verb}")).all()
    assert stored == [None], "no response with a key is stored"


def test_a_rotated_key_stays_valid_as_long_as_the_form_says(browser: Browser, site: Site) -> None:
    with site.as_person(browser, "wendy") as page:
        old = made_in(page, site, "rotated", "run:norms")
        [row] = named("rotated")
        page.goto(f"{site.address}/keys/{row.id}/rotate")
        page.get_by_label("The old key stays valid for").select_option("an hour")
        page.get_by_role("button", name="Rotate").click()
        new = page.locator("#key").inner_text()
        assert new != old
        for text in (old, new):
            answer = httpx.get(f"{site.address}/api/v1/me", headers={"Authorization": f"Bearer {text}"}, timeout=60)
            assert answer.json()["scopes"] == ["run:norms"]
        [first, second] = named("rotated")
        assert second.rotated_from == first.id
        assert first.expires_at is not None
        assert 3500 < first.expires_at - second.created_at <= 3600


def test_a_key_that_somebody_revoked_meanwhile_is_not_rotated(site: Site) -> None:
    with client(site, "alma") as alma, client(site, "wendy") as wendy:
        made = fields(wendy, name="late", scopes="run:norms", once="late")
        assert wendy.post("/keys/create", data=made, headers={"Origin": site.address}).status_code == 201
        [row] = named("late")
        revoke, rotate = f"/keys/{row.id}/revoke", f"/keys/{row.id}/rotate"
        assert "is revoked" in alma.post(revoke, data=fields(alma, confirmed="yes")).text
        late = wendy.post(rotate, data=fields(wendy, overlap="0", once="later"))
        assert (late.status_code, "has ended. Create a new one." in late.text) == (403, True)
        again = wendy.post(revoke, data=fields(wendy, confirmed="yes"))
        assert "is revoked" in again.text, "it is what they wanted"
    assert site.audited(f"key {row.prefix}") == ["person wendy key.create", "person alma key.revoke"]


def test_nobody_sees_or_changes_keys_of_others_or_gives_more_than_they_have(site: Site) -> None:
    with client(site, "alma") as alma, client(site, "rita") as rita, client(site, None) as stranger:
        made = fields(alma, name="of alma", scopes="admin", once="alma")
        text = alma.post("/keys/create", data=made, headers={"Origin": site.address}).text
        [row] = named("of alma")
        assert row.prefix in text
        assert row.prefix not in rita.get("/keys?ended=true").text
        for verb in ("rotate", "revoke"):
            path = f"/keys/{row.id}/{verb}"
            for person, status in ((rita, 403), (stranger, 401)):
                assert person.get(path).status_code == status
                sent = person.post(path, data=fields(person, confirmed="yes", overlap="0", once="x"))
                assert (sent.status_code, row.prefix in sent.text) == (status, False)
        for scopes in ("admin", "run:norms", "read:secret", "run"):
            greedy = rita.post("/keys/create", data=fields(rita, name="greedy", scopes=scopes, once="greedy"))
            assert greedy.status_code in (403, 404), scopes
        for scopes, expires in (("everything", ""), ("read:norms", "2020-01-01"), ("read:norms", "2026-02-31")):
            wrong = rita.post(
                "/keys/create", data=fields(rita, name="wrong", scopes=scopes, expires=expires, once="wrong")
            )
            assert wrong.status_code == 422, (scopes, expires)
        forged = rita.post(
            "/keys/create", data=fields(rita, name="forged", scopes="read:norms", once="f", csrf_token="")
        )
        assert forged.status_code == 403
    assert named("greedy") == named("wrong") == named("forged") == []
    assert row.revoked_at is None


def test_a_person_is_kept_out_and_let_in_again(browser: Browser, site: Site) -> None:
    with client(site, "theo") as theo, site.as_person(browser, "alma") as page:
        assert theo.get("/keys").status_code == 200
        page.goto(f"{site.address}/people")
        row = page.locator("tr", has=page.get_by_text("theo", exact=True)).first
        row.get_by_role("button", name="Disable").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Disable theo?")
        assert theo.get("/keys").status_code == 200
        page.locator("form.form").get_by_role("button", name="Disable").click()
        expect(page.get_by_role("status")).to_have_text("✓ theo is kept out.")
        assert theo.get("/keys", headers={"Accept": "text/html"}).status_code == 401
        expect(row).to_contain_text("disabled")
        assert (barriers(page), page.evaluate(CONTRAST), excess_width(page)) == ({}, [], 0)
        row.get_by_role("button", name="Enable").click()
        expect(page.get_by_role("status")).to_have_text("✓ theo is let in again.")
    assert site.audited("person theo")[-2:] == ["person alma person.disable", "person alma person.enable"]


def test_two_administrators_keep_the_same_person_out_once(site: Site) -> None:
    with client(site, "rita"), client(site, "alma") as first, client(site, "alma") as second:
        login = next(one for one in first.get("/api/v1/people").json()["items"] if one["login"] == "rita")
        path = f"/people/{login['id']}/disable"
        forms = [(one, fields(one, confirmed="yes")) for one in (first, second)]
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda one: one[0].post(path, data=one[1]).status_code, forms))
        assert both == [200, 200]
        assert site.audited("person rita").count("person alma person.disable") == 1
        first.post(path.replace("disable", "enable"), data=fields(first))
    with client(site, "wendy") as wendy:
        assert wendy.post(path, data=fields(wendy, confirmed="yes")).status_code == 403
        assert wendy.post("/people/999999/disable", data=fields(wendy, confirmed="yes")).status_code == 403


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_audit_log_is_filtered_and_links_what_was_changed(
    browser: Browser, site: Site, viewport: dict[str, int]
) -> None:
    with transaction() as session:
        key, _ = keys.create(session, HOSTILE[:70], [NamedGrant(Scope.READ, "secret")])
    [number] = site.regressions()
    with client(site, "tina") as tina:
        noted = tina.post(f"/regressions/{number}/note", data=fields(tina, text="a note", seen="1000000"))
        assert noted.status_code == 200
    with site.as_person(browser, "alma", viewport=viewport) as page:
        page.goto(f"{site.address}/audit")
        expect(page.get_by_role("link", name=f"key {key.prefix}")).to_be_visible()
        page.evaluate(OPEN_DETAILS)
        assert (barriers(page), page.evaluate(CONTRAST), excess_width(page)) == ({}, [], 0)
        page.get_by_label("By").fill("tina")
        page.get_by_label("Action").fill("regression")
        page.get_by_role("button", name="Filter").click()
        rows = page.locator("tbody tr")
        expect(rows.first).to_contain_text("regression.note")
        assert all("tina" in text for text in rows.all_inner_texts())
        rows.first.get_by_role("link", name=f"regression {number}").click()
        expect(page).to_have_url(f"{site.address}/regressions/{number}")


def test_the_audit_log_has_pages(site: Site) -> None:
    with transaction() as session:
        for n in range(60):
            keys.create(session, f"paged {n}", [NamedGrant(Scope.READ)])
    with client(site, "alma") as alma:
        first = alma.get("/audit?action=key.create").text
        cursor = first.partition("cursor=")[2].partition('"')[0]
        older = alma.get(f"/audit?action=key.create&cursor={cursor}").text
        assert ("paged 59" in first, "paged 2;" in first or "paged 0" in first) == (True, False)
        assert ("paged 59" in older, "paged 0" in older) == (False, True)
        assert alma.get("/audit?cursor=nonsense").status_code == 422
