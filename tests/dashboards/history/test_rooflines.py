"""The roofline: where cases, ceilings and the other provider are drawn."""

from dataclasses import replace

import pytest

from dashboards import boards, rooflines
from kernels.cases import Case
from service.domain.roofline import Work
from service.reports.charts.board import BoardCase, BoardRun, Timed
from tests.dashboards.inspection import Drawn, places

COPY, PRODUCT, L2 = 4000.0, 800.0, float(60 << 20)
BLOCK = "rmsnorm.fwdbwd.4096x1024.bf16.block"


def timed(case: str, gb_s: float) -> Timed:
    return Timed(Case.parse(case).least_bytes / gb_s / 1e3, gb_s)


def case(name: str, own: float, quack: float | None) -> BoardCase:
    return BoardCase("norms", name, timed(name, own), {"quack": timed(name, quack)} if quack else {})


CASES = [
    case("rmsnorm.fwd.32768x1024.bf16", COPY, 2000.0),
    case("rmsnorm.fwd.64x1024.bf16", 50.0, 100.0),
    case("layernorm.bwd.8192x4096.bf16", 1000.0, None),
]


def drawn(
    cases: list[BoardCase] = CASES, copy: float | None = COPY, product: float | None = PRODUCT, *, blocks: bool = False
) -> rooflines.Rooflines | None:
    of_blocks = [BoardCase("norms", BLOCK, Timed(1000.0, None))] if blocks else []
    run = BoardRun(1, "a" * 40, "", 0.0, 1, copy, product, L2, cases, of_blocks)
    board = boards.compose(cases, "quack", "quack", copy, "norms")
    return rooflines.draw(board.cells, run, "quack", lambda one: f"#{one.case}")


def rows(figure: Drawn) -> list[str]:
    """The titles of the rows, from the top."""
    return [one.text for one in sorted(figure.texts("ink"), key=lambda one: one.y)]


def test_a_case_as_fast_as_a_copy_is_at_the_roof_and_none_beyond_it() -> None:
    found = drawn()
    assert found
    figure = Drawn(found.by_op)
    (roof, _), *_ = places(figure.path("ceiling"))
    forward, backward = (places(path) for path in figure.paths("pt own"))
    assert max(x for x, _ in forward) == pytest.approx(roof, abs=2.5), "dots stand in columns of 5 px"
    assert all(x < roof - 50 for x, _ in backward), "left is slower"
    assert rows(figure) == ["RMSNorm forward, 1.0 FLOP per byte", "LayerNorm backward, 2.2 FLOP per byte"]
    texts = [one.text for one in figure.texts()]
    assert {"least 1 %, 64×1,024", "least 25 %, 8,192×4,096"} < set(texts), "the slowest of each row has its name"
    assert found.families[0][:2] == ("RMSNorm forward", pytest.approx(1.0, rel=1e-2))
    assert found.families[-1][1:] == (pytest.approx(13 / 6, rel=1e-2), pytest.approx(13 / 6 * COPY / 1e3, rel=1e-2))
    assert found.ridge == 200


def test_a_function_stands_where_its_formulas_say() -> None:
    cases = [BoardCase("functions", f"softmax/{rows}x1024", Timed(rows / 100, 1000.0)) for rows in (8192, 16384, 32768)]
    works = {one.case: Work(flops=5 * 1024, bytes=4 * 1024) for one in cases}
    run = BoardRun(1, "a" * 40, "", 0.0, 1, COPY, PRODUCT, L2, cases, of_functions=works)
    board = boards.compose(cases, "SOTA", "SOTA", COPY, "mine")

    found = rooflines.draw(board.cells, run, "SOTA", lambda one: f"#{one.case}")

    assert found
    assert rows(Drawn(found.by_op)) == ["softmax, 1.2 FLOP per byte"]
    assert rooflines.draw(board.cells, replace(run, of_functions={}), "SOTA", lambda one: "#") is None


def test_cases_with_the_same_share_stand_on_each_other() -> None:
    same = [case(f"rmsnorm.fwd.{rows}x1024.bf16", 2000.0, None) for rows in (8192, 16384, 32768, 65536)]
    found = drawn(same)
    assert found
    [stack] = [places(path) for path in Drawn(found.by_op).paths("pt own")]
    assert len({x for x, _ in stack}) == 1
    assert len({y for _, y in stack}) == len(same)


def test_in_the_cache_a_case_may_be_beyond_the_roof_but_not_beyond_the_figure() -> None:
    name = "rmsnorm.fwd.512x1024.bf16"
    resident = BoardCase("norms", name, timed(name, 9 * COPY), {}, in_cache=True)
    found = drawn([*CASES, resident])
    assert found
    figure = Drawn(found.by_op)
    [(x, _)] = places(figure.path("pt in-cache"))
    assert places(figure.path("ceiling"))[0][0] < x <= 410


def test_blocks_have_a_row_of_their_own() -> None:
    with_block, without = drawn(blocks=True), drawn()
    assert with_block
    assert without
    figure = Drawn(with_block.by_op)
    assert rows(figure)[-1] == "Blocks, limited by a matrix product"
    assert len(places(figure.path("pt blocks"))) == 1
    assert (with_block.blocks, without.blocks) == (True, False)
    assert Drawn(without.by_op).paths("pt blocks") == []


def test_without_a_product_memory_alone_is_the_roof() -> None:
    found = drawn(product=None)
    assert found
    assert found.ridge is None
    assert len(Drawn(found.by_op).paths("pt own")) == 2


def test_by_size_the_shortest_call_and_the_copy_are_the_limits() -> None:
    found = drawn()
    assert found
    figure = Drawn(found.by_size)
    copy, _ = figure.paths("ceiling")
    times = [time.median for one in CASES for time in (one.own, *one.others.values())]
    assert f"shortest call, {min(times):.2f} µs" in [one.text for one in figure.texts()]
    found_dots = figure.root.findall(".//a")
    assert [dot.get("href") for dot in found_dots] == [f"#{one.case}" for one in CASES]
    other, own = (path.get("d", "") for path in found_dots[0].iterfind("path"))
    [(x, y)] = places(own)
    assert y == pytest.approx(places(copy)[0][1], abs=0.1)
    l2 = figure.root.find(".//rect[@class='l2']")
    assert l2 is not None
    assert x > float(l2.get("x", "")) + float(l2.get("width", "")), "128 MiB do not fit 60 MiB"
    assert other.endswith(f"V{y:g}"), "a line from the other provider to ours"
    assert [len(dot.findall("path")) for dot in found_dots] == [2, 2, 1]


@pytest.mark.parametrize(("cases", "copy"), [(CASES, None), (CASES[:2], COPY), ([], COPY)])
def test_without_a_ceiling_or_with_too_few_cases_there_is_none(cases: list[BoardCase], copy: float | None) -> None:
    assert drawn(cases, copy) is None
