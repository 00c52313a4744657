"""Webhooks as a closed list of typed events, their fields checked as they are read.  Pure: bytes in, an event out.

They raise BadInput for a value that cannot be right, and TypeError for one of another type than the forge documents.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.errors import BadInput

MAX_BRANCH = 255
MAX_NUMBER = 2**31 - 1  # of a pull request
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def pull_number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_NUMBER:
        raise BadInput(f"{str(value)[:20]} is not the number of a pull request.")
    return value


def identifier(value: Any) -> int:
    """Of a comment, a person or a check."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise TypeError(f"an id expected, not {str(value)[:20]}")
    return value


def moment(value: Any) -> float | None:
    """Seconds since the epoch of an ISO 8601 time; None for anything else."""
    try:
        return datetime.fromisoformat(value).astimezone(UTC).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def commit(value: Any) -> str | None:
    """A full commit sha; None for all zeros, which mean "no commit"."""
    if not _SHA.fullmatch(text(value)):
        raise BadInput(f"{value[:80]!r} is not a commit.")
    return str(value) if value.strip("0") else None


def branch_name(name: str) -> str:
    if not name or len(name) > MAX_BRANCH:
        raise BadInput("A branch's name is empty or too long.")
    return name


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {type(value).__name__}")
    return value


_REPOSITORY = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}", re.ASCII)
_ACCOUNT = re.compile(r"[\w.-]{1,100}", re.ASCII)
_NEW_HEAD = frozenset({"opened", "reopened", "synchronize"})
REQUESTER = "kernelwatch"  # the external id of our checks


@dataclass(frozen=True)
class Pushed:
    """A branch moved.  `before` is None when it is new; `head` is None when it was deleted."""

    repository: str
    branch: str
    before: str | None
    head: str | None

    @property
    def deleted(self) -> bool:
        return self.head is None


@dataclass(frozen=True)
class PullChanged:
    """A pull request has a new head or base, or was closed (`action` is "closed").  A `fork` is any other repository.

    `merged_as` is the commit on the base branch, where it was closed by merging it.
    """

    repository: str
    number: int
    action: str
    head: str
    base_ref: str
    base_sha: str | None  # None where the forge does not say it
    fork: bool
    author: str
    updated_at: float | None = None  # by the forge's clock, in whole seconds
    merged_as: str | None = None
    merge_unnamed: bool = False  # it was merged, and only the forge itself can say as which commit


@dataclass(frozen=True)
class GroupChanged:
    """A merge queue put pull requests on top of `base`, and waits for checks of `head`; or it dropped that commit."""

    repository: str
    head: str
    base: str
    base_ref: str
    dropped: bool


@dataclass(frozen=True)
class Commented:
    """A person wrote a comment on a pull request; `line` is its first line, without its end."""

    repository: str
    number: int
    comment: int
    author: str
    author_id: int
    line: str


@dataclass(frozen=True)
class CheckRequested:
    """A person pressed a button of a check that kernelwatch wrote: `rerun`, or the identifier of another action.

    Without a `check` it is about all checks of the commit `sha`.
    """

    repository: str
    check: int | None
    action: str
    sender: str
    sender_id: int
    sha: str | None = None


@dataclass(frozen=True)
class InstallationChanged:
    """The GitHub App left repositories of an account (`why_gone` says how), or came to them.

    `repositories` is None for all of the account.
    """

    account: str
    repositories: tuple[str, ...] | None
    why_gone: str | None


@dataclass(frozen=True)
class Pinged:
    """The webhook was set up."""


@dataclass(frozen=True)
class Ignored:
    """Understood, and nothing to do."""

    why: str


Event = Pushed | PullChanged | GroupChanged | Commented | CheckRequested | InstallationChanged | Pinged | Ignored


def parse(event: str, body: bytes) -> Event:
    """Read a GitHub delivery.  Raises BadInput when it is not what GitHub documents."""
    if event == "ping":
        return Pinged()
    if (read := _READERS.get(event)) is None:
        return Ignored(f"kernelwatch does not use {event!r} events")
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("The body is not JSON: set the webhook's content type to application/json.") from None
    try:
        return read(payload)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"The {event} event is not as GitHub documents it: {type(error).__name__} {error}.") from None


def _push(payload: dict[str, Any]) -> Event:
    kind, _, branch = text(payload["ref"]).removeprefix("refs/").partition("/")
    if kind != "heads":
        return Ignored(f"{payload['ref'][:MAX_BRANCH]} is not a branch")
    return Pushed(
        repository=_repository(payload["repository"]),
        branch=branch_name(branch),
        before=commit(payload["before"]),
        head=None if payload.get("deleted") else commit(payload["after"]),
    )


def _pull_request(payload: dict[str, Any]) -> Event:
    number, action, pull = pull_number(payload["number"]), text(payload["action"]), payload["pull_request"]
    new_base = action == "edited" and "base" in payload["changes"]  # else it was its title or its text
    if action not in _NEW_HEAD and action != "closed" and not new_base:
        return Ignored(f"pull request {number} was {action[:40]}; neither its head nor its base changed")
    head, base = commit(pull["head"]["sha"]), commit(pull["base"]["sha"])
    if head is None or base is None:
        raise BadInput(f"Pull request {number} has no head or no base.")
    repository = _repository(payload["repository"])
    return PullChanged(
        repository=repository,
        number=number,
        action=action,
        head=head,
        base_ref=branch_name(text(pull["base"]["ref"])),
        base_sha=base,
        fork=_is_fork(pull["head"].get("repo"), repository),
        author=text(pull["user"]["login"]) if pull["user"] else "",  # their account may be deleted
        updated_at=moment(pull.get("updated_at")),
        merged_as=commit(pull["merge_commit_sha"]) if action == "closed" and pull.get("merged") is True else None,
    )


