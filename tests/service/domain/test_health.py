"""Strips of revisions, means against SOTA, and when a queue ends: values in, values out."""

import math

import pytest

from service.domain.health.overview import (
    DeviceResult,
    Mark,
    RunKind,
    StripRevision,
    ends_in_s,
    mark_of,
    trend,
    usual_durations,
)
from service.domain.states import Outcome
from service.domain.verdicts.totals import CaseAgainstSota, JudgedCase, SotaMean, change, joined, totals

STEADY = DeviceResult(done=True)
SLOWER = DeviceResult(done=True, slower=3, faster=1)
FASTER = DeviceResult(done=True, faster=1)
WRONG = DeviceResult(done=True, faster=2, newly_broken=1)
FAILED = DeviceResult(done=False, failed=True)
QUEUED = DeviceResult(done=False)


@pytest.mark.parametrize(
    ("results", "mark"),
    [
        ([], Mark.UNMEASURED),
        ([QUEUED], Mark.UNMEASURED),
        ([STEADY, QUEUED], Mark.STEADY),
        ([STEADY, FASTER], Mark.FASTER),
        ([FASTER, SLOWER], Mark.SLOWER),
        ([WRONG], Mark.FAILED),
        ([FAILED, FASTER], Mark.FAILED),
        ([FAILED, SLOWER], Mark.SLOWER),
    ],
)
def test_a_revision_has_the_mark_of_the_worst_that_it_did(results: list[DeviceResult], mark: Mark) -> None:
    assert mark_of(results) is mark


def mean(ratio: float, cases: int = 2, digest: str = "a") -> SotaMean:
    return SotaMean(math.log(ratio) * cases, cases, digest)


def revision(ordinal: int, **means: SotaMean) -> StripRevision:
    results = {device: DeviceResult(done=True, mean=one) for device, one in means.items()}
    return StripRevision(ordinal, f"c{ordinal}", 0.0, results)


def test_the_mean_of_a_device_lasts_until_its_next_one() -> None:
    found = trend([revision(0, h200=mean(1.0)), revision(1, h100=mean(4.0)), revision(2), revision(3, h200=mean(0.25))])
    assert found == [None, pytest.approx(2.0), pytest.approx(2.0), pytest.approx(1.0)]


def test_means_over_other_cases_are_no_part_of_the_trend() -> None:
    assert trend([revision(0, h200=mean(1.0, digest="b")), revision(1, h200=mean(1.2))]) == [None, pytest.approx(1.2)]
    assert trend([revision(0)]) == [None]


@pytest.mark.parametrize(
    ("now", "then", "expected"),
    [
        ({"h200": mean(1.1)}, {"h200": mean(1.0)}, 1.1),
        ({"h200": mean(1.1)}, {}, None),
        ({"h200": mean(1.1)}, {"h200": mean(1.0, digest="b")}, None),
        ({"h200": mean(1.1), "h100": mean(9.0)}, {"h200": mean(1.0), "h100": mean(1.0, digest="b")}, 1.1),
        ({"h200": mean(1.21, 1), "h100": mean(1.0, 1)}, {"h200": mean(1.0, 1), "h100": mean(1.0, 1)}, 1.1),
    ],
)
def test_a_change_is_over_the_cases_that_both_have(
    now: dict[str, SotaMean], then: dict[str, SotaMean], expected: float | None
) -> None:
    assert change(now, then) == (None if expected is None else pytest.approx(expected))


def test_the_totals_of_a_run() -> None:
    found = totals(
        [
            JudgedCase(Outcome.REGRESSION),
            JudgedCase(Outcome.STEADY),
            JudgedCase(Outcome.INVALID, known_before=True),
            JudgedCase(Outcome.FAILED),
        ],
        [
            CaseAgainstSota("norms", "a", "quack", 1.2, behind=True),
            CaseAgainstSota("norms", "b", "quack", 0.9, behind=False),
            CaseAgainstSota("norms", "b.memory", "quack", None, behind=True),
        ],
    )
    assert (found.outcomes[Outcome.REGRESSION], found.newly_broken, found.behind, found.sota) == (1, 1, 2, "quack")
    assert found.mean is not None
    assert (found.mean.cases, found.mean.ratio) == (2, pytest.approx(math.sqrt(1.2 * 0.9)))
    assert joined([found.mean, mean(1.0)]) == pytest.approx((1.2 * 0.9) ** 0.25)
    assert totals([], []).mean is None


def test_the_digest_is_of_the_cases_whatever_their_order() -> None:
    ratios = {("norms", "a"): 1.0, ("norms", "b"): 2.0}
    first, second = SotaMean.of(ratios), SotaMean.of(dict(reversed(ratios.items())))
    other = SotaMean.of({("norms", "a"): 1.0, ("norms", "c"): 2.0})
    assert first == second
    assert first is not None
    assert other is not None
    assert first.digest != other.digest


NORMS, OTHER, UNKNOWN = (1, "h200", "watch"), (2, "h200", "watch"), (3, "h200", "watch")
USUAL = {NORMS: 100.0, OTHER: 300.0, (1, "h100", "watch"): 9000.0}


@pytest.mark.parametrize(
    ("waiting", "current", "workers", "expected"),
    [
        ([], [], 0, 0.0),
        ([(NORMS, 4)], [], 1, 400.0),
        ([(NORMS, 4)], [], 2, 200.0),
        ([(NORMS, 1)], [], 2, 100.0),  # one run is not shared
        ([(NORMS, 1), (OTHER, 1)], [], 1, 400.0),
        ([(UNKNOWN, 1)], [], 1, 200.0),  # as the others of the device
        ([], [(NORMS, 30.0)], 1, 70.0),
        ([], [(NORMS, 500.0)], 1, 0.0),
        ([(NORMS, 2)], [(NORMS, 30.0)], 1, 270.0),
        ([(NORMS, 2)], [], 0, None),  # nobody takes it
        ([((1, "b200", "watch"), 2)], [], 1, None),  # nothing of it ever ended
    ],
)
def test_when_a_queue_ends(
    waiting: list[tuple[RunKind, int]], current: list[tuple[RunKind, float]], workers: int, expected: float | None
) -> None:
    assert ends_in_s(waiting, current, workers, USUAL) == expected


def test_a_run_usually_takes_the_median_of_its_kind() -> None:
    assert usual_durations([(NORMS, 1.0), (NORMS, 100.0), (NORMS, 2.0), (OTHER, 7.0)]) == {NORMS: 2.0, OTHER: 7.0}
