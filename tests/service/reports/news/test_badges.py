"""What badges say, in which colour, and how wide it is."""

import pytest

from service.domain.states import RegressionState
from service.reports.feeds.badges import MAX_TEXT, Colour, SotaFacts, StatusFacts, placed, sota, status, text_px

DAY = 86_400.0
NOW = 1_790_000_000.0
OPEN, ACCEPTED, BLAMED = RegressionState.OPEN, RegressionState.ACKNOWLEDGED, RegressionState.BLAMED


@pytest.mark.parametrize(
    ("facts", "message", "colour"),
    [
        ({"measured_at": None}, "not measured", Colour.UNKNOWN),
        ({}, "no regressions", Colour.GOOD),
        ({"by_state": {OPEN: 1}}, "1 regression", Colour.BAD),
        ({"by_state": {OPEN: 1, BLAMED: 2, ACCEPTED: 4}}, "3 regressions", Colour.BAD),
        ({"by_state": {OPEN: 1}, "build_failed": True}, "1 regression", Colour.BAD),
        ({"by_state": {ACCEPTED: 1}, "build_failed": True}, "build failed", Colour.BAD),
        ({"by_state": {ACCEPTED: 1}, "wrong": 2}, "2 wrong results", Colour.BAD),
        ({"by_state": {ACCEPTED: 1}}, "1 regression accepted", Colour.FAIR),
        ({"measured_at": NOW - 30 * DAY}, "no regressions · 30 days old", Colour.UNKNOWN),
        ({"measured_at": NOW - 31.5 * DAY, "by_state": {OPEN: 1}}, "1 regression · 31 days old", Colour.UNKNOWN),
    ],
)
def test_a_status_badge_says_the_most_severe_thing(facts: dict, message: str, colour: Colour) -> None:
    badge = status(StatusFacts(**{"target": "norms", "device": None, "now": NOW, "measured_at": NOW - DAY} | facts), 30)
    assert (badge.label, badge.message, badge.colour) == ("kernelwatch", message, colour)
    assert badge.title.startswith("norms: ")


@pytest.mark.parametrize(
    ("ratios", "message", "colour"),
    [
        ([0.5, 2.0], "1.000 × time of quack", Colour.GOOD),
        ([0.9], "0.900 × time of quack", Colour.GOOD),
        ([1.02], "1.020 × time of quack", Colour.GOOD),
        ([1.04, 1.04], "1.040 × time of quack", Colour.FAIR),
        ([1.07], "1.070 × time of quack", Colour.BEHIND),
        ([], "not compared", Colour.UNKNOWN),
    ],
)
def test_a_sota_badge_is_time_over_time(ratios: list[float], message: str, colour: Colour) -> None:
    facts = SotaFacts("norms", "h200", NOW, NOW - DAY, sota="quack", dtype="bf16", ratios=ratios)
    badge = sota(facts, 30)
    assert (badge.label, badge.message, badge.colour) == ("h200 bf16", message, colour)


def test_a_sota_badge_says_what_was_never_measured_and_what_is_old() -> None:
    assert sota(SotaFacts("norms", None, NOW), 30).message == "not measured"
    old = sota(SotaFacts("norms", "h200", NOW, NOW - 40 * DAY, sota="quack", ratios=[1.2]), 30)
    assert (old.message, old.colour) == ("1.200 × time of quack · 40 days old", Colour.UNKNOWN)
    assert old.title.endswith("nothing was measured since 2026-08-12")


@pytest.mark.parametrize("colour", [*Colour, "#3c444d"])
def test_white_text_can_be_read_on_every_ground(colour: str) -> None:
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(c * weight for c, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
    assert 1.05 / (luminance + 0.05) >= 4.5


def test_texts_are_bounded_and_halves_hold_them() -> None:
    hostile = "h200\u202e</text><script>\x1b[31m" + "w" * 500
    badge = status(StatusFacts("norms", hostile, NOW, NOW), 30)
    assert len(badge.label) <= MAX_TEXT
    assert not set("\u202e\x1b") & set(badge.label)
    left, right = placed(badge)
    assert left.width > left.text_width
    assert right.x == left.width


def test_widths_follow_the_characters() -> None:
    assert text_px("iii") < text_px("mmm") < text_px("漢字漢字")
    assert text_px("e\u0301") == text_px("e")
    assert text_px("") == 0
