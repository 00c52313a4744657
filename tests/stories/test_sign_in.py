"""People sign in with GitHub or another provider, and do what their permissions on the forge allow."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from service.app import create_app
from service.db.engine import transaction
from service.db.models import Account, SignIn
from service.settings import settings
from tests import world
from tests.fakes.api import new_key
from tests.fakes.identity import CLIENT, SECRET, FakeIdentity
from tests.fakes.processes import served

pytestmark = pytest.mark.usefixtures("state")


@dataclass
class Browser:
    """A browser of somebody, which follows every redirect and keeps cookies."""

    client: httpx.Client
    address: str

    def get(self, path: str, **options: object) -> httpx.Response:
        return self.client.get(f"{self.address}{path}", **options)  # type: ignore[arg-type]

    def post(self, path: str, document: object, **headers: str) -> httpx.Response:
        """Send a document as a page of ours does: with the token of the session."""
        token = self.get("/api/v1/me").json()["csrf_token"] or ""
        sent = {"X-CSRF-Token": token, "Origin": self.address} | headers
        return self.client.post(f"{self.address}{path}", json=document, headers=sent)

    @property
    def name(self) -> str:
        return str(self.get("/api/v1/me").json()["name"])


@pytest.fixture
def forge() -> Iterator[FakeIdentity]:
    fake = FakeIdentity()
    with served(fake.app) as address:
        fake.issuer = address
        yield fake


@pytest.fixture
def address(forge: FakeIdentity, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the app, whose people have accounts on the forge."""
    for name, value in {
        "GITHUB_URL": forge.issuer,
        "GITHUB_API": forge.issuer,
        "GITHUB_CLIENT_ID": CLIENT,
        "GITHUB_CLIENT_SECRET": SECRET,
        "GITHUB_TOKEN": "a-token",
    }.items():
        monkeypatch.setenv(f"KERNELWATCH_{name}", value)
    settings.cache_clear()
    with started(monkeypatch) as there:
        yield there


