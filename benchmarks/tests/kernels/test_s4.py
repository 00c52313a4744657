"""The ablation of Inductor: blocks that train, and wrong results that are noticed."""

import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from benchmarks.kernels.published import model_trials
from benchmarks.kernels.published.arms import ablation, blocks
from benchmarks.kernels.published.arms.server import NotSupported
from benchmarks.kernels.published.markdown import document
from benchmarks.kernels.published.run import run
from benchmarks.kernels.trials import open_process
from kernels.arena.session import OutOfTime, Pace
from kernels.errors import FAILED, MEASURED, UNSUPPORTED
from kernels.studies import records, s4
from kernels.studies.records import CONTROL
from kernels.studies.results import Results
from kernels.studies.study import StudyStep

CASES = [f"{suite}.{name}" for suite, names in s4.SUITES.items() for name in names]
EAGER = dict(s4.EAGER.spec)

# -- blocks ------------------------------------------------------------------------------------------------------------


def test_the_study_has_every_block():
    assert {suite: set(names) for suite, names in s4.SUITES.items()} == {
        suite: set(those) for suite, those in blocks.CATALOGUE.items()
    }


@pytest.mark.parametrize("precision", ["amp", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_a_block_trains(name, precision):
    step = ablation.TrainingStep(f"{name}.{precision}", EAGER, "cpu", seed=1)

    [took] = step.turn(warm=0, timed=1)

    assert took > 0
    assert step.check() is None
    assert "arXiv" in step.facts["about"] or "Radford" in step.facts["about"]


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_and_input_of_a_block_has_a_gradient(name):
    step = ablation.TrainingStep(f"{name}.fp32", EAGER, "cpu", seed=1)
    for label, tensor in zip(step._names(), step._step(), strict=True):
        assert tensor.isfinite().all(), label
        assert tensor.count_nonzero(), label


def test_the_windows_of_swin_are_a_partition():
    swin = blocks.CATALOGUE["vision"]["swin"].module(16, 2, 14)
    x = torch.randn(2, 14, 14, 16)
    windows = swin._windows(x)
    assert torch.equal(windows[0], x[0, :7, :7].flatten(0, 1))
    assert torch.equal(swin._whole(windows), x)
    assert (swin.mask[0] == 0).all()  # the first window has no part of another
    assert (swin.mask[-1] != 0).any()


@pytest.mark.parametrize("name", ["language.nobody.amp", "language.bert", "vision.bert.amp", "language.bert.fp64"])
def test_an_unknown_case_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"bert|amp, bf16, fp32"):
        ablation.TrainingStep(name, EAGER, "cpu", 1)


# -- settings and results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patches", "device", "reason"),
    [
        ({}, "cpu", None),
        ({"split_reductions": False}, "cpu", None),
        ({"triton.persistent_reductions": False}, "cuda", None),
        ({"triton.persistent_reductions": False}, "cpu", "triton.persistent_reductions changes only Triton's kernels"),
        ({"split_reductions": False, "triton.gone": True}, "cuda", "has no setting triton.gone"),
    ],
)
def test_a_setting_that_does_nothing_is_unsupported(patches, device, reason):
    known = {"split_reductions": True, "triton.persistent_reductions": True}
    found = ablation.unsupported(patches, known, device)
    assert found is None if reason is None else reason in found


def test_this_torch_has_every_setting_of_the_arms():
    known = torch._inductor.config.get_config_copy()
    for arm in (*s4.ABLATIONS, *s4.TODAY, s4.DYNAMIC, s4.DYNAMIC_NO_THREE):
        assert ablation.unsupported(arm.spec["patches"], known, "cuda") is None
    assert known["split_reductions"] is known["triton.persistent_reductions"] is known["triton.divisible_by_16"] is True
    assert known["triton.cooperative_reductions"] is False


@pytest.mark.parametrize(
    ("error", "eager", "right"),
    [
        (0.001, 0.001, True),
        (0.0018, 0.001, True),
        (0.0030, 0.001, False),
        (0.0030, 0.002, True),
        (math.nan, 0.5, False),
    ],
)
def test_an_arm_may_err_half_as_much_again_as_eager(error, eager, right):
    exact = torch.ones(8, dtype=torch.float64)
    found = ablation.compare(["dx"], [exact + error], [exact - eager], [exact], rounding=0.0005)
    assert (found is None) == right


def test_a_gradient_of_another_shape_is_wrong():
    one, two = torch.ones(1), torch.ones(2)
    assert ablation.compare(["dx"], [one], [two], [two], 0.1) == "dx has shape (1,) instead of (2,)"


