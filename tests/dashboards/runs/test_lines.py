"""The table of cases: what a line says first, how lines are grouped, ordered and filtered; their axis."""

from dataclasses import replace
from typing import Any

import pytest

from dashboards.runs.filters import CaseFilters, filtered, fits, offered
from dashboards.runs.lines import CaseLine, LineKind, LineSort, groups_of, kind_of, late_groups
from dashboards.runs.strips import MAX_LINKED, RatioAxis, dot_plot, interval, one_cause, rounds_figure
from kernels.cases import Role
from service.domain.attribution.causes import Kind
from service.domain.case_names import case_name
from service.domain.codefacts.measured import Measured
from service.domain.states import CellState, Outcome
from service.ledger.reading.brief import CaseSamples
from service.reports.rows import AgainstSota, BaselineRow, CauseWords, Known, Row
from tests.dashboards.inspection import Drawn

WIDE, NARROW = "rmsnorm.fwd.4096x8192.bf16", "rmsnorm.fwd.4096x1024.bf16"
BACK, SMALL = "rmsnorm.bwd.4096x1024.bf16", "rmsnorm.fwd.16x1024.bf16"
SPILLS = CauseWords(Kind.CODE, "slower because it spills", True, " because it spills", "explained", "spills")
WARPS = CauseWords(Kind.CODE, "slower because it launches 16 warps", True, None, "explained", "configuration")
OTHER = BaselineRow("0123456789", Outcome.REGRESSION, 1.05, 1.04, 1.06, "5% slower", None, None)


def side(us: float, **facts: Any) -> Measured:
    return Measured("head:norms", "norms", CellState.MEASURED, None, us, "us", None, 3, 60, facts)


def row(case: str, ratio: float | None = 1.0, outcome: Outcome = Outcome.STEADY, **rest: Any) -> Row:
    known: dict[str, Any] = {"head": side(10 * (ratio or 1.0)), "parent": side(10.0), "control": None, "sota": None}
    low, high = (ratio - 0.004, ratio + 0.004) if ratio else (None, None)
    return Row("norms", case, outcome, ratio, low, high, 3, 60, False, "why", **(known | rest))


def line(case: str, *args: Any, **rest: Any) -> CaseLine:
    one = row(case, *args, **rest)
    return CaseLine(one, case_name(case), kind_of(one), 0.02)


def slower(case: str, ratio: float, **rest: Any) -> CaseLine:
    return line(case, ratio, Outcome.REGRESSION, **rest)


@pytest.mark.parametrize(
    ("outcome", "rest", "kind"),
    [
        (Outcome.REGRESSION, {}, LineKind.SLOWER),
        (Outcome.IMPROVEMENT, {}, LineKind.FASTER),
        (Outcome.INVALID, {}, LineKind.WRONG),
        (Outcome.INVALID, {"known_before": True}, LineKind.KNOWN_BEFORE),
        (Outcome.FAILED, {"known_before": True}, LineKind.KNOWN_BEFORE),
        (Outcome.INCONCLUSIVE, {}, LineKind.UNDECIDED),
        (Outcome.INCONCLUSIVE, {"quarantined": True}, LineKind.QUARANTINED),
        (Outcome.STEADY, {}, LineKind.STEADY),
        (Outcome.STEADY, {"last_good": OTHER}, LineKind.SLOW_BEFORE),
        (Outcome.STEADY, {"known": Known(7, "0123456789")}, LineKind.SLOW_BEFORE),
        (Outcome.STEADY, {"pinned": OTHER}, LineKind.BELOW_PINNED),
        (Outcome.REGRESSION, {"pinned": OTHER}, LineKind.SLOWER),
        (
            Outcome.STEADY,
            {"head": side(1, repeatable=False), "parent": side(1, repeatable=True)},
            LineKind.UNREPEATABLE,
        ),
    ],
)
def test_what_a_line_says_first(outcome: Outcome, rest: dict[str, Any], kind: LineKind) -> None:
    assert kind_of(row(WIDE, 1.0, outcome, **rest)) is kind


