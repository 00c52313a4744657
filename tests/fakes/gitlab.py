"""GitLab with a memory: notes, award emoji, merge requests, members, statuses, and how it fails.

It makes the bodies of its webhooks as well, numbers everything as GitLab does, and carries out quick actions in notes.

`FakeGitLab().app` is served by a real server.  Each request and answer is checked by `contracts/gitlab.json`.
"""

import itertools
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.fakes.contracts.contract import contract

TOKEN = "glpat-a-token"
US = {"id": 9001, "username": "kernelwatch-bot", "name": "kernelwatch", "state": "active"}
EMOJI = {"eyes", "thumbsup", "thumbsdown", "confused", "tada", "heart", "rocket"}
LEVELS = {"none": 0, "read": 10, "triage": 20, "write": 30, "maintain": 40, "admin": 50}
QUICK_ACTION = re.compile(r"(?m)^/(close|merge|reopen|assign|unassign|label|approve|lock|award|copy_metadata)(?: |$)")
OPEN = ("created", "pending", "running")


@dataclass
class Note:
    id: int
    project: str
    iid: int
    body: str
    author: dict[str, Any]
    system: bool = False
    edits: int = 0
    awards: list[tuple[int, str, int]] = field(default_factory=list)  # user, emoji, id


@dataclass
class MergeRequest:
    iid: int
    sha: str
    source_branch: str
    target_branch: str
    source_project_id: int | None  # None once the fork was deleted
    author: dict[str, Any]
    state: str = "opened"
    updated_at: int = 0
    merge_commit_sha: str | None = None
    squash_commit_sha: str | None = None


@dataclass
class Status:
    id: int
    sha: str
    ref: str
    name: str
    status: str
    description: str | None
    target_url: str | None


@dataclass(frozen=True)
class Answer:
    status: int
    said: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None


TOO_MANY = "This endpoint has been requested too many times. Try again later."
MAX_COUNTED = 10_000  # of a longer list GitLab does not say how long it is
NOT_FOUND = Answer(404, {"message": "404 Not found"})
NO_PROJECT = Answer(404, {"message": "404 Project Not Found"})
FORBIDDEN = Answer(403, {"message": "403 Forbidden"})
BROKEN = Answer(502, text="<html><title>GitLab is not responding (502)</title></html>")
BLANK = Answer(400, {"message": '400 Bad request - Note {:note=>["can\'t be blank"]}'})
EMPTIED = Answer(202, {"commands_changes": {}, "summary": ["Applied."]})  # of a note that commands, and says nothing
EXPIRED = Answer(
    401,
    {
        "error": "invalid_token",
        "error_description": "Token is expired. You can either do re-authorization or token refresh.",
    },
)


