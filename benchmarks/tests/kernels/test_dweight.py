"""The study of dweight without a GPU: the ways, their predicted cost, and the output files."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import kernels
from benchmarks.kernels.dweight import study
from benchmarks.kernels.dweight.page import page, ratio, write
from benchmarks.kernels.dweight.sums import LAUNCH_US, Measured, SumShape, Way, choice, cost, expected, ways
from kernels.cases import Case
from kernels.norms import plans
from kernels.norms.backward import SUM_COLS, Backward
from kernels.norms.plans import BackwardPlan, Sum

ROOT = Path(kernels.__file__).parents[1]
STUDY = ROOT / "docs" / "measurements" / "2026-11-21-h200-kernels" / "dweight-study.md"


def sms(programs):
    return 132 * programs


# -- what is compared --------------------------------------------------------------------------------------------------


def test_the_separate_kernel_of_the_chosen_plan_comes_first_and_a_second_time():
    plan = BackwardPlan(1, 1024, 4, programs=2)

    first, second, *others = ways(plan, sms)

    assert first == Way(Sum.SEPARATE, 2)
    assert second == Way(Sum.SEPARATE, 2, again=True)
    assert {way.programs for way in others} == {1, 2, 4}
    assert [way.name for way in others if way.programs == 4] == [
        "separate",
        "last",
        *(f"tree of {group}" for group in (8, 12, 16, 32)),
    ]
    assert [way for way in others if not way.early] == [Way(Sum.SEPARATE, 2, early=False)]


def test_a_team_keeps_its_number_of_programs():
    plan = BackwardPlan(1, 16384, 16, team=4)
    found = ways(plan, lambda programs: 33 * programs)
    assert {way.programs for way in found} == {1}
    assert all(way.early for way in found)  # there is nothing to compare: it never begins early


def test_numbers_of_programs_that_give_the_same_parts_are_one():
    found = ways(BackwardPlan(16, 256, 4, programs=2), lambda programs: min(200, 132 * programs))
    assert {way.programs for way in found} == {1, 2}


def test_a_tree_has_more_parts_than_a_group():
    found = ways(BackwardPlan(1, 256, 4), lambda programs: 12)
    assert [way.group for way in found if way.sum is Sum.TREE] == [8]


def test_the_grid_of_pull_request_101_comes_first_and_no_shape_twice():
    cases = study.cases_of(["pr101", "quack"], ["rmsnorm", "layernorm"])

    assert len(set(cases)) == len(cases) == 2 * 31
    assert str(cases[0]) == "rmsnorm.bwd.4096x256.bf16-fp32"
    assert {case.direction for case in cases} == {"bwd"}
    assert Case.parse("layernorm.bwd.8192x262144.bf16-fp32") in cases


# -- what it should cost -----------------------------------------------------------------------------------------------


def test_a_single_last_program_reads_every_part_by_itself():
    found = cost(Way(Sum.LAST, 2), SumShape(4096, 264, 64))

    assert found.written == found.read == 264 * 4096 * 4
    assert found.us == pytest.approx(43.3, abs=0.1)  # as the facts page has it: 4.3 MB


def test_members_of_a_team_read_their_own_columns_at_the_same_time():
    alone, team = (cost(Way(Sum.LAST, 1), SumShape(65536, 33, 64, team=members)) for members in (1, 4))
    assert alone.us == pytest.approx(4 * team.us)
    assert alone.read == team.read


def test_a_tree_reads_twice_and_little_each_time():
    found = cost(Way(Sum.TREE, 1, 12), SumShape(4096, 132, 64))

    assert found.written == (132 + 11) * 4096 * 4
    assert found.us == pytest.approx((12 + 11) * 4096 * 4 / 100e3)


@pytest.mark.parametrize(
    ("cols", "sum_cols", "gradients", "one_reads"),
    [(256, 64, 1, 1), (4096, 64, 1, 1), (4096, 64, 2, 1), (4096, 32, 2, 2), (131072, 64, 1, 16), (8, 64, 1, 1 / 8)],
)
def test_a_separate_kernel_is_a_launch_and_what_its_busiest_sm_reads(cols, sum_cols, gradients, one_reads):
    found = cost(Way(Sum.SEPARATE, 1), SumShape(cols, 132, sum_cols, gradients))

    assert found.us == pytest.approx(LAUNCH_US + one_reads * 132 * sum_cols * 4 / 100e3)
    assert found.read == 132 * cols * 4 * gradients


@pytest.mark.parametrize("cols", [256, 512, 1024, 2048, 4096, 16384, 65536])
def test_the_page_expects_what_follows_from_the_plans(cols):
    said = STUDY.read_text().splitlines()
    assert expected(plans.backward(cols, center=False), cols, SUM_COLS) in said
    assert any(f"parts x {SUM_COLS} columns x 4 bytes" in line for line in said)


# -- which one the times speak for -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([{"last": 0.90, "tree of 8": 0.95}], "last"),
        ([{"last": 0.995, "tree of 8": 1.2}], "separate"),  # within the tolerance
        ([{"last": 0.80}, {"last": 1.02}], "separate"),  # behind at one number of rows
        ([{"last": 0.90}, {"last": 1.005}], "last"),
        ([{"last": 0.90, "tree of 8": 0.97}, {"last": 1.02, "tree of 8": 0.97}], "tree of 8"),
        ([{"last": 0.90, "tree of 8": 0.5}, {"last": 0.90}], "last"),  # a tree was not measured everywhere
        ([{}], "separate"),
    ],
)
def test_choice(ratios, expected):
    rows = [Measured(4096 * (number + 1), 512, 132, each) for number, each in enumerate(ratios)]
    assert choice(rows) == {(512, 132): expected}


def test_the_choice_is_made_for_each_number_of_columns_and_parts():
    measured = [
        Measured(4096, 1024, 264, {"last": 1.3, "tree of 16": 1.001}),
        Measured(4096, 256, 264, {"last": 1.1, "tree of 16": 0.9}),
        Measured(4096, 256, 132, {"last": 0.8, "tree of 16": 0.9}),
    ]
    assert list(choice(measured).items()) == [
        ((256, 132), "last"),
        ((256, 264), "tree of 16"),
        ((1024, 264), "separate"),
    ]


# -- right before quick ------------------------------------------------------------------------------------------------


def gradients(dw, dx=1.0):
    return Backward(torch.full([2, 2], dx, dtype=torch.bfloat16), torch.tensor(dw), None)


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        (gradients([100.0, -100.0]), ""),
        (gradients([100.0001, -100.0]), ""),  # another order of summing
        (gradients([100.1, -100.0]), "dweight"),
        (gradients([float("nan"), -100.0]), "dweight"),
        (gradients([100.0, -100.0], dx=1.0078125), ""),  # one unit in the last place of bf16
        (gradients([100.0, -100.0], dx=1.1), "dx"),
    ],
)
def test_gradients_may_differ_by_rounding(other, wrong):
    said = study.difference(other, gradients([100.0, -100.0]))
    assert said.startswith(wrong)
    assert bool(said) == bool(wrong)


INTERPRETED = """
import json, sys, torch
from dataclasses import replace
from kernels.checks.inputs import make
from benchmarks.kernels.dweight.study import compared, describe, plan_of, ways_of
from kernels.cases import Case

