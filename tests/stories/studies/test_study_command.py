"""`kernelwatch study` on a machine without a GPU: measured for real, interrupted, continued, shown and compared."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernels.studies.published.records import StudyFile, StudyWriter
from tests.service.ledger.studies.literal import session_file

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Machine:
    """A machine with a stack and a database of its own."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWATCH_")}
        own = {"KERNELWATCH_STATE": str(self.folder / "state"), "KERNELWATCH_LOCKS": str(self.folder)}
        return kept | own | {"KERNELWATCH_DEVICE": "cpu", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-P", "-m", "service.cli", *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, **pipes)

    def kernelwatch(self, *arguments: str, code: int = 0) -> str:
        """What a command prints, which ends with this code."""
        process = self.start(*arguments)
        printed, errors = process.communicate(timeout=200)
        assert process.returncode == code, errors
        return printed if code in (0, 3) else errors

    def json(self, *arguments: str) -> Any:
        return json.loads(self.kernelwatch(*arguments, "--format", "json"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def written(folder: Path, name: str, file: StudyFile) -> str:
    """The path of a file as a GPU host writes it."""
    writer = StudyWriter(folder / name)
    writer.begin(file.session)
    writer.add(file.records, file.notes)
    return str(folder / name)


@pytest.mark.torch
def test_a_study_is_interrupted_and_goes_on(machine: Machine) -> None:
    pytest.importorskip("torch")
    machine.kernelwatch("stack", "adopt", "host", "--python", sys.executable)

    running = machine.start("study", "run", "s3", "--quick")
    assert running.stderr is not None
    for line in running.stderr:
        if line.startswith("1 of 2 cases"):
            break
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate(timeout=100)
    assert running.returncode == 3
    assert "session 1: cpu, quick form, 1 of 2 cases" in printed
    assert "1 case left. The same command measures the rest." in printed

    whole = machine.json("study", "run", "s3", "--quick")

    assert (whole["id"], whole["done"], whole["total"]) == (1, 2, 2)
    arms = {(one["case"], one["arm"]): one for one in whole["records"]}
    assert len(arms) == 6  # two cases with eager, Inductor and the control
    assert all(one["state"] == "measured" and one["median"] > 0 for one in arms.values())
    assert whole["stacks"][0]["versions"]["torch"]
    assert whole["tables"][0]["columns"] == ["case", "eager", "inductor"]
    assert machine.json("study", "show", "1") == whole
    assert list((machine.folder / "state" / "studies" / "cpu").iterdir()) == [], "all of it is in the database"


def test_files_of_another_machine_are_stored_and_compared(machine: Machine) -> None:
    first = written(machine.folder, "first.jsonl", session_file())
    second = written(machine.folder, "second.jsonl", session_file(device="b200", speed=2.0))

    assert "Session 1: s3 on h200, 4 of 120 cases, 24 new records." in machine.kernelwatch("study", "add", first)
    assert "Session 1: s3 on h200, 4 of 120 cases, nothing new." in machine.kernelwatch("study", "add", first)
    [added] = machine.json("study", "add", second)
    assert (added["session"]["id"], added["records"]) == (2, 24)

    listed = machine.json("study", "list")
    [s3] = [one for one in listed if one["name"] == "s3"]
    assert s3["claims"] == {"hold": 2, "fail": 1, "undecided": 1}
    shown = machine.kernelwatch("study", "show", "s3", "--device", "h200", "--format", "md")
    assert "| Up to 2048 columns the fused sum is faster | " in shown
    assert "| 256 | 1.41 … 0.95 | 1.250 … 1.250 |" in shown

    compared = machine.json("study", "compare", "1", "2")
    assert compared["differences"] == ["device: h200 in A, b200 in B"]
    changes = {(one["case"], one["arm"]): one for one in compared["changes"]}
    halved = changes["rmsnorm.bwd.4096x256.bf16-fp32", "last"]
    assert halved["time"]["ratio"] == pytest.approx(0.5, rel=1e-4)
    assert halved["time"]["low"] < 0.5 < halved["time"]["high"]
    assert (halved["baseline"], halved["relative"]["ratio"]) == ("separate", pytest.approx(0.5, rel=1e-4))
    assert changes["rmsnorm.bwd.4096x256.bf16-fp32", "tree"]["time"]["ratio"] == 1.0
    assert "The sessions differ in device: h200 in A, b200 in B." in machine.kernelwatch("study", "compare", "1", "2")


def test_a_mistake_is_one_sentence(machine: Machine) -> None:
    python = ("--python", sys.executable)
    for arguments, why in (
        (("run", "s9", *python), "No study s9. Known: s1,"),
        (("run", "s3", "--only", "warm", *python), "Study s3 has no step warm on cpu; its steps are dweight."),
        (("run", "s3", "--device", "h200", *python), "This machine has cpu, not h200."),
        (("run", "s3", "--python", "/bin/false"), "/bin/false has no torch"),
        (("run", "s3", "--stack", "none"), "No stack none."),
        (("add", "missing.jsonl"), "missing.jsonl cannot be read"),
    ):
        assert why in machine.kernelwatch("study", *arguments, code=2)
    written(machine.folder, "one.jsonl", session_file())
    machine.kernelwatch("study", "add", "one.jsonl")
    for arguments, why in (
        (("show", "7"), "No session 7. `kernelwatch study list` names those"),
        (("show", "s1"), "No session of study s1. `kernelwatch study run s1` measures one."),
        (("compare", "1", "s3"), "A and B are both session 1"),
        (("run", "s3", "--resume", "1", *python), "Session 1 cannot go on: its device is h200, here it is cpu."),
    ):
        assert why in machine.kernelwatch("study", *arguments, code=2)