class FakeGitLab:
    """One private project, which the token's account is a member of unless it is `hidden`."""

    def __init__(self, project: str = "acme/kernels/norms") -> None:
        self.projects: dict[str, int] = {project: 77}
        self.notes: dict[int, Note] = {}
        self.pulls: dict[tuple[str, int], MergeRequest] = {}
        self.statuses: dict[tuple[str, str], list[Status]] = defaultdict(list)
        self.access_levels: dict[tuple[str, str], int] = {}  # by project and username; others are no members
        self.people: dict[str, dict[str, Any]] = {str(US["username"]): US}
        self.tokens = {TOKEN}
        self.expired: set[str] = set()
        self.hidden: set[str] = set()  # projects that the token's account is no member of
        self.requests: list[tuple[str, str]] = []
        self.executed: list[str] = []  # quick actions that our notes commanded
        self._faults: list[tuple[str, str]] = []
        self._ids, self._users, self._now = itertools.count(100), itertools.count(500), itertools.count(1_700_000_000)

    # -- what tests do and see

    def fail_next(self, fault: str, path: str = "/notes", method: str = "POST") -> None:
        """Fail the next such request: 502, 502-after-commit, or one of the limits of `_answered`."""
        self._faults.append((f"{method} {path}", fault))

    def comments_on(self, project: str, iid: int) -> list[str]:
        return [one.body for one in self.notes.values() if (one.project, one.iid) == (project, iid) and not one.system]

    def somebody_says(self, project: str, iid: int, body: str, username: str = "mallory", *, bot: bool = False) -> int:
        note = Note(next(self._ids), project, iid, body, self.person(username, bot=bot))
        self.notes[note.id] = note
        return note.id

    def person(self, username: str, *, bot: bool = False) -> dict[str, Any]:
        new = {"id": next(self._users), "username": username, "name": username, "state": "active", "bot": bot}
        return self.people.setdefault(username, new)

    def reactions_to(self, note: int) -> list[str]:
        return [emoji for _, emoji, _ in self.notes[note].awards]

    def pull_is(self, project: str, iid: int, sha: str, target_branch: str, source_project_id: int | None) -> None:
        """A merge request was opened, or has another head now."""
        known = self.pulls.get((project, iid))
        author = known.author if known else self.person("ada")
        made = MergeRequest(iid, sha, f"pull-{iid}", target_branch, source_project_id, author)
        made.updated_at = next(self._now)
        self.pulls[project, iid] = made

    def writes(self) -> list[str]:
        return [f"{method} {path}" for method, path in self.requests if method != "GET"]

    def newest_statuses(self, project: str, sha: str) -> dict[str, Status]:
        return {one.name: one for one in self.statuses[project, sha]}

    # -- its webhooks

    def push_event(self, project: str, branch: str, before: str, after: str) -> dict[str, Any]:
        ada = self.person("ada")
        zeros = not after.strip("0")
        return {
            "object_kind": "push",
            "event_name": "push",
            "before": before,
            "after": after,
            "ref": f"refs/heads/{branch}",
            "checkout_sha": None if zeros else after,
            "user_id": ada["id"],
            "user_username": ada["username"],
            "project_id": self.projects[project],
            "project": self._project(project),
            "commits": [],
            "total_commits_count": 0,
        }

    def pull_event(self, project: str, iid: int, action: str, oldrev: str | None = None) -> dict[str, Any]:
        """The body of a Merge Request Hook, about the merge request as it is now."""
        pull = self.pulls[project, iid]
        about = {
            **self._pull_attributes(project, pull),
            "action": action,
            **({"oldrev": oldrev} if oldrev else {}),
        }
        return {
            "object_kind": "merge_request",
            "event_type": "merge_request",
            "user": _hook_user(self.person("ada")),
            "project": self._project(project),
            "object_attributes": about,
            "changes": {},
        }

    def comment_event(self, note: int, action: str = "create") -> dict[str, Any]:
        """The body of a Note Hook."""
        of = self.notes[note]
        about = {
            "id": of.id,
            "note": of.body,
            "noteable_type": "MergeRequest",
            "author_id": of.author["id"],
            "created_at": "2026-11-23 07:00:00 UTC",
            "updated_at": "2026-11-23 07:00:00 UTC",
            "project_id": self.projects[of.project],
            "noteable_id": 10_000 + of.iid,
            "system": of.system,
            "internal": False,
            "action": action,
        }
        pull = self.pulls[of.project, of.iid]
        return {
            "object_kind": "note",
            "event_type": "note",
            "user": _hook_user(of.author),
            "project_id": self.projects[of.project],
            "project": self._project(of.project),
            "object_attributes": about,
            "merge_request": self._pull_attributes(of.project, pull),
        }

    def _project(self, path: str) -> dict[str, Any]:
        return {"id": self.projects[path], "path_with_namespace": path, "default_branch": "main", "visibility_level": 0}

    def _pull_attributes(self, project: str, pull: MergeRequest) -> dict[str, Any]:
        return {
            "id": 10_000 + pull.iid,
            "iid": pull.iid,
            "target_branch": pull.target_branch,
            "source_branch": pull.source_branch,
            "source_project_id": pull.source_project_id,
            "target_project_id": self.projects[project],
            "author_id": pull.author["id"],
            "state": pull.state,
            "updated_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(pull.updated_at)),
            "merge_commit_sha": pull.merge_commit_sha,
            "last_commit": {"id": pull.sha},
        }

    # -- its API

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._served, methods=["GET", "POST", "PUT", "DELETE"])])

    async def _served(self, request: Request) -> Response:
        body = await request.body()
        said = json.loads(body) if body else {}
        path = request.scope["raw_path"].decode().partition("?")[0]  # a decoded %2F would be another folder
        query = dict(request.query_params)
        answer = self.answer(request.method, path, query, dict(request.headers), said, str(request.base_url))
        if answer.text is not None:
            return Response(answer.text, answer.status, answer.headers, "text/plain")
        return Response(json.dumps(answer.said), answer.status, answer.headers, "application/json")

    def answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], said: dict[str, Any], base: str
    ) -> Answer:
        self.requests.append((method, path))
        contract("gitlab").check_request(method, path, query, said)
        answer = self._answered(method, path, query, headers, said, base)
        if answer.text is not None:
            return answer
        return replace(answer, said=contract("gitlab").answer(method, path, answer.status, answer.said))

    def _answered(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], said: dict[str, Any], base: str
    ) -> Answer:
        fault = self._fault(method, path)
        now = int(time.time())
        limits = {"ratelimit-limit": "60", "ratelimit-remaining": "0", "ratelimit-reset": str(now + 30)}
        unused = {**limits, "ratelimit-remaining": "33"}
        match fault:
            case "502":
                return BROKEN
            case "limited":
                return Answer(429, headers={**limits, "retry-after": "30"}, text="Retry later\n")
            case "limited-by-clock":
                return Answer(429, headers=limits, text="Retry later\n")
            case "limited-notes":  # the headers are of another limit, which is not reached
                return Answer(429, {"message": {"error": TOO_MANY}}, headers=unused)
            case "limited-for-days":
                return Answer(429, headers={"retry-after": "999999"}, text="Retry later\n")
        answer = self._routed(method, path, query, headers, said, base)
        return BROKEN if fault == "502-after-commit" else answer

    def _fault(self, method: str, path: str) -> str | None:
        for place, (where, fault) in enumerate(self._faults):
            verb, _, part = where.partition(" ")
            if verb == method and part in path:
                del self._faults[place]
                return fault
        return None

    def _routed(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], said: dict[str, Any], base: str
    ) -> Answer:
        token = headers.get("private-token") or headers.get("authorization", "").removeprefix("Bearer ")
        if token in self.expired:
            return EXPIRED
        if token not in self.tokens:
            return Answer(401, {"message": "401 Unauthorized"})
        pull, note = r"/projects/([^/]+)/merge_requests/(\d+)", r"/notes/(\d+)"
        routes: list[tuple[str, str, Callable[..., Answer]]] = [
            ("GET", r"/user", lambda **_: Answer(200, US)),
            ("GET", r"/users/(\d+)", self._user),
            ("GET", r"/projects/([^/]+)", self._show_project),
            ("GET", r"/projects/([^/]+)/members/all/(\d+)", self._member),
            ("GET", pull, self._pull),
            ("GET", f"{pull}/notes", self._list_notes),
            ("POST", f"{pull}/notes", self._post_note),
            ("GET", f"{pull}{note}", self._one_note),
            ("PUT", f"{pull}{note}", self._edit_note),
            ("POST", f"{pull}{note}/award_emoji", self._award),
            ("POST", r"/projects/([^/]+)/statuses/([0-9a-f]+)", self._post_status),
            ("GET", r"/projects/([^/]+)/repository/commits/([0-9a-f]+)/statuses", self._list_statuses),
        ]
        for verb, pattern, handle in routes:
            if verb == method and (found := re.fullmatch(f"/api/v4{pattern}", path)):
                parts = list(found.groups())
                if "/projects/" in pattern:
                    project = unquote(parts[0])
                    if project not in self.projects or project in self.hidden:
                        return NO_PROJECT
                    parts[0] = project
                return handle(*parts, query=query, said=said, url=f"{base.rstrip('/')}{path}")
        return NOT_FOUND

    def _show_project(self, project: str, **_: Any) -> Answer:
        shown = {key: value for key, value in self._project(project).items() if key != "visibility_level"}
        return Answer(200, {**shown, "visibility": "private"})

    def _user(self, user: str, **_: Any) -> Answer:
        found = next((one for one in self.people.values() if one["id"] == int(user)), None)
        return Answer(200, found) if found else Answer(404, {"message": "404 User Not Found"})

    def _member(self, project: str, user: str, **_: Any) -> Answer:
        found = next((one for one in self.people.values() if one["id"] == int(user)), None)
        level = self.access_levels.get((project, found["username"]), 0) if found else 0
        if found is None or not level:
            return NOT_FOUND
        return Answer(200, {**_basic(found), "access_level": level, "expires_at": None})

    def _pull(self, project: str, iid: str, **_: Any) -> Answer:
        known = self.pulls.get((project, int(iid)))
        if known is None:
            return NOT_FOUND
        of_webhook = ("last_commit", "author_id")
        shared = {key: value for key, value in self._pull_attributes(project, known).items() if key not in of_webhook}
        found = {
            **shared,
            "project_id": self.projects[project],
            "sha": known.sha,
            "author": _basic(known.author),
            "squash_commit_sha": known.squash_commit_sha,
        }
        return Answer(200, found)

    def _list_notes(self, project: str, iid: str, *, query: dict[str, str], url: str, **_: Any) -> Answer:
        every = [one for one in self.notes.values() if (one.project, one.iid) == (project, int(iid))]
        if query.get("activity_filter") == "only_comments":
            every = [one for one in every if not one.system]
        every.sort(key=lambda one: one.id, reverse=query.get("sort", "desc") == "desc")
        return self._page([_note(one) for one in every], query, url)

    def _page(self, every: list[dict[str, Any]], query: dict[str, str], url: str) -> Answer:
        page, size = int(query.get("page", 1)), int(query.get("per_page", 20))
        pages, counted = max(1, -(-len(every) // size)), len(every) <= MAX_COUNTED
        links = {
            **({"prev": page - 1} if page > 1 else {}),
            **({"next": page + 1} if page < pages else {}),
            "first": 1,
            **({"last": pages} if counted else {}),
        }
        hrefs = {name: urlencode({**query, "page": number, "per_page": size}) for name, number in links.items()}
        headers = {
            "x-per-page": str(size),
            "x-page": str(page),
            "x-next-page": str(links.get("next", "")),
            "x-prev-page": str(links.get("prev", "")),
            "link": ", ".join(f'<{url}?{href}>; rel="{name}"' for name, href in hrefs.items()),
            **({"x-total": str(len(every)), "x-total-pages": str(pages)} if counted else {}),
        }
        return Answer(200, every[(page - 1) * size : page * size], headers)

    def _post_note(self, project: str, iid: str, *, said: dict[str, Any], **_: Any) -> Answer:
        if (project, int(iid)) not in self.pulls:
            return Answer(404, {"message": "404 Merge Request Not Found"})
        if not (body := self._carried_out(said["body"])).strip():
            return EMPTIED if said["body"].strip() else BLANK
        note = Note(next(self._ids), project, int(iid), body, US)
        self.notes[note.id] = note
        return Answer(201, _note(note))

    def _edit_note(self, project: str, iid: str, note: str, *, said: dict[str, Any], **_: Any) -> Answer:
        known = self._known(project, iid, note)
        if known is None:
            return NOT_FOUND
        if known.author["id"] != US["id"]:
            return FORBIDDEN
        known.body, known.edits = self._carried_out(said["body"]), known.edits + 1
        return Answer(200, _note(known))

    def _carried_out(self, body: str) -> str:
        """Carry out the quick actions of a note; what is left of it."""
        body = body.replace("\r", "")
        self.executed += [found[0].strip() for found in QUICK_ACTION.finditer(body)]
        return "\n".join(line for line in body.split("\n") if not QUICK_ACTION.match(line))

    def _one_note(self, project: str, iid: str, note: str, **_: Any) -> Answer:
        known = self._known(project, iid, note)
        return Answer(200, _note(known)) if known else NOT_FOUND

    def _known(self, project: str, iid: str, note: str) -> Note | None:
        known = self.notes.get(int(note))
        return known if known and (known.project, known.iid) == (project, int(iid)) else None

    def _award(self, project: str, iid: str, note: str, *, said: dict[str, Any], **_: Any) -> Answer:
        known = self._known(project, iid, note)
        if known is None:
            return NOT_FOUND
        if said.get("name") not in EMOJI:
            return Answer(404, {"message": "404 Award Emoji Name is not a valid emoji name Not Found"})
        if any((user, emoji) == (US["id"], said["name"]) for user, emoji, _ in known.awards):
            return Answer(404, {"message": "404 Award Emoji Name has already been taken Not Found"})
        award = next(self._ids)
        known.awards.append((int(str(US["id"])), said["name"], award))
        about = {"awardable_id": known.id, "awardable_type": "Note"}
        return Answer(201, {"id": award, "name": said["name"], "user": _basic(US), **about})

    def _post_status(self, project: str, sha: str, *, said: dict[str, Any], **_: Any) -> Answer:
        wanted, name, ref = said.get("state"), said.get("name", "default"), said.get("ref", "main")
        every = self.statuses[project, sha]
        open_one = next((one for one in every if (one.name, one.ref) == (name, ref) and one.status in OPEN), None)
        described = (said.get("description"), said.get("target_url"))
        if open_one is None:
            every.append(Status(next(self._ids), sha, ref, name, wanted, *described))
            return Answer(201, vars(every[-1]))
        if why := _no_transition(open_one.status, wanted):
            return Answer(400, {"message": why})
        open_one.status, (open_one.description, open_one.target_url) = wanted, described
        every.append(every.pop(every.index(open_one)))
        return Answer(201, vars(open_one))

    def _list_statuses(self, project: str, sha: str, *, query: dict[str, str], url: str, **_: Any) -> Answer:
        latest = {(one.ref, one.name): one for one in self.statuses[project, sha]}
        every = sorted(latest.values(), key=lambda one: one.id)
        return self._page([dict(vars(one)) for one in every], query, url)


def _no_transition(now: str, wanted: str) -> str | None:
    """Why a status cannot change like this, in GitLab's words."""
    event = {"pending": "enqueue", "running": "run"}.get(wanted)
    if event is None or (now, wanted) == ("pending", "running"):
        return None
    return f'Cannot transition status via :{event} from :{now} (Reason(s): Status cannot transition via "{event}")'


def _basic(user: dict[str, Any]) -> dict[str, Any]:
    """A user as part of another answer: it does not say whether they are a bot."""
    return {key: user[key] for key in ("id", "username", "name", "state")}


def _hook_user(user: dict[str, Any]) -> dict[str, Any]:
    """A user as a webhook has them."""
    return {key: user[key] for key in ("id", "username", "name")}


def _note(note: Note) -> dict[str, Any]:
    return {
        "id": note.id,
        "type": None,
        "body": note.body,
        "author": _basic(note.author),
        "system": note.system,
        "noteable_type": "MergeRequest",
        "noteable_id": 10_000 + note.iid,
        "noteable_iid": note.iid,
    }
