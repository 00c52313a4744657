"""A client that sends too many requests is refused for a while, and others are not."""

from collections.abc import Callable

import httpx
import pytest

from service.api.gateway.connections import server_options
from service.app import create_app
from service.errors import BadInput
from service.settings import settings
from tests.fakes.api import Api
from tests.fakes.processes import served


@pytest.fixture
def limited(state: object, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Api]:
    def to(rate: str) -> Api:
        monkeypatch.setenv("KERNELWATCH_RATE_LIMIT", rate)
        settings.cache_clear()
        return Api(app=create_app())

    return to


def test_beyond_the_rate_a_client_is_told_when_to_return(limited: Callable[[str], Api]) -> None:
    api = limited("3/hour")
    answers = [api.get("/targets") for _ in range(4)]
    assert [one.status_code for one in answers] == [200, 200, 200, 429]
    assert [one.headers["ratelimit-remaining"] for one in answers] == ["2", "1", "0", "0"]
    refused = answers[-1]
    assert refused.headers["ratelimit-policy"] == '"default";q=3;w=3600'
    assert refused.headers["ratelimit"] == f'"default";r=0;t={refused.headers["ratelimit-reset"]}'
    assert 0 < int(refused.headers["retry-after"]) <= 3600
    assert refused.headers["content-type"] == "application/problem+json"
    assert "More than 3 per 1 hour requests; try again in" in refused.json()["detail"]


def test_each_key_has_a_rate_of_its_own_and_pages_have_none(limited: Callable[[str], Api]) -> None:
    api = limited("3/hour")
    for one in (api.with_key("read"), api.with_key("read")):
        assert [one.get("/targets").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [api.get("/targets").status_code for _ in range(2)] == [200, 429]  # each new key counted here once
    assert {api.at(path).status_code for path in ("/", "/healthz", "/metrics")} == {200}


def test_keys_that_somebody_makes_up_count_for_their_address(limited: Callable[[str], Api]) -> None:
    api = limited("2/hour")
    guesses = [Api(f"kw_{number}", api.app).get("/targets").status_code for number in range(4)]
    assert guesses == [401, 401, 429, 429]
    assert Api("kw_4", api.app).get("/nothing").status_code == 429


@pytest.mark.parametrize(
    ("proxies", "statuses"), [("[]", [200, 429]), ('["127.0.0.1"]', [200, 200]), ('["10.0.0.0/8"]', [200, 429])]
)
def test_only_a_trusted_proxy_says_where_a_request_comes_from(
    limited: Callable[[str], Api], monkeypatch: pytest.MonkeyPatch, proxies: str, statuses: list[int]
) -> None:
    monkeypatch.setenv("KERNELWATCH_TRUSTED_PROXIES", proxies)
    with served(limited("1/hour").app, **server_options()) as address:
        said = [{"X-Forwarded-For": f"192.0.2.{number}"} for number in range(2)]
        assert [httpx.get(f"{address}/api/v1/targets", headers=one).status_code for one in said] == statuses


def test_without_a_rate_nothing_is_counted(limited: Callable[[str], Api]) -> None:
    assert "ratelimit-limit" not in limited("").get("/targets").headers


def test_a_rate_that_is_none_stops_the_server_with_a_sentence(limited: Callable[[str], Api]) -> None:
    with pytest.raises(BadInput, match="write 600/minute, 10/second, or nothing"):
        limited("many").get("/targets")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/targets", "GET, HEAD, POST"),
        ("/runs", "GET, HEAD, POST"),
        ("/keys", "GET, HEAD, POST"),
        ("/targets/norms", "GET, HEAD, PATCH, DELETE"),
        ("/queue", "GET, HEAD"),
        ("/runs/1/cancel", "POST"),
    ],
)
def test_a_wrong_method_names_all_that_are_possible(state: object, path: str, allowed: str) -> None:
    refused = Api().request("PUT", path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
