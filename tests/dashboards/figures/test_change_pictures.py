"""The picture of a comment as SVG: lengths, directions, intervals, and colours outside of our pages."""

import re

import pytest

from dashboards.change_pictures import DARK, LIGHT, WIDTH, draw
from service.reports.change_picture import ChangeBar, ChangePicture
from tests.dashboards.figures.test_colours import STATIC
from tests.dashboards.inspection import Drawn

TOKENS = {"card": "card", "ink": "ink", "quiet": "quiet", "worse": "tone-regression", "better": "tone-improvement"}


def bar(name: str, ratio: float, spread: float = 0.01) -> ChangeBar:
    return ChangeBar(name, ratio, ratio - spread, ratio + spread, f"{ratio - 1:+.1%}", "changed")


def drawn(*bars: ChangeBar, changed: int = 0) -> Drawn:
    return Drawn(
        draw(ChangePicture("h200", bars, changed or len(bars))).__html__().replace(' xmlns="http', ' data-ns="http')
    )


def boxes(figure: Drawn, kind: str) -> list[tuple[float, float]]:
    """The left and right ends of bars of a kind."""
    found = figure.root.iterfind(f".//rect[@class='{kind}']")
    return [(float(one.get("x", "")), float(one.get("x", "")) + float(one.get("width", ""))) for one in found]


def test_slower_is_right_of_no_change_and_faster_left_by_length() -> None:
    figure = drawn(bar("a", 1.5), bar("b", 1.2), bar("c", 0.8))
    (slow, slower_end), (less, less_end) = boxes(figure, "worse")
    [(fast, zero)] = boxes(figure, "better")
    assert slow == less == pytest.approx(zero, abs=0.2)
    assert fast < zero < less_end < slower_end <= WIDTH
    assert [one.text for one in figure.texts("worse")] == ["+50.0%", "+20.0%"]
    assert {"← faster", "slower →"} <= {one.text for one in figure.texts("quiet")}


def test_an_interval_that_is_far_away_stays_in_the_picture() -> None:
    figure = drawn(bar("a", 30.0, 5.0), bar("b", 1.02))
    ends = [float(x) for d in figure.paths("line") for x in re.findall(r"[MH](-?[\d.]+)", d)]
    assert all(0 <= x <= WIDTH for x in ends)


def test_where_all_are_slower_nothing_says_faster() -> None:
    figure = drawn(bar("a", 1.5), changed=4)
    assert [one.text for one in figure.texts("quiet")] == ["3 more changed", "slower →"]


@pytest.mark.parametrize(("theme", "own"), [(0, LIGHT), (1, DARK)], ids=["light", "dark"])
def test_its_colours_are_those_of_the_pages(theme: int, own: dict[str, str]) -> None:
    sheet = (STATIC / "kernelwatch.css").read_text()
    tokens = {name: pair for name, *pair in re.findall(r"--([a-z-]+): light-dark\((#\w+), (#\w+)\)", sheet)}
    assert own == {name: tokens[token][theme] for name, token in TOKENS.items()}
