"""The study of our kernels: evaluation of literal times, tables and pictures, and a complete run on a CPU."""

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernels import charts, compared, drawing, table
from benchmarks.kernels import kernels as study
from kernels.arena.session import Pace
from kernels.cases import DTYPE_BYTES, OPS, Case, Direction
from kernels.providers.quack import unsupported

ROOT = Path(__file__).resolve().parents[3]
FORWARD = compared.Goal("forward", ("quack",), "rmsnorm", Direction.FWD, "fp32", geomean=1.10, ceiling=0.92)


def session(
    cases: dict[str, dict[str, list[Any]]], *, suites=("quack",), copy_gb_s=4000.0, **missing
) -> dict[str, Any]:
    """As the study keeps it.  `cases`: by case, of each contender the rounds of each trial."""
    return {
        "began": "2026-11-21T12:00+00:00",
        "stack": {"torch": "2.11.0", "quack": "0.6.5", "device": {"kind": "cuda", "name": "NVIDIA H200"}},
        "driver": "580.1",
        "code": {"revision": "abc1234", "kernels": "0123456789ab"},
        "ceilings": [{"copy_gb_s": copy_gb_s}] if copy_gb_s else [],
        "steps": [{"step": "quack", "trial": 0, "seconds": {}, "dropped_rounds": 0}],
        "left_out": [],
        "cases": {
            text: {
                "suites": list(suites),
                "least_bytes": Case.parse(text).least_bytes,
                "trials": [
                    {"step": "quack", "sm_mhz": 1980, "us": {name: rounds[number] for name, rounds in times.items()}}
                    for number in range(max(map(len, times.values()), default=0))
                ],
                "missing": missing.get("missing", {}).get(text, {}),
            }
            for text, times in cases.items()
        },
    }


def quack_row(cols: int, ours_us: float | None, quack_us: float | None) -> compared.CaseTimes:
    us = {"triton": ours_us, "quack": quack_us}
    trial = compared.TrialTimes({name: [each] for name, each in us.items() if each}, 4000.0)
    return compared.CaseTimes(Case.parse(f"rmsnorm.fwd.32768x{cols}.bf16-fp32"), ("quack",), (trial,))


TINY = tuple(map(Case.parse, ("rmsnorm.fwd.1x4096.bf16", "rmsnorm.bwd.1x4096.bf16")))
EAGER = {"triton": "eager", "quack": "eager"}  # under the names of ours and the baseline


# -- ratios ----------------------------------------------------------------------------------------------------------


def test_a_ratio_uses_rounds_of_the_same_trial():
    row = compared.CaseTimes(
        Case.parse("rmsnorm.fwd.8x8.bf16"),
        ("quack",),
        (
            compared.TrialTimes({"triton": [10.0, None, 10.0, 10.0], "quack": [12.0, 99.0, 12.0, 50.0]}),
            compared.TrialTimes({"triton": [20.0], "quack": [30.0], "liger": [60.0]}),
            compared.TrialTimes({"quack": [1.0], "liger": [2.0]}),
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
    assert len(row.trials) == 2


def test_what_was_wrong_once_has_no_time_in_its_session():
    text = "rmsnorm.fwd.8x8.bf16"
    times = {text: {"triton": [[1.0], [1.0]], "quack": [[2.0], [2.0]]}}

    [row] = compared.rows([session(times, missing={text: {"triton": ["invalid", "y is wrong"]}})])

    assert row.us("triton") is None
    assert row.missing["triton"] == ["invalid", "y is wrong"]
    assert row.failed
    assert row.us("quack") == 2.0


@pytest.mark.parametrize(("ratios", "expected"), [([2.0, 0.5], 1.0), ([1.1], 1.1), ([1.0, 1.0, 8.0], 2.0), ([], None)])
def test_geomean(ratios, expected):
    assert compared.geomean(ratios) == (expected and pytest.approx(expected))


# -- goals -----------------------------------------------------------------------------------------------------------

# The first is short, the others move more than 64 MB, those of ours at 3,950 of 4,000 GB/s.
MET = [(256, 10.0, 10.5), *((cols, cols * 0.0340, cols * 0.0400) for cols in (512 << n for n in range(8)))]
WIDE = [("16384x131072", 2175.0, 2600.0), ("8192x262144", 2175.0, 2600.0)]


def forward_rows(*changed: tuple[int, float | None, float | None]) -> list[compared.CaseTimes]:
    """All eleven, with other times at some numbers of columns."""
    times = {cols: us for cols, *us in (*MET, *changed)}
    return [quack_row(cols, *us) for cols, us in times.items()] + [
        compared.CaseTimes(
            Case.parse(f"rmsnorm.fwd.{shape}.bf16-fp32"),
            ("quack",),
            (compared.TrialTimes({"triton": [ours], "quack": [quack]}, 4000.0),),
        )
        for shape, ours, quack in WIDE
    ]


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ([], True),
        ([(512, 19.9, 19.8)], False),  # one below 1.00
        ([(cols, us, us * 1.05) for cols, us, _ in MET], False),  # too small a mean
        ([(1024, 38.0, 50.0)], False),  # 3,533 GB/s of 4,000
        ([(512, None, 19.9)], False),  # ours has no time
        ([(512, None, None)], None),  # no time of either
        ([(512, 17.4, None)], None),  # none of Quack's
    ],
)
def test_a_goal_is_met(changed, met):
    assert compared.outcome(FORWARD, forward_rows(*changed)).met is met


