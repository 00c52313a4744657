"""How commits become runs: pushes, pull requests, polls and people, each said as often as one likes."""

import json
import os
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import selectinload

from service.db import wakeups
from service.db.engine import clock, reading, transaction
from service.db.models import Delivery, Pull, PushRow, RegressionRow, Revision, Run, Target, Worker
from service.domain.states import Origin, Priority, RegressionState, RunState, TargetKind
from service.errors import BadInput, Conflict, NotFound, SourceFailed
from service.ledger import targets
from service.ledger.intake import deliveries, pulls, registry
from service.ledger.runs import queue, revisions
from service.settings import settings
from service.sources import open_source
from service.sources.git import GitSource
from tests import world
from tests.fakes.contracts import webhooks
from tests.fakes.repository import Repository

NONE = "0" * 40
RECIPE = """
devices = ["cpu", "h200"]
suite = { default = "smoke", h200 = "rmsnorm" }

[paths]
ignore = ["*.md"]

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
QUEUED, HELD, SKIPPED = RunState.QUEUED, RunState.HELD, RunState.SKIPPED
SUPERSEDED, CANCELLED, LEASED = RunState.SUPERSEDED, RunState.CANCELLED, RunState.LEASED


class Forge(Repository):
    """A repository with people who push to it, and the deliveries that GitHub makes of it."""

    deliveries = 0

    def change(self, file: str = "norms.py", text: str | None = None) -> str:
        return self.commit(f"change {file}", {file: f"{os.urandom(8).hex()}\n" if text is None else text})

    def pull(self, number: int, *, file: str = "norms.py", onto: str = "main") -> str:
        """A new head of a pull request: the first one leaves the mainline where that is now."""
        branch = f"pull-{number}"
        known = self.git("branch", "--list", branch)
        self.git("checkout", "--quiet", *([branch] if known else ["-b", branch, onto]))
        sha = self.change(file)
        self.git("update-ref", f"refs/pull/{number}/head", sha)
        self.git("checkout", "--quiet", "main")
        return sha

    def push_event(self, before: str, after: str, *, branch: str = "main", repository: str = "acme/norms") -> str:
        return self.deliver("push", webhooks.push(before, after, branch=branch, repository=repository))

    def pull_event(
        self, number: int, head: str, *, action: str = "synchronize", fork: bool = False, onto: str = "main"
    ) -> str:
        return self.deliver("pull_request", self.pull_body(number, head, action=action, fork=fork, onto=onto))

    def pull_body(
        self, number: int, head: str, *, action: str = "synchronize", fork: bool = False, onto: str = "main"
    ) -> dict[str, Any]:
        whose, base = "stranger/norms" if fork else "acme/norms", self.git("rev-parse", onto)
        return webhooks.pull_request(number, action, head, base, onto=onto, whose=whose)

    def deliver(self, event: str, body: dict[str, Any]) -> str:
        """Store a delivery and understand it; the sentence that says what was done."""
        return deliveries.process_delivery(self.store(event, body))

    def store(self, event: str, body: dict[str, Any]) -> int:
        self.deliveries += 1
        raw = webhooks.body_from_github(event, body)
        with transaction() as session:
            return deliveries.store_delivery(session, f"guid-{self.deliveries}", event, raw)[0]


@pytest.fixture
def forge(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    return Forge(tmp_path / "norms")


@pytest.fixture
def first(forge: Forge) -> str:
    """The commit that the mainline begins with."""
    return forge.change()


@pytest.fixture
def target(forge: Forge, first: str) -> Target:
    return watch(forge)


def watch(repository: Forge, name: str = "norms", **changes: Any) -> Target:
    values = {"location": str(repository.folder), "branch": "main", "forge": "Acme/Norms", "recipe_text": RECIPE}
    with transaction() as session:
        return targets.register(session, name, **{**values, **changes})


def runs(sha: str | None = None, pull: int | None = None) -> list[Run]:
    wanted = select(Run).join(Revision).order_by(Run.id).options(selectinload(Run.revision))
    if sha is not None:
        wanted = wanted.where(Revision.sha == sha)
    if pull is not None:
        wanted = wanted.where(Run.pull == pull)
    with reading() as session:
        return list(session.execute(wanted).scalars())


def states(sha: str | None = None, pull: int | None = None) -> list[RunState]:
    return [run.state for run in runs(sha, pull)]


def mainline() -> list[tuple[str, int | None]]:
    with reading() as session:
        on_it = select(Revision.sha, Revision.ordinal).where(Revision.ordinal.is_not(None)).order_by(Revision.ordinal)
        return [(sha, ordinal) for sha, ordinal in session.execute(on_it)]


def numbered(*shas: str) -> list[tuple[str, int | None]]:
    return [(sha, place) for place, sha in enumerate(shas)]


def pushes() -> list[PushRow]:
    with reading() as session:
        return list(session.execute(select(PushRow).order_by(PushRow.id)).scalars())


def delivery(number: int = -1) -> Delivery:
    with reading() as session:
        return list(session.execute(select(Delivery).order_by(Delivery.id)).scalars())[number]


# -- a push to the mainline


def test_a_push_becomes_a_run_for_each_device_of_the_recipe(forge: Forge, target: Target, first: str) -> None:
    second, third = forge.change(), forge.change()

    said = forge.push_event(first, third)

    assert said == f"norms: 2 revisions at {third[:10]}: 4 runs queued."
    assert mainline() == numbered(second, third)
    assert [(run.revision.sha, run.device, run.suite, run.baseline) for run in runs()] == [
        (second, "cpu", "smoke", first),
        (second, "h200", "rmsnorm", first),
        (third, "cpu", "smoke", second),
        (third, "h200", "rmsnorm", second),
    ]
    assert {(run.state, run.trusted, run.pull) for run in runs()} == {(QUEUED, True, None)}
    assert {run.priority for run in runs()} == {Priority.MAINLINE}
    [push] = pushes()
    assert (push.origin, push.head, push.delivery_id) == (Origin.PUSH, third, delivery().id)
    assert delivery().processed_at


def test_of_several_devices_that_is_taken_which_has_a_worker(forge: Forge, first: str) -> None:
    watch(forge, recipe_text=RECIPE.replace('["cpu", "h200"]', '["cpu", ["h200", "h100"]]'))

    def pushed() -> list[str]:
        sha = forge.change()
        forge.push_event(first, sha)
        return [run.device for run in runs(sha)]

    assert pushed() == ["cpu", "h200"], "the first, where none has a worker"

    with transaction() as session:
        now = clock(session)
        session.add(Worker(name="box/h100-0", device="h100", description="", started_at=now, seen_at=now))
    assert pushed() == ["cpu", "h100"]

    with transaction() as session:
        session.add(Worker(name="box/h200-0", device="h200", description="", started_at=now, seen_at=now))
        session.execute(update(Run).where(Run.device == "h100").values(state=RunState.DONE))
    sha = forge.change()
    forge.push_event(first, sha)
    assert [run.device for run in runs(sha)] == ["cpu", "h100"], "that which measured the target last"

    with transaction() as session:
        session.execute(update(Worker).where(Worker.device == "h100").values(paused_at=now))
    assert pushed() == ["cpu", "h200"]
    deliveries.request_runs("norms", sha)
    assert [run.device for run in runs(sha)] == ["cpu", "h100"], "a revision stays where it was queued"


def test_the_first_commit_of_all_has_no_baseline(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    assert [(run.revision.sha, run.baseline) for run in runs()] == [(first, None)] * 2


def test_a_push_is_counted_from_what_is_known_whatever_it_says(forge: Forge, target: Target, first: str) -> None:
    """A lost delivery is made good by the next one."""
    forge.push_event(NONE, first)
    second = forge.change()
    third = forge.change()
    forge.push_event(second, third)
    assert mainline() == numbered(first, second, third)


def test_the_same_push_twice_changes_nothing(forge: Forge, target: Target, first: str) -> None:
    second = forge.change()
    forge.push_event(first, second)
    before = [(run.id, run.state) for run in runs()]

    assert forge.push_event(first, second) == "norms: nothing new on the mainline."

    assert [(run.id, run.state) for run in runs()] == before
    assert len(pushes()) == 1


def test_a_delivery_is_understood_once(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(first, forge.change())
    forge.change()
    assert deliveries.process_delivery(delivery().id) == delivery().outcome
    assert len(mainline()) == 1


def test_commits_that_do_not_matter_are_skipped_and_say_so(forge: Forge, target: Target, first: str) -> None:
    docs, code = forge.change("README.md"), forge.change()

    said = forge.push_event(first, code)

    assert said.endswith("2 runs queued, 2 runs skipped.")
    assert states(docs) == [SKIPPED, SKIPPED]
    assert states(code) == [QUEUED, QUEUED]
    assert all(run.finished_at and run.reason == "no path of the recipe changed" for run in runs(docs))
    assert runs(code)[0].baseline == docs


def test_only_the_first_parents_of_a_merge_are_on_the_mainline(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    forge.pull(7, file="other.py")
    second = forge.change()
    forge.git("merge", "--quiet", "--no-ff", "--message", "merge", "pull-7")
    merge = forge.git("rev-parse", "HEAD")
    forge.push_event(first, merge)
    assert mainline() == numbered(first, second, merge)
    assert runs(merge)[0].baseline == second


def test_other_branches_and_tags_are_left_alone(forge: Forge, target: Target, first: str) -> None:
    forge.git("branch", "feature")
    assert "not the mainline (main)" in forge.push_event(NONE, first, branch="feature")
    assert "not a branch" in forge.deliver("push", webhooks.push(NONE, first) | {"ref": "refs/tags/v1"})
    assert "deleted" in forge.push_event(first, NONE)
    assert runs() == []


def test_the_default_branch_is_the_mainline_unless_another_was_named(forge: Forge, first: str) -> None:
    watch(forge, branch=None)
    watch(forge, "stable", branch="release")
    forge.git("branch", "release")
    said = forge.push_event(NONE, first)
    assert said.startswith(f"norms: 1 revision at {first[:10]}")
    assert "stable: main is not the mainline (release)" in said


@pytest.mark.parametrize("date", ["@4294967295 +0000", "2001-01-01T00:00:00Z"], ids=["in the future", "rebased"])
def test_dates_follow_the_mainline_whatever_commits_say(
    forge: Forge, target: Target, first: str, monkeypatch: pytest.MonkeyPatch, date: str
) -> None:
    forge.push_event(NONE, first)
    monkeypatch.setenv("GIT_COMMITTER_DATE", date)
    second = forge.change()
    monkeypatch.delenv("GIT_COMMITTER_DATE")
    forge.push_event(first, second)

    with reading() as session:
        line = session.scalars(select(Revision).where(Revision.ordinal.is_not(None)).order_by(Revision.ordinal)).all()
        assert [one.sha for one in line] == [first, second]
        at = [one.committed_at for one in line]
        assert at == sorted(at)
        assert at[-1] <= clock(session)


# -- a rewritten mainline


def test_a_forced_push_takes_what_left_off_the_mainline(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    second, lost = forge.change(), forge.change()
    forge.push_event(first, lost)
    forge.git("reset", "--quiet", "--hard", second)
    instead, after = forge.change(), forge.change()

    said = forge.push_event(lost, after)

    assert said == f"norms: the mainline was rewritten, 1 revision left it; 2 revisions at {after[:10]}: 4 runs queued."
    assert mainline() == numbered(first, second, instead, after)
    assert states(lost) == [SUPERSEDED, SUPERSEDED]
    assert runs(lost)[0].reason == "the mainline was rewritten without this revision"
    assert runs(instead)[0].baseline == second


def test_a_merge_that_is_pushed_with_the_mainline_as_its_second_parent_moves_that_off_the_line(
    forge: Forge, target: Target, first: str
) -> None:
    """A developer pulls into his own two commits and pushes: the first parent of the merge is his."""
    forge.push_event(NONE, first)
    aside = forge.change()
    forge.push_event(first, aside)
    forge.git("checkout", "--quiet", "-b", "developer", first)
    own = [forge.change(f"own{number}.py") for number in range(2)]
    forge.git("merge", "--quiet", "--no-edit", "main")
    merge = forge.git("rev-parse", "HEAD")
    forge.git("branch", "--force", "main", merge)
    forge.git("checkout", "--quiet", "main")

    said = forge.push_event(aside, merge)

    assert said == f"norms: the mainline was rewritten, 1 revision left it; 3 revisions at {merge[:10]}: 6 runs queued."
    assert mainline() == numbered(first, *own, merge)
    assert runs(merge)[0].baseline == own[-1]
    assert states(aside) == [SUPERSEDED, SUPERSEDED]

    later = [forge.change() for _ in range(2)]
    forge.push_event(merge, later[-1])
    assert mainline() == numbered(first, *own, merge, *later)
    assert forge.push_event(merge, later[-1]) == "norms: nothing new on the mainline."


def test_regressions_leave_the_mainline_with_the_revisions_that_made_or_mended_them(
    forge: Forge, target: Target, first: str
) -> None:
    slow = forge.change()
    forge.push_event(first, slow)
    mended = forge.change()
    forge.push_event(slow, mended)
    by = {sha: runs(sha)[0].id for sha in (slow, mended)}
    with transaction() as session:
        opened = {sha: session.get_one(Run, run_id) for sha, run_id in by.items()}
        world.regression(session, opened[slow], "one", state=RegressionState.FIXED, fixed_by=by[mended])
        world.regression(session, opened[mended], "one")

    forge.git("reset", "--quiet", "--hard", slow)
    forge.push_event(mended, slow)
    assert regressions() == [("open", None), ("fixed", None)]

    forge.git("reset", "--quiet", "--hard", first)
    instead = forge.change()
    forge.push_event(slow, instead)
    assert regressions() == [("fixed", None), ("fixed", None)]


def regressions() -> list[tuple[str, int | None]]:
    with reading() as session:
        rows = session.execute(select(RegressionRow).order_by(RegressionRow.id)).scalars()
        return [(row.state.value, row.fixed_by) for row in rows]


def test_a_mainline_set_back_keeps_what_was_measured_before(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    lost = forge.change()
    forge.push_event(first, lost)
    forge.git("reset", "--quiet", "--hard", first)
    assert "1 revision left it" in forge.push_event(lost, first)
    assert mainline() == numbered(first)
    assert "nothing new" in forge.push_event(lost, first)


def test_a_mainline_that_begins_anew_begins_with_its_newest_revision(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    forge.git("checkout", "--quiet", "--orphan", "fresh")
    forge.change()
    fresh = forge.change()
    forge.git("branch", "--force", "main", "fresh")
    assert "1 revision left it" in forge.push_event(first, fresh)
    assert mainline() == numbered(fresh)


# -- pull requests


def test_the_head_of_a_pull_request_is_compared_with_the_merge_base(forge: Forge, target: Target, first: str) -> None:
    forge.pull(7)
    head = forge.pull(7)
    forge.change()  # the mainline went on meanwhile

    said = forge.pull_event(7, head, action="opened")

    assert said == f"norms: pull request 7, 1 revision at {head[:10]}: 2 runs queued."
    found = runs(pull=7)
    assert [(run.revision.sha, run.baseline, run.revision.ordinal) for run in found] == [(head, first, None)] * 2
    assert {(run.state, run.trusted, run.priority) for run in found} == {(QUEUED, True, Priority.PULL_REQUEST)}
    assert mainline() == []


def test_a_pull_request_is_skipped_only_if_none_of_its_commits_matters(forge: Forge, target: Target) -> None:
    forge.pull(7, file="norms.py")
    code = forge.pull(7, file="README.md")
    docs = forge.pull(8, file="README.md")
    forge.pull_event(7, code)
    forge.pull_event(8, docs)
    assert states(pull=7) == [QUEUED, QUEUED]
    assert states(pull=8) == [SKIPPED, SKIPPED]


def test_a_newer_head_supersedes_those_that_nobody_has_begun(forge: Forge, target: Target) -> None:
    old = forge.pull(7)
    forge.pull_event(7, old, action="opened")
    with transaction() as session:
        lease = queue.next_run(session, "cpu", "worker", 60)
    new = forge.pull(7)

    said = forge.pull_event(7, new)

    assert said.endswith("2 runs queued, 1 older run superseded.")
    assert states(old) == [LEASED, SUPERSEDED]
    assert lease is not None
    assert runs(old)[1].reason == f"{new[:10]} is a newer head of pull request 7"
    assert states(new) == [QUEUED, QUEUED]


def test_going_back_to_an_older_head_queues_it_again(forge: Forge, target: Target) -> None:
    old, new = forge.pull(7), forge.pull(7)
    for head in (old, new, old):
        forge.git("update-ref", "refs/pull/7/head", head)
        forge.pull_event(7, head)
    assert states(old) == [QUEUED, QUEUED]
    assert states(new) == [SUPERSEDED, SUPERSEDED]
    assert runs(old)[0].reason is None
    assert runs(old)[0].finished_at is None


def test_an_older_head_that_comes_late_does_not_push_aside_the_newer(forge: Forge, target: Target) -> None:
    old = forge.pull(7)
    late = forge.store("pull_request", forge.pull_body(7, old))
    new = forge.pull(7)
    forge.pull_event(7, new)

    assert f"1 revision at {new[:10]}: nothing new" in deliveries.process_delivery(late)
    assert states(old) == []
    assert states(new) == [QUEUED, QUEUED]


def test_closing_cancels_what_waits(forge: Forge, target: Target) -> None:
    head, other = forge.pull(7), forge.pull(8)
    forge.pull_event(7, head)
    forge.pull_event(8, other)
    with transaction() as session:
        queue.next_run(session, "cpu", "worker", 60)

    assert "1 of its runs" in forge.pull_event(7, head, action="closed")

    assert states(pull=7) == [LEASED, CANCELLED]
    assert states(pull=8) == [QUEUED, QUEUED]
    forge.pull_event(7, head, action="reopened")
    assert states(pull=7) == [LEASED, QUEUED]


@pytest.mark.parametrize(("moved", "found"), [("closed", CANCELLED), ("pushed", SUPERSEDED), ("reopened", QUEUED)])
def test_a_head_that_its_worker_gives_back_returns_only_if_somebody_waits(
    forge: Forge, target: Target, moved: str, found: RunState
) -> None:
    head = forge.pull(7)
    forge.pull_event(7, head, action="opened")
    with transaction() as session:
        lease = queue.next_run(session, "cpu", "worker", 60)
    if moved == "pushed":
        forge.pull_event(7, forge.pull(7))
    else:
        forge.pull_event(7, head, action="closed")
    if moved == "reopened":
        forge.pull_event(7, head, action="reopened")
    with transaction() as session:
        assert lease is not None
        queue.give_back(session, lease, "the worker was stopped", blame=False)
    assert states(head)[0] is found


def test_a_merged_pull_request_is_measured_once_more_as_the_mainline(forge: Forge, target: Target, first: str) -> None:
    head = forge.pull(7)
    forge.pull_event(7, head)
    forge.git("merge", "--quiet", "--ff-only", "pull-7")
    forge.push_event(first, head)
    assert [(run.pull, run.revision.ordinal) for run in runs(head)] == [(7, 0), (7, 0), (None, 0), (None, 0)]


def test_a_pull_request_that_adds_nothing_says_so(forge: Forge, target: Target, first: str) -> None:
    forge.git("update-ref", "refs/pull/7/head", first)
    assert forge.pull_event(7, first) == "norms: pull request 7 has no commits that are not in its base."


def test_a_pull_request_may_be_read_from_the_repository(forge: Forge, target: Target, first: str) -> None:
    """As in the demo, which has no forge."""
    head = forge.pull(7)
    assert head[:10] in deliveries.pull_appeared(target.id, 7)
    assert runs(head)[0].baseline == first


def end_runs(pull: int) -> None:
    with transaction() as session:
        session.execute(update(Run).where(Run.pull == pull).values(state=RunState.DONE, attempt=1))


def test_a_pull_request_with_another_base_is_measured_against_that(forge: Forge, target: Target, first: str) -> None:
    """As one that was based on another pull request, and is retargeted when that one was merged or given up."""
    below = forge.pull(7)
    head = forge.pull(8, onto="pull-7")
    forge.pull_event(8, head, action="opened", onto="pull-7")
    end_runs(8)

    said = forge.pull_event(8, head, action="edited")

    assert said == f"norms: pull request 8, 1 revision at {head[:10]}: 2 runs queued."
    assert [(run.baseline, run.state) for run in runs(head)] == [(below, RunState.DONE)] * 2 + [(first, QUEUED)] * 2
    for action in ("edited", "synchronize", "reopened"):
        assert "nothing new" in forge.pull_event(8, head, action=action)
    assert len(runs(head)) == 4

    forge.pull_event(8, head, action="edited", onto="pull-7")

    assert [(run.baseline, run.state) for run in runs(head)[2:]] == [(first, SUPERSEDED)] * 2 + [(below, QUEUED)] * 2
    assert {run.reason for run in runs(head)[2:4]} == {"pull request 8 has another base"}
    assert "nothing new" in forge.pull_event(8, head, onto="pull-7")
    assert len(runs(head)) == 6


def test_another_base_with_the_same_merge_base_changes_nothing(forge: Forge, target: Target, first: str) -> None:
    head = forge.pull(8)
    forge.pull_event(8, head, action="opened")
    forge.git("branch", "release", first)
    assert "nothing new" in forge.pull_event(8, head, action="edited", onto="release")
    assert states(head) == [QUEUED, QUEUED]


def test_a_base_that_did_not_build_is_not_another_base(forge: Forge, target: Target, first: str) -> None:
    """Then the run names the earlier revision that it was compared with."""
    forge.change()
    head = forge.pull(8)
    forge.pull_event(8, head, action="opened")
    end_runs(8)
    with transaction() as session:
        session.execute(update(Run).where(Run.pull == 8).values(baseline=first))
        revisions.run_of_revision(session, session.get_one(Target, target.id), head, 8, "cpu")

    assert "nothing new" in forge.pull_event(8, head, action="edited")
    assert states(head) == [RunState.DONE, RunState.DONE]


def test_another_base_voids_what_was_accepted_and_keeps_an_approval(forge: Forge, target: Target) -> None:
    forge.pull(7)
    head = forge.pull(8, onto="pull-7")
    forge.pull_event(8, head, action="opened", onto="pull-7", fork=True)
    with transaction() as session:
        deliveries.approve(session, runs(head)[0].id)
        session.execute(update(Pull).values(accepted_head=head))

    forge.pull_event(8, head, action="edited", fork=True)

    assert states(head) == [SUPERSEDED, SUPERSEDED, QUEUED, QUEUED]
    with reading() as session:
        assert session.scalar(select(Pull.accepted_head)) is None


# -- strangers


def test_a_strangers_pull_request_waits_for_approval_of_exactly_that_commit(forge: Forge, target: Target) -> None:
    head = forge.pull(9)
    assert forge.pull_event(9, head, fork=True).endswith("2 runs held for approval.")
    held = runs(head)
    assert {(run.state, run.trusted) for run in held} == {(HELD, False)}
    command = f"kernelwatch run approve {held[0].id}"
    assert held[0].reason == f"untrusted revision: approve exactly this commit with `{command}`"

    with transaction() as session:
        deliveries.approve(session, held[0].id)

    assert {(run.state, run.trusted, run.reason) for run in runs(head)} == {(QUEUED, False, None)}


def test_a_new_push_voids_an_approval(forge: Forge, target: Target) -> None:
    harmless = forge.pull(9)
    forge.pull_event(9, harmless, fork=True)
    with transaction() as session:
        deliveries.approve(session, runs(harmless)[0].id)

    harmful = forge.pull(9)
    forge.pull_event(9, harmful, fork=True)
    assert states(harmless) == [SUPERSEDED, SUPERSEDED]
    assert states(harmful) == [HELD, HELD]

    forge.git("update-ref", "refs/pull/9/head", harmless)
    forge.pull_event(9, harmless, fork=True)
    assert states(harmless) == [HELD, HELD], "an approval that was voided does not come back"


def test_only_what_is_held_can_be_approved(forge: Forge, target: Target) -> None:
    forge.pull_event(7, forge.pull(7))
    with transaction() as session, pytest.raises(Conflict, match="is queued; only a held run"):
        deliveries.approve(session, runs()[0].id)
    with transaction() as session, pytest.raises(NotFound, match="No run 999"):
        deliveries.approve(session, 999)


def test_a_commit_that_no_branch_has_is_held_until_a_branch_has_it(forge: Forge, target: Target) -> None:
    head = forge.pull(9)
    forge.git("branch", "--delete", "--force", "pull-9")
    forge.pull_event(9, head)
    [named, _] = deliveries.run_revision("norms", head)
    assert {(run.state, run.trusted) for run in runs(head)} == {(HELD, False)}

    forge.git("branch", "vouched", head)
    forge.pull_event(9, head)

    assert {(run.state, run.trusted, run.reason) for run in runs(pull=9)} == {(QUEUED, True, None)}
    assert deliveries.run_revision("norms", head)[0] == named
    assert {run.state for run in runs(head)} == {QUEUED}


# -- deliveries in any order


def moment(second: int) -> str:
    return f"2026-11-22T10:00:{second:02}Z"


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ([("opened", 1), ("closed", 2), ("reopened", 3)], QUEUED),
        ([("opened", 1), ("reopened", 3), ("closed", 2)], QUEUED),
        ([("closed", 4), ("opened", 1), ("reopened", 3)], None),
        ([("closed", 2), ("synchronize", 4)], QUEUED),  # the reopening was lost
        ([("opened", 1), ("closed", 4), ("reopened", 3)], CANCELLED),
    ],
)
def test_whether_a_pull_request_is_open_follows_the_times_of_its_deliveries(
    forge: Forge, target: Target, order: list[tuple[str, int]], found: RunState | None
) -> None:
    head = forge.pull(7)
    for action, second in order:
        body = forge.pull_body(7, head, action=action)
        body["pull_request"]["updated_at"] = moment(second)
        forge.deliver("pull_request", body)
    assert set(states(pull=7)) == ({found} if found else set())


def test_what_was_closed_in_the_same_round_is_never_fetched(forge: Forge, target: Target) -> None:
    head = forge.pull(7)
    opened = forge.store("pull_request", forge.pull_body(7, head, action="opened"))
    forge.store("pull_request", forge.pull_body(7, head, action="closed"))
    assert deliveries.process_due() == 2
    assert deliveries.process_delivery(opened) == "norms: pull request 7 was closed by a later delivery."
    assert runs(pull=7) == []


def test_deliveries_of_one_repository_are_answered_by_one_fetch(
    forge: Forge, target: Target, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    fetch = GitSource._fetch
    monkeypatch.setattr(GitSource, "_fetch", lambda *a, **b: (fetched.append(str(a[3])), fetch(*a, **b))[1])
    heads = {number: forge.pull(number) for number in range(1, 6)}
    second = forge.change()
    for number, head in heads.items():
        forge.store("pull_request", forge.pull_body(number, head))
        forge.store("push", webhooks.push(first, second))

    assert deliveries.process_due() == 10

    assert len([one for one in fetched if "refs/heads/*" in one]) == 1
    assert len([one for one in fetched if "refs/pull/" in one]) == 1
    assert {run.revision.sha for run in runs()} == {second, *heads.values()}
    assert delivery().processed_at


def test_a_head_that_was_refused_is_measured_once_it_can_be_fetched(
    forge: Forge, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = forge.pull(7)
    forge.git("branch", "--delete", "--force", "pull-7")
    monkeypatch.setenv("KERNELWATCH_PULL_LIMIT", "1")
    settings.cache_clear()

    said = forge.pull_event(7, head)

    assert "The head of pull request 7 brings more than 0 MiB of new objects (KERNELWATCH_PULL_LIMIT)." in said
    assert [(run.state, run.reason) for run in runs(pull=7)] == [(RunState.FAILED, said.removeprefix("norms: "))] * 2
    monkeypatch.delenv("KERNELWATCH_PULL_LIMIT")
    settings.cache_clear()
    forge.pull_event(7, head)
    assert [(run.state, run.reason and run.reason[:9]) for run in runs(pull=7)] == [(HELD, "untrusted")] * 2
    assert runs(pull=7)[0].revision.subject == "change norms.py"


def test_mirrors_forget_closed_pull_requests_and_tell_their_size(
    forge: Forge, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = {number: forge.pull(number) for number in (7, 8)}
    for number, head in heads.items():
        forge.git("branch", "--delete", "--force", f"pull-{number}")
        forge.pull_event(number, head)
    forge.pull_event(8, heads[8], action="closed")
    source = GitSource(target.name, target.location)

    assert registry.clean_due() == 1
    registry.clean("norms")
    assert all(source.has(head) for head in heads.values()), "it was closed a moment ago"

    monkeypatch.setenv("KERNELWATCH_PULLS_DAYS", "0.0000000001")
    settings.cache_clear()
    before, after = registry.clean("norms")
    assert [source.has(head) for head in heads.values()] == [True, False]
    assert after < before
    assert polled().mirror_bytes == after == source.size()


# -- recipes


def test_a_recipe_is_taken_from_the_mainline_never_from_a_pull_request(forge: Forge) -> None:
    adapted = 'adapters = ["adapter.py"]\n' + RECIPE
    forge.change("adapter.py", "def rmsnorm(): ...")
    forge.change("kernelwatch.toml", adapted)
    watch(forge, recipe_from_branch=True, recipe_text=None)
    forge.pull(7, file="kernelwatch.toml")  # which makes it nonsense
    head = forge.pull(7, file="adapter.py")

    forge.pull_event(7, head)

    with reading() as session:
        [recipe] = {run.recipe for run in session.execute(select(Run).options(selectinload(Run.recipe))).scalars()}
    assert (recipe.text, recipe.adapters) == (adapted, {"adapter.py": "def rmsnorm(): ..."})


def test_a_changed_recipe_is_a_new_version_and_measures_anew(forge: Forge) -> None:
    forge.change("kernelwatch.toml", RECIPE)
    target = watch(forge, recipe_from_branch=True, recipe_text=None)
    deliveries.poll(target.id)
    changed = forge.change("kernelwatch.toml", RECIPE.replace('"cpu", "h200"', '"cpu"'))
    deliveries.poll(target.id)
    assert [run.device for run in runs(changed)] == ["cpu"]
    assert len({run.recipe_id for run in runs()}) == 2


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "has no kernelwatch.toml"),
        ({"kernelwatch.toml": "devices = ["}, "not TOML"),
        ({"kernelwatch.toml": 'adapters = ["adapter.py"]' + RECIPE}, "adapters of the recipe do not exist: adapter.py"),
        ({"kernelwatch.toml": 'adapters = ["../../etc/passwd"]' + RECIPE}, "must be the name of a Python file"),
    ],
)
def test_a_recipe_that_cannot_be_used_says_why(forge: Forge, first: str, files: dict[str, str], why: str) -> None:
    watch(forge, recipe_from_branch=True, recipe_text=None)
    for name, text in files.items():
        forge.change(name, text)
    said = forge.push_event(first, forge.change())
    assert why in said
    assert (delivery().attempts, bool(delivery().processed_at)) == (deliveries.GIVEN_UP, True)


# -- deliveries that are not understood


def test_an_unknown_repository_says_how_to_watch_it_and_may_be_redelivered(forge: Forge, first: str) -> None:
    said = forge.push_event(NONE, first)
    assert said.startswith("No target watches acme/norms. Add one with `kernelwatch target add")
    watch(forge)

    with transaction() as session:
        again, new = deliveries.store_delivery(session, "guid-1", "push", b"")

    assert not new
    assert f"1 revision at {first[:10]}" in deliveries.process_delivery(again)


def test_a_remote_that_fails_is_tried_again_later_and_given_up_in_the_end(
    forge: Forge, target: Target, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = forge.store("push", webhooks.push(NONE, first))
    monkeypatch.setattr(GitSource, "refresh", _unreachable)

    assert deliveries.process_due() == 1
    assert (delivery().attempts, delivery().processed_at) == (1, None)
    assert delivery().outcome == "norms: it cannot be reached."
    assert deliveries.process_due() == 0, "not before its time"

    for _ in range(deliveries.GIVEN_UP - 1):
        with transaction() as session:
            session.execute(update(Delivery).values(received_at=Delivery.received_at - 10_000))
        assert deliveries.process_due() == 1
    assert (delivery().attempts, bool(delivery().processed_at)) == (deliveries.GIVEN_UP, True)
    assert deliveries.process_delivery(number) == "norms: it cannot be reached."


def _unreachable(_source: GitSource) -> None:
    raise SourceFailed("it cannot be reached.")


def test_one_target_that_fails_does_not_keep_another_from_its_run(
    forge: Forge, target: Target, first: str, tmp_path: Path
) -> None:
    watch(forge, "moved", location=str(tmp_path / "nowhere"))
    said = forge.push_event(NONE, first)
    assert "moved: " in said
    assert states(first) == [QUEUED, QUEUED]


def test_a_head_that_is_not_there_yet_is_waited_for(forge: Forge, target: Target) -> None:
    said = forge.pull_event(7, "d" * 40)
    assert "The forge may not serve it yet." in said
    assert (delivery().attempts, delivery().processed_at) == (1, None)


@pytest.mark.parametrize(
    ("event", "body", "said"),
    [
        ("ping", b"{}", "The webhook works."),
        ("star", b"{}", "Nothing to do: kernelwatch does not use 'star' events."),
        ("push", b"payload=x", "The body is not JSON: set the webhook's content type to application/json."),
    ],
)
def test_every_delivery_ends_in_a_sentence(state: Path, event: str, body: bytes, said: str) -> None:
    with transaction() as session:
        stored, _ = deliveries.store_delivery(session, "one", event, body)
    assert deliveries.process_delivery(stored) == said
    assert delivery().processed_at


# -- polls


def test_the_first_poll_takes_the_newest_and_later_ones_what_is_new(forge: Forge, target: Target, first: str) -> None:
    second = forge.change()
    assert deliveries.poll(target.id)
    assert mainline() == numbered(second)
    assert runs(second)[0].baseline == first

    third, fourth = forge.change(), forge.change()
    assert deliveries.poll(target.id)
    assert deliveries.poll(target.id)
    assert mainline() == numbered(second, third, fourth)
    assert [push.origin for push in pushes()] == [Origin.POLL, Origin.POLL]


def test_polls_are_due_once_an_interval(forge: Forge, target: Target) -> None:
    assert deliveries.poll_due() == 0, "a caller who registered has time for a backfill"
    poll_at(0)
    assert deliveries.poll_due() == 1
    assert deliveries.poll_due() == 0
    assert waits() == pytest.approx(settings().remote_poll_s, abs=5)


def test_a_remote_that_fails_is_polled_less_and_less_often(
    forge: Forge, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GitSource, "refresh", _unreachable)
    waited = []
    for _ in range(8):
        poll_at(0)
        assert deliveries.poll_due() == 1
        waited.append(waits())
    assert waited == pytest.approx([120, 240, 480, 960, 1920, 3600, 3600, 3600], abs=5)
    assert polled().poll_error == "it cannot be reached."

    monkeypatch.undo()
    poll_at(0)
    assert deliveries.poll_due() == 1
    assert (polled().poll_failures, polled().poll_error) == (0, None)


def test_a_target_whose_poll_was_killed_is_polled_again_within_a_minute(
    forge: Forge, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    poll_at(0)
    with monkeypatch.context() as patched:
        patched.setattr(GitSource, "refresh", killed)
        with pytest.raises(KeyboardInterrupt):
            deliveries.poll_due()
    assert deliveries.poll_due() == 0
    assert waits() <= 60


def test_a_poll_keeps_its_claim_while_it_fetches(forge: Forge, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    now, claims = time.monotonic, list[float]()
    refresh = GitSource.refresh

    def slow(source: GitSource) -> None:
        poll_at(0)
        with monkeypatch.context() as patched:
            patched.setattr(time, "monotonic", lambda: now() + 30)
            source._keep_going()
        claims.append(waits())
        refresh(source)

    monkeypatch.setattr(GitSource, "refresh", slow)
    assert deliveries.poll(target.id)
    assert claims[0] == pytest.approx(60, abs=5)


def poll_at(when: float) -> None:
    with transaction() as session:
        session.execute(update(Target).values(poll_at=when))


def polled() -> Target:
    with reading() as session:
        return session.execute(select(Target)).scalar_one()


def waits() -> float:
    with reading() as session:
        return polled().poll_at - clock(session)


# -- people


def test_a_backfill_reaches_behind_what_is_known(forge: Forge, target: Target, first: str) -> None:
    second, third = forge.change(), forge.change()
    deliveries.poll(target.id)
    fourth = forge.change()
    deliveries.poll(target.id)

    assert deliveries.backfill("norms", first, second) == 2

    assert mainline() == numbered(second, third, fourth)
    assert {run.priority for run in runs(second)} == {Priority.BACKFILL}
    assert deliveries.backfill_last(target.id, 10) == 2
    assert mainline() == numbered(first, second, third, fourth)
    assert deliveries.backfill_last(target.id, 10) == 0


def test_a_backfill_that_touches_nothing_known_keeps_the_order_of_the_mainline(
    forge: Forge, target: Target, first: str
) -> None:
    line = [first, *(forge.change() for _ in range(8))]
    deliveries.poll(target.id)

    deliveries.backfill("norms", line[1], line[4])

    assert mainline() == numbered(*line[2:5], line[8])
    assert deliveries.poll(target.id)
    assert mainline() == numbered(*line[2:5], line[8]), "what lies between was not asked for"
    newest = forge.change()
    deliveries.poll(target.id)
    deliveries.backfill("norms", line[5], line[7])
    assert mainline() == numbered(*line[2:5], *line[6:], newest)


def test_a_sample_measures_few_revisions_each_against_the_one_before(forge: Forge, target: Target, first: str) -> None:
    line = [first, *(forge.change() for _ in range(8))]

    assert deliveries.backfill("norms", line[0], line[8], sample=3) == 6

    assert mainline() == numbered(*line[1:])
    measured = {sha: {run.baseline for run in runs(sha)} for sha in line if runs(sha)}
    assert measured == {line[3]: {line[0]}, line[5]: {line[3]}, line[8]: {line[5]}}
    assert deliveries.backfill("norms", line[0], line[8]) == 16, "the rest, each against its parent"
    assert deliveries.backfill("norms", line[0], line[8], sample=8) == 0


def test_a_revision_of_a_sample_matters_if_any_commit_since_the_one_before_does(
    forge: Forge, target: Target, first: str
) -> None:
    line = [first, *(forge.change(file) for file in ("norms.py", "README.md", "README.md", "README.md"))]

    deliveries.backfill("norms", line[0], line[4], sample=2)

    assert states(line[2]) == [QUEUED, QUEUED]
    assert states(line[4]) == [RunState.SKIPPED, RunState.SKIPPED]


def test_a_backfill_of_nothing_says_so(forge: Forge, target: Target, first: str) -> None:
    second = forge.change()
    with pytest.raises(BadInput, match="No commits in"):
        deliveries.backfill("norms", second, first)


def test_a_backfill_of_a_branch_is_not_on_the_mainline(forge: Forge, target: Target, first: str) -> None:
    head = forge.pull(7)
    assert deliveries.backfill("norms", first, head) == 2
    assert mainline() == []


def test_somebody_asks_for_a_revision(forge: Forge, target: Target, first: str) -> None:
    docs = forge.change("README.md")
    deliveries.poll(target.id)
    assert states(docs) == [SKIPPED, SKIPPED]

    [one] = deliveries.run_revision("norms", "main", device="cpu")

    assert (runs(docs)[0].id, states(docs)) == (one, [QUEUED, SKIPPED])
    assert runs(docs)[0].priority == Priority.PULL_REQUEST
    assert deliveries.run_revision("norms", docs, device="cpu") == [one]
    assert deliveries.run_revision("norms", docs, device="cpu", again=True) != [one]
    assert len(deliveries.run_revision("norms", first)) == 2
    assert [run.suite for run in runs(first)] == ["smoke", "rmsnorm"]


def compared_with(target: Target, revision: str) -> str | None:
    """What a requested revision is compared with."""
    source = open_source(target)
    source.refresh()
    return pulls.baseline_of(target, source, source.describe(source.resolve(revision)))


def test_a_requested_revision_is_compared_with_where_it_left_the_mainline(
    forge: Forge, target: Target, first: str
) -> None:
    forge.pull(7)
    forge.pull(7)
    second = forge.change()
    assert compared_with(target, "pull-7") == first
    assert compared_with(target, first) is None
    assert compared_with(target, second) == first

    forge.git("checkout", "--quiet", "pull-7")
    forge.git("merge", "--quiet", "--strategy=ours", "--no-edit", "main")
    assert compared_with(target, "pull-7") == second, "not what the mainline brought"

    forge.git("checkout", "--quiet", "main")
    third = forge.change("other.py")
    forge.git("merge", "--quiet", "--no-ff", "--no-edit", "--strategy=ours", "pull-7")
    assert compared_with(target, "pull-7") == second, "after its merge too"
    assert compared_with(target, "main") == third


def test_a_slow_commit_is_not_hidden_by_one_on_top_of_it(forge: Forge, target: Target, first: str) -> None:
    """As a job of CI requests the head of a branch."""
    forge.pull(7)
    head = forge.pull(7)
    forge.change()
    requested = deliveries.run_revision("norms", "pull-7")
    assert [(run.id, run.pull, run.baseline) for run in runs(head)] == [(one, None, first) for one in requested]
    forge.pull_event(7, head, action="opened")
    assert deliveries.run_revision("norms", head) == [run.id for run in runs(pull=7)]


def group_event(forge: Forge, action: str, head: str, base: str, *, onto: str = "main", reason: str = "") -> str:
    """As GitHub sends it about a group of a merge queue."""
    why = {"reason": reason} if reason else {}
    return forge.deliver("merge_group", webhooks.merge_group(action, head, base, onto=onto, **why))


def queued_group(forge: Forge, base: str, *files: str) -> str:
    """The commit of a group on its branch: commits of pull requests on top of `base`."""
    forge.git("checkout", "--quiet", "-B", f"gh-readonly-queue/main/pr-7-{base}", base)
    for file in files:
        forge.change(file)
    head = forge.git("rev-parse", "HEAD")
    forge.git("checkout", "--quiet", "main")
    return head


def test_the_commit_of_a_merge_queue_is_measured_against_what_it_was_put_on(
    forge: Forge, target: Target, first: str
) -> None:
    forge.push_event(NONE, first)
    head = queued_group(forge, first, "norms.py", "norms.py")

    said = group_event(forge, "checks_requested", head, first)

    assert said == f"norms: merge queue, 1 revision at {head[:10]}: 2 runs queued."
    assert [(run.baseline, run.pull, run.priority) for run in runs(head)] == [(first, None, Priority.PULL_REQUEST)] * 2
    assert mainline() == numbered(first)
    assert "nothing new" in group_event(forge, "checks_requested", head, first)


def test_a_merged_group_is_measured_again_as_the_mainline(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    head = queued_group(forge, first, "norms.py")
    group_event(forge, "checks_requested", head, first)
    forge.git("merge", "--quiet", "--ff-only", head)
    forge.push_event(first, head)

    assert "was merged" in group_event(forge, "destroyed", head, first, reason="merged")
    assert mainline() == numbered(first, head)
    assert len(runs(head)) == 4
    assert {run.baseline for run in runs(head)} == {first}


def test_a_dropped_group_is_measured_no_more(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    head = queued_group(forge, first, "norms.py")
    group_event(forge, "checks_requested", head, first)

    said = group_event(forge, "destroyed", head, first, reason="invalidated")

    assert said == f"norms: the merge queue dropped {head[:10]}: 2 runs cancelled."
    assert states(head) == [RunState.CANCELLED] * 2


def test_a_merge_group_without_a_file_that_matters_is_skipped(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    head = queued_group(forge, first, "README.md")
    group_event(forge, "checks_requested", head, first)
    assert states(head) == [RunState.SKIPPED] * 2


def test_the_merge_queue_of_another_branch_is_left_alone(forge: Forge, target: Target, first: str) -> None:
    forge.push_event(NONE, first)
    head = queued_group(forge, first, "norms.py")
    assert "release is not the mainline (main)" in group_event(forge, "checks_requested", head, first, onto="release")
    assert runs(head) == []


def test_a_requested_revision_without_a_common_ancestor_is_compared_with_its_parent(
    forge: Forge, target: Target
) -> None:
    forge.git("checkout", "--quiet", "--orphan", "another")
    root = forge.change()
    forge.change()
    assert compared_with(target, "another") == root
    assert compared_with(target, root) is None


@pytest.mark.parametrize("baselines", [("a" * 40, "b" * 40), (None, "b" * 40)])
def test_each_baseline_has_a_run_of_its_own(
    forge: Forge, target: Target, first: str, baselines: tuple[str | None, str]
) -> None:
    source = open_source(target)
    source.refresh()
    found = source.describe(forge.change())
    with transaction() as session:
        row = session.get_one(Target, target.id)
        for baseline in (*baselines, *baselines):
            revisions.run_wanted(session, row, found, device="cpu", trusted=True, baseline=baseline)
    assert [run.baseline for run in runs()] == [baselines[0] or first, baselines[1]]


def test_a_pull_requests_own_run_answers_a_request_of_the_same_comparison(
    forge: Forge, target: Target, first: str
) -> None:
    forge.pull(7)
    head = forge.pull(7)
    forge.pull_event(7, head, action="opened")
    source = open_source(target)
    source.refresh()
    found = source.describe(head)

    def requested(*, again: bool = False, baseline: str | None = first) -> int:
        with transaction() as session:
            row = session.get_one(Target, target.id)
            run = revisions.run_wanted(session, row, found, device="cpu", trusted=True, baseline=baseline, again=again)
            return run.id

    own = runs(pull=7)[0].id
    assert requested() == own
    assert requested(baseline=None) != own
    assert requested(again=True) != own
    forge.pull_event(7, head, action="closed")
    assert requested() != own
    assert [run.state for run in runs(pull=7)] == [CANCELLED, CANCELLED]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": "nobody"}, "No target nobody. Known: norms."),
        ({"revision": "v9"}, "No revision v9"),
        ({"device": "tpu"}, "is not measured on tpu; its recipe says cpu, h200"),
        ({"suite": "grand"}, "There is no suite 'grand'"),
    ],
)
def test_what_cannot_be_run_says_why(forge: Forge, target: Target, arguments: dict[str, str], why: str) -> None:
    with pytest.raises((NotFound, BadInput), match=why):
        deliveries.run_revision(**{"name": "norms", "revision": "main", **arguments})  # type: ignore[arg-type]
    assert runs() == []


# -- targets


def test_registering_twice_changes_nothing_and_a_new_recipe_is_a_new_version(forge: Forge, target: Target) -> None:
    again = watch(forge)
    assert (again.id, again.recipe_id) == (target.id, target.recipe_id)
    changed = watch(forge, recipe_text=RECIPE + "# once more")
    assert changed.recipe_id != target.recipe_id
    assert watch(forge).recipe_id == target.recipe_id


def test_what_is_not_named_again_stays_as_it_was(forge: Forge) -> None:
    watch(forge, branch="release")
    again = watch(forge, branch=None, forge=None)
    assert (again.branch, again.forge) == ("release", "Acme/Norms")
    cleared = watch(forge, branch="", forge="")
    assert (cleared.branch, cleared.forge) == (None, None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "Norms!"}, "cannot be a target's name"),
        ({"name": "a--b"}, "cannot be a target's name"),
        ({"forge": "github.com/acme/norms"}, "is not owner/name"),
        ({"kind": TargetKind.PACKAGE}, "needs the name of its package"),
        ({"package": "norms"}, "only a package target has one"),
        ({"recipe_text": None}, "needs a recipe"),
        ({"recipe_text": "devices = []"}, "The recipe has mistakes"),
        ({"recipe_text": 'adapters = ["a.py"]' + RECIPE}, "adapters of the recipe do not exist: a.py"),
        ({"allow_unsandboxed": True}, "is not trusted"),
    ],
)
def test_a_target_that_cannot_be_watched_says_why(forge: Forge, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        watch(forge, **changes)
    with reading() as session:
        assert targets.all_targets(session) == []


def test_a_name_stays_with_its_repository(forge: Forge, target: Target) -> None:
    with pytest.raises(Conflict, match="choose another name"):
        watch(forge, location="https://github.com/acme/other")


def test_a_target_that_is_no_longer_trusted_runs_in_the_sandbox_only(forge: Forge) -> None:
    assert watch(forge, trusted=True, allow_unsandboxed=True).allow_unsandboxed
    assert watch(forge, trusted=True).allow_unsandboxed
    assert not watch(forge, trusted=False).allow_unsandboxed


# -- packages


def release(folder: Path, version: str) -> None:
    with zipfile.ZipFile(folder / f"norms-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("norms.py", "")
        about = f"Metadata-Version: 2.1\nName: norms\nVersion: {version}\n"
        wheel.writestr(f"norms-{version}.dist-info/METADATA", about)


def test_a_late_release_of_an_older_line_stands_before_the_newest(forge: Forge, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("0.4", "0.5.0", "0.6.0"):
        release(wheels, version)
    target = watch(forge, location=str(wheels), kind=TargetKind.PACKAGE, package="norms", branch=None, forge=None)
    assert deliveries.backfill_last(target.id, 2) == 4
    release(wheels, "0.5.1")
    release(wheels, "0.7.0")

    assert deliveries.poll(target.id)

    assert mainline() == numbered("0.5.0", "0.5.1", "0.6.0", "0.7.0")
    assert [runs(version)[0].baseline for version in ("0.5.0", "0.5.1", "0.7.0")] == ["0.4", "0.5.0", "0.6.0"]


# -- wake-ups, and several at once


@pytest.fixture
def woken() -> Iterator[list[str]]:
    seen: list[str] = []
    wakeups.send_with(seen.append)
    yield seen
    wakeups.send_with(None)


def test_devices_with_something_to_do_are_woken(forge: Forge, target: Target, first: str, woken: list[str]) -> None:
    forge.push_event(NONE, first)
    assert sorted(set(woken)) == ["control", "cpu", "h200"]
    woken.clear()
    forge.push_event(first, forge.change("README.md"))
    assert set(woken) == {"control"}


@pytest.mark.usefixtures("either")
def test_several_workers_may_understand_the_same_things_at_once(forge: Forge, target: Target, first: str) -> None:
    second, third = forge.change(), forge.change()
    stored = [forge.store("push", webhooks.push(first, sha)) for sha in (second, third)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(deliveries.process_delivery, stored * 2))
        list(pool.map(deliveries.poll, [target.id] * 2))
    assert mainline() == numbered(second, third)
    assert len(runs()) == 4
