"""Studies of published results: evaluation of literal records, and files that are resumed."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.studies import records
from kernels.studies.catalogue import STUDIES
from kernels.studies.records import CONTROL, Note, Record, Session, StudyFile, StudyWriter, UnreadableStudy
from kernels.studies.results import IntervalOver, Results, estimate, student, sum_of_means

ROOT = Path(__file__).resolve().parents[3]
CASE, OTHER = "rmsnorm.fwd.8x256.fp32", "rmsnorm.fwd.8x512.fp32"
SESSION = Session("s0", "2026-11-24T12:00:00+00:00", "cpu", quick=True)


def record(arm: str, us: float | None, trial: int = 0, case: str = CASE, step: str = "step", **more) -> Record:
    samples = () if us is None else (us, us, us)
    return Record(step, trial, case, arm, "failed" if us is None else "measured", samples=samples, **more)


def results(*found: Record, notes: tuple[Note, ...] = ()) -> Results:
    return Results.of([StudyFile(SESSION, tuple(found), notes)])


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_a_ratio_is_within_trials_and_its_interval_is_over_trials() -> None:
    drift = [10.0, 20.0, 40.0]  # the machine becomes slower; both arms feel it
    found = results(
        *(record(arm, us * by, trial) for trial, us in enumerate(drift) for arm, by in (("a", 1), ("b", 1.5)))
    )

    assert found.ratio("b", "a", CASE).ratio == pytest.approx(1.5)
    assert found.ratio("b", "a", CASE).high == pytest.approx(1.5)
    assert found.value("a", CASE) == 20.0


@pytest.mark.parametrize(
    ("effects", "differs"),
    [
        ([0.01], None),  # one trial says nothing about how trials differ
        ([0.010, 0.011, 0.012], True),
        ([0.010, -0.011, 0.012], False),
    ],
)
def test_one_ratio_differs_from_one_if_its_interval_says_so(effects: list[float], differs: bool | None) -> None:
    assert estimate(effects).differs is differs


def test_student_is_wider_than_the_normal_distribution() -> None:
    quantiles = [student(freedom) for freedom in range(1, 40)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert quantiles[2] == pytest.approx(3.182, abs=1e-3)
    with pytest.raises(ValueError, match="two trials"):
        student(0)


def test_a_dropped_round_counts_for_neither_arm() -> None:
    first = Record("step", 0, CASE, "a", "measured", samples=(10.0, None, 10.0))
    second = Record("step", 0, CASE, "b", "measured", samples=(11.0, 99.0, 11.0))
    assert results(first, second).ratio("b", "a", CASE).ratio == pytest.approx(1.1)


def test_arms_of_different_steps_are_not_compared() -> None:
    found = results(record("a", 10.0, step="one"), record("b", 20.0, step="two"))
    assert found.ratio("b", "a", CASE) is None


def test_a_geometric_mean_covers_the_cases_that_both_have() -> None:
    found = results(
        *(record("a", 10.0, trial, case) for trial in range(3) for case in (CASE, OTHER)),
        *(
            record("b", us * (1 + 0.01 * trial), trial, case)
            for trial in range(3)
            for case, us in ((CASE, 20.0), (OTHER, 5.0))
        ),
    )
    mean = found.geomean("b", "a", [CASE, OTHER, "rmsnorm.fwd.8x64.fp32"])
    assert mean.ratio == pytest.approx(math.exp(sum(math.log(1 + 0.01 * trial) for trial in range(3)) / 3))
    assert mean.trials == 3
    assert mean.low < mean.ratio < mean.high


def test_a_geometric_mean_over_steps_has_welchs_interval() -> None:
    """Two steps with trials of their own; the effects of their cases are e and -e, and 0 and 2e around them."""
    e = 0.01
    found = results(
        *(record("a", 10.0, trial, case, step) for trial in range(2) for case, step in ((CASE, "one"), (OTHER, "two"))),
        *(record("b", 10.0 * math.exp(sign * e), trial, CASE, "one") for trial, sign in enumerate((1, -1))),
        *(record("b", 10.0 * math.exp(by * e), trial, OTHER, "two") for trial, by in enumerate((0, 2))),
    )
    mean = found.geomean("b", "a", [CASE, OTHER])
    # Each mean has the variance e^2, and half of each counts; two equal variances of one degree of freedom have two.
    assert mean.ratio == pytest.approx(math.exp(e / 2))
    assert math.log(mean.high / mean.ratio) == pytest.approx(student(2) * math.sqrt(e**2 / 2))
    assert mean.trials == 2


def test_a_step_with_a_single_trial_leaves_the_mean_without_an_interval_over_trials() -> None:
    found = results(
        *(record(arm, us, trial) for trial in range(2) for arm, us in (("a", 10.0), ("b", 11.0 + trial))),
        *(record(arm, us, 0, OTHER, "two") for arm, us in (("a", 10.0), ("b", 20.0))),
    )
    mean = found.geomean("b", "a", [CASE, OTHER])
    assert (mean.low, mean.trials) == (None, 1)
    over_cases = found.contrast([(1.0, "b", "a")], [CASE, OTHER], or_over_cases=True)
    assert over_cases.ratio == pytest.approx(mean.ratio)
    assert over_cases.over is IntervalOver.CASES
    assert over_cases.low < mean.ratio < over_cases.high


def test_cases_of_the_same_trials_do_not_count_as_independent() -> None:
    """Both cases drift with their trial, so that a mean over ten of them knows no more than one of them."""
    cases = [f"rmsnorm.fwd.8x{64 << power}.fp32" for power in range(10)]
    found = results(
        *(
            record(arm, us * (1 + 0.01 * trial * (arm == "b")), trial, case)
            for trial in range(3)
            for case in cases
            for arm, us in (("a", 10.0), ("b", 12.0))
        )
    )
    one, mean = found.ratio("b", "a", cases[0]), found.geomean("b", "a", cases)
    assert (mean.low, mean.high) == pytest.approx((one.low, one.high))


@given(st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=6), min_size=1, max_size=4))
def test_an_interval_of_several_groups_has_freedom_between_the_smallest_and_the_sum(groups: list[list[float]]) -> None:
    found = sum_of_means(groups)
    error = math.sqrt(sum(variance(one) / len(one) for one in groups))
    half = math.log(found.high) - math.log(found.ratio)
    smallest, all_of_them = min(map(len, groups)) - 1, sum(len(one) - 1 for one in groups)
    assert student(all_of_them) * error - 1e-9 <= half <= student(smallest) * error + 1e-9


def test_sessions_count_together_and_the_control_is_no_arm() -> None:
    one = StudyFile(SESSION, (record("a", 10.0), record(CONTROL, 10.1)))
    both = Results.of([one, replace(one, session=replace(SESSION, began="2026-11-25T12:00:00+00:00"))])
    assert both.arms == ("a",)
    assert both.control() == pytest.approx([math.log(1.01)] * 2)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({}, "would count twice"),
        ({"study": "s1", "began": "2026-11-25T12:00:00+00:00"}, "not of s0 and s1"),
        ({"device": "h200", "began": "2026-11-25T12:00:00+00:00"}, "not of cpu and h200"),
    ],
)
def test_only_different_sessions_of_one_study_and_device_count_together(other: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Results.of([StudyFile(SESSION), StudyFile(replace(SESSION, **other))])


def test_the_control_is_about_times_of_the_device() -> None:
    found = results(record("a", 10.0), record(CONTROL, 10.1), record("a", 1.0, case=f"{CASE}.call"))
    both = results(*found.records, record(CONTROL, 2.0, case=f"{CASE}.call"))
    assert both.control() == pytest.approx([math.log(1.01)])


def test_why_an_arm_has_no_time() -> None:
    found = results(record("a", None, reason="cannot compile"), record("b", 10.0))
    assert found.why_not("a", CASE) == "failed: cannot compile"
    assert found.why_not("b", CASE) is None
    assert found.why_not("c", CASE) is None


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    writer = StudyWriter(path)
    writer.begin(SESSION)
    writer.add([record("a", 10.0, facts={"kernels": 2})], [Note("driver", "580.1")])

    found = records.read(path)
    assert found == StudyFile(SESSION, (record("a", 10.0, facts={"kernels": 2}),), (Note("driver", "580.1"),))


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    writer = StudyWriter(path)
    writer.begin(SESSION)
    writer.add([record("a", 10.0)])
    with path.open("a") as file:
        file.write('{"record": {"step": "st')

    assert len(records.read(path).records) == 1
    writer.repair()
    writer.add([record("b", 11.0)])
    assert [one.arm for one in records.read(path).records] == ["a", "b"]


def test_a_case_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.jsonl"
    writer = StudyWriter(path)
    writer.begin(SESSION)
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        writer.add([record("a", 10.0), record("b", 11.0)])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not the file of a study"),
        ('{"x": 1}\n', "not the file of a study"),
        ("nonsense\nnonsense\n", "line 1 of"),
        ('{"format": 1, "session": {"nobody": 1}}\n', "unknown or missing fields"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(UnreadableStudy, match=reason):
        records.read(path)


def test_the_lock_of_a_run_that_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    module = records.__name__
    holds = f"import pathlib, {module} as r\nwith r.locked(pathlib.Path({str(path)!r})): print(flush=True), input()"
    with subprocess.Popen(
        [sys.executable, "-c", holds], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(records.StudyInUse), records.locked(path):
            pass
        other.kill()
        other.wait()
        with records.locked(path):
            pass


# -- the reports of the studies --------------------------------------------------------------------------------------


def made(name: str, us_of: dict[str, float]) -> Results:
    """Every case of the study on an H200 with literal times: of each arm a multiple of the bytes of the case."""
    found = []
    for step in STUDIES[name].steps("h200", False):
        for trial in range(step.trials):
            for number, case in enumerate(step.cases):
                found += [
                    record(
                        arm.name, (number + 1) * us_of.get(arm.name, 1.0) * (1 + 0.001 * trial), trial, case, step.name
                    )
                    for arm in step.contestants
                ]
    return Results.of([StudyFile(SESSION, tuple(found), (Note("ceilings", {"copy_gb_s": 4200.0}),))])


@pytest.mark.parametrize(("without_reset", "holds"), [(2.0, True), (1.1, False)])
def test_s1_says_what_a_missing_reset_costs(without_reset: float, holds: bool) -> None:
    report = STUDIES["s1"].report(made("s1", {"without-reset": without_reset}))
    claims = {one.claim[:3]: one for one in report.findings}
    assert claims["(a)"].holds is holds
    assert claims["(b)"].holds is True
    assert len(report.figures) == 4


def uneven(name: str, us_of: dict[str, float], *arms: str, spread: float) -> Results:
    """As `made`, and the first trial of each step has the times of these arms times `spread`."""
    whole = made(name, us_of)
    found = [
        replace(one, samples=tuple(us * spread for us in one.samples if us))
        if one.arm in arms and not one.trial
        else one
        for one in whole.records
    ]
    return replace(whole, records=tuple(found))


@pytest.mark.parametrize(
    ("us_of", "arm", "claim"),
    [
        ({"without-reset": 1.6}, "without-reset", 0),
        ({"inductor": 1.2}, "inductor", 1),
        ({"max-autotune": 0.98}, "max-autotune", 2),
        ({"looped": 1.1}, "looped", 3),
    ],
)
def test_s1_decides_a_claim_by_the_interval_over_trials(us_of: dict[str, float], arm: str, claim: int) -> None:
    """With a first trial that is far from the second, the mean alone would decide as before."""
    even = STUDIES["s1"].report(made("s1", us_of)).findings[claim]
    wide = STUDIES["s1"].report(uneven("s1", us_of, arm, spread=1.05)).findings[claim]
    assert even.holds is not None
    assert wide.holds is None
    assert "single trial" not in even.found + wide.found


def test_s1_names_a_single_trial() -> None:
    whole = made("s1", {"without-reset": 2.0})
    first = replace(whole, records=tuple(one for one in whole.records if not one.trial and one.step == "reset"))
    found = STUDIES["s1"].report(first).findings[0]
    assert found.holds is True
    assert found.found.endswith("(a single trial)")


def test_s1_does_not_decide_a_claim_by_a_few_cases() -> None:
    whole = made("s1", {"without-reset": 2.0, "max-autotune": 0.5})
    few = part_of(whole, "32768x512.bf16-fp32")
    assert [one.holds for one in STUDIES["s1"].report(few).findings] == [None] * 5
    assert "over 4 cases" in STUDIES["s1"].report(few).findings[2].found


@pytest.mark.parametrize(
    ("us_of", "expected"),
    [
        ({"last": 0.9, "tree": 0.95}, (True, False)),  # fused everywhere
        ({"last": 1.2, "tree": 1.1}, (False, True)),  # separate everywhere
    ],
)
def test_s3_says_where_the_fused_sum_is_faster(us_of: dict[str, float], expected: tuple[bool, bool]) -> None:
    report = STUDIES["s3"].report(made("s3", us_of))
    assert tuple(one.holds for one in report.findings[:2]) == expected
    crossover = report.tables[0]
    assert [row[0] for row in crossover.rows] == ["256", "512", "1024", "2048", "3072", "4096", "6144", "8192"]


def part_of(whole: Results, *endings: str) -> Results:
    return Results.of([StudyFile(SESSION, tuple(one for one in whole.records if one.case.endswith(endings)))])


def test_s1_says_that_a_persistent_reduction_is_right_above_the_threshold_as_well() -> None:
    whole = made("s1", {"looped": 1.2})
    assert STUDIES["s1"].report(whole).findings[3].holds is False
    few = part_of(whole, "16384x512.bf16-fp32", "16384x4096.bf16-fp32")
    assert STUDIES["s1"].report(few).findings[3].holds is None


def test_one_case_does_not_decide_a_claim_of_s1() -> None:
    """At one case Quack is a hundred times slower: the others have about half of its speed, all together not."""
    records = [one for one in made("s1", {"without-reset": 1.6}).records if one.step == "reset" and not one.trial]
    odd = "layernorm.fwd.32768x16384.bf16-fp32"

    def slow_at(case: str) -> Results:
        slowed = [
            replace(one, samples=tuple(us * 100 for us in one.samples if us))
            if (one.arm, one.case) == ("quack", case)
            else one
            for one in records
        ]
        return Results.of([StudyFile(SESSION, tuple(slowed))])

    usual, changed = (STUDIES["s1"].report(slow_at(case)).findings[0] for case in ("none", odd))
    assert (usual.holds, changed.holds) == (True, None)
    assert "(a single trial)" in changed.found


def test_s1_does_not_compare_switches_that_led_to_the_same_code() -> None:
    records = [replace(one, facts={"code": "a"}) for one in made("s1", {"looped": 1.2}).records]
    found = STUDIES["s1"].report(Results.of([StudyFile(SESSION, tuple(records))])).findings[3]
    assert (found.holds, found.found) == (None, "not measured; 18 cases ran the same code in both")


@pytest.mark.parametrize(
    ("us_of", "endings", "holds"),
    [
        ({"last": 0.9, "triton": 0.9}, ("8192x256.bf16-fp32", "8192x4096.bf16-fp32"), (None, None, None)),  # few cases
        ({"last": 1.001, "tree": 1.1}, ("",), (None, True, True)),  # at most as far as copies of equal code
    ],
)
def test_s3_does_not_decide_by_a_few_cases_or_by_noise(
    us_of: dict[str, float], endings: tuple[str, ...], holds: tuple[bool | None, ...]
) -> None:
    report = STUDIES["s3"].report(part_of(made("s3", us_of), *endings))
    assert tuple(one.holds for one in report.findings) == holds


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_form_for_each_device(name: str) -> None:
    study = STUDIES[name]
    for device in ("cpu", "h200"):
        full, quick = study.steps(device, False), study.steps(device, True)
        assert full
        assert quick
        assert sum(len(step.cases) * step.trials for step in quick) <= sum(
            len(step.cases) * step.trials for step in full
        )


@pytest.mark.parametrize("name", STUDIES)
def test_a_report_of_nothing_is_undecided(name: str) -> None:
    empty = Results.of([StudyFile(SESSION)])
    assert all(one.holds is not True for one in STUDIES[name].report(empty).findings)
