"""The same story on GitHub and on GitLab."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.fakes.contracts import webhooks
from tests.fakes.gitlab import LEVELS, TOKEN, FakeGitLab
from tests.stories.test_story import Event, Story, told

SECRET = "a-secret-token"


class GitLabStory(Story):
    """A project on GitLab, in a subgroup."""

    repo = "acme/kernels/norms"
    on = "gitlab"
    word = "merge request"
    heads = "refs/merge-requests/{}/head"
    paths: ClassVar = {"comments": "/merge_requests/{}/notes", "reactions": "/award_emoji", "permission": "/members/"}
    limited = "limited"
    changes_of_comments: ClassVar = ("edited",)  # the deletion of a note is not sent
    fake = FakeGitLab

    @classmethod
    def settings(cls, forge: str) -> dict[str, str]:
        return {"GITLAB_URL": forge, "GITLAB_TOKEN": TOKEN, "GITLAB_WEBHOOK_SECRET": SECRET}

    @property
    def gitlab(self) -> FakeGitLab:
        return self.forge

    def push_event(self, before: str, after: str) -> Event:
        return "push", self.gitlab.push_event(self.repo, "main", before, after)

    def head_event(self, number: int, sha: str, action: str, *, fork: bool = False) -> Event:
        known = self.gitlab.pulls.get((self.repo, number))
        self.gitlab.pull_is(self.repo, number, sha, "main", 4711 if fork else self.gitlab.projects[self.repo])
        named = {"opened": "open", "reopened": "reopen", "synchronize": "update"}[action]
        oldrev = known.sha if known and named == "update" else None
        return "merge_request", self.gitlab.pull_event(self.repo, number, named, oldrev)

    def merge_event(self, number: int, before: str, head: str, sha: str) -> Event:
        pull = self.gitlab.pulls[self.repo, number]
        pull.state, pull.merge_commit_sha = "merged", sha
        return "merge_request", self.gitlab.pull_event(self.repo, number, "merge")

    def written(self, number: int, text: str, *, by: str = "ada", kind: str = "User") -> int:
        self.gitlab.person(by)["bot"] = kind == "Bot"
        return self.gitlab.somebody_says(self.repo, number, text, by)

    def comment_event(self, comment: int, action: str = "created") -> Event:
        return "note", self.gitlab.comment_event(comment, {"created": "create", "edited": "update"}[action])

    def permit(self, login: str, permission: str) -> None:
        self.gitlab.person(login)
        self.gitlab.access_levels[self.repo, login] = LEVELS[permission]

    def close(self, number: int) -> None:
        self.gitlab.pulls[self.repo, number].state = "closed"

    def lose_comment(self, comment: int) -> None:
        del self.gitlab.notes[comment]

    def moved(self, number: int, sha: str) -> None:
        self.gitlab.pulls[self.repo, number].sha = sha

    def arrive(self, event: str, body: dict[str, object], *, guid: str | None = None, secret: str = SECRET) -> int:
        self._deliveries += 1
        attempt, key = f"attempt-{self._deliveries}", guid or f"delivery-{self._deliveries}"
        delivery = webhooks.from_gitlab(event, body, attempt=attempt, key=key, token=secret)
        return self.api("POST", "/webhooks/gitlab", **delivery).status_code

    def deliver(self, event: str, body: dict[str, object], *, guid: str | None = None, secret: str = SECRET) -> int:
        return super().deliver(event, body, guid=guid, secret=secret)

    def bodies(self) -> list[str]:
        return [one.body for one in self.gitlab.notes.values()]

    def reactions(self, comment: int) -> list[str]:
        return ["+1" if emoji == "thumbsup" else emoji for emoji in self.gitlab.reactions_to(comment)]

    def statuses(self, sha: str) -> list[str]:
        """In GitHub's words."""
        same = {"failed": "failure", "running": "pending"}
        found = self.gitlab.statuses[self.repo, sha]
        return [f"{same.get(one.status, one.status)}: {one.description}" for one in found]


@pytest.fixture(params=[Story, pytest.param(GitLabStory, marks=pytest.mark.long)], ids=["github", "gitlab"])
def story(
    request: pytest.FixtureRequest, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Story]:
    """On each of the forges."""
    with told(request.param, tmp_path, monkeypatch) as story:
        yield story


@pytest.fixture
def gitlab(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitLabStory]:
    """On GitLab alone."""
    with told(GitLabStory, tmp_path, monkeypatch) as story:
        assert isinstance(story, GitLabStory)
        yield story
