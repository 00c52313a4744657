"""What responses say to caches, to scripts of other sites and to programs that read lists."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from service.app import create_app
from service.db.engine import transaction
from service.settings import Settings, settings
from tests import world
from tests.dashboards.asking import Get
from tests.dashboards.seed import Seeded
from tests.fakes.api import Api

SITE = "https://charts.example.org"


@pytest.fixture
def trusting(state: object, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Api]:
    def api(origins: str) -> Api:
        monkeypatch.setenv("KERNELWATCH_CORS_ORIGINS", origins)
        settings.cache_clear()
        return Api(app=create_app())

    return api


def test_a_list_links_to_its_next_page(state: object) -> None:
    target = world.target(name="norms")
    with transaction() as session:
        for number in range(5):
            world.run(session, world.commit(session, target.id, number))
    api, address = Api(), "/api/v1/runs?target=norms&state=queued&limit=2"
    sizes = []
    while address:
        answer = api.at(address)
        sizes.append(len(answer.json()["items"]))
        address = answer.links.get("next", {}).get("url", "")
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("path", ["/", "/runs/{}", "/api/v1/runs", "/api/v1/runs/{}", "/openapi.json"])
def test_no_cache_gives_to_one_what_another_may_see(get: Get, seeded: Seeded, path: str) -> None:
    answer = get(path.format(seeded.runs["slow"]))
    assert answer.headers["cache-control"] == "private, no-cache"
    assert {"Authorization", "Cookie"} <= set(answer.headers["vary"].split(", "))


def test_scripts_of_named_sites_read_what_is_public(trusting: Callable[[str], Api]) -> None:
    api = trusting(f'["{SITE}"]').with_key("admin")
    assert api.get("/targets", headers={"Origin": SITE}).headers["access-control-allow-origin"] == SITE
    assert "access-control-allow-origin" not in api.get("/targets", headers={"Origin": "https://evil.example"}).headers
    for asked in ({"method": "POST"}, {"method": "GET", "headers": "authorization"}):
        sent = {f"Access-Control-Request-{name}": value for name, value in asked.items()}
        assert api.request("OPTIONS", "/targets", headers={"Origin": SITE, **sent}).status_code == 400


def test_by_default_no_site_is_named(state: object) -> None:
    assert "access-control-allow-origin" not in Api().get("/targets", headers={"Origin": SITE}).headers


@pytest.mark.usefixtures("state")
def test_a_site_with_a_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWATCH_CORS_ORIGINS", f'["{SITE}/charts"]')
    with pytest.raises(ValidationError, match="cors_origins"):
        Settings()