@pytest.mark.parametrize(
    ("case", "family", "shape", "dtypes", "model"),
    [
        ("rmsnorm.fwd.8192x8192.bf16", "RMSNorm forward", "8,192×8,192", "bf16", "Llama 3 70B"),
        ("rmsnorm_residual.bwd.4x64.bf16-fp32", "RMSNorm + residual backward", "4×64", "bf16-fp32", ""),
        (
            "layernorm_noweight_nobias.fwd.4x64.fp16",
            "LayerNorm without weight without bias forward",
            "4×64",
            "fp16",
            "",
        ),
        ("rmsnorm.fwd.4096x512s576.bf16.memory", "RMSNorm forward, peak memory", "4,096×512 stride 576", "bf16", None),
        ("rmsnorm.bwd.4096x32x128s6144.bf16", "RMSNorm backward", "4,096×32×128 stride 6,144", "bf16", None),
        ("another.version's case", "", "another.version's case", "", ""),
    ],
)
def test_a_case_in_words(case: str, family: str, shape: str, dtypes: str, model: str | None) -> None:
    name = case_name(case)
    assert (name.family, name.shape, name.dtypes) == (family, shape, dtypes)
    assert model is None or name.model == model


def titles(lines: list[CaseLine]) -> list[tuple[str, int]]:
    return [(group.title, group.size) for group in groups_of(lines, lines)]


def test_regressions_are_grouped_by_incident_then_by_cause() -> None:
    by_incident = [slower(WIDE, 1.1, regression=1, incident=4), slower(NARROW, 1.2, regression=2, incident=4)]
    assert titles(by_incident) == [("RMSNorm forward", 2)]
    by_cause = [slower(WIDE, 1.1, cause=SPILLS), slower(NARROW, 1.2, cause=SPILLS), slower(BACK, 1.3, cause=WARPS)]
    assert titles(by_cause) == [("RMSNorm backward", 1), ("RMSNorm forward", 2)], "the largest change comes first"


def test_causes_that_are_stored_as_texts_join_nothing() -> None:
    texts = [CauseWords(Kind.CODE, f"slower because of {what}") for what in ("spills", "warps")]
    [group] = groups_of(lines := [slower(WIDE, 1.1, cause=texts[0]), slower(BACK, 1.2, cause=texts[1])], lines)
    assert group.cause is None
    assert not one_cause(group)


def test_a_group_is_named_by_what_only_its_cases_have() -> None:
    moved = [slower(WIDE, 1.1), slower("rmsnorm.fwd.64x16384.bf16", 1.2)]
    assert titles([*moved, line(NARROW)])[0] == ("RMSNorm forward from 8,192 columns", 2)
    assert titles([*moved, line("rmsnorm.fwd.1x65536.bf16")])[0] == ("RMSNorm forward", 2)
    assert titles([*moved, slower(BACK, 1.1), line(NARROW)])[0] == ("RMSNorm forward and backward", 3)


def test_the_most_serious_group_comes_first() -> None:
    lines = [
        line(NARROW),
        line(WIDE, 0.9, Outcome.IMPROVEMENT),
        slower(BACK, 1.1),
        line(SMALL, None, Outcome.INVALID),
    ]
    kinds = [group.kind for group in groups_of(lines, lines)]
    assert kinds == [LineKind.WRONG, LineKind.SLOWER, LineKind.FASTER, LineKind.STEADY]


def steady(count: int) -> list[CaseLine]:
    return [line(f"rmsnorm.fwd.{rows}x1024.bf16", 1 + rows / 1e5) for rows in range(250, 250 + count)]


def test_what_is_fine_is_folded_by_op_direction_and_size_if_it_is_much() -> None:
    few = groups_of(steady(10), steady(10))
    assert [(group.title, group.folded, len(group.shown)) for group in few] == [("", False, 10)]
    many = groups_of([*steady(20), line(BACK)], [*steady(20), line(BACK)])
    assert [(group.title, group.size, group.folded) for group in many] == [
        ("RMSNorm forward", 13, True),
        ("RMSNorm forward, up to 256 rows", 7, True),
        ("RMSNorm backward", 1, True),
    ]
    assert many[0].geomean == pytest.approx(1.00263, abs=1e-5)
    assert many[0].worst == pytest.approx(1.00269)
    key = many[1].key
    unfolded = groups_of(steady(20), steady(20), unfolded=[key])
    assert {group.key: len(group.shown) for group in unfolded} == {key: 7, many[0].key: 0}
    assert all(len(group.shown) == group.size for group in groups_of(steady(20), steady(20), unfolded=["all"]))


def test_a_long_group_shows_its_first_lines() -> None:
    lines = [slower(f"rmsnorm.fwd.{rows}x64.bf16", 1 + rows / 1000) for rows in range(50, 150)]
    [group] = groups_of(lines, lines)
    assert (len(group.shown), len(group.hidden), group.late) == (40, 60, 28)
    assert group.shown[0].row.ratio == pytest.approx(1.149)
    [whole] = groups_of(lines, lines, unfolded=[group.key])
    assert (len(whole.shown), whole.hidden, whole.late) == (100, (), 0)


