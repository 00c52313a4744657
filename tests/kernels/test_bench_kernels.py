"""The kernels' study: numbers from literals, the table and pictures made of them, and the whole way on a CPU."""

import json
import math
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from kernels.arena import Pace
from kernels.studies import charts, compared, table
from kernels.studies import kernels as study
from kernels.words import Case, Direction

FORWARD = compared.Goal("forward", ("quack",), "rmsnorm", Direction.FWD, "fp32", geomean=1.10, ceiling=0.92)


def session(
    cases: dict[str, dict[str, list[Any]]], *, suites=("quack",), copy_gb_s=4000.0, **missing
) -> dict[str, Any]:
    """As the study keeps it.  `cases`: by case, of each contender the rounds of each launch."""
    return {
        "began": "2026-11-21T12:00+00:00",
        "stack": {"torch": "2.11.0", "quack": "0.6.5", "device": {"kind": "cuda", "name": "NVIDIA H200"}},
        "driver": "580.1",
        "ceilings": [{"copy_gb_s": copy_gb_s}] if copy_gb_s else [],
        "steps": [{"step": "quack", "launch": 0, "seconds": {}, "dropped_rounds": 0}],
        "left_out": [],
        "cases": {
            text: {
                "suites": list(suites),
                "least_bytes": Case.parse(text).least_bytes,
                "launches": [
                    {"step": "quack", "sm_mhz": 1980, "us": {name: rounds[number] for name, rounds in times.items()}}
                    for number in range(max(map(len, times.values()), default=0))
                ],
                "missing": missing.get("missing", {}).get(text, {}),
            }
            for text, times in cases.items()
        },
    }


def quack_row(cols: int, ours_us: float | None, quack_us: float | None) -> compared.Row:
    us = {"triton": ours_us, "quack": quack_us}
    launch = compared.Launch({name: [each] for name, each in us.items() if each}, 4000.0)
    return compared.Row(Case.parse(f"rmsnorm.fwd.32768x{cols}.bf16-fp32"), ("quack",), (launch,))


# -- ratios ----------------------------------------------------------------------------------------------------------


def test_a_ratio_is_of_rounds_of_the_same_launch():
    row = compared.Row(
        Case.parse("rmsnorm.fwd.8x8.bf16"),
        ("quack",),
        (
            compared.Launch({"triton": [10.0, None, 10.0, 10.0], "quack": [12.0, 99.0, 12.0, 50.0]}),
            compared.Launch({"triton": [20.0], "quack": [30.0], "liger": [60.0]}),
            compared.Launch({"quack": [1.0], "liger": [2.0]}),
        ),
    )

    assert row.ratio("triton") == pytest.approx(math.sqrt(1.2 * 1.5))
    assert row.ratio("liger") == pytest.approx(0.5)
    assert row.ratio("triton", than="liger") == pytest.approx(3.0)
    assert row.ratio("inductor") is None
    assert row.us("triton") == 15.0


def test_bandwidth_is_a_share_of_the_copy_of_its_own_session():
    text = "rmsnorm.fwd.32768x1024.bf16"  # 134.2 MB
    least = Case.parse(text).least_bytes
    fast, slow = (
        session({text: {"triton": [[us]], "quack": [[us]]}}, copy_gb_s=copy) for us, copy in ((40, 4000), (50, 3200))
    )

    [row] = compared.rows([fast, slow])

    assert row.of_ceiling("triton") == pytest.approx(least / 40 / 1e3 / 4000)
    assert row.gb_s("triton") == pytest.approx(least / 45 / 1e3)
    assert len(row.launches) == 2


def test_what_was_wrong_once_has_no_time_in_its_session():
    text = "rmsnorm.fwd.8x8.bf16"
    times = {text: {"triton": [[1.0], [1.0]], "quack": [[2.0], [2.0]]}}

    [row] = compared.rows([session(times, missing={text: {"triton": ["invalid", "y is wrong"]}})])

    assert row.us("triton") is None
    assert row.lacks("triton", "invalid")
    assert row.us("quack") == 2.0


@pytest.mark.parametrize(("ratios", "expected"), [([2.0, 0.5], 1.0), ([1.1], 1.1), ([1.0, 1.0, 8.0], 2.0), ([], None)])
def test_geomean(ratios, expected):
    assert compared.geomean(ratios) == (expected and pytest.approx(expected))