def _merge_group(payload: dict[str, Any]) -> Event:
    action, group = text(payload["action"]), payload["merge_group"]
    if action not in ("checks_requested", "destroyed"):
        return Ignored(f"a group of the merge queue was {action[:40]}")
    if action == "destroyed" and payload.get("reason") == "merged":
        return Ignored("a group of the merge queue was merged")
    head, base = commit(group["head_sha"]), commit(group["base_sha"])
    if head is None or base is None:
        raise BadInput("The group of the merge queue has no head or no base.")
    return GroupChanged(
        repository=_repository(payload["repository"]),
        head=head,
        base=base,
        base_ref=branch_name(text(group["base_ref"]).removeprefix("refs/heads/")),
        dropped=action == "destroyed",
    )


def _issue_comment(payload: dict[str, Any]) -> Event:
    """A comment counts once, when it is written: neither an edit nor a deletion commands anything."""
    action, comment, issue = text(payload["action"]), payload["comment"], payload["issue"]
    if action != "created":
        return Ignored(f"a comment was {action[:40]}; only a new one can be a command")
    if not issue.get("pull_request"):
        return Ignored("the comment is on an issue, not on a pull request")
    author = comment["user"]
    if author is None or author.get("type") != "User":
        return Ignored("the comment is not by a person")
    return Commented(
        repository=_repository(payload["repository"]),
        number=pull_number(issue["number"]),
        comment=identifier(comment["id"]),
        author=text(author["login"]),
        author_id=identifier(author["id"]),
        line=text(comment["body"]).partition("\n")[0].rstrip("\r"),
    )


def _check_run(payload: dict[str, Any]) -> Event:
    action, check, sender = text(payload["action"]), payload["check_run"], payload["sender"]
    if action not in ("rerequested", "requested_action"):
        return Ignored(f"a check was {action[:40]}; only its buttons ask for something")
    if check.get("external_id") != REQUESTER:
        return Ignored("the check is not kernelwatch's")
    if sender["type"] != "User":
        return Ignored("the button was not pressed by a person")
    return CheckRequested(
        repository=_repository(payload["repository"]),
        check=identifier(check["id"]),
        action="rerun" if action == "rerequested" else text(payload["requested_action"]["identifier"])[:40],
        sender=text(sender["login"]),
        sender_id=identifier(sender["id"]),
    )


def _check_suite(payload: dict[str, Any]) -> Event:
    """GitHub sends "Re-run all checks" to the App alone that wrote them."""
    action, sender = text(payload["action"]), payload["sender"]
    if action != "rerequested":
        return Ignored(f"the checks of a commit were {action[:40]}; only their button asks for something")
    if sender["type"] != "User":
        return Ignored("the button was not pressed by a person")
    return CheckRequested(
        repository=_repository(payload["repository"]),
        check=None,
        action="rerun",
        sender=text(sender["login"]),
        sender_id=identifier(sender["id"]),
        sha=commit(payload["check_suite"]["head_sha"]),
    )


_GONE = {"deleted": "was uninstalled from", "suspend": "is suspended for"}
_NO_OWNER = "the App's installation belongs to no owner of repositories"
_BACK = frozenset({"created", "unsuspend"})


def _installation(payload: dict[str, Any]) -> Event:
    action, account = text(payload["action"]), _account(payload["installation"])
    if account is None:
        return Ignored(_NO_OWNER)
    if action in _BACK:
        return InstallationChanged(account, None, None)
    if action not in _GONE:
        return Ignored(f"the App's installation was changed ({action[:40]}); its repositories stay the same")
    why = f"The GitHub App {_GONE[action]} {account}; install it again, or resume it, in the settings of {account}."
    return InstallationChanged(account, None, why)


def _installation_repositories(payload: dict[str, Any]) -> Event:
    """GitHub sends one of the two lists empty."""
    account = _account(payload["installation"])
    if account is None:
        return Ignored(_NO_OWNER)
    if added := tuple(map(_repository, payload["repositories_added"])):
        return InstallationChanged(account, added, None)
    removed = tuple(map(_repository, payload["repositories_removed"]))
    why = f"The GitHub App was removed from this repository; add it again in the settings of {account}."
    return InstallationChanged(account, removed, why)


def _account(installation: dict[str, Any]) -> str | None:
    """The owner of the repositories; None for an enterprise, which has no login, or an account that was deleted."""
    account = installation["account"]
    if account is None or "login" not in account:
        return None
    name = text(account["login"])
    if not _ACCOUNT.fullmatch(name):
        raise BadInput(f"{name[:200]!r} is not an account.")
    return name


_READERS: Mapping[str, Callable[[dict[str, Any]], Event]] = {
    "push": _push,
    "pull_request": _pull_request,
    "merge_group": _merge_group,
    "issue_comment": _issue_comment,
    "check_run": _check_run,
    "check_suite": _check_suite,
    "installation": _installation,
    "installation_repositories": _installation_repositories,
}


def _is_fork(head: dict[str, Any] | None, repository: str) -> bool:
    """A fork that was deleted meanwhile is null: still a stranger's."""
    return head is None or _repository(head).lower() != repository.lower()


def _repository(repository: dict[str, Any]) -> str:
    name = text(repository["full_name"])
    if not _REPOSITORY.fullmatch(name):
        raise BadInput(f"{name[:200]!r} is not owner/name.")
    return name
