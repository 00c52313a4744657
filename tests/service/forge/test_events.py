"""GitHub's deliveries become a closed list of events; anything else says why not."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import BadInput
from service.forge.events import (
    CheckRequested,
    Commented,
    Event,
    Ignored,
    InstallationChanged,
    Pinged,
    PullChanged,
    Pushed,
    parse,
)
from tests.fakes.contracts import webhooks

A, B, NONE = "a" * 40, "b" * 40, "0" * 40
MONA = {"login": "mona", "id": 3, "type": "User"}
ENTERPRISE = {"id": 5, "name": "Octo", "slug": "octo"}
OF_ENTERPRISE = Ignored("the App's installation belongs to no owner of repositories")
REPOSITORY = {"full_name": "Octo/norms", "default_branch": "main"}


def push(**changes: Any) -> dict[str, Any]:
    return {"ref": "refs/heads/main", "before": A, "after": B, "deleted": False, "repository": REPOSITORY, **changes}


def pull_request(action: str = "opened", head_repository: Any = REPOSITORY, **changes: Any) -> dict[str, Any]:
    pull = {
        "head": {"sha": B, "ref": "quicker", "repo": head_repository},
        "base": {"sha": A, "ref": "main", "repo": REPOSITORY},
        "user": {"login": "mona"},
        "updated_at": "2026-11-23T07:00:00Z",
    }
    return {"action": action, "number": 7, "pull_request": pull, "repository": REPOSITORY, **changes}


def merged(merged: bool) -> dict[str, Any]:
    """GitHub names a trial merge as `merge_commit_sha` of what was not merged."""
    event = pull_request("closed")
    event["pull_request"] |= {"merged": merged, "merge_commit_sha": A}
    return event


def ghost() -> dict[str, Any]:
    """A new head of a pull request whose author's account was deleted."""
    event = pull_request("synchronize")
    event["pull_request"]["user"] = None
    return event


def issue_comment(action: str = "created", body: str = "/kernelwatch rerun", **changes: Any) -> dict[str, Any]:
    issue = {"number": 7, "pull_request": {"url": "https://api.github.com/repos/Octo/norms/pulls/7"}}
    comment = {"id": 99, "body": body, "user": MONA}
    return {"action": action, "issue": issue, "comment": comment, "repository": REPOSITORY, **changes}


def commented(line: str) -> Commented:
    return Commented("Octo/norms", 7, 99, "mona", 3, line)


def by(user: dict[str, Any] | None) -> dict[str, Any]:
    return issue_comment(comment={"id": 99, "body": "/kernelwatch rerun", "user": user})


def check_run(action: str = "rerequested", **changes: Any) -> dict[str, Any]:
    check = {"id": 41, "external_id": "kernelwatch", "head_sha": A, "name": "kernelwatch / norms / h200"}
    return {"action": action, "check_run": check, "repository": REPOSITORY, "sender": MONA, **changes}


def check_suite(action: str = "rerequested") -> dict[str, Any]:
    return {"action": action, "check_suite": {"id": 9, "head_sha": A}, "repository": REPOSITORY, "sender": MONA}


def installation(action: str, **changes: Any) -> dict[str, Any]:
    return {"action": action, "installation": {"id": 77, "account": {"login": "Octo"}}, **changes}


def opened(action: str = "opened", fork: bool = False) -> PullChanged:
    when = {"updated_at": 1795417200.0}
    return PullChanged("Octo/norms", 7, action, head=B, base_ref="main", base_sha=A, fork=fork, author="mona", **when)


