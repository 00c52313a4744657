"""The GitHub client posts each message once, whatever fails on the way."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import httpx
import pytest

from service.forge.forge import MAX_BODY, MAX_SUMMARY, CheckRun, ForgeFailed, PullHead
from service.forge.github import App, GitHub, Token, connect
from service.settings import settings
from tests.fakes.github import Answer, FakeGitHub, app_key
from tests.fakes.processes import served

REPO, SHA = "octo/norms", "a" * 40
THREADS = 5  # of the API that share a client: four writers, and one for what is done after a response
MARKER = "<!-- kernelwatch:norms:7 -->"


CHECK_TITLE = "Steady: no action needed"


class Clock:
    """A clock that advances only during sleep."""

    def __init__(self) -> None:
        self.now, self.slept = time.time(), list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def forge() -> FakeGitHub:
    return FakeGitHub()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(forge: FakeGitHub, clock: Clock) -> GitHub:
    return GitHub(Token("a-token"), forge.client(), sleep=clock.sleep, clock=clock)


@pytest.fixture
def app(forge: FakeGitHub) -> GitHub:
    return GitHub(App("1", app_key()), forge.client(), sleep=lambda _: None)


def check(
    client: GitHub,
    conclusion: str | None = "success",
    known: str | None = None,
    sha: str = SHA,
    commit_status: str = "success",
    annotations: Sequence[Mapping[str, Any]] = (),
    summary: str = "All is well.",
) -> str:
    status = "completed" if conclusion else "in_progress"
    title, url = CHECK_TITLE, "http://kernelwatch/runs/1"
    said = CheckRun(
        sha,
        "kernelwatch / norms / h200",
        status,
        conclusion,
        title,
        summary,
        url,
        commit_status,
        (),
        annotations,
    )
    return client.put_check(REPO, said, known)


# -- the comment


def test_one_comment_is_posted_and_then_edited_in_place(forge: FakeGitHub, client: GitHub) -> None:
    posted = client.upsert_comment(REPO, 7, MARKER, f"{MARKER}\n1 regression")
    edited = client.upsert_comment(REPO, 7, MARKER, f"{MARKER}\nno action needed", posted)

    assert posted == edited
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nno action needed"]


def test_a_body_without_its_marker_gets_it(forge: FakeGitHub, client: GitHub) -> None:
    client.upsert_comment(REPO, 7, MARKER, "no action needed")
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nno action needed"]


def test_a_comment_that_was_posted_unheard_is_found_again(forge: FakeGitHub, client: GitHub) -> None:
    forge.fail_next("502-after-commit")
    with pytest.raises(ForgeFailed, match="502") as failure:
        client.upsert_comment(REPO, 7, MARKER, "first")
    assert failure.value.passing

    client.upsert_comment(REPO, 7, MARKER, "second")
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nsecond"]


def test_the_marker_is_found_on_a_later_page(forge: FakeGitHub, client: GitHub) -> None:
    forge.page = 10
    for number in range(25):
        forge.somebody_says(REPO, 7, f"remark {number}")
    forge.somebody_says(REPO, 7, MARKER, "kernelwatch-bot")
    forge.somebody_says(REPO, 8, "elsewhere")

    client.upsert_comment(REPO, 7, MARKER, "found")
    assert forge.comments_on(REPO, 7)[-1] == f"{MARKER}\nfound"
    assert len(forge.comments_on(REPO, 7)) == 26


def test_somebody_elses_marker_does_not_catch_ours(forge: FakeGitHub, client: GitHub) -> None:
    forge.somebody_says(REPO, 7, f"{MARKER} gotcha")
    client.upsert_comment(REPO, 7, MARKER, "ours")
    assert forge.comments_on(REPO, 7) == [f"{MARKER} gotcha", f"{MARKER}\nours"]


def test_a_comment_that_somebody_deleted_is_posted_anew(forge: FakeGitHub, client: GitHub) -> None:
    posted = client.upsert_comment(REPO, 7, MARKER, "first")
    del forge.comments[int(posted)]
    assert client.upsert_comment(REPO, 7, MARKER, "second", posted) != posted
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nsecond"]


def test_a_body_is_cut_to_what_github_takes(forge: FakeGitHub, client: GitHub) -> None:
    client.upsert_comment(REPO, 7, MARKER, "x" * 100_000)
    [body] = forge.comments_on(REPO, 7)
    assert len(body) == MAX_BODY
    assert body.endswith("(truncated at GitHub's limit)")


# -- the check


def test_a_check_is_made_once_and_then_changed(forge: FakeGitHub, app: GitHub) -> None:
    begun = check(app, conclusion=None)
    ended = check(app, "neutral", begun)

    assert begun == ended
    assert len(forge.check_runs) == 1
    assert forge.checks[REPO, SHA]["conclusion"] == "neutral"
    assert forge.checks[REPO, SHA]["details_url"] == "http://kernelwatch/runs/1"


def test_a_check_that_was_made_unheard_is_found_again(forge: FakeGitHub, app: GitHub) -> None:
    forge.fail_next("502-after-commit", "/check-runs")
    with pytest.raises(ForgeFailed):
        check(app)
    check(app, "failure")
    [made] = forge.check_runs.values()
    assert made["conclusion"] == "failure"


@pytest.mark.parametrize("character", ["x", "é", "→", "🙂"])
def test_a_summary_is_cut_to_the_bytes_that_github_takes(forge: FakeGitHub, app: GitHub, character: str) -> None:
    check(app, "failure", summary=character * 65_000)
    summary = forge.checks[REPO, SHA]["output"]["summary"]
    size = len(summary.encode())
    if character == "x":
        assert summary == "x" * 65_000
    else:
        assert MAX_SUMMARY - 4 < size <= MAX_SUMMARY, "no more is cut than needed"
        assert summary.endswith(f"{character}\n\n(truncated at GitHub's limit)")


def remark(line: int, message: str = "spills none → 12") -> dict[str, Any]:
    where = {"path": "norms/rms.py", "start_line": line, "end_line": line}
    return {**where, "annotation_level": "warning", "title": "rms_fwd", "message": message}


def test_annotations_are_sent_in_requests_of_fifty(forge: FakeGitHub, app: GitHub) -> None:
    every = [remark(line) for line in range(1, 121)]
    check(app, annotations=every)
    assert forge.annotations_of(REPO, SHA) == every
    assert len(forge.check_runs) == 1
    assert [method for method, path in forge.requests if "check-runs" in path and method != "GET"] == [
        "POST",
        "PATCH",
        "PATCH",
    ]


def test_an_edited_check_has_each_annotation_once(forge: FakeGitHub, app: GitHub) -> None:
    forge.page = 2  # what is there is more than one page
    made = check(app, None, annotations=[remark(1), remark(2), remark(3)])
    assert check(app, "failure", made, annotations=[remark(1), remark(2), remark(3), remark(9)]) == made
    assert check(app, "failure", made, annotations=[remark(1), remark(2), remark(3), remark(9)]) == made
    assert [one["start_line"] for one in forge.annotations_of(REPO, SHA)] == [1, 2, 3, 9]


@pytest.mark.parametrize("before", [None, "failure"])
def test_a_check_with_an_annotation_that_does_not_apply_is_replaced(
    forge: FakeGitHub, app: GitHub, before: str | None
) -> None:
    first = check(app, before, annotations=[remark(1), remark(2)])
    second = check(app, "success", first, annotations=[remark(2)])
    assert second != first
    assert forge.annotations_of(REPO, SHA) == [remark(2)]
    assert [one["status"] for one in forge.check_runs.values()] == ["completed", "completed"], "none stays open"
    assert forge.checks[REPO, SHA]["conclusion"] == "success"


def test_annotations_that_were_sent_in_part_are_completed(forge: FakeGitHub, app: GitHub) -> None:
    every = [remark(line) for line in range(1, 61)]
    forge.fail_next("502", "/check-runs", "PATCH")
    with pytest.raises(ForgeFailed):
        check(app, annotations=every)
    check(app, annotations=every)
    assert forge.annotations_of(REPO, SHA) == every
    assert len(forge.check_runs) == 1


def test_a_check_that_is_refused_is_sent_again_with_its_title_and_a_link_only(forge: FakeGitHub, app: GitHub) -> None:
    forge.fail_next("422", "/check-runs")
    check(app, "failure", annotations=[remark(1)])
    made = forge.checks[REPO, SHA]
    assert (made["conclusion"], made["output"]["title"]) == ("failure", CHECK_TITLE)
    assert made["details_url"] in made["output"]["summary"]
    assert forge.annotations_of(REPO, SHA) == []
    assert not forge.statuses[REPO, SHA]


def test_a_check_that_is_refused_twice_becomes_a_status_that_says_so(forge: FakeGitHub, app: GitHub) -> None:
    for _ in range(2):
        forge.fail_next("422", "/check-runs")
    known = check(app, "failure", commit_status="failure")
    [status] = forge.statuses[REPO, SHA]
    assert (known, status["state"]) == (f"status:{status['id']}", "failure")
    assert status["description"] == f"GitHub refused the check: {CHECK_TITLE}"


def test_what_is_refused_as_a_status_too_is_reported_as_the_check(forge: FakeGitHub, app: GitHub) -> None:
    for path in ("/check-runs", "/check-runs", "/statuses"):
        forge.fail_next("422", path)
    with pytest.raises(ForgeFailed, match="check-runs") as refused:
        check(app, "failure")
    assert (refused.value.code, refused.value.passing) == (422, False)


def test_a_commit_status_has_no_annotations(forge: FakeGitHub, client: GitHub) -> None:
    check(client, annotations=[remark(1)])
    [status] = forge.statuses[REPO, SHA]
    assert "annotations" not in status


@pytest.mark.parametrize(
    ("conclusion", "state"),
    [
        (None, "pending"),
        ("success", "success"),
        ("neutral", "success"),
        ("skipped", "success"),
        ("failure", "failure"),
        ("action_required", "error"),
    ],
)
def test_who_may_not_write_checks_writes_a_status(
    forge: FakeGitHub, client: GitHub, conclusion: str | None, state: str
) -> None:
    made = check(client, conclusion, commit_status=state)

    [status] = forge.statuses[REPO, SHA]
    assert made == f"status:{status['id']}"
    assert (status["state"], status["context"]) == (state, "kernelwatch / norms / h200")
    assert not forge.check_runs


def test_what_was_a_status_stays_one_and_is_not_asked_again(forge: FakeGitHub, client: GitHub) -> None:
    known = check(client, None, commit_status="pending")
    asked = len(forge.requests)

    check(client, "success", known)
    check(client, "success", sha="b" * 40)

    assert [one["state"] for one in forge.statuses[REPO, SHA]] == ["pending", "success"]
    assert not [path for _, path in forge.requests[asked:] if "check-runs" in path]


def test_a_long_title_is_cut_for_a_status(forge: FakeGitHub, client: GitHub) -> None:
    client.put_check(REPO, CheckRun(SHA, "kernelwatch", "completed", "success", "x" * 300, "", None))
    assert len(forge.statuses[REPO, SHA][0]["description"]) == 140


# -- who we are


def test_an_app_asks_for_a_token_once_and_knows_its_own_comment(forge: FakeGitHub, app: GitHub) -> None:
    forge.somebody_says(REPO, 7, f"{MARKER} gotcha")
    app.upsert_comment(REPO, 7, MARKER, "first")
    app.upsert_comment(REPO, 7, MARKER, "second")

    assert forge.comments_on(REPO, 7) == [f"{MARKER} gotcha", f"{MARKER}\nsecond"]
    assert len([path for _, path in forge.requests if path.endswith("/access_tokens")]) == 1


def test_a_lent_token_that_was_revoked_is_asked_for_again(forge: FakeGitHub, app: GitHub) -> None:
    posted = app.upsert_comment(REPO, 7, MARKER, "first")
    forge.tokens.clear()
    app.upsert_comment(REPO, 7, MARKER, "second", posted)
    forge.tokens.clear()
    app.upsert_comment(REPO, 7, MARKER, "third")
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nthird"]


class RefusingGitHub(FakeGitHub):
    """Refused requests of several threads are answered together, so that all of them have used the same token."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = Barrier(THREADS, timeout=30)

    def answer(self, method: str, path: str, *more: Any) -> Answer:
        answer = super().answer(method, path, *more)
        if answer.status == 401:
            self.refused.wait()
        elif path.endswith("/installation"):
            time.sleep(0.1)  # the others look for a token while the first fetches one
        return answer


