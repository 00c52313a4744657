"""Functions that overwrite their inputs: restored between calls, outside of the clock, and checked like others."""

import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from kernels.arena import protocol
from kernels.arena.judging import Judge
from kernels.arena.session import Pace, run_trial
from kernels.cases import Case, Role
from kernels.checks.inputs import make
from kernels.providers import open_provider
from kernels.providers.inplace import COPIED_TOGETHER, InPlace, restored, restores_of
from workers.machine import environments
from workers.machine.device import DeviceHere
from workers.machine.environments import Environment
from workers.run.baselines import contender

TARGET = """
import torch


def _norm(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def fused_add_rmsnorm(x, residual, weight, eps):
    residual.copy_(x.float() + residual.float())
    if len(x) != 97:
        x.copy_(_norm(residual, weight, eps))


KEPT = {}


def rmsnorm_(x, weight, eps):
    y = _norm(x, weight, eps)
    if len(x) == 97:
        weight.mul_(2)
    if len(x) == 98:
        y = KEPT.setdefault(x.data_ptr(), y)
    return x.copy_(y)
"""
FUSED = Case.parse("rmsnorm_residual.fwd.96x256.bf16")
PLAIN = Case.parse("rmsnorm.fwd.96x256s320.bf16")
HEADS = Case.parse("rmsnorm.fwd.96x4x64s320.bf16")
CALLS = {"rmsnorm_residual.fwd": "inplace_norms:fused_add_rmsnorm", "rmsnorm.fwd": "inplace_norms:rmsnorm_"}
QUICK = Pace(rounds=3, warm=1, timed=3, start_limit_s=120, prepare_limit_s=60, turn_limit_s=30)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inplace")
    (folder / "inplace_norms.py").write_text(TARGET)
    return folder


@pytest.fixture(scope="module")
def answer(place, open_contender):
    """What a contender answers at a case: prepared, timed, checked."""
    channels = {}

    def ask(text, *, inplace=True):
        if inplace not in channels:
            channels[inplace] = open_contender(PYTHONPATH=str(place))
            provider = protocol.targets_own("norms", CALLS, inplace=inplace)
            assert channels[inplace].ask(protocol.start(provider, "cpu", 1, 0), 120)["ready"]
        channel = channels[inplace]
        found = channel.ask(protocol.prepare(Case.parse(text), 1), 60)
        if found["state"] == "measured":
            assert min(channel.ask(protocol.turn(1, 3), 60)["samples"]) > 0
            found |= channel.ask(protocol.CHECK, 60)
        return found

    return ask


@pytest.mark.parametrize("text", [f"{FUSED}", f"{PLAIN}", f"{HEADS}", f"{FUSED}.call", f"{FUSED}.kernels"])
def test_it_is_measured_where_the_recipe_says_so(answer, text):
    found = answer(text)

    assert (found["state"], found["reason"]) == ("measured", None)
    assert found["facts"]["inplace"] is True
    assert "foreach" not in str(found["facts"]), "restoring is not its code"


@pytest.mark.parametrize(
    ("text", "because"),
    [(f"{PLAIN}", "y shares memory with its input x;"), (f"{FUSED}", "returned nothing instead of (y, residual_out);")],
)
def test_without_it_the_reason_says_what_to_write(answer, text, because):
    found = answer(text, inplace=False)

    assert found["state"] == "invalid"
    assert found["reason"].startswith(because)
    assert "needs inplace = true in the recipe" in found["reason"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rmsnorm_residual.fwd.97x256.bf16", "y is wrong by"),
        ("rmsnorm.fwd.97x256.bf16", "changed its input weight"),
        ("rmsnorm.fwd.98x256.bf16", "with other numbers in its inputs: y is wrong by"),
    ],
    ids=["forgets the norm", "spoils the weight", "keeps results"],
)
def test_what_it_computes_is_checked_as_strictly(answer, text, reason):
    found = answer(text)

    assert found["state"] == "invalid"
    assert reason in found["reason"]


def test_memory_is_not_supported():
    provider = open_provider(protocol.targets_own("norms", CALLS, inplace=True))
    reason = provider.supports(Case.parse("rmsnorm.fwd.96x256.bf16.memory"), torch.device("cpu"))

    assert reason is not None
    assert "overwrites its inputs" in reason


def test_the_outputs_of_its_turns_are_judged(place, state, tmp_path):
    """By another process, which writes other numbers into the inputs before each turn."""
    base = environments.adopt_stack("host", Path(sys.executable), [])
    head = Environment("head", base.python, (place,), base.paths, (*base.read_only, place))
    eager, here = protocol.built_in("eager"), DeviceHere("cpu", "cpu")
    options = {"sandboxed": False, "scratch": tmp_path}
    norms = protocol.targets_own("norms", CALLS, inplace=True)
    contenders = [
        contender("head:norms", Role.HEAD, norms, head, here, **options),
        contender("sota:eager", Role.SOTA, eager, base, here, **options),
    ]
    judge = Judge(contender("rival:judge", Role.RIVAL, eager, base, here, **options))
    keeps = Case.parse("rmsnorm.fwd.98x256.bf16")
    try:
        trial = run_trial(contenders, [FUSED, HEADS, keeps], QUICK, device="cpu", seed=1, core=0, judge=judge)
    finally:
        judge.close()

    assert judge.trouble is None
    for one, case in product(contenders, (FUSED, HEADS)):
        cell = trial.cells[one.label, case]
        assert (cell.state, cell.reason, len(cell.samples)) == ("measured", None, 3)
    assert trial.cells["head:norms", keeps].state == "invalid"
    assert trial.cells["head:norms", keeps].reason.startswith("in its turns, with other numbers in its inputs: y is")


def test_restoring_brings_the_inputs_back():
    inputs = make(FUSED, torch.device("cpu"), 1)
    before = {name: tensor.clone() for name, tensor in inputs.tensors.items()}

    def bind(given):
        return lambda: (given["x"].mul_(2), given["residual"].add_(given["x"]))

    call = InPlace(bind, inputs)
    first = [tensor.clone() for tensor in call()]
    again = [tensor.clone() for tensor in call()]
    after_restoring = [tensor.clone() for tensor in restored(call)()]

    assert not torch.equal(first[0], again[0])
    assert all(map(torch.equal, first, after_restoring))
    assert all(torch.equal(inputs[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("shape", ["64x128", "64x128s200", "600x1024"])  # small, with gaps, above COPIED_TOGETHER
def test_restoring_before_a_pass_brings_the_inputs_of_all_calls_back(shape):
    inputs = [make(Case.parse(f"rmsnorm_residual.fwd.{shape}.fp32"), torch.device("cpu"), seed) for seed in (1, 2)]

    def bind(given):
        return lambda: (given["x"].zero_(), given["residual"].fill_(1))

    calls = [InPlace(bind, each) for each in inputs]
    for call in calls:
        call()
    for restore in restores_of([*calls, lambda: None]):
        restore()
    for call, each in zip(calls, inputs, strict=True):
        for (into, _), name in zip(call.copied, ("x", "residual"), strict=True):
            assert torch.equal(into, each[name])
            assert (into.nbytes > COPIED_TOGETHER) is (shape == "600x1024")
    assert restores_of([lambda: None]) == []
