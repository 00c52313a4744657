"""The ablation of Inductor: conclusions from known times."""

import itertools
import math
from dataclasses import replace

import pytest

from kernels.errors import INVALID, MEASURED
from kernels.studies import s4
from kernels.studies.records import Record, Session
from kernels.studies.results import Results

SINGLE = {"no-divisible": 1.01, "no-persistent": 1.02, "no-split": 1.10}


def results_of(more=(), *, interaction=1.05, spread=0.002, eager=1.4, per_suite=None, dynamic=None, trials=2):
    """Records of trials of every block; `per_suite` scales the time without split reductions."""
    records = []
    for (suite, names), trial in itertools.product(s4.SUITES.items(), range(trials)):
        for number, name in enumerate(names):
            # A single trial has only its blocks to differ in.
            wobble = 1 + spread * (trial - 0.5 if trials > 1 else number % 3 - 1)
            times = {"inductor": 100.0, "eager": 100.0 * eager, **{arm: 100 * by for arm, by in SINGLE.items()}}
            times["no-split"] *= wobble * (per_suite or {}).get(suite, 1.0)
            product = math.prod(times[arm] / 100 for arm in SINGLE)
            times["no-three"] = 100 * product * interaction * wobble
            times |= dict(more)
            case = f"{suite}.{name}.amp"
            step = (suite, trial, case)
            records += [Record(*step, arm, MEASURED, samples=(us, us * 1.001)) for arm, us in times.items()]
            if dynamic:
                again = {"inductor": 110.0, "dynamic": 110.0 * dynamic * wobble}
                records += [
                    Record(f"{suite}-dynamic", trial, case, arm, MEASURED, samples=(us,)) for arm, us in again.items()
                ]
    return Results((Session("s4", "2026-11-24T00:00:00+00:00", "h200", False),), tuple(records))


def finding(results, beginning):
    return next(one for one in s4.report(results).findings if one.claim.startswith(beginning))


def table(results, beginning):
    return next(one for one in s4.report(results).tables if one.title.startswith(beginning))


@pytest.mark.parametrize(
    ("interaction", "spread", "holds"),
    [(1.05, 0.002, True), (1.0, 0.002, False), (1.0, 0.2, None), (0.95, 0.002, False)],
)
@pytest.mark.parametrize("trials", [1, 2])
def test_the_losses_add_up_if_their_interaction_is_negligible(interaction, spread, holds, trials):
    found = finding(results_of(interaction=interaction, spread=spread, trials=trials), "The losses are not additive")
    assert found.holds is (holds if trials > 1 else None)  # how much blocks differ decides nothing
    assert "of 23 blocks" in found.found
    assert ("over cases" in found.found) == (trials == 1)


@pytest.mark.parametrize("title", ["Speed-up over eager", "What each ablation costs", "Do the losses add up"])
def test_all_blocks_have_an_interval_over_the_trials_of_all_suites(title):
    whole, single = table(results_of(), title), table(results_of(trials=1), title)
    for found, over in ((whole, False), (single, True)):
        cells = [cell for row in found.rows for cell in row if "all blocks" in row or row is not found.rows[-1]]
        intervals = [cell for cell in cells if " to " in cell]
        assert len(intervals) >= 4
        assert all(("over cases" in cell) == over for cell in intervals)


def test_what_is_compared_is_about_the_same_blocks():
    """One block has no time without split reductions, and all of them a far larger loss without the three."""
    case = "language.bert.amp"
    kept = [one for one in results_of().records if (one.arm, one.case) != ("no-split", case)]
    slow = [replace(one, samples=(900.0,)) if (one.arm, one.case) == ("no-three", case) else one for one in kept]
    results = Results(results_of().sessions, tuple(slow))
    rows = {row[0]: row for row in table(results, "Do the losses add up").rows}
    assert (rows["language"][1], rows["all blocks"][1]) == ("8", "22")
    assert rows["language"][2].startswith("+13.3%")
    assert rows["language"][3].startswith("+19.0%")  # of the other eight: 1.133 * 1.05
    assert rows["language"][4].startswith("+5.0%")


def test_the_table_of_interactions_has_that_of_the_source():
    rows = {row[0]: row[1:] for row in table(results_of(), "Do the losses add up").rows}
    assert rows["language"][1].startswith("+13.3% (")  # 1.01 * 1.02 * 1.10
    assert rows["language"][3].startswith("+5.0% (+")
    assert rows["vision"][4] == "+5.7%"  # 1.35 / 1.11 against 1.35/1.33 * 1.35/1.34 * 1.35/1.20
    assert rows["all blocks"][4] == "–"


