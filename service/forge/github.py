"""The GitHub client: one comment edited in place, one check for each commit.  It never repeats a POST without looking.

gidgethub knows the protocol (headers, answers, pages, the App's signature); the requests are ours, because they need
time limits, a pause between writes, and no retry that could post twice.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import gidgethub
import httpx
from gidgethub import sansio

from service.forge.events import REQUESTER
from service.forge.forge import (
    MIN_LIMIT_S,
    PERMISSIONS,
    SHUT_OUT_S,
    CheckRun,
    Forge,
    ForgeFailed,
    PullHead,
    fitting,
    fitting_summary,
)
from service.settings import settings

MAX_ANNOTATIONS = 50  # of one request; more are appended by further ones
_LIMIT = "GitHub's limit"
_MAX_TITLE = 140  # of a commit status
_PAGES = 30
_TIMEOUT = httpx.Timeout(20.0, connect=10.0)
_FORBIDDEN = (403, 404)
_GONE = 404
_REFUSED = 422  # something in what was sent
_MEDIA, _VERSION = "application/vnd.github+json", "2022-11-28"  # of the REST API


@dataclass(frozen=True)
class Token:
    """A token that was given: personal, or of an installation."""

    value: str = field(repr=False)


@dataclass(frozen=True)
class App:
    """A GitHub App, which signs for tokens of its own."""

    id: str
    key: str = field(repr=False)


ANNOTATED = ("path", "start_line", "end_line", "annotation_level", "title", "message")


@dataclass
class _Lent:
    """An installation's token and the time at which it ends."""

    value: str = field(repr=False)
    ends_at: float


