"""Who may send a form of a page, what other sites can do with one, and many senders at once."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.db.engine import transaction
from service.db.models import SignIn
from service.settings import settings
from tests.dashboards.acting.site import Site, client, fields
from tests.fakes.api import new_key
from tests.shell import attempt

PAGES = [
    "/regressions/{0}",
    "/regressions/{0}/code",
    "/regressions/{0}/dismiss",
    "/incidents/{1}",
    "/incidents/{1}/dismiss",
]
FORMS = ["/regressions/{0}/note", "/regressions/{0}/bisect", "/incidents/{1}/note"]


@pytest.mark.parametrize("who", [None, "rita", "theo", "wendy"])
def test_what_is_private_does_not_exist_for_others(site: Site, who: str | None) -> None:
    [number] = site.regressions(target="secret")
    incident = site.row(number).incident_id
    with client(site, who) as person:
        for path in PAGES:
            hidden = person.get(path.format(number, incident))
            absent = person.get(path.format(999_999, 999_999))
            assert hidden.status_code == absent.status_code == 404, path
            assert hidden.text.replace(str(number), "N").replace(str(incident), "N").count("secret") == 0
        for path in FORMS:
            sent = person.post(path.format(number, incident), data=fields(person, seen="1000000", text="found you"))
            assert (sent.status_code, "secret" in sent.text) == (404, False), path
    assert site.history(number) == []


def test_who_may_read_what_is_private_may_act_on_it(site: Site) -> None:
    [number] = site.regressions(target="secret")
    with client(site, "tina") as person:
        sent = person.post(f"/regressions/{number}/note", data=fields(person, seen="1000000", text="ours"))
        assert f"Regression {number}: note added." in sent.text
    assert site.history(number) == ["tina note"]


@pytest.mark.parametrize(
    ("who", "path", "status"),
    [
        (None, "note", 401),
        ("rita", "note", 403),
        ("tina", "note", 200),
        ("tina", "bisect", 403),
        ("wendy", "note", 200),
        ("alma", "note", 200),
    ],
)
def test_each_role_may_do_what_it_may_do_in_the_api(site: Site, who: str | None, path: str, status: int) -> None:
    [number] = site.regressions()
    with client(site, who) as person:
        sent = person.post(f"/regressions/{number}/{path}", data=fields(person, seen="1000000", text="a note"))
    assert sent.status_code == status
    assert site.history(number) == ([f"{who} note"] if status == 200 else [])


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_another_site_sends_no_form(site: Site, origin: str) -> None:
    [number] = site.regressions()
    with client(site, "tina") as person:
        stolen = fields(person, seen="1000000", text="send money")
        forged = person.post(f"/regressions/{number}/note", data=stolen, headers={"Origin": origin})
        assert (forged.status_code, "send money" in forged.text) == (403, False)
        blind = person.post(f"/regressions/{number}/note", data={"text": "send money"})
        assert (blind.status_code, "send money" in blind.text) == (403, False), "its words are on no page of ours"
    assert site.history(number) == []


def test_an_address_cannot_make_a_page_say_what_was_done(site: Site) -> None:
    [number] = site.regressions()
    with client(site, "tina") as tina, client(site, "theo") as theo:
        sent = tina.post(f"/regressions/{number}/note", data=fields(tina, seen="1000000", text="mine"))
        assert "note added" in sent.text
        assert "note added" not in theo.get(str(sent.url)).text
        assert "send money" not in tina.get(f"/regressions/{number}?done=send+money").text


def test_two_people_at_once_are_one_after_the_other(site: Site) -> None:
    [number] = site.regressions()
    with client(site, "tina") as tina, client(site, "theo") as theo, ThreadPoolExecutor(8) as pool:
        seen = page_version(tina, number)
        forms = [
            fields(person, seen="1000000", assignee=who) | {"seen": seen}
            for person, who in ((tina, "tina"), (theo, "theo"))
        ]
        sent = [
            pool.submit(person.post, f"/regressions/{number}/assign", data=form)
            for person, form in zip((tina, theo), forms, strict=True)
            for _ in range(4)
        ]
        codes = sorted(one.result().status_code for one in sent)
    first = site.row(number).assignee
    assert codes == [200] * 4 + [409] * 4
    assert site.history(number) == [f"{first} assigned"]
    assert len(site.audited(f"regression {number}")) == 1


def page_version(person: httpx.Client, number: int) -> str:
    text = person.get(f"/regressions/{number}/assign").text
    return text.partition('name="seen" value="')[2].partition('"')[0]


@pytest.mark.parametrize("body", [b"\xff\xfe", b"&".join(b"a=1" for _ in range(100))])
def test_a_body_that_is_no_form_is_refused(site: Site, body: bytes) -> None:
    [number] = site.regressions()
    with client(site, "tina") as person:
        sent = person.post(f"/regressions/{number}/note", content=body)
    assert sent.status_code == 422


def test_a_body_that_is_too_long_is_refused(site: Site) -> None:
    [number] = site.regressions()
    with client(site, "tina") as person:
        assert person.post(f"/regressions/{number}/note", data={"text": "x" * 70_000}).status_code == 413
        long = person.post(f"/regressions/{number}/note", data=fields(person, seen="1000000", text="x" * 2001))
    assert (long.status_code, "2001 characters" in long.text) == (422, True)


def test_a_key_acts_with_its_own_name(site: Site) -> None:
    [number] = site.regressions()
    headers = {"Authorization": f"Bearer {new_key('triage:norms', name='robot')}"}
    with httpx.Client(base_url=site.address, headers=headers, timeout=60) as program:
        sent = program.post(f"/regressions/{number}/note", data={"text": "by a program"})
    assert sent.status_code == 303
    assert site.history(number) == ["robot note"]


# -- a user of the server's machine


def link() -> str:
    done = attempt("person", "sign-in", catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.strip()


def test_a_user_of_the_machine_signs_in_with_a_link_that_works_once(site: Site) -> None:
    [number] = site.regressions()
    address = link()
    assert address.startswith(f"{settings().address}/sign-in/local?code=")
    with client(site, None) as person, client(site, None) as thief:
        assert person.get(address).url.path == "/"
        me = person.get("/api/v1/me").json()
        assert (me["kind"], me["scopes"]) == ("local", ["admin"])
        assert thief.get(address).status_code == 403
        assert thief.get("/api/v1/me").json()["kind"] == "anonymous"
        person.post(f"/regressions/{number}/note", data=fields(person, seen="1000000", text="from my laptop"))
        person.post("/sign-out", data=fields(person, seen="1000000"))
        assert person.get("/api/v1/me").json()["kind"] == "anonymous"
    [entry] = site.audited(f"regression {number}")
    assert entry == f"local {me['name']} regression.note"


def test_a_link_is_worth_nothing_after_ten_minutes_and_is_no_cookie(site: Site) -> None:
    address = link()
    code = address.partition("code=")[2]
    with httpx.Client(base_url=site.address, cookies={"kernelwatch": code}, timeout=60) as thief:
        assert thief.get("/api/v1/me").json()["kind"] == "anonymous"
    with transaction() as session:
        newest = session.query(SignIn).order_by(SignIn.id.desc()).first()
        assert newest is not None
        newest.expires_at -= 600
    with client(site, None) as person:
        refused = person.get(address)
    assert (refused.status_code, "kernelwatch person sign-in" in refused.text) == (403, True)


def test_a_link_leads_to_no_other_site(site: Site) -> None:
    with client(site, None) as person:
        assert person.get(f"{link()}&next=//evil.example").url.host == "127.0.0.1"
