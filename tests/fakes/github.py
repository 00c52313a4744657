"""GitHub with a memory: comments, reactions, pull requests, permissions, checks, statuses, and how it fails.

It makes the bodies of its webhooks as well, and numbers everything as GitHub does.

`FakeGitHub().app` is served by a real server; `client()` reaches the same thing without one.
"""

import itertools
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.fakes.contracts.contract import contract

BOT = {"login": "kernelwatch-bot", "type": "User", "id": 9001}
APP = {"login": "kernelwatch[bot]", "type": "Bot", "id": 9002}
INSTALLATION = {"id": 77, "account": {"login": "acme", "id": 1, "type": "Organization"}}
# Limits that GitHub has and its document does not name; what the document names is refused before.
MAX_COMMENT, MAX_DESCRIPTION, MAX_SUMMARY_BYTES = 65_536, 140, 65_535
# What GitHub calls a role in its older field, which knows no triage and no maintain.
OLDER = {"admin": "admin", "maintain": "write", "write": "write", "triage": "read", "read": "read", "none": "none"}


@dataclass
class Comment:
    id: int
    repo: str
    number: int
    body: str
    user: dict[str, Any]
    edits: int = 0
    reactions: list[tuple[str, str]] = field(default_factory=list)  # login and content


@dataclass
class PullRequest:
    number: int
    head: str
    base: str
    whose: str | None  # the repository of the head; None once it was deleted
    state: str = "open"


@dataclass(frozen=True)
class Answer:
    status: int
    said: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return b"" if self.said is None else json.dumps(self.said).encode()


TOO_LONG = Answer(422, {"message": "Validation Failed", "errors": [{"field": "body", "code": "invalid"}]})
NOT_FOUND = Answer(404, {"message": "Not Found"})
BROKEN = Answer(502, {"message": "Server Error"})
SECONDARY = Answer(403, {"message": "You have exceeded a secondary rate limit."}, {"retry-after": "7"})
FOR_DAYS = Answer(429, {"message": "You have exceeded a secondary rate limit."}, {"retry-after": "999999"})


@cache
def app_key() -> str:
    """A private key as GitHub hands it to an App's owner."""
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return made.private_bytes(*pem).decode()


