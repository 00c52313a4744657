"""The optional tuner: what it tries, what it keeps, and that tuned plans are used only on request."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import kernels
from kernels.cases import Case, Direction
from kernels.norms import plans, tuned_plans, tuning
from kernels.norms.backward import backward
from kernels.norms.forward import forward
from kernels.norms.plans import BackwardPlan, ForwardPlan, Sum
from kernels.norms.tuned_plans import Found, Place, Unreadable

HERE = Place("NVIDIA H200", "9.0", "2.11.0", "3.6.0", "580.95")
THERE = replace(HERE, device="NVIDIA B200", capability="10.0")
FORWARD, BACKWARD = ForwardPlan(4, 1024, 4), BackwardPlan(4, 1024, 4, programs=4, stages=2, held=2)
KEY = "rmsnorm.fwd.1024.bf16-fp32"
CASES = [Case.parse(f"rmsnorm.fwd.{rows}x1024.bf16-fp32") for rows in (64, 32768)]


@pytest.fixture(autouse=True)
def no_file(monkeypatch):
    monkeypatch.delenv(tuned_plans.VARIABLE, raising=False)
    monkeypatch.setattr(tuned_plans, "place", lambda device: HERE)
    tuned_plans.use(None)
    yield
    tuned_plans.use(None)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cache" / "norms.json"
    tuned_plans.write(
        path, {HERE: {KEY: Found(FORWARD, 0.9), "layernorm.bwd.1000.fp32": Found(BACKWARD, 0.8)}, THERE: {}}
    )
    return path


# -- what is tried


@pytest.mark.parametrize("plan", [FORWARD, replace(FORWARD, programs=2, stages=2), BACKWARD])
@pytest.mark.parametrize("size", [2, 4])
def test_neighbours_differ_in_one_field_and_are_valid(plan, size):
    near = tuning.neighbourhood(plan, 1000, size)

    assert len(near) == len(set(near)) > 6
    assert plan not in near
    for other in near:
        assert type(other) is type(plan)
        assert plans.problem(other, 1000) is None
        different = {name for name in vars(plan) if getattr(plan, name) != getattr(other, name)}
        assert len(different - {"held"}) <= 1 or different == {"sum", "group"}
    assert any(other.keep == "packed" for other in near) is (size == 2)


def test_backward_every_way_to_sum_is_tried():
    near = tuning.neighbourhood(BACKWARD, 1000, 2)
    assert {(each.sum, each.group) for each in near} == {
        (Sum.SEPARATE, 0),
        (Sum.LAST, 0),
        *((Sum.TREE, group) for group in tuning.GROUPS),
    }


def test_a_team_keeps_one_row_and_its_programs():
    near = tuning.neighbourhood(ForwardPlan(1, 16384, 16, team=4, programs=1, stages=2), 65536, 2)
    assert near
    assert {each.rows for each in near} == {1}
    assert 0 not in {each.programs for each in near}


@pytest.mark.parametrize("cols", [1, 64, 1000, 4096, 12288, 65536, 262144])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_every_default_plan_is_one_that_could_be_stored(cols, center, size):
    assert plans.problem(plans.forward(cols, center=center, size=size), cols) is None
    assert plans.problem(plans.backward(cols, center=center, size=size), cols) is None


SIZES, POWERS = "sizes and counts are integers", "rows, block and warps are powers of two"


@pytest.mark.parametrize(
    ("plan", "change", "why"),
    [
        (FORWARD, {"rows": 3}, POWERS),
        (FORWARD, {"warps": 0}, POWERS),
        (FORWARD, {"warps": 64}, "at most 32 warps"),
        (FORWARD, {"block": 512}, "a plan needs 1024 columns"),
        (FORWARD, {"rows": 128}, "at most 65536 elements"),
        (FORWARD, {"stages": 0}, "at least one block and one stage"),
        (FORWARD, {"blocks": 0}, "at least one block and one stage"),
        (FORWARD, {"programs": -1}, "persistent"),
        (FORWARD, {"weights": "lost"}, "weights are held, early or late"),
        (FORWARD, {"keep": "lost"}, "fp32, packed or cached"),
        (FORWARD, {"team": 2}, "one row at a time"),
        (FORWARD, {"team": 2, "rows": 1}, "each program of a team has columns"),
        (FORWARD, {"rows": True}, SIZES),
        (FORWARD, {"warps": "4"}, SIZES),
        (FORWARD, {"stages": 2.0}, SIZES),
        (FORWARD, {"exchange": 1}, SIZES),
        (FORWARD, {"registers": 0}, "1 to 255 registers"),
        (FORWARD, {"registers": 256}, "1 to 255 registers"),
        (FORWARD, {"registers": 64.0}, "1 to 255 registers"),
        (FORWARD, {"block": 512, "blocks": 2, "programs": 1}, "several blocks are for programs with one tile"),
        (FORWARD, {"block": 512, "blocks": 2, "weights": "held"}, "several blocks are for programs with one tile"),
        (BACKWARD, {"block": 512, "blocks": 2}, "a backward tile has one block"),
        (BACKWARD, {"programs": 0}, "persistent"),
        (BACKWARD, {"held": 3}, "rows that divide those of a tile"),
        (BACKWARD, {"held": 8}, "rows that divide those of a tile"),
        (BACKWARD, {"group": 8}, "groups are for sums in a tree"),
        (BACKWARD, {"sum": Sum.TREE}, "groups are for sums in a tree"),
    ],
)
def test_a_plan_that_the_kernels_do_not_accept_is_an_error(plan, change, why):
    wrong = replace(plan, **change)
    assert why in (plans.problem(wrong, 1024) or "")
    x = torch.ones(4, 1024)
    given = (x, x[0]) if plan is FORWARD else (x, x, x[0], x[:, 0].contiguous())
    call = partial(forward, eps=1e-6, center=False) if plan is FORWARD else backward
    with pytest.raises(ValueError, match=why):
        call(*given, plan=wrong)


TEAM = ForwardPlan(1, 1024, 1, team=8, programs=1)


@pytest.mark.parametrize(
    ("change", "possible"),
    [
        ({}, True),
        ({"registers": 64, "exchange": False}, True),
        ({"rows": 2}, False),
        ({"weights": "early"}, False),
        ({"weights": "early", "exchange": False}, True),
        ({"programs": 0}, False),
        ({"programs": 0, "exchange": False}, True),
        ({"team": 9}, False),  # one would have no columns
        ({"block": 128, "team": 64}, False),  # more programs than threads
        ({"block": 64, "team": 128, "warps": 4}, False),
    ],
)
def test_valid_plans_of_a_team(change, possible):
    assert (plans.problem(replace(TEAM, **change), 8192) is None) is possible


# -- the search


def tuned(cases, ratio, log=lambda line: None):
    return dict(tuning.tune(cases, ratio, log))


def start_of(case):
    return plans.forward(case.cols, center=False)


def test_the_search_reaches_the_best_plan_step_by_step():
    """A device on which twice the warps and another way with the weights are each a tenth faster."""
    start = start_of(CASES[0])
    other_weights = "late" if start.weights == "early" else "early"

    def takes(plan):
        return 0.9 ** ((plan.warps == 2 * start.warps) + (plan.weights == other_weights))

    found = tuned(CASES, lambda _, plan, other: takes(plan) / takes(other))[KEY]

    assert found.plan == replace(start, warps=2 * start.warps, weights=other_weights)
    assert found.ratio == pytest.approx(0.81)


def test_a_plan_that_gains_too_little_or_fails_is_not_taken():
    def ratio(case, plan, other):
        if plan.weights == "held":
            raise RuntimeError("out of resource: registers")
        return 0.995

    lines = []
    assert tuned(CASES, ratio, lines.append) == {KEY: None}
    assert "cannot be taken: ['out of resource: registers']" in lines[0]
    assert "no neighbour is faster than the default plan" in lines[-1]


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ([1.0, 1.0], "no plan of 2 is faster than the default plan"),
        (
            [1.0, 0.8, 0.9],
            "2 of 3 plans are faster than the default plan: they take 0.849 of its time (geometric mean), "
            "at best 0.800; all take 0.896",
        ),
    ],
)
def test_it_says_what_it_gains(ratios, text):
    assert tuning.summary(ratios) == text


def test_a_plan_that_was_fast_only_once_is_not_taken():
    """Each plan seems a tenth faster the first time that it is timed."""
    seen = set()

    def ratio(case, plan, other):
        lucky = (case, plan) not in seen
        seen.add((case, plan))
        return 0.9 if lucky else 1.0

    assert tuned(CASES, ratio) == {KEY: None}


def test_the_plan_that_is_kept_is_faster_than_the_default_plan():
    """Each step seemed to gain, but against the default plan the gain is smaller or absent."""
    start = start_of(CASES[0])

    def against_the_default(last):
        def ratio(case, plan, other):
            if plan.warps != 2 * start.warps:
                return 1.0
            ratio.asked += 1
            return 0.9 if ratio.asked <= 2 * len(CASES) else last

        ratio.asked = 0
        return ratio

    # the step and its repetition come before; the same pair of plans is timed once more at the end
    assert tuned(CASES, against_the_default(0.995)) == {KEY: None}
    assert tuned(CASES, against_the_default(0.95))[KEY].ratio == pytest.approx(0.95)


def test_few_rows_are_compared_with_the_default_plan_that_they_get():
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x24576.bf16-fp32") for rows in (100, 4096)]
    asked = set()

    def ratio(case, plan, other):
        asked.add((case.rows, other.weights))
        return 1.0

    [*tuning.tune(cases, ratio, sms=132)]
    assert asked == {(100, "early"), (4096, "late")}


def test_a_plan_is_for_all_numbers_of_rows():
    """What is a third faster for many rows and two hundredths slower for few is not taken."""
    start = start_of(CASES[0])

    def ratio(case, plan, other):
        changed = (plan.weights == "held") - (other.weights == "held")
        return (1.02 if case.rows == 64 else 0.75) ** changed

    assert tuned(CASES, ratio) == {KEY: None}
    assert tuned(CASES[1:], ratio)[KEY].plan == replace(start, weights="held")


def test_directions_and_dtypes():
    """Backward, an RMSNorm with a bias begins with the plan of LayerNorm, which has two sums as well."""
    cases = [Case.parse(text) for text in ("rmsnorm_bias.bwd.8x256.fp32", "rmsnorm_noweight.fwd.8x256.bf16")]
    asked = set()

    def ratio(case, plan, other):
        asked.add((case, type(plan), plan.keep == "packed"))
        return 1.0

    assert tuned(cases, ratio) == {"rmsnorm_bias.bwd.256.fp32": None, "rmsnorm_noweight.fwd.256.bf16": None}
    assert asked == {(cases[0], BackwardPlan, False), (cases[1], ForwardPlan, False), (cases[1], ForwardPlan, True)}
    assert tuned_plans.default_of(cases[0]) == plans.backward(256, center=True, size=4)


def test_each_op_has_plans_of_its_own():
    """On a device where more warps help without a residual and harm with one."""
    cases = [Case.parse(f"{op}.fwd.4096x1024.bf16-fp32") for op in ("rmsnorm", "rmsnorm_residual")]

    def ratio(case, plan, other):
        more = plan.warps / other.warps
        return more**0.2 if case.op == "rmsnorm_residual" else more**-0.2

    found = tuned(cases, ratio)

    assert [*found] == [KEY, "rmsnorm_residual.fwd.1024.bf16-fp32"]
    for (name, plan), default in zip(found.items(), map(tuned_plans.default_of, cases), strict=True):
        assert (plan.plan.warps < default.warps) is ("residual" in name)


# -- the file


def test_a_written_file_is_read_again(file):
    assert tuned_plans.read(file) == {
        HERE: {KEY: Found(FORWARD, 0.9), "layernorm.bwd.1000.fp32": Found(BACKWARD, 0.8)},
        THERE: {},
    }
    assert [path.name for path in file.parent.iterdir()] == ["norms.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": 99, "entries": []}',
        '{"format": 2, "entries": []}',
        '{"format": 3, "entries": [{"place": {}, "plans": {}}]}',
        '{"format": 3, "entries": 7}',
    ],
)
def test_the_error_of_a_corrupt_file_says_how_to_fix_it(tmp_path, text):
    path = tmp_path / "norms.json"
    path.write_text(text)
    with pytest.raises(Unreadable, match=r"norms.json is not a file of tuned plans .*: delete it, or write"):
        tuned_plans.read(path)


@pytest.mark.parametrize("change", [{"rows": 3}, {"block": 512}, {"speed": 9}, {"warps": "4"}, {"weights": None}])
def test_a_plan_that_cannot_be_launched_is_refused(file, change):
    stored = json.loads(file.read_text())
    stored["entries"][0]["plans"][KEY]["plan"] |= change
    file.write_text(json.dumps(stored))
    with pytest.raises(Unreadable):
        tuned_plans.read(file)


# -- use


def ask(direction="fwd", cols=1024, dtypes=("bfloat16", "float32"), **op):
    x, weight = (
        torch.empty(size, dtype=getattr(torch, dtype)) for size, dtype in zip([(2, cols), cols], dtypes, strict=True)
    )
    given = {"weight": weight, "norm": "rmsnorm", "bias": False, "residual": False, **op}
    return tuned_plans.tuned(Direction(direction), x, **given)


def test_a_file_in_the_cache_is_not_used_by_itself(file, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parents[1]))
    assert ask() is None


def test_a_named_file_is_used(file, monkeypatch):
    tuned_plans.use(file)
    assert ask() == FORWARD
    assert ask("bwd", 1000, ("float32", "float32"), norm="layernorm", bias=True) == BACKWARD
    assert ask(cols=2048) is None
    assert ask(dtypes=("float16", "float32")) is None
    assert [ask(**other) for other in ({"residual": True}, {"bias": True}, {"weight": None})] == [None] * 3

    tuned_plans.use(None)
    assert ask() is None
    monkeypatch.setenv(tuned_plans.VARIABLE, str(file))
    assert ask() == FORWARD


@pytest.mark.parametrize("name", [*vars(HERE)])
def test_plans_of_another_device_or_stack_are_not_used_with_one_warning(file, monkeypatch, name):
    monkeypatch.setattr(tuned_plans, "place", lambda device: replace(HERE, **{name: "other"}))
    tuned_plans.use(file)
    with pytest.warns(UserWarning, match="has plans for NVIDIA H200 .* the default plans are used"):
        assert ask() is None
    assert ask() is None


def test_a_missing_file_is_an_error(tmp_path):
    tuned_plans.use(tmp_path / "none.json")
    with pytest.raises(Unreadable, match=r"there are no tuned plans in .*none\.json: write them with"):
        ask()


def test_a_folder_is_not_a_file_of_plans(tmp_path):
    tuned_plans.use(tmp_path)
    with pytest.raises(Unreadable, match="is not a file of tuned plans"):
        ask()


def test_others_can_read_a_written_file(file):
    other = file.parent / "other"
    other.touch()
    assert file.stat().st_mode == other.stat().st_mode


def test_the_default_file_is_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuned_plans.default_path() == tmp_path / "kernelwatch" / "norms.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tuned_plans.default_path() == Path.home() / ".cache" / "kernelwatch" / "norms.json"


# -- the command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no cases: name some, or a suite"),
        (["rmsnorm.fwd"], "rmsnorm.fwd"),
        (["rmsnorm.fwdbwd.8x8.bf16"], "forward and backward are tuned apart"),
        (["--suite", "none"], "invalid choice"),
    ],
)
def test_cases_that_cannot_be_tuned_are_refused(capsys, arguments, complaint):
    with pytest.raises(SystemExit):
        tuning.main(arguments)
    assert complaint in capsys.readouterr().err


def test_cases_of_a_suite_that_cannot_be_tuned_are_left_out():
    assert {case.direction.value for case in tuning._cases([], "metrics")} == {"fwd"}


class Timer:
    """A plan that holds the weights takes half the time."""

    def __init__(self, device):
        pass

    def __call__(self, case, plan, other):
        if case.cols == 512:
            raise KeyboardInterrupt
        return 0.5 ** ((plan.weights == "held") - (other.weights == "held"))


def test_the_command_adds_to_the_file(file, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "OnDevice", Timer)
    tuning.main(["rmsnorm.fwd.8x256.bf16", "--file", str(file)])

    store = tuned_plans.read(file)
    assert store[HERE]["rmsnorm.fwd.256.bf16"].ratio == 0.5
    assert store[HERE][KEY] == Found(FORWARD, 0.9)
    assert "rmsnorm.fwd.256.bf16: 0.500 of the default plan's time" in capsys.readouterr().err


def test_plans_found_before_an_interruption_are_kept(file, monkeypatch):
    monkeypatch.setattr(tuning, "OnDevice", Timer)
    with pytest.raises(KeyboardInterrupt):
        tuning.main(["rmsnorm.fwd.8x256.bf16", "rmsnorm.fwd.8x512.bf16", "--file", str(file)])
    assert "rmsnorm.fwd.256.bf16" in tuned_plans.read(file)[HERE]


def test_plans_stay_stored_where_nothing_can_be_timed(file, monkeypatch):
    class Broken(Timer):
        def __call__(self, case, plan, other):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(tuning, "OnDevice", Broken)
    with pytest.raises(SystemExit, match=rf"{KEY}: none of \d+ plans could be timed; plans stored before are kept"):
        tuning.main([str(CASES[0]), "--file", str(file)])
    assert tuned_plans.read(file)[HERE][KEY] == Found(FORWARD, 0.9)


def test_a_plan_that_is_no_better_any_more_is_dropped(file, monkeypatch):
    class Even(Timer):
        def __call__(self, case, plan, other):
            return 1.0

    monkeypatch.setattr(tuning, "OnDevice", Even)
    tuning.main([str(CASES[0]), "--file", str(file)])
    assert KEY not in tuned_plans.read(file)[HERE]


# -- the functions


INTERPRETED = """
import sys, torch
from pathlib import Path
from kernels.norms import plans, tuned_plans
from kernels.norms.backward import backward
from kernels.norms.forward import forward
from kernels.norms.plans import BackwardPlan, ForwardPlan
from kernels.norms.tuned_plans import Found, Place

