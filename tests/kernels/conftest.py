"""Contenders as real processes on the CPU, and a target whose behaviour depends on the number of rows."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.session import Contender
from kernels.cases import Role

# The target keeps its code in a package called `kernels`, as we do: the two must not meet.
TARGET = '''
"""A target: rmsnorm whose behaviour is chosen by the number of rows."""
import ctypes, gc, os, sys, time
import torch

MOODS = {name: 100 + number for number, name in enumerate(
    ["honest", "wrong", "nan", "half", "shape", "nothing", "writes", "keeps", "reuses", "sometimes", "prints", "exits",
     "raises", "threads", "hangs", "crashes", "leaves", "closes", "slow_crash", "forgets_eps", "syncs", "collects"])}
KEPT = {}
CALLS = {}


def definition(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def forward(x, weight, eps):
    rows = x.shape[0]
    mood = next((name for name, number in MOODS.items() if number == rows), "honest")
    calls = CALLS[mood] = CALLS.get(mood, 0) + 1
    if mood == "wrong":
        return definition(x, weight, eps) * 1.03
    if mood == "nan":
        y = definition(x, weight, eps)
        y[3, 5] = float("nan")
        return y
    if mood == "half":
        return definition(x, weight, eps).half()
    if mood == "shape":
        return definition(x, weight, eps)[:-1]
    if mood == "nothing":
        return None
    if mood == "writes":
        x *= 1.0001
    if mood == "keeps":
        if x.data_ptr() not in KEPT:
            KEPT[x.data_ptr()] = definition(x, weight, eps)
        return KEPT[x.data_ptr()]
    if mood == "reuses":
        return KEPT.setdefault("buffer", torch.empty_like(x)).copy_(definition(x, weight, eps))
    if mood == "sometimes" and calls > 12:
        x.data[0, 0] += 1
    if mood == "prints":
        print("to sys.stdout", flush=True)
        sys.__stdout__.write("to the first stdout\\n")
        os.write(1, b'{"samples": [0.001]}\\n')
        os.system("echo from a child")
        sys.stdin.read()
    if mood == "exits":
        sys.exit(3)
    if mood == "raises":
        raise ValueError("the message\\nand more of it")
    if mood == "threads":
        torch.set_num_threads(2)
    if mood == "hangs":
        time.sleep(600)
    if mood == "crashes" or (mood == "slow_crash" and calls > 30):
        ctypes.string_at(0)
    if mood == "leaves":
        os._exit(7)
    if mood == "closes":
        os.closerange(0, 256)
    if mood == "collects" and calls == 1 and not (gc.isenabled() and gc.get_freeze_count()):
        raise RuntimeError("garbage is not collected, or with everything that was imported")
    if mood == "syncs":
        x.sum().item()
    if mood == "forgets_eps":
        return definition(x, weight, 0.0)
    return definition(x, weight, eps)


def inexact(x, weight, eps):
    """Rounds before the weight."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)).bfloat16().to(x.dtype) * weight


def backward(dy, x, weight, rstd, eps):
    dy32, normal = dy.float(), x.float() * rstd[:, None]
    slope = dy32 * weight.float()
    dx = (slope - normal * (normal * slope).mean(-1, keepdim=True)) * rstd[:, None]
    return dx.to(x.dtype), (dy32 * normal).sum(0).to(weight.dtype)


def layer(x, weight, bias, eps):
    raise AssertionError("prepared instead")


def layer_prepare(case_text, inputs):
    if ".fwd.7x" in case_text:
        raise NotImplementedError("no seven rows")
    x, out = inputs["x"], torch.empty_like(inputs["x"])
    weight, bias, eps = (inputs[name] for name in ("weight", "bias", "eps"))
    return lambda: out.copy_(torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, eps))
'''
OWN = protocol.targets_own(
    "norms",
    {
        "rmsnorm.fwd": "kernels.norms:forward",
        "rmsnorm.bwd": "kernels.norms:backward",
        "layernorm.fwd": "kernels.norms:layer",
        "layernorm.bwd": "kernels.broken:backward",
    },
)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "__init__.py").write_text("")
    (folder / "kernels" / "norms.py").write_text(TARGET)
    (folder / "kernels" / "broken.py").write_text("import torch\nimport a_library_nobody_has\n")
    return folder


@pytest.fixture(scope="session")
def moods(target: Path) -> Mapping[str, int]:
    """Behaviour to the number of rows that brings it out."""
    found: dict[str, Any] = {}
    table = TARGET[TARGET.index("MOODS = ") : TARGET.index("KEPT = ")]
    exec(table, found)
    return found["MOODS"]


Open = Callable[..., Channel]
# Of the environment.  What was compiled once in a session of tests need not be compiled again.
KEPT = ("PATH", "LANG", "HOME", "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture(scope="session")
def open_contender(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Start a contender process that imports from the target; every one is ended in the end."""
    opened: list[Channel] = []

    def start(**environment: str) -> Channel:
        scratch = tmp_path_factory.mktemp("scratch")
        bare = {name: value for name, value in os.environ.items() if name in KEPT}
        with (scratch / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", str(protocol.CONTENDER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=scratch,
                env={**bare, "PYTHONPATH": str(target), **environment},
                start_new_session=True,
            )
        channel = Channel(process, scratch / "log")
        opened.append(channel)
        return channel

    yield start
    for channel in opened:
        channel.close()


@pytest.fixture(scope="session")
def contender(open_contender: Open) -> Callable[..., Contender]:
    def make(label: str, provider: Mapping[str, Any] = OWN, role: Role = Role.HEAD) -> Contender:
        return Contender(label, role, provider, open_contender)

    return make
