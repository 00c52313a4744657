"""`kernelwatch compare` and `init --check` in a repository: real contenders on the CPU, without server or database."""

import csv
import io
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
CASE = "rmsnorm.fwd.512x512.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "tiny"
[paths]
matter = ["*.py"]
[providers.norms]
rmsnorm.fwd = "norms:forward"
[suites]
tiny = ["{CASE}"]
"""
NORMS = """
import torch


def forward(x, weight, eps):
    for _ in range(TIMES):
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return y
"""

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


class Checkout(Repository):
    """A repository, and a machine on which kernelwatch was never used."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "norms")
        self.folder = folder / "norms"
        self.home = folder / "home"
        self.home.mkdir()

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELWATCH_", "XDG_"))}
        environment = kept | {"HOME": str(self.home), "PYTHONPATH": str(ROOT), "KERNELWATCH_DEVICE": "cpu"}
        environment["KERNELWATCH_LOCKS"] = str(self.home)  # other tests measure on this machine too
        command = [sys.executable, "-P", "-m", "service.cli", *arguments, "--allow-unsandboxed"]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=280, check=False
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path)
    made.commit("once", {"kernelwatch.toml": RECIPE, "norms.py": NORMS.replace("TIMES", "1")})
    made.commit("three times", {"norms.py": NORMS.replace("TIMES", "3")})
    return made


def test_a_real_regression_is_reported_and_exits_with_1(checkout: Checkout) -> None:
    (checkout.folder / "norms.py").write_text("# not committed\n")
    done = checkout.run("compare", "HEAD~1", "--format", "csv")
    assert done.returncode == 1, done.stderr
    [row] = [row for row in csv.DictReader(io.StringIO(done.stdout)) if row["baseline_kind"] == "parent"]
    assert (row["case"], row["outcome"], float(row["ratio"]) > 1.5) == (CASE, "regression", True)
    assert "Not measured: 1 file with changes that are not committed." in done.stderr
    assert "trial 1" in done.stderr, "progress goes to stderr"
    assert (checkout.folder / "norms.py").read_text() == "# not committed\n", "the checkout is only read"
    assert not (checkout.home / ".local").exists(), "the database of a service is not touched"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("nowhere",), "No revision nowhere in ."),
        (("HEAD~1", "--python", "/bin/false"), "/bin/false has no torch, and there is no stack host"),
        *(
            pytest.param(arguments, why, marks=pytest.mark.long)
            for arguments, why in (
                (("HEAD", "HEAD"), "HEAD and HEAD are the same commit; name two that differ."),
                (("HEAD~1", "--recipe", "missing.toml"), "missing.toml: No such file or directory."),
                (("HEAD~1", "--suite", "huge"), "huge"),
            )
        ),
    ],
)
def test_a_mistake_is_one_sentence(checkout: Checkout, arguments: tuple[str, ...], why: str) -> None:
    done = checkout.run("compare", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kernelwatch: ")
    assert why in done.stderr


FUNCTIONS = """
devices = ["cpu"]
[[function]]
name = "scale"
call = "scaling:scale"
sizes = ["M", "N"]
inputs = {x = {shape = ["M", "N"], dtype = "fp32"}}
bytes = "2 * M * N * 4"
cases = ["512x512"]
"""
SCALING = "def scale(x):\n    for _ in range(TIMES):\n        y = x * 2\n    return y\n"


def test_a_function_of_the_recipe_is_compared_with_its_parent(checkout: Checkout) -> None:
    checkout.commit("scale", {"kernelwatch.toml": FUNCTIONS, "scaling.py": SCALING.replace("TIMES", "1")})
    checkout.commit("three times", {"scaling.py": SCALING.replace("TIMES", "3")})
    done = checkout.run("compare", "HEAD~1", "--all")

    assert done.returncode == 1, done.stderr
    assert "scale/512x512 is " in done.stdout.splitlines()[0], done.stdout
    assert "Functions of a recipe have no SOTA" in done.stdout
    assert "Provisional" not in done.stdout, "no calibration follows on a checkout"


def test_a_benchmark_that_a_repository_has_gets_its_first_verdict(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    files = {"src/fast/__init__.py": "", "src/fast/softmax.py": SOFTMAX.replace("TIMES", "1"), "bench/test_it.py": TEST}
    checkout.commit("once", files)
    checkout.commit("three times", {"src/fast/softmax.py": SOFTMAX.replace("TIMES", "3")})

    done = checkout.run("init", "--check")

    assert done.returncode == 1, done.stderr
    [function] = tomllib.loads((checkout.folder / "kernelwatch.toml").read_text())["function"]
    assert function["cases"] == ["256", "512", "1024", "2048"]
    verdicts = [line.split() for line in done.stdout.splitlines() if line.startswith("softmax/")]
    outcomes = {case: outcome for case, _provider, outcome, *_ in verdicts}
    assert outcomes == {"softmax/512": "regression", "softmax/1024": "regression"}
