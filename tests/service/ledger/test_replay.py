"""Replays of stored runs: the same policy decides the same, differences of another are reported; rows stay."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from kernels.cases import Metric, Role
from service.db.engine import reading, transaction
from service.db.models import Base, RegressionRow, Run, VerdictRow, pack
from service.domain.policy.policy import NOTHING, Policy, read
from service.domain.states import CellState, Outcome, Purpose, RegressionState
from service.domain.verdicts.judge import Verdict, judge
from service.domain.verdicts.reasons import Quarantined
from service.domain.verdicts.replay import Fate, Sum, replay, summed
from service.domain.verdicts.samples import Cell, Pairs
from service.domain.verdicts.session_result import ContenderResult
from service.ledger.runs import replays
from service.reports import words
from service.reports.views import Replay
from tests import world
from tests.shell import attempt

LONG, SHORT = "rmsnorm.fwd.32768x4096.bf16", "rmsnorm.fwd.64x4096.bf16"


def trials(ratio: float, number: int, seed: int = 0, noise: float = 0.0005) -> Pairs:
    """So many trials of some rounds each: head over parent at `ratio`."""
    rng = random.Random(f"{ratio} {number} {seed}")
    base = [[200 * (1 + rng.gauss(0, noise)) for _ in range(4)] for _ in range(number)]
    head = [[us * ratio * (1 + rng.gauss(0, noise)) for us in rounds] for rounds in base]
    return Pairs(tuple(head), tuple(base))


def cell(ratio: float, screened: int = 3, confirmed: int = 0, seed: int = 0) -> Cell:
    return Cell("norms", LONG, trials(ratio, screened, seed), trials(ratio, confirmed, seed + 1))


def once(one: Cell, before: Outcome, *, dismissed: bool = False, **policy: object) -> Fate:
    [found] = replay([one], {one.name: before}, [one.name] if dismissed else [], Policy.model_validate(policy))
    return found.fate


# -- what becomes of one case


def test_what_becomes_of_an_alarm():
    slower = cell(1.05, confirmed=5)
    assert once(slower, Outcome.REGRESSION) is Fate.STAYS
    assert once(slower, Outcome.REGRESSION, smallest_change=0.2) is Fate.MISSED
    assert once(slower, Outcome.REGRESSION, smallest_change=0.2, dismissed=True) is Fate.SPARED
    assert once(replace(slower, quarantined=Quarantined("ada", "too noisy")), Outcome.REGRESSION) is Fate.MISSED


def test_what_becomes_of_none():
    assert once(cell(1.0), Outcome.STEADY) is Fate.QUIET
    assert once(cell(1.05, confirmed=5), Outcome.STEADY) is Fate.NEW
    assert once(cell(0.95, confirmed=5), Outcome.IMPROVEMENT) is Fate.QUIET


def test_what_needs_launches_that_were_never_made_is_undecided():
    assert once(cell(1.05), Outcome.STEADY) is Fate.UNDECIDED, "nobody confirmed what only this policy suspects"
    [found] = replay([cell(1.05)], {("norms", LONG): Outcome.STEADY}, [], Policy(confirmation=(2, 5)))
    assert (found.trials_made, found.trials_used, found.trials_lacking) == (3, 3, 2)


def test_what_stays_open_was_open():
    """The session ended early: it would have asked for more under either policy."""
    noisy = Cell("norms", LONG, trials(1.005, 3, noise=0.02))
    [found] = replay([noisy], {("norms", LONG): Outcome.INCONCLUSIVE}, [], Policy())
    assert (found.fate, found.trials_lacking) == (Fate.QUIET, 2)


def test_no_launch_counts_that_the_policy_would_not_have_asked_for():
    [found] = replay([cell(1.0, screened=16)], {("norms", LONG): Outcome.STEADY}, [], Policy())
    assert (found.fate, found.trials_made, found.trials_used, found.trials_lacking) == (Fate.QUIET, 16, 3, 0)


def test_sums_are_by_provider_and_metric():
    call = replace(cell(1.2, confirmed=5), case=f"{LONG}.call")
    found = replay([cell(1.05, confirmed=5), call], {("norms", LONG): Outcome.REGRESSION}, [], Policy())
    sums = summed(found)
    assert sums["norms", Metric.KERNEL] == Sum(
        cases=1, alarmed=1, stay=1, trials_made=8, trials_used=found[0].trials_used
    )
    assert (sums["norms", Metric.CALL].new, sums["norms", Metric.CALL].alarmed) == (1, 0)
    assert (sums["norms", Metric.KERNEL] + sums["norms", Metric.CALL]).cases == 2


CELLS = st.builds(
    cell,
    ratio=st.sampled_from([0.9, 0.99, 1.0, 1.006, 1.02, 1.3]),
    screened=st.sampled_from([2, 3, 5, 8]),
    confirmed=st.sampled_from([0, 2, 5]),
    seed=st.integers(0, 20),
)


@settings(max_examples=60)
@given(st.lists(CELLS, min_size=1, max_size=5), st.floats(0.002, 0.3))
def test_a_policy_agrees_with_itself(cells: list[Cell], smallest: float):
    policy = Policy(smallest_change=smallest)
    cells = [replace(one, provider=str(place)) for place, one in enumerate(cells)]
    before = {name: verdict.outcome for name, verdict in judge(cells, policy).items()}
    found = replay(cells, before, [], policy)
    assert {one.fate for one in found} <= {Fate.QUIET, Fate.STAYS}
    assert all(one.trials_used <= one.trials_made for one in found)


# -- over what is stored


RECIPE = """
devices = ["cpu"]
sota = "inductor"
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[policy]
{policy}
"""


@dataclass
class Ledger:
    target_id: int

    def run(self, place: int, long: float = 1.0, short: float = 1.0, *, purpose: Purpose = Purpose.WATCH) -> int:
        """Measure a commit: the ratio of each case to the commit before."""
        with transaction() as session:
            world.run(session, world.commit(session, self.target_id, place), purpose=purpose)
        taken = [one for case, ratio in ((LONG, long), (SHORT, short)) for one in self.took(case, ratio, place)]
        return world.recorded(world.leased(), world.session_of(taken, f"c{place - 1}")).id

    def took(self, case: str, ratio: float, seed: int) -> list[ContenderResult]:
        if ratio < 0:  # wrong at both
            return [world.took(role, case, state=CellState.INVALID) for role in (Role.HEAD, Role.PARENT)]
        first, fresh = trials(ratio, 3, seed), trials(ratio, 0 if ratio in (1, 1.015) else 5, seed + 1)
        sides = {Role.HEAD: (first.candidate, fresh.candidate), Role.PARENT: (first.baseline, fresh.baseline)}
        sides |= {Role.CONTROL: sides[Role.PARENT], Role.SOTA: (first.baseline, ())}
        names = {Role.SOTA: "inductor"}
        return [
            replace(world.took(role, case, provider=names.get(role, "norms")), screened=screened, confirmed=confirmed)
            for role, (screened, confirmed) in sides.items()
        ]


@pytest.fixture
def ledger(state: Path) -> Ledger:
    return opened()


def opened() -> Ledger:
    return Ledger(world.target(RECIPE.format(policy="smallest_change = 0.02")).id)


@pytest.fixture
def history(ledger: Ledger) -> list[int]:
    return filled(ledger)


def filled(ledger: Ledger) -> list[int]:
    """Steady, 5 % slower, 8 % faster, 1.5 % slower, nearly as much and wrong at one case, and a calibration."""
    ratios = [(1.0, 1.0), (1.05, 1.0), (0.92, 1.0), (1.015, 1.3), (1.016, -1.0)]
    runs = [ledger.run(place, *both) for place, both in enumerate(ratios, 1)]
    return [*runs, ledger.run(9, purpose=Purpose.CALIBRATION)]


def replayed(policy: str) -> Replay:
    with reading() as session:
        return replays.replayed(session, read(policy, "policy.toml"), NOTHING)


def test_it_is_the_same_on_either_database(either):
    assert len(filled(opened())) == replayed("smallest_change = 0.02").runs == 6
    assert [told.replayed.fate for told in replayed("smallest_change = 0.1").cases] == [Fate.MISSED]


def test_what_is_stored_is_what_was_measured(ledger):
    run_id = ledger.run(1, 1.05, -1.0)
    with reading() as session:
        found = replays.one(session, run_id)
    assert found.result.taken == tuple(
        replace(one, screened=rounded(one.screened), confirmed=rounded(one.confirmed))
        for case, ratio in ((LONG, 1.05), (SHORT, -1.0))
        for one in ledger.took(case, ratio, 1)
    )


def rounded(part: object) -> tuple[list[float], ...]:
    return tuple(json.loads(json.dumps([[round(us, 4) for us in rounds] for rounds in part])))


def said(verdict: Verdict, name: tuple[str, str]) -> str:
    return words.of_reason(verdict.reason, name[1], known_before=verdict.known_before)


def test_a_stored_run_judged_by_its_own_policy_has_its_own_verdicts(history):
    for run_id in history:
        with reading() as session:
            found = replays.one(session, run_id)
            stored = session.execute(
                select(VerdictRow).where(VerdictRow.run_id == run_id, VerdictRow.baseline_kind == "parent")
            )
            before = {(row.provider, row.case): row for row in stored.scalars()}
        policy = Policy.model_validate({"smallest_change": 0.02})
        again = judge(found.cells(policy), policy)
        assert {name: (one.outcome, one.known_before, said(one, name)) for name, one in again.items()} == {
            name: (row.outcome, row.known_before, words.of_verdict(row)) for name, row in before.items()
        }
        for name, one in again.items():
            assert (one.comparison.ratio if one.comparison else None) == close(before[name].ratio)
            assert one.p == close(before[name].p)


def close(stored: float | None) -> object:
    """Samples are stored with four digits behind the point."""
    return stored if stored is None else pytest.approx(stored, rel=1e-2)


def test_the_policy_that_made_the_verdicts_changes_nothing(history):
    answer = replayed("smallest_change = 0.02")
    assert (answer.runs, answer.cases) == (6, [])
    assert (answer.whole.alarmed, answer.whole.stay, answer.whole.trials_lacking) == (2, 2, 0)
    assert answer.whole.behind_sota == answer.whole.behind_sota_before == 1
    assert (answer.equal.comparisons, answer.equal.alarmed, answer.equal_before.alarmed) == (4, 0, 0)


@pytest.mark.parametrize(
    ("policy", "fates"),
    [
        ("smallest_change = 0.005", {(Fate.UNDECIDED, LONG, 1.015), (Fate.NEW, LONG, 1.016)}),
        ("smallest_change = 0.1", {(Fate.MISSED, LONG, 1.05)}),
        ("smallest_change = 0.1\nmetrics.call = 0.2", {(Fate.MISSED, LONG, 1.05)}),
        ("smallest_change = 0.02\nconfirmation = [12]", set()),  # what there is says the same
        ('smallest_change = 0.02\ncases."*.64x*".quarantine = "noisy"', {(Fate.MISSED, SHORT, 1.3)}),
    ],
)
def test_another_policy_is_told_where_it_differs(history, policy, fates):
    told = [one for one in replayed(policy).cases if one.replayed.outcome_before is not Outcome.IMPROVEMENT]
    ratios = {(2, LONG): 1.05, (4, LONG): 1.015, (4, SHORT): 1.3, (5, LONG): 1.016}
    assert {(one.replayed.fate, one.replayed.case, ratios[one.run_id, one.replayed.case]) for one in told} == fates


def test_what_a_person_dismissed_is_spared(history):
    with transaction() as session:
        for row in session.execute(select(RegressionRow)).scalars():
            row.state = RegressionState.DISMISSED
    [told] = replayed("smallest_change = 0.1").cases
    assert told.replayed.fate is Fate.SPARED


def test_a_case_that_only_another_version_knows_is_left_out(history):
    with transaction() as session:
        run = session.get_one(Run, history[0])
        world.measured(session, run, "softmax.fwd.1x1.fp64", samples=pack([[1.0]], []))
    assert replayed("").runs == 6


def test_the_command_only_reads(history, tmp_path):
    def counts() -> dict[str, int]:
        with reading() as session:
            tables = Base.metadata.sorted_tables
            return {
                table.name: session.execute(select(func.count()).select_from(table)).scalar_one() for table in tables
            }

    def said(*words: str) -> str:
        done = attempt("policy", "replay", "norms", "--policy", str(file), *words, env={"COLUMNS": "250"})
        assert done.exit_code == 0, done.output or done.exception
        return str(done.stdout)

    file, before = tmp_path / "policy.toml", counts()
    file.write_text("smallest_change = 0.1\n")
    table = said()
    assert "2 alarmed, of which 1 stay, 1 missed and 0 spared; 0 new; 0 undecided with the stored trials." in table
    assert "Missed: alarmed before, and would not alarm: 1" in table
    assert "Comparisons of equal code: 4; 0 alarmed, 0 would have." in table
    document = json.loads(said("--format", "json", "--device", "cpu", "--since", "2020-01-01"))
    assert (document["runs"], document["total"]["missed"], document["cases"][0]["fate"]) == (6, 1, "missed")
    assert document["since"].endswith("Z")
    assert "| device | provider |" in said("--format", "md")
    assert "No stored runs to replay." in said("--since", "2999-01-01")
    assert counts() == before