@pytest.mark.parametrize(
    ("event", "said", "expected"),
    [
        ("ping", {"zen": "Design for failure."}, Pinged()),
        ("push", push(), Pushed("Octo/norms", "main", A, B)),
        ("push", push(ref="refs/heads/feature/one"), Pushed("Octo/norms", "feature/one", A, B)),
        ("push", push(before=NONE, created=True), Pushed("Octo/norms", "main", None, B)),
        ("push", push(after=NONE, deleted=True), Pushed("Octo/norms", "main", A, None)),
        ("push", push(ref="refs/tags/v1"), Ignored("refs/tags/v1 is not a branch")),
        ("pull_request", pull_request(), opened()),
        ("pull_request", pull_request("synchronize"), opened("synchronize")),
        ("pull_request", pull_request("reopened"), opened("reopened")),
        ("pull_request", pull_request("closed"), opened("closed")),
        ("pull_request", merged(True), replace(opened("closed"), merged_as=A)),
        ("pull_request", merged(False), opened("closed")),
        ("pull_request", pull_request(head_repository={"full_name": "mallory/norms"}), opened(fork=True)),
        ("pull_request", pull_request(head_repository={"full_name": "octo/Norms"}), opened(fork=False)),
        ("pull_request", pull_request(head_repository=None), opened(fork=True)),
        ("pull_request", ghost(), replace(opened("synchronize"), author="")),
        (
            "pull_request",
            pull_request("edited", changes={"base": {"ref": {"from": "next"}, "sha": {"from": B}}}),
            opened("edited"),
        ),
        (
            "pull_request",
            pull_request("edited", changes={"title": {"from": "Quicker"}}),
            Ignored("pull request 7 was edited; neither its head nor its base changed"),
        ),
        (
            "pull_request",
            pull_request("ready_for_review"),
            Ignored("pull request 7 was ready_for_review; neither its head nor its base changed"),
        ),
        ("issue_comment", issue_comment(), commented("/kernelwatch rerun")),
        ("issue_comment", issue_comment(body="/kernelwatch stop\r\nIt is hot."), commented("/kernelwatch stop")),
        ("issue_comment", issue_comment(body="thanks\n/kernelwatch stop"), commented("thanks")),
        ("issue_comment", issue_comment(body=""), commented("")),
        ("issue_comment", issue_comment("edited"), Ignored("a comment was edited; only a new one can be a command")),
        ("issue_comment", issue_comment("deleted"), Ignored("a comment was deleted; only a new one can be a command")),
        (
            "issue_comment",
            issue_comment(issue={"number": 7}),
            Ignored("the comment is on an issue, not on a pull request"),
        ),
        (
            "issue_comment",
            by({"login": "dependabot[bot]", "id": 4, "type": "Bot"}),
            Ignored("the comment is not by a person"),
        ),
        ("issue_comment", by(None), Ignored("the comment is not by a person")),
        ("issue_comment", by({"login": "mona", "id": 3}), Ignored("the comment is not by a person")),
        ("check_run", check_run(), CheckRequested("Octo/norms", 41, "rerun", "mona", 3)),
        (
            "check_run",
            check_run("requested_action", requested_action={"identifier": "bisect"}),
            CheckRequested("Octo/norms", 41, "bisect", "mona", 3),
        ),
        ("check_run", check_run("completed"), Ignored("a check was completed; only its buttons ask for something")),
        (
            "check_run",
            check_run(check_run={"id": 41, "external_id": ""}),
            Ignored("the check is not kernelwatch's"),
        ),
        (
            "check_suite",
            check_suite(),
            CheckRequested("Octo/norms", None, "rerun", "mona", 3, A),
        ),
        (
            "check_suite",
            check_suite("completed"),
            Ignored("the checks of a commit were completed; only their button asks for something"),
        ),
        ("installation", installation("created"), InstallationChanged("Octo", None, None)),
        (
            "installation",
            installation("new_permissions_accepted"),
            Ignored("the App's installation was changed (new_permissions_accepted); its repositories stay the same"),
        ),
        *[
            ("installation", {"action": "deleted", "installation": {"id": 77, "account": account}}, OF_ENTERPRISE)
            for account in (None, ENTERPRISE)
        ],
        (
            "installation_repositories",
            installation("added", repositories_added=[{"full_name": "Octo/norms"}], repositories_removed=[]),
            InstallationChanged("Octo", ("Octo/norms",), None),
        ),
    ],
)
def test_parse(event: str, said: dict[str, Any], expected: Event) -> None:
    assert parse(event, webhooks.body_from_github(event, said)) == expected


def test_an_event_that_kernelwatch_does_not_use_is_ignored() -> None:
    assert parse("star", b"{}") == Ignored("kernelwatch does not use 'star' events")


def test_a_deleted_branch_has_no_head() -> None:
    assert Pushed("octo/norms", "main", A, None).deleted


@pytest.mark.parametrize(
    ("event", "body", "why"),
    [
        ("push", b"payload=%7B%7D", "content type to application/json"),
        ("push", b"\xff\xfe", "content type to application/json"),
        ("push", b"[" * 100_000, "content type to application/json"),
        ("push", b"[]", "not as GitHub documents"),
        ("push", b"{}", "not as GitHub documents"),
        ("push", json.dumps(push(ref=None)).encode(), "not as GitHub documents"),
        ("push", json.dumps(push(ref="refs/heads/")).encode(), "branch's name"),
        ("push", json.dumps(push(after="--upload-pack=touch /tmp/x")).encode(), "is not a commit"),
        ("push", json.dumps(push(repository={"full_name": "../../etc"})).encode(), "is not owner/name"),
        ("pull_request", json.dumps(pull_request(number="7")).encode(), "not the number"),
        (
            "issue_comment",
            json.dumps(issue_comment(issue={"number": 0, "pull_request": {"url": ""}})).encode(),
            "number",
        ),
        ("issue_comment", json.dumps(by({"login": "mona", "id": True, "type": "User"})).encode(), "not as GitHub"),
        ("issue_comment", json.dumps(issue_comment(body=None)).encode(), "not as GitHub documents"),
        ("check_run", json.dumps(check_run(sender=None)).encode(), "not as GitHub documents"),
        ("installation", json.dumps({"action": "created"}).encode(), "not as GitHub documents"),
        (
            "installation",
            json.dumps({"action": "created", "installation": {"account": {"login": "a/b"}}}).encode(),
            "is not an account",
        ),
        ("pull_request", json.dumps(pull_request(pull_request=None)).encode(), "not as GitHub documents"),
    ],
)
def test_what_is_not_an_event_says_why(event: str, body: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse(event, body)


LEAVES = st.none() | st.booleans() | st.integers() | st.text("ab/0-", max_size=8)
KEYS = st.sampled_from(["sha", "full_name", "head", "repo"])
JSON = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(KEYS, LEAVES)


@given(st.sampled_from(["push", "pull_request"]), st.dictionaries(st.sampled_from([*push(), *pull_request()]), JSON))
def test_nothing_but_bad_input_is_raised(event: str, said: dict[str, Any]) -> None:
    with suppress(BadInput):
        parse(event, json.dumps({**push(), **pull_request(), **said}).encode())
