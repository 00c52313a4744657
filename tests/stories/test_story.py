"""The manual as a story: push, measure, comment, edit of the comment, revert.

Everything is the real thing (git, webhooks, the API, the queue, the sandbox, processes, the outbox over HTTP) but for
two edges: GitHub is a fake that keeps what it was told, and contenders are processes whose timings are scripted by a
file in the repository, `speed.json`.
"""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from sqlalchemy import select, update

from service.app import create_app
from service.db.engine import reading, transaction
from service.db.models import (
    Account,
    BuildLog,
    Delivery,
    OutboxMessage,
    RegressionRow,
    Revision,
    Run,
    Target,
    VerdictRow,
)
from service.domain.states import ForgeKind, RegressionState, RunState
from service.forge.clients import addresses
from service.ledger import stored_texts, targets
from service.ledger.intake import deliveries
from service.ledger.notify import compose, outbox
from service.ledger.runs import queue
from service.reports.words import of_verdict
from service.settings import settings
from tests.fakes.contracts import webhooks
from tests.fakes.github import FakeGitHub
from tests.fakes.processes import scripted_python, served
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.shell import attempt
from workers import control
from workers.machine import environments

FAST, WIDE = "rmsnorm.fwd.512x512.fp32", "rmsnorm.fwd.64x4096.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "story"
sota = "inductor"

[base]
stack = "scripted"

[build]
commands = ["seq -s ' ' 1 60; test ! -e broken || {{ seq 100; cat broken; echo 'error: no such header' >&2; exit 1; }}"]

[paths]
ignore = ["*.md"]

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"

[suites]
story = ["{FAST}", "{WIDE}"]
quick = ["{FAST}"]

