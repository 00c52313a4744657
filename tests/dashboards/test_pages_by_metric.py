"""The pages of runs in several metrics: units, ceilings, facts, telemetry, changes of stack, what is not supported."""

import re
from collections.abc import Iterator
from dataclasses import astuple, replace

import pytest

from dashboards.runs import facts
from dashboards.runs.facts import Line
from service.db.engine import reading as reading_only
from service.ledger.reading import queries
from tests.dashboards.asking import Get, asking, words
from tests.dashboards.seed import watched
from tests.dashboards.seed_metrics import BLOCK, SHAPE, SMALL, TELEMETRY, UNSUPPORTED, Metrics, seed


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metrics]:
    with watched(tmp_path_factory.mktemp("state"), seed) as found:
        yield found


@pytest.fixture(scope="module")
def get(metrics: Metrics) -> Get:
    return asking()


def test_a_run_shows_each_metric_in_its_unit(get: Get, metrics: Metrics) -> None:
    said = words(get(f"/runs/{metrics.second}"))
    limits = "1 % (2 % below 100 µs, call time 5 %, block time 2 %, compile time 20 %, peak memory 0.5 %)"
    assert limits in said
    assert re.search(r"metric all \d+ kernel time \d+ call time 1 block time 1 compile time 1 peak memory 1", said)
    assert "RMSNorm forward, peak memory 67.1 MB 75.5 MB 1.125" in said
    assert "1.79 s 1.80 s" in words(get(f"/runs/{metrics.second}"))
    assert "first rmsnorm.fwd.32768x1024.bf16-fp32.memory takes 12.5 % more memory" in said


def test_a_run_says_how_much_of_the_device_it_uses(get: Get, metrics: Metrics) -> None:
    address = f"/runs/{metrics.second}"
    assert "ceilings 4,258 GB/s for a copy, 790 TFLOP/s for a bf16 matrix product" in words(get(address))
    assert "3,835 GB/s, 90 % of a copy, 69,300 cycles of the SM clock." in words(get(f"{address}/cases/{SHAPE}"))
    assert "4,404,301 tokens/s, 50 % of a product." in words(get(f"{address}/cases/{BLOCK}"))
    small = words(get(f"{address}/cases/{SMALL}"))
    assert "1,000 GB/s, in L2" in small
    assert "Its inputs stay in L2, so its GB/s are not those of the memory." in small


def test_what_a_reader_must_know_stands_beside_the_verdict(get: Get, metrics: Metrics) -> None:
    address = f"/runs/{metrics.second}"
    assert "◆ RMSNorm forward: 1 not repeatable" in words(get(address))
    said = words(get(f"{address}/cases/{SHAPE}"))
    assert "Not bitwise repeatable (compared over 50 calls)." in said
    assert "no longer bitwise repeatable" in said
    every = [words(get(f"{address}/{path}")) for path in _paths(get(f"{address}?unfold=all").text)]
    assert any("1 graph, 0 graph breaks and 2 recompiles." in one for one in every)


def _paths(page: str) -> list[str]:
    return re.findall(r'href="/runs/\d+/(cases/[^"?]+)\?provider=norms"[^>]* data-row', page)


def test_what_is_not_supported_is_shown_with_its_reason_and_is_no_failure(get: Get, metrics: Metrics) -> None:
    said = words(get(f"/runs/{metrics.second}"))
    assert "Not supported 1 case that its provider does not have" in said
    assert "failed" not in said
    listed = words(get(f"/runs/{metrics.second}/unsupported"))
    assert f"Case Reason {UNSUPPORTED} norms norms has no layernorm" in listed
    told = get(f"/api/v1/runs/{metrics.second}").json()
    assert told["unsupported"] == [{"provider": "norms", "case": UNSUPPORTED, "reason": "norms has no layernorm"}]
    assert UNSUPPORTED not in {verdict["case"] for verdict in told["verdicts"]}
    comment = get(f"/api/v1/runs/{metrics.second}/comment").text
    assert "<summary>1 not supported by their provider</summary>" in comment


def test_the_comment_names_the_metric_where_it_is_not_the_kernels(get: Get, metrics: Metrics) -> None:
    comment = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", get(f"/api/v1/runs/{metrics.second}/comment").text)  # no links
    assert f"| `{SHAPE}.call` norms, call time | 18.2 → 21.4 µs |" in comment
    assert "| case | before → now | of ceiling | change | why |" in comment
    assert f"| `{SHAPE}.memory` norms, peak memory | 67.1 → 75.5 MB |" in comment
    assert f"| `{SHAPE}` norms | 35.1 → 35.0 µs | 90 % of a copy |" in comment
    assert "ceilings of this session 4,258 GB/s for a copy, 790 TFLOP/s for a bf16 matrix product" in comment
    assert (
        "smallest change 1 % (2 % below 100 µs, call time 5 %, block time 2 %, compile time 20 %, peak memory 0.5 %)"
        in comment
    )


