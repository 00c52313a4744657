"""The GitLab client posts each note once, and says each status, whatever fails on the way."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.forge.forge import MAX_BODY, CheckRun, ForgeFailed
from service.forge.gitlab import GitLab, connect
from service.settings import settings
from tests.fakes.gitlab import LEVELS, TOKEN, FakeGitLab
from tests.fakes.processes import served

REPO, SHA = "acme/kernels/norms", "a" * 40
MARKER = "<!-- kernelwatch:norms:7 -->"
CHECK = CheckRun(SHA, "kernelwatch / norms / h200", "completed", "success", "Steady", "", "http://here/1", "success")


@pytest.fixture
def forge() -> FakeGitLab:
    made = FakeGitLab(REPO)
    made.pull_is(REPO, 7, SHA, "main", made.projects[REPO])
    return made


@pytest.fixture
def client(forge: FakeGitLab) -> Iterator[GitLab]:
    """The real client of httpx, and a real server."""
    with served(forge.app) as address, httpx.Client(base_url=f"{address}/api/v4", timeout=60) as http:
        yield GitLab(TOKEN, http, sleep=lambda _: None)


def check(status: str, state: str, title: str = "Steady", pull: int | None = 7) -> CheckRun:
    conclusion = {"error": "cancelled"}.get(state) if status == "completed" else None
    return CheckRun(SHA, CHECK.name, status, conclusion, title, "", CHECK.url, state, pull=pull)


def shown(forge: FakeGitLab) -> tuple[str, str | None, str]:
    status = forge.newest_statuses(REPO, SHA)[CHECK.name]
    return status.status, status.description, status.ref


def test_a_note_is_posted_once_and_edited_in_place(forge: FakeGitLab, client: GitLab) -> None:
    forge.somebody_says(REPO, 7, f"{MARKER}\nmine")
    first = client.upsert_comment(REPO, 7, MARKER, "one")
    assert client.upsert_comment(REPO, 7, MARKER, "two", first) == first
    assert client.upsert_comment(REPO, 7, MARKER, "three") == first, "it is found again, and not that of a stranger"
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nmine", f"{MARKER}\nthree"]


def test_our_note_is_found_behind_a_hundred_others(forge: FakeGitLab, client: GitLab) -> None:
    for number in range(230):
        forge.somebody_says(REPO, 7, f"note {number}")
    ours = client.upsert_comment(REPO, 7, MARKER, "one")
    asked = len(forge.requests)
    assert client.upsert_comment(REPO, 7, MARKER, "two") == ours
    assert len(forge.requests) - asked == 4, "three pages of 100, and the edit"


def test_a_note_that_a_person_deleted_is_posted_anew(forge: FakeGitLab, client: GitLab) -> None:
    first = client.upsert_comment(REPO, 7, MARKER, "one")
    del forge.notes[int(first)]
    assert client.upsert_comment(REPO, 7, MARKER, "two", first) != first
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\ntwo"]


def test_a_note_that_was_posted_unheard_is_not_posted_twice(forge: FakeGitLab, client: GitLab) -> None:
    forge.fail_next("502-after-commit")
    with pytest.raises(ForgeFailed, match="GitLab answered 502 to POST") as failed:
        client.upsert_comment(REPO, 7, MARKER, "one")
    assert failed.value.outage
    client.upsert_comment(REPO, 7, MARKER, "one")
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\none"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_of_a_build_log_commands_nothing(forge: FakeGitLab, client: GitLab, end: str) -> None:
    log = end.join(["", "/close", " /merge", "/assign @mallory", "/usr/bin/ld: no such file", "```", "/label ~bug"])
    note = client.upsert_comment(REPO, 7, MARKER, f"one{log}")
    client.upsert_comment(REPO, 7, MARKER, f"two{log}", note)
    assert forge.executed == []
    assert "\n/usr/bin/ld: no such file\n" in forge.comments_on(REPO, 7)[0]


def test_a_long_note_is_truncated(forge: FakeGitLab, client: GitLab) -> None:
    client.upsert_comment(REPO, 7, MARKER, "x" * 100_000)
    [body] = forge.comments_on(REPO, 7)
    assert len(body) == MAX_BODY
    assert body.endswith("(truncated at kernelwatch's limit)")


def test_a_status_goes_through_all_states(forge: FakeGitLab, client: GitLab) -> None:
    for status, state, expected in [
        ("queued", "pending", "pending"),
        ("in_progress", "pending", "running"),
        ("queued", "pending", "pending"),  # its worker was lost; from running to pending is no transition
        ("in_progress", "pending", "running"),
        ("completed", "success", "success"),  # a warning
        ("in_progress", "pending", "running"),
        ("completed", "failure", "failed"),
        ("queued", "pending", "pending"),  # measured again
        ("completed", "error", "canceled"),
        ("completed", "success", "success"),
    ]:
        client.put_check(REPO, check(status, state, title=f"{status} {state}"))
        assert shown(forge) == (expected, f"{status} {state}", "pull-7")


def test_the_same_state_twice_is_no_failure(forge: FakeGitLab, client: GitLab) -> None:
    first = client.put_check(REPO, check("in_progress", "pending"))
    assert client.put_check(REPO, check("in_progress", "pending")) == first
    assert shown(forge) == ("running", "Steady", "pull-7")
    client.put_check(REPO, check("in_progress", "pending", title="2 of 5 trials"))
    assert shown(forge) == ("running", "2 of 5 trials", "pull-7")


def test_a_status_that_was_posted_unheard_is_posted_again(forge: FakeGitLab, client: GitLab) -> None:
    forge.fail_next("502-after-commit", path="/statuses")
    with pytest.raises(ForgeFailed):
        client.put_check(REPO, check("queued", "pending"))
    client.put_check(REPO, check("queued", "pending"))
    assert [one.status for one in forge.statuses[REPO, SHA]] == ["pending"]


def test_a_status_is_shown_where_its_commit_is(forge: FakeGitLab, client: GitLab) -> None:
    client.put_check(REPO, check("queued", "pending", pull=None))
    assert shown(forge)[2] == "main"
    forge.pull_is(REPO, 8, SHA, "main", 4711)
    client.put_check(REPO, check("queued", "pending", pull=8))
    assert shown(forge)[2] == "refs/merge-requests/8/head", "a fork's commit is on no branch"
    client.put_check(REPO, check("queued", "pending", title="x" * 300))
    assert shown(forge)[1] == "x" * 255


def test_an_emoji_is_awarded_once(forge: FakeGitLab, client: GitLab) -> None:
    note = forge.somebody_says(REPO, 7, "/kernelwatch run", "ada")
    for content in ("eyes", "eyes", "+1", "confused"):
        assert client.react(REPO, 7, note, content)
    assert forge.reactions_to(note) == ["eyes", "thumbsup", "confused"]
    assert client.has_comment(REPO, 7, note)
    del forge.notes[note]
    assert not client.has_comment(REPO, 7, note)
    assert client.react(REPO, 7, note, "eyes") == ""


@pytest.mark.parametrize("permission", LEVELS)
def test_permissions_are_those_of_roles(forge: FakeGitLab, client: GitLab, permission: str) -> None:
    ada = forge.person("ada")
    forge.access_levels[REPO, "ada"] = LEVELS[permission]
    assert client.permission(REPO, "ada", ada["id"]) == permission
    ada["state"] = "blocked"
    assert client.permission(REPO, "ada", ada["id"]) == "none"
    assert client.permission(REPO, "nobody", 1) == "none"


def test_roles_between_the_named_ones_count_as_the_lower(forge: FakeGitLab, client: GitLab) -> None:
    ada = forge.person("ada")
    for level, permission in {5: "none", 15: "read", 25: "triage"}.items():
        forge.access_levels[REPO, "ada"] = level
        assert client.permission(REPO, "ada", ada["id"]) == permission


def test_a_merge_request_as_it_is_now(forge: FakeGitLab, client: GitLab) -> None:
    head = client.pull(REPO, 7)
    assert (head.sha, head.base, head.base_ref, head.fork, head.open, head.author) == (
        (SHA, None, "main", False, True, "ada")
    )
    pull = forge.pulls[REPO, 7]
    for source in (4711, None):
        pull.source_project_id = source
        assert client.pull(REPO, 7).fork
    pull.state = "merged"
    assert (client.pull(REPO, 7).open, client.pull(REPO, 7).merged_as) == (False, SHA), "a fast-forward"
    pull.squash_commit_sha = "b" * 40
    assert client.pull(REPO, 7).merged_as == "b" * 40
    pull.merge_commit_sha = "c" * 40
    assert client.pull(REPO, 7).merged_as == "c" * 40


def test_bots_and_ourselves_are_known(forge: FakeGitLab, client: GitLab) -> None:
    assert client.is_self("kernelwatch-bot")
    assert not client.is_self("ada")
    assert client.is_bot(forge.person("renovate", bot=True)["id"])
    assert not client.is_bot(forge.person("ada")["id"])
    assert not client.is_bot(99)


@pytest.mark.parametrize(
    ("fault", "least", "most"),
    [
        ("limited", 30, 30),
        ("limited-by-clock", 25, 31),
        ("limited-for-days", 3600, 3600),
        ("limited-notes", 60, 60),
    ],
)
def test_a_rate_limit_says_how_long_it_lasts(
    forge: FakeGitLab, client: GitLab, fault: str, least: float, most: float
) -> None:
    forge.fail_next(fault)
    with pytest.raises(ForgeFailed, match=r"GitLab answered 429 .*: .*(Retry|again) later") as failed:
        client.upsert_comment(REPO, 7, MARKER, "one")
    failure = failed.value
    assert failure.passing
    assert least <= failure.pause_s <= most
    assert (failure.repo, failure.owner) == ("", ""), "it is the account's"


def test_a_token_that_expired_pauses_all_of_gitlab(forge: FakeGitLab, client: GitLab) -> None:
    forge.expired.add(TOKEN)
    with pytest.raises(ForgeFailed, match=r"Token is expired.*KERNELWATCH_GITLAB_TOKEN is wrong, expired") as failed:
        client.upsert_comment(REPO, 7, MARKER, "one")
    assert (failed.value.passing, failed.value.pause_s, failed.value.repo) == (True, 600.0, "")


def test_a_project_that_is_not_shown_to_the_token_pauses_that_project(forge: FakeGitLab, client: GitLab) -> None:
    for ask in (
        lambda: client.upsert_comment("acme/secret", 7, MARKER, "one"),
        lambda: client.permission("acme/secret", "ada", 1),
        lambda: client.has_comment("acme/secret", 7, 1),
        lambda: client.react("acme/secret", 7, 1, "eyes"),
    ):
        with pytest.raises(ForgeFailed, match="only to members") as failed:
            ask()
        assert (failed.value.passing, failed.value.repo) == (True, "acme/secret")


def test_a_merge_request_that_is_gone_is_not_tried_again(client: GitLab) -> None:
    with pytest.raises(ForgeFailed, match="Merge Request Not Found") as failed:
        client.upsert_comment(REPO, 9, MARKER, "one")
    assert not failed.value.passing


def test_the_token_goes_to_no_other_host() -> None:
    asked = list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if request.url.path.endswith("/user"):
            return httpx.Response(200, json={"id": 1, "username": "us"})
        link = '<https://evil.example/api/v4/notes?page=2>; rel="next"'
        return httpx.Response(200, json=[], headers={"link": link})

    http = httpx.Client(base_url="https://gitlab.test/api/v4", transport=httpx.MockTransport(answer))
    with pytest.raises(ForgeFailed, match="on another host"):
        GitLab(TOKEN, http).upsert_comment(REPO, 7, MARKER, "one")
    assert not [url for url in asked if "evil" in url]


def test_writes_are_a_pause_apart(forge: FakeGitLab) -> None:
    slept = list[float]()
    with served(forge.app) as address, httpx.Client(base_url=f"{address}/api/v4", timeout=60) as http:
        client = GitLab(TOKEN, http, pause_s=5.0, sleep=slept.append, clock=lambda: 1000.0)
        for body in ("one", "two"):
            client.upsert_comment(REPO, 7, MARKER, body)
    assert slept == [0.0, 5.0]


def test_writes_of_several_threads_come_one_after_the_other() -> None:
    at_once: list[int] = []
    busy: set[str] = set()

    def answer(request: httpx.Request) -> httpx.Response:
        busy.add(request.url.path)
        at_once.append(len(busy))
        time.sleep(0.05)  # the others want to write meanwhile
        busy.remove(request.url.path)
        return httpx.Response(201, json={"id": 1})

    http = httpx.Client(base_url="https://gitlab.test/api/v4", transport=httpx.MockTransport(answer))
    client = GitLab(TOKEN, http, pause_s=0.0)
    with ThreadPoolExecutor(4) as threads:
        [*threads.map(lambda note: client.react(REPO, 7, note, "eyes"), range(4))]
    assert at_once == [1, 1, 1, 1]


def test_without_a_token_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELWATCH_GITLAB_TOKEN", raising=False)
    settings.cache_clear()
    with pytest.raises(ForgeFailed, match="set KERNELWATCH_GITLAB_TOKEN") as failed:
        connect()
    assert failed.value.passing
    settings.cache_clear()