def test_a_phone_shows_most_of_the_most_severe_group_and_little_of_others() -> None:
    lines = [*(slower(f"rmsnorm.fwd.{rows}x64.bf16", 1.1) for rows in range(50, 70)), *steady(20)]
    grave, *others = groups_of(lines, lines, unfolded=["steady-kernel-rmsnorm-fwd-large"])
    assert [grave.late_from, *(group.late_from for group in others if not group.whole)] == [12, 3]
    folded = [replace(others[1], key=str(number)) for number in range(6)]
    assert late_groups(folded) == {"3", "4", "5"}
    assert late_groups(folded[:4]) == set(), "a link to one group is as tall as the group"


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        (LineSort.RELEVANCE, NARROW),
        (LineSort.RATIO, NARROW),
        (LineSort.LOST, WIDE),
        (LineSort.SOTA, BACK),
        (LineSort.NAME, BACK),
    ],
)
def test_lines_are_ordered_within_their_group(sort: LineSort, first: str) -> None:
    sota = AgainstSota("quack", 2.0, 1.9, 2.1, True, "takes 2.00 times as long as quack", None)
    lines = [
        slower(WIDE, 1.05, head=side(1050.0), parent=side(1000.0)),
        slower(NARROW, 1.2),
        slower(BACK, 1.1, sota=sota),
    ]
    [group] = groups_of(lines, lines, sort)
    assert group.lines[0].row.case == first


def test_a_change_counts_by_what_matters_in_its_metric() -> None:
    compile_time = replace(slower(f"{WIDE}.compile", 1.25), smallest_change=0.2)
    kernel = slower(NARROW, 1.1)
    [group] = groups_of([compile_time, kernel], [compile_time, kernel])
    assert [one.row.case for one in group.lines] == [NARROW, f"{WIDE}.compile"]


LINES = [slower(WIDE, 1.1), line(NARROW), line(BACK), line(SMALL)]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (CaseFilters(), [WIDE, NARROW, BACK, SMALL]),
        (CaseFilters(outcome="slower"), [WIDE]),
        (CaseFilters(outcome="steady", direction="fwd"), [NARROW, SMALL]),
        (CaseFilters(rows="small"), [SMALL]),
        (CaseFilters(op="layernorm"), []),
        (CaseFilters(q="8192"), [WIDE]),
        (CaseFilters(q="BWD bf16"), [BACK]),
        (CaseFilters(q="backward 4096x1024"), [BACK]),
        (CaseFilters(outcome="<script>"), []),
    ],
)
def test_filters(filters: CaseFilters, left: list[str]) -> None:
    assert [one.row.case for one in filtered(LINES, filters)] == left
    assert [fits(one, filters) for one in LINES] == [one.row.case in left for one in LINES]


def test_a_filter_counts_what_it_would_leave_of_the_others() -> None:
    found = {one.name: one.choices for one in offered(LINES, CaseFilters(direction="fwd"), "quack")}
    assert [(one.word, one.count) for one in found["outcome"]] == [
        ("all", 3),
        ("slower", 1),
        ("faster", 0),
        ("steady", 2),
    ]
    assert [(one.word, one.count, one.chosen) for one in found["direction"]] == [
        ("all", 4, False), ("forward", 3, True), ("backward", 1, False),
    ]  # fmt: skip
    assert found["outcome"][1].address == "?outcome=slower&direction=fwd"
    assert "op" not in found, "there is only one"
    assert [one.word for one in found["sort"]] == ["relevance", "ratio", "time lost", "× quack", "name"]


def test_the_address_holds_the_state_and_nothing_else() -> None:
    state = CaseFilters(outcome="slower", sort=LineSort.NAME, unfold=("steady-1",))
    assert state.address() == "?outcome=slower&sort=name&unfold=steady-1"
    assert state.unfolded("steady-1") == "?outcome=slower&sort=name"
    assert state.unfolded("new-1") == "?outcome=slower&sort=name&unfold=steady-1&unfold=new-1"
    assert state.address(q='"><b>') == "?outcome=slower&q=%22%3E%3Cb%3E&sort=name&unfold=steady-1"
    assert CaseFilters().address() == "?"


