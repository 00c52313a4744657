"""The board: steps of colour, what is mapped and what is listed, and the page in a browser."""

import csv
import io
import itertools
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import select

from dashboards.boards import compose, dtypes, providers
from dashboards.drawing import spread_labels
from kernels.cases import Case
from service.db.engine import transaction
from service.db.models import Revision, Target
from service.reports.charts.board import BEST, STEPS, BoardCase, Since, Timed, short_number
from tests.dashboards.asking import Get, asking, words
from tests.dashboards.browser.variants import SCHEMES_AND_WIDTHS
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import Drawn
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


def test_against_the_best_of_all_each_case_names_the_fastest_of_the_others() -> None:
    engine = case("rmsnorm.fwd.64x4096.bf16", own=2.0, quack=2.8, flashinfer=1.9)
    board = compose([*SWEEP, engine], BEST, "quack", None, "norms")
    assert board.fastest == [("liger", 3), ("flashinfer", 1)]
    assert board.cells[-1].label(BEST).startswith("1.05 × flashinfer, ")
    assert board.cells[-1].link_name(BEST).startswith("1.05 × flashinfer, ")
    assert (
        compose([engine], "liger", "quack", None, "norms").cells[0].label("liger").startswith("liger was not measured")
    )


def test_the_judged_ratio_is_shown_against_sota() -> None:
    others = {"quack": Timed(9.0, 1.0)}
    judged = BoardCase("norms", "rmsnorm.fwd.1x64.bf16", Timed(10.0, 1.0), others, ratio=1.2, behind=True)
    assert compose([judged], "quack", "quack", None, "norms").cells[0].ratio == 1.2
    assert compose([judged], BEST, "quack", None, "norms").cells[0].ratio == pytest.approx(10 / 9)


MANY = [case(f"rmsnorm.fwd.32768x{500 + n}.fp16", quack=90.0) for n in range(16)]


def test_what_has_no_line_in_the_map_is_listed() -> None:
    odd = case("rmsnorm.fwd.4096x3000.fp16", quack=90.0)
    model = case("rmsnorm.fwd.8192x4096.bf16", quack=90.0)
    few = case("rmsnorm.fwd.16x4096.bf16", quack=90.0)
    board = compose([*SWEEP, *OTHER_SWEEPS, odd, model, few, *MANY], "quack", "quack", 4000.0, "norms")
    assert [group.family for group in board.groups] == ["RMSNorm forward", "RMSNorm backward", "LayerNorm forward"]
    assert board.columns == [1024, 2048, 4096]
    assert [cell.case.case for cell in board.single] == ["rmsnorm.fwd.4096x3000.fp16", *(one.case for one in MANY)]
    assert [row.model for rows in board.models.values() for row in rows] == ["Llama 3 8B"]
    assert [group.family for group in board.few] == ["RMSNorm forward"]
    assert [cell.case.case for cell in board.small[:2]] == ["rmsnorm.fwd.16x4096.bf16", "rmsnorm.fwd.4096x3000.fp16"]


def test_a_suite_of_few_shapes_is_on_the_map_as_a_whole() -> None:
    suite = ["rmsnorm.bwd.32768x1024.bf16", "layernorm.bwd.16384x4096.bf16", "rmsnorm.fwd.16384x3000.bf16"]
    board = compose([case(name, behind=True, quack=90.0) for name in suite], "quack", "quack", 4000.0, "norms")
    mapped = [cell for group in board.groups for row in group.rows for cell in row.cells.values()]
    assert sorted(cell.case.case for cell in mapped) == sorted(suite)
    assert all("behind" in cell.tone for cell in mapped)
    assert board.small == []


def test_gaps_are_sorted_by_time_at_stake() -> None:
    short = case("rmsnorm.fwd.32768x1024.bf16", own=20.0, behind=True, quack=10.0)
    long = case("rmsnorm.fwd.32768x2048.bf16", own=1200.0, behind=True, quack=1100.0)
    board = compose([short, long], "quack", "quack", None, "norms")
    assert [cell.at_stake for cell in board.behind] == [pytest.approx(100.0), pytest.approx(10.0)]


def test_against_another_provider_the_limit_says_what_is_behind() -> None:
    over = case("rmsnorm.fwd.4096x1024.bf16", own=106.0, quack=90.0, liger=100.0)
    within = case("rmsnorm.fwd.4096x2048.bf16", own=104.0, behind=True, liger=100.0)
    board = compose([over, within], "liger", "quack", None, "norms")
    assert [cell.case for cell in board.behind] == [over]