@contextmanager
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The app on a port of its own, which is its public address."""
    with served(create_app()) as address:
        monkeypatch.setenv("KERNELWATCH_PUBLIC_URL", address)
        settings.cache_clear()
        yield address


@pytest.fixture
def browser(address: str) -> Iterator[Browser]:
    with httpx.Client(follow_redirects=True, timeout=60) as client:
        yield Browser(client, address)


def test_a_person_signs_in_and_their_page_says_who_they_are(browser: Browser) -> None:
    assert ">Sign in</a>" in browser.get("/").text
    back = browser.get("/sign-in?next=/workers")
    assert back.url.path == "/workers"
    assert "<span>ada</span>" in back.text
    assert browser.get("/api/v1/me").json()["kind"] == "person"


@pytest.mark.parametrize(
    ("permission", "scopes"),
    [
        (None, []),
        ("read", ["read:norms"]),
        ("triage", ["read:norms", "triage:norms"]),
        ("write", ["read:norms", "run:norms", "triage:norms"]),
        ("maintain", ["read:norms", "ingest:norms", "run:norms", "triage:norms"]),
    ],
)
def test_a_permission_on_the_repository_is_a_role_on_its_target(
    browser: Browser, forge: FakeIdentity, permission: str | None, scopes: list[str]
) -> None:
    world.target(name="norms", forge="octo/norms")
    world.target(name="other", forge="octo/other")
    if permission:
        forge.permissions["octo/norms", "ada"] = permission
    browser.get("/sign-in")
    assert browser.get("/api/v1/me").json()["scopes"] == scopes


def test_people_see_the_private_targets_of_their_repositories_only(browser: Browser, forge: FakeIdentity) -> None:
    world.target(name="ours", forge="octo/ours", private=True)
    world.target(name="theirs", forge="octo/theirs", private=True)
    forge.permissions["octo/ours", "ada"] = "read"
    assert browser.get("/targets/ours").status_code == 404
    browser.get("/sign-in")
    assert browser.get("/targets/ours").status_code == 200
    assert browser.get("/targets/theirs").status_code == 404
    assert "theirs" not in browser.get("/").text


def test_a_permission_that_the_forge_takes_away_is_lost_here(
    browser: Browser, forge: FakeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.target(name="norms", forge="octo/norms")
    forge.permissions["octo/norms", "ada"] = "write"
    browser.get("/sign-in")
    wanted = {"name": "mine", "scopes": ["run:norms"]}
    made = browser.post("/api/v1/keys", wanted)
    assert made.status_code == 201
    monkeypatch.setattr("service.ledger.access.accounts.FRESH_S", 0.0)
    forge.permissions["octo/norms", "ada"] = "read"
    refused = browser.post("/api/v1/keys", wanted)
    assert refused.status_code == 403
    assert "ada does not have the scope run:norms" in refused.json()["detail"]
    with httpx.Client(headers={"Authorization": f"Bearer {made.json()['key']}"}, timeout=60) as program:
        assert program.get(f"{browser.address}/api/v1/me").json()["scopes"] == []


def test_nobody_keeps_a_right_because_the_forge_is_down(
    browser: Browser, forge: FakeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.target(name="norms", forge="octo/norms")
    forge.permissions["octo/norms", "ada"] = "write"
    browser.get("/sign-in")
    monkeypatch.setattr("service.ledger.access.accounts.FRESH_S", 0.0)
    forge.down = True
    assert browser.post("/api/v1/keys", {"name": "mine", "scopes": ["run:norms"]}).status_code == 403


def test_a_person_makes_and_revokes_keys_of_their_own_only(browser: Browser, forge: FakeIdentity) -> None:
    world.target(name="norms", forge="octo/norms")
    forge.permissions["octo/norms", "ada"] = "triage"
    browser.get("/sign-in")
    own = browser.post("/api/v1/keys", {"name": "mine", "scopes": ["triage:norms"]}).json()
    assert browser.post("/api/v1/keys", {"name": "more", "scopes": ["admin"]}).status_code == 403
    other = new_key("read")[:13]
    assert [one["prefix"] for one in browser.get("/api/v1/keys").json()["items"]] == [own["prefix"]]
    assert browser.post(f"/api/v1/keys/{other}/revoke", {}).status_code == 403
    assert browser.post(f"/api/v1/keys/{own['prefix']}/revoke", {}).status_code == 200


def test_another_site_can_make_no_change(browser: Browser) -> None:
    browser.get("/sign-in")
    wanted = {"name": "theirs", "scopes": ["read"]}
    forged = browser.client.post(f"{browser.address}/api/v1/keys", json=wanted)
    assert (forged.status_code, "reload the page" in forged.text) == (403, True)
    elsewhere = browser.post("/api/v1/keys", wanted, Origin="https://evil.example")
    assert (elsewhere.status_code, "https://evil.example" in elsewhere.text) == (403, True)
    assert browser.client.post(f"{browser.address}/sign-out").status_code == 403
    assert browser.name == "ada"


def test_signing_out_ends_the_session_for_everybody_who_has_its_cookie(browser: Browser) -> None:
    browser.get("/sign-in")
    stolen = dict(browser.client.cookies)
    token = browser.get("/api/v1/me").json()["csrf_token"]
    browser.client.post(f"{browser.address}/sign-out", data={"csrf_token": token})
    assert browser.name == "anonymous"
    with httpx.Client(cookies=stolen, timeout=60) as thief:
        assert thief.get(f"{browser.address}/api/v1/me").json()["name"] == "anonymous"


def test_a_session_expires(browser: Browser) -> None:
    browser.get("/sign-in")
    with transaction() as session:
        session.query(SignIn).one().expires_at = time.time() - 1
    assert browser.name == "anonymous"
    assert browser.post("/api/v1/keys", {"name": "mine", "scopes": ["read"]}).status_code == 401


def test_a_disabled_person_is_out_at_once(browser: Browser) -> None:
    browser.get("/sign-in")
    with transaction() as session:
        session.query(Account).one().disabled_at = time.time()
    assert browser.name == "anonymous"
    assert "The account ada is disabled here" in browser.get("/sign-in").text


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "\t//evil.example"])
def test_a_sign_in_leads_to_no_other_site(browser: Browser, path: str) -> None:
    back = browser.get("/sign-in", params={"next": path})
    assert str(back.url) == f"{browser.address}/"


def test_a_sign_in_that_this_browser_did_not_begin_is_refused(browser: Browser) -> None:
    """Else somebody could sign others in as themselves, and read what they do."""
    answer = browser.get("/sign-in/github/callback?code=code-0&state=guessed")
    assert answer.status_code == 403
    assert "was not begun in this browser" in answer.text


def test_the_cookie_is_for_this_server_and_no_script(browser: Browser) -> None:
    [cookie] = [
        one.headers["set-cookie"] for one in browser.get("/sign-in").history if "kernelwatch=" in str(one.headers)
    ]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie


@pytest.fixture
def company(forge: FakeIdentity, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """A browser on an app whose people have accounts with a provider of OpenID Connect."""
    for name, value in {
        "OIDC_ISSUER": forge.issuer,
        "OIDC_CLIENT_ID": CLIENT,
        "OIDC_CLIENT_SECRET": SECRET,
        "OIDC_SCOPES": '["read", "triage:norms"]',
        "ADMINS": '["root@example.org"]',
    }.items():
        monkeypatch.setenv(f"KERNELWATCH_{name}", value)
    settings.cache_clear()
    with started(monkeypatch) as address, httpx.Client(follow_redirects=True, timeout=60) as client:
        yield Browser(client, address)


def test_people_of_a_company_sign_in_with_its_provider(company: Browser, forge: FakeIdentity) -> None:
    world.target(name="norms")
    company.get("/sign-in")
    me = company.get("/api/v1/me").json()
    assert (me["name"], me["scopes"]) == ("ada@example.org", ["read", "triage:norms"])


def test_an_administrator_is_somebody_whose_address_is_verified(company: Browser, forge: FakeIdentity) -> None:
    forge.person = {"id": "root@example.org", "login": "root"}
    forge.claims = {"email_verified": False}
    company.get("/sign-in")
    assert "admin" not in company.get("/api/v1/me").json()["scopes"]
    forge.claims = {}
    company.get("/sign-in")
    assert company.get("/api/v1/me").json()["scopes"] == ["admin"]


@pytest.mark.parametrize(
    "claims",
    [{"aud": "another"}, {"iss": "https://evil.example"}, {"nonce": "another"}, {"exp": 1}, {"sub": None}],
    ids=str,
)
def test_an_identity_token_for_somebody_else_is_refused(
    company: Browser, forge: FakeIdentity, claims: dict[str, object]
) -> None:
    forge.claims = claims
    answer = company.get("/sign-in")
    assert answer.status_code == 502
    assert "did not confirm who you are" in answer.text
    assert company.name == "anonymous"


def test_without_a_provider_the_page_says_how_to_set_one_up(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(monkeypatch) as address:
        answer = httpx.get(f"{address}/sign-in", follow_redirects=True, timeout=60)
    assert answer.status_code == 503
    assert "KERNELWATCH_GITHUB_CLIENT_ID" in answer.text
