"""Choice of baselines in a session: real git, environments and processes; answers of contenders are scripted."""

import json
import time

import pytest
from sqlalchemy import select

from service.db.engine import reading, transaction
from service.db.models import Measurement, RegressionRow, Revision, Run, Target, VerdictRow
from service.domain.states import Purpose, RegressionState, RunState
from service.errors import BuildFailed
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ledger.reading.queries import found_in
from service.ledger.runs import internal_runs, queue
from service.ledger.runs.revisions import second_session
from service.settings import settings
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.workers.conftest import CASE, Norms
from workers.machine.device import DeviceHere
from workers.run import baselines, session

WIDE = "rmsnorm.fwd.4x64.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "two"
sota = "eager"
baselines = ["inductor"]
pinned = "last-release"
[base]
stack = "scripted"
[build]
commands = ["test ! -e broken"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
two = ["{CASE}", "{WIDE}"]
[policy]
smallest_change = 0.1
screening = [3, 5]
rounds = 4
"""


class Repository:
    """A watched mainline; each commit is measured at once."""

    def __init__(self, norms: Norms) -> None:
        self.norms = norms

    def push(self, wide: object = 100.0, **others: object) -> Run:
        """Commit a revision at which the wide case takes so many us, and others what they are given; measure it."""
        speeds = {CASE: 100.0, WIDE: wide, **others}
        sha = self.norms.commit({"speed.json": json.dumps(speeds), "when": str(time.monotonic_ns())})
        deliveries.backfill_last(1, 2)
        while (run := self.measure()).revision.sha != sha:
            pass
        assert run.state is RunState.DONE, run.reason
        return run

    def measure(self) -> Run:
        """What becomes of the next run."""
        with transaction() as database:
            lease = queue.next_run(database, "cpu", "test/cpu-0", settings().lease_s)
        assert lease
        session.measure(lease, DeviceHere("cpu", "the processor"))
        with reading() as database:
            run = database.get_one(Run, lease.run_id)
            database.refresh(run, ["revision", "log"])
            return run

    def tag(self, name: str) -> None:
        self.norms.git("tag", name)
        self.norms.source.refresh()


@pytest.fixture
def repository(scripted, norms) -> Repository:
    with transaction() as database:
        where = {"location": str(norms.folder), "branch": "main"}
        targets.register(database, "norms", recipe_text=RECIPE, **where, **MEASURED_ANYWHERE)
    return Repository(norms)


def took_part(run: Run) -> dict[str, set[str]]:
    """Each role with the cases at which it was measured."""
    with reading() as database:
        rows = database.execute(select(Measurement).where(Measurement.run_id == run.id)).scalars().all()
    return {role: {row.case for row in rows if row.role == role} for role in {row.role for row in rows}}


def outcomes(run: Run, against: str) -> dict[str, str]:
    with reading() as database:
        rows = database.execute(
            select(VerdictRow).where(VerdictRow.run_id == run.id, VerdictRow.baseline_kind == against)
        ).scalars()
        return {row.case: row.outcome for row in rows}


def test_rivals_and_the_slow_baseline_take_part_in_the_first_launches(repository):
    first = repository.push()
    assert set(took_part(first)) == {"head", "control", "sota", "rival"}
    assert first.reason == "there is no earlier revision to compare with; there is no release before this revision " + (
        "to compare with"
    )
    repository.tag("v1.0")

    second = repository.push()
    assert set(took_part(second)) == {"head", "parent", "control", "sota", "rival"}, "the release is its parent"

    third = repository.push(wide=150.0)
    assert set(took_part(third)) == {"head", "parent", "control", "sota", "rival", "pinned"}
    assert third.pinned == first.revision.sha
    assert outcomes(third, "pinned") == {CASE: "steady", WIDE: "regression"}
    assert outcomes(third, "parent") == {CASE: "steady", WIDE: "regression"}
    assert outcomes(third, "best").keys() == outcomes(third, "sota").keys() == {CASE, WIDE}
    with reading() as database:
        rows = database.execute(select(Measurement).where(Measurement.run_id == third.id, Measurement.case == WIDE))
        trials = {row.role: row.trials for row in rows.scalars()}
    assert {trials[role] for role in ("sota", "rival", "pinned")} == {3}
    assert trials["head"] > 3, "fresh trials confirm it, of the two sides alone"


def test_a_slow_baseline_that_cannot_be_built_is_a_note_and_nothing_else(repository):
    repository.norms.commit({"speed.json": "{}", "broken": ""})
    repository.tag("v1.0")
    (repository.norms.folder / "broken").unlink()
    repository.push()
    run = repository.push()
    assert run.pinned is None
    assert run.reason is not None
    assert run.reason.startswith("not compared with the pinned baseline last-release: ")
    assert outcomes(run, "parent") == {CASE: "steady", WIDE: "steady"}


def test_the_last_good_revision_stands_in_at_the_cases_that_are_slow_already(repository):
    good = repository.push()
    slow = repository.push(wide=150.0)
    assert outcomes(slow, "parent")[WIDE] == "regression"

    after = repository.push(wide=150.0)
    assert took_part(after)["last_good"] == {WIDE}
    assert (after.baseline, after.last_good) == (slow.revision.sha, good.revision.sha)
    assert outcomes(after, "parent") == {CASE: "steady", WIDE: "steady"}, "this commit did not do it"
    assert outcomes(after, "last_good") == {WIDE: "regression"}
    assert states() == [RegressionState.OPEN]

    mended = repository.push(wide=100.0)
    assert outcomes(mended, "parent")[WIDE] == "improvement"
    assert outcomes(mended, "last_good") == {WIDE: "steady"}
    assert states() == [RegressionState.FIXED]
    assert "last_good" not in took_part(repository.push(wide=100.0)), "and is no concern of the next commit"


def test_a_last_good_revision_that_cannot_be_built_is_a_note(repository, monkeypatch):
    good = repository.push()
    repository.push(wide=150.0)
    build = baselines.Baselines.build

    def not_that(self: baselines.Baselines, sha: str) -> object:
        if sha == good.revision.sha:
            raise BuildFailed("the compiler is gone")
        return build(self, sha)

    monkeypatch.setattr(baselines.Baselines, "build", not_that)
    after = repository.push(wide=150.0)
    assert after.reason == (
        f"{good.revision.short}, the last good revision of 1 case at which the baseline is slow already, "
        "cannot be built: the compiler is gone; "
        "there is no release before this revision to compare with"
    )
    assert outcomes(after, "last_good") == {}


def builds() -> int:
    return sum((folder / "whole").exists() for folder in (settings().state / "environments").iterdir())


def calibrated(repository: Repository, run: Run, night: str) -> Run:
    with transaction() as database:
        revision = database.get_one(Revision, run.revision_id)
        target = database.get_one(Target, run.target_id)
        names = {"device": "cpu", "suite": "two", "baseline": revision.sha}
        internal_runs.internal_run(database, target, revision, Purpose.CALIBRATION, key=night, **names)
    return repository.measure()


def test_each_calibration_of_a_revision_compares_two_fresh_builds(repository):
    run = repository.push()
    before = builds()
    for number in (1, 2):
        calibrated(repository, run, f"night {number}")
        assert builds() == before + 2 * number


def test_a_second_session_has_builds_of_its_own(repository):
    repository.push()
    run = repository.push()
    before = builds()
    with transaction() as database:
        second_session(database, database.get_one(Run, run.id))
    second = repository.measure()
    assert (second.second_of, second.state) == (run.id, RunState.DONE)
    assert builds() == before + len({"head", "parent"})


def test_a_calibration_measures_a_revision_against_itself_and_nobody_else(repository):
    calibration = calibrated(repository, repository.push(), "tonight")
    assert set(took_part(calibration)) == {"head", "parent", "control"}
    assert outcomes(calibration, "parent") == {CASE: "steady", WIDE: "steady"}


def test_a_search_whose_good_end_does_not_build_says_which_side_it_was(repository):
    broken = repository.norms.commit({"speed.json": "{}", "broken": ""})
    (repository.norms.folder / "broken").unlink()
    run = repository.push()
    with transaction() as database:
        revision = database.get_one(Revision, run.revision_id)
        target = database.get_one(Target, run.target_id)
        names = {"device": "cpu", "suite": "two", "baseline": broken}
        internal_runs.internal_run(database, target, revision, Purpose.BISECTION, key="1:1", **names)
    step = repository.measure()
    assert step.build_failed
    assert step.reason.startswith(f"The baseline {broken[:10]} does not build: The build failed at ")


def states() -> list[RegressionState]:
    with reading() as database:
        return list(database.execute(select(RegressionRow.state)).scalars())


def test_each_provider_has_the_baseline_that_it_gets_right(scripted, norms):
    text = RECIPE.replace("[suites]", '[providers.other]\nrmsnorm.fwd = "norms:other"\n[suites]')
    with transaction() as database:
        targets.register(
            database, "norms", location=str(norms.folder), branch="main", recipe_text=text, **MEASURED_ANYWHERE
        )
    repository = Repository(norms)
    first = repository.push().revision.sha
    second = repository.push(wide=150.0, **{f"other:{WIDE}": "invalid: y is wrong"}).revision.sha
    third = repository.push(wide=150.0)  # the other provider is right again, and slow

    with reading() as database:
        rows = database.scalars(
            select(VerdictRow).where(VerdictRow.run_id == third.id, VerdictRow.baseline_kind == "parent")
        )
        found = {(row.provider, row.case): (row.baseline, row.outcome) for row in rows}
    assert found == {
        ("norms", CASE): (second, "steady"),
        ("norms", WIDE): (second, "steady"),
        ("other", CASE): (second, "steady"),
        ("other", WIDE): (first, "regression"),
    }
    assert third.reason is not None
    assert third.reason.startswith(
        f"1 case compared with {first[:10]}, because {second[:10]} is wrong or failed there"
    ), third.reason


def test_so_many_earlier_revisions_take_the_place_of_a_broken_one_and_no_more(scripted, norms):
    cases = [f"rmsnorm.fwd.{rows}x8.fp32" for rows in (1, 2, 3, 4, 5)]
    text = RECIPE.replace(f'"{CASE}", "{WIDE}"', ", ".join(f'"{case}"' for case in cases))
    with transaction() as database:
        targets.register(
            database, "norms", location=str(norms.folder), branch="main", recipe_text=text, **MEASURED_ANYWHERE
        )
    repository = Repository(norms)
    shas, speeds = [], dict.fromkeys(cases, 100.0)
    for case in (None, *cases[:4]):  # one case after the other breaks
        if case is not None:
            speeds[case] = "invalid: y is wrong"
        shas.append(repository.push(**speeds).revision.sha)
    run = repository.push(**dict.fromkeys(cases, 100.0))
    with reading() as database:
        rows = database.scalars(
            select(VerdictRow).where(VerdictRow.run_id == run.id, VerdictRow.baseline_kind == "parent")
        )
        found = {row.case: (row.baseline, row.outcome) for row in rows}
    assert found == {
        cases[4]: (shas[4], "steady"),
        cases[3]: (shas[3], "steady"),
        cases[2]: (shas[2], "steady"),
        cases[1]: (shas[4], "new"),
        cases[0]: (shas[4], "new"),
    }


def test_more_last_good_revisions_than_a_session_has_room_for_take_turns_over_sessions(scripted, norms):
    cases = [f"rmsnorm.fwd.{rows}x8.fp32" for rows in (1, 2, 3, 4)]
    text = RECIPE.replace(f'"{CASE}", "{WIDE}"', ", ".join(f'"{case}"' for case in cases))
    text = text.replace('pinned = "last-release"\n', "")
    with transaction() as database:
        targets.register(
            database, "norms", location=str(norms.folder), branch="main", recipe_text=text, **MEASURED_ANYWHERE
        )
    repository = Repository(norms)
    speeds = dict.fromkeys(cases, 100.0)
    repository.push(**speeds)
    for case in cases:  # one case after the other becomes slow
        speeds[case] = 150.0
        repository.push(**speeds)

    first, second = repository.push(**speeds), repository.push(**speeds)
    compared = [took_part(run)["last_good"] for run in (first, second)]
    assert [len(each) for each in compared] == [3, 3]
    assert compared[0] | compared[1] == set(cases), "each has its turn"
    assert (first.reason, second.reason) == (None, None), "there is nothing that anybody should do"
    [waiting] = set(cases) - compared[1]
    with reading() as database:
        [row] = [row for row in found_in(database, second.id).rows if row.case == waiting]
    since = f"slow since {row.known.revision} (regression {row.known.regression})"
    assert row.as_before() == f"{since}; not compared with its last good revision in this session"

    fixed = repository.push(**dict.fromkeys(cases, 100.0))
    assert set(states()) == {RegressionState.FIXED}, fixed.reason
