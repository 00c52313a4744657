"""GitLab's webhook deliveries as the same events as GitHub's.  Pure: bytes in, an event out."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from service.errors import BadInput
from service.forge.events import (
    MAX_BRANCH,
    Commented,
    Event,
    Ignored,
    PullChanged,
    Pushed,
    branch_name,
    commit,
    identifier,
    moment,
    pull_number,
    text,
)

_PATH = re.compile(r"[\w.-]{1,100}(?:/[\w.-]{1,100}){1,20}", re.ASCII)
# GitLab's actions in GitHub's words.  `update` is anything from a label to a push; a push has `oldrev`.
_ACTIONS = {"open": "opened", "reopen": "reopened", "update": "synchronize", "close": "closed", "merge": "closed"}
# Changes that another target branch shows as: before 2024, GitLab named only that it checks anew whether it can merge.
_OF_BASE = frozenset({"target_branch", "merge_status"})
# Accounts that GitLab makes for the access tokens of projects and groups, and for service accounts.
_BOT = re.compile(r"(?:project|group)_[0-9]+_bot(?:_[0-9a-z]+)?|service_account_\w+", re.ASCII)


def parse(event: str, body: bytes) -> Event:
    """Read a delivery; `event` is from X-Gitlab-Event.  Raises BadInput when it is not what GitLab documents."""
    if (reader := _READERS.get(event)) is None:
        return Ignored(f"kernelwatch does not use {event!r} events")
    kind, read = reader
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("The body is not JSON: remove the custom template of the webhook.") from None
    try:
        if said["object_kind"] != kind:  # the header is not signed, and the body is
            found = text(said["object_kind"])[:40]
            raise BadInput(f"The body is a {found!r} event, and X-Gitlab-Event says {event!r}.")
        return read(said)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"The {event} is not as GitLab documents it: {type(error).__name__} {error}.") from None


def _push(said: dict[str, Any]) -> Event:
    kind, _, branch = text(said["ref"]).removeprefix("refs/").partition("/")
    if kind != "heads":
        return Ignored(f"{said['ref'][:MAX_BRANCH]} is not a branch")
    return Pushed(
        repository=_path(said["project"]),
        branch=branch_name(branch),
        before=commit(said["before"]),
        head=commit(said["after"]),  # all zeros where it was deleted
    )


def _merge_request(said: dict[str, Any]) -> Event:
    about = said["object_attributes"]
    number, written = pull_number(about["iid"]), text(about.get("action", ""))
    name = f"merge request !{number}"
    action = _ACTIONS.get(written)
    if action is None:
        return Ignored(f"{name}: {written[:40] or 'no action'}; its head did not change")
    if written == "update" and not about.get("oldrev") and _OF_BASE.isdisjoint(said.get("changes", ())):
        return Ignored(f"{name} was updated; neither its head nor its base changed")
    head = commit((about["last_commit"] or {}).get("id") or "0" * 40)
    if head is None:
        return Ignored(f"{name} has no commits")
    merged_as = _merged_as(about) if written == "merge" else None
    return PullChanged(
        repository=_path(said["project"]),
        number=number,
        action=action,
        head=head,
        base_ref=branch_name(text(about["target_branch"])),
        base_sha=None,
        fork=_is_fork(about),
        author=_author(said["user"], about),
        updated_at=_moment(about.get("updated_at")),
        merged_as=merged_as,
        merge_unnamed=written == "merge" and merged_as is None,
    )


def _note(said: dict[str, Any]) -> Event:
    """A note counts once, when it is written.  Before GitLab 16.11 there is no action, because edits are not sent."""
    note, author = said["object_attributes"], said["user"]
    action = text(note.get("action", "create"))
    if action != "create":
        return Ignored(f"a note was changed ({action[:40]}); only a new one can be a command")
    if note["noteable_type"] != "MergeRequest":
        return Ignored(f"the note is on a {str(note['noteable_type'])[:40]}, not on a merge request")
    if note.get("system") or note.get("internal") or note.get("confidential"):
        return Ignored("the note is GitLab's own, or internal")
    login = text(author["username"])
    if _BOT.fullmatch(login) or note["author_id"] != author["id"]:
        return Ignored("the note is not by a person")
    return Commented(
        repository=_path(said["project"]),
        number=pull_number(said["merge_request"]["iid"]),
        comment=identifier(note["id"]),
        author=login,
        author_id=identifier(author["id"]),
        line=text(note["note"]).partition("\n")[0].rstrip("\r"),
    )


_READERS: Mapping[str, tuple[str, Callable[[dict[str, Any]], Event]]] = {
    "Push Hook": ("push", _push),
    "Merge Request Hook": ("merge_request", _merge_request),
    "Note Hook": ("note", _note),
}


def _merged_as(about: dict[str, Any]) -> str | None:
    """The commit on the target branch.  A fast-forward makes none, and a squash may not be named."""
    named = about.get("merge_commit_sha") or about.get("squash_commit_sha")
    return commit(named) if named else None


def _is_fork(about: dict[str, Any]) -> bool:
    """A source project that was deleted is null: still a stranger's."""
    return about.get("source_project_id") is None or about["source_project_id"] != about["target_project_id"]


def _author(actor: dict[str, Any], about: dict[str, Any]) -> str:
    """The author's login, which GitLab says only where they did it themselves; empty elsewhere."""
    return text(actor["username"]) if actor.get("id") == about["author_id"] else ""


def _path(project: dict[str, Any]) -> str:
    path = text(project["path_with_namespace"])
    if not _PATH.fullmatch(path):
        raise BadInput(f"{path[:200]!r} is not the path of a project.")
    return path


def _moment(said: Any) -> float | None:
    """GitLab writes `2026-11-23T07:00:00Z`, and `2026-11-23 07:00:00 UTC` before 15.0."""
    return moment(said.replace(" UTC", "Z")) if isinstance(said, str) else None
