"""The score of `make bench-detect`, so that another's agrees."""

import gzip

import pytest

from tests.studies.detect import study
from tests.studies.detect.rules import RULES, perfherder
from tests.studies.detect.score import LARGE, Labelled, matched, read, score

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


def test_a_file_is_read_in_any_order_and_split_by_names(tmp_path):
    lines = [f"p|s|b{series},{place},{STEP[place]},{int(place == 50)},0" for series in range(8) for place in range(100)]
    written = tmp_path / "labelled.csv.gz"
    with gzip.open(written, "wt") as out:
        out.write("\n".join(["series,index,value,is_change,is_ambiguous", *lines[::-1]]))

    labelled = read(written)

    assert len(labelled) == 8
    assert all(one.values == STEP and one.changes == (50,) and one.project == "p" for one in labelled)
    assert 0 < sum(one.tuned_on for one in labelled) < 8


def test_the_table_has_a_line_for_each_tool(capsys):
    labelled = [Labelled("p|s|one", STEP, (50,), ()), Labelled("p|s|two", STEP, (50,), ())]
    rows = [*study.ours(labelled), *study.rules(labelled)]
    study.table(labelled, rows)
    said = capsys.readouterr().out
    assert all(tool in said for tool in RULES)
    assert "| kernelwatch, block | 2.0% | 1.000 | 1.000 | 1.000 | 1.000 | 0.00 |" in said


def test_the_study_says_what_was_told_as_the_revisions_came(capsys):
    study.arriving([Labelled("p|s|b", tuple(value + place % 3 / 10 for place, value in enumerate(STEP)), (50,), ())])
    said = capsys.readouterr().out
    assert said.count("| at the end, block | 1.000 | 1.000 | 1.000 | 0.00 |") == 4, "all and one part, with and without"


def test_a_peers_rule_finds_a_plain_step():
    noise = [value + place % 5 / 100 for place, value in enumerate(STEP)]
    assert all(abs(place - 50) <= 1 for place in perfherder(noise))
    for settings in RULES.values():
        assert any(any(abs(place - 50) <= 5 for place in rule(noise)) for rule in settings.values())


def test_without_the_file_the_door_says_what_it_wants(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["detect", "nowhere.csv"])
    with pytest.raises(SystemExit, match="columns series, index, value, is_change and is_ambiguous"):
        study.main()


def test_without_a_file_the_series_are_simulated(monkeypatch, capsys):
    few = study.simulated(count=6, points=120)
    monkeypatch.setattr(study, "simulated", lambda: few)
    monkeypatch.setattr(study, "speed", lambda: None)
    monkeypatch.setattr("sys.argv", ["detect"])
    study.main()
    printed = capsys.readouterr().out
    assert printed.startswith("Simulated series")
    assert "All: 6 series, 720 points, 16 changes" in printed


def test_simulated_series_are_the_same_each_time():
    one, other = study.simulated(count=4), study.simulated(count=4)
    assert one == other
    assert [len(each.changes) for each in one] == [0, 4, 4, 0]
    assert {each.tuned_on for each in study.simulated()} == {True, False}
