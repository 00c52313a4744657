"""Repetitions, ETags and problem documents, with a server that answers as it was told."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import pytest

from kernelwatch.client import (
    ApiError,
    BadArgument,
    Client,
    Conflict,
    NotAllowed,
    NotAServer,
    NoValidKey,
    RateLimited,
    Retries,
    Unavailable,
    Unreachable,
    models,
)
from kernelwatch.client.calls import Call
from kernelwatch.client.exchange import (
    MAX_REMEMBERED,
    MAX_REMEMBERED_BYTES,
    Answer,
    Exchange,
    Lost,
    Reply,
    Send,
    Sleep,
    retry_after_s,
)

Say = Callable[..., httpx.Response]
TARGETS = {"items": [], "next": None}
SOON = Retries(attempts=3, first_wait_s=0.001)


class Scripted:
    """A server with a list of answers; it keeps the requests."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers: Iterator[httpx.Response | Exception] = iter(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, key: str | None = None, retries: Retries = SOON) -> Client:
        return Client("https://watch.example/api/", key, retries=retries, transport=httpx.MockTransport(self))


def ok(**headers: str) -> httpx.Response:
    return httpx.Response(200, json=TARGETS, headers=headers)


def refused(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"detail": f"no: {status}"}, headers=headers)


def test_the_key_is_sent_as_a_bearer_token_below_the_path_of_the_server() -> None:
    server = Scripted(ok())
    list(server.client("kw_secret").targets.list())
    [request] = server.requests
    assert request.headers["authorization"] == "Bearer kw_secret"
    assert str(request.url) == "https://watch.example/api/api/v1/targets?limit=100"


@pytest.mark.parametrize("key", ["kw_secret\n", "kw_secret\r\n", "  kw_secret\t"])
def test_white_space_around_the_key_is_left_out(key: str) -> None:
    server = Scripted(ok())
    list(server.client(key).targets.list())
    assert server.requests[0].headers["authorization"] == "Bearer kw_secret"


@pytest.mark.parametrize(
    "key", ["", "\n", "kw_secret\nkw_secret", "kw_secr\ret", "kw secret", "kw_s\0cret", "kw_sécret"]
)
def test_a_wrong_key_is_refused_without_being_quoted(key: str) -> None:
    with pytest.raises(BadArgument, match=r"^The API key is empty, or has a character") as found:
        Scripted().client(key)
    assert not key.strip() or "kw" not in str(found.value)


@pytest.mark.parametrize("key", ["jöb", "job\n", " job", "job\r\nx: y"])
def test_an_idempotency_key_that_is_no_header_is_refused(key: str) -> None:
    with pytest.raises(BadArgument, match="is no idempotency key"):
        Scripted().client().runs.start("norms", "main", idempotency_key=key)


@pytest.mark.parametrize(
    "first", [refused(429), refused(503, **{"retry-after": "0"}), refused(502), httpx.ConnectError("the cable was cut")]
)
def test_a_request_is_repeated(first: httpx.Response | Exception) -> None:
    server = Scripted(first, ok())
    assert list(server.client().targets.list()) == []
    assert len(server.requests) == 2


def test_repetition_has_an_end() -> None:
    with pytest.raises(Unavailable, match="no: 503"):
        list(Scripted(*[refused(503)] * 3).client().targets.list())
    with pytest.raises(Unreachable, match="the cable was cut"):
        list(Scripted(*[httpx.ReadError("the cable was cut")] * 3).client().targets.list())


def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("kernelwatch.client.drivers.time.sleep", slept.append)
    with pytest.raises(RateLimited) as found:
        list(Scripted(refused(429, **{"retry-after": "3600"})).client().targets.list())
    assert found.value.retry_after_s == 3600
    assert slept == []


def steps(exchange: Exchange, call: Call[bytes], *replies: Reply) -> list[Send | Sleep]:
    """What a call yields if it is answered so."""
    flow, found = exchange.result(call), list[Send | Sleep]()
    found.append(next(flow))
    for reply in replies:
        found.append(flow.send(reply))
        if isinstance(found[-1], Sleep):
            found.append(flow.send(None))
    return found


def test_a_lost_post_is_repeated_with_the_same_idempotency_key() -> None:
    first, _, second = steps(Exchange(), Call("POST", "/runs", bytes, fields={"a": 1}), Lost("cut"))
    assert isinstance(first, Send)
    assert first == second
    assert len(first.headers["idempotency-key"]) == 32
    other, *_ = steps(Exchange(), Call("POST", "/runs", bytes, fields={"a": 1}))
    assert other != first


def test_a_lost_post_that_is_still_handled_is_waited_for() -> None:
    handled = Answer(409, {"retry-after": "2"}, b"")
    call = Call("POST", "/targets", bytes, fields={})
    waits = [
        step.seconds for step in steps(Exchange(), call, Lost("timed out"), *[handled] * 6) if isinstance(step, Sleep)
    ]
    assert waits[1:] == pytest.approx([2.0, 2.0, 2.0, 2.0, 2.0, 2.5])
    with pytest.raises(Conflict):
        steps(Exchange(retries=Retries(max_handling_s=5.0)), call, *[handled] * 4)


