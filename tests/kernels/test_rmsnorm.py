"""Our Triton RMSNorm against float64, in Triton's interpreter; and facts about Triton kernels that need no GPU."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kernels

ROOT = Path(kernels.__file__).parents[1]

INTERPRETED = """
import json, sys, torch
from kernels import oracle, rmsnorm
from kernels.inputs import make
from kernels.providers import forward_backward, ours
from kernels.providers.pair import differentiable
from kernels.words import Case


def call_of(case, inputs):
    if case.direction == "fwdbwd":
        return forward_backward(case, differentiable(ours.pair(case)))(inputs)
    function = rmsnorm.forward if case.direction == "fwd" else rmsnorm.backward
    return lambda: function(*inputs.arguments)

found = {}
for text in sys.argv[1:]:
    case = Case.parse(text)
    inputs = make(case, torch.device("cpu"), 1)
    call = call_of(case, inputs)
    outputs = [oracle.named(case, call()) for _ in range(2)]
    finding = oracle.Oracle(inputs).judge(inputs, outputs[0])
    same = all(torch.equal(outputs[0][name], outputs[1][name]) for name in outputs[0])
    found[text] = {"reason": finding.reason, "errors": finding.errors, "same": same}
print(json.dumps(found))
"""
EXACT = [
    f"rmsnorm.{direction}.{shape}"
    for direction in ("fwd", "bwd")
    for shape in (
        "37x256.fp32",
        "33x320.fp16-fp32",
        "9x1000.fp32",
        "4x3000.fp16",
        "4x12288.fp32",
        "1x1.fp32",
    )
] + ["rmsnorm.fwdbwd.33x320.fp16-fp32", "rmsnorm.fwdbwd.4x12288.fp32", "rmsnorm.fwdbwd.9x300s384.fp32"]
IN_BF16 = ["rmsnorm.fwd.37x512.bf16-fp32", "rmsnorm.bwd.37x512.bf16-fp32", "rmsnorm.bwd.4x2048.bf16"]


@pytest.fixture(scope="module")
def interpreted():
    spoken = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERPRETED, *EXACT, *IN_BF16],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert spoken.returncode == 0, spoken.stderr[-2000:]
    return json.loads(spoken.stdout)


@pytest.mark.parametrize("text", EXACT)
def test_it_is_right(interpreted, text):
    assert interpreted[text]["reason"] is None
    assert interpreted[text]["same"]


@pytest.mark.parametrize("text", IN_BF16)
def test_it_is_right_in_bf16_as_far_as_the_interpreter_goes(interpreted, text):
    # Triton's interpreter cuts off where a GPU rounds: up to one unit in the last place instead of half a one.
    assert max(interpreted[text]["errors"].values()) < 2**-7


KERNEL = """
import triton
import triton.language as tl


@triton.jit
def copy(X, Y, N, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols, cols < N) * FACTOR, cols < N)
"""
COMPILED = """
import sys
sys.path.insert(0, sys.argv[1])
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.facts import normalised_ptx

for name in ("here", "lower", "other"):
    kernel = __import__(name).copy
    source = ASTSource(kernel, {"X": "*fp32", "Y": "*fp32", "N": "i32", "BLOCK": "constexpr"}, {(3,): 256})
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert ".loc" in ptx
    print(hash(normalised_ptx(ptx)))
"""


LAUNCHED = """
import sys
sys.path.insert(0, sys.argv[1])
from contextlib import suppress
import torch, triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.facts import _facts
from kernels.observing import Seen, triton_launches
from here import copy

source = ASTSource(copy, {"X": "*fp32", "Y": "*fp32", "N": "i32", "BLOCK": "constexpr"}, {(3,): 256})
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
before, hooks = type(kernel).launch_metadata, len(knobs.runtime.launch_enter_hook.calls)

def facts(grid=(4,), n=1000, x=0, operators=(), others=0):
    seen = Seen(operators=list(operators), described=list(operators))
    with triton_launches(seen):
        with suppress(Exception):  # there is no device here; what follows is what a launch does
            kernel.launch_metadata(grid, 0, torch.full([1000], float(x)), torch.empty(1000), n, 256)
        for _ in range(1 + others):
            knobs.runtime.launch_enter_hook(None)
    return _facts(seen, False, ())

usual = facts()
assert (usual["kind"], usual["kernels"]) == ("triton", 1), usual
assert usual["triton"][0]["name"] == "copy"
assert facts(x=1)["code"] == facts(grid=(4, 1))["code"] == usual["code"]  # other numbers in a tensor
assert facts(operators=["aten::empty"])["kind"] == "triton"
different = [facts(grid=(8,)), facts(n=999), facts(operators=["aten::add"])]
assert len({each["code"] for each in [usual, *different]}) == 4
for unknown in (facts(operators=["mylib::norm"]), facts(others=1)):
    assert (unknown["kind"], unknown["code"]) == (None, None)
assert (type(kernel).launch_metadata, len(knobs.runtime.launch_enter_hook.calls)) == (before, hooks)
"""


def test_the_same_code_is_the_same_kernel_launched_the_same_way(tmp_path):
    (tmp_path / "here.py").write_text(KERNEL.replace("FACTOR", "2"))

    spoken = subprocess.run(
        [sys.executable, "-c", LAUNCHED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert spoken.returncode == 0, spoken.stderr[-2000:]


def test_moving_a_kernel_in_its_file_does_not_change_its_code(tmp_path):
    (tmp_path / "here.py").write_text(KERNEL.replace("FACTOR", "2"))
    (tmp_path / "lower.py").write_text("# more\n" * 40 + KERNEL.replace("FACTOR", "2"))
    (tmp_path / "other.py").write_text(KERNEL.replace("FACTOR", "3"))

    spoken = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COMPILED), str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert spoken.returncode == 0, spoken.stderr[-2000:]
    here, lower, other = spoken.stdout.split()
    assert here == lower != other
