"""Better and worse are told apart without red and green, in both themes, and never by colour alone."""

import re
from itertools import combinations
from pathlib import Path

import pytest

from dashboards.drawing import triangles
from dashboards.revision_strips import Known, search_strip
from dashboards.strips import search_strip as steps_strip
from service.domain.bisection.search import Progress
from service.ledger.bisections.steps import StepMark
from tests.dashboards.asking import Get
from tests.dashboards.seed import Seeded

STATIC = Path(__file__).parents[3] / "dashboards" / "static"
BETTER, WORSE = ("improvement",), ("regression", "behind", "failed")
GROUNDS = ("card", "page")
APART = 50.0  # CIE 1976; black and white are 100 apart
# Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision Deficiency, 2009, table 1.
EYES = {
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
Colour = tuple[float, ...]


def _tokens(file: str, theme: str) -> dict[str, str]:
    """The colours of a style sheet in a theme, by their custom property."""
    found = re.findall(r"--([a-z-]+): light-dark\((#\w+), (#\w+)\)", (STATIC / file).read_text())
    return {name: light if theme == "light" else dark for name, light, dark in found}


def _steps(theme: str) -> list[str]:
    found = re.findall(r"\.s\d \{ --c: light-dark\((#\w+), (#\w+)\)", (STATIC / "board.css").read_text())
    return [light if theme == "light" else dark for light, dark in found]


def _linear(written: str) -> Colour:
    shares = (int(written[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return tuple(one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)


def _seen(written: str, eye: str) -> Colour:
    colour = _linear(written)
    sums = (sum(weight * one for weight, one in zip(row, colour, strict=True)) for row in EYES[eye])
    return tuple(min(1.0, max(0.0, one)) for one in sums)


def _luminance(colour: Colour) -> float:
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), colour, strict=True))


def _contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _lab(colour: Colour) -> Colour:
    red, green, blue = colour
    sums = (
        (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047,
        0.2126729 * red + 0.7151522 * green + 0.0721750 * blue,
        (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883,
    )
    x, y, z = (one ** (1 / 3) if one > 216 / 24389 else (24389 / 27 * one + 16) / 116 for one in sums)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _distance(one: Colour, other: Colour) -> float:
    return sum((a - b) ** 2 for a, b in zip(_lab(one), _lab(other), strict=True)) ** 0.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eye", EYES)
def test_better_and_worse_differ_for_every_eye_in_both_themes(theme: str, eye: str) -> None:
    tokens = _tokens("kernelwatch.css", theme)
    seen = {name: _seen(tokens[f"tone-{name}"], eye) for name in (*BETTER, *WORSE)}

    near = {
        (good, bad): distance
        for good in BETTER
        for bad in WORSE
        if (distance := _distance(seen[good], seen[bad])) < APART
    }

    assert near == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eye", EYES)
def test_better_and_worse_are_seen_on_every_ground(theme: str, eye: str) -> None:
    tokens = _tokens("kernelwatch.css", theme)
    contrasts = {
        (name, ground): _contrast(_seen(tokens[f"tone-{name}"], eye), _seen(tokens[ground], eye))
        for name in (*BETTER, *WORSE)
        for ground in GROUNDS
    }

    assert {pair: found for pair, found in contrasts.items() if found < 3} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eye", EYES)
def test_ahead_and_behind_on_the_board_differ_for_every_eye(theme: str, eye: str) -> None:
    """The outer steps on each side of 1; nearer ones are as pale as their ratios are near."""
    steps = [_seen(one, eye) for one in _steps(theme)]

    assert len(steps) == 9
    assert min(_distance(ahead, behind) for ahead in steps[:2] for behind in steps[-2:]) > APART


def _rects(drawn: str) -> dict[str, tuple[str, str]]:
    found = re.findall(r'<rect class="rev (\w+)" x="[^"]+" y="([^"]+)" width="[^"]+" height="([^"]+)"', drawn)
    return {kind: (y, height) for kind, y, height in found}


def test_a_search_tells_good_from_bad_and_from_what_is_measured_now_by_their_place() -> None:
    drawn, _ = search_strip("abc", Progress("abc", (), {}, ("b",)), {}, ("b", 7))

    places = _rects(drawn.__html__())

    assert set(places) == {Known.GOOD.name.lower(), Known.BAD.name.lower(), Known.PENDING.name.lower()}
    assert len(set(places.values())) == 3


def test_the_strip_of_a_search_draws_each_mark_in_its_own_shape() -> None:
    paths = []
    for mark in StepMark:
        drawn = steps_strip(9, {4: mark}, 120.0).__html__()
        paths += [d for kind, d in re.findall(r'<path class="(\w+)" d="([^"]+)"', drawn) if kind != "rest"]

    assert len(paths) == len(set(paths)) == len(StepMark)


def test_marks_of_worse_and_better_revisions_point_up_and_down() -> None:
    assert triangles([(10.0, 20.0)], up=True) == "M5.6 23.8l4.4 -7.6l4.4 7.6z"
    assert triangles([(10.0, 20.0)], up=False) == "M5.6 16.2l4.4 7.6l4.4 -7.6z"


def test_the_legend_of_the_strips_has_a_shape_for_each_word(seeded: Seeded, get: Get) -> None:
    legend = get("/").text.partition('quiet legend">')[2].partition("</span>")[0]

    shapes = re.findall(r"<svg[^>]*>(.*?)</svg>", legend)
    drawn = [re.sub(r'class="\w+"', "", one) for one in shapes]

    assert len(drawn) == 5
    assert all(one != other for one, other in combinations(drawn, 2))
    slower, faster = ([*map(float, re.findall(r'"M4 (\d+)V(\d+)"', one)[-1])] for one in shapes[:2])
    assert max(slower) <= 6 <= min(faster)