def test_the_axis_shows_every_ratio_and_always_the_band() -> None:
    quiet = RatioAxis.of([line(WIDE, 1.001)])
    assert quiet.scale.low < 1 / 1.02 < 1.02 < quiet.scale.high
    wide = RatioAxis.of([line(WIDE, 0.5), line(NARROW, 3.0), line(BACK, 40.0)])
    assert wide.scale.low < 0.5
    assert 8.0 <= wide.scale.high < 10.0, "what takes forty times as long is drawn at the end"
    assert 1.0 in wide.ticks
    drawn = interval(line(BACK, 40.0), wide)
    assert drawn is not None
    assert 'preserveAspectRatio="none"' in drawn.__html__()
    assert interval(line(BACK, None, Outcome.INVALID), wide) is None


def test_the_dot_plot_names_what_moved_and_why() -> None:
    lines = [*steady(20), slower(WIDE, 1.2, cause=SPILLS), slower(BACK, 1.25, cause=SPILLS)]
    plot = Drawn(dot_plot(lines, groups_of(lines, lines), 1216, 118, ["2 slower", "20 steady"]))
    assert [one.text for one in plot.texts() if one.y < 40] == [
        "20 steady",
        "geomean 1.003",
        "2 slower, one cause",
        "geomean 1.225, worst 1.250",
    ]
    found = {tone: plot.path(f"dot {tone}").count("h0") for tone in ("flat", "slow", "fast")}
    assert found == {"flat": 20, "slow": 2, "fast": 0}
    assert dot_plot(lines[:1], (), 1216, 118) is None


def test_each_dot_leads_to_its_case_by_name_and_is_one_stop_of_tab_together() -> None:
    lines = [*steady(20), slower(WIDE, 1.2), slower(BACK, 1.25)]
    plot = Drawn(dot_plot(lines, groups_of(lines, lines), 1216, 118, [], "/runs/7"))
    links = plot.root.findall(".//a")
    assert {link.get("href") for link in links} == {f"/runs/7/{one.path}" for one in lines}
    names = [title.text for link in links if (title := link.find("title")) is not None]
    assert f"{BACK} norms: 1.250, slower" in names
    [stop] = [link for link in links if link.get("tabindex") == "0"]
    assert stop.get("href") == f"/runs/7/{lines[-1].path}", "the slowest"
    ends = [float(link.find("path").get("d", "").split(" ")[0][1:]) for link in links]
    assert ends == sorted(ends), "arrow keys go from left to right"
    assert plot.root.find("svg").get("role") == "group", "an image would hide its links"


def test_of_very_many_cases_the_furthest_from_the_baseline_are_linked() -> None:
    lines = [*steady(400), slower(WIDE, 1.2)]
    plot = Drawn(dot_plot(lines, groups_of(lines, lines), 1216, 118, [], "/runs/7"))
    links = plot.root.findall(".//a")
    assert len(links) == MAX_LINKED
    assert f"/runs/7/{lines[-1].path}" in {link.get("href") for link in links}
    assert plot.paths("dot flat")[0].count("h0") == len(lines) - MAX_LINKED, "the others are drawn as well"


def rounds(role: Role, provider: str, median: float | None, *trials: list[float | None]) -> CaseSamples:
    return CaseSamples(f"{role}:{provider}", role, provider, median, list(trials), [], [])


def test_rounds_share_one_axis_except_those_far_off() -> None:
    contenders = [
        rounds(Role.SOTA, "quack", 70.1, [70.0, 70.5], [69.8, None]),
        rounds(Role.HEAD, "norms", 85.4, [85.0, 86.0], [85.5, 85.1]),
        rounds(Role.PARENT, "norms", 69.3, [69.0, 69.2], [69.1, 69.3]),
        rounds(Role.RIVAL, "eager", None, [300.0, 301.0]),
    ]
    figure = Drawn(rounds_figure(WIDE, contenders))
    assert [one.text for one in figure.texts("ink")] == ["baseline", "head", "eager", "quack"]
    assert [one.text for one in figure.texts("strong")] == ["69.3", "85.4", "→ 300.5", "70.1"], "the medians of the run"
    tones = ("base", "head", "copy", "sota")
    assert [figure.path(f"st {tone}").count("V") for tone in tones] == [4, 4, 0, 3]
    said = "baseline 69.3 µs, head 85.4 µs, eager 300.5 µs, quack 70.1 µs"
    assert figure.root.find(f".//svg[@aria-label='Rounds, with the medians of the run: {said}']") is not None
    assert rounds_figure(WIDE, [rounds(Role.HEAD, "norms", None, [])]) is None
