"""The optional tuner: what it tries, what it keeps, and that nobody gets a tuned plan who did not ask for one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kernels
from kernels.norms import plans, tuning
from kernels.norms.plans import BackwardPlan, ForwardPlan, Sum
from kernels.norms.tuning import Found, Place, Unreadable
from kernels.words import Case

HERE = Place("NVIDIA H200", "9.0", "2.11.0", "3.6.0", "580.95")
THERE = replace(HERE, device="NVIDIA B200", capability="10.0")
FORWARD, BACKWARD = ForwardPlan(4, 1024, 4), BackwardPlan(4, 1024, 4, programs=4, stages=2, held=2)
KEY = "rmsnorm.fwd.1024.bf16-fp32"
CASES = [Case.parse(f"rmsnorm.fwd.{rows}x1024.bf16-fp32") for rows in (64, 32768)]


@pytest.fixture(autouse=True)
def nobody_asked(monkeypatch):
    monkeypatch.delenv(tuning.VARIABLE, raising=False)
    monkeypatch.setattr(tuning, "place", lambda: HERE)
    tuning.use(None)
    yield
    tuning.use(None)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cache" / "norms.json"
    tuning.write(path, {HERE: {KEY: Found(FORWARD, 0.9), "layernorm.bwd.1000.fp32": Found(BACKWARD, 0.8)}, THERE: {}})
    return path


# -- what is tried


@pytest.mark.parametrize("plan", [FORWARD, replace(FORWARD, programs=2, stages=2), BACKWARD])
@pytest.mark.parametrize("size", [2, 4])
def test_neighbours_differ_in_one_thing_and_can_be_launched(plan, size):
    near = tuning.neighbourhood(plan, 1000, size)

    assert len(near) == len(set(near)) > 6
    assert plan not in near
    for other in near:
        assert type(other) is type(plan)
        assert tuning.is_valid(other, 1000)
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
def test_every_default_plan_is_one_that_could_be_stored(cols, center):
    assert tuning.is_valid(plans.forward(cols, center=center), cols)
    assert tuning.is_valid(plans.backward(cols, center=center), cols)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 3},
        {"warps": 64},
        {"block": 512},
        {"rows": 128},
        {"stages": 0},
        {"programs": -1},
        {"weights": "lost"},
        {"keep": "lost"},
        {"team": 2},
        {"rows": True},
    ],
)
def test_what_cannot_be_launched_is_known(change):
    assert not tuning.is_valid(replace(FORWARD, **change), 1024)


# -- the search


def test_it_goes_to_the_best_step_by_step():
    """A device on which twice the warps and the weights early are each a tenth faster."""
    start = plans.forward(1024, center=False)

    def takes(plan):
        return 0.9 ** ((plan.warps == 2 * start.warps) + (plan.weights == "early"))

    found = tuning.tune(CASES, lambda _, plan, other: takes(plan) / takes(other))[KEY]

    assert found.plan == replace(start, warps=2 * start.warps, weights="early")
    assert found.ratio == pytest.approx(0.81)


def test_what_gains_too_little_or_fails_is_not_taken():
    def ratio(case, plan, other):
        if plan.weights == "early":
            raise RuntimeError("out of resource: registers")
        return 0.995

    told = []
    found = tuning.tune(CASES, ratio, told.append)[KEY]

    assert found == Found(plans.forward(1024, center=False), 1.0)
    assert "cannot be taken: ['out of resource: registers']" in told[0]


def test_a_plan_is_for_all_numbers_of_rows():
    """What is a third faster for many rows and a half slower for few is not better."""
    start = plans.forward(1024, center=False)

    def ratio(case, plan, other):
        changed = (plan.weights == "early") - (other.weights == "early")
        return (1.5 if case.rows == 64 else 0.75) ** changed

    assert [*tuning.tune(CASES, ratio)] == [KEY]
    assert tuning.tune(CASES, ratio)[KEY].plan == start
    assert tuning.tune(CASES[1:], ratio)[KEY].plan == replace(start, weights="early")


def test_directions_and_ops_without_weights():
    cases = [Case.parse(text) for text in ("layernorm.bwd.8x256.fp32", "rmsnorm_noweight.fwd.8x256.bf16")]
    found = tuning.tune(cases, lambda *_: 1.0)
    assert {name: type(each.plan) for name, each in found.items()} == {
        "layernorm.bwd.256.fp32": BackwardPlan,
        "rmsnorm.fwd.256.bf16": ForwardPlan,
    }


# -- the file


def test_what_was_written_is_read_again(file):
    assert tuning.read(file) == {
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
        '{"format": 1, "entries": [{"place": {}, "plans": {}}]}',
        '{"format": 1, "entries": 7}',
    ],
)
def test_a_corrupt_file_says_how_to_mend_it(tmp_path, text):
    path = tmp_path / "norms.json"
    path.write_text(text)
    with pytest.raises(Unreadable, match=r"norms.json is no file of tuned plans .*: delete it, or write it anew with"):
        tuning.read(path)


@pytest.mark.parametrize("change", [{"rows": 3}, {"block": 512}, {"speed": 9}, {"warps": "4"}, {"weights": None}])
def test_a_plan_that_cannot_be_launched_is_refused(file, change):
    stored = json.loads(file.read_text())
    stored["entries"][0]["plans"][KEY]["plan"] |= change
    file.write_text(json.dumps(stored))
    with pytest.raises(Unreadable):
        tuning.read(file)


# -- who asks


def ask(key=KEY):
    norm, direction, cols, dtypes = key.split(".")
    return tuning.tuned(norm, direction, int(cols), dtypes)


def test_nobody_gets_a_tuned_plan_who_did_not_ask(file, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parents[1]))
    assert ask() is None


def test_who_asks_gets_it(file, monkeypatch):
    tuning.use(file)
    assert ask() == FORWARD
    assert ask("layernorm.bwd.1000.fp32") == BACKWARD
    assert ask("rmsnorm.fwd.2048.bf16-fp32") is None

    tuning.use(None)
    assert ask() is None
    monkeypatch.setenv(tuning.VARIABLE, str(file))
    assert ask() == FORWARD


@pytest.mark.parametrize("name", [*vars(HERE)])
def test_of_another_device_or_stack_nothing_is_used_and_that_is_said_once(file, monkeypatch, name):
    monkeypatch.setattr(tuning, "place", lambda: replace(HERE, **{name: "other"}))
    tuning.use(file)
    with pytest.warns(UserWarning, match="has plans for NVIDIA H200 .* the default plans are used"):
        assert ask() is None
    assert ask() is None


def test_a_file_that_is_not_there_is_told(tmp_path):
    tuning.use(tmp_path / "none.json")
    with pytest.raises(Unreadable, match=r"there are no tuned plans in .*none\.json: write them with"):
        ask()


def test_it_lies_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuning.default_path() == tmp_path / "kernelwatch" / "norms.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tuning.default_path() == Path.home() / ".cache" / "kernelwatch" / "norms.json"


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
def test_what_cannot_be_tuned_is_refused(capsys, arguments, complaint):
    with pytest.raises(SystemExit):
        tuning.main(arguments)
    assert complaint in capsys.readouterr().err


def test_of_a_suite_what_can_be_tuned_is():
    assert {case.direction.value for case in tuning._cases([], "lanes")} == {"fwd"}


def test_the_command_adds_to_the_file(file, monkeypatch, capsys):
    class Timer:
        def __call__(self, case, plan, other):
            return 0.5 if (plan.weights, other.weights) == ("early", "late") else 1.0

    monkeypatch.setattr(tuning, "OnDevice", Timer)
    tuning.main(["rmsnorm.fwd.8x256.bf16", "--file", str(file)])

    store = tuning.read(file)
    assert store[HERE]["rmsnorm.fwd.256.bf16"].ratio == 0.5
    assert store[HERE][KEY] == Found(FORWARD, 0.9)
    assert "rmsnorm.fwd.256.bf16: 0.500 of the default plan's time" in capsys.readouterr().err


def test_asking_needs_no_torch():
    code = "import sys; from kernels.norms import tuning; assert tuning.tuned('rmsnorm', 'fwd', 8, 'bf16') is None; "
    subprocess.run(
        [sys.executable, "-c", code + "assert not {'torch', 'triton'} & {*sys.modules}"],
        cwd=Path(kernels.__file__).parents[1],
        check=True,
    )