[policy]
smallest_change = 0.05
screening = [3, 5]
rounds = 6
"""


MINUTES_S = 300.0  # of an hour for which a contender that hangs would sleep


Event = tuple[str, dict[str, Any]]  # the name of a webhook, and its body


class Story:
    """A repository on GitHub with people who push to it, and what kernelwatch does about it."""

    repo = "acme/norms"
    on = "github"
    word = "pull request"
    recipe: ClassVar = RECIPE
    names: ClassVar[dict[str, str]] = {"fast": FAST, "wide": WIDE}
    first: ClassVar[dict[str, object]] = {"fast": 100.0, "wide": 200.0}
    heads = "refs/pull/{}/head"
    paths: ClassVar = {"comments": "/issues/{}/comments", "reactions": "/reactions", "permission": "/permission"}
    limited = "primary"
    changes_of_comments: ClassVar[tuple[str, ...]] = ("edited", "deleted")
    fake: ClassVar[type[Any]] = FakeGitHub

    def __init__(self, repository: Path, forge: Any, address: str) -> None:
        self.repository, self.forge, self.address = repository, forge, address
        self._deliveries = 0
        self._bases: dict[int, str] = {}  # of pull requests, as they were opened: GitHub does not move them

    @classmethod
    def settings(cls, forge: str) -> dict[str, str]:
        """What an operator sets to connect the forge at this address."""
        return {"WEBHOOK_SECRET": "s3cret", "GITHUB_API": forge, "GITHUB_TOKEN": "a-token"}

    @property
    def github(self) -> FakeGitHub:
        return self.forge

    # -- what people do

    def commit(self, message: str = "work", /, **speeds: object) -> str:
        """Change how fast cases are (`fast=120.0`, `wide="invalid: y is wrong"`) or other files, and commit it."""
        file = self.repository / "speed.json"
        table = json.loads(file.read_text()) if file.exists() else {}
        for name, value in speeds.items():
            table[self.names[name]] = value
        # Empty lines between the cases, so that git merges two branches that each change another one.
        file.write_text(json.dumps(table, indent=1).replace("\n", "\n\n"))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.repository, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def push(self, message: str = "work", /, **speeds: object) -> str:
        before = self.git("rev-parse", "HEAD")
        sha = self.commit(message, **speeds)
        self.deliver(*self.push_event(before, sha))
        return sha

    def push_event(self, before: str, after: str) -> Event:
        return "push", webhooks.push(before, after)

    def pull(self, number: int, /, *, action: str = "synchronize", fork: bool = False, **speeds: object) -> str:
        """A new head of a pull request."""
        branch = f"pull-{number}"
        known = self.git("branch", "--list", branch)
        self.git("checkout", "--quiet", *([branch] if known else ["-b", branch]))
        sha = self.commit(f"pull request {number}", **speeds)
        self.git("checkout", "--quiet", "main")
        self.head(number, sha, action=action, fork=fork)
        return sha

    def head(self, number: int, sha: str, *, action: str = "synchronize", fork: bool = False) -> None:
        """The forge tells that the head of a pull request is this commit now."""
        self.git("update-ref", self.heads.format(number), sha)
        self.deliver(*self.head_event(number, sha, action, fork=fork))

    def head_event(self, number: int, sha: str, action: str, *, fork: bool = False) -> Event:
        if action == "opened" or number not in self._bases:
            self._bases[number] = self.git("rev-parse", "main")
        base, whose = self._bases[number], "stranger/norms" if fork else "acme/norms"
        self.github.pull_is("acme/norms", number, sha, base, whose)
        return "pull_request", webhooks.pull_request(number, action, sha, base, whose=whose)

    def merge(self, number: int) -> str:
        """Merge a pull request; the forge tells of the push and of the merge."""
        before, head = self.git("rev-parse", "main"), self.git("rev-parse", f"pull-{number}")
        self.git("merge", "--quiet", "--no-ff", "--message", f"merge pull request {number}", f"pull-{number}")
        sha = self.git("rev-parse", "main")
        merged = self.merge_event(number, before, head, sha)
        self.deliver(*self.push_event(before, sha))
        self.deliver(*merged)
        return sha

    def merge_event(self, number: int, before: str, head: str, sha: str) -> Event:
        self.github.pulls["acme/norms", number].state = "closed"
        merged = {"state": "closed", "merged": True, "merge_commit_sha": sha}
        return "pull_request", webhooks.pull_request(number, "closed", head, before, **merged)

    def comment(self, number: int, text: str, *, by: str = "ada", kind: str = "User") -> int:
        """Somebody comments on a pull request; the comment's id."""
        comment = self.written(number, text, by=by, kind=kind)
        self.deliver(*self.comment_event(comment))
        return comment

    def written(self, number: int, text: str, *, by: str = "ada", kind: str = "User") -> int:
        """Somebody wrote a comment, whose webhook is on its way; the comment's id."""
        return self.github.somebody_says(self.repo, number, text, by, kind)

    def comment_event(self, comment: int, action: str = "created") -> Event:
        return "issue_comment", self.github.comment_event(comment, action)

    def permit(self, login: str, permission: str) -> None:
        """Somebody gets this permission on the repository, in GitHub's words."""
        self.github.permissions[self.repo, login] = permission

    def close(self, number: int) -> None:
        """A pull request is closed; its webhook has not arrived."""
        self.github.pulls[self.repo, number].state = "closed"

    def lose_comment(self, comment: int) -> None:
        """Somebody deletes a comment."""
        del self.github.comments[comment]

    def fail_next(self, fault: str, what: str, number: int = 7, method: str = "POST") -> None:
        """The forge fails the next request about comments, reactions or a permission."""
        self.forge.fail_next(fault, path=self.paths[what].format(number), method=method)

    def deliver(self, event: str, body: dict[str, object], *, guid: str | None = None, secret: str = "s3cret") -> int:
        """Post a webhook as the forge does; then let kernelwatch do all that there is to do."""
        status = self.arrive(event, body, guid=guid, secret=secret)
        self.settle()
        return status

    def arrive(self, event: str, body: dict[str, object], *, guid: str | None = None, secret: str = "s3cret") -> int:
        """Post a webhook that is not processed yet."""
        self._deliveries += 1
        delivery = webhooks.from_github(event, body, guid=guid or f"delivery-{self._deliveries}", secret=secret)
        return self.api("POST", "/webhooks/github", **delivery).status_code

    @property
    def last_delivery(self) -> int:
        return self._deliveries

    def force_push(self, number: int) -> str:
        """Another commit in place of the head of a pull request; the delivery of it has not arrived."""
        self.git("checkout", "--quiet", f"pull-{number}")
        self.git("commit", "--quiet", "--amend", "--message", f"pull request {number}, anew")
        sha = self.git("rev-parse", "HEAD")
        self.git("checkout", "--quiet", "main")
        self.git("update-ref", self.heads.format(number), sha)
        self.moved(number, sha)
        return sha

    def moved(self, number: int, sha: str) -> None:
        self.github.pulls[self.repo, number].head = sha

    # -- what kernelwatch does

    def settle(self) -> None:
        """One look of the control worker, one of the device worker, one more to say what was found."""
        deliveries.process_due()
        self.speak()
        control.work("cpu")
        self.speak()

    def its_time_has_come(self) -> None:
        """What waits in the queue for another attempt has waited long enough."""
        with transaction() as session:
            session.execute(update(Run).values(not_before=0.0))

    def deliveries_are_due(self) -> None:
        """What failed to be processed has waited long enough."""
        with transaction() as session:
            session.execute(update(Delivery).values(received_at=0.0))

    def messages_are_due(self) -> None:
        """What failed to be sent has waited long enough."""
        with transaction() as session:
            session.execute(update(OutboxMessage).values(next_at=0.0))

    def limits_are_over(self) -> None:
        """The forge takes requests again."""
        with transaction() as session:
            session.execute(update(Target).values(forge_paused_until=0.0))

    def watch_again(self, name: str) -> None:
        """Watch the same repository with another target."""
        with transaction() as session:
            where = {"location": str(self.repository), "branch": "main", "forge": f"{self.on}:{self.repo}"}
            targets.register(session, name, recipe_text=RECIPE, **where, **MEASURED_ANYWHERE)

    def disable(self, login: str) -> None:
        """An administrator keeps somebody out who has signed in before."""
        whose = {"issuer": addresses()[ForgeKind(self.on)], "subject": str(self.forge.person(login)["id"])}
        with transaction() as session:
            session.add(Account(login=login, admin=False, created_at=0.0, signed_in_at=0.0, disabled_at=1.0, **whose))

    def address_of(self, run: Run) -> str:
        return f"{settings().address}/runs/{run.id}"

    def speak(self) -> None:
        compose.notify_due()
        outbox.deliver_due()

    def api(self, method: str, path: str, **rest: object) -> httpx.Response:
        return httpx.request(method, self.address + path, timeout=60, **rest)

    # -- what there is to see

    def run_of(self, sha: str) -> Run:
        with reading() as session:
            found = session.execute(
                select(Run).join(Revision).where(Revision.sha == sha).order_by(Run.id.desc()).limit(1)
            )
            return found.scalar_one()

    def runs(self, sha: str | None = None) -> list[Run]:
        which = (Revision.sha == sha,) if sha else ()
        with reading() as session:
            return list(session.execute(select(Run).join(Revision).where(*which).order_by(Run.id)).scalars())

    def outcomes(self, sha: str) -> dict[str, str]:
        run = self.run_of(sha)
        with reading() as session:
            rows = session.execute(
                select(VerdictRow).where(VerdictRow.run_id == run.id, VerdictRow.baseline_kind == "parent")
            ).scalars()
            return {row.case: row.outcome for row in rows}

    def open_regressions(self) -> set[str]:
        with reading() as session:
            rows = session.execute(select(RegressionRow).where(RegressionRow.state == RegressionState.OPEN)).scalars()
            return {row.case for row in rows}

    def said(self, number: int) -> list[str]:
        return self.forge.comments_on(self.repo, number)

    def answer(self, comment: int) -> str:
        """The one answer to a command, without its marker."""
        marker = f"<!-- kernelwatch: answer to comment {comment} -->"
        [body] = [body for body in self.bodies() if marker in body]
        return body.removesuffix(marker).strip()

    def answers(self) -> list[str]:
        return [body for body in self.bodies() if "<!-- kernelwatch: answer" in body]

    def bodies(self) -> list[str]:
        return [one.body for one in self.github.comments.values()]

    def reactions(self, comment: int) -> list[str]:
        """The reactions to a comment, in GitHub's words."""
        return self.forge.reactions_to(comment)

    def statuses(self, sha: str) -> list[str]:
        """What became of a commit's status: `success: Skipped, no action needed: ...`, the newest last."""
        return [f"{one['state']}: {one['description']}" for one in self.github.statuses["acme/norms", sha]]

    def status(self, sha: str) -> str:
        return self.statuses(sha)[-1]