# -- goals -----------------------------------------------------------------------------------------------------------

MET = [(1024, 34.0, 40.0), (256, 10.0, 10.5)]  # the first moves 134 MB: 3,948 GB/s; the second is short


@pytest.mark.parametrize(
    ("rows", "met"),
    [
        (MET, True),
        ([*MET, (512, 20.0, 19.9)], False),  # one below 1.00
        ([(1024, 34.0, 36.0), (256, 10.0, 10.5)], False),  # too small a mean
        ([(1024, 38.0, 50.0), (256, 10.0, 10.5)], False),  # 3,533 GB/s of 4,000
        ([*MET, (512, None, 19.9)], False),  # ours has no time
        ([*MET, (512, None, None)], None),  # not measured yet
        ([(256, 10.0, 12.0)], None),  # nothing large was measured
        ([], None),
    ],
)
def test_a_goal_is_met(rows, met):
    assert compared.outcome(FORWARD, [quack_row(*row) for row in rows]).met is met


def test_what_quack_does_not_do_is_left_out_and_counted():
    alone = compared.Row(
        Case.parse("rmsnorm.fwd.16384x131072.bf16-fp32"),
        ("quack",),
        (compared.Launch({"triton": [2400.0]}, 4000.0),),
        {"quack": "unsupported: too wide"},
    )

    found = compared.outcome(FORWARD, [*(quack_row(*row) for row in MET), alone])

    assert (len(found.ratios), found.unsupported, found.failed, found.missing) == (2, 1, 0, 0)
    assert found.geomean == pytest.approx(math.sqrt(40 / 34 * 1.05))
    assert found.ratios[0] == (pytest.approx(1.05), Case.parse("rmsnorm.fwd.32768x256.bf16-fp32"))
    assert found.lowest[1].cols == 131072  # its bandwidth counts all the same
    assert found.met is False


def test_a_goal_covers_its_own_cases():
    others = ["rmsnorm.bwd.8x8.bf16-fp32", "layernorm.fwd.8x8.bf16-fp32", "rmsnorm.fwd.8x8.bf16"]
    for text in others:
        assert not FORWARD.covers(compared.Row(Case.parse(text), ("quack",)))
    assert not FORWARD.covers(compared.Row(Case.parse("rmsnorm.fwd.8x8.bf16-fp32"), ("small",)))


def test_every_case_that_is_measured_has_a_goal():
    wanted = compared.goals()
    for suite in study.ASKED:
        for case in study.cases_of(suite):
            row = compared.Row(case, (suite,))
            assert any(goal.geomean and goal.covers(row) for goal in wanted), case


# -- the plan --------------------------------------------------------------------------------------------------------


def test_the_plan_takes_everything_once_before_anything_twice():
    steps = study.planned(("quack", "pr101"), study.AGAINST, launches=2, other_launches=1)

    names = [(step.name, step.number) for step in steps]
    assert names[:4] == [("quack", 0), ("pr101", 0), ("quack", 1), ("pr101", 1)]
    assert names[4:6] == [("quack with inductor, liger", 0), ("pr101 with inductor, liger", 0)]
    assert [name for name, _ in names[6:]] == [
        f"{key} with {tuner}"
        for tuner in ("inductor-max-autotune", "quack-tuned")
        for key in ("layernorm.fwd", "rmsnorm.fwd", "layernorm.bwd", "rmsnorm.bwd")
    ]
    assert steps[0].providers == {"triton": "triton", "quack": "quack", "control": "quack"}
    assert len(steps[6].cases) == 11
    assert {case.weight_dtype for case in steps[6].cases} == {"fp32"}


def test_a_case_of_two_suites_is_measured_with_the_first():
    quack, pr101 = study.planned(("quack", "pr101"), ("quack",), launches=1, other_launches=1)
    shared = {*study.cases_of("quack")} & {*study.cases_of("pr101")}
    assert len(shared) == 5
    assert shared <= {*quack.cases}
    assert shared.isdisjoint(pr101.cases)


