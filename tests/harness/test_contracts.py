"""The contracts of the forges find what a real forge would refuse, and what no forge answers."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.contracts import contract as contracts
from tests.fakes.contracts import webhooks
from tests.fakes.contracts.contract import contract
from tests.fakes.contracts.reduce import reduced, reduced_webhooks
from tests.fakes.github import BOT, Comment, FakeGitHub
from tests.fakes.gitlab import TOKEN, FakeGitLab

CHECKS, SHA, OLD = "/repos/acme/norms/check-runs", "a" * 40, "b" * 40
MERGE_REQUEST = "/api/v4/projects/acme%2Fnorms/merge_requests/7"
HEADERS = {
    "accept": "application/vnd.github+json",
    "x-github-api-version": "2022-11-28",
    "authorization": "token a-token",
}
GITLAB = {"authorization": f"Bearer {TOKEN}"}
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


COMMENTED = ("issue_comment", {"action": "created", "issue": {"number": 7}, "comment": {"id": 99, "body": "text"}})
WEBHOOKS = {
    "ping": ("ping", {"zen": "Keep it short."}),
    "push": ("push", webhooks.push(OLD, SHA)),
    "new branch": ("push", webhooks.push(webhooks.NO_COMMIT, SHA)),
    "pull request": ("pull_request", webhooks.pull_request(7, "opened", SHA, OLD)),
    "new base": ("pull_request", webhooks.pull_request(7, "edited", SHA, OLD)),
    "new head": ("pull_request", webhooks.pull_request(7, "synchronize", SHA, OLD, whose="stranger/norms")),
    "merge queue": ("merge_group", webhooks.merge_group("destroyed", SHA, OLD, reason="merged")),
    "comment": COMMENTED,
    "installation": ("installation", FakeGitHub().installation_event("deleted")),
    "repositories": ("installation_repositories", FakeGitHub().repositories_event("added", "acme/norms")),
    "all checks": ("check_suite", FakeGitHub().suite_event("acme/norms", SHA)),
}


@pytest.mark.parametrize(("event", "body"), WEBHOOKS.values(), ids=WEBHOOKS)
def test_a_body_that_github_sends_is_completed(event: str, body: dict[str, Any]) -> None:
    whole = contract("github_webhooks").webhook(event, body)
    assert whole.keys() >= body.keys()
    assert json.loads(webhooks.body_from_github(event, body)) == whole


@pytest.mark.parametrize(
    ("name", "field", "value", "why"),
    [
        ("ping", "filler", "x", "filler"),
        ("push", "ref", None, "ref"),
        ("push", "deleted", "no", "boolean"),
        ("push", "repository.full_name", 7, "string"),
        ("push", "repository.fullname", "acme/norms", "fullname"),
        ("push", "branch", "main", "branch"),
        ("pull request", "pull_request.base.repo.id", "7", "integer"),
        ("pull request", "pull_request.head.commit", SHA, "commit"),
        ("pull request", "pull_request.state", "merged", "merged"),
        ("pull request", "pull_request.updated_at", "2026-11-23 07:00:00 UTC", "date-time"),
        ("pull request", "changes", {}, "changes"),
        ("new base", "changes.base", {"ref": "main"}, "object"),
        ("new head", "pull_request.merged", "no", "boolean"),
        ("pull request", "action", "merged", "pull-request-merged is not a webhook"),
        ("merge queue", "reason", "finished", "finished"),
        ("comment", "comment.user", {"login": "ada", "type": "Person"}, "Person"),
        ("comment", "comment.text", "x", "text"),
        ("installation", "account", {"login": "acme"}, "account"),
        ("repositories", "repositories_added", {}, "array"),
        ("all checks", "check_suite.sha", SHA, "sha"),
    ],
)
def test_a_body_that_github_never_sends_is_found(name: str, field: str, value: Any, why: str) -> None:
    event, body = WEBHOOKS[name]
    with pytest.raises(AssertionError, match=why):
        contract("github_webhooks").webhook(event, _with(body, field, value))


def _hooks() -> dict[str, dict[str, Any]]:
    gitlab, project = FakeGitLab(), "acme/kernels/norms"
    gitlab.pull_is(project, 7, SHA, "main", None)
    note = gitlab.somebody_says(project, 7, "/kernelwatch run")
    return {
        "Push Hook": gitlab.push_event(project, "main", OLD, SHA),
        "Merge Request Hook": gitlab.pull_event(project, 7, "update", OLD),
        "Note Hook": gitlab.comment_event(note),
    }


@pytest.mark.parametrize("hook", ["Push Hook", "Merge Request Hook", "Note Hook"])
def test_a_body_that_gitlab_sends_is_completed(hook: str) -> None:
    body = _hooks()[hook]
    whole = contract("gitlab_webhooks").webhook(hook, body)
    assert whole.items() >= {"object_kind": body["object_kind"]}.items()
    assert whole["project"]["http_url"]


@pytest.mark.parametrize(
    ("hook", "field", "value", "why"),
    [
        ("Push Hook", "object_kind", "tag_push", "tag_push"),
        ("Push Hook", "user_id", "501", "integer"),
        ("Push Hook", "user", {"id": 501}, "user"),
        ("Push Hook", "project.full_path", "acme/norms", "full_path"),
        ("Push Hook", "project.visibility_level", "private", "private"),
        ("Merge Request Hook", "user.state", "active", "state"),
        ("Merge Request Hook", "object_attributes.action", "synchronize", "synchronize"),
        ("Merge Request Hook", "object_attributes.squash_commit_sha", SHA, "squash_commit_sha"),
        ("Merge Request Hook", "object_attributes.sha", SHA, "sha"),
        ("Merge Request Hook", "object_attributes.state", "open", "open"),
        ("Merge Request Hook", "object_attributes.target_project_id", None, "null"),
        ("Merge Request Hook", "changes.target_branch", "main", "object"),
        ("Note Hook", "object_attributes.confidential", True, "confidential"),
        ("Note Hook", "object_attributes.body", "text", "body"),
        ("Note Hook", "object_attributes.action", "delete", "delete"),
        ("Note Hook", "object_attributes.noteable_type", "merge_request", "merge_request"),
        ("Note Hook", "merge_request.squash_commit_sha", SHA, "squash_commit_sha"),
        ("Pipeline Hook", "object_kind", "pipeline", "Pipeline Hook is not a webhook"),
    ],
)
def test_a_body_that_gitlab_never_sends_is_found(hook: str, field: str, value: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        contract("gitlab_webhooks").webhook(hook, _with(_hooks().get(hook, {}), field, value))


def _with(body: Any, field: str, value: Any) -> Any:
    name, _, rest = field.partition(".")
    return {**body, name: _with(body.get(name, {}), rest, value) if rest else value}


@pytest.mark.parametrize("name", ["gitlab", "gitlab_webhooks"])
def test_what_is_written_by_hand_names_its_source(name: str) -> None:
    document = contract(name).document
    operations = {
        f"{method} {path}": one
        for path, methods in document.get("paths", {}).items()
        for method, one in methods.items()
    }
    unnamed = [
        part for part, one in {**operations, **document["components"]["schemas"]}.items() if "x-source" not in one
    ]
    assert unnamed == []


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


def _gitlab(notes: int = 0) -> FakeGitLab:
    gitlab = FakeGitLab("acme/norms")
    gitlab.pull_is("acme/norms", 7, SHA, "main", None)
    for _ in range(notes):
        gitlab.somebody_says("acme/norms", 7, "text")
    return gitlab


@pytest.mark.parametrize(
    ("notes", "page", "links", "total"),
    [
        (0, "1", {"first": "1", "last": "1"}, "0"),
        (200, "1", {"next": "2", "first": "1", "last": "2"}, "200"),
        (200, "2", {"prev": "1", "first": "1", "last": "2"}, "200"),
        (10_001, "2", {"prev": "1", "next": "3", "first": "1"}, None),
    ],
)
def test_pages_of_gitlab_are_linked_as_it_does(notes: int, page: str, links: dict[str, str], total: str | None) -> None:
    query = {"page": page, "per_page": "100"}
    answer = _gitlab(notes).answer("GET", f"{MERGE_REQUEST}/notes", query, GITLAB, {}, "https://gitlab.test/")
    found = re.findall(r"<https://gitlab\.test(\S+)\?page=(\d+)&per_page=100>; rel=\"(\w+)\"", answer.headers["link"])
    assert {name: number for path, number, name in found} == links
    assert {path for path, _, _ in found} == {f"{MERGE_REQUEST}/notes"}
    assert (answer.headers["x-next-page"], answer.headers["x-prev-page"]) == (
        links.get("next", ""),
        links.get("prev", ""),
    )
    assert answer.headers.get("x-total") == total


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [("text\n/close", 201, "body"), ("/close", 202, "commands_changes"), (" ", 400, "message")],
)
def test_a_note_without_text_is_no_note(body: str, status: int, said: str) -> None:
    gitlab = _gitlab()
    answer = gitlab.answer("POST", f"{MERGE_REQUEST}/notes", {}, GITLAB, {"body": body}, "https://gitlab.test/")
    assert (answer.status, said in answer.said) == (status, True)
    assert len(gitlab.notes) == (status == 201)
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


def test_the_reduced_webhooks_join_what_is_in_parts_and_share_what_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.contracts.reduce.WEBHOOKS", ("push",))
    monkeypatch.setattr("tests.fakes.contracts.reduce.SHARED_ABOVE", 20)
    person = {"type": "object", "description": "words", "properties": {"login": {"type": "string"}}}
    parts = [{"$ref": "#/components/schemas/named"}, {"required": ["a"], "properties": {"a": person, "b": person}}]
    pull = {"properties": {"head": {"properties": {"repo": {"type": "object"}}}}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/webhook-push"}}}}
    whole = {
        "info": {"version": "1"},
        "x-webhooks": {"push": {"post": {"requestBody": body}}},
        "components": {
            "schemas": {
                "named": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
                "pull-request-webhook": pull,
                "webhook-pull-request-synchronize": {"properties": {"pull_request": pull}},
                "webhook-push": {"allOf": parts},
            }
        },
    }
    made = reduced_webhooks(whole)
    push = made["components"]["schemas"]["webhook-push"]
    assert push["required"] == ["id", "a"]
    assert list(push["properties"]) == ["a", "b", "id"]
    assert push["additionalProperties"] is False
    assert push["properties"]["a"] == push["properties"]["b"]
    shared = push["properties"]["a"]["$ref"].rpartition("/")[2]
    assert made["components"]["schemas"][shared]["properties"] == {"login": {"type": "string"}}
    assert made["webhooks"]["push"]["post"]["requestBody"] == {"required": False, **body}
