"""What only GitLab has: its webhook's secrets, its addresses, and how it refuses."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from standardwebhooks import Webhook

from service.db.engine import reading
from service.db.models import Delivery, Pull
from service.domain.states import RunState
from service.ops import doctor
from service.settings import settings
from tests import needs
from tests.fakes.contracts import webhooks
from tests.fakes.gitlab import TOKEN
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.stories.forge.forges import SECRET, GitLabStory, gitlab  # noqa: F401  (a fixture)
from tests.stories.forge.test_story_commands import regressions, states
from workers import control

SIGNING = "whsec_dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q="


@pytest.fixture
def norms(gitlab: GitLabStory) -> GitLabStory:  # noqa: F811
    """Ada is a Developer."""
    gitlab.permit("ada", "write")
    return gitlab


def signed(norms: GitLabStory, secret: str, guid: str, *, late_s: float = 0, token: str = "") -> int:
    """Post a push as a webhook with a signing token does; the status."""
    sha = norms.git("rev-parse", "main")
    body = webhooks.body_from_gitlab("Push Hook", norms.gitlab.push_event(norms.repo, "main", sha, sha)).decode()
    at = datetime.now(UTC) - timedelta(seconds=late_s)
    headers = {
        "x-gitlab-event": "Push Hook",
        "webhook-id": guid,
        "idempotency-key": guid,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(guid, at, body),
        "content-type": "application/json",
        **({"x-gitlab-token": token} if token else {}),
    }
    return norms.api("POST", "/webhooks/gitlab", content=body, headers=headers).status_code


def test_the_secret_is_rotated_from_a_token_to_a_signing_token(
    norms: GitLabStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = norms.push_event(*[norms.git("rev-parse", "main")] * 2)
    assert [norms.arrive(*event, secret=one) for one in (SECRET, "wrong", "", SIGNING)] == [202, 401, 401, 401]
    assert signed(norms, SIGNING, "one") == 401, "the server has no signing token yet"

    monkeypatch.setenv("KERNELWATCH_GITLAB_WEBHOOK_SECRET", SIGNING)
    monkeypatch.setenv("KERNELWATCH_GITLAB_WEBHOOK_SECRET_OLD", SECRET)
    settings.cache_clear()
    assert norms.arrive(*event, secret=SECRET) == 202
    assert norms.arrive(*event, secret=SIGNING) == 401, "a signing token is never sent"
    assert signed(norms, SIGNING, "two") == 202
    assert signed(norms, "whsec_" + "A" * 43 + "=", "three") == 401
    assert signed(norms, SIGNING, "four", late_s=400) == 401, "somebody repeats it"

    monkeypatch.delenv("KERNELWATCH_GITLAB_WEBHOOK_SECRET_OLD")
    settings.cache_clear()
    assert norms.arrive(*event, secret=SECRET) == 401
    assert signed(norms, SIGNING, "five", token="anything") == 202
    monkeypatch.delenv("KERNELWATCH_GITLAB_WEBHOOK_SECRET")
    settings.cache_clear()
    assert signed(norms, SIGNING, "six") == 403


def test_a_delivery_is_stored_once_however_often_gitlab_tries(norms: GitLabStory) -> None:
    event = norms.push_event(*[norms.git("rev-parse", "main")] * 2)
    for _ in range(3):
        norms.arrive(*event, guid="the-same")
    norms.arrive(*event, guid="another")
    with reading() as session:
        assert len(session.scalars(select(Delivery)).all()) == 2


def test_two_merge_requests_are_measured_and_reported_apart(norms: GitLabStory) -> None:
    slow, fine = norms.pull(7, action="opened", wide=300.0), norms.pull(8, action="opened", wide=201.0)
    [about_slow], about_fine = norms.said(7), norms.said(8)
    page = f"{settings().gitlab_url}/acme/kernels/norms/-"
    assert "1 of 2 cases" in about_slow
    assert f"({page}/commit/{slow})" in about_slow
    assert f"[[diff]]({page}/compare/{norms.git('rev-parse', 'main')}...{slow})" in about_slow
    assert all("github.com" not in said for said in (about_slow, *about_fine))
    assert norms.status(fine).startswith("success: ")
    shown = norms.gitlab.newest_statuses(norms.repo, slow)
    assert [(one.name, one.ref) for one in shown.values()] == [("kernelwatch / norms / cpu", "pull-7")]
    run = norms.api("GET", f"/runs/{norms.run_of(slow).id}").text
    assert f'{page}/commit/{slow}" rel="noreferrer">on GitLab</a>' in run
    assert f'<dt>Merge request</dt><dd><a href="{page}/merge_requests/7" rel="noreferrer">!7</a>' in run


def test_webhooks_that_arrive_in_another_order(norms: GitLabStory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "work", lambda device: 0)
    late = list[tuple[str, dict[str, object]]]()
    monkeypatch.setattr(norms, "deliver", lambda event, body, **_: late.append((event, body)) or 202)
    old, new = norms.pull(7, action="opened", wide=300.0), norms.pull(7, wide=301.0)
    monkeypatch.undo()
    monkeypatch.setattr(control, "work", lambda device: 0)
    for event, body in reversed(late):
        norms.deliver(event, body)
    assert (states(norms, old), states(norms, new)) == ([], [RunState.QUEUED])

    closing = norms.gitlab.pull_event(norms.repo, 7, "close")
    norms.deliver("merge_request", closing)
    for event, body in late:
        norms.deliver(event, body)
    assert states(norms, new) == [RunState.CANCELLED], "what is older than the closing opens nothing"
    assert norms.run_of(new).reason == "merge request !7 was closed"


def test_a_note_that_a_person_deletes_is_written_anew(norms: GitLabStory) -> None:
    norms.pull(7, action="opened", wide=300.0)
    [first] = norms.gitlab.notes
    norms.lose_comment(first)
    norms.comment(7, "/kernelwatch rerun")
    assert any("1 of 2 cases" in body for body in norms.said(7))
    assert first not in norms.gitlab.notes


@needs.skip_unless(not MEASURED_ANYWHERE, "bubblewrap")
def test_a_fork_is_held_and_a_new_push_voids_its_approval(norms: GitLabStory) -> None:
    first = norms.pull(7, action="opened", fork=True, wide=207.0)
    assert norms.status(first).startswith("failure: ")
    norms.comment(7, f"/kernelwatch approve {first}")
    assert states(norms, first) == [RunState.DONE]
    assert norms.gitlab.newest_statuses(norms.repo, first)["kernelwatch / norms / cpu"].ref == (
        "refs/merge-requests/7/head"
    )
    second = norms.pull(7, fork=True, wide=208.0)
    assert states(norms, second) == [RunState.HELD]


def test_an_accepted_merge_request_that_is_squashed_opens_no_alarm(norms: GitLabStory) -> None:
    """The webhook does not say as which commit."""
    norms.pull(7, action="opened", wide=300.0)
    norms.comment(7, "/kernelwatch accept exact rounding costs this")
    before = norms.git("rev-parse", "main")
    norms.git("merge", "--quiet", "--squash", "pull-7")
    norms.git("commit", "--quiet", "--message", "wide rows, squashed")
    squashed, pull = norms.git("rev-parse", "main"), norms.gitlab.pulls[norms.repo, 7]
    pull.state, pull.squash_commit_sha = "merged", squashed
    event = norms.gitlab.pull_event(norms.repo, 7, "merge")
    norms.deliver(*norms.push_event(before, squashed))
    norms.deliver("merge_request", event)
    assert [who for _, _, who in regressions()] == [["kernelwatch", "ada"]]
    with reading() as session:
        assert session.scalars(select(Pull.merged_as)).one() == squashed


def test_a_token_that_expires_delays_everything_and_loses_nothing(norms: GitLabStory) -> None:
    norms.gitlab.expired.add(TOKEN)
    head = norms.pull(7, action="opened", wide=300.0)
    assert norms.said(7) == []
    shown = norms.api("GET", "/api/v1/targets/norms").json()
    assert (shown["forge"], shown["forge_kind"]) == ("acme/kernels/norms", "gitlab")
    assert "KERNELWATCH_GITLAB_TOKEN is wrong, expired or revoked" in shown["forge_error"]
    named = {one.name: one for one in doctor.checks(lambda: None, ["host"])}
    assert named["GitLab"].ok
    assert "Token is expired" in named["GitLab: norms"].found
    norms.gitlab.expired.clear()
    norms.limits_are_over()
    norms.messages_are_due()
    norms.settle()
    assert len(norms.said(7)) == 1
    assert norms.status(head).startswith("success: ")


def test_doctor_names_what_is_missing(norms: GitLabStory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELWATCH_GITLAB_WEBHOOK_SECRET")
    monkeypatch.delenv("KERNELWATCH_GITLAB_TOKEN")
    settings.cache_clear()
    [check] = [one for one in doctor.checks(lambda: None, ["host"]) if one.name == "GitLab"]
    assert (check.ok, check.found) == (False, "KERNELWATCH_GITLAB_TOKEN and KERNELWATCH_GITLAB_WEBHOOK_SECRET not set")


def test_a_project_that_the_token_may_not_see_is_asked_again_later(norms: GitLabStory) -> None:
    norms.gitlab.hidden.add(norms.repo)
    head = norms.pull(7, action="opened", wide=300.0)
    assert "only to members" in norms.api("GET", "/api/v1/targets/norms").json()["forge_error"]
    asked = len(norms.gitlab.requests)
    norms.settle()
    assert len(norms.gitlab.requests) == asked
    norms.gitlab.hidden.clear()
    norms.limits_are_over()
    norms.messages_are_due()
    norms.settle()
    assert len(norms.said(7)) == 1
    assert norms.status(head).startswith("success: ")
