"""Webhooks as the forges send them: whole bodies, in signed requests."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from tests.fakes.contracts.contract import contract

REPOSITORY = "acme/norms"
NO_COMMIT = "0" * 40
HOOKS = {"push": "Push Hook", "merge_request": "Merge Request Hook", "note": "Note Hook"}  # of GitLab


def body_from_github(event: str, body: Mapping[str, Any]) -> bytes:
    """With every field that GitHub's has.  Raises AssertionError for a body that GitHub never sends."""
    return json.dumps(contract("github_webhooks").webhook(event, body)).encode()


def from_github(event: str, body: Mapping[str, Any], *, guid: str, secret: str) -> dict[str, Any]:
    """The content and the headers of a delivery.  Raises AssertionError for a body that GitHub never sends."""
    content = body_from_github(event, body)
    headers = {
        "x-github-event": event,
        "x-github-delivery": guid,
        "x-hub-signature-256": "sha256=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest(),
        "content-type": "application/json",
    }
    return {"content": content, "headers": headers}


def body_from_gitlab(hook: str, body: Mapping[str, Any]) -> bytes:
    """With every field that GitLab's has.  Raises AssertionError for a body that GitLab never sends."""
    return json.dumps(contract("gitlab_webhooks").webhook(hook, body)).encode()


def from_gitlab(event: str, body: Mapping[str, Any], *, attempt: str, key: str, token: str) -> dict[str, Any]:
    """The content and the headers of a delivery.  Raises AssertionError for a body that GitLab never sends."""
    hook = HOOKS[event]
    headers = {
        "x-gitlab-event": hook,
        "x-gitlab-token": token,
        "x-gitlab-event-uuid": "one-request-of-a-person-may-have-many",
        "x-gitlab-webhook-uuid": attempt,
        "idempotency-key": key,
        "content-type": "application/json",
    }
    return {"content": body_from_gitlab(hook, body), "headers": headers}


def push(before: str, after: str, *, branch: str = "main", repository: str = REPOSITORY) -> dict[str, Any]:
    """GitHub's body of a push."""
    ref = {"ref": f"refs/heads/{branch}", "before": before, "after": after, "deleted": after == NO_COMMIT}
    return {**ref, "repository": {"full_name": repository}}


def pull_request(
    number: int, action: str, head: str, base: str, *, onto: str = "main", whose: str = REPOSITORY, **more: Any
) -> dict[str, Any]:
    """GitHub's body about a pull request, whose head is in the repository `whose`."""
    pull = {
        "number": number,
        "head": {"sha": head, "ref": f"pull-{number}", "repo": {"full_name": whose}},
        "base": {"sha": base, "ref": onto, "repo": {"full_name": REPOSITORY}},
        "user": {"login": "ada"},
        **more,
    }
    changes = {"changes": {"base": {"ref": {"from": "another"}, "sha": {"from": base}}}} if action == "edited" else {}
    repository = {"full_name": REPOSITORY}
    return {"action": action, "number": number, "pull_request": pull, "repository": repository, **changes}


def merge_group(action: str, head: str, base: str, *, onto: str = "main", **more: Any) -> dict[str, Any]:
    """GitHub's body about a group of a merge queue."""
    group = {
        "head_sha": head,
        "head_ref": f"refs/heads/gh-readonly-queue/{onto}/pr-7-{base}",
        "base_sha": base,
        "base_ref": f"refs/heads/{onto}",
    }
    return {"action": action, "merge_group": group, "repository": {"full_name": REPOSITORY}, **more}
