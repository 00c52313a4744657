"""The type of each error: a stable name, with a page that explains it."""

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from service.api.gateway.problems import PROBLEMS
from service.app import create_app
from service.errors import ServiceError, StillHandled, Unavailable
from service.settings import settings
from tests.dashboards.asking import words
from tests.fakes.api import Api
from tests.fakes.processes import served
from workers import app as _workers  # noqa: F401  # errors of every room are known

pytestmark = pytest.mark.usefixtures("state")
API_PAGE = (Path(__file__).parents[4] / "docs" / "api.md").read_text()


def raised(error: Exception) -> dict[str, object]:
    """The answer of an app whose endpoint raises this."""
    app = create_app()

    @app.get("/api/v1/raises")
    def raises() -> None:
        raise error

    answer = Api(app=app).get("/raises")
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, object] = answer.json()
    return document


REQUESTS: list[tuple[str, Callable[[Api], object]]] = [
    ("bad-request", lambda api: api.get("/targets", headers={"Host": "rebound.example"})),
    ("unauthorized", lambda api: api.post("/keys", {"name": "CI", "scopes": ["read"]})),
    ("forbidden", lambda api: api.with_key("read").post("/keys", {"name": "CI", "scopes": ["read"]})),
    ("not-found", lambda api: api.get("/targets/unknown")),
    ("not-found", lambda api: api.get("/nowhere")),
    ("method-not-allowed", lambda api: api.request("PUT", "/targets")),
    ("uri-too-long", lambda api: api.get("/targets", params={"cursor": "x" * 9000})),
    ("invalid", lambda api: api.get("/runs", params={"limit": "many"})),
    ("headers-too-large", lambda api: api.get("/targets", headers={"X-Long": "x" * 20_000})),
]


@pytest.mark.parametrize(("kind", "send"), REQUESTS)
def test_an_error_names_its_kind(kind: str, send: Callable[[Api], object]) -> None:
    answer = send(Api())
    assert answer.json()["type"] == f"/problems/{kind}"  # type: ignore[attr-defined]
    assert answer.json()["status"] == answer.status_code == PROBLEMS[kind].status  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StillHandled("Wait."), "in-progress"),
        (Unavailable("No sandbox."), "unavailable"),
        (OperationalError("SELECT 1", {}, Exception("gone")), "database"),
        (ServiceError("It broke."), "internal"),
    ],
)
def test_kinds_with_one_status_are_told_apart(error: Exception, kind: str) -> None:
    assert raised(error)["type"] == f"/problems/{kind}"
    assert raised(error)["title"] == PROBLEMS[kind].title


@pytest.mark.parametrize(
    ("path", "media_type"), [("/api/v1/raises", "application/problem+json"), ("/raises", "text/html; charset=utf-8")]
)
def test_an_app_that_fails_answers_in_the_form_of_the_address(
    path: str, media_type: str, capfd: pytest.CaptureFixture[str]
) -> None:
    app = create_app()

    @app.get(path)
    def raises() -> None:
        raise RuntimeError("a fault of ours")

    with served(app) as address:
        answer = httpx.get(f"{address}{path}")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "a fault of ours" not in answer.text
    assert "a fault of ours" in capfd.readouterr().err
    if path.startswith("/api"):
        assert answer.json()["type"] == "/problems/internal"


def test_every_error_of_ours_has_a_kind() -> None:
    left, found = [ServiceError], set[type[ServiceError]]()
    while left:
        error = left.pop()
        found.add(error)
        left += error.__subclasses__()
    wrong = [error for error in found if error.kind and PROBLEMS[error.kind].status != error.status]
    without = [error for error in found if error.status not in {one.status for one in PROBLEMS.values()}]
    assert (wrong, without) == ([], [])


def test_each_kind_has_a_page_that_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWATCH_PUBLIC_READ", "false")
    settings.cache_clear()
    api = Api()
    assert api.at("/targets/norms").status_code == 401
    for kind in PROBLEMS.values():
        shown = api.at(f"/problems/{kind.name}")
        assert shown.status_code == 200
        assert f"{kind.status} {kind.title}" in words(shown)
    assert api.at("/problems/unknown").status_code == 404


def test_the_documentation_lists_every_kind_with_its_status() -> None:
    listed = re.findall(r"\b(\d{3})\s`([a-z-]+)`", API_PAGE.partition("## Errors")[2])
    assert listed == [(str(kind.status), kind.name) for kind in PROBLEMS.values()]


def test_titles_do_not_repeat() -> None:
    assert len({kind.title for kind in PROBLEMS.values()}) == len(PROBLEMS)


@pytest.mark.parametrize("public", ["https://watch.example.org/", ""])
def test_the_contact_is_the_address_that_the_operator_named(monkeypatch: pytest.MonkeyPatch, public: str) -> None:
    if public:
        monkeypatch.setenv("KERNELWATCH_PUBLIC_URL", public)
    settings.cache_clear()
    contact = create_app().openapi()["info"].get("contact")
    assert contact == ({"name": "The operator of this server", "url": "https://watch.example.org/"} if public else None)