device, found = torch.device("cpu"), {}
for text in sys.argv[1:]:
    case = Case.parse(text)
    case = replace(case, rows=10 * plan_of(case).rows - 1)  # enough parts for a tree, and a last tile with a row less
    wanted = ways_of(case, device)
    verdicts = compared(make(case, device, 1), wanted)
    told = describe(case, wanted, device)
    found[text] = [{"wrong": verdicts[way], **one} for way, one in zip(wanted, told["ways"])]
print(json.dumps(found))
"""


@pytest.mark.long
def test_every_way_is_right_and_repeats_to_the_bit():
    spoken = run(INTERPRETED, "rmsnorm.bwd.1x256.fp32", "layernorm.bwd.1x1000.fp32", TRITON_INTERPRET="1")

    for told in json.loads(spoken).values():
        assert {way["wrong"] for way in told} == {""}
        assert {way["sum"] for way in told} == {"separate", "last", "tree"}
        assert len({way["parts"] for way in told}) > 1


# -- the separate kernel begins earlier --------------------------------------------------------------------------------

COMPILED = """
import json, sys, torch
from kernels.facts.architectures import KNOWN
from kernels.facts.offline.launches import Launches
from kernels.facts.offline.pretend import become, inputs_of
from kernels.cases import Case

mode, launches, found = become(KNOWN["sm_90"]), Launches(KNOWN["sm_90"]), {}
from benchmarks.kernels.dweight.study import call_of, plan_of, smaller, ways_of

