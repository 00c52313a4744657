"""The story of a repository without GPUs: a checkout, one command, real Triton kernels compiled for two devices."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.fakes.repository import Repository

pytest.importorskip("triton", reason=needs.reason("triton"))

ROOT = Path(__file__).parents[2]
NARROW, WIDE = "rmsnorm.fwd.4096x1024.bf16", "rmsnorm.fwd.4096x16384.bf16"
RECIPE = f"""
devices = ["h200"]
suite = "rows"
[paths]
matter = ["*.py"]
[providers.norms]
rmsnorm.fwd = "norms:forward"
[suites]
rows = ["{NARROW}", "{WIDE}"]
"""
NORMS = """
import torch
import triton
import triton.language as tl


@triton.jit
def _forward(X, W, Y, stride, N, eps, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(X + row * stride + cols, cols < N, other=0.0).to(tl.float32)
    w = tl.load(W + cols, cols < N, other=0.0).to(tl.float32)
    tl.store(Y + row * stride + cols, (x * tl.rsqrt(tl.sum(x * x, 0) / N + eps) * w).to(tl.bfloat16), cols < N)


def forward(x, weight, eps):
    y, block = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
    _forward[(x.shape[0],)](x, weight, y, x.stride(0), x.shape[1], eps, BLOCK=block, num_warps=WARPS(block))
    return y
"""
JIT, DEF, STORE = (
    next(line for line in NORMS.splitlines() if line.lstrip().startswith(beginning))
    for beginning in ("@triton.jit", "def _forward", "tl.store")
)


class Checkout(Repository):
    """A repository of one kernel, and a CI machine's state folder with nothing in it but a stack."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "norms")
        self.state, self.program = folder / "state", folder / "kernelwatch"
        for room in ("kernels", "service", "workers", "dashboards"):
            # A copy: what is kept is of one version of the program, and somebody may be working on this one.
            shutil.copytree(ROOT / room, self.program / room, ignore=shutil.ignore_patterns("__pycache__"))
        done = self.kernelwatch("stack", "adopt", "host", "--python", sys.executable)
        assert done.returncode == 0, done.stderr

    def warps(self, rule: str, subject: str = "work") -> str:
        return self.commit(subject, {"norms.py": NORMS.replace("WARPS(block)", rule)})

    def kernelwatch(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "KERNELWATCH_STATE": str(self.state),
            "PYTHONPATH": str(self.program),
            "COLUMNS": "160",
        }
        command = [sys.executable, "-P", "-m", "service.cli", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    def facts(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.kernelwatch("facts", "./", *arguments, "--allow-unsandboxed")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = Checkout(tmp_path_factory.mktemp("ci"))
    made.commit("the recipe", {"kernelwatch.toml": RECIPE})
    made.warps("max(4, block // 1024)", "enough warps")
    made.warps("4 if block < 8192 else 1", "one warp for wide rows")
    return made


def test_wide_rows_that_spill_fail_the_check_and_narrow_ones_are_the_same(checkout: Checkout) -> None:
    done = checkout.facts("HEAD~1..HEAD", "--arch", "sm_90", "--diff")
    assert done.returncode == 1, done.stderr
    assert "1 case breaks a limit; the same machine code at 1 of 2 cases" in done.stdout
    assert "spills_allowed: spills none → " in done.stdout
    assert "configuration: num_warps 16 → 1" in done.stdout
    assert f"norms.py:{NORMS.splitlines().index(DEF) + 1}" in done.stdout, "where the kernel is defined"
    assert "STL" in done.stdout, "the difference begins with the instructions that reach memory"
    assert not (checkout.state / "kernelwatch.db").exists(), "nothing is watched, and no row was written"


def test_a_second_look_compiles_nothing_and_is_one_document(checkout: Checkout) -> None:
    assert checkout.facts("HEAD~1..HEAD").returncode == 1
    kept = {file: file.stat().st_mtime_ns for file in checkout.state.glob("environments/*/facts/*.json")}
    done = checkout.facts("HEAD~1..HEAD", "--format", "json")
    told = json.loads(done.stdout)
    assert {one["arch"] for one in told["facts"]} == {"sm_90", "sm_100"}
    assert all(one["kernels"][0]["loads"].get("16") for one in told["facts"]), "loads are as wide as they can be"
    lines = NORMS.splitlines()
    first, line, last = (lines.index(text) + 1 for text in (JIT, DEF, STORE))
    kernel = {"file": "norms.py", "line": line, "first_line": first, "last_line": last, "changed": None}
    assert [one["source"] for found in told["facts"] for one in found["kernels"]] == [kernel] * 4
    [launch] = {one["source"]["line"] for one in told["facts"]}
    assert lines[launch - 1] == "def forward(x, weight, eps):"
    assert {file: file.stat().st_mtime_ns for file in checkout.state.glob("environments/*/facts/*.json")} == kept


def test_a_summary_for_a_pull_request(checkout: Checkout) -> None:
    done = checkout.facts("--arch", "sm_90", "--format", "md")
    assert done.returncode == 1
    assert "- **spills none → " in done.stdout
    assert f"`{WIDE} on sm_90`" in done.stdout


def test_what_the_exit_code_says(checkout: Checkout) -> None:
    checkout.git("checkout", "-q", "-b", "other", "HEAD~1")
    try:
        checkout.commit("docs", {"README.md": "how to"})
        docs = checkout.facts()
        assert (docs.returncode, "No path of the recipe changed" in docs.stdout) == (0, True)

        checkout.commit("a slip", {"norms.py": "import torhc\n"})
        broken = checkout.facts("--arch", "sm_90")
        assert (broken.returncode, broken.stdout) == (125, "")
        assert "No module named 'torhc'" in broken.stderr

        lost = checkout.facts("nowhere..HEAD")
        assert (lost.returncode, lost.stdout) == (2, "")
        assert "No revision nowhere" in lost.stderr
    finally:
        checkout.git("checkout", "-q", "main")
