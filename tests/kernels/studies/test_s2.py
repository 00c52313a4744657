"""S2: its report on literal records."""

from dataclasses import replace
from typing import Any

import pytest

from kernels.studies import s2
from kernels.studies.records import CONTROL, Note, Record, Session, StudyFile
from kernels.studies.results import Results

NO_REPEATS: dict[str, int | None] = {"loss": None, "gradients": None, "weights": None}


def trained(arm: str, us: float, trial: int = 0, **facts: Any) -> Record:
    known = {
        "tokens": 8192,
        "flops": 5e13,
        "peak_bytes": 10 * 2**30,
        "compile_s": 20.0,
        "losses": [10.0, 9.0],
        "digests": {"loss": ["a", "b"]},
        "repeats": NO_REPEATS,
    }
    return Record("training", trial, s2.MODEL, arm, "measured", samples=(us,) * 3, facts={**known, **facts})


def report_of(*records: Record) -> s2.StudyReport:
    session = Session("s2", "2026-11-24T12:00:00+00:00", "h200", quick=False)
    ceilings = Note("ceilings", {"copy_gb_s": 4200.0, "matmul_tflop_s": 800.0})
    return s2.report(Results.of([StudyFile(session, records, (ceilings,))]))


def claims(report: s2.StudyReport) -> dict[str, tuple[bool | None, str]]:
    return {one.claim: (one.holds, one.found) for one in report.findings}


def found_about(report: s2.StudyReport, words: str) -> tuple[bool | None, str]:
    return next(found for claim, found in claims(report).items() if words in claim)


# -- the report ------------------------------------------------------------------------------------------------------


def test_the_norm_has_both_runs_next_to_those_of_the_source() -> None:
    us = {"eager": 400.0, "make-fx": 390.0, "regional": 200.0}
    report = report_of(
        *(
            Record("norm", trial, s2.NORM, arm, "measured", samples=(time * (1 + trial / 100),) * 3)
            for trial in range(2)
            for arm, time in us.items()
        )
    )

    assert found_about(report, "isolated RMSNorm")[0] is True
    rows = {row[0]: row for row in report.tables[0].rows}
    assert rows["regional"][1:3] == ("14.35 ms and 14.17 ms", "200.0, 202.0")
    assert rows["regional"][3].startswith("2.000")


def test_training_has_speed_and_utilisation() -> None:
    times = {"eager": 125e3, "make-fx": 110e3, "regional": 100e3}
    report = report_of(*(trained(arm, us, trial) for arm, us in times.items() for trial in range(2)))

    row = next(row for row in report.tables[0].rows if row[0] == "regional")
    assert row[3] == "81,920"  # 8,192 tokens in 0.1 s
    assert row[5:9] == ("500.0", "50.5%", "62.5%", "10.00 GiB")  # 5e13 in 0.1 s; of 989.4, and of 800
    assert found_about(report, "1 % faster")[0] is True
    assert found_about(report, "peak of the memory") == (True, "10.00 GiB before, 10.00 GiB after")


@pytest.mark.parametrize(
    ("us", "holds"),
    [
        ([100e3], None),  # one trial says nothing about how trials differ
        ([100e3, 120e3], None),
        ([100e3, 100.1e3], True),
        ([120e3, 120.1e3], False),
    ],
)
def test_training_is_faster_if_the_trials_agree(us: list[float], holds: bool | None) -> None:
    report = report_of(
        *(trained("make-fx", 110e3, trial) for trial in range(len(us))),
        *(trained("regional", one, trial) for trial, one in enumerate(us)),
    )
    assert found_about(report, "1 % faster")[0] is holds


@pytest.mark.parametrize(
    ("facts", "words", "holds"),
    [
        ({}, "same bits", True),
        ({"repeats": {**NO_REPEATS, "gradients": 3}}, "same bits", False),
        ({}, "within 1%", True),
        ({"losses": [10.0, 8.8]}, "within 1%", False),
        ({"losses": [10.0, None]}, "within 1%", False),  # a NaN is null in the answer of a process
        ({"peak_bytes": 11 * 2**30}, "peak of the memory", False),
    ],
)
def test_what_is_said_about_results(facts: dict[str, Any], words: str, holds: bool) -> None:
    report = report_of(trained("eager", 100e3), trained("make-fx", 100e3), trained("regional", 100e3, **facts))
    assert found_about(report, words)[0] is holds


def test_the_first_step_with_other_bits_is_named() -> None:
    report = report_of(trained("eager", 100e3), trained("regional", 100e3, repeats={**NO_REPEATS, "weights": 7}))
    assert found_about(report, "same bits")[1] == "regional: weights from step 7 on"
    assert report.tables[1].rows[1] == ("regional", "equal", "equal", "differ from step 7 on", "1 in 1")


def test_processes_are_compared_by_what_they_computed() -> None:
    others = {"digests": {"loss": ["a", "c"]}}
    report = report_of(
        *(trained("eager", 100e3, trial) for trial in range(2)),
        trained(CONTROL, 100e3),
        trained("regional", 90e3),
        trained("regional", 90e3, trial=1, **others),
    )
    holds, text = found_about(report, "another process")
    assert holds is False
    assert text == "eager: equal in 3 processes; regional: other bits in 2 processes"


def test_training_over_two_devices_has_tables_and_a_claim_of_its_own() -> None:
    sharded = s2.steps("h200", False)[-1].cases[0]
    us = {"eager": 130e3, "make-fx": 120e3, "regional": 110e3}
    report = report_of(
        *(trained(arm, 100e3, trial) for arm in us for trial in range(2)),
        *(
            replace(trained(arm, one, trial), step="parallel", case=sharded)
            for arm, one in us.items()
            for trial in range(2)
        ),
    )

    assert found_about(report, "makes training 1 % faster")[0] is None
    assert found_about(report, "over two devices 1 % faster")[0] is True
    table = next(table for table in report.tables if table.title == f"Training of {sharded}")
    assert "of the slower one" in table.note
    assert next(row for row in table.rows if row[0] == "regional")[2:4] == ("110,000, 110,000", "74,473")
    assert sum(sharded in table.title for table in report.tables) == 3  # speed, bits, loss