def test_kinds_with_more_time_at_stake_come_first() -> None:
    slow = [case(f"layernorm.bwd.32768x{n}.bf16", own=200.0, behind=True, quack=100.0) for n in (1024, 2048, 4096)]
    board = compose([*SWEEP, *OTHER_SWEEPS, *slow], "quack", "quack", None, "norms")
    assert (board.groups[0].family, board.groups[0].at_stake) == ("LayerNorm backward", pytest.approx(300.0))


def test_numbers_of_rows_with_few_cells_share_a_line() -> None:
    more = [case(f"rmsnorm.fwd.32768x{n}.bf16", quack=90.0) for n in (256, 512)]
    wide = [case("rmsnorm.fwd.16000x8192.bf16", quack=90.0), case("rmsnorm.fwd.9000x16384.bf16", quack=90.0)]
    taken = case("rmsnorm.fwd.4000x8192.bf16", quack=90.0)
    fill = [case(f"rmsnorm.bwd.{m}x{n}.bf16", quack=90.0) for n in (256, 512, 8192, 16384) for m in (32768, 16384)]
    board = compose([*SWEEP, *OTHER_SWEEPS, *more, *wide, taken, *fill], "quack", "quack", None, "norms")
    forward = next(group for group in board.groups if group.family == "RMSNorm forward")
    assert [(row.most, row.shared, sorted(row.cells)) for row in forward.rows] == [
        (32768, False, [256, 512, 1024, 2048, 4096]),
        (16000, True, [8192, 16384]),
        (4000, False, [8192]),
    ]


def test_no_case_is_lost_or_replaced_by_another() -> None:
    """Strided rows, several providers, forward and backward in one, and cases of another version."""
    names = ("rmsnorm.fwd.4096x1024s2048.bf16", "rmsnorm.fwdbwd.8192x4096.bf16", "softmax.fwd.64x64.bf16")
    shapes = [f"rmsnorm.{way}.32768x{n}.bf16" for way in ("fwd", "bwd") for n in (1024, 2048, 4096)]
    twice = [BoardCase(who, shape, Timed(9.0, 1.0)) for who in ("a", "b") for shape in shapes]
    board = compose([*(case(name, quack=90.0) for name in names), *twice], "quack", "quack", None, "norms")
    mapped = [cell for group in board.groups for row in group.rows for cell in row.cells.values()]
    assert len(mapped) + len(board.small) == len(board.cells) == 15
    assert [group.dtypes for group in board.groups] == ["bf16, norms", *["bf16, a"] * 2, *["bf16, b"] * 2]


def test_a_cell_says_all_of_itself() -> None:
    since = Since("0123456789abcdef" * 2 + "01234567", 0.0, 3, 1.1)
    times = (Timed(12.0, 2000.0), {"quack": Timed(10.0, 1.0)})
    one = BoardCase("norms", "rmsnorm.fwd.4096x3000.bf16", *times, ratio=1.2, behind=True, behind_since=since)
    [cell] = compose([one], "quack", "quack", 4000.0, "norms").cells
    assert cell.label("quack") == (
        "1.20 × quack, RMSNorm forward 4,096×3,000 bf16, 12.0 µs, 50 % of a copy, behind since 0123456789"
    )
    assert cell.link_name("quack") == "1.20 50 % of a copy, 4,096×3,000, behind since 1 Jan 1970"
    many = case("rmsnorm.fwd.8192x3000.bf16", quack=90.0)
    [plain] = compose([many], "quack", "quack", None, "norms").cells
    assert plain.link_name("quack", shared=True) == f"8k {plain.ratio_text} × quack, 8,192×3,000"


def test_labels_of_an_axis_do_not_touch() -> None:
    columns = ((0, 256), (40, 1024), (44, 1152), (80, 2048), (95, 3000), (100, 4096))
    labels = [(x, short_number(n), n) for x, n in columns]
    kept = spread_labels(labels)
    assert [text for _, text in kept] == ["256", "1k", "2k", "4k"]


def test_in_the_cache_there_is_no_share_of_the_ceiling() -> None:
    resident = BoardCase("norms", "rmsnorm.fwd.1x64.bf16", Timed(2.0, 5000.0), {}, in_cache=True)
    shares = [compose([one], "quack", "quack", 4000.0, "norms").cells[0].share for one in (resident, SWEEP[0])]
    assert shares == [None, pytest.approx(100 * 1e5 / 1024 / 4000)]


def test_the_figures_have_every_provider() -> None:
    figure, *_ = compose([*SWEEP, *OTHER_SWEEPS], "quack", "quack", 4000.0, "norms").figures.values()
    names = [one for one in Drawn(figure).texts() if one.x == 206]
    assert [one.text for one in names] == ["norms", "quack", "liger"]
    ends = sorted(one.y for one in names)
    assert all(after - before >= 11 for before, after in itertools.pairwise(ends)), "names do not overlap"


