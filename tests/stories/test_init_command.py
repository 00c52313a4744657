"""`kernelwatch init --check` in a repository with a benchmark: from nothing to a verdict, without a server."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.fakes.repository import Repository

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
SOFTMAX = """
import torch


def softmax(x):
    for _ in range(TIMES):
        y = torch.softmax(x, -1)
    return y
"""
TEST = """
import pytest
import torch

from fast.softmax import softmax


@pytest.mark.parametrize("cols", [2**i for i in range(8, 12)])
def test_softmax(benchmark, cols):
    result = benchmark(softmax, torch.randn(256, cols))
    assert result.shape == (256, cols)
"""


def test_a_benchmark_that_a_repository_has_gets_its_first_verdict(tmp_path: Path) -> None:
    checkout = Repository(tmp_path / "fast")
    files = {"src/fast/__init__.py": "", "src/fast/softmax.py": SOFTMAX.replace("TIMES", "1"), "bench/test_it.py": TEST}
    checkout.commit("once", files)
    checkout.commit("three times", {"src/fast/softmax.py": SOFTMAX.replace("TIMES", "3")})

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELWATCH_", "XDG_"))}
    environment = kept | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "KERNELWATCH_DEVICE": "cpu"}
    environment["KERNELWATCH_LOCKS"] = str(tmp_path)  # other tests measure on this machine too
    command = [sys.executable, "-P", "-m", "service.cli", "init", "--check", "--allow-unsandboxed"]
    done = subprocess.run(
        command, cwd=checkout.folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )

    assert done.returncode == 1, done.stderr
    [function] = tomllib.loads((checkout.folder / "kernelwatch.toml").read_text())["function"]
    assert function["cases"] == ["256", "512", "1024", "2048"]
    verdicts = [line.split() for line in done.stdout.splitlines() if line.startswith("softmax/")]
    outcomes = {case: outcome for case, _provider, outcome, *_ in verdicts}
    assert outcomes == {"softmax/512": "regression", "softmax/1024": "regression"}
