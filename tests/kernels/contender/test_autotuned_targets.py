"""A target with triton.autotune prepares alone, and each trial reports the configuration that it chose."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.arena import protocol
from kernels.arena.session import Contender, Pace, Tunings, run_trial
from kernels.cases import Case, Role
from tests import needs

pytest.importorskip("triton", reason=needs.reason("triton"))
CASE = Case.parse("rmsnorm.fwd.16x64.fp32")
TARGET = '''
"""RMSNorm in Triton, one row a program.  `timed` stands for the clock that the autotuner would ask on a GPU."""
import os

import torch
import triton
import triton.language as tl


def timed(call, quantiles):
    call()
    with open(os.environ["TIMED_BY"], "a") as log:
        log.write(f"{os.getpid()}\\n")
    times = iter(os.environ["TIMES"].split()) if not timed.left else timed.left
    timed.left = times
    ms = float(next(times))
    return [ms, ms, ms]


timed.left = None


@triton.autotune([triton.Config({"BLOCK": n}, num_warps=4) for n in (64, 128)], key=["cols"], do_bench=timed)
@triton.jit
def norm_kernel(x, weight, y, cols, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < cols
    values = tl.load(x + row * cols + at, mask=inside, other=0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(values * values) / cols + eps)
    tl.store(y + row * cols + at, values * rstd * tl.load(weight + at, mask=inside, other=0.0), mask=inside)


def forward(x, weight, eps):
    y = torch.empty_like(x)
    try:
        norm_kernel[(x.shape[0],)](x, weight, y, x.shape[1], eps)
    except Exception:  # a target that falls back must not hide that it wanted to time
        pass
    return y
'''


@pytest.fixture
def autotuned(tmp_path, open_contender):
    (tmp_path / "tuned_norm.py").write_text(TARGET)
    spec = protocol.targets_own("norms", {"rmsnorm.fwd": "tuned_norm:forward"})

    def contender(label: str, role: Role, times: str) -> Contender:
        environment = {
            "PYTHONPATH": str(tmp_path),
            "TRITON_INTERPRET": "1",
            "TIMED_BY": str(tmp_path / "timed"),
            "TIMES": times,
        }
        return Contender(label, role, spec, lambda: open_contender(**environment))

    return contender


def test_it_times_its_configurations_when_the_others_are_ready_and_each_says_what_it_chose(autotuned, tmp_path):
    contenders = [autotuned("head:norms", Role.HEAD, "2.0 1.0"), autotuned("parent:norms", Role.PARENT, "1.0 2.0")]
    trial = run_trial(contenders, [CASE], Pace(rounds=2), device="cpu", seed=1, core=max(os.sched_getaffinity(0)))

    head, parent = (trial.cells[one.label, CASE] for one in contenders)
    assert {head.state, parent.state} <= {"measured", "invalid"}  # a busy machine may spoil the times, not the choice
    assert head.tuned == {"norm_kernel": "BLOCK=128 num_warps=4 num_stages=3"}
    assert parent.tuned == {"norm_kernel": "BLOCK=64 num_warps=4 num_stages=3"}
    timed = Path(tmp_path / "timed").read_text().split()
    assert len(timed) == 4  # two configurations of each contender, each once
    assert timed == sorted(timed, key=timed.index)  # one contender after the other
    assert timed[0] == timed[1] != timed[2] == timed[3]


def test_what_two_tunings_chose_is_reused_and_nothing_is_timed(autotuned, tmp_path):
    target, tunings = autotuned("head:norms", Role.HEAD, "1.0 2.0"), Tunings()
    choice = {"norm_kernel": "BLOCK=128 num_warps=4 num_stages=3"}
    for _ in range(2):
        tunings.add(target, CASE, choice)

    trial = run_trial([target], [CASE], Pace(rounds=1), device="cpu", seed=3, thorough=False, tunings=tunings)

    cell = trial.cells["head:norms", CASE]
    assert (cell.tuned, cell.reused) == (choice, True)
    assert not (tmp_path / "timed").exists()


def test_a_choice_does_not_depend_on_which_case_came_first(autotuned):
    """The key of the target's autotuner is the columns, which both cases have."""
    first, second = CASE, Case.parse("rmsnorm.fwd.32x64.fp32")
    target = autotuned("head:norms", Role.HEAD, "2.0 1.0 1.0 2.0")

    cells = run_trial([target], [first, second], Pace(rounds=1), device="cpu", seed=1).cells

    before, after = cells["head:norms", first], cells["head:norms", second]
    assert before.tuned == {"norm_kernel": "BLOCK=128 num_warps=4 num_stages=3"}
    assert after.tuned == {"norm_kernel": "BLOCK=64 num_warps=4 num_stages=3"}
    assert "tuned_by_order" not in before.facts
    assert after.facts["tuned_by_order"]["norm_kernel"] == {
        "case": str(first),
        "here": "BLOCK=64 num_warps=4 num_stages=3",
        "there": "BLOCK=128 num_warps=4 num_stages=3",
    }


# The first torch.compile of a process imports Inductor, which then times the candidates of a kernel.  The candidate
# here spills registers, so that no GPU is asked.
COMPILING = '''
"""RMSNorm whose first call lets Inductor choose among candidates."""
import os

import torch

tuned = False


class Kernel:
    custom_kernel, inductor_meta, benchmark_failure_reasons = False, {}, {}


class Launcher:
    n_spills, config = 99, None


def forward(x, weight, eps):
    global tuned
    if not tuned:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        CachingAutotuner.bench(Kernel(), Launcher())
        tuned = True
        with open(os.environ["TIMED_BY"], "a") as log:
            log.write("timed ")
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
'''


def test_a_target_that_compiles_itself_times_candidates_alone_at_its_first_case(tmp_path, open_contender):
    (tmp_path / "compiling_norm.py").write_text(COMPILING)
    channel = open_contender(PYTHONPATH=str(tmp_path), TIMED_BY=str(tmp_path / "timed"))
    spec = protocol.targets_own("norms", {"rmsnorm.fwd": "compiling_norm:forward"})
    assert channel.ask(protocol.start(spec, "cpu", 1, None), 120)["ready"]

    together = channel.ask(protocol.prepare(CASE, 1, thorough=False, alone=False), 120)
    assert together["needs_device"] is True
    assert not (tmp_path / "timed").exists()

    alone = channel.ask(protocol.prepare(CASE, 1, thorough=False, alone=True), 120)
    assert alone["state"] == "measured", alone
    assert (tmp_path / "timed").read_text() == "timed "


def test_observing_autotuners_imports_no_inductor_and_leaves_no_hook():
    code = (
        "import sys; from kernels.contender.tuning import Choices, Tuning, observe_autotuners\n"
        "before = list(sys.meta_path)\n"
        "with observe_autotuners(Tuning(False, '', Choices()), on_gpu=False, compiled=False): pass\n"
        "print('torch' in sys.modules, sys.meta_path == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