def test_small_words() -> None:
    assert [short_number(n) for n in (768, 1024, 131072, 3000)] == ["768", "1k", "128k", "3,000"]
    assert providers(SWEEP) == ["quack", "liger"]
    assert dtypes([*SWEEP, case("rmsnorm.fwd.1x64.fp16")]) == {"bf16": 3, "fp16": 1}


def test_the_page_says_where_it_is_ahead_and_behind(get: Get, seeded: Seeded) -> None:
    assert "1 target compared" in words(get("/board"))
    first = get("/targets/norms/board")
    assert first.status_code == 303
    page = get(first.headers["location"])
    said = words(page)
    assert re.search(r"(Ahead of|Level with|Not compared with) ", said)
    assert "Behind, by time at stake" in said
    cases = get("/targets/norms/board.json?device=h200").json()["cases"]
    behind = [one["case"] for one in cases if one["behind"]]
    assert behind
    before_the_map = page.text[page.text.index('id="behind"') : page.text.index('id="map"')]
    assert "<details" not in before_the_map
    assert all(f"<code>{name}</code>" in before_the_map for name in behind)


def test_the_files_have_what_the_page_shows(get: Get, seeded: Seeded) -> None:
    at = "/targets/norms/board{}?device=h200"
    whole = get(at.format(".json")).json()
    assert (whole["target"], whole["device"], whole["against"]) == ("norms", "h200", "quack")
    rows = list(csv.DictReader(io.StringIO(get(at.format(".csv")).text)))
    assert [row["case"] for row in rows] == [one["case"] for one in whole["cases"]] != []
    for row, one in zip(rows, whole["cases"], strict=True):
        case = Case.parse(one["case"])
        assert float(row["median_us"]) == one["median_us"] > 0
        assert one["flop_per_byte"] == pytest.approx(case.flops / case.least_bytes)
    best = get("/targets/norms/board.json?device=h200&against=best").json()["cases"]
    assert all((one["other"] is None) == (one["other_us"] is None) for one in best)
    assert any(one["other"] for one in best)
    assert re.search(
        r"Fastest of the others: \w+ at \d+ shapes?", words(get("/targets/norms/board?device=h200&against=best"))
    )
    assert get(at.format("/gaps")).status_code == get(at.format("/small")).status_code == 200
    assert get(at.format("/nothing")).status_code == 422


def test_a_revision_that_was_not_measured_has_the_board_of_the_nearest_earlier_one(tmp_path: Path) -> None:
    with watched(tmp_path / "board", seed_wide.seed) as story:
        with transaction() as session:
            target = session.scalars(select(Target).where(Target.name == story.target)).one()
            newest = session.scalars(
                select(Revision).where(Revision.target_id == target.id, Revision.ordinal.is_not(None))
                .order_by(Revision.ordinal.desc())
            ).first()  # fmt: skip
            assert newest
            assert newest.ordinal is not None
            sha, place = newest.sha, newest.ordinal
            session.add(Revision(
                target_id=target.id, sha="ab" * 20, parent=sha, ordinal=place + 1, subject="Not measured",
                author="A", committed_at=newest.committed_at + 60, paths=[],
            ))  # fmt: skip
        get = asking()
        page = get(f"/targets/{story.target}/board?device=h200&at={'ab' * 20}")
        assert "abababababab"[:10] + f" was not measured on h200: this is {sha[:10]}" in words(page)
        assert get(f"/targets/{story.target}/board.json?device=h200&at={'ab' * 6}").json()["instead_of"] == "ab" * 20
        assert "was not measured" not in words(get(f"/targets/{story.target}/board?device=h200&at={sha}"))


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


@SCHEMES_AND_WIDTHS
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
        heights = {1440: 3200, 390: 4900}  # with ten cases behind, and what is folded
        assert page.evaluate("document.documentElement.scrollHeight") <= heights[width]
        assert page.evaluate("document.querySelectorAll('*').length") <= 3000
        expect(page.get_by_role("heading", name="Roofline")).to_be_visible()
        for part in page.locator("details[data-from]").all():
            part.locator("summary").click()
            expect(part.locator("[data-here] td.number, [data-here] td.x").first).to_be_visible()
        first = page.locator("table.map td.x a").first
        for cell in page.locator("td.x a").all():
            shown = " ".join(cell.inner_text().split())
            assert (cell.get_attribute("aria-label") or "").startswith(f"{shown} "), shown
        name = first.get_attribute("title") or ""
        assert re.match(r"[0-9.]+ × quack, \w+ \w+ [0-9,]+×[0-9,]+ ", name), name
        first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.locator("table.map a:focus").get_attribute("title") not in (None, name)
        assert page.locator("table.map a[tabindex='0']").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.locator("table.map td.x a").first.click()
        expect(page.locator(".figure-place")).to_be_visible()
        assert complaints == []
        context.close()