def test_a_wrong_gradient_is_noticed():
    step = ablation.TrainingStep("small.dlrm.amp", EAGER, "cpu", seed=1)
    right = step._step
    step._step = lambda: (*right()[:-1], right()[-1] * 1.1)
    assert "out.bias has a relative error of 0.1" in step.check()


def test_the_whole_way_with_one_block(tmp_path):
    arms = (s4.EAGER, s4.DYNAMIC, s4.ABLATIONS[1])
    step = StudyStep("cpu", arms, ("small.demucs.fp32",), 1, Pace(rounds=2, timed=1), True, prepare_together=True)
    study = replace(s4.STUDY, steps=lambda *_: [step])

    file = run(study, tmp_path / "s4.jsonl", device="cpu")

    found = {record.arm: record for record in file.records}
    assert {arm: record.state for arm, record in found.items()} == {
        "eager": MEASURED,
        "dynamic": MEASURED,
        "no-persistent": UNSUPPORTED,
        CONTROL: MEASURED,
    }
    assert all(len(record.samples) == 2 for record in found.values() if record.measured)
    facts = found["dynamic"].facts
    assert (facts["dynamic"], facts["graphs"], facts["recompilations"]) == (True, 1, 0)  # it takes another batch
    assert facts["kernels"] > 1
    text = document(study, Results.of([file]))
    assert "| small.demucs.fp32 | without persistent reductions | unsupported: triton.persistent_reductions" in text
    assert "tiny widths, 4x4x64, of Demucs" in text
    assert "| dynamic shapes | " in text


@pytest.mark.long
@pytest.mark.parametrize("together", [True, False])
def test_an_arm_that_was_killed_runs_again_at_the_next_model(tmp_path, monkeypatch, together):
    channels, found = [], {}

    def opened(*arguments, **named):
        channels.append(open_process(*arguments, **named))
        return channels[-1]

    def keep(records, _notes):
        found.update({(one.arm, one.case): one for one in records})
        if len(found) == 2:
            os.kill(channels[0]._process.pid, signal.SIGKILL)

    monkeypatch.setattr(model_trials, "open_process", opened)
    cases = ("small.dlrm.fp32", "small.demucs.fp32", "small.dcgan.fp32")
    pace = Pace(rounds=1, timed=1)
    step = StudyStep("cpu", (s4.EAGER,), cases, 1, pace, models=True, prepare_together=together)

    model_trials.run_model_trial(step, 0, cases, device="cpu", seed=1, scratch=tmp_path, keep=keep)

    states = {arm: [found[arm, case].state for case in cases] for arm in ("eager", CONTROL)}
    assert sorted(states.values()) == sorted([[MEASURED, FAILED, MEASURED], [MEASURED] * 3])
    assert any((one.reason or "").startswith("killed by SIGKILL") for one in found.values())
    assert all(channel._process.poll() is not None for channel in channels)


@pytest.mark.long
def test_arms_that_prepare_ahead_do_nothing_during_a_turn(tmp_path, monkeypatch):
    asked = []

    def opened(*arguments, **named):
        channel = open_process(*arguments, **named)
        original = channel.ask

        def ask(message, *more):
            began = time.monotonic()
            answer = original(message, *more)
            asked.append((message["do"], message.get("case"), began, time.monotonic()))
            return answer

        channel.ask = ask
        return channel

    monkeypatch.setattr(model_trials, "open_process", opened)
    cases = ("small.dlrm.fp32", "small.demucs.fp32")
    pace = Pace(rounds=3, timed=1)
    arms = (s4.EAGER, replace(s4.EAGER, name="again"))
    step = StudyStep("cpu", arms, cases, 1, pace, models=True, prepare_together=True)
    found = []

    model_trials.run_model_trial(
        step, 0, cases, device="cpu", seed=1, scratch=tmp_path, keep=lambda records, _: found.extend(records)
    )

    assert [one.state for one in found] == [MEASURED] * 6
    turns, others = ([one for one in asked if (one[0] == "turn") is wanted] for wanted in (True, False))
    assert not [(turn, other) for turn in turns for other in others if turn[2] < other[3] and other[2] < turn[3]]
    assert sorted(case for do, case, _, _ in asked if do == "prepare") == sorted([*cases] * 3)  # each once