case, device = Case.parse(sys.argv[1]), torch.device("cuda", 0)


def kernels_of(case, way):
    launches.clear()
    call_of(inputs_of(case), way)()
    return [one.kernel for one in launches.seen]


with mode, torch.no_grad():
    for way in ways_of(case, device):
        if way.programs == plan_of(case).programs and not way.again:
            found[way.name] = [(kernel.metadata.launch_pdl, kernel.asm["ptx"]) for kernel in kernels_of(case, way)]
            small = smaller(case, way, device)
            assert small.rows < case.rows
            alike, kernels = kernels_of(small, way), kernels_of(case, way)
            assert [kernel.hash for kernel in alike] == [kernel.hash for kernel in kernels]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("triton"))
    return json.loads(run(COMPILED, "rmsnorm.bwd.65535x256.bf16-fp32", CUDA_VISIBLE_DEVICES="", TRITON_CACHE_DIR=cache))


@pytest.mark.long
def test_only_a_separate_kernel_is_a_second_one_and_begins_early(compiled):
    assert "tree of 8" in compiled
    for name, launched in compiled.items():
        assert len(launched) == (2 if name.startswith("separate") else 1)
        for early, ptx in launched:
            assert early == ("griddepcontrol.wait" in ptx)
        assert [early for early, _ in launched] == ([False, True] if name == "separate" else [False] * len(launched))


def test_an_early_kernel_waits_before_it_reads(compiled):
    (_, first), (_, second) = compiled["separate"]
    (_, usual), _ = compiled["separate, not early"]

    assert 0 < second.index("griddepcontrol.wait") < second.index("ld.global")
    assert "griddepcontrol.launch_dependents" in first
    assert "griddepcontrol" not in usual


# -- what the figures are made into ------------------------------------------------------------------------------------


def kept_of(*shapes):
    """Figures as a study keeps them; of each shape the columns, and the ratios of ways with two programs an SM."""
    kept = {
        "stack": {"device": "a GPU", "torch": "2", "triton": "3"},
        "shapes": [],
        "left_out": {"rmsnorm.bwd.32768x8192.bf16-fp32": "OutOfMemoryError: of memory"},
    }
    for rows, cols, ratios in shapes:
        told, times = [], []
        for way in (Way(Sum.SEPARATE, 2), Way(Sum.SEPARATE, 2, again=True), Way(Sum.LAST, 2), Way(Sum.TREE, 2, 8)):
            shape = SumShape(cols, 264, 32)
            told.append({"name": way.name, **asdict(way), "parts": 264, "cost": asdict(cost(way, shape))})
            value = ratios.get(way.name)
            times.append(
                {"wrong": "" if value else "dx is away", "samples_us": [10 * value, 20 * value] if value else []}
            )
        case = f"rmsnorm.bwd.{rows}x{cols}.bf16-fp32"
        plan = {"programs": 2}
        kept["shapes"].append({"case": case, "rows": rows, "cols": cols, "plan": plan, "ways": told, "times": times})
    return kept