def test_a_part_of_a_goal_leaves_it_open():
    found = compared.outcome(FORWARD, forward_rows()[:2])

    assert (len(found.ratios), found.wanted, found.missing) == (2, 11, 9)
    assert found.met is None
    assert compared.outcome(FORWARD, []).met is None
    assert compared.outcome(FORWARD, []).missing == 11


def test_large_cases_without_a_ceiling_leave_a_goal_open():
    whole = forward_rows()
    [trial] = whole[3].trials
    whole[3] = compared.CaseTimes(
        whole[3].case, ("quack",), (compared.TrialTimes(trial.us),)
    )  # its session has no ceiling

    found = compared.outcome(FORWARD, whole)

    assert (found.missing, found.shareless, found.met) == (0, 1, None)


@pytest.mark.parametrize("state", ["invalid", "failed"])
@pytest.mark.parametrize("first", [True, False])
def test_what_was_wrong_in_one_session_has_failed_even_where_another_measured_it(state, first):
    text = "rmsnorm.fwd.32768x1024.bf16-fp32"
    times = {text: {"triton": [[34.0]], "quack": [[40.0]]}}
    both = [session(times, missing={text: {"triton": [state, "y is wrong"]}}), session(times)]

    sessions = both if first else both[::-1]
    found = compared.outcome(FORWARD, compared.rows(sessions))
    text = table.document(sessions)

    assert (len(found.ratios), found.failed, found.missing, found.met) == (1, 1, 10, False)
    assert f"| ours | {state}: y is wrong | 1 | 1 | `rmsnorm.fwd.32768x1024.bf16-fp32` |" in text
    assert "| 1 of 11, 1 ours failed, 10 not measured |" in text


def test_the_gravest_reason_is_kept():
    known = {"triton": ["failed", "stopped"], "liger": ["unsupported", "too wide"], "quack": ["invalid", "dx"]}
    more = {"triton": ["invalid", "y is wrong"], "quack": ["unsupported", "no"], "inductor": ["failed", "ended"]}

    assert compared.most_severe(known, more) == {
        "triton": ["invalid", "y is wrong"],
        "liger": ["unsupported", "too wide"],
        "quack": ["invalid", "dx"],
        "inductor": ["failed", "ended"],
    }


@pytest.mark.parametrize(
    ("ours", "missing", "expected"),
    [
        (2175.0, {}, (10, 1, 0, 0, True)),
        (None, {"triton": ("invalid", "y is wrong")}, (10, 0, 1, 0, False)),
        (None, {"triton": ("failed", "its process ended")}, (10, 0, 1, 0, False)),
        (None, {}, (10, 0, 0, 1, None)),
    ],
)
def test_what_quack_does_not_do_is_left_out_and_counted(ours, missing, expected):
    *others, last = forward_rows()
    trial = compared.TrialTimes({"triton": [ours]} if ours else {}, 4000.0)
    alone = compared.CaseTimes(last.case, ("quack",), (trial,), {"quack": ("unsupported", "too wide"), **missing})

    found = compared.outcome(FORWARD, [*others, alone])

    assert (len(found.ratios), found.unsupported, found.failed, found.missing, found.met) == expected
    assert found.ratios[0] == (pytest.approx(1.05), Case.parse("rmsnorm.fwd.32768x256.bf16-fp32"))