@pytest.mark.parametrize(
    ("per_suite", "spread", "holds"),
    [({"vision": 1.1}, 0.002, True), (None, 0.002, None), (None, 0.0001, None), ({"vision": 1.1}, 0.5, None)],
)
def test_suites_differ_if_their_intervals_have_nothing_in_common(per_suite, spread, holds):
    assert finding(results_of(per_suite=per_suite, spread=spread), "The suites differ").holds is holds


def test_suites_are_alike_if_no_loss_is_relevant():
    more = dict.fromkeys((*SINGLE, "no-three"), 100.2)
    assert finding(results_of(more), "The suites differ").holds is False


@pytest.mark.parametrize(
    ("persistent", "holds"),
    [(102.0, True), (130.0, False)],
)
def test_split_reductions_matter_most_if_both_others_cost_less(persistent, holds):
    found = finding(results_of({"no-persistent": persistent}), "Split reductions matter most")
    assert found.holds is holds
    assert "without split reductions +10.0% (" in found.found


def test_the_newer_reduction_is_named_where_it_was_ablated():
    found = finding(results_of({"no-mix-order": 140.0}), "Split reductions matter most")
    assert "without mix-order reductions, which the source did not have, +40.0%" in found.found


@pytest.mark.parametrize(("dynamic", "holds"), [(1.03, True), (1.19, True), (1.40, False)])
def test_dynamic_shapes_are_compared_with_the_loss_of_the_assumptions(dynamic, holds):
    """Each is relative to the inductor of its own step: 110 us there and 100 us here."""
    results = results_of(dynamic=dynamic)
    found = finding(results, "Dynamic shapes cost no more")
    assert found.holds is holds
    assert found.found.startswith(f"dynamic shapes +{dynamic - 1:.1%}")
    assert table(results, "What dynamic shapes cost").rows[-1][0] == "all blocks"


@pytest.mark.parametrize(("eager", "holds"), [(1.4, True), (0.9, False)])
def test_speed_ups_over_eager_are_next_to_those_of_the_source(eager, holds):
    results = results_of(eager=eager)
    assert finding(results, "torch.compile is faster").holds is holds
    first = table(results, "Speed-up over eager, amp").rows[0]
    assert first[:2] == ("inductor", f"{eager:.3f} ({eager:.3f} to {eager:.3f}) [1.40]")


def test_an_invalid_arm_has_no_time_and_its_reason_is_shown():
    results = results_of()
    case = "language.bert.amp"
    wrong = [
        replace(one, state=INVALID, reason="output has a relative error of 1", samples=())
        if (one.arm, one.case) == ("no-split", case)
        else one
        for one in results.records
    ]
    results = Results(results.sessions, tuple(wrong))
    assert table(results, "Not measured").rows == (
        (case, "without split reductions", "invalid: output has a relative error of 1"),
    )
    assert "of 22 blocks" in finding(results, "The losses are not additive").found


def timed_by(results, graph):
    """The same records with facts of how each was timed: `graph` of a record is True, False or None."""
    ways = {True: {"graph": True}, False: {"graph": False, "graph_reason": "it waits"}, None: {}}
    changed = (replace(one, facts={**one.facts, **ways[graph(one)]}) for one in results.records)
    return Results(results.sessions, tuple(changed))


def test_a_block_that_was_launched_in_one_step_is_not_compared_with_a_replay_in_another():
    case = "language.bert.amp"
    results = timed_by(results_of(dynamic=1.03), lambda one: (one.step, one.case) != ("language-dynamic", case))
    assert table(results, "What dynamic shapes cost").rows[-1][-1] == "0 of 22"
    assert "of 23 blocks" in finding(results, "The losses are not additive").found  # of static shapes alone
    replayed = timed_by(results_of(dynamic=1.03), lambda _: True)
    assert table(replayed, "What dynamic shapes cost").rows[-1][-1] == "0 of 23"


@pytest.mark.parametrize(("graph", "says"), [(True, True), (False, False), (None, False)])
def test_the_table_of_blocks_says_that_graphs_were_replayed(graph, says):
    results = timed_by(results_of(), lambda _: graph)
    assert ("replayed as a CUDA graph" in table(results, "Blocks").note) is says


def test_launched_blocks_are_listed_with_the_reason_of_the_arm_that_had_to():
    case = "language.bert.amp"
    results = timed_by(results_of(trials=1), lambda one: (one.arm, one.case) != ("eager", case))
    assert table(results, "Launched one by one").rows == ((case, "language", "eager", "it waits"),)
    replayed = s4.report(timed_by(results_of(), lambda _: True)).tables
    assert "Launched one by one" not in [one.title for one in replayed]


def test_a_report_of_nothing_is_empty():
    assert s4.report(Results((), ())).tables == ()
