"""The facts of a case over the mainline, as text and in a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from dashboards.pages.history.facts import HEIGHT, WIDTH, drawn, event_marks, headline
from service.db.engine import clock, transaction
from service.db.models import Measurement, Run
from service.domain.codefacts.history import FactsAt, moves
from service.domain.states import MovedBy
from tests import world
from tests.dashboards.asking import Get, asking, words
from tests.dashboards.inspection import Drawn
from tests.dashboards.seed import CASES, Seeded, watched

SERIES = {"device": "h200", "provider": "norms", "case": CASES[1]}


def history(*registers: int) -> list[FactsAt]:
    return [
        FactsAt(n, f"{n:040x}", n, float(n), 1, {"registers": value, "kernels": 1}) for n, value in enumerate(registers)
    ]


@pytest.mark.parametrize(
    ("registers", "verdict"),
    [
        ((), "No facts yet"),
        ((40,), "Compiled once"),
        ((40, 40, 40), "The same code over 3 revisions"),
        ((40, 40, 64), "Registers 40 → 64"),
    ],
)
def test_the_headline_is_the_last_change(registers: tuple[int, ...], verdict: str) -> None:
    found = history(*registers)
    assert headline(found, moves(found))[0] == verdict


def test_what_moved_comes_first_and_its_steps_stay_in_the_figure() -> None:
    registers, kernels = drawn(history(40, 40, 64, 40))
    assert (registers.label, registers.now, registers.before, registers.moves) == ("registers", "40", "40 to 64", 2)
    assert (kernels.before, kernels.moves) == ("", 0)
    path = Drawn(registers.steps).path("step moving")
    xs = [float(part.split("V")[0]) for part in path.split("H")[1:]]
    assert min(xs) >= 0
    assert max(xs) <= WIDTH
    ys = [float(part.split("H")[0]) for part in path.split("V")[1:]]
    assert min(ys) >= 0
    assert max(ys) <= HEIGHT


def test_marks_have_a_path_for_each_cause() -> None:
    found = history(40, 64, 64)
    drawn = Drawn(event_marks(found, moves(found)))
    assert [drawn.path(f"moved-by {by.value}").count("M") for by in MovedBy] == [1, 0, 0]
    assert MovedBy.COMMIT is next(iter(MovedBy))


@pytest.fixture(scope="module")
def get(seeded: Seeded) -> Get:
    return asking()


def test_the_page_names_what_a_commit_changed(get: Get) -> None:
    page = get("/targets/norms/facts", params=SERIES)
    assert page.status_code == 200
    text = words(page)
    assert "registers 40 → 64" in text
    assert "the commit" in text
    assert "Sessions that measured the same revision with the same stack chose the same configurations." in text


def test_without_a_case_it_goes_to_one_and_an_unknown_case_is_an_error(get: Get) -> None:
    assert get(get("/targets/norms/facts").headers["location"]).status_code == 200
    missing = get("/targets/norms/facts", params=SERIES | {"case": "rmsnorm.fwd.1x1.bf16"})
    assert missing.status_code == 404
    assert "Search for the case on the trend" in words(missing)
    assert get("/targets/liger/facts").status_code == 404


@pytest.fixture
def drifted(tmp_path: Path) -> Iterator[Seeded]:
    """The parent ran another configuration in the session of `fast` than in its own, of `slow`."""
    hostile = "_forward</code><script>alert(1)</script> num_warps=8"
    with watched(tmp_path) as story:
        with transaction() as session:
            fast, slow = (session.get_one(Run, story.runs[name]) for name in ("fast", "slow"))
            world.drift(session, fast, slow, CASES[1], at=clock(session), before="_forward num_warps=4", now=hostile)
            of_run = update(Measurement).where(Measurement.run_id == fast.id, Measurement.role.in_(("parent", "head")))
            facts = {"code": "dada", "kernels": 1, "registers": 200, "config": hostile}
            session.execute(of_run.values(facts=facts))
        yield story


def test_a_configuration_that_changed_without_a_commit_is_listed(drifted: Seeded) -> None:
    get = asking()
    to = get("/targets/norms/facts").headers["location"]
    assert CASES[1] in to, "the newest drift is shown first"
    page = get(to)
    assert "_forward num_warps=4" in words(page)
    assert "Without a commit: " in words(page)
    assert "<script>alert" not in page.text
    assert "1 configuration on h200 changed without a commit" in words(get("/"))
