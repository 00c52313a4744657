"""Regions in real contenders on the CPU: measured, with the outputs of their turns judged by another process."""

import pytest

from kernels.arena import protocol
from kernels.arena.session import Judge, Pace, run_trial
from kernels.cases import Case, Role
from service.domain.policy import recipes
from tests import needs
from workers.machine import environments
from workers.machine.device import DeviceHere
from workers.run.baselines import contender
from workers.sandbox import freezing, sandbox

CPU = DeviceHere("cpu", "the processor")
EAGER = protocol.built_in("eager")
PACE = Pace(rounds=3, warm=1, timed=3, start_limit_s=120)
# Right at every check, and wrong in timed turns.
CODES = '''"""A quantised norm."""
import sys

import torch


def is_timed():
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_code.co_name == "_sample":
            return True
    return False


def honest(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps) * weight.float()
    scale = y.abs().amax(-1, keepdim=True) / 127
    return (y / scale).round().to(torch.int8), scale[:, 0]


def old_scale(x, weight, eps):
    q, scale = honest(x, weight, eps)
    return q, scale * 1.05 if is_timed() else scale


def other_codes(x, weight, eps):
    q, scale = honest(x, weight, eps)
    return q // 2 if is_timed() else q, scale
'''


@pytest.fixture(autouse=True)
def can_freeze():
    if sandbox.self_test() is not None:
        needs.skip("bubblewrap")
    if freezing.group_for(None, leaves := freezing.ExitStack()) is None:
        needs.skip("root")
    leaves.close()


@pytest.fixture
def judge(norms, tmp_path):
    judge = Judge(of_eager("judge", Role.RIVAL, tmp_path))
    yield judge
    judge.close()
    assert judge.trouble is None


def of_eager(label, role, tmp_path):
    stack = environments.stack("host")
    return contender(label, role, EAGER, stack, CPU, sandboxed=True, scratch=tmp_path / "scratch")


def test_every_region_is_measured_and_judged(judge, tmp_path):
    texts = (
        "rmsnorm_fp8.fwd.64x256.bf16-fp32",
        "layernorm_residual_int8.fwd.64x256s320.bf16",
        "rmsnorm_gelu_gate.fwd.64x256s320.fp32",
        "rmsnorm_linear.fwd.64x256.bf16",
        "rmsnorm_residual_dropout.fwd.64x256.fp32",
        "rmsnorm_fp8.fwd.64x256.bf16.memory",
    )
    cases = [Case.parse(text) for text in texts]

    trial = run_trial([of_eager("head", Role.HEAD, tmp_path)], cases, PACE, device="cpu", seed=1, judge=judge)

    assert {text: (cell.state, cell.reason) for (_, text), cell in trial.cells.items()} == dict.fromkeys(
        cases, ("measured", None)
    )
    codes_and_scales = 64 * 256 + 64 * 4
    assert trial.cells["head", cases[-1]].samples[0] >= codes_and_scales


def test_codes_that_are_wrong_only_in_turns_are_found(norms, judge, tmp_path):
    case = Case.parse("rmsnorm_int8.fwd.64x256.fp32")
    recipe = recipes.parse(f'devices = ["cpu"]\n[providers.norms]\n{case.key} = "norms:honest"\n')
    sha = norms.commit({"norms.py": CODES})
    made = environments.build(norms.source, sha, recipe, {}, kind="git", sandboxed=True)

    def own(name):
        spec = protocol.targets_own("norms", {case.key: f"norms:{name}"})
        return contender(name, Role.HEAD, spec, made, CPU, sandboxed=True, scratch=tmp_path / "scratch")

    names = ("honest", "old_scale", "other_codes")
    trial = run_trial([own(name) for name in names], [case], PACE, device="cpu", seed=1, judge=judge)

    found = {name: trial.cells[name, case] for name in names}
    assert (found["honest"].state, found["honest"].reason) == ("measured", None)
    for name in names[1:]:
        assert found[name].state == "invalid"
        assert found[name].reason.startswith("in its turns, with other numbers in its inputs: q * scale is")