class GitHub(Forge):
    """Client that writes to GitHub.

    Threads may share it.  Two of them must not write the same comment or check at the same time: neither would find
    what the other posts, and both would post.
    """

    def __init__(
        self,
        credentials: Token | App,
        http: httpx.Client,
        *,
        pause_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._credentials, self._http = credentials, http
        self._pause_s, self._sleep, self._clock = pause_s, sleep, clock
        # Not held during a request: if two threads fetch a token for one repository, both tokens are valid.
        self._lent_lock = threading.Lock()
        self._lent: dict[str, _Lent] = {}
        self._own_login: str | None = None
        self._writing = threading.Lock()
        self._wrote_at = float("-inf")
        self._without_checks: set[str] = set()

    def upsert_comment(self, repo: str, number: int, marker: str, body: str, known_id: str | None = None) -> str:
        body = fitting(body if marker in body else f"{marker}\n{body}", _LIMIT)
        if known_id is not None:
            try:
                return self._edit_comment(repo, known_id, body)
            except ForgeFailed as failure:
                if failure.code != 404:
                    raise
        if comment_id := self._comment_with(repo, number, marker):
            return self._edit_comment(repo, comment_id, body)
        posted = self._ask("POST", f"/repos/{repo}/issues/{number}/comments", repo, {"body": body})
        return str(posted["id"])

    def put_check(self, repo: str, check: CheckRun, known_id: str | None = None) -> str:
        """See Forge.

        Only an App may write checks: for anybody else it becomes a commit status, which has no room for the summary.
        An App that is not installed here yet is no reason for that: its installation may come.  A check whose content
        is refused is sent with its title and a link alone, and becomes a status if that is refused as well.
        """
        refused: ForgeFailed | None = None
        if repo not in self._without_checks and not (known_id or "").startswith("status:"):
            for version in (check, _in_short(check)):
                try:
                    return self._put_check_run(repo, version, known_id)
                except ForgeFailed as failure:
                    if failure.code == _REFUSED:
                        refused = failure
                        continue
                    if failure.code not in _FORBIDDEN or failure.passing:
                        raise
                    self._without_checks.add(repo)
                    break
        title = f"GitHub refused the check: {check.title}" if refused else check.title
        status = {
            "state": check.commit_status,
            "context": check.name,
            "description": title[:_MAX_TITLE],
            **({"target_url": check.url} if check.url else {}),
        }
        # Of the statuses with one context only the newest counts, so posting twice says the same.
        try:
            posted = self._ask("POST", f"/repos/{repo}/statuses/{check.sha}", repo, status)
        except ForgeFailed as failure:
            if refused is None or failure.passing:
                raise
            raise refused from None  # an App may lack the right to write statuses, which is not what has to be mended
        return f"status:{posted['id']}"

    def permission(self, repo: str, login: str, user_id: int) -> str:  # noqa: ARG002
        try:
            answer = self._as_us("GET", f"/repos/{repo}/collaborators/{quote(login, safe='')}/permission", repo)[0]
        except ForgeFailed as failure:
            if failure.code != _GONE:
                raise
            return "none"
        role = str(answer.get("role_name") or "")  # more exact than `permission`, which knows no triage and maintain
        return role if role in PERMISSIONS else str(answer["permission"])

    def pull(self, repo: str, number: int) -> PullHead:
        pull = self._as_us("GET", f"/repos/{repo}/pulls/{number}", repo)[0]
        whose = (pull["head"]["repo"] or {}).get("full_name", "")  # null once a fork was deleted
        return PullHead(
            sha=str(pull["head"]["sha"]),
            base=str(pull["base"]["sha"]),
            fork=whose.lower() != repo.lower(),
            open=pull["state"] == "open",
            author=str((pull["user"] or {}).get("login", "")),
        )

    def has_comment(self, repo: str, number: int, comment: int) -> bool:  # noqa: ARG002
        try:
            self._as_us("GET", f"/repos/{repo}/issues/comments/{comment}", repo)
        except ForgeFailed as failure:
            if failure.code != _GONE:
                raise
            return False
        return True

    def react(self, repo: str, number: int, comment: int, content: str) -> str:  # noqa: ARG002
        """See Forge.  Reacting twice the same way is one reaction at GitHub."""
        try:
            made = self._ask("POST", f"/repos/{repo}/issues/comments/{comment}/reactions", repo, {"content": content})
        except ForgeFailed as failure:
            if failure.code != _GONE:
                raise
            return ""
        return str(made["id"])

    def forget(self, owner: str) -> None:
        """Forget the tokens that an App was lent for the repositories of an owner."""
        with self._lent_lock:
            for repo in [name for name in self._lent if name.partition("/")[0].lower() == owner.lower()]:
                del self._lent[repo]

    def is_self(self, login: str) -> bool:
        return login == self._known_login()

    def is_bot(self, user_id: int) -> bool:  # noqa: ARG002
        return False  # a delivery says so

    def _put_check_run(self, repo: str, check: CheckRun, known_id: str | None) -> str:
        run, wanted = _as_run(check), [_annotation(annotation) for annotation in check.annotations]
        check_id = (known_id or "").removeprefix("check:") or self._check_run(repo, check.sha, check.name)
        there = self._annotations(repo, check_id) if check_id else None
        if check_id and there is not None and there <= {*wanted}:
            left = [annotation for annotation in wanted if annotation not in there]
            changes = {key: value for key, value in run.items() if key != "head_sha"}
            self._ask("PATCH", f"/repos/{repo}/check-runs/{check_id}", repo, _with_annotations(changes, left))
        else:
            # Annotations can only be added.  Where one does not apply any more, a new check of the name replaces it.
            left = wanted
            if check_id and there is not None:
                self._complete(repo, check_id)
            posted = self._ask("POST", f"/repos/{repo}/check-runs", repo, _with_annotations(run, left))
            check_id = str(posted["id"])
        for first in range(MAX_ANNOTATIONS, len(left), MAX_ANNOTATIONS):
            more = _with_annotations({"output": run["output"]}, left[first:])
            self._ask("PATCH", f"/repos/{repo}/check-runs/{check_id}", repo, more)
        return f"check:{check_id}"

    def _complete(self, repo: str, check: str) -> None:
        """End a check that another replaces: one that stays open keeps its commit pending."""
        if self._as_us("GET", f"/repos/{repo}/check-runs/{check}", repo)[0]["status"] != "completed":
            ended = {"status": "completed", "conclusion": "neutral"}
            self._ask("PATCH", f"/repos/{repo}/check-runs/{check}", repo, ended)

    def _annotations(self, repo: str, check: str) -> set["Annotation"] | None:
        """The annotations that a check has; None where the check is gone."""
        try:
            return {
                _annotation(annotation)
                for annotation in self._every(f"/repos/{repo}/check-runs/{check}/annotations", repo)
            }
        except ForgeFailed as failure:
            if failure.code != _GONE:
                raise
            return None

    def _check_run(self, repo: str, sha: str, name: str) -> str | None:
        path = f"/repos/{repo}/commits/{sha}/check-runs"
        for run in self._every(path, repo, {"check_name": name, "filter": "latest"}):
            if run["name"] == name and run.get("external_id") == REQUESTER:
                return str(run["id"])
        return None

    def _edit_comment(self, repo: str, comment: str, body: str) -> str:
        self._ask("PATCH", f"/repos/{repo}/issues/comments/{comment}", repo, {"body": body})
        return comment

    def _comment_with(self, repo: str, number: int, marker: str) -> str | None:
        """Our own comment with the marker; comments of other authors are ignored, since they could copy it."""
        for comment in self._every(f"/repos/{repo}/issues/{number}/comments", repo):
            if marker in (comment["body"] or "") and self._is_ours(comment["user"]):
                return str(comment["id"])
        return None

    def _is_ours(self, user: Mapping[str, Any] | None) -> bool:
        if user is None:
            return False
        own = self._known_login()
        return bool(user["login"] == own if own else user["type"] == "Bot")

    def _known_login(self) -> str:
        if self._own_login is None:
            self._own_login = self._login()
        return self._own_login

    def _login(self) -> str:
        """Who we are; empty for a token of somebody's installation, which may not ask: only a bot holds one."""
        if isinstance(self._credentials, App):
            return f"{self._request('GET', '/app', jwt=_signed_by(self._credentials))[0]['slug']}[bot]"
        try:
            return str(self._request("GET", "/user", token=self._credentials.value)[0]["login"])
        except ForgeFailed as failure:
            if failure.code not in _FORBIDDEN or failure.passing:
                raise
            return ""

    def _every(self, path: str, repo: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        parameters: Mapping[str, str] | None = {**(query or {}), "per_page": "100"}
        url: str | None = path
        for _ in range(_PAGES):
            if url is None:
                return
            data, url = self._as_us("GET", url, repo, query=parameters)
            parameters = None  # the link to the next page has them
            yield from data["check_runs"] if isinstance(data, dict) else data

    def _ask(self, method: str, path: str, repo: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """One write, a pause after the one before."""
        with self._writing:
            # At most the pause itself: the clock may have been set back since.
            self._sleep(min(self._pause_s, max(0.0, self._wrote_at + self._pause_s - self._clock())))
            try:
                answer: dict[str, Any] = self._as_us(method, path, repo, document=document)[0]
            finally:
                self._wrote_at = self._clock()
        return answer

    def _as_us(
        self,
        method: str,
        path: str,
        repo: str,
        *,
        query: Mapping[str, str] | None = None,
        document: Mapping[str, Any] | None = None,
    ) -> tuple[Any, str | None]:
        """One request about a repository.  A lent token that was revoked is fetched anew, once."""
        if isinstance(self._credentials, Token):
            return self._request(method, path, token=self._credentials.value, query=query, document=document)
        # An App's installation belongs to the owner of repositories, with its own token and limits.
        owner = repo.partition("/")[0]
        used = self._token(self._credentials, repo)
        try:
            return self._request(method, path, token=used.value, query=query, document=document, owner=owner)
        except ForgeFailed as failure:
            if failure.code != 401:
                raise
        self._drop(repo, used)
        token = self._token(self._credentials, repo).value
        return self._request(method, path, token=token, query=query, document=document, owner=owner)

    def _token(self, app: App, repo: str) -> _Lent:
        with self._lent_lock:
            lent = self._lent.get(repo)
        if lent is None or lent.ends_at < self._clock() + 60:
            lent = self._borrowed(app, repo)
            with self._lent_lock:
                self._lent[repo] = lent
        return lent

    def _drop(self, repo: str, refused: _Lent) -> None:
        """Forget a token, unless another thread has fetched a new one since."""
        with self._lent_lock:
            if self._lent.get(repo) is refused:
                del self._lent[repo]

    def _borrowed(self, app: App, repo: str) -> _Lent:
        """A token of the App's installation on `repo`."""
        jwt = _signed_by(app)
        try:
            installation = self._request("GET", f"/repos/{repo}/installation", jwt=jwt)[0]["id"]
            answer = self._request("POST", f"/app/installations/{installation}/access_tokens", jwt=jwt)[0]
        except ForgeFailed as failure:
            if failure.code not in _FORBIDDEN or failure.passing:
                raise
            message = f"The GitHub App is not installed on {repo}, or is suspended there: {failure}"
            raise ForgeFailed(message, code=failure.code, passing=True, pause_s=SHUT_OUT_S, repo=repo) from None
        return _Lent(answer["token"], datetime.fromisoformat(answer["expires_at"]).timestamp())

    def _request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        jwt: str | None = None,
        query: Mapping[str, str] | None = None,
        document: Mapping[str, Any] | None = None,
        owner: str = "",
    ) -> tuple[Any, str | None]:
        """One request: the answer, and the address of the next page.  Raises ForgeFailed for everything else."""
        headers = sansio.create_headers(REQUESTER, accept=_MEDIA, oauth_token=token, jwt=jwt)
        headers["x-github-api-version"] = _VERSION
        url = self._address(path)
        try:
            # An empty `params` would take away what a link to the next page carries; None leaves it.
            answer = self._http.request(method, url, headers=headers, params=query or None, json=document)
        except httpx.HTTPError as error:
            why = f"{type(error).__name__} {error}".rstrip()
            raise ForgeFailed(f"GitHub cannot be reached: {why}", passing=True) from None
        try:
            data, _, more = sansio.decipher_response(answer.status_code, answer.headers, answer.content)
        except gidgethub.HTTPException as error:
            raise self._failure(method, path, answer, error, owner) from None
        except ValueError:
            message = f"GitHub answered {answer.status_code} with an unreadable body."
            raise ForgeFailed(message, passing=True) from None
        return data, more

    def _address(self, path: str) -> str:
        """The URL of an API path.  Links to another host are refused, because they would receive the token."""
        base = self._http.base_url
        if path.startswith("/"):
            return str(base).rstrip("/") + path
        url = httpx.URL(path)
        if (url.scheme, url.host, url.port) != (base.scheme, base.host, base.port):
            raise ForgeFailed(f"GitHub's next page is on another host, {url.host}.", passing=False)
        return path

    def _failure(
        self, method: str, path: str, answer: httpx.Response, error: gidgethub.HTTPException, owner: str
    ) -> ForgeFailed:
        said = " ".join(str(part) for part in error.args) or answer.reason_phrase
        message = f"GitHub answered {answer.status_code} to {method} {path}: {said[:300]}"
        pause_s = self._pause_after(answer, said)
        passing = pause_s > 0 or answer.status_code >= 500
        return ForgeFailed(message, code=answer.status_code, passing=passing, pause_s=pause_s, owner=owner)

    def _pause_after(self, answer: httpx.Response, message: str) -> float:
        """How long GitHub refuses further requests; 0 where the answer is about this one alone.

        There are an hourly limit and secondary ones.
        """
        if answer.status_code == 401:
            return SHUT_OUT_S
        if answer.status_code not in (403, 429):
            return 0.0
        if (after := answer.headers.get("retry-after", "")).isdigit():
            return max(1.0, float(after))
        if answer.headers.get("x-ratelimit-remaining") == "0":
            return max(1.0, float(answer.headers.get("x-ratelimit-reset", 0)) - self._clock())
        return MIN_LIMIT_S if answer.status_code == 429 or "rate limit" in message.lower() else 0.0


def connect() -> GitHub:
    """The client of this process, as the settings describe it.  Raises ForgeFailed when they hold no credentials."""
    here = settings()
    credentials: Token | App
    if here.github_app_id and here.github_app_key:
        credentials = App(here.github_app_id, here.github_app_key.get_secret_value())
    elif here.github_token:
        credentials = Token(here.github_token.get_secret_value())
    else:
        message = "No GitHub credentials: set KERNELWATCH_GITHUB_TOKEN, or the id and key of an App, and restart."
        raise ForgeFailed(message, passing=True, pause_s=SHUT_OUT_S)
    return _client(credentials, here.github_api, here.write_pause_s)


@lru_cache(1)  # keep the write pause and the tokens between polls of the outbox
def _client(credentials: Token | App, api: str, pause_s: float) -> GitHub:
    # Writes are a second apart, so a connection kept open saves little and is closed by the other side anyway.
    limits = httpx.Limits(max_keepalive_connections=0)
    http = httpx.Client(base_url=api, timeout=_TIMEOUT, limits=limits, follow_redirects=False)
    return GitHub(credentials, http, pause_s=pause_s)


def _signed_by(app: App) -> str:
    """The JWT with which the App requests tokens."""
    from gidgethub import apps  # with cryptography, 10 MB of a process that signs nothing
    from jwt import PyJWTError

    try:
        return str(apps.get_jwt(app_id=app.id, private_key=app.key, expiration=9 * 60))
    except (ValueError, PyJWTError):  # the message may quote the key
        message = "KERNELWATCH_GITHUB_APP_KEY is not a private key in PEM format."
        raise ForgeFailed(message, passing=True, pause_s=SHUT_OUT_S) from None


def _in_short(check: CheckRun) -> CheckRun:
    """The check without what GitHub may refuse: its summary, buttons and annotations."""
    where = f"They are at {check.url}" if check.url else "See the log of kernelwatch"
    said = f"GitHub refused the details of this check. {where}."
    return replace(check, summary=said, actions=(), annotations=())


def _as_run(check: CheckRun) -> dict[str, Any]:
    return {
        "head_sha": check.sha,
        "name": check.name,
        "external_id": REQUESTER,
        "status": check.status,
        "output": {"title": check.title, "summary": fitting_summary(check.summary, _LIMIT)},
        "actions": [dict(action) for action in check.actions],  # an empty list takes earlier ones away
        **({"conclusion": check.conclusion} if check.status == "completed" else {}),
        **({"details_url": check.url} if check.url else {}),
    }


Annotation = tuple[Any, ...]  # the values of `ANNOTATED`


def _annotation(annotation: Mapping[str, Any]) -> Annotation:
    return tuple(value.strip() if isinstance(value := annotation[name], str) else value for name in ANNOTATED)


def _with_annotations(document: Mapping[str, Any], annotations: Sequence[Annotation]) -> dict[str, Any]:
    """A request with the first of these annotations, as many as it may carry."""
    first = [dict(zip(ANNOTATED, annotation, strict=True)) for annotation in annotations[:MAX_ANNOTATIONS]]
    return {**document, "output": {**document["output"], **({"annotations": first} if first else {})}}