@contextmanager
def told(kind: type[Story], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    """A watched repository with one commit that is measured already."""
    repository = folder / "norms"
    repository.mkdir()
    fake = kind.fake()
    python = scripted_python(folder / "stack")
    with served(fake.app) as forge:
        for name, value in {
            "ALLOWED_ROOTS": json.dumps([str(folder)]),
            "DEVICE": "cpu",
            "WRITE_PAUSE_S": "0",
            **kind.settings(forge),
        }.items():
            monkeypatch.setenv(f"KERNELWATCH_{name}", value)
        settings.cache_clear()
        control.devices.cache_clear()
        environments.adopt_stack("scripted", python, [])
        with served(create_app()) as address:
            story = kind(repository, fake, address)
            story.git("init", "--quiet", "--initial-branch=main")
            story.git("config", "user.email", "ada@example.org")
            story.git("config", "user.name", "Ada")
            story.commit("first", **kind.first)
            with transaction() as session:
                where = {"location": str(repository), "branch": "main", "forge": f"{kind.on}:{kind.repo}"}
                target = targets.register(session, "norms", recipe_text=kind.recipe, **where, **MEASURED_ANYWHERE)
            deliveries.backfill_last(target.id, 1)
            story.settle()
            yield story
    control.devices.cache_clear()


@pytest.fixture
def story(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    with told(Story, tmp_path, monkeypatch) as story:
        yield story


@pytest.mark.every_run
def test_a_push_is_measured_judged_and_shown(story):
    slow = story.push("wide rows in two passes", wide=260.0)

    assert story.outcomes(slow) == {FAST: "steady", WIDE: "regression"}
    assert story.open_regressions() == {WIDE}
    run = story.run_of(slow)
    shown = story.api("GET", f"/api/v1/runs/{run.id}").json()
    assert shown["state"] == "done"
    page = story.api("GET", f"/runs/{run.id}").text
    assert "wide rows in two passes" in page
    assert story.status(slow).startswith("success: 1 of 2 cases"), "advisory: it says what it found, and blocks nothing"


@pytest.mark.every_run
def test_a_slow_pull_request_is_told_so_once_and_the_comment_is_edited_in_place(story):
    slow = story.pull(7, action="opened", wide=300.0)
    [comment] = story.said(7)
    assert re.match(r"### ✗ \[kernelwatch, CPU: 1 of 2 cases [\d.]+ % slower\]\(http\S+/runs/\d+\)\n", comment)
    assert slow[:7] in comment
    assert WIDE in comment

    slower = story.pull(7, wide=500.0, fast=150.0)
    [comment] = story.said(7)
    assert "2 of 2 cases up to " in comment.splitlines()[0]
    assert slower[:7] in comment
    assert slow[:7] not in comment

    mended = story.pull(7, wide=200.0, fast=100.0)
    [comment] = story.said(7)
    assert "no action needed" in comment.lower()
    assert mended[:7] in comment
    assert story.open_regressions() == set(), "a pull request is not the mainline"


def test_a_pull_request_is_told_how_it_stands_and_hears_of_it_once_there_is_something_to_say(story, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(control, "work", lambda device: 0)  # the worker is busy elsewhere
        head = story.pull(7, action="opened", wide=300.0)
    assert story.statuses(head) == ["pending: Queued: nothing to do yet"]
    assert story.said(7) == [], "a notification that says nothing"

    story.settle()
    assert story.status(head).startswith("success: 1 of 2 cases")
    [comment] = story.said(7)
    assert "1 of 2 cases" in comment.splitlines()[0]

    with monkeypatch.context() as patch:
        patch.setattr(control, "work", lambda device: 0)
        newer = story.pull(7, wide=200.0)
    [comment] = story.said(7)
    assert comment.startswith("### … [kernelwatch, CPU: queued]("), "the result of the older head is gone"
    assert f"[`{newer[:7]}`]" in comment


def test_a_pull_request_of_documentation_does_not_wait_for_its_check(story):
    (story.repository / "README.md").write_text("# norms")
    docs = story.pull(7, action="opened")
    assert story.statuses(docs) == ["success: Skipped, no action needed: no path of the recipe changed"]
    assert story.said(7) == []


def test_a_pull_request_that_goes_back_to_an_older_head_is_told_of_that_again(story):
    good = story.pull(7, action="opened", wide=201.0)
    slow = story.pull(7, wide=300.0)
    [comment] = story.said(7)
    assert slow[:7] in comment

    story.head(7, good)

    assert len([run for run in story.runs() if run.pull]) == 2, "nothing is measured twice"
    [comment] = story.said(7)
    assert comment.startswith("### ✓ [kernelwatch, CPU: no action needed](")
    assert f"[`{good[:7]}`]" in comment
    assert slow[:7] not in comment


def test_a_requested_run_does_not_replace_the_result_of_the_pull_request(story):
    slow = story.pull(7, action="opened", wide=300.0)
    said, told = story.said(7), story.statuses(slow)
    [first] = story.runs(slow)

    assert deliveries.run_revision("norms", slow) == [first.id], "it answers: the comparison is the same"
    deliveries.run_revision("norms", slow, again=True)
    deliveries.run_revision("norms", slow, suite="quick")
    story.settle()

    assert {run.state for run in story.runs(slow)} == {RunState.DONE}
    assert len(story.runs(slow)) == 3
    assert (story.said(7), story.statuses(slow)) == (said, told)
    main = story.git("rev-parse", "main")
    before = story.statuses(main)
    deliveries.run_revision("norms", main, suite="quick")
    story.settle()
    assert story.statuses(main) == before


def test_a_run_that_was_given_up_is_told_of(story, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(environments, "build", full)
        head = story.pull(7, action="opened", wide=190.0)
        for _ in range(2):
            assert story.run_of(head).state is RunState.QUEUED
            assert "next attempt" in story.run_of(head).reason
            story.its_time_has_come()
            story.settle()
    assert story.run_of(head).state is RunState.FAILED
    assert story.status(head).startswith("error: Not measured: given up after 3 attempts")
    [comment] = story.said(7)
    assert "No space left on device" in comment
    assert "says nothing about the change itself" in comment


def test_a_backfill_is_told_of_only_where_something_was_measured(story, monkeypatch):
    (story.repository / "README.md").write_text("# norms")
    docs, fast = story.commit("docs"), story.commit("faster", fast=90.0)
    with monkeypatch.context() as patch:
        patch.setattr(control, "work", lambda device: 0)
        deliveries.backfill_last(1, 2)
        story.settle()
    assert (story.statuses(docs), story.statuses(fast)) == ([], [])
    story.settle()
    assert story.statuses(docs) == []
    [status] = story.statuses(fast)
    assert status.startswith("success: 1 of 2 cases")


@pytest.mark.every_run
def test_a_wrong_result_is_invalid_never_fast_and_never_a_baseline(story):
    wrong = story.push("clever", fast="invalid: y is wrong by 3.1e-02")
    assert story.outcomes(wrong) == {FAST: "invalid", WIDE: "steady"}

    after = story.push("clever, but right", fast=100.0)
    assert story.outcomes(after) == {FAST: "steady", WIDE: "steady"}
    first = story.git("rev-parse", f"{wrong}^")
    assert story.run_of(after).reason == (
        f"1 case compared with {first[:10]}, because {wrong[:10]} is wrong or failed there"
    )


@pytest.mark.every_run
def test_a_commit_that_does_not_build_shows_its_log_and_the_next_one_is_compared_with_an_older(story):
    (story.repository / "broken").touch()
    broken = story.push("half done")
    run = story.run_of(broken)
    assert run.state is RunState.FAILED
    comment = story.api("GET", f"/api/v1/runs/{run.id}/comment").text
    assert "error: no such header" in comment
    assert story.status(broken).startswith("failure: Build failed")
    assert "58 59 60" not in comment, "the comment has the last lines alone"
    whole = story.api("GET", f"/api/v1/runs/{run.id}/log")
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert "1 2 3 4" in whole.text
    assert whole.text.rstrip().endswith("error: no such header")
    assert f"/api/v1/runs/{run.id}/log" in story.api("GET", f"/runs/{run.id}").text

    (story.repository / "broken").unlink()
    mended = story.push("done", wide=150.0)
    assert story.outcomes(mended) == {FAST: "steady", WIDE: "improvement"}
    good = story.run_of(mended)
    assert "58 59 60" in story.api("GET", f"/api/v1/runs/{good.id}/log").text, "a build that went well has one too"
    printed = attempt("run", "logs", str(good.id))
    assert (printed.exit_code, "58 59 60" in printed.stdout) == (0, True)

    with transaction() as session:
        session.execute(update(BuildLog).where(BuildLog.run_id == good.id).values(made_at=1.0))
    assert stored_texts.forget_logs() == 1
    gone = story.api("GET", f"/api/v1/runs/{good.id}/log")
    assert gone.status_code == 404
    assert "older than 90 days" in gone.text
    assert f"/api/v1/runs/{good.id}/log" not in story.api("GET", f"/runs/{good.id}").text


def test_the_comment_of_a_build_that_failed_leads_to_its_whole_log(story):
    (story.repository / "broken").touch()
    broken = story.pull(7, action="opened")
    [comment] = story.said(7)
    assert f"[The whole log]({settings().address}/api/v1/runs/{story.run_of(broken).id}/log)" in comment


@pytest.mark.parametrize(("does", "said"), [("crash", "SIGABRT"), ("hang", "no answer")])
def test_a_kernel_that_crashes_or_hangs_fails_its_case_and_the_worker_goes_on(story, monkeypatch, does, said):
    monkeypatch.setenv("KERNELWATCH_TURN_LIMIT_S", "5" if does == "hang" else "60")
    settings.cache_clear()
    bad = story.push(does, fast=does)
    assert story.outcomes(bad) == {FAST: "failed", WIDE: "steady"}
    with reading() as session:
        rows = session.execute(select(VerdictRow).where(VerdictRow.outcome == "failed")).scalars()
        assert all(said in of_verdict(row) for row in rows)

    good = story.push("better", fast=100.0)
    assert story.run_of(good).state is RunState.DONE


def test_a_cancelled_run_is_taken_from_its_worker(story, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_LEASE_S", "4")
    settings.cache_clear()
    sha = story.commit("slow to measure", fast="hang")
    ids = deliveries.run_revision("norms", sha)

    def cancel_soon() -> None:
        time.sleep(1.5)
        with transaction() as session:
            assert queue.cancel(session, ids[0], "the operator")

    canceller = threading.Thread(target=cancel_soon)
    canceller.start()
    began = time.monotonic()
    control.work("cpu")
    canceller.join()
    assert time.monotonic() - began < MINUTES_S
    run = story.run_of(sha)
    assert (run.state, run.reason) == (RunState.CANCELLED, "cancelled by the operator")
    assert story.outcomes(sha) == {}


def test_a_worker_that_is_asked_to_end_gives_its_run_back(story, monkeypatch):
    sha = story.commit("slow to measure", fast="hang")
    deliveries.run_revision("norms", sha)
    asked = threading.Event()
    monkeypatch.setattr("workers.run.heartbeat.stopping", asked)
    monkeypatch.setattr(control, "stopping", asked)
    threading.Timer(1.5, asked.set).start()
    began = time.monotonic()
    control.work("cpu")
    assert time.monotonic() - began < MINUTES_S
    run = story.run_of(sha)
    assert (run.state, run.reason) == (RunState.QUEUED, "the worker was stopped")


def full(*_arguments: object, **_rest: object) -> None:
    raise OSError(28, os.strerror(28), "/state/environments")


def test_a_full_disk_does_not_fail_the_queue(story, monkeypatch):
    """Room is made before the second attempt; the run of the mainline is none the worse for it."""
    with monkeypatch.context() as patch:
        patch.setattr(environments, "build", full)
        first, second = story.push("unlucky", wide=190.0), story.push("unlucky too", wide=180.0)
    for sha in (first, second):
        run = story.run_of(sha)
        assert (run.state, run.attempt) == (RunState.QUEUED, 1)
        assert "No space left on device" in run.reason
    story.its_time_has_come()
    story.settle()
    assert [story.run_of(sha).state for sha in (first, second)] == [RunState.DONE, RunState.DONE]


def test_what_cannot_be_said_is_said_later_and_only_once(story):
    story.github.fail_next("502-after-commit")
    story.pull(7, action="opened", wide=300.0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        outbox.deliver_due()
        with reading() as session:
            if not session.execute(select(OutboxMessage).where(OutboxMessage.state == "waiting")).first():
                break
        time.sleep(0.5)
    assert len(story.said(7)) == 1
