"""Many histories at once are the histories that are read one by one."""

from collections.abc import Iterator

import pytest

from service.db.engine import reading, transaction
from service.domain.states import CellState, RunState
from service.ledger.reading import queries
from service.ledger.reading.histories import histories, mainline_runs, measured_names
from service.ledger.targets import target_named
from tests import world
from tests.dashboards.seed import CASES, Seeded, watched


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeded]:
    with watched(tmp_path_factory.mktemp("state")) as story:
        _measure_again(story)
        yield story


def _measure_again(story: Seeded) -> None:
    """A second run of a revision measured one case only, and another one failed there."""
    with transaction() as session:
        first = session.get_one(world.Run, story.runs["steady"])
        again = world.again(session, first, state=RunState.DONE)
        world.measured(session, again, CASES[0], 6.5)
        world.measured(session, again, CASES[1], None, state=CellState.FAILED)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("revisions", [1000, 3])
@pytest.mark.parametrize("device", ["h200", "cpu"])
def test_histories_are_those_of_each_series(device: str, revisions: int) -> None:
    with reading() as session:
        target = target_named(session, "norms")
        runs = mainline_runs(session, target, device, revisions)
        names = measured_names(session, runs)
        found = histories(session, runs, names)
        assert {case for _, case in names} == set(CASES)
        places = queries.newest_places(session, target, revisions)
        for provider, case in names:
            alone = queries.series(session, target, case, provider, device, places=places)
            # Boards and exports of many histories name no author.
            assert found[provider, case] == [point._replace(author="") for point in alone]


@pytest.mark.usefixtures("seeded")
def test_the_newer_run_of_a_revision_counts() -> None:
    with reading() as session:
        target = target_named(session, "norms")
        runs = mainline_runs(session, target, "h200", 1000)
        one = histories(session, runs, [("norms", CASES[0])])["norms", CASES[0]]
    assert [point.median for point in one if point.median == 6.5] == [6.5]
    assert len({point.ordinal for point in one}) == len(one)


def test_nothing_was_measured(seeded: Seeded) -> None:
    with reading() as session:
        assert mainline_runs(session, target_named(session, seeded.empty), "h200", 1000) == []
