"""The picture of a comment: which cases it has, what its alternative text says, and where a comment shows it."""

from dataclasses import replace

import pytest

from kernels.cases import Metric
from service.domain.states import Outcome, RunState
from service.reports import markdown
from service.reports.change_picture import MAX_ALT, MAX_BARS, change_picture, in_comment
from tests.service.reports.test_renderings import CASE, FAST, SLOW, STEADY, WRONG, a_report, a_row

MEMORY = a_row(Outcome.REGRESSION, 1.5, f"{CASE}.{Metric.MEMORY}")
COUNT = a_row(Outcome.REGRESSION, 1.5, f"{CASE}.{Metric.KERNELS}")


def test_slower_cases_come_first_with_their_sizes_and_intervals() -> None:
    picture = change_picture(a_report(FAST, STEADY, SLOW, WRONG))
    assert picture is not None
    assert [(bar.name, bar.size, bar.slower) for bar in picture.bars] == [
        (CASE, "+10.2 %", True),
        (CASE, "−10.0 %", False),
    ]
    assert [(bar.low, bar.ratio, bar.high) for bar in picture.bars] == [
        pytest.approx((1.092, 1.102, 1.112)),
        pytest.approx((0.89, 0.9, 0.91)),
    ]
    assert picture.alt == (f"h200: {CASE} 10.2 % slower (+9.2 to +11.2 %); {CASE} 10.0 % faster (−11.0 to −9.0 %)")


def test_of_many_changes_the_largest_are_drawn_and_the_rest_is_counted() -> None:
    picture = change_picture(a_report(*(a_row(Outcome.REGRESSION, 1.1 + n / 100) for n in range(9))))
    assert picture is not None
    assert [bar.size for bar in picture.bars] == [f"+{18 - n}.0 %" for n in range(MAX_BARS)]
    assert (picture.more, picture.alt.endswith("; 3 more changed")) == ("3 more changed", True)


def test_several_providers_are_named() -> None:
    picture = change_picture(a_report(SLOW, replace(SLOW, provider="other")))
    assert picture is not None
    assert {bar.name for bar in picture.bars} == {f"{CASE} norms", f"{CASE} other"}


@pytest.mark.parametrize(
    "rows",
    [(STEADY, WRONG), (COUNT,), (replace(SLOW, quarantined=True),), (replace(SLOW, known_before=True),), ()],
    ids=["unchanged", "a count", "quarantined", "known before", "nothing"],
)
def test_without_a_change_that_can_be_drawn_there_is_none(rows) -> None:
    assert change_picture(a_report(*rows)) is None
    assert in_comment(a_report(*rows, public=True)) == ""


def test_memory_is_not_called_slower() -> None:
    memory, both = change_picture(a_report(MEMORY)), change_picture(a_report(MEMORY, SLOW))
    assert memory is not None
    assert both is not None
    assert (memory.worse, memory.better) == ("more memory", "less memory")
    assert (both.worse, both.better) == ("worse", "better")


def test_the_comment_of_a_public_target_alone_shows_it() -> None:
    public = markdown.comment(a_report(SLOW, FAST, public=True))
    assert "](https://watch.example/runs/7/changes.svg?v=" in public
    assert f"[![h200: {CASE} 10.2 % slower (+9.2 to +11.2 %); " in public
    assert "![" not in markdown.comment(a_report(SLOW, FAST))
    assert "![" not in markdown.comment(a_report(SLOW, public=True)), "the first line says as much"
    assert "![" not in markdown.comment(a_report(state=RunState.HELD, public=True))


def test_another_result_has_another_address() -> None:
    addresses = {in_comment(a_report(row, FAST, public=True)) for row in (SLOW, replace(SLOW, ratio=1.2), FAST)}
    assert len(addresses) == 3


def test_hostile_names_cannot_leave_the_alternative_text_or_fill_the_comment() -> None:
    case = f"{CASE}](https://evil.example) @maintainer <img src=x>" + "x" * 9000
    shown = in_comment(a_report(*(replace(SLOW, case=case, provider=name) for name in ("a", "b")), public=True))
    alt = shown.removeprefix("[![").rpartition("](")[0].rpartition("](")[0]
    assert "\\](https:\u200b//evil.example) @\u200bmaintainer &lt;img" in alt
    assert len(alt) < 2 * MAX_ALT
    report = a_report(*(a_row(Outcome.REGRESSION, 1.1, f"{CASE}{n}") for n in range(9)), public=True)
    assert len(markdown.comment(*[report] * 60)) <= markdown.LARGEST
