"""`kernelwatch isolate`: two real stacks on the CPU that differ in two packages, of which one became slower."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.repository import Repository
from tests.fakes.wheels import unpacked

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]
CASE = "rmsnorm.fwd.256x512.fp32"
MEMORY = f"{CASE}.memory"  # bytes are the same in every trial, however busy the machine is
RECIPE = f"""
devices = ["cpu"]
suite = "tiny"
[base]
stack = "old"
[paths]
matter = ["*.py"]
[providers.norms]
rmsnorm.fwd = "norms:forward"
[suites]
tiny = ["{CASE}", "{MEMORY}"]
[policy]
rounds = 4
smallest_change = 0.2
smallest_change_short = 0.2
"""
NORMS = """
import liger_kernel
import quack
import torch


def forward(x, weight, eps):
    for _ in range(quack.PASSES):
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    kept = [x + number for number in range(liger_kernel.COPIES)]
    return y
"""


class Machine:
    """A machine with a target and two stacks: `old`, and `new` with other versions of two packages."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.repository = folder, Repository(folder / "norms")
        self.repository.commit("norms", {"kernelwatch.toml": RECIPE, "norms.py": NORMS})
        for name, version, copies in (("old", "1.0", 0), ("new", "2.0", 30)):
            site = folder / name
            unpacked(site, "liger-kernel", version, {"liger_kernel/__init__.py": f"COPIES = {copies}\n"})
            unpacked(site, "quack-kernels", version, {"quack/__init__.py": "PASSES = 1\n"})
            self.run("stack", "adopt", name, "--python", sys.executable, "--path", str(site))

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELWATCH_", "XDG_"))}
        environment = kept | {"HOME": str(self.folder), "PYTHONPATH": str(ROOT), "KERNELWATCH_DEVICE": "cpu"}
        environment |= {"KERNELWATCH_STATE": str(self.folder / "state"), "KERNELWATCH_LOCKS": str(self.folder)}
        environment |= {"KERNELWATCH_ALLOWED_ROOTS": json.dumps([str(self.folder)]), "COLUMNS": "200"}
        command = [sys.executable, "-P", "-m", "service.cli", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("isolate"))


@pytest.mark.alone
def test_the_package_that_became_slower_is_named(machine: Machine) -> None:
    wanted = ("--from", "old", "--to", "new", "--trials", "2", "--max-trials", "2", "--format", "json")
    done = machine.run("isolate", "./norms", *wanted, "--allow-unsandboxed", "--save", "saved")
    assert done.returncode == 1, done.stdout + done.stderr
    document = json.loads(done.stdout)
    cases = {one["case"]: {each["component"]: each for each in one["components"]} for one in document["cases"]}
    quack, liger = cases[MEMORY].values()
    assert (quack["verdict"], liger["verdict"]) == ("not-moved", "slower")
    assert liger["forward"]["ratio"] == liger["backward"]["ratio"] > 1.5
    assert document["cases"][0]["total"]["ratio"] > 1.5, "time"
    assert cases[CASE]["quack"]["verdict"] not in ("depends", "breaks"), "as far as a busy machine can tell"
    assert document["headline"].startswith("Liger 1.0 → 2.0 made ")
    assert document["after"]["versions"]["liger"] == "2.0"
    assert "| Liger |" in (machine.folder / "saved" / "isolation.md").read_text()
    assert not (machine.folder / "state" / "kernelwatch.db").exists(), "nothing is stored in a history"


@pytest.mark.long
def test_a_decided_provider_is_measured_no_more(machine: Machine) -> None:
    """One keeps as much memory as its stack says, the other a random amount in each process."""
    noisy = f"import os\n\nCOPIES = os.urandom(1)[0] % 31\n{NORMS}".replace("liger_kernel.COPIES", "COPIES")
    recipe = RECIPE.replace(f'"{CASE}", ', "") + '[providers.noisy]\nrmsnorm.fwd = "noisy:forward"\n'
    repository = Repository(machine.folder / "noisy")
    repository.commit("two", {"kernelwatch.toml": recipe, "norms.py": NORMS, "noisy.py": noisy})
    some = ("--provider", "norms", "--provider", "noisy", "--component", "liger")
    wanted = ("--from", "old", "--to", "new", "--trials", "2", "--max-trials", "3", "--format", "json", *some)
    done = machine.run("isolate", "./noisy", *wanted, "--allow-unsandboxed")
    cases = {one["provider"]: one for one in json.loads(done.stdout)["cases"]}
    assert (cases["norms"]["verdict"], cases["norms"]["trials"]) == ("slower", 2)
    assert cases["noisy"]["trials"] == 3


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--from", "old", "--to", "older"), "No stack older."),
        *(
            pytest.param(arguments, why, marks=pytest.mark.long)
            for arguments, why in (
                (("--from", "old", "--to", "old"), "--from and --to are the same stack; name two that differ."),
                (
                    ("--from", "old", "--to", "new", "--component", "torch"),
                    "No component 'torch' differs between the stacks",
                ),
                (
                    ("--from", "old", "--to", "new", "--provider", "quick"),
                    "There is no provider 'quick'; known: norms, ",
                ),
            )
        ),
    ],
)
def test_a_mistake_is_one_sentence(machine: Machine, arguments: tuple[str, ...], why: str) -> None:
    done = machine.run("isolate", "./norms", *arguments, "--allow-unsandboxed")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"kernelwatch: {why}")
