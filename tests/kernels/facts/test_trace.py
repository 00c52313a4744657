"""Operators written in Python: replaced by their launches if all of them were observed, otherwise unknown."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import kernels
from kernels.facts import gather
from kernels.norms.modules import rms_norm

ROOT = Path(kernels.__file__).parents[1]

PLANTED = """
import torch
import triton
import triton.language as tl

on_the_stream = []


@triton.jit
def copy(X, Y, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols))


def launched(x, warps=4):
    y = torch.empty_like(x)
    copy[(1,)](x, y, 256, num_warps=warps)
    return y


def hides(x):
    on_the_stream.append("kernel_of_an_extension")
    return launched(x)


def calls_torch(x):
    return launched(x) + 1


def raises_while_captured(x):
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("operation not permitted when stream is capturing")
    return launched(x)


def launches_elsewhere(x):  # what nobody orders after the stream is not captured
    return torch.empty_like(x)


def nests(x):
    return torch.ops.planted.knows.default(x)


def nests_what_hides(x):
    return torch.ops.planted.hides.default(x)


CODE = {
    "knows": launched,
    "knows_wider": lambda x: launched(x, 8),
    "hides": hides,
    "calls_torch": calls_torch,
    "raises_while_captured": raises_while_captured,
    "launches_elsewhere": launches_elsewhere,
    "nests": nests,
    "nests_what_hides": nests_what_hides,
}
library = torch.library.Library("planted", "FRAGMENT")
for name, code in CODE.items():
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, code, "CUDA")
library.define("of_c(Tensor x) -> Tensor")  # a library registered it, not Python
for name in (*CODE, "of_c"):
    torch.library.register_fake(f"planted::{name}", torch.empty_like, lib=library)


@torch.library.custom_op("planted::custom", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    return launched(x)


@torch.library.custom_op("planted::custom_hides", mutates_args=())
def custom_hides(x: torch.Tensor) -> torch.Tensor:
    return hides(x)
"""

# A device that is not there, but notes what it would launch.  A launch calls the hook, as the driver's own launcher.
OBSERVED = """
import torch
from kernels.facts.offline import backwards
from kernels.facts.architectures import KNOWN
from kernels.facts.offline.launches import Launches
from kernels.facts.offline.operators import EnteringOffline
from kernels.facts.offline.pretend import become
from kernels.facts.gather import _facts
from kernels.facts.trace import Entering, Seen, triton_launches

mode = become(KNOWN["sm_90"])
backwards.install()

from planted import on_the_stream


class Noting(Launches):
    def _launched(self, kernel, x, y, z, *more):
        stream, function, packed, metadata, entered, left, *arguments = more
        entered(metadata)
        on_the_stream.append(kernel.metadata.name)


Noting(KNOWN["sm_90"])


def kernels_of_call(call):
    on_the_stream.clear()
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        with EnteringOffline(Seen()):  # a device runs the code of operators
            call()
    finally:
        torch.cuda.is_current_stream_capturing = lambda: False
    return list(on_the_stream)


def facts(call):
    with mode:
        seen = Seen()
        with triton_launches(seen), Entering(seen, kernels_of_call):
            call()
    return _facts(seen, False, ())


def asked(name):
    return facts(lambda: getattr(torch.ops.planted, name).default(torch.empty(256, device="cuda")))
"""

KNOWN_AND_UNKNOWN = """
knows, plain = asked("knows"), facts(lambda: __import__("planted").launched(torch.empty(256, device="cuda")))
assert (knows["kind"], knows["kernels"], knows["triton"][0]["name"]) == ("triton", 1, "copy"), knows
assert knows == plain == asked("custom") == asked("nests"), "the operator is what is launched inside"
assert asked("knows_wider")["code"] != knows["code"]

for name in ("hides", "custom_hides", "calls_torch", "raises_while_captured", "launches_elsewhere", "of_c"):
    unknown = asked(name)
    assert (unknown["kind"], unknown["code"]) == (None, None), (name, unknown)
    assert unknown["ops"][-1] == f"planted::{name}", unknown
for name in ("hides", "calls_torch"):
    assert asked(name)["kernels"] == 2, "the operator, and the launch that was seen in it"
nested = asked("nests_what_hides")
assert (nested["code"], nested["ops"][-1]) == (None, "planted::nests_what_hides"), nested
"""

NORMS = """
from kernels.norms.modules import layer_norm, rms_norm


def step(norm):
    def call():
        x, dy, weight = (torch.empty(*shape, device="cuda") for shape in ((64, 512), (64, 512), (512,)))
        x.requires_grad_(), weight.requires_grad_()
        return torch.autograd.grad(norm(x, weight, eps=1e-6), (x, weight), dy)

    return facts(call)


first = step(rms_norm)
assert first["kind"] == "triton" and first["kernels"] == len(first["triton"]) >= 2, first
assert [one["name"] for one in first["triton"]][:2] == ["_forward", "_backward"]
forward = first["triton"][0]
sizes = sorted(one["size"] for one in forward["reads"].values())
assert 64 * 512 * 4 in sizes, (forward["reads"], "the bytes of x as the launch got it")
assert forward["bytes"] >= 2 * 64 * 512 * 4, "read and written"
assert not [name for name in first["ops"] if name.startswith("kernelwatch::")], first["ops"]
assert step(rms_norm)["code"] == first["code"]
assert step(lambda x, weight, eps: layer_norm(x, weight, None, eps=eps))["code"] != first["code"]
"""


def observed(folder, then):
    (folder / "planted.py").write_text(PLANTED)
    spoken = subprocess.run(
        [sys.executable, "-c", OBSERVED + then],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "TRITON_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert spoken.returncode == 0, spoken.stderr[-3000:]


def test_an_operator_is_known_only_where_all_that_it_launches_was_seen(tmp_path):
    observed(tmp_path, KNOWN_AND_UNKNOWN)


def test_our_own_norms_are_known_there_and_back(tmp_path):
    observed(tmp_path, NORMS)


def test_on_a_processor_an_operator_is_not_entered():
    x = torch.ones(4, 8)
    found = gather.gather(lambda: rms_norm(x, eps=1e-6), compiled=False, pinned=(), cuda=False)

    assert (found["ops"], found["kind"], found["code"]) == (["kernelwatch::norm_forward"], None, None)
