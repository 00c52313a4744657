"""The manual of bisecting as a story: a slow case of the mainline, a search, a culprit, and the way into a merge."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import select

from service.db.engine import reading, transaction
from service.db.models import RegressionRow, Run, Target
from service.domain.states import FoundBy, RegressionState, RunState
from service.ledger.bisections import advance, bisections
from service.ledger.regressions import transitions
from service.ledger.runs import queue
from service.reports.views import BisectionView
from tests.shell import attempt
from tests.stories.test_story import WIDE, Story, story  # noqa: F401  (a fixture)
from workers import control


class Eight:
    """Eight commits of the mainline: one does not build, and a merge brought in what is slow."""

    def __init__(self, told: Story, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told = told
        self.good = told.git("rev-parse", "main")
        self._work("tidied")
        told.git("checkout", "--quiet", "-b", "two-passes")
        self.slow = told.commit("wide rows in two passes", wide=260.0)
        told.git("checkout", "--quiet", "main")
        self._work("renamed")
        (told.repository / "broken").touch()
        self.broken = told.commit("half done")
        (told.repository / "broken").unlink()
        told.commit("done")
        told.git("merge", "--quiet", "--no-ff", "--message", "merge two-passes", "two-passes")
        self.merge = told.git("rev-parse", "main")
        told.commit("faster elsewhere", fast=90.0)
        with monkeypatch.context() as patch:
            patch.setattr(control, "work", lambda device: 0)  # the worker is busy elsewhere
            (told.repository / "norms.py").write_text("# and on")
            self.bad = told.push("and on")
        self._nobody_waits_for_those_between()
        told.settle()

    def _work(self, message: str) -> None:
        (self.told.repository / "norms.py").write_text(f"# {message}")
        self.told.commit(message)

    def _nobody_waits_for_those_between(self) -> None:
        newest = self.told.run_of(self.bad).id
        with transaction() as session:
            for run in self.told.runs():
                if run.state is RunState.QUEUED and run.id != newest:
                    queue.cancel(session, run.id, "ada")

    def history_sees_it(self) -> RegressionRow:
        """The newest revision is steady against its parent, and slow only against older ones."""
        slower = transitions.Slower("norms", WIDE, 1.3, 1.29, 1.31)
        with transaction() as session:
            run = session.get_one(Run, self.told.run_of(self.bad).id)
            return transitions.open_one(session, run, slower, found_by=FoundBy.HISTORY, good=self.good)

    def search(self) -> int:
        with transaction() as session:
            target = session.execute(select(Target)).scalar_one()
            ends = (self.good, self.bad)
            return bisections.start(session, target, "cpu", *ends, [WIDE], asked_by="kernelwatch").id

    def settle(self) -> None:
        """Control and the worker take turns until there is nothing to do."""
        advance.advance_due()
        while control.work("cpu"):
            advance.advance_due()

    @contextmanager
    def others_at_work(self) -> Iterator[None]:
        """Control and the worker, while a command waits at a terminal."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(0.2):
                self.settle()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def see(self, bisection_id: int) -> BisectionView:
        with reading() as session:
            return bisections.one(session, bisection_id)


def test_who_made_it_slower(story, monkeypatch):  # noqa: F811
    eight = Eight(story, monkeypatch)
    assert story.outcomes(eight.bad)[WIDE] == "steady", "its parent is as slow"
    regression = eight.history_sees_it()

    search = eight.search()
    assert eight.see(search).words.startswith("verifying that")
    assert story.api("GET", f"/bisections/{search}").status_code == 200
    with reading() as session:
        assert session.get_one(RegressionRow, regression.id).state is RegressionState.BISECTING

    advance.advance_due()
    with transaction() as session:
        assert queue.next_run(session, "cpu", "a worker that dies", lease_s=-1)
    with transaction() as session:
        queue.sweep(session)
    story.its_time_has_come()
    eight.settle()

    found = eight.see(search)
    assert found.row.culprit == eight.merge, found.words
    assert [one.answered.answer.value for one in found.steps] == ["bad", "skip", "good", "bad", "bad"]
    assert "error: no such header" in next(one.run.log for one in found.steps if one.step.revision == eight.broken)
    proof = found.steps[-1].step.verdicts["norms", WIDE]
    assert proof.low < 1.3 < proof.high or proof.ratio == pytest.approx(1.3, rel=0.02)
    assert f"{eight.merge[:10]} is " in found.words
    assert f"at {WIDE} (norms) against its parent" in found.words
    with reading() as session:
        row = session.get_one(RegressionRow, regression.id)
        assert (row.state, row.culprit) == (RegressionState.BLAMED, eight.merge)

    assert eight.merge[:10] in story.api("GET", f"/bisections/{search}").text
    assert story.api("GET", f"/api/v1/bisections/{search}").json()["culprit"] == eight.merge

    # The culprit is a merge, and what is offered leads into it.
    [offered] = [part for part in found.words.split("`") if part.startswith("kernelwatch bisection start")]
    with eight.others_at_work():
        waited = attempt(*offered.split()[1:], "--case", "*64x4096*", "--wait")
    assert waited.exit_code == 0, waited.output
    shown = attempt("bisection", "show", str(search + 1), "--format", "json")
    assert shown.exit_code == 0
    inside = json.loads(shown.stdout)
    assert (inside["state"], inside["culprit"], inside["cases"]) == ("found", eight.slow, [WIDE])
    assert {step["run_id"] for step in inside["steps"]} <= {run.id for run in story.runs()}
    assert story.git("rev-parse", "main") == eight.bad
    assert {one.state for one in story.runs() if one.bisection_id} == {RunState.DONE, RunState.FAILED}


def test_the_command_line_refuses_what_cannot_be_searched(story):  # noqa: F811
    newest = story.commit("unrelated")
    story.git("checkout", "--quiet", "-b", "elsewhere", "HEAD~1")
    aside = story.commit("aside")
    story.git("checkout", "--quiet", "main")
    for ends, said in {
        "main": "'main' is not a range GOOD..BAD",
        "main..main": "Both ends are",
        "main..main~1": "No commits in main..main~1; put the older",
        f"{aside}..{newest}": "is not on the first-parent line of",
        "main~1..main --device h200": "not measured on h200; its recipe says cpu",
        "main~1..main --case nothing*": "No case of suite story matches 'nothing*'",
    }.items():
        done = attempt("bisection", "start", "norms", *ends.split())
        assert said in str(done.exception), ends
    assert json.loads(attempt("bisection", "list", "norms", "--format", "json").stdout)["items"] == []
    assert attempt("bisection", "start", "norms", "main~1..main").exit_code == 0
    assert attempt("bisection", "stop", "1").stdout.startswith("Stopped by ")
    assert attempt("bisection", "show", "1").exit_code == 2
    assert "stopped" in attempt("bisection", "list").stdout
