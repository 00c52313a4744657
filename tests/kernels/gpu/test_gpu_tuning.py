"""On a real GPU, a target with triton.autotune tunes twice for each revision and case, and then reuses its choice."""

import pytest

from kernels.arena import protocol
from kernels.arena.session import Contender, Pace, Tunings, run_trials
from kernels.cases import Case, Role

pytestmark = [pytest.mark.gpu, pytest.mark.alone]  # its choice depends on times
CASES = [Case.parse(f"rmsnorm.fwd.{rows}x4096.bf16") for rows in (4096, 8192)]
# The candidates differ by so much that each tuning chooses the same: a program of one warp, or of eight.
TARGET = """
import os

import torch
import triton
import triton.language as tl


def timed(call, quantiles):
    with open(os.environ["TIMED"], "a") as log:
        log.write("timed ")
    return triton.testing.do_bench(call, quantiles=quantiles)


@triton.autotune(
    [triton.Config({"BLOCK": 4096}, num_warps=n) for n in (1, 8)], key=["rows", "cols"], do_bench=timed
)
@triton.jit
def norm_kernel(x, weight, y, rows, cols, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = at < cols
    values = tl.load(x + row * cols + at, mask=inside, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(values * values) / cols + eps)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * cols + at, (values * rstd * scale).to(y.dtype.element_ty), mask=inside)


def forward(x, weight, eps):
    y = torch.empty_like(x)
    norm_kernel[(x.shape[0],)](x, weight, y, *x.shape, eps)
    return y
"""


def test_a_session_tunes_twice_for_each_revision_and_case(open_contender, tmp_path):
    (tmp_path / "tuned_norm.py").write_text(TARGET)
    spec = protocol.targets_own("norms", {"rmsnorm.fwd": "tuned_norm:forward"})
    timed = tmp_path / "timed"
    contenders = [
        Contender(f"{role}:norms", role, spec, lambda: open_contender(PYTHONPATH=str(tmp_path), TIMED=str(timed)))
        for role in (Role.HEAD, Role.PARENT, Role.CONTROL)
    ]
    tunings = Tunings()

    def trials(seeds, **options):
        """How many preparations reused a choice, how many candidates were timed, and the seconds of preparing."""
        before = len(timed.read_text().split()) if timed.exists() else 0
        found = run_trials(contenders, CASES, Pace(), device="cuda", seeds=seeds, **options)
        cells = [cell for trial in found for cell in trial.cells.values()]
        # others on the machine may spoil times, not the choice
        assert {cell.state for cell in cells} <= {"measured", "invalid"}, [cell.reason for cell in cells]
        assert {tuple(cell.tuned) for cell in cells} == {("norm_kernel",)}
        seconds = sum(trial.seconds["prepare"] for trial in found)
        return sum(cell.reused for cell in cells), len(timed.read_text().split()) - before, seconds

    first, further = trials([1], tunings=tunings), trials([2, 3], tunings=tunings, thorough=False)
    confirming = trials([4], thorough=False)

    print(f"tuning: reused, candidates timed, preparation in s: {first}, {further}, {confirming}")
    assert first[:2] == (0, 12)  # two candidates of three contenders at two cases
    assert further[:2] == (10, 4)  # the head, once more at each case
    assert confirming[:2] == (0, 12)