@pytest.mark.long
@pytest.mark.parametrize("together", [True, False])
def test_a_limit_ends_the_run_while_arms_prepare(tmp_path, monkeypatch, together):
    """After the first block the processes of all arms stand still, so that the second one is never prepared."""
    channels, stopped_at = [], []

    def opened(*arguments, **named):
        channels.append(open_process(*arguments, **named))
        return channels[-1]

    def limit():
        if stopped_at and time.monotonic() > stopped_at[0] + 1:
            raise OutOfTime
        if not stopped_at and path.exists() and records.read(path).records:
            for channel in channels:
                os.kill(channel._process.pid, signal.SIGSTOP)
            stopped_at.append(time.monotonic())

    monkeypatch.setattr(model_trials, "open_process", opened)
    cases = ("small.dlrm.fp32", "small.demucs.fp32")
    pace = Pace(rounds=1, timed=1)
    step = StudyStep("cpu", (s4.EAGER,), cases, 1, pace, models=True, prepare_together=together)
    path = tmp_path / "s4.jsonl"

    found = run(replace(s4.STUDY, steps=lambda *_: [step]), path, device="cpu", keep_going=limit)

    assert time.monotonic() < stopped_at[0] + pace.prepare_limit_s / 4
    assert [one.case for one in found.records] == ["small.dlrm.fp32"] * 2
    assert all(channel._process.poll() is not None for channel in channels)
    assert sorted(note.value["arm"] for note in found.notes if note.what == "stack") == [CONTROL, "eager"]
    [seconds] = [note.value["seconds"] for note in found.notes if note.what == "trial"]
    assert seconds.keys() == {"start", "prepare", "rounds", "check"}


@pytest.mark.parametrize(("cores", "arms", "threads"), [(16, 6, 3), (16, 7, 3), (16, 11, 2), (2, 3, 2), (128, 4, 32)])
def test_arms_that_compile_at_the_same_time_share_the_cores(monkeypatch, cores, arms, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    assert model_trials.compile_threads(arms) == threads


def test_an_arm_compiles_with_its_share_of_threads(tmp_path):
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    echo = f"import json, os; input(); print(json.dumps({{'found': os.environ.get({name!r})}}), flush=True)"
    for threads, expected in ((3, "3"), (None, os.environ.get(name))):
        channel = open_process(["-c", echo], tmp_path / "log", compile_threads=threads)
        assert channel.ask({}, 60)["found"] == expected
        channel.close()


@pytest.fixture
def others_may(tmp_path, monkeypatch):
    """May the process of another arm use the GPU in this way, now?"""
    path = tmp_path / "lock"
    path.touch()
    with path.open() as mine, path.open() as other:
        monkeypatch.setattr(ablation, "_gpu_lock", mine.fileno)

        def may(how):
            try:
                fcntl.flock(other, how | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            fcntl.flock(other, fcntl.LOCK_UN)
            return True

        yield lambda: (may(fcntl.LOCK_SH), may(fcntl.LOCK_EX))


def test_an_arm_tunes_while_no_other_one_checks(others_may):
    checking, tuning, anything = (True, False), (False, False), (True, True)
    assert others_may() == anything
    with ablation.using_gpu(fcntl.LOCK_SH):
        assert others_may() == checking
        with ablation._alone():  # a kernel that is tuned late
            assert others_may() == tuning
        assert others_may() == checking
    assert others_may() == anything
    with pytest.raises(RuntimeError), ablation._alone():
        raise RuntimeError
    assert others_may() == anything


def test_two_arms_that_tune_late_do_not_wait_for_each_other(others_may, tmp_path):
    """Another process checks, and tunes as this one does."""
    ready, go = tmp_path / "ready", tmp_path / "go"
    code = (
        "import fcntl, pathlib, sys, time\n"
        "lock, ready, go = map(pathlib.Path, sys.argv[1:])\n"
        "file = lock.open(); fcntl.flock(file, fcntl.LOCK_SH); ready.touch()\n"
        "while not go.exists(): time.sleep(0.01)\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
    )
    with ablation.using_gpu(fcntl.LOCK_SH):
        other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock"), str(ready), str(go)])
        while not ready.exists():
            time.sleep(0.01)
        assert others_may() == (True, False)
        go.touch()
        with ablation._alone():  # once the other one has given up its lock, or has ended
            pass
    assert other.wait(timeout=30) == 0


def test_a_missing_setting_is_reported_before_compiling():
    with pytest.raises(NotSupported, match=r"has no setting triton\.forgotten"):
        ablation.TrainingStep(
            "small.demucs.fp32", {**s4.INDUCTOR.spec, "patches": {"triton.forgotten": True}}, "cpu", 1
        )


def test_steps_leave_whole_suites_and_static_shapes_come_first():
    names = [step.name for step in s4.steps("h200", quick=False)]
    kinds = ("", "-dynamic", "-today", "-bf16")
    assert names == [f"{suite}{kind}" for kind in kinds for suite in ("language", "vision", "small")]
    for step in s4.steps("h200", quick=False):
        assert step.arms[0] is s4.INDUCTOR
        for case in step.cases:
            blocks.find(case)
    assert sum(len(step.cases) for step in s4.steps("h200", quick=True)) == 12
