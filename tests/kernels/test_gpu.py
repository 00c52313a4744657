"""Contenders on a real GPU: graphs, events, facts, and cached results."""

from functools import partial

import pytest
import torch

from kernels.arena import protocol
from kernels.arena.session import Pace, run_trial
from kernels.cases import Case, Role
from kernels.metrics.clocks import CudaClock

from .conftest import OWN

pytestmark = pytest.mark.gpu
CASES = [
    Case.parse(f"rmsnorm.{direction}.4096x{cols}.bf16-fp32") for direction in ("fwd", "bwd") for cols in (256, 16384)
]
PACE = Pace(rounds=4, start_limit_s=120)


@pytest.mark.parametrize("name", ["eager", "inductor", "triton"])
def test_measured_with_facts(contender, name):
    trial = run_trial([contender(name, protocol.built_in(name), Role.SOTA)], CASES, PACE, device="cuda", seed=1)

    for case in CASES:
        cell = trial.cells[name, case]
        assert (cell.state, cell.reason) == ("measured", None), case
        assert 1 < min(cell.samples) < 100_000
        assert cell.facts["code"]
        if name != "eager":
            assert cell.facts["registers"] > 0
            assert "num_warps=" in cell.facts["config"]


def test_a_kept_result_is_not_fast(contender, moods):
    case = Case.parse(f"rmsnorm.fwd.{moods['keeps']}x1024.fp32")
    cell = run_trial([contender("head")], [case], PACE, device="cuda", seed=1).cells["head", case]

    assert cell.state == "invalid"
    assert "its CUDA graph computes something else than its calls: y has" in cell.reason


def test_a_failed_capture_is_reported_and_affects_no_other_case(contender, moods):
    syncs, honest = (Case.parse(f"rmsnorm.fwd.{moods[mood]}x1024.bf16") for mood in ("syncs", "honest"))
    cells = run_trial([contender("head")], [syncs, honest], PACE, device="cuda", seed=1).cells

    assert cells["head", syncs].state == "failed"
    assert "cannot be captured in a CUDA graph: " in cells["head", syncs].reason
    assert "norms.py:" in cells["head", syncs].reason
    assert "INTERNAL ASSERT" not in cells["head", syncs].reason
    assert (cells["head", honest].state, cells["head", honest].reason) == ("measured", None)


def test_equal_contenders_have_equal_code_and_equal_numbers_of_calls(contender):
    names = {"one": "triton", "two": "triton", "slow": "eager"}
    contenders = [contender(label, protocol.built_in(name)) for label, name in names.items()]
    cells = run_trial(contenders, CASES, PACE, device="cuda", seed=1).cells

    for case in CASES:
        one, two, slow = (cells[label, case] for label in names)
        assert one.facts["kind"] == "triton"
        assert one.facts["code"] == two.facts["code"]
        assert one.extra["calls"] == two.extra["calls"] >= slow.extra["calls"]


def test_outputs_are_as_many_as_inputs():
    addresses, stream = [], torch.cuda.Stream()

    def double(x):
        y = x * 2
        addresses.append(y.data_ptr())
        return y

    with torch.cuda.stream(stream):
        inputs = [torch.ones(1 << 20, device="cuda") for _ in range(6)]
        clock = CudaClock([partial(double, x) for x in inputs], stream, Case.parse("rmsnorm.fwd.1024x1024.fp32"))
        stream.synchronize()

    assert clock.calls == 486  # two milliseconds of a kernel that moves 8 MB, and a multiple of 6
    assert len(set(addresses[-clock.calls :])) >= len(inputs)
    [(_, y), (number, last)] = clock.again()
    assert number == 5
    assert y.sum() == last.sum() == 2 << 20


def test_own_functions(contender, moods):
    case = Case.parse(f"rmsnorm.fwd.{moods['honest']}x1024.bf16")
    assert contender("head").provider is OWN
    cell = run_trial([contender("head")], [case], PACE, device="cuda", seed=1).cells["head", case]
    assert (cell.state, cell.facts["kind"]) == ("measured", "operators")
    assert cell.extra["l2_resident"]
