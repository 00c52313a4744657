"""The score of `make bench-detect`, so that another's agrees."""

import gzip

import numpy as np
import pytest

from benchmarks.detect import made, study
from benchmarks.detect.noises import NOISES, OWN_SIGMA, sessions
from benchmarks.detect.patterns import PATTERNS, stretches
from benchmarks.detect.rules import RULES, perfherder
from benchmarks.detect.score import LARGE, Labelled, matched, read, score

STEP = (100.0,) * 50 + (110.0,) * 50


@pytest.mark.parametrize(
    ("labels", "ambiguous", "predictions", "hits", "false", "missed"),
    [
        ([50], [], [50], 1, 0, 0),
        ([50], [], [45], 1, 0, 0),  # the margin counts
        ([50], [], [44], 0, 1, 1),
        ([50], [], [], 0, 0, 1),
        ([], [], [50], 0, 1, 0),
        ([50], [], [48, 52], 1, 1, 0),  # one label has one prediction, the other is false, once
        ([50, 56], [], [53], 1, 0, 1),  # one prediction has one label
        ([50, 56], [], [52, 61], 2, 0, 0),  # as many as possible
        ([50, 54], [], [53, 58], 2, 0, 0),
        ([], [30], [33], 0, 0, 0),  # nobody knows
        ([50], [46], [47, 50], 1, 0, 0),  # the nearest is matched, the ambiguous one ignored
    ],
)
def test_score(labels, ambiguous, predictions, hits, false, missed):
    one = Labelled("a|b|c", STEP, tuple(labels), tuple(ambiguous))
    found = score([one], {one.name: predictions})
    assert (found.hits, found.false, found.missed) == (hits, false, missed)


def test_small_steps_are_left_out_of_the_score_of_large_ones():
    values = (100.0,) * 30 + (101.0,) * 30 + (110.0,) * 30
    one = Labelled("a|b|c", values, (30, 60), ())
    assert score([one], {one.name: []}, LARGE).missed == 1
    assert score([one], {one.name: [30, 60]}, LARGE).hits == 1
    assert score([one], {one.name: [15, 60]}, LARGE).false == 0  # it sees no step of 2 % there


def test_figures():
    one = Labelled("a|b|c", STEP, (50,), ())
    found = score([one], {one.name: [20, 50]})
    assert (found.precision, found.recall, found.f1) == (0.5, 1.0, pytest.approx(2 / 3))
    assert found.false_per_1000 == 10


def test_matches_are_the_nearest_of_the_most():
    assert matched([1, 9, 20], [5, 12]) == [(1, 5), (9, 12)]
    assert matched([], [5]) == []


def test_a_file_is_read_in_any_order(tmp_path):
    lines = [f"p|s|b{series},{place},{STEP[place]},{int(place == 50)},0" for series in range(8) for place in range(100)]
    written = tmp_path / "labelled.csv.gz"
    with gzip.open(written, "wt") as out:
        out.write("\n".join(["series,index,value,is_change,is_ambiguous", *lines[::-1]]))

    labelled = read(written)

    assert len(labelled) == 8
    assert all(one.values == STEP and one.changes == (50,) and one.project == "p" for one in labelled)


def test_the_labelled_series_are_there():
    labelled = read(study.SERIES)
    assert (len(labelled), sum(len(one.changes) for one in labelled)) == (44, 110)
    assert sum(len(one.ambiguous) for one in labelled) > 100
    assert len(list(stretches(labelled))) == 34


def test_the_table_has_a_line_for_each_tool(capsys):
    labelled = [Labelled("p|s|one", STEP, (50,), ()), Labelled("p|s|two", STEP, (50,), ())]
    rows = [*study.ours(labelled), *study.rules(labelled)]
    study.table(labelled, rows)
    said = capsys.readouterr().out
    assert all(tool in said for tool in RULES)
    assert "| kernelwatch, block | 2.0% | 1.000 | 1.000 | 1.000 | 1.000 | 0.00 |" in said


def test_the_study_says_what_was_reported_as_revisions_arrived(capsys):
    study.arriving([Labelled("p|s|b", tuple(value + place % 3 / 10 for place, value in enumerate(STEP)), (50,), ())])
    said = capsys.readouterr().out
    assert "| at the end, block | 1.000 | 1.000 | 1.000 | 0.00 |" in said
    assert "Withdrawn of 1 reported (block): 0.0%" in said


def test_each_project_is_scored_with_what_the_others_choose(capsys):
    study.projects([Labelled(f"{project}|s|one", STEP, (50,), ()) for project in "pq"])
    said = capsys.readouterr().out
    assert said.count("| 1 | 1 | 1.000 | 1.000 | 1.000 | 1.000 |") == 2


def test_a_pattern_moves_the_level_by_its_size():
    for pattern in PATTERNS:
        levels = pattern.levels(120, 0.05)
        steps = np.flatnonzero(np.diff(levels)) + 1
        assert steps.tolist() == pattern.places(120)
        assert np.abs(np.diff(levels))[steps - 1].min() >= 0.05 - 1e-12


@pytest.mark.parametrize("name", NOISES)
def test_noise_has_its_size_and_the_session_shares_it(name):
    every = list(sessions(NOISES[name], 1, 20, 400))
    assert 0.004 < np.mean([np.std(one.machine) for one in every]) < 0.04
    for one in every:
        assert np.std(one.own - one.sota) == pytest.approx(OWN_SIGMA * 2**0.5, rel=0.2)


def test_made_series_are_reported(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["detect", "made", "--quick"])
    monkeypatch.setattr(made, "POINTS", 8000)
    study.main()
    said = capsys.readouterr().out
    for words in ("False changes per 1,000", "| landed, reverted, twice |", "Leaks named", "siblings"):
        assert words in said


def test_a_peers_rule_finds_a_plain_step():
    noise = [value + place % 5 / 100 for place, value in enumerate(STEP)]
    assert all(abs(place - 50) <= 1 for place in perfherder(noise))
    for settings in RULES.values():
        assert any(any(abs(place - 50) <= 5 for place in rule(noise)) for rule in settings.values())


def test_without_the_file_the_study_says_what_it_wants(monkeypatch):
    monkeypatch.setattr("sys.argv", ["detect", "--csv", "nowhere.csv"])
    with pytest.raises(SystemExit, match="series, index, value, is_change and is_ambiguous"):
        study.main()