def test_the_plan_may_be_of_some_cases_only():
    [step] = study.planned(
        ("quack",), ("quack", "inductor"), launches=0, other_launches=1, only=r"rmsnorm.*x65536\.bf16$"
    )
    assert [str(case) for case in step.cases] == ["rmsnorm.fwd.32768x65536.bf16", "rmsnorm.bwd.32768x65536.bf16"]
    assert [*step.providers] == ["triton", "quack", "inductor"]


def test_what_is_asked_beside_the_suites():
    assert Case.parse("rmsnorm.bwd.8192x262144.bf16") in study.cases_of("quack")
    assert Case.parse("rmsnorm.bwd.1x4096.bf16") in study.cases_of("small")
    assert len({*study.cases_of("quack")}) == len(study.cases_of("quack")) == 66


# -- the table -------------------------------------------------------------------------------------------------------

WHOLE = {
    "rmsnorm.fwd.32768x1024.bf16-fp32": {
        "triton": [[34.0], [34.0]],
        "quack": [[40.0], [40.0]],
        "control": [[40.2], [40.2]],
        "inductor": [[38.0], [38.0]],
    },
    "rmsnorm.fwd.32768x256.bf16-fp32": {"triton": [[9.5]], "quack": [[10.0]], "control": [[9.99]]},
    "rmsnorm.bwd.32768x1024.bf16-fp32": {"triton": [[50.0]], "quack": [[60.0]]},
    "rmsnorm.fwd.32768x1024.bf16": {"triton": [[33.0]], "quack": [[39.0]]},
}


def test_the_table():
    kept = session(
        WHOLE, missing={"rmsnorm.fwd.32768x256.bf16-fp32": {"liger": ["unsupported", "Liger | is not there"]}}
    )
    kept["left_out"] = [{"step": "small", "launch": 1, "cases": ["rmsnorm.fwd.1x4096.bf16"], "why": "no time"}]

    text = table.document([kept])

    assert "| RMSNorm forward, fp32 weight | 2 | 1.113 | 1.10, none below 1.00, 92% of ceiling | 1.053 |" in text
    assert "| 0 of 2 | 98.7% | rmsnorm.fwd 32768x1024 | **yes** |" in text
    assert "| 32768x1024 | 34.0 | 3,948 | 98.7% | 1.176 | 40.0 | 3,356 | 38.0 | 1.053 |" in text
    assert "| 32768x256 | 9.50 | 3,532 | 88.3% | 1.053 | 10.0 | 3,356 | – | – |" in text
    assert "Quack against a second copy of itself, 2 cases: mean -0.199%" in text
    assert "| RMSNorm forward, bf16, fp32 weight | Inductor | 1 | 1.053 | 1.053 | 1.118 | 1.118 |" in text
    assert "| Liger | unsupported: Liger \\| is not there | 1 |" in text
    assert "| 1 | small | 2 | 1 | no time |" in text
    assert "repeated" not in text


def test_ratios_of_three_sessions_stand_beside_each_other():
    case = "rmsnorm.fwd.32768x1024.bf16-fp32"
    three = [session({case: {"triton": [[us]], "quack": [[40.0]]}}) for us in (32.0, 33.0, 34.0)]

    text = table.document([*three, session({"rmsnorm.fwd.32768x256.bf16-fp32": {}})])

    assert "## Ratios repeated over 4 sessions" in text
    assert f"| `{case}` | 1.250 | 1.212 | 1.176 | – | 6.06% |" in text
    assert "| RMSNorm forward, fp32 weight | 1.250 | 1.212 | 1.176 | – | 6.06% |" in text
    assert "| `rmsnorm.fwd.32768x256.bf16-fp32` | – | – | – | – | – |" in text


# -- pictures --------------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def test_sessions_are_shown_again_without_a_gpu(tmp_path, monkeypatch, capsys):
    (tmp_path / "kernels.json").write_text(json.dumps(session(WHOLE)))
    monkeypatch.setattr(sys, "argv", ["kernels", "--render", str(tmp_path / "kernels.json"), "--out", str(tmp_path)])

    study.main()

    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out
    root = ElementTree.parse(tmp_path / "fp32-weight.svg").getroot()
    assert root.find(f"{SVG}title").text == "Norms in bf16 with an fp32 weight, NVIDIA H200"
    said = root.find(f"{SVG}desc").text
    assert "RMSNorm forward, GB/s against columns: ours 3,532 at 256 to 3,948 at 1,024;" in said
    assert "copy ceiling 4,000" in said
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"RMSNorm forward", "RMSNorm backward", "256", "1K", "ours", "Quack", "Inductor"} <= {*texts}
    assert (tmp_path / "bf16-weight.svg").exists()


