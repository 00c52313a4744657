"""Contenders that hang, crash or break their CUDA context: only their case fails, and the GPU is free afterwards."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.session import Contender, Pace, run_trial
from kernels.cases import Case, Role

pytestmark = [pytest.mark.gpu, pytest.mark.alone]  # others on the GPU would change its times
TARGET = """
import os
import torch
import triton
import triton.language as tl

WAYS = "honest takes_all_memory writes_nowhere never_ends leaves traps another_stream fills_memory".split()
HELD = []


@triton.jit
def _write(X, far, BLOCK: tl.constexpr):
    tl.store(X + far + tl.arange(0, BLOCK), 1.0)


@triton.jit
def _spin(X, wanted):
    while tl.load(X, volatile=True) != wanted:
        pass


def forward(x, weight, eps):
    way = dict(enumerate(WAYS)).get(x.shape[0] - 1000, "honest")
    if way == "takes_all_memory":
        return torch.empty(1 << 42, dtype=torch.int8, device=x.device)
    if way == "fills_memory":
        while True:
            HELD.append(torch.ones(1 << 30, dtype=torch.int8, device=x.device))
    if way == "writes_nowhere":
        _write[(1,)](x, 1 << 44, 1024)
    if way == "never_ends":
        _spin[(1,)](torch.zeros(1, device=x.device), 1e30)
    if way == "leaves":
        os._exit(9)
    if way == "traps":
        torch._assert_async(torch.zeros((), dtype=torch.bool, device=x.device))
    y = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
    if way == "another_stream":
        beside = torch.cuda.Stream()
        with torch.cuda.stream(beside):
            y = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
    return y
"""
WAYS = {name: 1000 + number for number, name in enumerate(TARGET.split('WAYS = "')[1].split('"')[0].split())}
OWN = protocol.targets_own("norms", {"rmsnorm.fwd": "norms_that_fail:forward"})
PACE = Pace(rounds=2, warm=1, timed=2, start_limit_s=120, prepare_limit_s=25, turn_limit_s=10)


def case(way: str) -> Case:
    return Case.parse(f"rmsnorm.fwd.{WAYS[way]}x1024.bf16")


@pytest.fixture
def contenders(tmp_path: Path) -> Iterator[list[Contender]]:
    (tmp_path / "norms_that_fail.py").write_text(TARGET)
    opened: list[Channel] = []

    def start() -> Channel:
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", str(protocol.CONTENDER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
                start_new_session=True,
            )
        opened.append(Channel(process, tmp_path / "log"))
        return opened[-1]

    yield [
        Contender("head", Role.HEAD, OWN, start),
        Contender("beside", Role.SOTA, protocol.built_in("eager"), start),
    ]
    for channel in opened:
        channel.close()


def used_mib() -> int:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0])


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("takes_all_memory", "out of memory"),
        ("fills_memory", "out of memory"),
        ("writes_nowhere", "CUDA error"),
        ("traps", "CUDA error"),
        ("leaves", "exited with status 9"),
        ("never_ends", "no answer to 'prepare' in 25 s"),
    ],
)
def test_only_its_own_case_fails(contenders, way, says):
    before = used_mib()

    cells = run_trial(contenders, [case(way), case("honest")], PACE, device="cuda", seed=1).cells

    assert cells["head", case(way)].state == "failed"
    assert says in cells["head", case(way)].reason
    assert (cells["beside", case(way)].state, len(cells["beside", case(way)].samples)) == ("measured", 2)
    for label in ("head", "beside"):
        assert (cells[label, case("honest")].state, cells[label, case("honest")].reason) == ("measured", None)
    until = time.monotonic() + 10
    while used_mib() > before + 64 and time.monotonic() < until:
        time.sleep(0.2)
    assert used_mib() <= before + 64


def test_work_on_another_stream_is_not_left_out_of_the_time(contenders):
    cell = run_trial(contenders, [case("another_stream")], PACE, device="cuda", seed=1).cells[
        "head", case("another_stream")
    ]

    assert cell.state in ("failed", "invalid")
    assert cell.samples == []