def test_a_revoked_token_is_replaced_for_every_thread_that_used_it() -> None:
    forge = RefusingGitHub()
    app = GitHub(App("1", app_key()), forge.client())
    forge.permissions[REPO, "ada"] = "write"
    app.permission(REPO, "ada", 1)
    forge.tokens.clear()
    with ThreadPoolExecutor(THREADS) as threads:
        found = threads.map(lambda _: app.permission(REPO, "ada", 1), range(THREADS))
        assert [*found] == ["write"] * THREADS


class LateGitHub(FakeGitHub):
    """Bob's request is refused only once ada's was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.bob_was_refused, self.ada_was_answered = Event(), Event()

    def answer(self, method: str, path: str, *more: Any) -> Answer:
        answer = super().answer(method, path, *more)
        if answer.status == 401 and "/bob/" in path:
            self.bob_was_refused.set()
            assert self.ada_was_answered.wait(30)
        return answer


def test_a_late_refusal_of_an_old_token_leaves_the_new_one() -> None:
    forge = LateGitHub()
    app = GitHub(App("1", app_key()), forge.client())
    app.permission(REPO, "ada", 1)
    forge.tokens.clear()
    with ThreadPoolExecutor(1) as thread:
        bob = thread.submit(app.permission, REPO, "bob", 2)
        assert forge.bob_was_refused.wait(30)
        app.permission(REPO, "ada", 1)
        forge.ada_was_answered.set()
        assert bob.result(30) == "read"
    assert len([path for _, path in forge.requests if path.endswith("/access_tokens")]) == 2


def test_a_lent_token_is_renewed_before_it_ends(forge: FakeGitHub) -> None:
    clock = Clock()
    client = GitHub(App("1", app_key()), forge.client(), sleep=clock.sleep, clock=clock)
    posted = client.upsert_comment(REPO, 7, MARKER, "first")
    clock.now += 1e9
    client.upsert_comment(REPO, 7, MARKER, "second", posted)
    assert len([path for _, path in forge.requests if path.endswith("/access_tokens")]) == 2


def test_a_token_of_an_installation_knows_its_comment_by_being_a_bot(forge: FakeGitHub) -> None:
    forge.tokens.add("ghs_given")
    client = GitHub(Token("ghs_given"), forge.client(), sleep=lambda _: None)
    forge.somebody_says(REPO, 7, f"{MARKER} gotcha")
    client.upsert_comment(REPO, 7, MARKER, "first")
    client.upsert_comment(REPO, 7, MARKER, "second")
    assert forge.comments_on(REPO, 7) == [f"{MARKER} gotcha", f"{MARKER}\nsecond"]


def test_an_app_that_is_not_installed_yet_writes_no_status_instead(forge: FakeGitHub, app: GitHub) -> None:
    forge.app_installed = False
    with pytest.raises(ForgeFailed, match="The GitHub App is not installed on octo/norms") as failure:
        check(app)
    assert (failure.value.passing, failure.value.owner, failure.value.repo) == (True, "", REPO), "not elsewhere"

    forge.app_installed = True
    assert check(app).startswith("check:")


def test_the_settings_say_who_we_are(state: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(**values: str) -> GitHub:
        for name, value in values.items():
            monkeypatch.setenv(f"KERNELWATCH_GITHUB_{name.upper()}", value)
        settings.cache_clear()
        return connect()

    with pytest.raises(ForgeFailed, match="KERNELWATCH_GITHUB_TOKEN"):
        connected()
    by_token = connected(token="a-token")
    assert connected() is by_token, "the pause between writes outlives one look at the outbox"
    assert connected(app_id="1", app_key=app_key()) is not by_token


def test_a_real_server_is_spoken_to(forge: FakeGitHub) -> None:
    with served(forge.app) as address:
        http = httpx.Client(base_url=address, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
        GitHub(Token("a-token"), http, pause_s=0).upsert_comment(REPO, 7, MARKER, "hello")
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nhello"]


def test_secrets_are_in_no_message(forge: FakeGitHub, clock: Clock) -> None:
    for credentials in (Token("hush-hush"), App("1", "hush-hush")):
        client = GitHub(credentials, forge.client(), sleep=clock.sleep, clock=clock)
        with pytest.raises(ForgeFailed) as failure:
            client.upsert_comment(REPO, 7, MARKER, "first")
        assert "hush" not in f"{failure.value} {credentials}"
        assert failure.value.passing, "they can be mended"
        assert failure.value.pause_s >= 600, "by a person"


# -- what goes wrong


@pytest.mark.parametrize(
    ("fault", "passing", "outage", "pause_s"),
    [
        ("502", True, True, (0, 0)),
        ("unreachable", True, True, (0, 0)),
        ("secondary", True, False, (7, 7)),
        ("primary", True, False, (590, 600)),
        ("secondary for days", True, False, (3600, 3600)),
        ("gone", False, False, (0, 0)),
    ],
)
def test_a_failure_says_whether_it_passes(
    forge: FakeGitHub, fault: str, passing: bool, outage: bool, pause_s: tuple[float, float]
) -> None:
    client = GitHub(Token("a-token"), forge.client(), sleep=lambda _: None)
    forge.fail_next(fault)
    with pytest.raises(ForgeFailed) as failure:
        client.upsert_comment(REPO, 7, MARKER, "first")
    assert (failure.value.passing, failure.value.outage) == (passing, outage)
    assert pause_s[0] <= failure.value.pause_s <= pause_s[1]


def test_a_clock_that_jumps_back_makes_no_write_wait_longer_than_the_pause(forge: FakeGitHub, clock: Clock) -> None:
    client = GitHub(Token("a-token"), forge.client(), sleep=clock.sleep, clock=clock)
    client.upsert_comment(REPO, 7, MARKER, "first")
    clock.now -= 3600
    before = clock.now
    client.upsert_comment(REPO, 8, MARKER, "second")
    assert clock.now - before <= 1


@pytest.mark.parametrize(("credentials", "owner"), [(Token("a-token"), ""), (App("1", app_key()), "octo")])
def test_a_rate_limit_names_the_owner_of_the_installation(
    forge: FakeGitHub, credentials: Token | App, owner: str
) -> None:
    client = GitHub(credentials, forge.client(), sleep=lambda _: None)
    forge.fail_next("secondary")
    with pytest.raises(ForgeFailed) as failure:
        client.upsert_comment(REPO, 7, MARKER, "first")
    assert failure.value.owner == owner


def test_a_limited_check_is_no_reason_to_fall_back(forge: FakeGitHub, client: GitHub) -> None:
    forge.fail_next("secondary", "/check-runs")
    with pytest.raises(ForgeFailed) as failure:
        check(client)
    assert failure.value.passing
    assert not forge.statuses[REPO, SHA]


def test_writes_are_a_second_apart(forge: FakeGitHub, client: GitHub, clock: Clock) -> None:
    began = clock.now
    for number in range(4):
        client.upsert_comment(REPO, number, MARKER, "hello")
    assert clock.now - began == pytest.approx(3)


def test_writes_of_several_threads_are_a_second_apart(clock: Clock) -> None:
    written: list[float] = []

    def answer(_request: httpx.Request) -> httpx.Response:
        time.sleep(0.05)  # the others want to write meanwhile
        written.append(clock.now)
        return httpx.Response(201, json={"id": 1})

    http = httpx.Client(base_url="https://api.github.test", transport=httpx.MockTransport(answer))
    client = GitHub(Token("a-token"), http, sleep=clock.sleep, clock=clock)
    with ThreadPoolExecutor(4) as threads:
        [*threads.map(lambda comment: client.react(REPO, 7, comment, "eyes"), range(4))]
    assert [at - written[0] for at in written] == pytest.approx([0, 1, 2, 3])


def test_a_next_page_elsewhere_is_not_handed_the_token() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(200, json=[], headers={"link": '<https://evil.test/steal>; rel="next"'})

    http = httpx.Client(base_url="https://api.github.test", transport=httpx.MockTransport(answer))
    with pytest.raises(ForgeFailed, match=r"evil\.test"):
        GitHub(Token("a-token"), http).upsert_comment(REPO, 7, MARKER, "hello")
    assert asked == ["api.github.test"]


@pytest.mark.parametrize("base", ["https://github.example/api/v3", "https://github.example/api/v3/"])
def test_an_enterprise_server_lies_under_a_path(base: str) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.method == "POST":
            return httpx.Response(201, json={"id": 1})
        next_page = f"{base.rstrip('/')}/repositories/1/comments?page=2"
        headers = {"link": f'<{next_page}>; rel="next"'} if len(asked) == 1 else {}
        return httpx.Response(200, json=[], headers=headers)

    http = httpx.Client(base_url=base, transport=httpx.MockTransport(answer))
    GitHub(Token("a-token"), http, sleep=lambda _: None).upsert_comment(REPO, 7, MARKER, "hello")
    mine = "/api/v3/repos/octo/norms/issues/7/comments"
    assert asked == [mine, "/api/v3/repositories/1/comments", mine]


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b"<html>", headers={"content-type": "application/json"}),
        httpx.Response(503, content=b"\xff\xfe", headers={"content-type": "text/html; charset=utf-8"}),
        httpx.Response(301, json={"message": "Moved Permanently"}, headers={"location": "https://evil.test"}),
        httpx.Response(422, content=b"nonsense", headers={"content-type": "text/plain"}),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_failure(answer: httpx.Response) -> None:
    http = httpx.Client(base_url="https://api.github.test", transport=httpx.MockTransport(lambda _: answer))
    with pytest.raises(ForgeFailed):
        GitHub(Token("a-token"), http).upsert_comment(REPO, 7, MARKER, "hello")


def test_a_reaction_is_made_once_and_one_to_a_deleted_comment_is_none(forge: FakeGitHub, client: GitHub) -> None:
    comment = forge.somebody_says(REPO, 7, "/kernelwatch run")
    assert client.react(REPO, 7, comment, "eyes") == client.react(REPO, 7, comment, "eyes")
    assert forge.reactions_to(comment) == ["eyes"]
    assert client.has_comment(REPO, 7, comment)

    del forge.comments[comment]
    assert not client.has_comment(REPO, 7, comment)
    assert client.react(REPO, 7, comment, "eyes") == ""


@pytest.mark.parametrize(
    ("whose", "state", "fork", "is_open"),
    [
        (REPO, "open", False, True),
        (REPO.upper(), "open", False, True),
        ("mallory/norms", "closed", True, False),
        (None, "open", True, True),
    ],
)
def test_a_pull_request_has_a_head_now(
    forge: FakeGitHub, client: GitHub, whose: str | None, state: str, fork: bool, is_open: bool
) -> None:
    forge.pull_is(REPO, 7, SHA, "b" * 40, whose)
    forge.pulls[REPO, 7].state = state
    assert client.pull(REPO, 7) == PullHead(SHA, "b" * 40, fork=fork, open=is_open, author="ada")


@pytest.mark.parametrize("role", ["none", "read", "triage", "write", "maintain", "admin"])
def test_a_permission_is_the_exact_role(forge: FakeGitHub, client: GitHub, role: str) -> None:
    forge.permissions[REPO, "ada"] = role
    assert client.permission(REPO, "ada", 1) == role


def test_kernelwatch_knows_its_own_name(client: GitHub, app: GitHub) -> None:
    assert (client.is_self("kernelwatch-bot"), client.is_self("ada")) == (True, False)
    assert (app.is_self("kernelwatch[bot]"), app.is_self("kernelwatch-bot")) == (True, False)
