"""docs/security.md says which run proves each promise, and that run executes the tests that the row names."""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from service.settings import Settings
from tests.project import runs
from tests.project.runs import EVERY_RUN, NIGHTLY, ROOT, Function

PAGE = ROOT / "docs" / "security.md"
WORKFLOWS = ROOT / ".github" / "workflows"


@dataclass(frozen=True)
class Row:
    promise: str
    every_run: tuple[str, ...]  # tests that every run executes
    nightly: tuple[str, ...]
    by_hand: bool

    @property
    def tests(self) -> tuple[str, ...]:
        return self.every_run + self.nightly


def rows() -> Iterator[Row]:
    """The rows of all tables of promises."""
    head: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or head == []:
            head = cells
        elif set(cells[0]) != {"-"}:
            named = dict(zip(head, cells, strict=True))
            parts = (re.findall(r"`(tests/[^`]+)`", part) for part in named["test"].partition("nightly: ")[::2])
            yield Row(named["promise"], *map(tuple, parts), by_hand=named["test"].startswith("by hand: "))


ROWS = list(rows())


def executed(functions: list[Function]) -> str:
    """The run that executes at least one of these functions, the most frequent."""
    found = {one.when for one in functions}
    return next((when for when in (EVERY_RUN, NIGHTLY) if when in found), runs.NEVER)


def test_all_tables_are_read() -> None:
    assert len(ROWS) == len(re.findall(r"^\| (?!promise)", PAGE.read_text(), re.MULTILINE)) > 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.promise[:40])
def test_the_runs_of_a_promise_execute_its_tests(row: Row) -> None:
    assert row.by_hand == (not row.tests)
    stated = dict.fromkeys(row.every_run, EVERY_RUN) | dict.fromkeys(row.nightly, NIGHTLY)
    assert {name: executed(runs.named(name)) for name in row.tests} == stated


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.promise[:40])
def test_a_row_names_the_functions_of_attacks_that_different_runs_execute(row: Row) -> None:
    mixed = [
        name
        for name in row.tests
        if name.startswith("tests/attacks/") and len({one.when for one in runs.named(name)}) > 1
    ]
    assert mixed == []


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("def test_one(): pass", [EVERY_RUN]),
        ("@pytest.mark.attack\ndef test_one(): pass", [NIGHTLY]),
        ("@pytest.mark.timeout(9)\n@pytest.mark.long\ndef test_one(): pass", [NIGHTLY]),
        ("@parametrize('n', [1, pytest.param(2, marks=pytest.mark.long)])\ndef test_one(n): pass", [EVERY_RUN]),
        ("@needs.skip_unless(os.getuid() == 0, 'root')\ndef test_one(): pass", [NIGHTLY]),
        ("pytestmark = [pytest.mark.image, pytest.mark.alone]\ndef test_one(): pass\ndef helper(): pass", [NIGHTLY]),
        ("pytestmark = pytest.mark.gpu\n@pytest.mark.attack\nasync def test_one(): pass", [runs.NEVER]),
    ],
)  # fmt: skip
def test_marks_say_when_a_function_runs(tmp_path: Path, text: str, when: list[str]) -> None:
    file = tmp_path / "test_file.py"
    file.write_text(text)
    assert [one.when for one in runs.functions(file)] == when


@pytest.mark.parametrize(
    ("setting", "words", "value"),
    [
        ("head_limit_s", "more than 10 s to arrive", 10),
        ("body_limit_s", "its body more than 15 s", 15),
        ("response_limit_s", "its response more than 60 s", 60),
        ("connections_limit", "at most 512 connections", 512),
        ("body_limit", "A body is at most 25 MiB", 25 << 20),
        ("bodies_limit", "At most 8 such bodies are received at once", 8),
        ("rate_limit", "at most 6,000 requests a minute", "6000/minute"),
    ],
)
def test_the_numbers_of_the_page_are_the_defaults(setting: str, words: str, value: object) -> None:
    assert words in PAGE.read_text()
    assert Settings.model_fields[setting].default == value


# -- the runs themselves


def script(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def ci(tmp_path: Path, kind: str, *, lacks: str = "", fails: str = "nothing") -> tuple[int, list[str], str]:
    """What `.ci/run` starts: its exit code, the targets of make with their arguments, and its output."""
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    for folder in (checkout / ".ci", checkout / "benchmarks", programs):
        folder.mkdir(parents=True)
    (checkout / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    script(programs / "make", f'echo "$@" >> {tmp_path}/made; test "$1" != {fails}')
    for name in ("bwrap", "chromium"):
        script(programs / name, "true")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KERNELWATCH_TESTS": kind,
        "KERNELWATCH_TESTS_LACK": lacks,
    }
    command = ["bash", str(checkout / ".ci" / "run"), "-k one"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    made = tmp_path / "made"
    return done.returncode, made.read_text().splitlines() if made.exists() else [], done.stdout + done.stderr


def test_every_run_is_the_test_command_of_people(tmp_path: Path) -> None:
    code, made, said = ci(tmp_path, "every-run", lacks="gpu")
    assert (code, len(made)) == (0, 1)
    assert re.fullmatch(r"test ARGS=--durations=\d+ --junitxml=build/tests.xml -k one", made[0])
    assert "Tests may skip for: gpu" in said


@pytest.mark.parametrize(
    ("lacks", "targets"),
    [
        ("", ["test-all", "attack", "test-benchmarks", "test-image"]),
        ("gpu,buildah", ["test-all", "attack", "test-benchmarks"]),
        ("root", ["test-all", "attack", "test-benchmarks"]),
    ],
)
def test_the_nightly_run_leaves_out_nothing_that_the_machine_can_run(
    tmp_path: Path, lacks: str, targets: list[str]
) -> None:
    code, made, _ = ci(tmp_path, "nightly", lacks=lacks)
    assert (code, [line.split()[0] for line in made]) == (0, targets)


def test_a_failure_does_not_end_the_nightly_run_and_is_its_result(tmp_path: Path) -> None:
    code, made, said = ci(tmp_path, "nightly", fails="test-all")
    assert (code, len(made)) == (1, 4)
    assert said.splitlines()[-1] == "failed: tests"


def test_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    code, made, said = ci(tmp_path, "weekly")
    assert (code, made) == (2, [])
    assert "KERNELWATCH_TESTS is every-run or nightly, and not weekly" in said


def workflow(name: str) -> tuple[set[str], str]:
    """What starts a workflow, and the step that runs the tests."""
    text = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())
    [job] = text["jobs"].values()
    [step] = [step for step in job["steps"] if ".ci/run" in step.get("run", "")]
    return set(text[True]), f"{step['run']} {step.get('env', {})}"  # YAML takes the key `on` for true


def test_the_workflows_run_what_the_page_says() -> None:
    starts, step = workflow("nightly")
    assert starts == {"schedule", "workflow_dispatch"}
    assert "sudo" in step, "what needs root runs at night"
    assert "KERNELWATCH_TESTS=nightly" in step
    starts, step = workflow("test")
    assert starts == {"push", "pull_request"}
    assert "KERNELWATCH_TESTS=" not in step
