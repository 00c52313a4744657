"""The GitLab client, and GitLab's webhook deliveries as the same events as GitHub's.

The client edits one note in place, and sets one commit status for each check.  It never repeats a POST unseen.  The
requests are a dozen of plain REST, so httpx is all they need: python-gitlab adds an object for each endpoint, and its
retries would post twice.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import httpx

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
from service.forge.forge import MIN_LIMIT_S, SHUT_OUT_S, CheckRun, Forge, ForgeFailed, PullHead, fitting
from service.settings import settings

_PATH = re.compile(r"[\w.-]{1,100}(?:/[\w.-]{1,100}){1,20}", re.ASCII)
# GitLab's actions in GitHub's words.  `update` is anything from a label to a push; a push has `oldrev`.
_ACTIONS = {"open": "opened", "reopen": "reopened", "update": "synchronize", "close": "closed", "merge": "closed"}
# Changes that another target branch shows as: before 2024, GitLab named only that it checks anew whether it can merge.
_OF_BASE = frozenset({"target_branch", "merge_status"})
# Accounts that GitLab makes for the access tokens of projects and groups, and for service accounts.
_BOT = re.compile(r"(?:project|group)_[0-9]+_bot(?:_[0-9a-z]+)?|service_account_\w+", re.ASCII)
_MAX_DESCRIPTION = 255  # of a commit status
_PAGES = 30
_TIMEOUT = httpx.Timeout(20.0, connect=10.0)
_GONE = 404
_EMOJI = {"eyes": "eyes", "+1": "thumbsup", "confused": "confused"}
_OPEN = ("opened", "locked")  # a merge request is locked for the moment of its merge
# GitLab carries out `/close` and the like at the beginning of a line, wherever in a note, with our permissions.
_QUICK_ACTION = re.compile(r"(?m)^([ \t]*)/(?=\w+(?:\s|$))")
_NO_PROJECT = "Project Not Found"
_SAME_STATE = "Cannot transition status"
_AWARDED = "already been taken"


def parse(event: str, body: bytes) -> Event:
    """Read a delivery; `event` is from X-Gitlab-Event.  Raises BadInput when it is not what GitLab documents."""
    if (reader := _READERS.get(event)) is None:
        return Ignored(f"kernelwatch does not use {event!r} events")
    kind, read = reader
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("The body is not JSON: remove the custom template of the webhook.") from None
    try:
        if payload["object_kind"] != kind:  # the header is not signed, and the body is
            found = text(payload["object_kind"])[:40]
            raise BadInput(f"The body is a {found!r} event, and X-Gitlab-Event says {event!r}.")
        return read(payload)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"The {event} is not as GitLab documents it: {type(error).__name__} {error}.") from None


def _push(payload: dict[str, Any]) -> Event:
    kind, _, branch = text(payload["ref"]).removeprefix("refs/").partition("/")
    if kind != "heads":
        return Ignored(f"{payload['ref'][:MAX_BRANCH]} is not a branch")
    return Pushed(
        repository=_path(payload["project"]),
        branch=branch_name(branch),
        before=commit(payload["before"]),
        head=commit(payload["after"]),  # all zeros where it was deleted
    )


def _merge_request_event(payload: dict[str, Any]) -> Event:
    about = payload["object_attributes"]
    number, written = pull_number(about["iid"]), text(about.get("action", ""))
    name = f"merge request !{number}"
    action = _ACTIONS.get(written)
    if action is None:
        return Ignored(f"{name}: {written[:40] or 'no action'}; its head did not change")
    if written == "update" and not about.get("oldrev") and _OF_BASE.isdisjoint(payload.get("changes", ())):
        return Ignored(f"{name} was updated; neither its head nor its base changed")
    head = commit((about["last_commit"] or {}).get("id") or "0" * 40)
    if head is None:
        return Ignored(f"{name} has no commits")
    merged_as = _merged_as(about) if written == "merge" else None
    return PullChanged(
        repository=_path(payload["project"]),
        number=number,
        action=action,
        head=head,
        base_ref=branch_name(text(about["target_branch"])),
        base_sha=None,
        fork=_comes_from_fork(about),
        author=_author(payload["user"], about),
        updated_at=_moment(about.get("updated_at")),
        merged_as=merged_as,
        merge_unnamed=written == "merge" and merged_as is None,
    )


def _note(payload: dict[str, Any]) -> Event:
    """A note counts once, when it is written.  Before GitLab 16.11 there is no action, because edits are not sent."""
    note, author = payload["object_attributes"], payload["user"]
    action = text(note.get("action", "create"))
    if action != "create":
        return Ignored(f"a note was changed ({action[:40]}); only a new one can be a command")
    if note["noteable_type"] != "MergeRequest":
        return Ignored(f"the note is on a {str(note['noteable_type'])[:40]}, not on a merge request")
    if note.get("system") or note.get("internal"):
        return Ignored("the note is GitLab's own, or internal")
    login = text(author["username"])
    if _BOT.fullmatch(login) or note["author_id"] != author["id"]:
        return Ignored("the note is not by a person")
    return Commented(
        repository=_path(payload["project"]),
        number=pull_number(payload["merge_request"]["iid"]),
        comment=identifier(note["id"]),
        author=login,
        author_id=identifier(author["id"]),
        line=text(note["note"]).partition("\n")[0].rstrip("\r"),
    )


_READERS: Mapping[str, tuple[str, Callable[[dict[str, Any]], Event]]] = {
    "Push Hook": ("push", _push),
    "Merge Request Hook": ("merge_request", _merge_request_event),
    "Note Hook": ("note", _note),
}


def _merged_as(about: dict[str, Any]) -> str | None:
    """The commit of the merge on the target branch.  A fast-forward makes none, and a squash is not named."""
    named = about.get("merge_commit_sha")
    return commit(named) if named else None


def _comes_from_fork(about: dict[str, Any]) -> bool:
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


def _moment(value: Any) -> float | None:
    """GitLab writes `2026-11-23T07:00:00Z`, and `2026-11-23 07:00:00 UTC` before 15.0."""
    return moment(value.replace(" UTC", "Z")) if isinstance(value, str) else None


class GitLab(Forge):
    """Client that writes to GitLab.

    Threads may share it.  Two of them must not write the same comment or check at the same time: neither would find
    what the other posts, and both would post.
    """

    def __init__(
        self,
        token: str,
        http: httpx.Client,
        *,
        pause_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._token, self._http = token, http
        self._pause_s, self._sleep, self._clock = pause_s, sleep, clock
        self._own: dict[str, Any] | None = None
        self._writing = threading.Lock()
        self._wrote_at = float("-inf")

    def upsert_comment(self, repo: str, number: int, marker: str, body: str, known_id: str | None = None) -> str:
        body = _without_actions(fitting(body if marker in body else f"{marker}\n{body}", "kernelwatch's limit"))
        notes = f"{_merge_request(repo, number)}/notes"
        for note in (known_id, None):
            note_id = note or self._note_with(notes, repo, marker)
            if note_id is None:
                break
            try:
                self._ask("PUT", f"{notes}/{note_id}", repo, {"body": body})
            except ForgeFailed as failure:
                if failure.code != _GONE or note is None:
                    raise
            else:
                return note_id
        return str(self._ask("POST", notes, repo, {"body": body})["id"])

    def put_check(self, repo: str, check: CheckRun, known_id: str | None = None) -> str:  # noqa: ARG002
        """See Forge.  It is a commit status: an external job of the commit's pipeline.

        GitLab refuses some transitions, as from pending to pending.  Where the status says all of it already, that is
        fine; else the old job is cancelled, because a new one may have any state.
        """
        path, state = f"/projects/{_id(repo)}/statuses/{check.sha}", _state(check)
        said = {
            "state": state,
            "name": check.name,
            "description": check.title[:_MAX_DESCRIPTION],
            **({"target_url": check.url} if check.url else {}),
            **self._ref(repo, check),
        }
        try:
            return f"status:{self._ask('POST', path, repo, said)['id']}"
        except ForgeFailed as failure:
            if _SAME_STATE not in str(failure):
                raise
        for status in self._every(f"/projects/{_id(repo)}/repository/commits/{check.sha}/statuses", repo):
            same = (status["status"], status.get("description")) == (said["state"], said["description"])
            if status["name"] == check.name and status.get("ref") == said.get("ref", status.get("ref")) and same:
                return f"status:{status['id']}"
        self._ask("POST", path, repo, {**said, "state": "canceled"})
        return f"status:{self._ask('POST', path, repo, said)['id']}"

    def permission(self, repo: str, login: str, user_id: int) -> str:  # noqa: ARG002
        """See Forge.  Only members have one, of the project itself, its groups or an invited group."""
        try:
            member = self._get(f"/projects/{_id(repo)}/members/all/{user_id}", repo)
        except ForgeFailed as failure:
            if failure.code != _GONE or failure.passing:
                raise
            return "none"
        if member["id"] != user_id or member.get("state", "active") != "active":
            return "none"
        levels = ((50, "admin"), (40, "maintain"), (30, "write"), (20, "triage"), (10, "read"))
        return next((name for least, name in levels if int(member["access_level"]) >= least), "none")

    def pull(self, repo: str, number: int) -> PullHead:
        merge_request = self._get(_merge_request(repo, number), repo)
        merged_as = (
            merge_request.get("merge_commit_sha") or merge_request.get("squash_commit_sha") or merge_request["sha"]
        )
        return PullHead(
            sha=str(merge_request["sha"]),
            base=None,
            base_ref=str(merge_request["target_branch"]),
            fork=_is_fork(merge_request),
            open=merge_request["state"] in _OPEN,
            author=str((merge_request["author"] or {}).get("username", "")),
            merged_as=merged_as if merge_request["state"] == "merged" else None,
        )

    def has_comment(self, repo: str, number: int, comment: int) -> bool:
        try:
            self._get(f"{_merge_request(repo, number)}/notes/{comment}", repo)
        except ForgeFailed as failure:
            if failure.code != _GONE or failure.passing:
                raise
            return False
        return True

    def react(self, repo: str, number: int, comment: int, content: str) -> str:
        """See Forge.  A second award of the same emoji is refused with 404, like one to a note that is gone."""
        path = f"{_merge_request(repo, number)}/notes/{comment}/award_emoji"
        try:
            made = self._ask("POST", path, repo, {"name": _EMOJI[content]})
        except ForgeFailed as failure:
            if failure.code != _GONE or failure.passing:
                raise
            return "awarded" if _AWARDED in str(failure) else ""
        return str(made["id"])

    def is_self(self, login: str) -> bool:
        return bool(login == self._us()["username"])

    def is_bot(self, user_id: int) -> bool:
        try:
            return bool(self._get(f"/users/{user_id}", "").get("bot"))
        except ForgeFailed as failure:
            if failure.code not in (403, _GONE) or failure.passing:
                raise
            return False

    def _us(self) -> dict[str, Any]:
        if self._own is None:
            self._own = self._get("/user", "")
        return self._own

    def _note_with(self, notes: str, repo: str, marker: str) -> str | None:
        """Our own note with the marker; notes of other authors are ignored, since they could copy it."""
        own = self._us()["id"]
        for note in self._every(notes, repo, {"activity_filter": "only_comments", "sort": "asc"}):
            if marker in (note["body"] or "") and (note["author"] or {}).get("id") == own:
                return str(note["id"])
        return None

    def _ref(self, repo: str, check: CheckRun) -> dict[str, str]:
        """The branch whose pipeline shows the status.  A commit may be on many, and a fork's is on none."""
        if check.pull is None:
            return {"ref": check.branch} if check.branch else {"ref": self._default_branch(repo)}
        pull = self._get(_merge_request(repo, check.pull), repo)
        if _is_fork(pull):
            return {"ref": f"refs/merge-requests/{check.pull}/head"}
        return {"ref": str(pull["source_branch"])}

    def _default_branch(self, repo: str) -> str:
        return str(self._get(f"/projects/{_id(repo)}", repo)["default_branch"])

    def _every(self, path: str, repo: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """All of a list, page by page: the links are the same for numbered and for keyset pages."""
        parameters: Mapping[str, str] | None = {**(query or {}), "per_page": "100"}
        url: str | None = path
        for _ in range(_PAGES):
            if url is None:
                return
            answer = self._request("GET", url, repo, query=parameters)
            parameters = None  # the link to the next page has them
            yield from _json(answer)
            url = answer.links.get("next", {}).get("url")

    def _get(self, path: str, repo: str) -> dict[str, Any]:
        answer: dict[str, Any] = _json(self._request("GET", path, repo))
        return answer

    def _ask(self, method: str, path: str, repo: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """One write, a pause after the one before."""
        with self._writing:
            # At most the pause itself: the clock may have been set back since.
            self._sleep(min(self._pause_s, max(0.0, self._wrote_at + self._pause_s - self._clock())))
            try:
                answer: dict[str, Any] = _json(self._request(method, path, repo, document=document))
            finally:
                self._wrote_at = self._clock()
        return answer

    def _request(
        self,
        method: str,
        path: str,
        repo: str,
        *,
        query: Mapping[str, str] | None = None,
        document: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        """One request.  Raises ForgeFailed for every answer but success."""
        headers = {"authorization": f"Bearer {self._token}", "user-agent": "kernelwatch"}
        try:
            answer = self._http.request(method, self._address(path), headers=headers, params=query, json=document)
        except httpx.HTTPError as error:
            why = f"{type(error).__name__} {error}".rstrip()
            raise ForgeFailed(f"GitLab cannot be reached: {why}", passing=True) from None
        if not answer.is_success:
            raise self._failure(method, path, repo, answer)
        return answer

    def _address(self, path: str) -> str:
        """The URL of an API path.  Links to another host are refused, because they would receive the token."""
        base = self._http.base_url
        if path.startswith("/"):
            return str(base).rstrip("/") + path
        url = httpx.URL(path)
        if (url.scheme, url.host, url.port) != (base.scheme, base.host, base.port):
            hint = "set KERNELWATCH_GITLAB_URL to GitLab's own address."
            raise ForgeFailed(f"GitLab's next page is on another host, {url.host}: {hint}", passing=False)
        return path

    def _failure(self, method: str, path: str, repo: str, answer: httpx.Response) -> ForgeFailed:
        why, code = _said(answer), answer.status_code
        message = f"GitLab answered {code} to {method} {path}: {why}"
        if answer.is_redirect:
            moved = "correct the target's forge, or KERNELWATCH_GITLAB_URL"
            return ForgeFailed(f"GitLab redirects {method} {path}: {moved}.", code=code, passing=False)
        if code == 401:
            hint = "KERNELWATCH_GITLAB_TOKEN is wrong, expired or revoked"
            return ForgeFailed(f"{message}. {hint}.", code=code, passing=True, pause_s=SHUT_OUT_S)
        if code == 403 and "insufficient_scope" in why:
            hint = "KERNELWATCH_GITLAB_TOKEN needs the scope api"
            return ForgeFailed(f"{message}. {hint}.", code=code, passing=True, pause_s=SHUT_OUT_S)
        if code == _GONE and _NO_PROJECT in why:
            hint = f"GitLab shows {repo} only to members: make the token's account one, or correct the target's forge"
            return ForgeFailed(f"{message}. {hint}.", code=code, passing=True, pause_s=SHUT_OUT_S, repo=repo)
        if code == 429:
            return ForgeFailed(message, code=code, passing=True, pause_s=self._limit_s(answer))
        return ForgeFailed(message, code=code, passing=code == 409 or code >= 500)

    def _limit_s(self, answer: httpx.Response) -> float:
        """How long GitLab refuses further requests of this account.

        A limit of one endpoint, as of notes in a minute, does not say: the headers are of the limit of all requests.
        """
        if (after := answer.headers.get("retry-after", "")).isdigit():
            return max(1.0, float(after))
        reset = answer.headers.get("ratelimit-reset", "")
        if reset.isdigit() and answer.headers.get("ratelimit-remaining") == "0":
            return max(1.0, float(reset) - self._clock())
        return MIN_LIMIT_S


def connect() -> GitLab:
    """The client of this process, as the settings describe it.  Raises ForgeFailed when they hold no token."""
    here = settings()
    if not here.gitlab_token:
        message = "No GitLab credentials: set KERNELWATCH_GITLAB_TOKEN, and restart."
        raise ForgeFailed(message, passing=True, pause_s=SHUT_OUT_S)
    return _client(here.gitlab_token.get_secret_value(), here.gitlab_url.rstrip("/"), here.write_pause_s)


@lru_cache(1)  # keep the write pause between polls of the outbox
def _client(token: str, address: str, pause_s: float) -> GitLab:
    limits = httpx.Limits(max_keepalive_connections=0)  # as for GitHub: writes are a second apart
    http = httpx.Client(base_url=f"{address}/api/v4", timeout=_TIMEOUT, limits=limits, follow_redirects=False)
    return GitLab(token, http, pause_s=pause_s)


def _state(check: CheckRun) -> str:
    """A check in GitLab's words."""
    if check.status == "in_progress":
        return "running"
    if check.conclusion == "cancelled":
        return "canceled"
    return {"success": "success", "pending": "pending"}.get(check.commit_status, "failed")


def _is_fork(pull: Mapping[str, Any]) -> bool:
    """A source project that was deleted is null: still a stranger's."""
    return pull["source_project_id"] is None or pull["source_project_id"] != pull["target_project_id"]


def _id(repo: str) -> str:
    return quote(repo, safe="")


def _merge_request(repo: str, number: int) -> str:
    return f"/projects/{_id(repo)}/merge_requests/{number}"


def _without_actions(body: str) -> str:
    """A note that commands nothing: GitLab would carry out a line of a stranger's build log as ours."""
    lines = body.replace("\r\n", "\n").replace("\r", "\n")
    return _QUICK_ACTION.sub("\\1\u200b/", lines)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        message = f"GitLab answered {answer.status_code} with an unreadable body."
        raise ForgeFailed(message, passing=True) from None


def _said(answer: httpx.Response) -> str:
    """What GitLab says of a failure: a text, or JSON with `message` or `error`."""
    try:
        document = answer.json()
    except ValueError:
        return answer.text.strip()[:300] or answer.reason_phrase
    if isinstance(document, dict):
        document = document.get("message") or " ".join(
            str(document[key]) for key in ("error", "error_description") if key in document
        )
    return str(document)[:300]
