"""The facts worker as a story: a pull request opens, is compiled without a GPU, and its comment says what was found.

Everything is the real thing but for GitHub and the compiler, which are fakes.  Of the recipe's two devices the
processor measures, and there is no H200.
"""

import json
import stat
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from service.db.engine import reading, transaction
from service.db.models import FactsCheck
from service.domain.states import FactsState, RunState
from service.ledger.intake import deliveries
from service.ledger.runs import facts_checks
from tests import needs
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.stories import test_story
from tests.stories.test_story import FAST, WIDE, Story, story
from workers import control
from workers.compile import compare, facts_worker

__all__ = ["story"]

FAKES = Path(__file__).parents[1] / "fakes"
# An interpreter that measures, or compiles where it is asked for an architecture: by the first line of its input.
BOTH = """#!{python}
import itertools, json, sys
measures, compiles = {measures!r}, {compiles!r}
text = measures
if any(argument.endswith("contender/__main__.py") for argument in sys.argv[1:]):
    first = sys.stdin.readline()
    text = compiles if json.loads(first)["device"].startswith("sm_") else measures
    sys.stdin = itertools.chain([first], sys.stdin)
exec(text, {{"__name__": "__main__"}})
"""


@pytest.fixture
def _an_h200_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_story.Story, "recipe", test_story.RECIPE.replace('["cpu"]', '["cpu", "h200"]'))


@pytest.fixture
def compiling(_an_h200_as_well: None, story: Story, tmp_path: Path) -> Story:
    """The watched repository, with a stack that compiles as well as it measures."""
    texts = {name: (FAKES / f"scripted_{file}.py").read_text() for name, file in _TEXTS.items()}
    python = tmp_path / "stack" / "python"
    python.write_text(BOTH.format(python=sys.executable, **texts))
    python.chmod(python.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    facts_worker.compile_due()
    return story


_TEXTS = {"measures": "python", "compiles": "compiler"}


def compiles_to(story: Story, **cases: object) -> None:
    """What the next commit's kernels are."""
    named = {{"fast": FAST, "wide": WIDE}.get(name, name): says for name, says in cases.items()}
    (story.repository / "facts.json").write_text(json.dumps(named))


def pushed(story: Story, number: int, monkeypatch: pytest.MonkeyPatch, **speeds: object) -> str:
    """A new head, while every worker is busy elsewhere."""
    with monkeypatch.context() as patch:
        patch.setattr(control, "work", lambda device: 0)
        return story.pull(number, action="opened", **speeds)


def compiled(story: Story) -> int:
    """One poll of the facts worker, and its notification."""
    taken = facts_worker.compile_due()
    story.speak()
    return taken


def checks() -> list[FactsCheck]:
    with reading() as session:
        return list(session.scalars(select(FactsCheck).order_by(FactsCheck.id)))


def test_the_facts_are_in_the_comment_before_the_times_and_beside_them_after(compiling, monkeypatch):
    compiles_to(compiling, wide={"registers": 255, "spills": 40})
    head = pushed(compiling, 7, monkeypatch, wide=300.0)
    assert compiling.said(7) == []

    assert compiled(compiling) == 1
    [comment] = compiling.said(7)
    assert comment.startswith("### … [kernelwatch, ")
    assert f"[`{head[:7]}`]" in comment
    assert "1 case breaks a limit; the same machine code at 1 of 2 cases" in comment
    assert "spills none → 40" in comment
    assert f"`{WIDE} on sm_90`" in comment

    compiling.settle()
    [comment] = compiling.said(7)
    assert "1 of 2 cases" in comment.splitlines()[0], "edited in place"
    assert "spills none → 40" in comment, "and the facts are still there"
    assert ", H200: queued" in comment, "nobody has an H200"
    assert compiled(compiling) == 0, "once for all devices"


def test_a_mainline_commit_is_compiled_as_well_and_not_what_a_backfill_measures(compiling):
    before = len(checks())
    compiles_to(compiling, fast={"registers": 50})
    compiling.push("fewer at once")
    assert compiled(compiling) == 1
    [check] = checks()[before:]
    assert (check.state, check.findings["headline"]) == (FactsState.DONE, "the same machine code at 1 of 2 cases")

    with reading() as session:
        target_id = check.target_id
    deliveries.backfill_last(target_id, 5)
    with transaction() as session:
        assert facts_checks.plan(session) == 0


@needs.skip_unless(not MEASURED_ANYWHERE, "bubblewrap")
def test_a_strangers_code_is_compiled_once_it_is_approved(compiling, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(control, "work", lambda device: 0)
        head = compiling.pull(8, action="opened", fork=True, wide=201.0)
    assert compiling.run_of(head).state is RunState.HELD
    assert compiled(compiling) == 0

    with transaction() as session:
        deliveries.approve(session, compiling.run_of(head).id)
    assert compiled(compiling) == 1
    [comment] = compiling.said(8)
    assert "the same machine code at all 2 cases" in comment


def test_a_build_that_fails_is_said_and_stops_nothing(compiling, monkeypatch):
    (compiling.repository / "broken").write_text("")
    pushed(compiling, 9, monkeypatch)
    assert compiled(compiling) == 1
    assert checks()[-1].state is FactsState.FAILED

    compiling.settle()
    [comment] = compiling.said(9)
    assert "no such header" in comment
    assert "No facts of the compiled code" in comment


def test_a_stack_without_a_compiler_is_said_in_one_quiet_line(compiling, monkeypatch):
    compiles_to(compiling, start="ModuleNotFoundError: No module named 'triton'")
    pushed(compiling, 7, monkeypatch, wide=300.0)
    assert compiled(compiling) == 1
    assert checks()[-1].state is FactsState.UNAVAILABLE
    assert compiling.said(7) == [], "that alone is worth no notification"

    compiling.settle()
    [comment] = compiling.said(7)
    assert "1 of 2 cases" in comment.splitlines()[0]
    assert comment.count("<sub>No facts of the compiled code") == 1
    assert "kernelwatch stack create NAME triton" in comment


def test_what_breaks_is_tried_again_and_then_given_up(compiling, monkeypatch):
    pushed(compiling, 7, monkeypatch, wide=300.0)

    def breaks(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(compare, "facts", breaks)
    for _ in range(facts_checks.ATTEMPTS):
        assert facts_worker.compile_due() == 1
        with transaction() as session:
            session.execute(FactsCheck.__table__.update().values(not_before=0.0))
    assert facts_worker.compile_due() == 0
    assert checks()[-1].state is FactsState.UNAVAILABLE


def test_a_recipe_of_processors_alone_has_no_facts_check(story, monkeypatch):
    pushed(story, 7, monkeypatch, wide=300.0)
    facts_worker.compile_due()
    assert {check.state for check in checks()} == {FactsState.SKIPPED}
    story.settle()
    assert "acts of the compiled code" not in story.said(7)[0]