KEPT = kept_of(
    (8192, 256, {"separate": 1, "separate, again": 1.004, "last": 0.8, "tree of 8": 0.9}),
    (4096, 256, {"separate": 1, "separate, again": 0.998, "last": 0.9, "tree of 8": 0.85}),
    (4096, 512, {"separate": 1, "separate, again": 1, "last": 1.25}),
)


def test_ratios_are_of_the_same_round():
    times = {"separate": [10.0, 20.0, 30.0], "last": [9.0, 18.0, 60.0], "tree of 8": [1.0, 2.0, 3.0]}
    assert ratio(times, "last") == pytest.approx(0.9)
    assert ratio(times, "tree of 12") is None


def test_the_page_says_what_is_best_what_is_wrong_and_what_is_missing():
    lines = page(KEPT).splitlines()

    [small] = [line for line in lines if line.startswith("| 4096x256 | **2** |")]
    assert small.endswith("| 1.002 | 1.111 | 1.176 | – | – | – | tree of 8 | 17.6% | +17.6% |")
    [wide] = [line for line in lines if line.startswith("| 4096x512 | **2** |")]
    assert wide.endswith("| 1.000 | 0.800 | – | – | – | – | separate | 0.0% | +0.0% |")
    assert "| 256 | 264 | last |" in lines
    assert "| 512 | 264 | separate |" in lines
    assert "- rmsnorm.bwd.4096x512.bf16-fp32, tree of 8, 2 programs: dx is away" in lines
    assert lines[-1] == "- rmsnorm.bwd.32768x8192.bf16-fp32: OutOfMemoryError: of memory"
    assert "equal code differed by up to 0.4%." in page(KEPT)


def test_predictions_and_measurements_are_in_one_table():
    predicted = (
        cost(Way(Sum.LAST, 2), SumShape(512, 264, 32)).us - cost(Way(Sum.SEPARATE, 2), SumShape(512, 264, 32)).us
    )
    [line] = [line for line in page(KEPT).splitlines() if line.startswith("| 4096x512 | 264 |")]
    assert f"| {predicted:+.1f} → +3.8 |" in line  # a quarter of the median of 10 and 20 us


def test_figures_tables_and_pictures_are_written(tmp_path):
    write(tmp_path, KEPT)

    assert json.loads((tmp_path / "dweight.json").read_text()) == KEPT
    assert (tmp_path / "dweight.md").read_text() == page(KEPT)
    assert "8192 rows" in (tmp_path / "crossover.svg").read_text()
    assert "even ± 0.4%" in (tmp_path / "crossover.svg").read_text()
    assert "tree of 8" in (tmp_path / "ways.svg").read_text()


def test_why_a_shape_failed_is_kept(tmp_path, monkeypatch):
    cases = study.cases_of(["pr101"], ["rmsnorm"])[:2]

    def fails(case, *_):
        raise RuntimeError(f"no {case.cols} columns today")

    for name, instead in (("compile_ahead", lambda *_: None), ("measured", fails), ("ways_of", lambda *_: ())):
        monkeypatch.setattr(study, name, instead)
    monkeypatch.setattr(study, "_stack", lambda _: KEPT["stack"])
    monkeypatch.setattr(study.workspaces, "STORE", study.workspaces.STORE)

    study.study(cases, tmp_path, 60, 1)

    left_out = json.loads((tmp_path / "dweight.json").read_text())["left_out"]
    assert left_out.keys() == {str(case) for case in cases}
    for case in cases:
        assert left_out[str(case)].startswith(f"RuntimeError: no {case.cols} columns today (test_dweight.py:")


def test_without_a_gpu_it_says_so(tmp_path):
    said = run(
        "from benchmarks.kernels.dweight.study import main; main()", "--out", str(tmp_path), CUDA_VISIBLE_DEVICES=""
    )
    assert "needs a GPU" in said


def run(code, *arguments, **environment):
    spoken = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert spoken.returncode == 0, spoken.stderr[-2000:]
    return spoken.stdout
