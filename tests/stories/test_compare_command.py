"""`kernelwatch compare` in a kernel repository: real contenders on the CPU, without server, target or database."""

import csv
import io
import os
import subprocess
import sys
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


class Checkout(Repository):
    """A repository of one function, and a machine on which kernelwatch was never used."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "norms")
        self.folder = folder / "norms"
        self.home = folder / "home"
        self.home.mkdir()

    def compare(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELWATCH_", "XDG_"))}
        environment = kept | {"HOME": str(self.home), "PYTHONPATH": str(ROOT), "KERNELWATCH_DEVICE": "cpu"}
        environment["KERNELWATCH_LOCKS"] = str(self.home)  # other tests measure on this machine too
        command = [sys.executable, "-P", "-m", "service.cli", "compare", *arguments, "--allow-unsandboxed"]
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
    done = checkout.compare("HEAD~1", "--format", "csv")
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
    done = checkout.compare(*arguments)
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
    done = checkout.compare("HEAD~1", "--all")

    assert done.returncode == 1, done.stderr
    assert "scale/512x512 is " in done.stdout.splitlines()[0], done.stdout
    assert "Functions of a recipe have no SOTA" in done.stdout