def test_what_the_server_says_of_another_server_is_not_repeated() -> None:
    """502: a repository does not answer.  Asking again at once would take as long."""
    kind = {"content-type": "application/problem+json"}
    server = Scripted(httpx.Response(502, json={"detail": "github.com does not answer."}, headers=kind))
    with pytest.raises(ApiError, match=r"github\.com does not answer"):
        server.client().targets.get("norms")


def test_a_lost_post_whose_answer_is_a_secret_is_not_repeated() -> None:
    with pytest.raises(Unreachable, match="cut"):
        steps(Exchange(), Call("POST", "/keys", bytes, fields={}, secret=True), Lost("cut"))


def test_a_lost_patch_is_not_repeated() -> None:
    with pytest.raises(Unreachable, match="cut"):
        steps(Exchange(), Call("PATCH", "/targets/a", bytes, fields={}), Lost("cut"))


def test_waits_grow_and_are_never_shorter_than_the_server_asks() -> None:
    retries = Retries(first_wait_s=0.5)
    assert [0.5 * 2**n <= retries.wait_s(n + 1, None) <= 0.63 * 2**n for n in range(4)] == [True] * 4
    assert 9.0 <= retries.wait_s(1, 9.0) <= 11.25


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("", None), ("soon", None), ("-1", None), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0)],
)
def test_retry_after(text: str, seconds: float | None) -> None:
    assert retry_after_s({"retry-after": text}) == seconds


def test_an_unchanged_document_is_not_sent_again() -> None:
    server = Scripted(ok(etag='"one"'), httpx.Response(304), ok(etag='"two"'), ok())
    client = server.client()
    pages = [client.targets.list().page() for _ in range(4)]
    assert [request.headers.get("if-none-match") for request in server.requests] == [None, '"one"', '"one"', '"two"']
    assert pages[0] == pages[1]


def test_only_the_newest_documents_are_remembered_and_no_long_one() -> None:
    """A client that runs for months does not keep every document that it ever read."""
    etags: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        etags.append(request.headers.get("if-none-match"))
        if etags[-1]:
            return httpx.Response(304)
        long = request.url.params["name"] == "long"
        return httpx.Response(200, content=b" " * (MAX_REMEMBERED_BYTES + 1 if long else 2), headers={"etag": '"e"'})

    exchange = Exchange()

    def get(name: str) -> str | None:
        flow = exchange.answer(Send("GET", "/targets", {"name": name}, {}, None))
        response = answer(
            httpx.Request("GET", "https://watch.example", params={"name": name}, headers=next(flow).headers)
        )
        with suppress(StopIteration):
            flow.send(Answer(response.status_code, dict(response.headers), response.content))
        return etags[-1]

    names = [str(n) for n in range(MAX_REMEMBERED + 1)]
    assert [get(name) for name in names] == [None] * len(names)
    assert [get(names[-1]), get(names[1])] == ['"e"', '"e"']
    assert get(names[0]) is None, "the oldest made room for the newest"
    assert [get("long"), get("long")] == [None, None]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, NoValidKey), (403, NotAllowed), (409, Conflict), (418, ApiError), (500, ApiError)],
)
def test_problem_details_become_exceptions(status: int, kind: type[ApiError]) -> None:
    members = {
        "type": "about:blank",
        "title": "No.",
        "status": status,
        "detail": "The key has no scope run:norms; make one with `kernelwatch key create --scope run:norms`.",
        "instance": "/api/v1/targets",
    }
    body = json.dumps(members).encode()
    server = Scripted(httpx.Response(status, content=body, headers={"content-type": "application/problem+json"}))
    with pytest.raises(ApiError) as found:
        server.client().targets.get("norms")
    assert type(found.value) is kind
    assert str(found.value) == found.value.detail == members["detail"]
    assert (found.value.status, found.value.title, found.value.instance) == (status, "No.", "/api/v1/targets")


def test_an_error_page_of_a_proxy_is_not_shown() -> None:
    server = Scripted(httpx.Response(500, html="<html>nginx</html>"))
    with pytest.raises(ApiError, match=r"^The server answered GET /targets/a with 500 and no explanation\.$"):
        server.client().targets.get("a")


@pytest.mark.parametrize("body", [b"<html>Welcome</html>", b"{}", b"\xff"])
def test_something_else_at_the_address_is_reported(body: bytes) -> None:
    with pytest.raises(NotAServer, match="check the address"):
        Scripted(httpx.Response(200, content=body)).client().targets.get("a")


def test_fields_and_values_of_a_newer_server_are_kept() -> None:
    me = {"kind": "robot", "name": "CI", "scopes": [], "csrf_token": None, "mood": "fine"}
    found = Scripted(httpx.Response(200, json=me)).client().me.get()
    assert (found.kind, found.model_dump()["mood"]) == ("robot", "fine")


def test_a_finding_is_read_as_it_is_written() -> None:
    """The server validates it from objects whose attributes have other names."""
    source = {"file": "norms/rms.py", "line": 9, "first_line": 8, "last_line": 30, "changed": [9, 12], "owner": "ada"}
    change = {"text": "spills 0 → 50", "where": "rms", "cases": 1, "worse": None}
    found = {"source": source, "kernel": None, "arch": "sm_90a", "changes": [change], "broken": False}
    assert models.KernelFindingsItem.model_validate_json(json.dumps(found)).model_dump(mode="json") == found
