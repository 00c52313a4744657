"""The pages of studies: an answer to each claim, the source's numbers next to ours, and figures drawn on the server."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dashboards.pages.studies import BOTTOM, LEFT, RIGHT, TOP, chart
from kernels.studies.records import StudyFile
from kernels.studies.study import StudyFigure
from service.app import create_app
from service.db.engine import transaction
from service.ledger.studies import sessions
from tests.dashboards.inspection import Drawn
from tests.service.ledger.studies.literal import GRID, NARROW, session_file


@pytest.fixture
def get(state: Path):
    client = TestClient(create_app(), base_url="http://localhost")

    def text_at(path: str, status: int = 200) -> str:
        answer = client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    return text_at


def stored(*files: StudyFile) -> None:
    with transaction() as session:
        for file in files:
            sessions.store(session, file)


def rows(page: str, table: str) -> list[list[str]]:
    """The cells of a table by its heading, as text."""
    [body] = re.findall(rf"<h2>{re.escape(table)}</h2>.*?<tbody>(.*?)</tbody>", page, re.DOTALL)
    lines = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    return [[plain(cell) for cell in re.findall(r"<td.*?</td>", line, re.DOTALL)] for line in lines]


def plain(markup: str) -> str:
    return " ".join(re.sub("<[^>]+>", " ", markup).split())


def test_without_a_session_the_pages_say_what_to_run(get) -> None:
    assert "kernelwatch study run s3 --quick" in get("/studies")
    page = get("/studies/s3")
    assert "Not measured yet" in page
    assert "kernelwatch study run s3" in page
    assert "No study s9. Known: s1," in get("/studies/s9", 404)
    assert "No session 7 of study s3." in get("/studies/s3?session=7", 404)


def test_a_study_answers_each_claim_of_its_source(get) -> None:
    stored(session_file(times=GRID))
    page = get("/studies/s3")
    verdicts = [line[-1] for line in rows(page, "What follows")]
    assert verdicts == ["✕ does not hold", "◌ undecided", "✓ holds"]
    assert rows(page, "Fused over separate, by columns") == [
        ["256", "1.41 … 0.95", "1.250 … 1.250"],
        ["512", "1.60 … 1.01", "1.250 … 1.250"],
        ["1024", "1.40 … 0.97", "1.250 … 0.909"],
        ["2048", "1.07 … 1.02", "1.053 … 1.053"],
    ]
    assert [NARROW, "20.1", "16.1", "18.1", "16.1", "21.1"] in rows(page, "Microseconds")
    assert "NVIDIA H200: python 3.12.3, torch 2.11.0, triton 3.6.0" in plain(page)
    assert "two copies of equal code differ by 0.50 % in the median" in page
    assert "24 of 80, counted for each step and trial; kernelwatch study run s3 measures the rest" in plain(page)
    assert 'href="https://github.com/Dao-AILab/quack/pull/101"' in page


def test_the_list_has_the_session_that_is_shown_and_how_many_claims_hold(get) -> None:
    stored(session_file(times=GRID), session_file(device="cpu", began="2026-11-23T03:02:00+00:00"))
    page = get("/studies")
    [line] = re.findall(r'<tr id="s3">.*?</tr>', page, re.DOTALL)
    assert "✓ 1 hold ✕ 1 do not ◌ 1 undecided" in plain(line)
    assert '<a href="/studies/s3?session=1">h200</a>' in line
    assert '<a href="/studies">Studies</a>' in page


def test_a_session_is_chosen_by_its_number_or_its_device(get) -> None:
    other = session_file(device="b200", began="2026-11-21T03:02:00+00:00", speed=2.0)
    stored(session_file(), other)
    for path in ("/studies/s3?session=2", "/studies/s3?device=b200"):
        page = get(path)
        assert '<option value="2" selected>2: b200, 2026-11-21 03:02 UTC</option>' in page
        assert rows(page, "Fused over separate, by columns")[0][2] == "2.500 … 2.500"
    assert "Not measured on a100" in get("/studies/s3?device=a100")


def test_a_page_shows_what_was_added_since_it_was_last_read(get) -> None:
    whole = session_file()
    stored(replace(whole, records=whole.records[:6]))
    assert len(rows(get("/studies/s3"), "Microseconds")) == 1
    stored(whole)
    assert len(rows(get("/studies/s3"), "Microseconds")) == 2


def test_a_figure_has_a_line_for_each_arm(get) -> None:
    stored(session_file())
    page = get("/studies/s3")
    [last, _] = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert 'aria-label="speed against columns: 4,096 rows"' in last
    assert ">256</text>" in last
    assert ">2k</text>" in last
    assert last.count('class="ln"') == 1
    assert 'class="ceiling"' in last


def figure(limit: tuple[str, float] | None = None, **series: tuple[float | None, ...]) -> StudyFigure:
    return StudyFigure("t", "columns", "GB/s", (256.0, 1024.0, 4096.0), series, limit)


def test_a_missing_value_interrupts_a_line() -> None:
    drawn = Drawn(chart(figure(whole=(1.0, 2.0, 3.0), gap=(1.0, None, 3.0), none=(None, None, None))))
    (whole, gap), (whole_dots, gap_dots) = drawn.paths("ln"), drawn.paths("pt")
    assert (whole.count("M"), whole.count("L"), whole_dots.count("M")) == (1, 2, 3)
    assert (gap, gap_dots.count("M")) == ("", 2)
    assert chart(figure(none=(None, None, None))) is None


def test_names_of_lines_do_not_touch_and_stay_inside() -> None:
    texts = Drawn(chart(figure(**{f"arm {n}": (1.0, 1.0, 0.001 * n) for n in range(8)}))).texts()
    places = sorted(one.y - 4 for one in texts if one.text.startswith("arm"))
    assert len(places) == 8
    assert all(after - before >= 12.9 for before, after in pairwise(places))
    assert TOP <= places[0] <= places[-1] <= BOTTOM + 4
    assert [one.x for one in texts if one.y == 240] == pytest.approx([LEFT, (LEFT + RIGHT) / 2, RIGHT])


def test_close_values_fill_the_figure_and_others_begin_at_zero() -> None:
    drawn = [Drawn(chart(figure(a=values))).texts() for values in ((0.98, 1.0, 1.02), (10.0, 500.0, 1000.0))]
    assert ["0" in [one.text for one in texts if one.x == LEFT - 5] for texts in drawn] == [False, True]
    assert all(any(one.x == LEFT - 5 for one in texts) for texts in drawn)