here, x, weight = Place("a GPU", "9.0", "2", "3", "5"), torch.randn(7, 200), torch.randn(200)


def both():
    y, _, _, rstd = forward(x, weight, eps=1e-6, center=False, statistics=True)
    dx, dweight, _ = backward(x, x, weight, rstd)
    n = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
    torch.testing.assert_close(y, n * weight)
    torch.testing.assert_close(dweight, (x * n).sum(0))


def never(*_, **__):
    raise AssertionError("the default plan was asked for")


tuned_plans.write(Path(sys.argv[1]), {here: {
    "rmsnorm.fwd.200.fp32": Found(ForwardPlan(2, 256, 1), 0.9),
    "rmsnorm.bwd.200.fp32": Found(BackwardPlan(2, 256, 1, stages=1), 0.9),
}})
tuned_plans.use(sys.argv[1])
both()  # nothing is known of a device without CUDA: the default plans
tuned_plans.place = lambda device: here
tuned_plans.use(sys.argv[1])
plans.forward = plans.backward = never
both()
"""


def test_forward_and_backward_use_the_plans_of_a_named_file(tmp_path):
    subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", INTERPRETED, str(tmp_path / "norms.json")],
        cwd=Path(kernels.__file__).parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )


def test_the_module_imports_no_torch():
    code = "import sys; import kernels.norms.tuning; assert not {'torch', 'triton'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], cwd=Path(kernels.__file__).parents[1], check=True)
