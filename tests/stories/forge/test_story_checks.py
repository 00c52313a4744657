"""kernelwatch as a GitHub App: the buttons of its checks, and what follows where it is uninstalled."""

import pytest
from sqlalchemy import select

from service.db.engine import reading
from service.db.models import Bisection
from service.domain.states import RunState
from service.ops import doctor
from service.settings import settings
from tests.fakes.contracts import webhooks
from tests.fakes.github import app_key
from tests.stories.test_story import Story, story  # noqa: F401  (a fixture)

REPO = "acme/norms"


@pytest.fixture
def app(story: Story, monkeypatch: pytest.MonkeyPatch) -> Story:  # noqa: F811
    """kernelwatch is a GitHub App, which writes checks; Ada may write to the repository."""
    monkeypatch.setenv("KERNELWATCH_GITHUB_APP_ID", "1")
    monkeypatch.setenv("KERNELWATCH_GITHUB_APP_KEY", app_key())
    settings.cache_clear()
    story.github.permissions[REPO, "ada"] = "write"
    return story


def check_of(app: Story, sha: str) -> dict[str, object]:
    return app.github.checks[REPO, sha]


def press(app: Story, sha: str, *, by: str = "ada", identifier: str | None = None, **delivery: str) -> None:
    """Press "Re-run", or a button of the check's own."""
    app.deliver("check_run", app.github.check_event(check_of(app, sha)["id"], by, identifier), **delivery)


def test_a_completed_check_has_buttons(app: Story) -> None:
    slow = app.pull(7, action="opened", wide=300.0)
    check = check_of(app, slow)
    assert check["status"] == "completed"
    assert [one["identifier"] for one in check["actions"]] == ["rerun", "bisect", "accept"]
    fine = app.push(wide=201.0)
    assert [one["identifier"] for one in check_of(app, fine)["actions"]] == ["rerun"]


@pytest.mark.parametrize("identifier", [None, "rerun"])
def test_a_check_of_a_pull_request_is_measured_again(app: Story, identifier: str | None) -> None:
    head = app.pull(7, action="opened", wide=300.0)
    before = check_of(app, head)["id"]
    press(app, head, identifier=identifier)
    first, second = app.runs(head)
    assert (second.state, second.pull, second.suite) == (RunState.DONE, 7, first.suite)
    assert check_of(app, head)["id"] == before
    assert check_of(app, head)["details_url"].endswith(f"/runs/{second.id}")
    assert app.answers() == [], "the check itself shows it"


def test_a_check_of_the_mainline_is_measured_again(app: Story) -> None:
    sha = app.push(wide=201.0)
    press(app, sha)
    assert [(run.state, run.pull) for run in app.runs(sha)] == [(RunState.DONE, None)] * 2


def test_all_checks_of_a_commit_are_measured_again(app: Story) -> None:
    app.watch_again("other")
    head = app.pull(7, action="opened", wide=300.0)
    assert len(app.runs(head)) == 2
    app.deliver("check_suite", app.github.suite_event(REPO, head))
    assert [run.state for run in app.runs(head)] == [RunState.DONE] * 4
    app.deliver("check_suite", app.github.suite_event(REPO, "a" * 40))
    assert len(app.runs(head)) == 4


def test_a_press_is_carried_out_once_however_often_it_is_delivered(app: Story) -> None:
    sha = app.push(wide=201.0)
    event = app.github.check_event(check_of(app, sha)["id"])
    for _ in range(2):
        app.deliver("check_run", event, guid="the-same")
    assert len(app.runs(sha)) == 2


def test_who_may_not_write_presses_in_vain(app: Story) -> None:
    head = app.pull(7, action="opened", wide=300.0)
    press(app, head, by="mallory")
    assert len(app.runs(head)) == 1
    [said] = app.answers()
    assert "needs `write` permission on `acme/norms`; you have `read`" in said


def test_an_older_head_is_not_measured_again(app: Story) -> None:
    old = app.pull(7, action="opened", wide=300.0)
    new = app.pull(7, wide=301.0)
    press(app, old)
    assert len(app.runs(old)) == 1
    [said] = app.answers()
    assert f"has a newer head, {new}" in said


def test_the_bisect_button_searches_the_pull_request(app: Story) -> None:
    app.pull(7, action="opened", wide=201.0)
    head = app.pull(7, wide=300.0)
    for _ in range(2):
        press(app, head, identifier="bisect")
    with reading() as session:
        [search] = session.scalars(select(Bisection)).all()
    assert (search.bad, search.asked_by) == (head, "ada")
    assert all("[bisection" in said for said in app.answers())