class FakeGitHub:
    """Who may do what: the token `a-token` writes comments and statuses; only an App's (`ghs_…`) writes checks."""

    def __init__(self, *, app_installed: bool = True) -> None:
        self.comments: dict[int, Comment] = {}
        self.check_runs: dict[int, dict[str, Any]] = {}
        self.annotations: dict[int, list[dict[str, Any]]] = defaultdict(list)  # by check
        self.statuses: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        self.tokens: set[str] = {"a-token"}
        self.requests: list[tuple[str, str]] = []
        self.pulls: dict[tuple[str, int], PullRequest] = {}
        self.permissions: dict[tuple[str, str], str] = {}  # by repository and login; others may read
        self.people: dict[str, int] = {one["login"]: one["id"] for one in (BOT, APP)}
        self.app_installed = app_installed
        self.page = 100
        self._faults: list[tuple[str, str]] = []
        self._ids = itertools.count(100)

    # -- what tests do and see

    def fail_next(self, fault: str, path: str = "/comments", method: str = "POST") -> None:
        """Fail the next such request: 422, 502, 502-after-commit, gone, unreachable, or a rate limit.

        The rate limits are primary, secondary, and secondary for days.
        """
        self._faults.append((f"{method} {path}", fault))

    def comments_on(self, repo: str, number: int) -> list[str]:
        return [one.body for one in self.comments.values() if (one.repo, one.number) == (repo, number)]

    def somebody_says(self, repo: str, number: int, body: str, login: str = "mallory", kind: str = "User") -> int:
        comment = Comment(next(self._ids), repo, number, body, self.person(login, kind))
        self.comments[comment.id] = comment
        return comment.id

    def person(self, login: str, kind: str = "User") -> dict[str, Any]:
        return {"login": login, "type": kind, "id": self.people.setdefault(login, 500 + len(self.people))}

    def comment_event(self, comment: int, action: str = "created") -> dict[str, Any]:
        """The body of an `issue_comment` webhook."""
        of = self.comments[comment]
        address = f"https://api.github.test/repos/{of.repo}/pulls/{of.number}"
        issue = {"number": of.number, "pull_request": {"url": address}, "state": "open", "user": self.person("ada")}
        changes = {"changes": {"body": {"from": "before"}}} if action == "edited" else {}
        about = {"repository": {"full_name": of.repo}, "sender": of.user}
        return {"action": action, "issue": issue, "comment": _told(of), **about, **changes}

    def check_event(self, check: int, by: str = "ada", identifier: str | None = None) -> dict[str, Any]:
        """The body of a `check_run` webhook: somebody pressed "Re-run", or a button of the check's own."""
        known = self.check_runs[check]
        about = {"repository": {"full_name": known["repo"]}, "sender": self.person(by)}
        if identifier is None:
            return {"action": "rerequested", "check_run": self._shown(known), **about}
        assert identifier in [one["identifier"] for one in known["actions"]], "there is no such button"
        asked = {"requested_action": {"identifier": identifier}}
        return {"action": "requested_action", "check_run": self._shown(known), **about, **asked}

    def suite_event(self, repo: str, sha: str, by: str = "ada") -> dict[str, Any]:
        """The body of a `check_suite` webhook: somebody pressed "Re-run all checks"."""
        about = {"repository": {"full_name": repo}, "sender": self.person(by)}
        return {"action": "rerequested", "check_suite": {"id": 1, "head_sha": sha}, **about}

    def installation_event(self, action: str) -> dict[str, Any]:
        """The body of an `installation` webhook, after it happened: deleted, suspend, created, unsuspend."""
        self.app_installed = action in ("created", "unsuspend")
        if not self.app_installed:
            self.tokens = {one for one in self.tokens if not one.startswith("ghs_")}
        return {"action": action, "installation": INSTALLATION, "sender": self.person("ada")}

    def repositories_event(self, action: str, *names: str) -> dict[str, Any]:
        """The body of an `installation_repositories` webhook: the App was added to repositories, or removed."""
        changed = {"repositories_added": [], "repositories_removed": []}
        changed[f"repositories_{action}"] = [{"full_name": name} for name in names]
        return {"action": action, "installation": INSTALLATION, "sender": self.person("ada"), **changed}

    def reactions_to(self, comment: int) -> list[str]:
        return [content for _, content in self.comments[comment].reactions]

    def pull_is(self, repo: str, number: int, head: str, base: str, whose: str | None) -> None:
        """A pull request was opened, or has another head now."""
        self.pulls[repo, number] = PullRequest(number, head, base, whose)

    @property
    def checks(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The newest check of each commit, by repository and sha."""
        return {(one["repo"], one["head_sha"]): one for one in self.check_runs.values()}

    def annotations_of(self, repo: str, sha: str) -> list[dict[str, Any]]:
        """The annotations of the newest check of a commit."""
        return self.annotations[self.checks[repo, sha]["id"]]

    def writes(self) -> list[str]:
        return [f"{method} {path}" for method, path in self.requests if method != "GET"]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url="https://api.github.test", transport=httpx.MockTransport(self._in_process))

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._served, methods=["GET", "POST", "PATCH"])])

    # -- GitHub

    def answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], said: dict[str, Any]
    ) -> Answer:
        self.requests.append((method, path))
        assert headers["accept"] == "application/vnd.github+json"
        assert headers["x-github-api-version"] == "2022-11-28", "without it, GitHub may answer as another version"
        contract("github").check_request(method, path, query, said)
        answer = self._answered(method, path, query, headers, said)
        return replace(answer, said=contract("github").answer(method, path, answer.status, answer.said))

    def _answered(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], said: dict[str, Any]
    ) -> Answer:
        fault = self._fault(method, path)
        if fault == "unreachable":
            raise httpx.ConnectError("the cable was cut")
        if fault == "502":
            return BROKEN
        if fault == "422":
            return Answer(422, {"message": "Invalid request."})
        if fault == "secondary":
            return SECONDARY
        if fault == "secondary for days":
            return FOR_DAYS
        if fault == "gone":
            return NOT_FOUND
        if fault == "primary":
            reset = str(int(time.time()) + 600)
            limits = {"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}
            return Answer(403, {"message": "API rate limit exceeded"}, limits)
        answer = self._routed(method, path, query, headers.get("authorization", ""), said)
        return BROKEN if fault == "502-after-commit" else answer

    def _fault(self, method: str, path: str) -> str | None:
        for place, (where, fault) in enumerate(self._faults):
            verb, _, part = where.partition(" ")
            if verb == method and part in path:
                del self._faults[place]
                return fault
        return None

    def _routed(
        self, method: str, path: str, query: dict[str, str], authorization: str, said: dict[str, Any]
    ) -> Answer:
        kind, _, credential = authorization.partition(" ")
        if kind == "bearer":
            return self._as_app(method, path)
        if kind != "token" or credential not in self.tokens:
            return Answer(401, {"message": "Bad credentials"})
        routes: list[tuple[str, str, Callable[..., Answer]]] = [
            ("GET", r"/user", self._user),
            ("GET", r"/repos/([^/]+/[^/]+)/issues/(\d+)/comments", self._list_comments),
            ("POST", r"/repos/([^/]+/[^/]+)/issues/(\d+)/comments", self._post_comment),
            ("GET", r"/repos/([^/]+/[^/]+)/issues/comments/(\d+)", self._one_comment),
            ("PATCH", r"/repos/([^/]+/[^/]+)/issues/comments/(\d+)", self._edit_comment),
            ("POST", r"/repos/([^/]+/[^/]+)/issues/comments/(\d+)/reactions", self._react),
            ("GET", r"/repos/([^/]+/[^/]+)/pulls/(\d+)", self._pull),
            ("GET", r"/repos/([^/]+/[^/]+)/collaborators/([^/]+)/permission", self._permission),
            ("GET", r"/repos/([^/]+/[^/]+)/commits/(\w+)/check-runs", self._list_checks),
            ("POST", r"/repos/([^/]+/[^/]+)/check-runs", self._post_check),
            ("PATCH", r"/repos/([^/]+/[^/]+)/check-runs/(\d+)", self._edit_check),
            ("GET", r"/repos/([^/]+/[^/]+)/check-runs/(\d+)", self._one_check),
            ("GET", r"/repos/([^/]+/[^/]+)/check-runs/(\d+)/annotations", self._list_annotations),
            ("POST", r"/repos/([^/]+/[^/]+)/statuses/(\w+)", self._post_status),
        ]
        for verb, pattern, handle in routes:
            if verb == method and (found := re.fullmatch(pattern, path)):
                if "check-runs" in pattern and verb != "GET" and not credential.startswith("ghs_"):
                    return Answer(403, {"message": "You must authenticate via a GitHub App."})
                return handle(*found.groups(), query=query, said=said, whose=self._whose(credential))
        return NOT_FOUND

    def _as_app(self, method: str, path: str) -> Answer:
        if (method, path) == ("GET", "/app"):
            return Answer(200, {"id": 1, "slug": "kernelwatch"})
        if method == "GET" and re.fullmatch(r"/repos/[^/]+/[^/]+/installation", path):
            return Answer(200, {"id": 77}) if self.app_installed else NOT_FOUND
        if (method, path) == ("POST", "/app/installations/77/access_tokens"):
            token = f"ghs_{next(self._ids)}"
            self.tokens.add(token)
            ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            return Answer(201, {"token": token, "expires_at": ends})
        return NOT_FOUND

    def _whose(self, token: str) -> dict[str, Any]:
        return APP if token.startswith("ghs_") else BOT

    def _user(self, *, whose: dict[str, Any], **_: Any) -> Answer:
        if whose["type"] == "Bot":
            return Answer(403, {"message": "Resource not accessible by integration"})
        return Answer(200, whose)

    def _list_comments(self, repo: str, number: str, *, query: dict[str, str], **_: Any) -> Answer:
        every = [_told(one) for one in self.comments.values() if (one.repo, one.number) == (repo, int(number))]
        return self._paged(f"/repos/{repo}/issues/{number}/comments", every, query)

    def _paged(self, path: str, every: list[Any], query: dict[str, str]) -> Answer:
        page, size = int(query.get("page", 1)), min(self.page, int(query.get("per_page", 30)))
        link = f'<https://api.github.test{path}?per_page={size}&page={page + 1}>; rel="next"'
        more = page * size < len(every)
        return Answer(200, every[(page - 1) * size : page * size], {"link": link} if more else {})

    def _post_comment(self, repo: str, number: str, *, said: dict[str, Any], whose: dict[str, Any], **_: Any) -> Answer:
        if not 0 < len(said["body"]) <= MAX_COMMENT:
            return TOO_LONG
        comment = Comment(next(self._ids), repo, int(number), said["body"], whose)
        self.comments[comment.id] = comment
        return Answer(201, _told(comment))

    def _edit_comment(
        self, repo: str, comment: str, *, said: dict[str, Any], whose: dict[str, Any], **_: Any
    ) -> Answer:
        known = self.comments.get(int(comment))
        if known is None or known.repo != repo:
            return NOT_FOUND
        if known.user != whose:
            return Answer(403, {"message": "Must have admin rights to Repository."})
        if not 0 < len(said["body"]) <= MAX_COMMENT:
            return TOO_LONG
        known.body, known.edits = said["body"], known.edits + 1
        return Answer(200, _told(known))

    def _one_comment(self, repo: str, comment: str, **_: Any) -> Answer:
        known = self.comments.get(int(comment))
        return NOT_FOUND if known is None or known.repo != repo else Answer(200, _told(known))

    def _react(self, repo: str, comment: str, *, said: dict[str, Any], whose: dict[str, Any], **_: Any) -> Answer:
        known = self.comments.get(int(comment))
        if known is None or known.repo != repo:
            return NOT_FOUND
        mine = (whose["login"], said["content"])
        status = 200 if mine in known.reactions else 201  # one reaction of a kind for each person
        if status == 201:
            known.reactions.append(mine)
        return Answer(status, {"id": known.id * 10 + known.reactions.index(mine), "content": said["content"]})

    def _pull(self, repo: str, number: str, **_: Any) -> Answer:
        known = self.pulls.get((repo, int(number)))
        if known is None:
            return NOT_FOUND
        whose = {"full_name": known.whose} if known.whose else None
        base = {"sha": known.base, "ref": "main", "repo": {"full_name": repo}}
        head = {"sha": known.head, "ref": f"pull-{number}", "repo": whose}
        user = self.person("ada")
        return Answer(200, {"number": known.number, "state": known.state, "head": head, "base": base, "user": user})

    def _permission(self, repo: str, login: str, **_: Any) -> Answer:
        role = self.permissions.get((repo, login), "read")
        return Answer(200, {"permission": OLDER[role], "role_name": role, "user": self.person(login)})

    def _list_checks(self, repo: str, sha: str, *, query: dict[str, str], **_: Any) -> Answer:
        name = query.get("check_name")
        found = [one for one in self.check_runs.values() if (one["repo"], one["head_sha"]) == (repo, sha)]
        runs = [one for one in found if name in (None, one["name"])]
        if query.get("filter", "latest") == "latest":  # one of each name, which is what people see
            runs = list({one["name"]: one for one in runs}.values())
        paged = self._paged(f"/repos/{repo}/commits/{sha}/check-runs", [self._shown(one) for one in runs], query)
        return replace(paged, said={"total_count": len(runs), "check_runs": paged.said})

    def _one_check(self, repo: str, check: str, **_: Any) -> Answer:
        known = self.check_runs.get(int(check))
        return NOT_FOUND if known is None or known["repo"] != repo else Answer(200, self._shown(known))

    def _post_check(self, repo: str, *, said: dict[str, Any], **_: Any) -> Answer:
        if said["status"] == "completed" and not said.get("conclusion"):
            return Answer(422, {"message": "Invalid request.", "errors": ["conclusion is missing"]})
        check = {"id": next(self._ids), "repo": repo, "conclusion": None}
        if (refused := self._changed(check, said)) is not None:
            return refused
        self.check_runs[check["id"]] = check
        return Answer(201, self._shown(check))

    def _edit_check(self, repo: str, check: str, *, said: dict[str, Any], **_: Any) -> Answer:
        known = self.check_runs.get(int(check))
        if known is None or known["repo"] != repo:
            return NOT_FOUND
        return self._changed(known, said) or Answer(200, self._shown(known))

    def _shown(self, check: dict[str, Any]) -> dict[str, Any]:
        """A check as GitHub tells it: how many annotations it has, and nothing of its buttons."""
        output = {**check.get("output", {}), "annotations_count": len(self.annotations[check["id"]])}
        return {**{key: check[key] for key in check.keys() - {"repo", "actions"}}, "output": output}

    def _changed(self, check: dict[str, Any], said: dict[str, Any]) -> Answer | None:
        """Change a check; what is wrong with the request otherwise.  Annotations are added to those that it has."""
        output = dict(said.get("output", {}))
        more = output.pop("annotations", [])
        if len(output.get("summary", "").encode()) > MAX_SUMMARY_BYTES:
            return Answer(422, {"message": "Invalid request.", "errors": ["Only 65535 characters are allowed"]})
        if not all(map(_is_annotation, more)):
            return Answer(422, {"message": "Invalid request.", "errors": ["annotations"]})
        self.annotations[check["id"]] += more
        check.update({**said, **({"output": output} if output else {})})
        return None

    def _list_annotations(self, repo: str, check: str, *, query: dict[str, str], **_: Any) -> Answer:
        known = self.check_runs.get(int(check))
        if known is None or known["repo"] != repo:
            return NOT_FOUND
        return self._paged(f"/repos/{repo}/check-runs/{check}/annotations", self.annotations[int(check)], query)

    def _post_status(self, repo: str, sha: str, *, said: dict[str, Any], **_: Any) -> Answer:
        if len(said["description"]) > MAX_DESCRIPTION:
            return TOO_LONG
        status = {"id": next(self._ids), **said}
        self.statuses[repo, sha].append(status)
        return Answer(201, status)

    # -- how it is reached

    def _in_process(self, request: httpx.Request) -> httpx.Response:
        said = json.loads(request.content) if request.content else {}
        answer = self.answer(request.method, request.url.path, dict(request.url.params), dict(request.headers), said)
        headers = {"content-type": "application/json; charset=utf-8", **answer.headers}
        return httpx.Response(answer.status, headers=headers, content=answer.body)

    async def _served(self, request: Request) -> Response:
        body = await request.body()
        said = json.loads(body) if body else {}
        answer = self.answer(request.method, request.url.path, dict(request.query_params), dict(request.headers), said)
        return Response(answer.body, answer.status, answer.headers, "application/json")


def _is_annotation(said: dict[str, Any]) -> bool:
    """Whether GitHub takes this annotation: a path of the repository, lines, a level, and bounded texts."""
    return (
        not said["path"].startswith("/")
        and 1 <= said["start_line"] <= said["end_line"]
        and 0 < len(said["message"].encode()) <= 65_536
        and len(said.get("title", "")) <= 255
    )


def _told(comment: Comment) -> dict[str, Any]:
    return {"id": comment.id, "body": comment.body, "user": comment.user}