def test_the_bandwidth_of_what_quack_does_not_do_counts():
    *others, last = forward_rows()
    trial = compared.TrialTimes({"triton": [3000.0]}, 4000.0)
    alone = compared.CaseTimes(last.case, ("quack",), (trial,), {"quack": ("unsupported", "too wide")})

    found = compared.outcome(FORWARD, [*others, alone])

    assert found.lowest[1].cols == 262144
    assert found.met is False


@pytest.mark.parametrize(("more", "below"), [(0.0, 2), (0.005, 1), (0.02, 0)])
def test_how_many_are_below_by_more_than_the_noise(more, below):
    found = compared.outcome(FORWARD, forward_rows((512, 1000.0, 999.0), (1024, 1000.0, 990.0)))
    assert found.below_by(more) == below


def test_what_quantile_the_control_is_within():
    distances = [0.001 * number for number in range(1, 101)]
    assert compared.quantile(distances) == pytest.approx(0.095)
    assert compared.quantile([0.01]) == 0.01
    assert compared.quantile([]) == 0.0


def test_a_goal_is_of_its_own_cases():
    assert {str(case) for case in FORWARD.cases} == {
        *(f"rmsnorm.fwd.32768x{256 << n}.bf16-fp32" for n in range(9)),
        "rmsnorm.fwd.16384x131072.bf16-fp32",
        "rmsnorm.fwd.8192x262144.bf16-fp32",
    }


def test_the_number_of_cases_of_each_goal():
    counts = [len(goal.cases) for goal in compared.goals() if goal.geomean]
    assert counts == [11, 11, 11, 11, 11, 11, 25, 134]


def test_every_case_that_is_measured_has_a_goal():
    wanted = {case for goal in compared.goals() if goal.geomean for case in goal.cases}
    assert {case for suite in study.ASKED for case in study.cases_of(suite)} == wanted


# -- the plan --------------------------------------------------------------------------------------------------------


def test_the_plan_takes_everything_once_before_anything_twice():
    steps = study.planned(("quack", "pr101"), study.AGAINST, trials=2, other_trials=1)

    names = [(step.name, step.number) for step in steps]
    assert names[:4] == [("quack", 0), ("pr101", 0), ("quack", 1), ("pr101", 1)]
    others = "inductor, liger, flashinfer, vllm"
    assert names[4:6] == [(f"quack with {others}", 0), (f"pr101 with {others}", 0)]
    assert [name for name, _ in names[6:]] == [
        f"{key} with {tuner}"
        for tuner in ("inductor-max-autotune", "quack-tuned")
        for key in ("layernorm.fwd", "rmsnorm.fwd", "layernorm.bwd", "rmsnorm.bwd")
    ]
    assert steps[0].providers == {"triton": "triton", "quack": "quack", "control": "quack"}
    assert len(steps[6].cases) == 11
    assert {case.weight_dtype for case in steps[6].cases} == {"fp32"}


def test_a_case_of_two_suites_is_measured_with_the_first():
    quack, pr101 = study.planned(("quack", "pr101"), ("quack",), trials=1, other_trials=1)
    shared = {*study.cases_of("quack")} & {*study.cases_of("pr101")}
    assert len(shared) == 5
    assert shared <= {*quack.cases}
    assert shared.isdisjoint(pr101.cases)


def test_the_plan_may_be_of_some_cases_only():
    [step] = study.planned(("quack",), ("quack", "inductor"), trials=0, other_trials=1, only=r"rmsnorm.*x65536\.bf16$")
    assert [str(case) for case in step.cases] == ["rmsnorm.fwd.32768x65536.bf16", "rmsnorm.bwd.32768x65536.bf16"]
    assert [*step.providers] == ["triton", "quack", "inductor"]


def test_additional_cases_of_the_suites():
    assert Case.parse("rmsnorm.bwd.8192x262144.bf16") in study.cases_of("quack")
    assert Case.parse("rmsnorm.bwd.1x4096.bf16") in study.cases_of("small")
    assert len({*study.cases_of("quack")}) == len(study.cases_of("quack")) == 66


def test_a_launch_has_a_seed_of_its_own_in_each_session():
    steps = [study.Step(name, EAGER, TINY, number) for name in ("quack", "small") for number in (0, 1)]
    seeds = {step.seed(began) for step in steps for began in ("2026-11-21T12:00:00", "2026-11-21T12:00:01")}
    assert len(seeds) == 8
    assert steps[0].seed("2026-11-21T12:00:00") == steps[0].seed("2026-11-21T12:00:00")


