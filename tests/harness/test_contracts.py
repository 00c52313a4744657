"""The contracts of the forges find what a real forge would refuse, and what no forge answers."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.contracts import contract as contracts
from tests.fakes.contracts.contract import contract
from tests.fakes.contracts.reduce import reduced
from tests.fakes.github import BOT, Comment, FakeGitHub

CHECKS, SHA = "/repos/acme/norms/check-runs", "a" * 40
MERGE_REQUEST = "/api/v4/projects/acme%2Fnorms/merge_requests/7"
HEADERS = {
    "accept": "application/vnd.github+json",
    "x-github-api-version": "2022-11-28",
    "authorization": "token a-token",
}
LENGTHS = (0, 65_537, 65_536)  # of a comment
CHECK = {"name": "kernelwatch", "head_sha": SHA, "status": "queued"}


@pytest.fixture(autouse=True)
def _expected() -> Iterator[None]:
    """What these tests break on purpose is no fault of theirs."""
    yield
    contracts.BROKEN.clear()


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "why"),
    [
        ("POST", CHECKS, {}, {**CHECK, "sumary": "x"}, "sumary"),
        ("POST", CHECKS, {}, {"name": "kernelwatch"}, "head_sha"),
        ("POST", CHECKS, {}, {**CHECK, "status": "done"}, "done"),
        ("POST", CHECKS, {}, {**CHECK, "output": {"title": "t", "summary": "s" * 65_536}}, "65535"),
        ("POST", CHECKS, {}, {**CHECK, "actions": [{"label": "x" * 21, "description": "", "identifier": ""}]}, "20"),
        ("POST", CHECKS, {"draft": "1"}, CHECK, "unknown parameters"),
        ("GET", f"/repos/acme/norms/commits/{SHA}/check-runs", {"filter": "newest"}, {}, "newest"),
        ("GET", f"/repos/acme/norms/commits/{SHA}/check-runs", {"per_page": "all"}, {}, "per_page"),
        ("GET", "/repos/acme/norms/issues/first/comments", {}, {}, "issue_number"),
        ("GET", "/user", {}, {"name": "me"}, "takes no body"),
        ("DELETE", CHECKS, {}, {}, "not an operation"),
    ],
)
def test_a_request_that_github_does_not_know_is_found(
    method: str, path: str, query: dict[str, str], body: dict[str, Any], why: str
) -> None:
    with pytest.raises(AssertionError, match=why):
        contract("github").check_request(method, path, query, body)
    assert len(contracts.BROKEN) == 1


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "why"),
    [
        ("POST", f"{MERGE_REQUEST}/notes", {}, {"text": "x"}, "body"),
        ("POST", f"{MERGE_REQUEST}/notes", {}, {"body": "x" * 1_000_001}, "1000000"),
        ("GET", f"{MERGE_REQUEST}/notes", {"per_page": "101"}, {}, "100"),
        ("GET", f"{MERGE_REQUEST}/notes", {"activity_filter": "comments"}, {}, "only_comments"),
        ("POST", f"/api/v4/projects/7/statuses/{SHA}", {}, {"state": "failure"}, "failure"),
        ("POST", f"/api/v4/projects/7/statuses/{SHA}", {}, {"state": "failed", "description": "x" * 256}, "255"),
        ("GET", "/api/v4/projects/7/merge_requests/last", {}, {}, "merge_request_iid"),
    ],
)
def test_a_request_that_gitlab_does_not_know_is_found(
    method: str, path: str, query: dict[str, str], body: dict[str, Any], why: str
) -> None:
    with pytest.raises(AssertionError, match=why):
        contract("gitlab").check_request(method, path, query, body)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"updated_at": "2026-11-23 07:00:00 UTC"}, "date-time"),
        ({"state": "open"}, "open"),
        ({"last_commit": {"id": SHA}}, "last_commit"),
    ],
)
def test_what_gitlab_never_answers_is_found(said: dict[str, Any], why: str) -> None:
    assert contract("gitlab").answer("GET", MERGE_REQUEST, 200, {"iid": 7})["iid"] == 7
    with pytest.raises(AssertionError, match=why):
        contract("gitlab").answer("GET", MERGE_REQUEST, 200, said)


def test_an_answer_gets_the_fields_that_a_test_does_not_care_for() -> None:
    said = {"id": 7, "body": "text", "user": {"id": 1, "login": "ada", "type": "User"}}
    whole = contract("github").answer("GET", "/repos/acme/norms/issues/comments/7", 200, said)
    assert whole.items() >= {"id": 7, "body": "text"}.items()
    assert whole["user"].items() >= said["user"].items()  # type: ignore[attr-defined]
    assert {"html_url", "created_at", "issue_url"} <= whole.keys()
    assert contract("github").answer("GET", "/repos/acme/norms/issues/comments/7", 404, {"message": "Not Found"})


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (200, {"id": "7"}, "integer"),
        (200, {"id": 7, "text": "x"}, "text"),
        (200, {"id": 7, "user": {"login": "ada", "kind": "User"}}, "kind"),
        (200, {"id": 7, "created_at": "yesterday"}, "date-time"),
        (202, {"id": 7}, "not answered with 202"),
        (404, {"error": "Not Found"}, "error"),
    ],
)
def test_what_github_never_answers_is_found(status: int, said: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        contract("github").answer("GET", "/repos/acme/norms/issues/comments/7", status, said)


def test_a_server_in_between_may_answer_anything() -> None:
    assert contract("github").answer("GET", "/user", 502, "<html>") == "<html>"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/repos/acme/norms/issues/7/comments"), ("PATCH", "/repos/acme/norms/issues/comments/100")],
)
def test_github_refuses_a_comment_that_is_too_long(method: str, path: str) -> None:
    """A limit that the document does not name: the fake has it."""
    github = FakeGitHub()
    github.comments[100] = Comment(100, "acme/norms", 7, "short", BOT)
    with github.client() as http:
        statuses = [http.request(method, path, json={"body": "x" * n}, headers=HEADERS).status_code for n in LENGTHS]
    assert statuses == [422, 422, 200 if method == "PATCH" else 201]
    assert contracts.BROKEN == []


def test_an_answer_of_the_fake_is_checked_and_what_was_wrong_is_remembered() -> None:
    github = FakeGitHub()
    github.somebody_says("acme/norms", 7, "hello")
    next(iter(github.comments.values())).body = 5  # type: ignore[assignment]
    with github.client() as http, pytest.raises(AssertionError, match="5 is not of type"):
        http.get("/repos/acme/norms/issues/7/comments", headers=HEADERS)
    assert len(contracts.BROKEN) == 1


def test_the_reduced_document_has_no_texts_and_knows_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made again from a document of the same form, with one operation in place of all."""
    monkeypatch.setattr("tests.fakes.contracts.reduce.USED", ("get /app",))
    pull = {"properties": {"head": {"properties": {"repo": {"type": "object"}}}}}
    app = {"type": "object", "nullable": True, "description": "words", "properties": {"id": {"type": "integer"}}}
    answer = {"description": "words", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/app"}}}}
    whole = {
        "info": {"version": "1"},
        "paths": {"/app": {"get": {"summary": "words", "responses": {"200": answer}}}},
        "components": {"schemas": {"app": app, "basic-error": {}, "pull-request": pull}},
    }
    made = reduced(whole)
    assert "words" not in json.dumps(made)
    assert made["components"]["schemas"]["app"]["type"] == ["object", "null"]
    assert made["components"]["schemas"]["app"]["additionalProperties"] is False
    assert not re.search("nullable|description", json.dumps([made["paths"], made["components"]]))
