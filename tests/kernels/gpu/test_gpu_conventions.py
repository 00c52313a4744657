"""Functions that overwrite their inputs, and those that round before the weight, in CUDA graphs."""

import statistics

import pytest

from kernels.arena import protocol
from kernels.arena.pool import Contender
from kernels.arena.session import Pace, run_trial
from kernels.cases import Case, Role, Rounding

pytestmark = pytest.mark.gpu
PACE = Pace(rounds=6, start_limit_s=120)
TARGET = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, residual, weight, y, added, cols, eps, BLOCK: tl.constexpr, BEFORE: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < cols
    here = tl.program_id(0).to(tl.int64) * cols + at
    rows = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
    rows = (rows + tl.load(residual + here, mask=inside, other=0.0).to(tl.float32)).to(added.dtype.element_ty)
    tl.store(added + here, rows, mask=inside)
    rows = rows.to(tl.float32)
    normal = rows * tl.rsqrt(tl.sum(rows * rows, 0) / cols + eps)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if BEFORE:
        normal = normal.to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + here, normal * w, mask=inside)


def run(x, residual, weight, y, added, eps, before):
    block = triton.next_power_of_2(x.shape[1])
    kernel[(x.shape[0],)](x, residual, weight, y, added, x.shape[1], eps, BLOCK=block, BEFORE=before, num_warps=8)


def apart(x, residual, weight, eps):
    y, added = torch.empty_like(x), torch.empty_like(x)
    run(x, residual, weight, y, added, eps, False)
    return y, added


def inplace(x, residual, weight, eps):
    run(x, residual, weight, x, residual, eps, False)


def copies(x, residual, weight, eps):
    x, residual = x.clone(), residual.clone()
    run(x, residual, weight, x, residual, eps, False)
    return x, residual


def before(x, residual, weight, eps):
    y, added = torch.empty_like(x), torch.empty_like(x)
    run(x, residual, weight, y, added, eps, True)
    return y, added


SEEN = []


def stops_after_a_while(x, residual, weight, eps):
    SEEN.append(1)
    if len(SEEN) < 20:
        run(x, residual, weight, x, residual, eps, False)
"""
CASES = [Case.parse(f"rmsnorm_residual.fwd.{shape}.bf16") for shape in ("4096x1024", "8192x4096", "2048x8192")]


@pytest.fixture
def named(tmp_path, open_contender):
    (tmp_path / "conventions.py").write_text(TARGET)

    def contender(name, **options):
        spec = protocol.targets_own(name, {"rmsnorm_residual.fwd": f"conventions:{name}"}, **options)
        return Contender(name, Role.HEAD, spec, lambda: open_contender(PYTHONPATH=str(tmp_path)))

    return contender


def medians(trial, case, *names):
    cells = [trial.cells[name, case] for name in names]
    assert [(cell.state, cell.reason) for cell in cells] == [("measured", None)] * len(names)
    return [statistics.median(us for us in cell.samples if us) for cell in cells]


def test_restoring_is_not_timed(named):
    contenders = [named("inplace", inplace=True), named("apart"), named("copies")]

    trial = run_trial(contenders, CASES, PACE, device="cuda", seed=1)

    for case in CASES:
        inplace, apart, copies = medians(trial, case, "inplace", "apart", "copies")
        print(case, f"in place {inplace:.2f} us, apart {apart:.2f} us, with copies {copies:.2f} us")
        assert inplace < 1.1 * apart
        assert copies > 1.2 * inplace, "what a timed copy costs"
        facts = trial.cells["inplace", case].facts
        assert facts["inplace"] is True
        assert facts["code"] == trial.cells["apart", case].facts["code"] or facts["kind"] == "triton"


def test_a_graph_that_leaves_outputs_out_is_wrong(named):
    cell = run_trial([named("stops_after_a_while", inplace=True)], CASES[:1], PACE, device="cuda", seed=1).cells[
        "stops_after_a_while", CASES[0]
    ]

    assert cell.state == "invalid"


def test_both_conventions_are_measured_in_one_session(named):
    contenders = [named("apart"), named("before", rounding=Rounding.BEFORE_WEIGHT)]

    trial = run_trial(contenders, CASES, PACE, device="cuda", seed=1)

    for case in CASES:
        medians(trial, case, "apart", "before")
        assert trial.cells["before", case].facts["rounding"] == "before-weight"
        assert "rounding" not in trial.cells["apart", case].facts


def test_without_the_convention_the_reason_names_it(named):
    cell = run_trial([named("before")], CASES[1:2], PACE, device="cuda", seed=1).cells["before", CASES[1]]

    assert cell.state == "invalid"
    assert 'it is right with rounding = "before-weight"' in cell.reason
