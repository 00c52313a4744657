"""`kernelwatch study` on a machine without a GPU: measured for real, interrupted, continued, shown and compared."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.studies import measuring
from kernels.studies.records import StudyFile, StudyWriter
from service.errors import BadInput, ServiceError
from tests.service.ledger.studies.literal import GRID, session_file
from tests.shell import attempt, kernelwatch
from workers.machine import environments

ROOT = Path(__file__).parents[3]


@pytest.fixture
def host(state: Path) -> Path:
    """A state folder with the stack `host`."""
    environments.adopt_stack("host", Path(sys.executable), [])
    return state


def started(*arguments: str) -> "subprocess.Popen[str]":
    """A command in a process of its own, which a person can interrupt."""
    environment = os.environ | {"KERNELWATCH_DEVICE": "cpu", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-P", "-m", "service.cli", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def as_json(*arguments: str) -> Any:
    return json.loads(kernelwatch(*arguments, "--format", "json").stdout)


def written(folder: Path, name: str, file: StudyFile) -> str:
    """The path of a file as a GPU host writes it."""
    writer = StudyWriter(folder / name)
    writer.begin(file.session)
    writer.add(file.records, file.notes)
    return str(folder / name)


@pytest.mark.torch
@pytest.mark.long
def test_a_study_is_interrupted_and_goes_on(host: Path) -> None:
    pytest.importorskip("torch")
    running = started("study", "run", "s1", "--quick")
    assert running.stderr is not None
    for line in running.stderr:
        if re.match("[1-9]", line):  # "1 of 12 cases: …"
            break
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate(timeout=240)
    assert running.returncode == 3
    assert re.search("session 1: cpu, quick form, [0-9]+ of 12 cases", printed)
    assert re.search("[0-9]+ cases? left. The same command measures the rest.", printed)
    before = as_json("study", "show", "1")
    assert 0 < before["done"] < 12

    written(host / "studies" / "cpu", "s3-killed.jsonl", session_file(device="b200"))  # of a run that was killed
    whole = as_json("study", "run", "s1", "--quick", "--device", "cpu")

    assert (whole["id"], whole["done"], whole["total"]) == (1, 12, 12)
    assert whole["records"][: len(before["records"])] == before["records"], "nothing is measured twice"
    assert len(whole["records"]) == 12 * 4  # Inductor, eager, one compiled function without a reset, and the control
    assert all(one["state"] == "measured" and one["median"] > 0 for one in whole["records"])
    assert whole["stacks"][0]["versions"]["torch"]
    assert whole["findings"][0]["claim"].startswith("(a) One compiled function for all shapes")
    assert as_json("study", "show", "1") == whole
    assert list((host / "studies" / "cpu").iterdir()) == [], "all of it is in the database"
    assert as_json("study", "show", "s3", "--device", "b200")["done"] == 4


def test_without_a_clone_studies_are_stored_and_shown_but_not_measured(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "BENCHMARKS", host / "benchmarks")
    kernelwatch("study", "add", written(host, "one.jsonl", session_file()))
    assert "s3" in kernelwatch("study", "list").stdout
    assert as_json("study", "show", "s3")["done"] == 4
    with pytest.raises(BadInput, match=r"their programs are in benchmarks/ of a clone of kernelwatch"):
        kernelwatch("study", "run", "s3", "--device", "cpu")


def test_files_of_another_machine_are_stored_and_compared(host: Path) -> None:
    first = written(host, "first.jsonl", session_file(times=GRID))
    second = written(host, "second.jsonl", session_file(device="b200", speed=2.0, times=GRID))

    assert "Session 1: s3 on h200, 24 of 80 cases, 144 new records." in kernelwatch("study", "add", first).stdout
    assert "Session 1: s3 on h200, 24 of 80 cases, nothing new." in kernelwatch("study", "add", first).stdout
    [added] = as_json("study", "add", second)
    assert (added["session"]["id"], added["records"]) == (2, 144)

    listed = as_json("study", "list")
    [s3] = [one for one in listed if one["name"] == "s3"]
    assert s3["claims"] == {"hold": 2, "fail": 0, "undecided": 1}  # of the b200
    assert s3["sessions"] == {"h200": 1, "b200": 1}
    shown = kernelwatch("study", "show", "s3", "--device", "h200", "--format", "md").stdout
    assert "| Up to 2048 columns the fused sum is faster | " in shown
    assert "| 256 | 1.41 … 0.95 | 1.250 … 1.250 |" in shown

    compared = as_json("study", "compare", "1", "2")
    assert compared["differences"] == ["device: h200 in A, b200 in B"]
    changes = {(one["case"], one["arm"]): one for one in compared["changes"]}
    halved = changes["rmsnorm.bwd.4096x256.bf16-fp32", "last"]
    assert halved["time"]["ratio"] == pytest.approx(0.5, rel=1e-4)
    assert halved["time"]["low"] < 0.5 < halved["time"]["high"]
    assert (halved["baseline"], halved["relative"]["ratio"]) == ("separate", pytest.approx(0.5, rel=1e-4))
    assert changes["rmsnorm.bwd.4096x256.bf16-fp32", "tree"]["time"]["ratio"] == 1.0
    assert "The sessions differ in device: h200 in A, b200 in B." in kernelwatch("study", "compare", "1", "2").stdout


def add_three_sessions(host: Path) -> None:
    for day in (20, 21, 22):
        began = f"2026-11-{day}T03:02:00+00:00"
        kernelwatch("study", "add", written(host, f"{day}.jsonl", session_file(began=began)))


def test_sessions_are_listed_in_pages_and_removed(host: Path) -> None:
    add_three_sessions(host)

    newest = kernelwatch("study", "sessions", "s3", "--limit", "2").stdout
    assert re.findall("2026-11-[0-9]+", newest) == ["2026-11-22", "2026-11-21"]
    assert "These are the first 2; --limit shows more." in newest
    assert [one["id"] for one in as_json("study", "sessions", "s3")["items"]] == [3, 2, 1]
    assert "No sessions. `kernelwatch study run s1` measures one." in kernelwatch("study", "sessions", "s1").stdout

    asked = attempt("study", "remove", "2", input="n\n")
    assert "Delete session 2 of s3 on h200, begun 2026-11-21 03:02 UTC, with 4 of 80 cases?" in asked.stderr
    assert "Nothing was deleted." in str(asked.exception)
    assert "Deleted session 2 of s3 on h200" in kernelwatch("study", "remove", "2", "--yes").stdout
    assert [one["id"] for one in as_json("study", "sessions", "s3")["items"]] == [3, 1]
    assert as_json("study", "show", "s3")["id"] == 3


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("show", "1"), ["GET /studies/sessions/1", "GET /studies/s3/sessions/1"]),
        (("remove", "1", "--yes"), ["GET /studies/sessions/1", "DELETE /studies/s3/sessions/1"]),
        (("show", "s3"), ["GET /studies/s3", "GET /studies/s3/sessions/3"]),
    ],
)
def test_a_session_by_its_number_needs_no_other_session(
    host: Path, caplog: pytest.LogCaptureFixture, arguments: tuple[str, ...], asked: list[str]
) -> None:
    add_three_sessions(host)
    with caplog.at_level("INFO", "httpx"):
        kernelwatch("study", *arguments)
    sent = [one.getMessage() for one in caplog.records if one.name == "httpx"]
    assert [re.sub(r"HTTP Request: (\w+) \S+/api/v1(\S+) .*", r"\1 \2", one) for one in sent] == asked


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("run s9", "No study s9. Known: s1,"),
        ("run s3 --device cpu --only warm", "Study s3 has no step warm on cpu; its steps are dweight."),
        ("run s3 --device a9", "not a9. Measure it where a9 is, and `study add` the file."),
        ("run s3 --python /bin/false", "/bin/false has no torch"),
        ("run s3 --stack none", "No stack none."),
        ("run s3 --stack host --python x", "Use --stack or --python, not both."),
        ("run s3 --device cpu --resume 1", "Session 1 cannot go on: its device is h200, here it is cpu."),
        ("run s3 --device cpu --resume 7", "No session 7 of study s3."),
        ("add missing.jsonl", "missing.jsonl cannot be read"),
        ("show 7", "No session 7. `kernelwatch study sessions NAME` lists those of a study."),
        ("remove 7 --yes", "No session 7. `kernelwatch study sessions NAME` lists those of a study."),
        ("sessions s9", "No study s9. Known: s1,"),
        ("show s1", "No session of study s1. `kernelwatch study run s1` measures one."),
        ("compare 1 s3", "A and B are both session 1; name two that differ."),
    ],
)
def test_a_mistake_is_one_sentence(host: Path, arguments: str, why: str) -> None:
    kernelwatch("study", "add", written(host, "one.jsonl", session_file()))
    with pytest.raises(ServiceError) as error:
        kernelwatch("study", *arguments.split())
    assert why in str(error.value)
