"""GitLab's deliveries as events: what counts, what is ignored and why, and what is refused."""

import json
from typing import Any

import pytest

from service.errors import BadInput
from service.forge.events import Commented, Ignored, PullChanged, Pushed
from service.forge.gitlab import parse
from tests.fakes.contracts import webhooks
from tests.fakes.gitlab import FakeGitLab

REPO, OLD, NEW, ZEROS = "acme/kernels/norms", "a" * 40, "b" * 40, "0" * 40
MALLORY = {"id": 4711, "username": "mallory", "name": "mallory"}
LABELLED = {"labels": {"previous": [], "current": []}}
PUSH, CHANGE, NOTE = "Push Hook", "Merge Request Hook", "Note Hook"


@pytest.fixture
def forge() -> FakeGitLab:
    made = FakeGitLab(REPO)
    made.pull_is(REPO, 7, NEW, "main", made.projects[REPO])
    return made


def read(hook: str, said: dict[str, Any]) -> object:
    """The event of a body that GitLab may send."""
    return parse(hook, webhooks.body_from_gitlab(hook, said))


def read_unchecked(hook: str, said: Any) -> object:
    """The event of a body that GitLab sent in former versions, or never."""
    return parse(hook, json.dumps(said).encode())


def with_about(said: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {**said, "object_attributes": {**said["object_attributes"], **changed}}


def test_pushes(forge: FakeGitLab) -> None:
    assert read(PUSH, forge.push_event(REPO, "main", OLD, NEW)) == Pushed(REPO, "main", OLD, NEW)
    assert read(PUSH, forge.push_event(REPO, "a/b", ZEROS, NEW)) == Pushed(REPO, "a/b", None, NEW)
    assert read(PUSH, forge.push_event(REPO, "main", OLD, ZEROS)) == Pushed(REPO, "main", OLD, None)


@pytest.mark.parametrize(
    ("action", "oldrev", "known_as"),
    [
        ("open", None, "opened"),
        ("reopen", None, "reopened"),
        ("update", OLD, "synchronize"),
        ("close", None, "closed"),
        ("merge", None, "closed"),
    ],
)
def test_changes_of_merge_requests(forge: FakeGitLab, action: str, oldrev: str | None, known_as: str) -> None:
    found = read(CHANGE, forge.pull_event(REPO, 7, action, oldrev))
    assert isinstance(found, PullChanged)
    assert (found.repository, found.number, found.action, found.head) == (REPO, 7, known_as, NEW)
    assert (found.base_ref, found.base_sha, found.fork, found.author) == ("main", None, False, "ada")
    assert found.updated_at == forge.pulls[REPO, 7].updated_at
    assert found.merge_unnamed == (action == "merge")


@pytest.mark.parametrize("changed", ["target_branch", "merge_status"])
def test_another_target_branch_is_a_change_like_another_head(forge: FakeGitLab, changed: str) -> None:
    """In 2023 GitLab named of it only that it checks anew whether it can merge."""
    said = {**forge.pull_event(REPO, 7, "update"), "changes": {changed: {"previous": "a", "current": "b"}}}
    found = read(CHANGE, said)
    assert isinstance(found, PullChanged)
    assert found.action == "synchronize"


def test_times_of_old_and_new_versions_are_the_same(forge: FakeGitLab) -> None:
    said = forge.pull_event(REPO, 7, "open")
    for written in ("2026-11-23 07:00:00 UTC", "2026-11-23T07:00:00Z", "2026-11-23T08:00:00.000+01:00"):
        found = read(CHANGE, with_about(said, updated_at=written))
        assert isinstance(found, PullChanged)
        assert found.updated_at == 1795417200.0


def test_the_commit_of_a_merge(forge: FakeGitLab) -> None:
    said = forge.pull_event(REPO, 7, "merge")
    for sha, unnamed in ((OLD, False), (None, True)):  # a fast-forward makes no commit
        found = read(CHANGE, with_about(said, merge_commit_sha=sha))
        assert isinstance(found, PullChanged)
        assert (found.merged_as, found.merge_unnamed) == (sha, unnamed)


@pytest.mark.parametrize("source", [4711, None])
def test_another_source_project_is_a_fork(forge: FakeGitLab, source: int | None) -> None:
    forge.pull_is(REPO, 8, NEW, "main", source)
    found = read(CHANGE, forge.pull_event(REPO, 8, "open"))
    assert isinstance(found, PullChanged)
    assert found.fork


def test_who_pushed_to_a_merge_request_is_not_taken_for_its_author(forge: FakeGitLab) -> None:
    found = read(CHANGE, {**forge.pull_event(REPO, 7, "update", OLD), "user": MALLORY})
    assert isinstance(found, PullChanged)
    assert found.author == ""


def test_a_note_on_a_merge_request(forge: FakeGitLab) -> None:
    note = forge.somebody_says(REPO, 7, "/kernelwatch run\r\nplease", "ada")
    said = forge.comment_event(note)
    expected = Commented(REPO, 7, note, "ada", forge.person("ada")["id"], "/kernelwatch run")
    assert read(NOTE, said) == expected
    del said["object_attributes"]["action"]  # before GitLab 16.11
    assert read_unchecked(NOTE, said) == expected


def test_what_is_ignored_says_why(forge: FakeGitLab) -> None:
    note = forge.comment_event(forge.somebody_says(REPO, 7, "/kernelwatch run", "ada"))
    bot = forge.comment_event(forge.somebody_says(REPO, 7, "/kernelwatch run", "project_77_bot_4ffca233d8298ea1"))
    change = forge.pull_event(REPO, 7, "update", OLD)
    for event, said, why in [
        (CHANGE, forge.pull_event(REPO, 7, "update"), "neither its head nor its base changed"),
        (CHANGE, {**forge.pull_event(REPO, 7, "update"), "changes": LABELLED}, "neither its head nor its base"),
        (CHANGE, with_about(change, action="approved"), "approved; its head did not change"),
        (CHANGE, with_about(change, last_commit=None), "has no commits"),
        (NOTE, with_about(note, action="update"), "only a new one can be a command"),
        (NOTE, with_about(note, noteable_type="Issue"), "not on a merge request"),
        (NOTE, with_about(note, system=True), "GitLab's own, or internal"),
        (NOTE, with_about(note, internal=True), "GitLab's own, or internal"),
        (NOTE, bot, "not by a person"),
        (NOTE, {**note, "user": MALLORY}, "not by a person"),
    ]:
        found = read(event, said)
        assert isinstance(found, Ignored)
        assert why in found.why
    for hook in ("Pipeline Hook", "Tag Push Hook", "Confidential Note Hook"):
        assert read_unchecked(hook, note) == Ignored(f"kernelwatch does not use {hook!r} events")


def test_what_is_not_as_documented_is_refused(forge: FakeGitLab) -> None:
    push, change = forge.push_event(REPO, "main", OLD, NEW), forge.pull_event(REPO, 7, "open")
    note = forge.comment_event(forge.somebody_says(REPO, 7, "/kernelwatch run", "ada"))
    for event, said, why in [
        (NOTE, push, "The body is a 'push' event"),
        (PUSH, [], "not as GitLab documents it"),
        (PUSH, {**push, "before": "HEAD"}, "is not a commit"),
        (PUSH, {**push, "project": {"path_with_namespace": "norms"}}, "is not the path of a project"),
        (PUSH, {**push, "project": {"path_with_namespace": "a/b?c=d"}}, "is not the path of a project"),
        (CHANGE, with_about(change, iid=2**40), "is not the number"),
        (CHANGE, with_about(change, last_commit={"id": "x"}), "is not a commit"),
        (CHANGE, with_about(change, target_branch=""), "branch's name"),
        (NOTE, with_about(note, id="1"), "not as GitLab documents it"),
    ]:
        with pytest.raises(BadInput) as refused:
            read_unchecked(event, said)
        assert why in str(refused.value)
    with pytest.raises(BadInput, match="not JSON"):
        parse(PUSH, b"\xff")