def test_programs_get_values_with_their_unit(get: Get, metrics: Metrics) -> None:
    whole = get(f"/api/v1/runs/{metrics.second}").json()
    assert whole["ceilings"] == {"copy_gb_s": 4258.0, "matmul_tflop_s": 790.0}
    heads = {one["case"]: one for one in whole["measurements"] if one["role"] == "head"}
    assert (heads[SHAPE]["median"], heads[SHAPE]["unit"]) == (35.0, "us")
    assert heads[SHAPE]["speed"]["copy_share"] == pytest.approx(0.9007, abs=1e-3)
    assert heads[SHAPE]["speed"]["cycles"] == 69_300
    assert heads[SMALL]["speed"] | {"cycles": None} == {
        "copy_share": None, "l2_resident": True, "cycles": None, "tokens_s": None, "utilisation": None,
    }  # fmt: skip
    assert heads[BLOCK]["speed"]["utilisation"] == pytest.approx(0.5, abs=1e-3)
    memory = heads[f"{SHAPE}.memory"]
    assert (memory["median"], memory["unit"], memory["gb_s"]) == (75_497_472, "bytes", None)
    verdicts = {one["case"]: one for one in whole["verdicts"] if one["baseline_kind"] == "parent"}
    held = verdicts[f"{SHAPE}.memory"]
    assert (held["metric"], held["change"], held["smallest_change"]) == ("memory", "12.5 % more memory", 0.005)
    assert (verdicts[SHAPE]["repeatability"], whole["lost_repeatability"]) == ("lost", 1)


def test_the_tables_of_the_facts_are_there_when_asked_for(get: Get, metrics: Metrics) -> None:
    def facts_of(**asked: object) -> set[str]:
        whole = get(f"/api/v1/runs/{metrics.second}", params=asked).json()
        [head] = [one for one in whole["measurements"] if (one["role"], one["case"]) == ("head", SHAPE)]
        return set(head["facts"])

    assert facts_of(tables=True) - facts_of() == {"triton"}
    assert "repeatable" in facts_of()


def test_a_series_has_its_unit_and_its_changes_of_stack(get: Get, metrics: Metrics) -> None:
    asked = {"case": f"{SHAPE}.memory", "provider": "norms", "device": "h200"}
    series = get("/api/v1/targets/blocks/series", params=asked).json()
    assert (series["metric"], series["unit"]) == ("memory", "bytes")
    first, second = series["points"]
    assert (first["median"], second["median"]) == (67_108_864, 75_497_472)
    assert first["stack_changes"] == []
    assert second["stack_changes"] == [
        "torch 2.11.0+cu130 → 2.13.0+cu130",
        "triton 3.6.0 → 3.7.1",
        "liger 0.8.5 is new",
    ]


def test_a_change_of_stack_is_an_event_on_every_page(get: Get, metrics: Metrics) -> None:
    change = "torch 2.11.0+cu130 → 2.13.0+cu130; triton 3.6.0 → 3.7.1; liger 0.8.5 is new"
    asked = {"device": "h200", "provider": "norms", "case": f"{SHAPE}.memory"}
    trend = get("/targets/blocks/trend", params=asked)
    assert f"<title>{change}</title>" in trend.text
    assert "67.1 MB → 75.5 MB" in words(trend)
    assert f"stack: {change}" in words(get("/targets/blocks/trend/revisions", params=asked))
    assert f"changed since 0abc0abc0a : {change}" in words(get(f"/runs/{metrics.second}"))
    assert "changed since" not in words(get(f"/runs/{metrics.first}"))


def test_a_target_names_the_metric_of_its_regressions(get: Get, metrics: Metrics) -> None:
    assert "bf16-fp32.memory 12.5 % more memory" in words(get("/targets/blocks"))


def test_a_line_has_the_band_of_its_metric(get: Get, metrics: Metrics) -> None:
    page = get(f"/runs/{metrics.second}?unfold=all").text
    widths = {
        name: float(width) for name, width in re.findall(r'<g id="(band\d)"><rect x="[\d.]+" width="([\d.]+)"', page)
    }
    of_case = dict(re.findall(r'<tr id="([^"~]+)~norms".*?<use href="#(band\d)"/>', page))
    assert len(widths) == 5, "five smallest changes"
    assert widths[of_case[SHAPE]] > widths[of_case[f"{SHAPE}.memory"]], "1 % and 0.5 %"
    assert widths[of_case[f"{SHAPE}.compile"]] > widths[of_case[f"{SHAPE}.call"]], "20 % and 5 %"


