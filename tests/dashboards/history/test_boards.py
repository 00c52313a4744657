"""The board: steps of colour, what is mapped and what is listed, and the page in a browser."""

import itertools
import re

import pytest
from playwright.sync_api import Browser, expect

from dashboards.boards import BEST, STEPS, compose, dtypes, providers, short_number
from service.ledger.reading.board import BoardCase, Timed
from tests.dashboards.asking import Get, asking, words
from tests.dashboards.conftest import reachable
from tests.dashboards.runs import seed_wide
from tests.dashboards.seed import Seeded, watched


def case(name: str, own: float = 100.0, behind: bool = False, **others: float) -> BoardCase:
    timed = {other: Timed(median, 1e5 / median) for other, median in others.items()}
    return BoardCase("norms", name, Timed(own, 1e5 / own), timed, behind=behind)


SWEEP = [
    case(f"rmsnorm.fwd.32768x{columns}.bf16", own=float(columns), quack=columns * 1.1, liger=columns * 0.9)
    for columns in (1024, 2048, 4096)
]
OTHER_SWEEPS = [
    case(f"{op}.32768x{columns}.bf16", quack=100.0)
    for op in ("rmsnorm.bwd", "layernorm.fwd")
    for columns in (1024, 2048, 4096)
]


@pytest.mark.parametrize(
    ("ratio", "step"),
    [(0.3, 0), (0.60, 0), (0.61, 1), (0.97, 3), (1.0, 4), (1.02, 4), (1.03, 5), (1.25, 7), (9.0, 8)],
)
def test_a_ratio_has_its_step_of_colour(ratio: float, step: int) -> None:
    measured = case("rmsnorm.fwd.32768x1024.bf16", own=ratio * 50, quack=50.0)
    [cell] = compose([measured], "quack", "quack", None, "norms").cells
    assert cell.step == step
    assert len(STEPS) == 8


@pytest.mark.parametrize(
    ("against", "ratio"), [("quack", 1 / 1.1), ("liger", 1 / 0.9), (BEST, 1 / 0.9), ("inductor", None)]
)
def test_the_ratio_is_to_the_provider_that_was_chosen(against: str, ratio: float | None) -> None:
    cell = compose(SWEEP, against, "quack", None, "norms").cells[0]
    assert cell.ratio == (pytest.approx(ratio) if ratio else None)


def test_the_judged_ratio_is_shown_against_sota() -> None:
    others = {"quack": Timed(9.0, 1.0)}
    judged = BoardCase("norms", "rmsnorm.fwd.1x64.bf16", Timed(10.0, 1.0), others, ratio=1.2, behind=True)
    assert compose([judged], "quack", "quack", None, "norms").cells[0].ratio == 1.2
    assert compose([judged], BEST, "quack", None, "norms").cells[0].ratio == pytest.approx(10 / 9)


def test_what_has_no_line_in_the_map_is_listed() -> None:
    odd = case("rmsnorm.fwd.4096x3000.fp16", quack=90.0)
    model = case("rmsnorm.fwd.8192x4096.bf16", quack=90.0)
    few = case("rmsnorm.fwd.16x4096.bf16", quack=90.0)
    board = compose([*SWEEP, *OTHER_SWEEPS, odd, model, few], "quack", "quack", 4000.0, "norms")
    assert [group.title for group in board.groups] == [
        "RMSNorm forward, bf16", "RMSNorm backward, bf16", "LayerNorm forward, bf16",
    ]  # fmt: skip
    assert board.columns == [1024, 2048, 4096]
    assert [cell.case.case for cell in board.single] == ["rmsnorm.fwd.4096x3000.fp16"]
    assert [row.model for rows in board.models.values() for row in rows] == ["Llama 3 8B"]
    assert [group.title for group in board.few] == ["RMSNorm forward, bf16"]


def test_gaps_are_sorted_by_time_at_stake() -> None:
    short = case("rmsnorm.fwd.32768x1024.bf16", own=20.0, behind=True, quack=10.0)
    long = case("rmsnorm.fwd.32768x2048.bf16", own=1200.0, behind=True, quack=1100.0)
    board = compose([short, long], "quack", "quack", None, "norms")
    assert [cell.at_stake for cell in board.behind] == [pytest.approx(100.0), pytest.approx(10.0)]


def test_in_the_cache_there_is_no_share_of_the_ceiling() -> None:
    resident = BoardCase("norms", "rmsnorm.fwd.1x64.bf16", Timed(2.0, 5000.0), {}, in_cache=True)
    shares = [compose([one], "quack", "quack", 4000.0, "norms").cells[0].share for one in (resident, SWEEP[0])]
    assert shares == [None, pytest.approx(100 * 1e5 / 1024 / 4000)]


def test_the_figures_have_every_provider() -> None:
    figure, *_ = compose([*SWEEP, *OTHER_SWEEPS], "quack", "quack", 4000.0, "norms").figures
    assert [name for name, *_ in figure.lines] == ["norms", "quack", "liger"]
    ends = sorted(y for *_, y in figure.lines)
    assert all(after - before >= 11 for before, after in itertools.pairwise(ends)), "names do not overlap"


def test_small_words() -> None:
    assert [short_number(n) for n in (768, 1024, 131072, 3000)] == ["768", "1k", "128k", "3,000"]
    assert providers(SWEEP) == ["quack", "liger"]
    assert dtypes([*SWEEP, case("rmsnorm.fwd.1x64.fp16")]) == {"bf16": 3, "fp16": 1}


@pytest.fixture(scope="module")
def get() -> Get:
    return asking()


def test_the_page_says_where_it_is_ahead_and_behind(get: Get, seeded: Seeded) -> None:
    assert "1 target compared" in words(get("/board"))
    first = get("/targets/norms/board")
    assert first.status_code == 303
    said = words(get(first.headers["location"]))
    assert re.search(r"(Ahead of|Level with|Not compared with) ", said)
    assert "Behind, by time at stake" in said


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/targets/norms/board?device=b200", 404),
        ("/targets/norms/board?device=h200&at=ffffffffff", 404),
        ("/targets/nobody/board", 404),
    ],
)
def test_a_wrong_address_is_not_found(get: Get, seeded: Seeded, path: str, status: int) -> None:
    assert get(path).status_code == status


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_board_fits_the_window(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, width: int, scheme: str
) -> None:
    with watched(tmp_path_factory.mktemp("board"), seed_wide.seed) as seeded, reachable() as address:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(f"{address}/targets/{seeded.target}/board")
        expect(page.locator("table.hm").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.locator("td.x a").first.click()
        expect(page.locator(".figure-place")).to_be_visible()
        assert complaints == []
        context.close()