def test_the_accept_button_lets_the_check_pass(app: Story) -> None:
    head = app.pull(7, action="opened", wide=300.0)
    press(app, head, by="mallory", identifier="accept")
    assert "Accepted" not in check_of(app, head)["output"]["title"]
    press(app, head, identifier="accept")
    check = check_of(app, head)
    assert (check["status"], check["conclusion"]) == ("completed", "neutral")
    assert check["output"]["title"].startswith("Accepted by ada")


def test_checks_of_others_and_buttons_pressed_by_bots_do_nothing(app: Story) -> None:
    head = app.pull(7, action="opened", wide=300.0)
    event = app.github.check_event(check_of(app, head)["id"])
    app.deliver("check_run", {**event, "check_run": {**event["check_run"], "external_id": "ci"}})
    app.deliver("check_run", {**event, "check_run": {**event["check_run"], "id": 4711}})
    app.deliver("check_run", {**event, "sender": app.github.person("dependabot[bot]", "Bot")})
    app.deliver("check_run", {**event, "action": "completed"})
    assert len(app.runs(head)) == 1


@pytest.mark.parametrize(("gone", "back"), [("deleted", "created"), ("suspend", "unsuspend")])
def test_nothing_is_sent_while_the_app_is_away_and_all_of_it_afterwards(app: Story, gone: str, back: str) -> None:
    app.deliver("installation", app.github.installation_event(gone))
    asked = len(app.github.requests)
    head = app.pull(7, action="opened", wide=300.0)
    assert len(app.github.requests) == asked, "GitHub is not even asked"
    shown = app.api("GET", "/api/v1/targets/norms").json()
    assert "The GitHub App" in shown["forge_error"]
    assert "in the settings of acme" in app.api("GET", "/targets/norms").text
    [check] = [one for one in doctor.checks(lambda: None, ["host"]) if one.name == "GitHub: norms"]
    assert (check.ok, check.found) == (False, shown["forge_error"])

    app.deliver("installation", app.github.installation_event(back))
    assert check_of(app, head)["status"] == "completed"
    assert len(app.said(7)) == 1
    assert app.api("GET", "/api/v1/targets/norms").json()["forge_error"] is None


def test_an_app_that_is_away_is_noticed_without_its_delivery(app: Story) -> None:
    app.github.installation_event("deleted")
    app.pull(7, action="opened", wide=300.0)
    assert "is not installed on acme/norms" in app.api("GET", "/api/v1/targets/norms").json()["forge_error"]
    asked = len(app.github.requests)
    app.settle()
    assert len(app.github.requests) == asked


def test_one_repository_is_taken_from_the_app_and_given_back(app: Story) -> None:
    app.deliver("installation_repositories", app.github.repositories_event("removed", "acme/other"))
    assert app.api("GET", "/api/v1/targets/norms").json()["forge_error"] is None
    app.deliver("installation_repositories", app.github.repositories_event("removed", REPO))
    head = app.pull(7, action="opened", wide=300.0)
    assert (REPO, head) not in app.github.checks
    app.deliver("installation_repositories", app.github.repositories_event("added", REPO))
    assert check_of(app, head)["status"] == "completed"


@pytest.mark.parametrize(("wide", "conclusion"), [(201.0, "success"), (300.0, "neutral")])
def test_a_merge_queue_is_answered_at_the_head_of_its_group(app: Story, wide: float, conclusion: str) -> None:
    """A required check that stays silent there stalls the queue."""
    app.pull(7, action="opened", wide=wide)
    base = app.git("rev-parse", "main")
    branch = f"gh-readonly-queue/main/pr-7-{base}"
    app.git("checkout", "--quiet", "-b", branch)
    app.git("merge", "--quiet", "--no-ff", "--message", "Merge pull request #7", "pull-7")
    head = app.git("rev-parse", "HEAD")
    app.git("checkout", "--quiet", "main")

    app.deliver("merge_group", webhooks.merge_group("checks_requested", head, base))

    [run] = app.runs(head)
    assert (run.state, run.baseline, run.pull) == (RunState.DONE, base, None)
    check = check_of(app, head)
    assert (check["status"], check["conclusion"]) == ("completed", conclusion)