def test_telemetry_is_a_line_for_each_launch(get: Get, metrics: Metrics) -> None:
    first, *_ = facts.trials(TELEMETRY)
    assert first.total_s == pytest.approx(25.15)
    assert (first.sm_mhz, first.memory_mhz, first.temperature_c) == ("1,400 to 1,980", "3,201", "41")
    assert (first.throttled, first.dropped) == ("sw_power_cap in 2 of 4 readings", "1 (hw_thermal)")
    assert first.load == "1.50 → 1.50"
    assert dict(facts.board(TELEMETRY)) == {
        "Name": "NVIDIA H200", "SMs": "132", "L2, bytes": "62,914,560", "Driver": "590.44",
        "UUID": "GPU-11111111-2222", "Performance state": "0", "ECC": "on", "MIG": "off",
    }  # fmt: skip
    said = words(get(f"/runs/{metrics.second}/telemetry"))
    assert "start 12.5 s, ceilings 0.4 s, prepare 8.2 s, rounds 3.5 s, of these timed 2.2 s, check 0.5 s" in said
    assert "python 3.12.3 torch 2.13.0+cu130 triton 3.7.1 driver 590.44 liger 0.8.5" in said


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"trials": None},
        {"trials": ["trial 1"]},
        {"trials": [{"seconds": 3, "telemetry": {"gpu": 1}}], "device": "cpu"},
        {"trials": [{"seconds": {"start": "long"}, "telemetry": [{"gpu": {"throttle": 3, "sm_mhz": "fast"}}, 7]}]},
    ],
)
def test_telemetry_of_another_version_breaks_nothing(strange: dict[str, object]) -> None:
    trials = facts.trials(strange)
    assert all((one.total_s, one.sm_mhz, one.dropped) == (0, "–", "0") for one in trials)
    assert facts.board(strange) == []


def test_facts_stand_side_by_side_and_tables_are_folded(metrics: Metrics) -> None:
    with reading_only() as session:
        found = queries.found_in(session, metrics.second)
    [row] = [row for row in found.rows if row.case == SHAPE]
    shown = facts.sides(row)
    assert [line for line in shown.lines if line.differs] == [
        Line("bitwise repeatable", "yes", "no", differs=True, key="repeatable")
    ]
    assert Line("kernels that ran", *["triton_red_fused_rms_norm_0"] * 2, key="ran") in shown.lines
    kernels, choices = shown.tables
    assert (kernels.columns, kernels.rows) == (
        ("name", "registers", "spills", "occupancy", "limited by", "settings"),
        (("_forward", "40", "0", "0.75", "registers", "BLOCK=1024"),),
    )  # fmt: skip
    assert (choices.title, len(choices.rows), choices.cut) == ("Timed choices of _forward", 24, 6)
    assert (choices.columns, choices.rows[0]) == (("ms", "warps", "settings"), ("0.01", "8", "XBLOCK=1"))
    assert shown.cut == 0


def test_what_strangers_say_is_shown_in_part(metrics: Metrics) -> None:
    with reading_only() as session:
        found = queries.found_in(session, metrics.second)
    [row] = [row for row in found.rows if row.case == SHAPE]
    assert row.head
    assert row.parent
    wide = {f"column {n} {'x' * 500}": n for n in range(300)}
    strange = {f"fact {n} {'x' * 500}": "y" * 5000 for n in range(300)} | {f"table {n}": [wide] * 50 for n in range(50)}
    config = "a long configuration " * 19
    head = replace(row.head, facts={"config": config + "BLOCK=8", **strange})
    shown = facts.sides(replace(row, head=head, parent=replace(row.parent, facts={"config": config + "BLOCK=4"})))
    assert shown.lines[0] == Line("configuration", "BLOCK=4", "BLOCK=8", differs=True, key="config"), (
        "the end is cut, not the change"
    )
    assert (len(shown.lines), len(shown.tables), shown.cut) == (60, 24, 241 + 26)
    assert all(len(line.name) <= 60 and len(line.now) <= 160 for line in shown.lines)
    [title, columns, rows, cut, cut_columns] = astuple(shown.tables[0])
    assert (title, len(columns), len(rows), cut, cut_columns) == ("Table 0", 20, 24, 26, 280)
    assert max(map(len, columns)) == 60