@pytest.mark.parametrize(
    ("rounds", "names", "expected"), [(6, "abc", 6), (6, "abcd", 8), (6, "ab", 8), (7, "abc", 12), (1, "a", 2)]
)
def test_contenders_stand_equally_often_in_each_place(rounds, names, expected):
    paced = study.Step("quack", dict.fromkeys(names, "eager"), TINY).paced(Pace(rounds=rounds, timed=2))
    assert (paced.rounds, paced.timed) == (expected, 2)


# -- random cases ----------------------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_cases_and_another_seed_others():
    first, again, other = (drawing.cases_drawn(drawing.suite_of(100, seed)) for seed in (7, 7, 8))
    assert first == again
    assert len({*first}) == 100
    assert len({*first} & {*other}) < 5
    assert drawing.cases_drawn("random-40-7") == first[:40]


def test_random_cases_cover_what_there_is_and_fit():
    drawn = drawing.cases_drawn("random-300-1")
    assert {case.key for case in drawn} == {f"{op}.{way}" for op in drawing.OPERATORS for way in ("fwd", "bwd")}
    assert {(case.dtype, case.weight_dtype) for case in drawn} == {
        ("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "fp16"), ("fp16", "fp32"), ("fp32", "fp32"),
    }  # fmt: skip
    assert [case for case in drawn if unsupported(case, OPS[case.op])] == []
    assert max(case.rows * case.cols * DTYPE_BYTES[case.dtype] for case in drawn) <= drawing.MAX_BYTES
    for size, most in (("rows", drawing.MAX_ROWS), ("cols", drawing.MAX_COLS)):
        values = [getattr(case, size) for case in drawn]
        assert all(sum(low <= value < 8 * low for value in values) > 30 for low in (64, 512, 4096))
        assert max(values) <= most
    assert {case.cols % drawing.COLS_STEP for case in drawn} == {0}
    assert [Case.parse(str(case)) for case in drawn] == [*drawn]


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--random", "0"], "at least one case"), (["--random", "5", "--seed", "-1"], "a seed of 0 or more")],
)
def test_numbers_that_draw_nothing_are_refused(options, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kernels", *options])
    with pytest.raises(SystemExit):
        study.main()
    assert said in capsys.readouterr().err


def test_random_cases_are_planned_with_quack_alone(tmp_path, monkeypatch):
    planned = []
    monkeypatch.setattr(
        sys, "argv", ["kernels", "--random", "5", "--seed", "3", "--trials", "2", "--out", str(tmp_path)]
    )
    monkeypatch.setattr(study.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(study, "measure", lambda steps, suites, out, limit_s: planned.append((steps, suites)))

    study.main()

    [(steps, suites)] = planned
    assert suites == ("random-5-3",)
    assert [(step.name, step.number, {*step.providers.values()}) for step in steps] == [
        ("random-5-3", number, {"triton", "quack"}) for number in (0, 1)
    ]
    assert {step.cases for step in steps} == {drawing.cases_drawn("random-5-3")}


def test_the_table_of_random_cases_begins_with_the_worst():
    fast, slow, wide = (str(case) for case in drawing.cases_drawn("random-3-1"))
    times = {fast: {"triton": [[10.0]], "quack": [[12.0]]}, slow: {"triton": [[10.0]], "quack": [[9.0]]}, wide: {}}

    text = table.document([session(times, suites=("random-3-1",))])

    assert "2 of 3 cases drawn at random: geomean 1.039, worst 0.900, 1 below 0.98." in text
    assert text.index(f"`{slow}`") < text.index(f"`{fast}`") < text.index(f"`{wide}`")
    assert "### random" not in text


def test_random_cases_on_a_cpu(tmp_path, monkeypatch):
    suite = "random-2-4"
    tiny = drawing.cases_drawn(suite, max_bytes=1 << 12)
    monkeypatch.setattr(compared, "cases_drawn", lambda name: tiny)
    compared.cases_of.cache_clear()

    kept = study.measure(
        [study.Step(suite, EAGER, tiny)], (suite,), tmp_path, pace=Pace(rounds=2, timed=1), device="cpu"
    )
    compared.cases_of.cache_clear()

    assert [*kept["cases"]] == [str(case) for case in tiny]
    assert all(each["suites"] == [suite] for each in kept["cases"].values())
    assert f"## {suite}" in (tmp_path / "table.md").read_text()


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
    kept["left_out"] = [{"step": "small", "trial": 1, "cases": ["rmsnorm.fwd.1x4096.bf16"], "why": "no time"}]

    text = table.document([kept])

    assert (
        "| RMSNorm forward, fp32 weight | 2 of 11, 9 not measured | 1.113"
        " | 1.10, none below 1.00, 92% of ceiling | 1.0526 | `rmsnorm.fwd.32768x256.bf16-fp32`"
        " | 0 of 2, 0 by more than the A/A's 0.50% | 98.7% | `rmsnorm.fwd.32768x1024.bf16-fp32` | open |"
    ) in text
    assert "| pr101 sweep, backward | 1 of 25, 24 not measured | 1.200 |" in text
    assert "| LayerNorm backward, fp32 weight | 0 of 11, 11 not measured | – |" in text
    assert "| 1, 2026-11-21T12:00 UTC | abc1234 | 0123456789ab | NVIDIA H200 | 580.1 | 2.11.0 |" in text
    assert "are not comparable" not in text
    assert "| 32768x1024 | 34.0 | 3,948 | 98.7% | 1.176 | 40.0 | 3,356 | 38.0 | 1.053 |" in text
    assert "| 32768x256 | 9.50 | 3,532 | 88.3% | 1.053 | 10.0 | 3,356 | – | – |" in text
    assert "Quack against a second copy of itself, 2 cases: mean -0.199%" in text
    assert "| RMSNorm forward, bf16, fp32 weight | Inductor | 1 | 1.053 | 1.053 | 1.118 | 1.118 |" in text
    assert "| Liger | unsupported: Liger \\| is not there | 1 | – |" in text
    assert "| 1 | small | 2 | 1 | no time |" in text
    assert "repeated" not in text


def test_a_goal_that_is_met_says_so_and_what_may_stay_in_the_l2_is_counted():
    kept = session({str(row.case): {n: [us] for n, us in row.trials[0].us.items()} for row in forward_rows()})
    kept["cases"]["rmsnorm.fwd.32768x256.bf16-fp32"]["l2_resident"] = True

    text = table.document([kept])

    assert "| RMSNorm forward, fp32 weight | 11 of 11, 1 small enough to stay in the L2 | 1.168 |" in text
    assert "| **yes** |" in text


def test_sessions_of_different_things_are_not_passed_off_as_one():
    one, two, three = (session(WHOLE) for _ in range(3))
    two["stack"] |= {"triton": "3.7.1", "device": {"kind": "cuda", "name": "NVIDIA H100"}}
    three["code"] = {"revision": "def5678", "kernels": "ba9876543210"}

    text = table.document([one, two, three])

    assert text.index("> **These sessions are not comparable") < text.index("| session |")
    assert "> - GPU: NVIDIA H200 (session 1, 3); NVIDIA H100 (session 2)\n" in text
    assert "> - triton: not kept (session 1, 3); 3.7.1 (session 2)\n" in text
    assert "> - our kernels: 0123456789ab (session 1, 2); ba9876543210 (session 3)\n" in text
    assert "- torch" not in text
    assert compared.differences([one, one]) == {}


def test_the_hash_of_the_kernels_depends_on_their_contents(tmp_path, monkeypatch):
    monkeypatch.delenv(study.VARIABLE, raising=False)
    kernel, tuned = tmp_path / "kernel.py", tmp_path / "tuned.json"
    kernel.write_text("a = 1")
    first = study.code_of([kernel])["kernels"]
    assert study.code_of([kernel])["kernels"] == first

    kernel.write_text("a = 2")
    second = study.code_of([kernel])["kernels"]
    tuned.write_text("{}")
    monkeypatch.setenv(study.VARIABLE, str(tuned))
    assert len({first, second, study.code_of([kernel])["kernels"]}) == 3


def test_ratios_of_three_sessions_are_in_one_table():
    case = "rmsnorm.fwd.32768x1024.bf16-fp32"
    three = [session({case: {"triton": [[us]], "quack": [[40.0]]}}) for us in (32.0, 33.0, 34.0)]

    text = table.document([*three, session({"rmsnorm.fwd.32768x256.bf16-fp32": {}})])

    assert "## Ratios repeated over 4 sessions" in text
    assert f"| `{case}` | 1.250 | 1.212 | 1.176 | – | 6.06% |" in text
    assert "| RMSNorm forward, fp32 weight (1 of 11) | 1.250 | 1.212 | 1.176 | – | 6.06% |" in text
    assert "| `rmsnorm.fwd.32768x256.bf16-fp32` | – | – | – | – | – |" in text


def test_mean_ratios_of_sessions_are_of_the_cases_that_they_share():
    one, two = "rmsnorm.fwd.32768x1024.bf16-fp32", "rmsnorm.fwd.32768x256.bf16-fp32"
    both = session({one: {"triton": [[32.0]], "quack": [[40.0]]}, two: {"triton": [[10.0]], "quack": [[90.0]]}})

    text = table.document([both, session({one: {"triton": [[32.0]], "quack": [[40.0]]}})])

    assert "| RMSNorm forward, fp32 weight (1 of 11) | 1.250 | 1.250 | 0.00% |" in text


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
    text = charts.svg("t", [charts.Panel("", [1, 2, 4, 8], {"a<b": [1.0, None, 2.0, 3.0]}, "µs")])
    [line] = [each for each in ElementTree.fromstring(text).iter(f"{SVG}path") if each.get("class") == "line c0"]
    assert line.get("d").count("M") == 2
    assert line.get("d").count("L") == 1


@pytest.mark.parametrize("series", [{"a": [1.0]}, {"a": [None, None]}, {}])
def test_what_can_not_be_drawn_is_refused(series):
    with pytest.raises(ValueError, match=r"points|no positive value"):
        charts.svg("t", [charts.Panel("", [1, 2], series, "µs")])


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


def test_the_whole_way_on_a_cpu(tmp_path):
    steps = [
        study.Step("small", {**EAGER, "control": "eager"}, TINY, 0),
        study.Step("small", {**EAGER, "control": "eager"}, TINY, 1),
        study.Step("small with liger", {**EAGER, "liger": "liger"}, TINY[:1]),
    ]
    # On a busy machine the arena may find that a turn took longer than its clock says; hardly three times in a row.
    for number in range(3):
        out = tmp_path / str(number)
        study.measure(steps, ("small",), out, pace=Pace(rounds=2, timed=1), device="cpu")
        kept = json.loads((out / "kernels.json").read_text())
        if ratios := {row.case: ratio for row in compared.rows([kept]) if (ratio := row.ratio("triton"))}:
            break

    assert ratios
    text = (out / "table.md").read_text()
    for case, ratio in ratios.items():
        assert 0 < ratio < math.inf
        assert f" | {ratio:.3f} | " in text
        trials = kept["cases"][str(case)]["trials"]
        [rounds, *_] = [trial["us"]["triton"] for trial in trials if "triton" in trial["us"]]
        assert len(rounds) == 6
        assert all(0 < us < math.inf for us in rounds)
    forward, backward = (kept["cases"][str(case)] for case in TINY)
    assert forward["missing"].pop("liger") == ["unsupported", "Liger needs a GPU"]
    asked = [{"triton", "quack", "control"}, {"triton", "quack", "control"}, {"triton", "quack"}]
    for case, trials in ((forward, asked), (backward, asked[:2])):
        assert {state for state, _ in case["missing"].values()} <= {"invalid"}
        assert [
            {*trial["us"]} | ({*case["missing"]} & names) for trial, names in zip(case["trials"], trials, strict=True)
        ] == trials
    assert forward["suites"] == ["small"]
    assert kept["left_out"] == []
    assert kept["stack"]["torch"]
    assert [step["seed"] for step in kept["steps"]] == [step.seed(kept["began"]) for step in steps]
    assert "| of these: small, fwd | 1 of 36" in text
    assert "### small" in text
    assert {file.name for file in out.iterdir()} == {"kernels.json", "table.md"}


def test_a_session_is_never_overwritten(tmp_path):
    kept = tmp_path / "kernels.json"
    kept.write_text("{}")
    with pytest.raises(FileExistsError, match="exists: use another --out"):
        study.measure([study.Step("small", EAGER, TINY)], ("small",), tmp_path, limit_s=-1, device="cpu")
    assert kept.read_text() == "{}"


def test_the_table_is_written_after_an_error_too(tmp_path, monkeypatch):
    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    first, second = study.Step("small", EAGER, TINY), study.Step("small", EAGER, TINY, 1)
    monkeypatch.setattr(study, "run_prestarted", ended)
    with pytest.raises(KeyboardInterrupt):
        study.measure([first, second], ("small",), tmp_path, device="cpu")
    assert "| pr101 sweep, backward | 0 of 25, 25 not measured |" in (tmp_path / "table.md").read_text()


def test_options_for_one_benchmark_are_not_given_to_all():
    said = subprocess.run(
        ["make", "--dry-run", "bench", "ARGS=--out build"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode
    assert "benchmarks have different options" in said.stderr


def test_cases_left_out_are_reported(tmp_path, capsys):
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