def test_a_line_is_broken_where_nothing_was_measured():
    text = charts.drawn("t", [charts.Panel("", [1, 2, 4, 8], {"a<b": [1.0, None, 2.0, 3.0]}, "µs")])
    [line] = [each for each in ElementTree.fromstring(text).iter(f"{SVG}path") if each.get("class") == "line c0"]
    assert line.get("d").count("M") == 2
    assert line.get("d").count("L") == 1


@pytest.mark.parametrize("series", [{"a": [1.0]}, {"a": [None, None]}, {}])
def test_what_can_not_be_drawn_is_refused(series):
    with pytest.raises(ValueError, match=r"points|nothing"):
        charts.drawn("t", [charts.Panel("", [1, 2], series, "µs")])


@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (4258, [0, 1000, 2000, 3000, 4000, 5000]),
        (1.3, [0, 0.5, 1, 1.5]),
        (4, [0, 1, 2, 3, 4]),
        (0.02, [0, 0.005, 0.01, 0.015, 0.02]),
    ],
)
def test_steps_are_round(highest, expected):
    assert charts.steps(highest) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([10, 50], [10, 50]),
        ([50, 50, 10], [50, 60, 10]),
        ([95, 99, 98], [80, 100, 90]),
        ([-5], [0]),
    ],
)
def test_names_stand_apart(wanted, expected):
    assert charts.spread_out(wanted, 10, 0, 100) == expected


# -- the whole way ---------------------------------------------------------------------------------------------------

TINY = tuple(map(Case.parse, ("rmsnorm.fwd.1x4096.bf16", "rmsnorm.bwd.1x4096.bf16")))
EAGER = {"triton": "eager", "quack": "eager"}  # under the names of ours and the baseline


def test_the_whole_way_on_a_cpu(tmp_path):
    steps = [
        study.Step("small", {**EAGER, "control": "eager"}, TINY, 0),
        study.Step("small", {**EAGER, "control": "eager"}, TINY, 1),
        study.Step("small with liger", {**EAGER, "liger": "liger"}, TINY[:1]),
    ]

    study.measure(steps, ("small",), tmp_path, pace=Pace(rounds=2, timed=1), device="cpu")

    kept = json.loads((tmp_path / "kernels.json").read_text())
    forward, backward = (kept["cases"][str(case)] for case in TINY)
    assert forward["missing"].pop("liger") == ["unsupported", "Liger needs a GPU"]
    asked = [{"triton", "quack", "control"}, {"triton", "quack", "control"}, {"triton", "quack"}]
    for case, launches in ((forward, asked), (backward, asked[:2])):
        # on a busy machine the arena may find that a turn took longer than its clock says
        assert {state for state, _ in case["missing"].values()} <= {"invalid"}
        assert [
            {*launch["us"]} | ({*case["missing"]} & names)
            for launch, names in zip(case["launches"], launches, strict=True)
        ] == launches
    assert forward["suites"] == ["small"]
    assert kept["left_out"] == []
    assert kept["stack"]["torch"]
    text = (tmp_path / "table.md").read_text()
    assert "| of these: small, fwd |" in text
    assert "### small" in text


def test_what_there_is_no_time_for_is_said(tmp_path, capsys):
    study.measure([study.Step("small", EAGER, TINY)], ("small",), tmp_path, limit_s=-1, device="cpu")

    [left] = json.loads((tmp_path / "kernels.json").read_text())["left_out"]
    assert left["cases"] == [str(case) for case in TINY]
    assert "small: 2 of 2 cases left out" in capsys.readouterr().out
    assert "| 1 | small | 1 | 2 |" in (tmp_path / "table.md").read_text()


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["kernels", "--out", str(tmp_path / "none")])
    study.main()
    assert "needs a GPU" in capsys.readouterr().out
    assert not Path(tmp_path / "none").exists()
